-- name: election_slots
SELECT e.slots,
       EXISTS (SELECT 1 FROM tenure_candidates c JOIN tenure_sessions s ON s.id = c.session AND s.state = 'live'
               WHERE c.namespace = e.namespace AND c.election = e.name AND c.session <> ?3) AS others
FROM tenure_elections e
WHERE e.namespace = ?1 AND e.name = ?2;

-- name: election_upsert
INSERT INTO tenure_elections (namespace, name, slots, required_capabilities, created_at_ms)
VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (namespace, name) DO UPDATE
SET slots = excluded.slots, required_capabilities = CASE WHEN ?6 THEN required_capabilities ELSE excluded.required_capabilities END;

-- name: election_is_paused
SELECT paused_at_ms IS NOT NULL FROM tenure_elections WHERE namespace = ?1 AND name = ?2;

-- name: election_pause
UPDATE tenure_elections SET paused_by = ?3, paused_reason = ?4, paused_at_ms = ?5
WHERE namespace = ?1 AND name = ?2 AND paused_at_ms IS NULL;

-- name: election_resume
UPDATE tenure_elections SET paused_by = NULL, paused_reason = NULL, paused_at_ms = NULL
WHERE namespace = ?1 AND name = ?2 AND paused_at_ms IS NOT NULL;

-- name: observe_contested
SELECT e.* FROM tenure_elections e
WHERE EXISTS (SELECT 1 FROM tenure_candidates c
              WHERE c.namespace = e.namespace AND c.election = e.name AND c.session = ?1)
  AND NOT EXISTS (SELECT 1 FROM tenure_leases l
                  WHERE l.namespace = e.namespace AND l.election = e.name AND l.session = ?1)
ORDER BY e.namespace, e.name;

-- name: observe_candidacies
SELECT e.* FROM tenure_elections e
WHERE EXISTS (SELECT 1 FROM tenure_candidates c
              WHERE c.namespace = e.namespace AND c.election = e.name AND c.session = ?1)
ORDER BY e.namespace, e.name;

-- name: observe_named
SELECT e.* FROM tenure_elections e
WHERE (e.namespace, e.name) IN (SELECT k.value ->> 0, k.value ->> 1 FROM json_each(?1) k)
ORDER BY e.namespace, e.name;

-- name: observe_all
SELECT e.* FROM tenure_elections e WHERE ?1 IS NULL OR e.namespace = ?1 ORDER BY e.namespace, e.name;

-- name: observe_leases
SELECT l.namespace, l.election, l.slot, l.token, l.reserved_for, l.start_reason, l.granted_at_ms,
       s.id AS session_id, s.name AS session_name, s.heartbeat_count, s.lease_ms, s.state = 'live' AS live, s.heartbeat_at_ms, s.owner
FROM json_each(?1) k
JOIN tenure_elections e ON e.namespace = k.value ->> 0 AND e.name = k.value ->> 1
JOIN tenure_leases l ON l.namespace = e.namespace AND l.election = e.name AND l.slot < e.slots
LEFT JOIN tenure_sessions s ON s.id = l.session
ORDER BY l.namespace, l.election, l.slot;

-- name: observe_candidates
SELECT c.namespace, c.election, c.name, c.priority, c.observer, c.capabilities, c.metadata, c.joined_at_ms,
       s.id AS session_id, s.name AS session_name, s.heartbeat_count, s.lease_ms, s.state = 'live' AS live, s.heartbeat_at_ms, s.owner
FROM json_each(?1) k
JOIN tenure_candidates c ON c.namespace = k.value ->> 0 AND c.election = k.value ->> 1
JOIN tenure_sessions s ON s.id = c.session
ORDER BY c.namespace, c.election, c.session;

-- name: observe_orphaned_leases
SELECT l.namespace, l.election, l.slot, l.token FROM tenure_leases l
WHERE l.session = ?1
  AND NOT EXISTS (SELECT 1 FROM tenure_candidates c
                  WHERE c.namespace = l.namespace AND c.election = l.election AND c.session = ?1)
ORDER BY l.namespace, l.election, l.slot;
