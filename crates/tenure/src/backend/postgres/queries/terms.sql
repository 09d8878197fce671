-- name: term_prune
-- $1 namespace, $2 name. All but the last hundred.
DELETE FROM tenure.terms WHERE namespace = $1 AND election = $2 AND n <= (
    SELECT n FROM tenure.terms WHERE namespace = $1 AND election = $2 ORDER BY n DESC OFFSET 100 LIMIT 1);

-- name: term_list
-- $1 namespace, $2 name, $3 how many. Newest first, as JSON in the form that the library reads.
SELECT json_build_object(
    'slot', t.slot, 'token', t.token, 'id', t.id, 'session', t.session, 'via', t.via,
    'began_at_ms', tenure.ms(t.began_at), 'ended_at_ms', tenure.ms(t.ended_at), 'end', t.end_reason)::text AS term
FROM tenure.terms t WHERE t.namespace = $1 AND t.election = $2
ORDER BY t.n DESC LIMIT least($3, 100);
