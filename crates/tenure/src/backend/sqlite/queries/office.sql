-- name: credential_list
SELECT id, name, kind, proof, grants, created_at, created_by, expires_at, revoked_at
FROM tenure_credentials ORDER BY seq DESC;

-- name: credential_put
-- A known one gets nothing but dates, and those only ever earlier: whoever wrote down an older view of it must not undo
-- a revocation. min() of a null would be null, which is never.
INSERT INTO tenure_credentials AS c
    (id, name, kind, proof, grants, created_at, created_by, expires_at, revoked_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
ON CONFLICT (id) DO UPDATE SET
    expires_at = min(coalesce(c.expires_at, excluded.expires_at), coalesce(excluded.expires_at, c.expires_at)),
    revoked_at = min(coalesce(c.revoked_at, excluded.revoked_at), coalesce(excluded.revoked_at, c.revoked_at))
WHERE (c.name, c.kind, c.proof, c.grants) = (excluded.name, excluded.kind, excluded.proof, excluded.grants);

-- name: credential_forget
DELETE FROM tenure_credentials WHERE expires_at < ?1 OR revoked_at < ?1;

-- name: deed_record
INSERT INTO tenure_audit (at, principal, action, namespace, target, detail, request_id)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7);

-- name: deed_list
SELECT n, at, principal, action, namespace, target, detail, request_id
FROM tenure_audit WHERE n < ?1
ORDER BY n DESC LIMIT ?2;

-- name: deed_list_in
SELECT n, at, principal, action, namespace, target, detail, request_id
FROM tenure_audit WHERE namespace = ?3 AND n < ?1
ORDER BY n DESC LIMIT ?2;

-- name: deed_forget
DELETE FROM tenure_audit WHERE at < ?1;

-- name: probe_sessions
-- ?1 the sessions that `tenure doctor` opened, as a JSON list. Its other rows are in the namespace tenure-doctor.
DELETE FROM tenure_sessions
WHERE id IN (SELECT value FROM json_each(?1)) AND state <> 'live' AND name IN ('doctor-a', 'doctor-b');

-- name: probe_candidates
DELETE FROM tenure_candidates WHERE namespace = 'tenure-doctor' AND election = ?1;

-- name: probe_requests
DELETE FROM tenure_requests WHERE namespace = 'tenure-doctor' AND election = ?1;

-- name: probe_terms
DELETE FROM tenure_terms WHERE namespace = 'tenure-doctor' AND election = ?1;

-- name: probe_adoptions
DELETE FROM tenure_adoptions WHERE namespace = 'tenure-doctor' AND name = ?1;

-- name: probe_leases
DELETE FROM tenure_leases WHERE namespace = 'tenure-doctor' AND name = ?1;

-- name: probe_elections
DELETE FROM tenure_elections WHERE namespace = 'tenure-doctor' AND name = ?1;
