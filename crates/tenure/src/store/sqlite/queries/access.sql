-- name: credential_list
SELECT id, name, kind, verifier, grants, created_at_ms, created_by, expires_at_ms, revoked_at_ms
FROM tenure_credentials ORDER BY seq DESC;

-- name: credential_put
-- An existing credential changes only its expiry and revocation, and only to an earlier instant, so that a writer with an older copy
-- cannot undo a revocation. min() with a null argument is null, which would mean never; hence the coalesce calls.
INSERT INTO tenure_credentials AS c
    (id, name, kind, verifier, grants, created_at_ms, created_by, expires_at_ms, revoked_at_ms)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
ON CONFLICT (id) DO UPDATE SET
    expires_at_ms = min(coalesce(c.expires_at_ms, excluded.expires_at_ms), coalesce(excluded.expires_at_ms, c.expires_at_ms)),
    revoked_at_ms = min(coalesce(c.revoked_at_ms, excluded.revoked_at_ms), coalesce(excluded.revoked_at_ms, c.revoked_at_ms))
WHERE (c.name, c.kind, c.verifier, c.grants) = (excluded.name, excluded.kind, excluded.verifier, excluded.grants);

-- name: credential_prune
DELETE FROM tenure_credentials WHERE expires_at_ms < ?1 OR revoked_at_ms < ?1;

-- name: audit_append
INSERT INTO tenure_audit_log (recorded_at_ms, principal, action, namespace, target, detail, request_id)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7);

-- name: audit_list
SELECT seq, recorded_at_ms, principal, action, namespace, target, detail, request_id
FROM tenure_audit_log WHERE seq < ?1
ORDER BY seq DESC LIMIT ?2;

-- name: audit_list_in
SELECT seq, recorded_at_ms, principal, action, namespace, target, detail, request_id
FROM tenure_audit_log WHERE namespace = ?3 AND seq < ?1
ORDER BY seq DESC LIMIT ?2;

-- name: audit_prune
DELETE FROM tenure_audit_log WHERE recorded_at_ms < ?1;

-- name: probe_delete_sessions
-- ?1: JSON array of the sessions that `tenure doctor` opened. Its other rows are in the namespace tenure-doctor.
DELETE FROM tenure_sessions
WHERE id IN (SELECT value FROM json_each(?1)) AND state <> 'live' AND name IN ('doctor-a', 'doctor-b');

-- name: probe_delete_candidates
DELETE FROM tenure_candidates WHERE namespace = 'tenure-doctor' AND election = ?1;

-- name: probe_delete_leader_requests
DELETE FROM tenure_leader_requests WHERE namespace = 'tenure-doctor' AND election = ?1;

-- name: probe_delete_terms
DELETE FROM tenure_terms WHERE namespace = 'tenure-doctor' AND election = ?1;

-- name: probe_delete_adopted_leases
DELETE FROM tenure_adopted_leases WHERE namespace = 'tenure-doctor' AND election = ?1;

-- name: probe_delete_leases
DELETE FROM tenure_leases WHERE namespace = 'tenure-doctor' AND election = ?1;

-- name: probe_delete_elections
DELETE FROM tenure_elections WHERE namespace = 'tenure-doctor' AND name = ?1;
