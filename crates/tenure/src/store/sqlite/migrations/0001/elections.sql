-- Sessions, elections, leases, candidates and terms.
--
-- Conventions of the whole schema:
--   * Every table is STRICT and has the prefix tenure_, because SQLite has no schemas and the file may hold other tables.
--   * A column that ends in _at_ms is an instant in milliseconds since 1970, by the wall clock of the process that wrote it.
--     Leases and tokens never depend on these instants.
--   * A column that ends in _ms is a duration. A column that ends in _id is a surrogate number.
--   * `session` is the id of a session; `token` is a fencing token.

-- Schema versions that were applied.
CREATE TABLE tenure_migrations (
    version           INTEGER NOT NULL PRIMARY KEY,
    name              TEXT    NOT NULL,
    -- The oldest program that can still use the file, as the schema version that the program was built for.
    oldest_compatible INTEGER NOT NULL,
    applied_at_ms     INTEGER NOT NULL
) STRICT;

-- Sessions. One row for each run of a process.
CREATE TABLE tenure_sessions (
    id              TEXT    NOT NULL PRIMARY KEY,
    name            TEXT    NOT NULL,
    -- Counts heartbeats. A takeover by lease expiry compares it with the count that was observed.
    heartbeat_count INTEGER NOT NULL DEFAULT 0,
    lease_ms        INTEGER NOT NULL,
    -- Changes once, from live to ended or expired.
    state           TEXT    NOT NULL CHECK (state IN ('live', 'ended', 'expired')),
    takeover        TEXT    NOT NULL CHECK (takeover IN ('lease', 'connection')),
    started_at_ms   INTEGER NOT NULL,
    heartbeat_at_ms INTEGER NOT NULL,
    ended_at_ms     INTEGER,
    -- The principal for which a server opened the session; null if the process opened the file itself.
    owner           TEXT
) STRICT;
CREATE INDEX tenure_sessions_live ON tenure_sessions (id) WHERE state = 'live';
CREATE INDEX tenure_sessions_ended ON tenure_sessions (ended_at_ms) WHERE state <> 'live';

-- Elections and their settings.
CREATE TABLE tenure_elections (
    namespace             TEXT    NOT NULL,
    name                  TEXT    NOT NULL,
    -- How many leaders the election allows at a time.
    slots                 INTEGER NOT NULL,
    -- JSON array of capabilities that a leader must declare.
    required_capabilities TEXT    NOT NULL DEFAULT '[]',
    paused_by             TEXT,
    paused_reason         TEXT,
    paused_at_ms          INTEGER,
    created_at_ms         INTEGER NOT NULL,
    PRIMARY KEY (namespace, name)
) STRICT, WITHOUT ROWID;

-- The epoch of the file: the high bits of every token and event id. One row. See epoch.rs.
CREATE TABLE tenure_epoch (
    singleton     INTEGER PRIMARY KEY CHECK (singleton = 1),
    epoch         INTEGER NOT NULL CHECK (epoch BETWEEN 0 AND 8191),
    -- The identity of the file that held these tables last; empty if it is not known yet.
    file_identity TEXT    NOT NULL DEFAULT '',
    -- Counts grants and started sessions.
    write_count   INTEGER NOT NULL DEFAULT 0,
    changed_at_ms INTEGER NOT NULL,
    reason        TEXT    NOT NULL
) STRICT;
INSERT INTO tenure_epoch (singleton, epoch, changed_at_ms, reason)
VALUES (1, 0, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER), 'installed');

-- One row for each slot of an election. Rows are never deleted, even when an election loses slots, because a token must not be
-- granted twice.
CREATE TABLE tenure_leases (
    namespace     TEXT    NOT NULL,
    election      TEXT    NOT NULL,
    slot          INTEGER NOT NULL,
    -- The token of the current or last grant.
    token         INTEGER NOT NULL DEFAULT 0,
    -- Set while the lease is adopted, that is, held under the token of another store: the last token that this store granted.
    -- Tokens of different stores do not compare, so the next grant here continues from this one.
    own_token     INTEGER,
    -- The holder; null if the lease is free.
    session       TEXT,
    -- The session that gets the next term.
    reserved_for  TEXT,
    -- How the current or next term starts.
    start_reason  TEXT    NOT NULL DEFAULT 'release',
    granted_at_ms INTEGER,
    PRIMARY KEY (namespace, election, slot)
) STRICT, WITHOUT ROWID;
CREATE INDEX tenure_leases_session ON tenure_leases (session) WHERE session IS NOT NULL;

