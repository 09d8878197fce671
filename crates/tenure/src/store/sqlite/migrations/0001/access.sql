-- Credentials of clients, and the audit log.

-- Access tokens and client certificates. The table holds no secrets.
CREATE TABLE tenure_credentials (
    -- The order of creation.
    seq           INTEGER PRIMARY KEY,
    id            TEXT    NOT NULL UNIQUE,
    -- The principal.
    name          TEXT    NOT NULL,
    kind          TEXT    NOT NULL CHECK (kind IN ('access_token', 'certificate')),
    -- The digest of an access token, or the subject of a certificate.
    verifier      TEXT    NOT NULL,
    -- JSON array.
    grants        TEXT    NOT NULL,
    created_at_ms INTEGER NOT NULL,
    created_by    TEXT    NOT NULL,
    expires_at_ms INTEGER,
    revoked_at_ms INTEGER
) STRICT;

-- Changes that operators and clients made. AUTOINCREMENT: pruning must not lead to a reused number.
CREATE TABLE tenure_audit_log (
    seq            INTEGER PRIMARY KEY AUTOINCREMENT,
    recorded_at_ms INTEGER NOT NULL,
    principal      TEXT    NOT NULL,
    action         TEXT    NOT NULL,
    -- Null if the change concerns no single namespace.
    namespace      TEXT,
    target         TEXT    NOT NULL,
    detail         TEXT    NOT NULL,
    -- The id of the HTTP request.
    request_id     TEXT    NOT NULL
) STRICT;
CREATE INDEX tenure_audit_log_namespace ON tenure_audit_log (namespace, seq) WHERE namespace IS NOT NULL;
CREATE INDEX tenure_audit_log_recorded_at ON tenure_audit_log (recorded_at_ms);
