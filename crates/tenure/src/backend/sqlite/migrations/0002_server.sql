-- What servers keep: on whose behalf they opened a session, who may do what, and who did.

-- Null if the session's process has the store in its own hands.
ALTER TABLE tenure_sessions ADD COLUMN owner TEXT;

-- Who may do what. A secret itself is nowhere: `proof` is its digest, or a certificate's subject. `seq` is the order in
-- which they were made.
CREATE TABLE tenure_credentials (
    seq        INTEGER PRIMARY KEY,
    id         TEXT    NOT NULL UNIQUE,
    name       TEXT    NOT NULL,
    kind       TEXT    NOT NULL CHECK (kind IN ('token', 'certificate')),
    proof      TEXT    NOT NULL,
    grants     TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    created_by TEXT    NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER
) STRICT;

-- Who did what. AUTOINCREMENT: a place is never given twice, even after the last line was forgotten.
CREATE TABLE tenure_audit (
    n          INTEGER PRIMARY KEY AUTOINCREMENT,
    at         INTEGER NOT NULL,
    principal  TEXT    NOT NULL,
    action     TEXT    NOT NULL,
    namespace  TEXT,
    target     TEXT    NOT NULL,
    detail     TEXT    NOT NULL,
    request_id TEXT    NOT NULL
) STRICT;
CREATE INDEX tenure_audit_namespace ON tenure_audit (namespace, n) WHERE namespace IS NOT NULL;
CREATE INDEX tenure_audit_at ON tenure_audit (at);
