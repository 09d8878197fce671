-- name: session_open
INSERT INTO tenure_sessions (id, name, heartbeat_count, lease_ms, state, takeover, started_at_ms, heartbeat_at_ms, owner)
VALUES (?1, ?2, 0, ?3, 'live', ?4, ?5, ?5, ?6)
ON CONFLICT (id) DO NOTHING;

-- name: session_heartbeat
UPDATE tenure_sessions SET heartbeat_count = heartbeat_count + 1, heartbeat_at_ms = ?2 WHERE id = ?1 AND state = 'live'
RETURNING (SELECT e.epoch FROM tenure_epoch e) AS epoch;

-- name: session_leader_requests
SELECT r.namespace, r.election, r.slot, r.token, r.kind, r.successor, r.requested_by
FROM tenure_leader_requests r
JOIN tenure_leases l ON l.namespace = r.namespace AND l.election = r.election AND l.slot = r.slot
WHERE r.session = ?1 AND l.session = ?1 AND l.token = r.token
ORDER BY r.namespace, r.election, r.slot;

-- name: session_end
-- Part of a script, like all statements with $ parameters; see script.rs.
UPDATE tenure_sessions SET state = 'ended', ended_at_ms = $7 WHERE id = $8 AND state = 'live';

-- name: session_expire
-- If the script also takes a lease, the session expires only if that lease is still as observed.
UPDATE tenure_sessions SET state = 'expired', ended_at_ms = $7
WHERE id = $8 AND state = 'live' AND ($9 IS NULL OR heartbeat_count = $9) AND $13 = (SELECT e.epoch FROM tenure_epoch e)
  AND ($6 IS NULL OR EXISTS (
      SELECT 1 FROM tenure_leases l, tenure_sessions s
      WHERE $12 = $13 AND l.namespace = $1 AND l.election = $2 AND l.slot = $3 AND l.token = $4 AND l.session IS $5
        AND s.id = $6 AND s.state = 'live'));

-- name: session_is_live
SELECT 1 FROM tenure_sessions WHERE id = ?1 AND state = 'live';

-- name: session_list
SELECT s.id AS session_id, s.name AS session_name, s.heartbeat_count, s.lease_ms, 1 AS live, s.heartbeat_at_ms, s.owner
FROM tenure_sessions s WHERE s.state = 'live'
ORDER BY s.id;

-- name: session_get
SELECT s.id AS session_id, s.name AS session_name, s.heartbeat_count, s.lease_ms, s.state = 'live' AS live, s.heartbeat_at_ms, s.owner
FROM tenure_sessions s WHERE s.id IN (SELECT k.value FROM json_each(?1) k)
ORDER BY s.id;

-- name: session_prune
DELETE FROM tenure_sessions WHERE state <> 'live' AND ended_at_ms < ?1
AND NOT EXISTS (SELECT 1 FROM tenure_leases l WHERE l.session = tenure_sessions.id)
AND NOT EXISTS (SELECT 1 FROM tenure_candidates c WHERE c.session = tenure_sessions.id);
