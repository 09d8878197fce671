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

-- Who did what.
CREATE TABLE tenure.audit (
    n          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL,
    principal  text        NOT NULL,
    action     text        NOT NULL,
    namespace  text COLLATE "C",
    target     text        NOT NULL,
    detail     text        NOT NULL,
    request_id text        NOT NULL
);
CREATE INDEX audit_namespace ON tenure.audit (namespace, n) WHERE namespace IS NOT NULL;
CREATE INDEX audit_at ON tenure.audit (at);

-- From milliseconds since 1970: the other way round of tenure.ms.
CREATE FUNCTION tenure.at(ms bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
    SELECT timestamptz 'epoch' + ms * interval '1 millisecond'
$$;
