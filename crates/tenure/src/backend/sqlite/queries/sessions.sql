-- name: session_open
INSERT INTO tenure_sessions (id, name, beat, lease_ms, state, takeover, started_at, beat_at, owner)
VALUES (?1, ?2, 0, ?3, 'live', ?4, ?5, ?5, ?6)
ON CONFLICT (id) DO NOTHING;

-- name: session_beat
UPDATE tenure_sessions SET beat = beat + 1, beat_at = ?2 WHERE id = ?1 AND state = 'live'
RETURNING (SELECT e.epoch FROM tenure_epoch e) AS epoch;

-- name: session_asks
SELECT r.namespace, r.election, r.slot, r.token, r.kind, r.successor, r.asked_by
FROM tenure_requests r
JOIN tenure_leases l ON l.namespace = r.namespace AND l.name = r.election AND l.slot = r.slot
WHERE r.session = ?1 AND l.session = ?1 AND l.token = r.token
ORDER BY r.namespace, r.election, r.slot;

-- name: session_end
-- Of a script, as are all statements with $ for their arguments: see script.rs.
UPDATE tenure_sessions SET state = 'ended', ended_at = $7 WHERE id = $8 AND state = 'live';

-- name: session_expire
-- A take that is refused for what it saw expires nobody.
UPDATE tenure_sessions SET state = 'expired', ended_at = $7
WHERE id = $8 AND state = 'live' AND ($9 IS NULL OR beat = $9) AND $13 = (SELECT e.epoch FROM tenure_epoch e)
  AND ($6 IS NULL OR EXISTS (
      SELECT 1 FROM tenure_leases l, tenure_sessions s
      WHERE $12 = $13 AND l.namespace = $1 AND l.name = $2 AND l.slot = $3 AND l.token = $4 AND l.session IS $5
        AND s.id = $6 AND s.state = 'live'));

-- name: session_live
SELECT 1 FROM tenure_sessions WHERE id = ?1 AND state = 'live';

-- name: session_list
SELECT s.id AS session_id, s.name AS session_name, s.beat, s.lease_ms, 1 AS live, s.beat_at, s.owner
FROM tenure_sessions s WHERE s.state = 'live'
ORDER BY s.id;

-- name: session_show
SELECT s.id AS session_id, s.name AS session_name, s.beat, s.lease_ms, s.state = 'live' AS live, s.beat_at, s.owner
FROM tenure_sessions s WHERE s.id IN (SELECT k.value FROM json_each(?1) k)
ORDER BY s.id;

-- name: session_prune
DELETE FROM tenure_sessions WHERE state <> 'live' AND ended_at < ?1
AND NOT EXISTS (SELECT 1 FROM tenure_leases l WHERE l.session = tenure_sessions.id)
AND NOT EXISTS (SELECT 1 FROM tenure_candidates c WHERE c.session = tenure_sessions.id);
