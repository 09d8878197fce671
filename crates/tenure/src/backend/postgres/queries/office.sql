-- name: credential_list
-- As JSON in the form that the library reads, the newest first.
SELECT json_build_object(
    'id', c.id, 'name', c.name, 'grants', c.grants,
    'proof', json_build_object('kind', c.kind, CASE c.kind WHEN 'token' THEN 'digest' ELSE 'subject' END, c.proof),
    'created_at_ms', tenure.ms(c.created_at), 'created_by', c.created_by,
    'expires_at_ms', tenure.ms(c.expires_at), 'revoked_at_ms', tenure.ms(c.revoked_at))::text AS credential
FROM tenure.credentials c ORDER BY c.n DESC;

-- name: credential_put
-- $1 id, $2 name, $3 kind, $4 proof, $5 grants, $6 created (ms), $7 by whom, $8 expires, $9 revoked. No row: there is
-- another of this id.
-- A known one gets nothing but dates, and those only ever earlier: whoever wrote down an older view of it must not undo
-- a revocation. least() passes over nulls, which are never.
INSERT INTO tenure.credentials AS c
    (id, name, kind, proof, grants, created_at, created_by, expires_at, revoked_at)
VALUES ($1, $2, $3, $4, $5, tenure.at($6), $7, tenure.at($8), tenure.at($9))
ON CONFLICT (id) DO UPDATE SET
    expires_at = least(c.expires_at, EXCLUDED.expires_at), revoked_at = least(c.revoked_at, EXCLUDED.revoked_at)
WHERE (c.name, c.kind, c.proof, c.grants) = (EXCLUDED.name, EXCLUDED.kind, EXCLUDED.proof, EXCLUDED.grants)
RETURNING c.id;

-- name: credential_forget
-- $1 before when (ms).
SELECT tenure.prune_credentials(tenure.at($1));

-- name: deed_record
-- $1 when (ms), $2 principal, $3 action, $4 namespace, $5 target, $6 detail, $7 request.
SELECT tenure.append_audit(tenure.at($1), $2, $3, $4, $5, $6, $7);

-- name: deed_list
-- $1 before which place, $2 how many. As JSON, the newest first.
SELECT json_build_object(
    'n', a.n, 'at_ms', tenure.ms(a.at), 'principal', a.principal, 'action', a.action, 'namespace', a.namespace,
    'target', a.target, 'detail', a.detail, 'request_id', a.request_id)::text AS deed
FROM tenure.audit a WHERE a.n < $1
ORDER BY a.n DESC LIMIT $2;

-- name: deed_list_in
-- $1 before which place, $2 how many, $3 in which namespace.
SELECT json_build_object(
    'n', a.n, 'at_ms', tenure.ms(a.at), 'principal', a.principal, 'action', a.action, 'namespace', a.namespace,
    'target', a.target, 'detail', a.detail, 'request_id', a.request_id)::text AS deed
FROM tenure.audit a WHERE a.namespace = $3 AND a.n < $1
ORDER BY a.n DESC LIMIT $2;

-- name: deed_forget
-- $1 before when (ms).
SELECT tenure.prune_audit(tenure.at($1));

-- name: probe_remove
-- $1 the election that `tenure doctor` made, $2 its sessions, as a JSON list.
SELECT tenure.remove_probe($1, ARRAY(SELECT jsonb_array_elements_text($2::jsonb)));
