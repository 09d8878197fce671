-- Pools of resources, and the requests for them.

-- Pools and their settings.
CREATE TABLE tenure_pools (
    id                   INTEGER PRIMARY KEY,
    namespace            TEXT    NOT NULL,
    name                 TEXT    NOT NULL,
    mode                 TEXT    NOT NULL CHECK (mode IN ('distributed', 'exclusive')),
    fallback             TEXT    NOT NULL CHECK (fallback IN ('none', 'distributed')),
    -- How long a resource rests after a release.
    cooldown_ms          INTEGER NOT NULL,
    -- The formula that computes the priority of a request.
    priority_formula     TEXT    NOT NULL,
    request_retention_ms INTEGER NOT NULL,
    created_at_ms        INTEGER NOT NULL,
    UNIQUE (namespace, name)
) STRICT;

-- Resources. A removed resource keeps its row, because it continues with its token if it is added again.
CREATE TABLE tenure_resources (
    pool_id              INTEGER NOT NULL,
    name                 TEXT    NOT NULL,
    -- JSON array.
    tags                 TEXT    NOT NULL DEFAULT '[]',
    enabled              INTEGER NOT NULL DEFAULT 1 CHECK (enabled IN (0, 1)),
    removed              INTEGER NOT NULL DEFAULT 0 CHECK (removed IN (0, 1)),
    token                INTEGER NOT NULL DEFAULT 0,
    -- The request that holds the resource.
    request_id           INTEGER,
    cooldown_until_at_ms INTEGER,
    PRIMARY KEY (pool_id, name)
) STRICT, WITHOUT ROWID;

-- Requests for a resource.
CREATE TABLE tenure_pool_requests (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    pool_id          INTEGER NOT NULL,
    idempotency_key  TEXT    NOT NULL,
    owner            TEXT    NOT NULL,
    -- JSON arrays.
    required_tags    TEXT    NOT NULL,
    preferred_tags   TEXT    NOT NULL,
    base_priority    INTEGER NOT NULL,
    session          TEXT,
    claim_timeout_ms INTEGER,
    max_wait_ms      INTEGER,
    state            TEXT    NOT NULL CHECK (state IN ('waiting', 'granted', 'released', 'cancelled', 'expired')),
    resource         TEXT,
    token            INTEGER,
    created_at_ms    INTEGER NOT NULL,
    granted_at_ms    INTEGER,
    -- While waiting: when the wait ends. While granted: when the claim ends without a heartbeat.
    expires_at_ms    INTEGER,
    ended_at_ms      INTEGER
) STRICT;
CREATE UNIQUE INDEX tenure_pool_requests_idempotency_key ON tenure_pool_requests (pool_id, idempotency_key) WHERE ended_at_ms IS NULL;
CREATE INDEX tenure_pool_requests_open    ON tenure_pool_requests (pool_id, state, session) WHERE ended_at_ms IS NULL;
CREATE INDEX tenure_pool_requests_expires ON tenure_pool_requests (expires_at_ms) WHERE ended_at_ms IS NULL AND expires_at_ms IS NOT NULL;
CREATE INDEX tenure_pool_requests_ended   ON tenure_pool_requests (pool_id, ended_at_ms) WHERE ended_at_ms IS NOT NULL;
