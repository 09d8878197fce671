-- name: candidate_join
INSERT INTO tenure_candidates
    (namespace, election, session, name, priority, observer, capabilities, metadata, joined_at_ms, updated_at_ms)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?9)
ON CONFLICT (namespace, election, session) DO UPDATE SET
    name = excluded.name, priority = excluded.priority, observer = excluded.observer,
    capabilities = excluded.capabilities, metadata = excluded.metadata, updated_at_ms = excluded.updated_at_ms;

-- name: candidate_leave
DELETE FROM tenure_candidates WHERE namespace = ?1 AND election = ?2 AND session = ?3;

-- name: candidate_delete_session
DELETE FROM tenure_candidates
WHERE session = $8 AND EXISTS (SELECT 1 FROM tenure_sessions s WHERE s.id = $8 AND s.state <> 'live')
RETURNING namespace, election;
