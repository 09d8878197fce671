-- name: term_begin
INSERT INTO tenure_terms (namespace, election, slot, token, session, id, via, began_at)
SELECT c.namespace, c.election, ?3, ?4, c.session, c.id, ?6, ?7
FROM tenure_candidates c
WHERE c.namespace = ?1 AND c.election = ?2 AND c.session = ?5;

-- name: term_prune
DELETE FROM tenure_terms WHERE namespace = ?1 AND election = ?2 AND seq <= (
    SELECT t.seq FROM tenure_terms t WHERE t.namespace = ?1 AND t.election = ?2
    ORDER BY t.seq DESC LIMIT 1 OFFSET 100);

-- name: term_end
UPDATE tenure_terms SET ended_at = ?5, end_reason = ?6
WHERE namespace = ?1 AND election = ?2 AND slot = ?3 AND token = ?4;

-- name: term_end_session
UPDATE tenure_terms SET ended_at = ?2, end_reason = ?3 WHERE session = ?1 AND ended_at IS NULL;

-- name: term_list
SELECT slot, token, id, session, via, began_at, ended_at, end_reason
FROM tenure_terms WHERE namespace = ?1 AND election = ?2
ORDER BY seq DESC LIMIT ?3;
