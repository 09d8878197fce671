-- What servers keep: on whose behalf they opened a session, who may do what, and who did.

-- Null if the session's process has the store in its own hands.
ALTER TABLE tenure.sessions ADD COLUMN owner text;

-- Who may do what. A secret itself is nowhere: `proof` is its digest, or a certificate's subject. `n` is the order in
-- which they were made. Dates are by the wall clock of whoever made the credential.
CREATE TABLE tenure.credentials (
    id         text COLLATE "C" PRIMARY KEY,
    n          bigint GENERATED ALWAYS AS IDENTITY,
    name       text        NOT NULL,
    kind       text        NOT NULL CHECK (kind IN ('token', 'certificate')),
    proof      text        NOT NULL,
    grants     jsonb       NOT NULL,
    created_at timestamptz NOT NULL,
    created_by text        NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz
);

-- Who did what. Programs append with tenure.append_audit, and no role but the owner may insert, change or delete rows.
-- `at` and `principal` are what the program says; `recorded_at` and `recorded_by` are stamped by the database.
CREATE TABLE tenure.audit (
    n           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at          timestamptz NOT NULL,
    principal   text        NOT NULL,
    action      text        NOT NULL,
    namespace   text COLLATE "C",
    target      text        NOT NULL,
    detail      text        NOT NULL,
    request_id  text        NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    recorded_by text        NOT NULL DEFAULT session_user
);
CREATE INDEX audit_namespace ON tenure.audit (namespace, n) WHERE namespace IS NOT NULL;
CREATE INDEX audit_at ON tenure.audit (at);

-- From milliseconds since 1970: the other way round of tenure.ms.
CREATE FUNCTION tenure.at(ms bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
    SELECT timestamptz 'epoch' + ms * interval '1 millisecond'
$$;

-- Appends an entry to the audit. It runs with the owner's rights; session_user is the role that logged in.
CREATE FUNCTION tenure.append_audit(at timestamptz, principal text, action text, namespace text, target text, detail text,
                                    request_id text)
RETURNS void LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO tenure.audit (at, principal, action, namespace, target, detail, request_id, recorded_at, recorded_by)
    VALUES ($1, $2, $3, $4, $5, $6, $7, clock_timestamp(), session_user)
$$;

-- How long the audit and ended credentials are kept at least. No caller can shorten it.
CREATE FUNCTION tenure.retention() RETURNS interval LANGUAGE sql IMMUTABLE AS $$
    SELECT interval '400 days'
$$;

-- Removes entries of the audit from before this moment, and none that are younger than the retention.
CREATE FUNCTION tenure.prune_audit(before timestamptz) RETURNS void LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
    DELETE FROM tenure.audit a WHERE a.at < least($1, clock_timestamp() - tenure.retention())
$$;

-- Removes credentials that ended before this moment, and none that ended within the retention.
CREATE FUNCTION tenure.prune_credentials(before timestamptz) RETURNS void LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
    DELETE FROM tenure.credentials c
    WHERE least(c.expires_at, c.revoked_at) < least($1, clock_timestamp() - tenure.retention())
$$;

-- Removes the election and the sessions that `tenure doctor` made to measure a hand-over: its rows, and no others.
CREATE FUNCTION tenure.remove_probe(election text, sessions text[]) RETURNS void LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
    DELETE FROM tenure.sessions s WHERE s.id = ANY ($2) AND s.state <> 'live' AND s.name IN ('doctor-a', 'doctor-b');
    DELETE FROM tenure.candidates c WHERE c.namespace = 'tenure-doctor' AND c.election = $1;
    DELETE FROM tenure.requests r WHERE r.namespace = 'tenure-doctor' AND r.election = $1;
    DELETE FROM tenure.terms t WHERE t.namespace = 'tenure-doctor' AND t.election = $1;
    DELETE FROM tenure.adoptions d WHERE d.namespace = 'tenure-doctor' AND d.name = $1;
    DELETE FROM tenure.leases l WHERE l.namespace = 'tenure-doctor' AND l.name = $1;
    DELETE FROM tenure.elections e WHERE e.namespace = 'tenure-doctor' AND e.name = $1;
$$;
