-- Access: credentials and the audit log of the servers.

CREATE TABLE tenure.credentials (
    id         text COLLATE "C" PRIMARY KEY,
    seq        bigint GENERATED ALWAYS AS IDENTITY,
    name       text        NOT NULL,
    kind       text        NOT NULL CHECK (kind IN ('access_token', 'certificate')),
    verifier   text        NOT NULL,
    grants     jsonb       NOT NULL,
    created_at timestamptz NOT NULL,
    created_by text        NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz
);
COMMENT ON TABLE tenure.credentials IS
'Access tokens and client certificates. Times are by the clock of the program that created the credential.';
COMMENT ON COLUMN tenure.credentials.seq IS 'Order of creation.';
COMMENT ON COLUMN tenure.credentials.name IS 'Principal: the name under which the client acts.';
COMMENT ON COLUMN tenure.credentials.verifier IS
'Digest of the access token, or subject of the certificate. The secret itself is not stored.';
COMMENT ON COLUMN tenure.credentials.grants IS 'JSON list of grants: permissions in a namespace.';

CREATE TABLE tenure.audit_log (
    seq         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    recorded_at timestamptz NOT NULL,
    principal   text        NOT NULL,
    action      text        NOT NULL,
    namespace   text COLLATE "C",
    target      text        NOT NULL,
    detail      text        NOT NULL,
    request_id  text        NOT NULL,
    stored_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    stored_by   text        NOT NULL DEFAULT session_user
);
CREATE INDEX audit_log_namespace ON tenure.audit_log (namespace, seq) WHERE namespace IS NOT NULL;
CREATE INDEX audit_log_recorded_at ON tenure.audit_log (recorded_at);
COMMENT ON TABLE tenure.audit_log IS
'Changes that operators and clients made. Programs append with tenure.append_audit; only the owner may insert, change or '
'delete rows.';
COMMENT ON COLUMN tenure.audit_log.recorded_at IS 'Time of the change by the clock of the program.';
COMMENT ON COLUMN tenure.audit_log.principal IS 'Name under which the client acted, as the program reports it.';
COMMENT ON COLUMN tenure.audit_log.namespace IS 'Namespace of the target; null for changes outside of namespaces.';
COMMENT ON COLUMN tenure.audit_log.request_id IS 'Id of the HTTP request; empty if there was none.';
COMMENT ON COLUMN tenure.audit_log.stored_at IS 'Time of the insert by the clock of the database.';
COMMENT ON COLUMN tenure.audit_log.stored_by IS 'Database role that logged in.';

-- Appends an entry to the audit log. Runs with the owner's rights; session_user is the role that logged in.
CREATE FUNCTION tenure.append_audit(recorded_at timestamptz, principal text, action text, namespace text, target text,
    detail text,
                                    request_id text)
RETURNS void LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO tenure.audit_log (recorded_at, principal, action, namespace, target, detail, request_id, stored_at, stored_by)
    VALUES ($1, $2, $3, $4, $5, $6, $7, clock_timestamp(), session_user)
$$;

-- How long the audit log and ended credentials are kept at least. No caller can shorten it.
CREATE FUNCTION tenure.audit_retention() RETURNS interval LANGUAGE sql IMMUTABLE AS $$
    SELECT interval '400 days'
$$;

-- Deletes entries of the audit log that are older than `before` and than the retention.
CREATE FUNCTION tenure.prune_audit(before timestamptz) RETURNS void LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
    DELETE FROM tenure.audit_log a WHERE a.recorded_at < least($1, clock_timestamp() - tenure.audit_retention())
$$;

-- Deletes credentials that ended before `before` and before the retention.
CREATE FUNCTION tenure.prune_credentials(before timestamptz) RETURNS void LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
    DELETE FROM tenure.credentials c
    WHERE least(c.expires_at, c.revoked_at) < least($1, clock_timestamp() - tenure.audit_retention())
$$;

-- Deletes the election and the sessions that `tenure doctor` created to measure a takeover, and no other rows.
CREATE FUNCTION tenure.delete_probe(election text, sessions text[]) RETURNS void LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
    DELETE FROM tenure.sessions s WHERE s.id = ANY ($2) AND s.state <> 'live' AND s.name IN ('doctor-a', 'doctor-b');
    DELETE FROM tenure.candidates c WHERE c.namespace = 'tenure-doctor' AND c.election = $1;
    DELETE FROM tenure.leader_requests r WHERE r.namespace = 'tenure-doctor' AND r.election = $1;
    DELETE FROM tenure.terms t WHERE t.namespace = 'tenure-doctor' AND t.election = $1;
    DELETE FROM tenure.adopted_leases d WHERE d.namespace = 'tenure-doctor' AND d.election = $1;
    DELETE FROM tenure.leases l WHERE l.namespace = 'tenure-doctor' AND l.election = $1;
    DELETE FROM tenure.elections e WHERE e.namespace = 'tenure-doctor' AND e.name = $1;
$$;