-- Sessions that take part in an election.
CREATE TABLE tenure_candidates (
    namespace     TEXT    NOT NULL,
    election      TEXT    NOT NULL,
    session       TEXT    NOT NULL,
    -- Need not be unique.
    name          TEXT    NOT NULL,
    priority      INTEGER NOT NULL,
    observer      INTEGER NOT NULL CHECK (observer IN (0, 1)),
    -- JSON array.
    capabilities  TEXT    NOT NULL DEFAULT '[]',
    -- JSON object.
    metadata      TEXT    NOT NULL DEFAULT '{}',
    joined_at_ms  INTEGER NOT NULL,
    updated_at_ms INTEGER NOT NULL,
    PRIMARY KEY (namespace, election, session)
) STRICT, WITHOUT ROWID;
CREATE INDEX tenure_candidates_session ON tenure_candidates (session);

-- Requests to the leader of a slot to release its lease. At most one for each slot.
CREATE TABLE tenure_leader_requests (
    namespace       TEXT    NOT NULL,
    election        TEXT    NOT NULL,
    slot            INTEGER NOT NULL,
    -- The term that the request addresses.
    token           INTEGER NOT NULL,
    -- The leader of that term.
    session         TEXT    NOT NULL,
    kind            TEXT    NOT NULL CHECK (kind IN ('preempt', 'transfer', 'resign', 'pause')),
    -- The session that shall lead next.
    successor       TEXT,
    requested_by    TEXT    NOT NULL,
    requested_at_ms INTEGER NOT NULL,
    PRIMARY KEY (namespace, election, slot)
) STRICT, WITHOUT ROWID;
CREATE INDEX tenure_leader_requests_session ON tenure_leader_requests (session);

-- The history of leadership.
CREATE TABLE tenure_terms (
    -- Orders the terms of all slots. Tokens order the terms of one slot only, and wall clocks order nothing reliably.
    seq            INTEGER PRIMARY KEY,
    namespace      TEXT    NOT NULL,
    election       TEXT    NOT NULL,
    slot           INTEGER NOT NULL,
    token          INTEGER NOT NULL,
    session        TEXT    NOT NULL,
    candidate_name TEXT    NOT NULL,
    start_reason   TEXT    NOT NULL,
    started_at_ms  INTEGER NOT NULL,
    ended_at_ms    INTEGER,
    end_reason     TEXT,
    UNIQUE (namespace, election, slot, token)
) STRICT;
CREATE INDEX tenure_terms_open ON tenure_terms (session) WHERE ended_at_ms IS NULL;

-- The last lease of each slot that another store granted and that was held here under the token of that store.
CREATE TABLE tenure_adopted_leases (
    namespace     TEXT    NOT NULL,
    election      TEXT    NOT NULL,
    slot          INTEGER NOT NULL,
    -- The identity of the store that granted the token.
    granted_by    TEXT    NOT NULL,
    token         INTEGER NOT NULL,
    session       TEXT    NOT NULL,
    adopted_at_ms INTEGER NOT NULL,
    PRIMARY KEY (namespace, election, slot, granted_by)
) STRICT, WITHOUT ROWID;

-- The highest token seen under each name. The token may come from any store.
CREATE TABLE tenure_fences (
    name          TEXT    NOT NULL PRIMARY KEY,
    max_token     INTEGER NOT NULL,
    updated_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Candidates with their role: leader, follower, candidate (the election has no leader) or observer. `token` is the token of the
-- leader, or the last token of the election.
CREATE VIEW tenure_candidate_status AS
SELECT c.namespace,
       c.election,
       c.name,
       CASE WHEN held.token IS NOT NULL THEN 'leader'
            WHEN c.observer = 1 THEN 'observer'
            WHEN EXISTS (SELECT 1 FROM tenure_leases l
                         WHERE l.namespace = c.namespace AND l.election = c.election AND l.session IS NOT NULL) THEN 'follower'
            ELSE 'candidate'
       END AS role,
       s.heartbeat_at_ms,
       coalesce(held.token, (SELECT max(l.token) FROM tenure_leases l
                             WHERE l.namespace = c.namespace AND l.election = c.election), 0) AS token,
       c.priority,
       c.capabilities,
       c.metadata,
       c.joined_at_ms,
       c.updated_at_ms
FROM tenure_candidates c
JOIN tenure_sessions s ON s.id = c.session
LEFT JOIN (SELECT namespace, election, session, max(token) AS token FROM tenure_leases
           WHERE session IS NOT NULL GROUP BY namespace, election, session) held
       ON held.namespace = c.namespace AND held.election = c.election AND held.session = c.session;
