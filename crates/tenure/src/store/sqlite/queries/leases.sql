-- name: lease_create
-- A new row starts in the current epoch, so that its first token belongs to the epoch.
INSERT INTO tenure_leases (namespace, election, slot, token)
WITH RECURSIVE slots (slot) AS (SELECT 0 UNION ALL SELECT slot + 1 FROM slots WHERE slot + 1 < ?3)
SELECT ?1, ?2, slots.slot, e.epoch << 40 FROM slots, tenure_epoch e WHERE slots.slot < ?3
ON CONFLICT (namespace, election, slot) DO NOTHING;

-- name: lease_take
-- Compare and swap on (token, session). The observed holder must have ended or expired.
UPDATE tenure_leases
SET token = max(coalesce(own_token, token), $12 << 40) + 1, own_token = NULL, session = $6, reserved_for = NULL, granted_at_ms = $7,
    start_reason = CASE WHEN session IS NULL THEN start_reason ELSE 'takeover' END
WHERE namespace = $1 AND election = $2 AND slot = $3
  AND token = $4 AND session IS $5
  AND $12 = (SELECT ep.epoch FROM tenure_epoch ep)
  AND NOT EXISTS (SELECT 1 FROM tenure_sessions h WHERE h.id = $5 AND h.state = 'live')
  AND EXISTS (SELECT 1 FROM tenure_sessions s WHERE s.id = $6 AND s.state = 'live')
  AND EXISTS (SELECT 1 FROM tenure_candidates c
              WHERE c.namespace = $1 AND c.election = $2 AND c.session = $6)
  AND EXISTS (SELECT 1 FROM tenure_elections e
              WHERE e.namespace = $1 AND e.name = $2 AND e.slots > $3 AND e.paused_at_ms IS NULL)
RETURNING token;

-- name: lease_release
UPDATE tenure_leases
SET token = coalesce(own_token, token), own_token = NULL, session = NULL, reserved_for = ?6, start_reason = ?7
WHERE namespace = ?1 AND election = ?2 AND slot = ?3 AND token = ?4 AND session = ?5;

-- name: lease_release_session
UPDATE tenure_leases
SET token = coalesce(own_token, token), own_token = NULL, session = NULL, reserved_for = NULL, start_reason = $10
WHERE session = $8 AND EXISTS (SELECT 1 FROM tenure_sessions s WHERE s.id = $8 AND s.state <> 'live')
RETURNING namespace, election;

-- name: lease_holder
SELECT session FROM tenure_leases
WHERE namespace = ?1 AND election = ?2 AND slot = ?3 AND token = ?4 AND session IS NOT NULL;

-- name: lease_list_held
SELECT slot, token, session FROM tenure_leases
WHERE namespace = ?1 AND election = ?2 AND session IS NOT NULL
ORDER BY slot;

-- name: lease_guard
UPDATE tenure_leases SET token = token
WHERE namespace = ?1 AND election = ?2 AND slot = ?3 AND token = ?4 AND session = ?5
RETURNING token;

-- name: lease_adopt_create
INSERT INTO tenure_leases (namespace, election, slot, token)
VALUES (?1, ?2, ?3, (SELECT o.epoch << 40 FROM tenure_epoch o WHERE o.singleton = 1)) ON CONFLICT DO NOTHING;

-- name: lease_adopt
-- Tokens of one store must grow. Tokens of different stores do not compare, so a live holder under the token of another store keeps
-- the lease.
UPDATE tenure_leases AS l
SET token = ?4, own_token = coalesce(own_token, token), session = ?5, reserved_for = NULL, start_reason = 'release', granted_at_ms = ?7
WHERE namespace = ?1 AND election = ?2 AND slot = ?3
  AND EXISTS (SELECT 1 FROM tenure_sessions s WHERE s.id = ?5 AND s.state = 'live')
  AND ?4 > coalesce((SELECT a.token FROM tenure_adopted_leases a
                     WHERE a.namespace = ?1 AND a.election = ?2 AND a.slot = ?3 AND a.granted_by = ?6), 0)
  AND (NOT EXISTS (SELECT 1 FROM tenure_sessions h WHERE h.id = l.session AND h.state = 'live')
       OR EXISTS (SELECT 1 FROM tenure_adopted_leases a
                  WHERE a.namespace = ?1 AND a.election = ?2 AND a.slot = ?3 AND a.granted_by = ?6
                    AND a.token = l.token AND a.session = l.session));

-- name: lease_adopt_record
INSERT INTO tenure_adopted_leases (namespace, election, slot, granted_by, token, session, adopted_at_ms)
VALUES (?1, ?2, ?3, ?6, ?4, ?5, ?7)
ON CONFLICT (namespace, election, slot, granted_by)
DO UPDATE SET token = excluded.token, session = excluded.session, adopted_at_ms = excluded.adopted_at_ms;
