-- name: credential_list
-- All credentials, the newest first. As JSON in the form that the library reads.
SELECT json_build_object(
    'id', c.id, 'name', c.name, 'grants', c.grants,
    'verifier', json_build_object('kind', c.kind, CASE c.kind WHEN 'access_token' THEN 'digest' ELSE 'certificate_subject' END,
        c.verifier),
    'created_at_ms', tenure.to_unix_ms(c.created_at), 'created_by', c.created_by,
    'expires_at_ms', tenure.to_unix_ms(c.expires_at), 'revoked_at_ms', tenure.to_unix_ms(c.revoked_at))::text AS credential
FROM tenure.credentials c ORDER BY c.seq DESC;

-- name: credential_put
-- $1 id, $2 name, $3 kind, $4 verifier, $5 grants, $6 created at (ms), $7 created by, $8 expires at, $9 revoked at. No row:
-- another credential has this id.
-- An existing credential only gets earlier dates: a writer with an older copy must not undo a revocation. least() ignores
-- nulls, which mean never.
INSERT INTO tenure.credentials AS c
    (id, name, kind, verifier, grants, created_at, created_by, expires_at, revoked_at)
VALUES ($1, $2, $3, $4, $5, tenure.from_unix_ms($6), $7, tenure.from_unix_ms($8), tenure.from_unix_ms($9))
ON CONFLICT (id) DO UPDATE SET
    expires_at = least(c.expires_at, EXCLUDED.expires_at), revoked_at = least(c.revoked_at, EXCLUDED.revoked_at)
WHERE (c.name, c.kind, c.verifier, c.grants) = (EXCLUDED.name, EXCLUDED.kind, EXCLUDED.verifier, EXCLUDED.grants)
RETURNING c.id;

-- name: credential_prune
-- $1 before this time (ms).
SELECT tenure.prune_credentials(tenure.from_unix_ms($1));

-- name: audit_append
-- $1 time (ms), $2 principal, $3 action, $4 namespace, $5 target, $6 detail, $7 request id.
SELECT tenure.append_audit(tenure.from_unix_ms($1), $2, $3, $4, $5, $6, $7);

-- name: audit_list
-- $1 before this seq, $2 limit. The newest first. As JSON in the form that the library reads.
SELECT json_build_object(
    'seq', a.seq, 'recorded_at_ms', tenure.to_unix_ms(a.recorded_at), 'principal', a.principal, 'action', a.action,
        'namespace', a.namespace,
    'target', a.target, 'detail', a.detail, 'request_id', a.request_id)::text AS entry
FROM tenure.audit_log a WHERE a.seq < $1
ORDER BY a.seq DESC LIMIT $2;

-- name: audit_list_in
-- $1 before this seq, $2 limit, $3 namespace. The newest first. As JSON in the form that the library reads.
SELECT json_build_object(
    'seq', a.seq, 'recorded_at_ms', tenure.to_unix_ms(a.recorded_at), 'principal', a.principal, 'action', a.action,
        'namespace', a.namespace,
    'target', a.target, 'detail', a.detail, 'request_id', a.request_id)::text AS entry
FROM tenure.audit_log a WHERE a.namespace = $3 AND a.seq < $1
ORDER BY a.seq DESC LIMIT $2;

-- name: audit_prune
-- $1 before this time (ms).
SELECT tenure.prune_audit(tenure.from_unix_ms($1));

-- name: probe_delete
-- $1 the election that `tenure doctor` created, $2 its sessions as a JSON list.
SELECT tenure.delete_probe($1, ARRAY(SELECT jsonb_array_elements_text($2::jsonb)));
