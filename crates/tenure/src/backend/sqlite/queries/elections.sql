-- name: election_slots
SELECT e.slots,
       EXISTS (SELECT 1 FROM tenure_candidates c JOIN tenure_sessions s ON s.id = c.session AND s.state = 'live'
               WHERE c.namespace = e.namespace AND c.election = e.name AND c.session <> ?3) AS others
FROM tenure_elections e
WHERE e.namespace = ?1 AND e.name = ?2;

-- name: election_upsert
INSERT INTO tenure_elections (namespace, name, slots, requires, created_at)
VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (namespace, name) DO UPDATE
SET slots = excluded.slots, requires = CASE WHEN ?6 THEN requires ELSE excluded.requires END;

-- name: election_paused
SELECT paused_at IS NOT NULL FROM tenure_elections WHERE namespace = ?1 AND name = ?2;

-- name: election_pause
UPDATE tenure_elections SET paused_by = ?3, paused_reason = ?4, paused_at = ?5
WHERE namespace = ?1 AND name = ?2 AND paused_at IS NULL;

-- name: election_resume
UPDATE tenure_elections SET paused_by = NULL, paused_reason = NULL, paused_at = NULL
WHERE namespace = ?1 AND name = ?2 AND paused_at IS NOT NULL;

-- name: observe_contested
SELECT e.* FROM tenure_elections e
WHERE EXISTS (SELECT 1 FROM tenure_candidates c
              WHERE c.namespace = e.namespace AND c.election = e.name AND c.session = ?1)
  AND NOT EXISTS (SELECT 1 FROM tenure_leases l
                  WHERE l.namespace = e.namespace AND l.name = e.name AND l.session = ?1)
ORDER BY e.namespace, e.name;

-- name: observe_standing
SELECT e.* FROM tenure_elections e
WHERE EXISTS (SELECT 1 FROM tenure_candidates c
              WHERE c.namespace = e.namespace AND c.election = e.name AND c.session = ?1)
ORDER BY e.namespace, e.name;

-- name: observe_only
SELECT e.* FROM tenure_elections e
WHERE (e.namespace, e.name) IN (SELECT k.value ->> 0, k.value ->> 1 FROM json_each(?1) k)
ORDER BY e.namespace, e.name;

-- name: observe_all
SELECT e.* FROM tenure_elections e WHERE ?1 IS NULL OR e.namespace = ?1 ORDER BY e.namespace, e.name;

-- name: observe_leases
SELECT l.namespace, l.name AS election, l.slot, l.token, l.reserved, l.via, l.granted_at,
       s.id AS session_id, s.name AS session_name, s.beat, s.lease_ms, s.state = 'live' AS live, s.beat_at, s.owner
FROM json_each(?1) k
JOIN tenure_elections e ON e.namespace = k.value ->> 0 AND e.name = k.value ->> 1
JOIN tenure_leases l ON l.namespace = e.namespace AND l.name = e.name AND l.slot < e.slots
LEFT JOIN tenure_sessions s ON s.id = l.session
ORDER BY l.namespace, l.name, l.slot;

-- name: observe_candidates
SELECT c.namespace, c.election, c.id, c.priority, c.observer, c.capabilities, c.metadata, c.joined_at,
       s.id AS session_id, s.name AS session_name, s.beat, s.lease_ms, s.state = 'live' AS live, s.beat_at, s.owner
FROM json_each(?1) k
JOIN tenure_candidates c ON c.namespace = k.value ->> 0 AND c.election = k.value ->> 1
JOIN tenure_sessions s ON s.id = c.session
ORDER BY c.namespace, c.election, c.session;

-- name: observe_strays
SELECT l.namespace, l.name AS election, l.slot, l.token FROM tenure_leases l
WHERE l.session = ?1
  AND NOT EXISTS (SELECT 1 FROM tenure_candidates c
                  WHERE c.namespace = l.namespace AND c.election = l.name AND c.session = ?1)
ORDER BY l.namespace, l.name, l.slot;
