-- name: term_start
-- Does nothing unless the preceding statement, lease_take, granted the lease.
INSERT INTO tenure_terms (namespace, election, slot, token, session, candidate_name, start_reason, started_at_ms)
SELECT c.namespace, c.election, l.slot, l.token, c.session, c.name, l.start_reason, $7
FROM tenure_leases l JOIN tenure_candidates c
    ON c.namespace = l.namespace AND c.election = l.election AND c.session = l.session
WHERE l.namespace = $1 AND l.election = $2 AND l.slot = $3 AND l.session = $6 AND changes() > 0
ON CONFLICT (namespace, election, slot, token) DO NOTHING;

-- name: term_prune
DELETE FROM tenure_terms WHERE namespace = $1 AND election = $2 AND seq <= (
    SELECT t.seq FROM tenure_terms t WHERE t.namespace = $1 AND t.election = $2
    ORDER BY t.seq DESC LIMIT 1 OFFSET 100);

-- name: term_end
UPDATE tenure_terms SET ended_at_ms = ?5, end_reason = ?6
WHERE namespace = ?1 AND election = ?2 AND slot = ?3 AND token = ?4 AND ended_at_ms IS NULL;

-- name: term_end_session
UPDATE tenure_terms SET ended_at_ms = $7, end_reason = $11
WHERE session = $8 AND ended_at_ms IS NULL AND EXISTS (SELECT 1 FROM tenure_sessions s WHERE s.id = $8 AND s.state <> 'live');

-- name: term_list
SELECT slot, token, candidate_name, session, start_reason, started_at_ms, ended_at_ms, end_reason
FROM tenure_terms WHERE namespace = ?1 AND election = ?2
ORDER BY seq DESC LIMIT min(?3, 100);
