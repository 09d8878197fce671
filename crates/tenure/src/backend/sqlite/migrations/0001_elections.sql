-- Sessions, elections, leases, and who stands for them.
--
-- Every table is STRICT and named tenure_*, since SQLite has no schemas and the file may be yours. Columns that end in
-- _at are milliseconds since 1970 by the writer's wall clock: for people, never for safety.

-- `oldest_compatible` is the oldest program that may still run, by the schema version that it was built for.
CREATE TABLE tenure_migrations (
    version           INTEGER NOT NULL PRIMARY KEY,
    name              TEXT    NOT NULL,
    oldest_compatible INTEGER NOT NULL,
    applied_at        INTEGER NOT NULL
) STRICT;

-- One row for each start of a process. `state` only ever goes from live to ended or expired, never back.
CREATE TABLE tenure_sessions (
    id         TEXT    NOT NULL PRIMARY KEY,
    name       TEXT    NOT NULL,
    beat       INTEGER NOT NULL DEFAULT 0,
    lease_ms   INTEGER NOT NULL,
    state      TEXT    NOT NULL CHECK (state IN ('live', 'ended', 'expired')),
    takeover   TEXT    NOT NULL CHECK (takeover IN ('lease', 'connection')),
    started_at INTEGER NOT NULL,
    beat_at    INTEGER NOT NULL,
    ended_at   INTEGER
) STRICT;
CREATE INDEX tenure_sessions_live ON tenure_sessions (id) WHERE state = 'live';
CREATE INDEX tenure_sessions_over ON tenure_sessions (ended_at) WHERE state <> 'live';

CREATE TABLE tenure_elections (
    namespace     TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    slots         INTEGER NOT NULL,
    requires      TEXT    NOT NULL DEFAULT '[]',
    paused_by     TEXT,
    paused_reason TEXT,
    paused_at     INTEGER,
    created_at    INTEGER NOT NULL,
    PRIMARY KEY (namespace, name)
) STRICT, WITHOUT ROWID;

-- The epoch: the high bits of every token and event number. `file` is the file that these tables were in last (empty: not known yet),
-- `writes` counts grants and starts of sessions. See epoch.rs.
CREATE TABLE tenure_epoch (
    id         INTEGER PRIMARY KEY CHECK (id = 1),
    epoch      INTEGER NOT NULL CHECK (epoch BETWEEN 0 AND 8191),
    file       TEXT    NOT NULL DEFAULT '',
    writes     INTEGER NOT NULL DEFAULT 0,
    changed_at INTEGER NOT NULL,
    reason     TEXT    NOT NULL
) STRICT;
INSERT INTO tenure_epoch (id, epoch, changed_at, reason)
VALUES (1, 0, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER), 'installed');

-- A row stays for ever, even when an election shrinks: its token must never be granted again.
-- While the lease is held under a token that another elector granted, `token` is that one and `own_token` the last that was
-- granted here. Tokens of different electors do not compare, so the next grant made here counts on from `own_token`.
CREATE TABLE tenure_leases (
    namespace  TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    slot       INTEGER NOT NULL,
    token      INTEGER NOT NULL DEFAULT 0,
    own_token  INTEGER,
    session    TEXT,
    reserved   TEXT,
    via        TEXT    NOT NULL DEFAULT 'release',
    granted_at INTEGER,
    PRIMARY KEY (namespace, name, slot)
) STRICT, WITHOUT ROWID;
CREATE INDEX tenure_leases_session ON tenure_leases (session) WHERE session IS NOT NULL;

CREATE TABLE tenure_candidates (
    namespace    TEXT    NOT NULL,
    election     TEXT    NOT NULL,
    session      TEXT    NOT NULL,
    id           TEXT    NOT NULL,
    priority     INTEGER NOT NULL,
    observer     INTEGER NOT NULL CHECK (observer IN (0, 1)),
    capabilities TEXT    NOT NULL DEFAULT '[]',
    metadata     TEXT    NOT NULL DEFAULT '{}',
    joined_at    INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    PRIMARY KEY (namespace, election, session)
) STRICT, WITHOUT ROWID;
CREATE INDEX tenure_candidates_session ON tenure_candidates (session);

-- What is asked of the holder of a term. `session` is the holder.
CREATE TABLE tenure_requests (
    namespace TEXT    NOT NULL,
    election  TEXT    NOT NULL,
    slot      INTEGER NOT NULL,
    token     INTEGER NOT NULL,
    session   TEXT    NOT NULL,
    kind      TEXT    NOT NULL CHECK (kind IN ('preempt', 'transfer', 'resign', 'pause')),
    successor TEXT,
    asked_by  TEXT    NOT NULL,
    asked_at  INTEGER NOT NULL,
    PRIMARY KEY (namespace, election, slot)
) STRICT, WITHOUT ROWID;
CREATE INDEX tenure_requests_session ON tenure_requests (session);

-- `seq` orders the terms of all slots, which tokens do not and wall clocks can not.
CREATE TABLE tenure_terms (
    seq        INTEGER PRIMARY KEY,
    namespace  TEXT    NOT NULL,
    election   TEXT    NOT NULL,
    slot       INTEGER NOT NULL,
    token      INTEGER NOT NULL,
    session    TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    via        TEXT    NOT NULL,
    began_at   INTEGER NOT NULL,
    ended_at   INTEGER,
    end_reason TEXT,
    UNIQUE (namespace, election, slot, token)
) STRICT;
CREATE INDEX tenure_terms_open ON tenure_terms (session) WHERE ended_at IS NULL;

-- The last lease of each slot that was granted by another store and is held here under its token, by who granted it.
CREATE TABLE tenure_adoptions (
    namespace  TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    slot       INTEGER NOT NULL,
    elector    TEXT    NOT NULL,
    token      INTEGER NOT NULL,
    session    TEXT    NOT NULL,
    adopted_at INTEGER NOT NULL,
    PRIMARY KEY (namespace, name, slot, elector)
) STRICT, WITHOUT ROWID;

-- The highest token seen under a name, whoever granted it.
CREATE TABLE tenure_fences (
    name    TEXT    NOT NULL PRIMARY KEY,
    token   INTEGER NOT NULL,
    seen_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The candidates as people knew them before Tenure. A candidate is a follower while somebody leads.
CREATE VIEW tenure_node_records AS
SELECT c.namespace,
       c.election,
       c.id,
       CASE WHEN held.token IS NOT NULL THEN 'leader'
            WHEN c.observer = 1 THEN 'observer'
            WHEN EXISTS (SELECT 1 FROM tenure_leases l
                         WHERE l.namespace = c.namespace AND l.name = c.election AND l.session IS NOT NULL) THEN 'follower'
            ELSE 'candidate'
       END AS status,
       s.beat_at AS last_heartbeat,
       coalesce(held.token, (SELECT max(l.token) FROM tenure_leases l
                             WHERE l.namespace = c.namespace AND l.name = c.election), 0) AS term,
       c.priority,
       c.capabilities,
       c.metadata,
       c.joined_at AS created_at,
       c.updated_at
FROM tenure_candidates c
JOIN tenure_sessions s ON s.id = c.session
LEFT JOIN (SELECT namespace, name, session, max(token) AS token FROM tenure_leases
           WHERE session IS NOT NULL GROUP BY namespace, name, session) held
       ON held.namespace = c.namespace AND held.name = c.election AND held.session = c.session;
