-- name: request_put
INSERT INTO tenure_requests (namespace, election, slot, token, session, kind, successor, asked_by, asked_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
ON CONFLICT (namespace, election, slot) DO UPDATE SET
    token = excluded.token, session = excluded.session, kind = excluded.kind,
    successor = excluded.successor, asked_by = excluded.asked_by, asked_at = excluded.asked_at
-- One request for each term: an operator's replaces a candidate's, never the other way round.
WHERE excluded.kind <> 'preempt' OR tenure_requests.token <> excluded.token;

-- name: request_clear
DELETE FROM tenure_requests WHERE namespace = ?1 AND election = ?2 AND slot = ?3 AND token = ?4;

-- name: request_clear_session
DELETE FROM tenure_requests
WHERE session = $8 AND EXISTS (SELECT 1 FROM tenure_sessions s WHERE s.id = $8 AND s.state <> 'live');

-- name: request_clear_pause
DELETE FROM tenure_requests WHERE namespace = ?1 AND election = ?2 AND kind = 'pause';
