-- name: leader_request_put
INSERT INTO tenure_leader_requests (namespace, election, slot, token, session, kind, successor, requested_by, requested_at_ms)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
ON CONFLICT (namespace, election, slot) DO UPDATE SET
    token = excluded.token, session = excluded.session, kind = excluded.kind,
    successor = excluded.successor, requested_by = excluded.requested_by, requested_at_ms = excluded.requested_at_ms
-- A term has one request. The request of an operator replaces that of a candidate, but not the reverse.
WHERE excluded.kind <> 'preempt' OR tenure_leader_requests.token <> excluded.token;

-- name: leader_request_delete
DELETE FROM tenure_leader_requests WHERE namespace = ?1 AND election = ?2 AND slot = ?3 AND token = ?4;

-- name: leader_request_delete_session
DELETE FROM tenure_leader_requests
WHERE session = $8 AND EXISTS (SELECT 1 FROM tenure_sessions s WHERE s.id = $8 AND s.state <> 'live');

-- name: leader_request_delete_pause
DELETE FROM tenure_leader_requests WHERE namespace = ?1 AND election = ?2 AND kind = 'pause';
