-- name: term_prune
-- $1 namespace, $2 election. All but the last hundred terms.
DELETE FROM tenure.terms WHERE namespace = $1 AND election = $2 AND seq <= (
    SELECT seq FROM tenure.terms WHERE namespace = $1 AND election = $2 ORDER BY seq DESC OFFSET 100 LIMIT 1);

-- name: term_list
-- $1 namespace, $2 election, $3 limit. The newest first. As JSON in the form that the library reads.
SELECT json_build_object(
    'slot', t.slot, 'token', t.token, 'candidate_name', t.candidate_name, 'session', t.session, 'start_reason', t.start_reason,
    'started_at_ms', tenure.to_unix_ms(t.started_at), 'ended_at_ms', tenure.to_unix_ms(t.ended_at), 'end_reason',
        t.end_reason)::text AS term
FROM tenure.terms t WHERE t.namespace = $1 AND t.election = $2
ORDER BY t.seq DESC LIMIT least($3, 100);
