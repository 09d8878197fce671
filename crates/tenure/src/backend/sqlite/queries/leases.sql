-- name: lease_make
-- A new row is of this epoch, so that its first grant is too.
INSERT INTO tenure_leases (namespace, name, slot, token)
WITH RECURSIVE slots (slot) AS (SELECT 0 UNION ALL SELECT slot + 1 FROM slots WHERE slot + 1 < ?3)
SELECT ?1, ?2, slots.slot, e.epoch << 40 FROM slots, tenure_epoch e WHERE slots.slot < ?3
ON CONFLICT (namespace, name, slot) DO NOTHING;

-- name: lease_take
-- Compare and swap on (token, session). A holder that was seen has just been expired, or nothing happens.
UPDATE tenure_leases
SET token = max(coalesce(own_token, token), $12 << 40) + 1, own_token = NULL, session = $6, reserved = NULL, granted_at = $7,
    via = CASE WHEN session IS NULL THEN via ELSE 'takeover' END
WHERE namespace = $1 AND name = $2 AND slot = $3
  AND token = $4 AND session IS $5
  AND $12 = (SELECT ep.epoch FROM tenure_epoch ep)
  AND NOT EXISTS (SELECT 1 FROM tenure_sessions h WHERE h.id = $5 AND h.state = 'live')
  AND EXISTS (SELECT 1 FROM tenure_sessions s WHERE s.id = $6 AND s.state = 'live')
  AND EXISTS (SELECT 1 FROM tenure_candidates c
              WHERE c.namespace = $1 AND c.election = $2 AND c.session = $6)
  AND EXISTS (SELECT 1 FROM tenure_elections e
              WHERE e.namespace = $1 AND e.name = $2 AND e.slots > $3 AND e.paused_at IS NULL)
RETURNING token;

-- name: lease_release
UPDATE tenure_leases
SET token = coalesce(own_token, token), own_token = NULL, session = NULL, reserved = ?6, via = ?7
WHERE namespace = ?1 AND name = ?2 AND slot = ?3 AND token = ?4 AND session = ?5;

-- name: lease_free
UPDATE tenure_leases
SET token = coalesce(own_token, token), own_token = NULL, session = NULL, reserved = NULL, via = $10
WHERE session = $8 AND EXISTS (SELECT 1 FROM tenure_sessions s WHERE s.id = $8 AND s.state <> 'live')
RETURNING namespace, name AS election;

-- name: lease_holder
SELECT session FROM tenure_leases
WHERE namespace = ?1 AND name = ?2 AND slot = ?3 AND token = ?4 AND session IS NOT NULL;

-- name: lease_held
SELECT slot, token, session FROM tenure_leases
WHERE namespace = ?1 AND name = ?2 AND session IS NOT NULL
ORDER BY slot;

-- name: lease_guard
UPDATE tenure_leases SET token = token
WHERE namespace = ?1 AND name = ?2 AND slot = ?3 AND token = ?4 AND session = ?5
RETURNING token;

-- name: lease_adopt_make
INSERT INTO tenure_leases (namespace, name, slot, token)
VALUES (?1, ?2, ?3, (SELECT o.epoch << 40 FROM tenure_epoch o WHERE o.id = 1)) ON CONFLICT DO NOTHING;

-- name: lease_adopt
-- A later grant of the same elector must not have been here before, and who was elected by another one must be gone: tokens of
-- different electors do not compare.
UPDATE tenure_leases AS l
SET token = ?4, own_token = coalesce(own_token, token), session = ?5, reserved = NULL, via = 'release', granted_at = ?7
WHERE namespace = ?1 AND name = ?2 AND slot = ?3
  AND EXISTS (SELECT 1 FROM tenure_sessions s WHERE s.id = ?5 AND s.state = 'live')
  AND ?4 > coalesce((SELECT a.token FROM tenure_adoptions a
                     WHERE a.namespace = ?1 AND a.name = ?2 AND a.slot = ?3 AND a.elector = ?6), 0)
  AND (NOT EXISTS (SELECT 1 FROM tenure_sessions h WHERE h.id = l.session AND h.state = 'live')
       OR EXISTS (SELECT 1 FROM tenure_adoptions a
                  WHERE a.namespace = ?1 AND a.name = ?2 AND a.slot = ?3 AND a.elector = ?6
                    AND a.token = l.token AND a.session = l.session));

-- name: lease_adopt_remember
INSERT INTO tenure_adoptions (namespace, name, slot, elector, token, session, adopted_at)
VALUES (?1, ?2, ?3, ?6, ?4, ?5, ?7)
ON CONFLICT (namespace, name, slot, elector)
DO UPDATE SET token = excluded.token, session = excluded.session, adopted_at = excluded.adopted_at;
