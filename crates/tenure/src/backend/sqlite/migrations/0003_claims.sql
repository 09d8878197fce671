-- Tasks and their queues, workers, and pools of resources.
--
-- As before: columns that end in _at are milliseconds since 1970 by the writer's wall clock. Here they decide when something
-- is due, and for that the keeper reckons with a clock that was put forward (see Tend::clock_ms).

CREATE TABLE tenure_queues (
    id            INTEGER PRIMARY KEY,
    namespace     TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    mode          TEXT    NOT NULL DEFAULT 'distributed' CHECK (mode IN ('distributed', 'exclusive')),
    fallback      TEXT    NOT NULL DEFAULT 'none' CHECK (fallback IN ('none', 'distributed')),
    approval      INTEGER NOT NULL DEFAULT 0 CHECK (approval IN (0, 1)),
    rate_count    INTEGER,
    rate_per_ms   INTEGER,
    max_claimed   INTEGER,
    prefer_ms     INTEGER NOT NULL DEFAULT 5000,
    keep_ms       INTEGER NOT NULL DEFAULT 86400000,
    keep_dead_ms  INTEGER NOT NULL DEFAULT 2592000000,
    -- How many tasks were handed out in exclusive mode, ever.
    turn          INTEGER NOT NULL DEFAULT 0,
    -- Up to when the rate is used up, in milliseconds since 1970, with fractions.
    rate_used_to  REAL    NOT NULL DEFAULT 0,
    paused_by     TEXT,
    paused_reason TEXT,
    paused_at     INTEGER,
    created_at    INTEGER NOT NULL,
    UNIQUE (namespace, name)
) STRICT;

-- Namespaces of which everything is paused.
CREATE TABLE tenure_pauses (
    namespace     TEXT    NOT NULL PRIMARY KEY,
    paused_by     TEXT    NOT NULL,
    paused_reason TEXT    NOT NULL,
    paused_at     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What tasks ask of a worker, each once: a worker looks at the heads of those that it fits, and a million tasks for others
-- cost it nothing. The lists are JSON, sorted, without doubles.
CREATE TABLE tenure_demands (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    queue    INTEGER NOT NULL,
    kind     TEXT    NOT NULL,
    requires TEXT    NOT NULL,
    prefers  TEXT    NOT NULL,
    workers  TEXT    NOT NULL,
    UNIQUE (queue, kind, requires, prefers, workers)
) STRICT;

-- AUTOINCREMENT: a number is never given twice, even after the last task was forgotten.
CREATE TABLE tenure_tasks (
    id                INTEGER PRIMARY KEY AUTOINCREMENT,
    queue             INTEGER NOT NULL,
    demand            INTEGER NOT NULL,
    state             TEXT    NOT NULL CHECK (state IN
        ('waiting', 'scheduled', 'ready', 'held', 'claimed', 'completed', 'dead', 'cancelled')),
    -- enqueued_at less a minute for each point of priority: the order of the queue, never changed.
    effective_at      INTEGER NOT NULL,
    priority          INTEGER NOT NULL,
    attempt           INTEGER NOT NULL DEFAULT 0,
    max_attempts      INTEGER NOT NULL,
    token             INTEGER NOT NULL DEFAULT 0,
    turn              INTEGER,
    worker            TEXT,
    session           TEXT,
    -- How many parents it has.
    parents           INTEGER NOT NULL DEFAULT 0,
    -- namespace/key: no namespace has a slash in its name.
    concurrency       TEXT,
    concurrency_limit INTEGER NOT NULL,
    key               TEXT,
    leader_token      INTEGER,
    backoff_first_ms  INTEGER NOT NULL,
    backoff_most_ms   INTEGER NOT NULL,
    max_wait_ms       INTEGER,
    max_run_ms        INTEGER,
    enqueued_at       INTEGER NOT NULL,
    run_at            INTEGER,
    ready_at          INTEGER,
    -- ready_at and the longest wait.
    wait_until        INTEGER,
    claimed_at        INTEGER,
    deadline          INTEGER,
    finished_at       INTEGER,
    -- The parent whose fate it shares.
    fate              INTEGER,
    reason            TEXT,
    progress          TEXT,
    failures          TEXT    NOT NULL DEFAULT '[]',
    payload           TEXT    NOT NULL,
    output            TEXT
) STRICT;
-- Each task is in one or two of these at a time. Only the first, the second and `finished` are on the way of an ordinary task.
CREATE INDEX tenure_tasks_ready     ON tenure_tasks (demand, effective_at, id, ready_at) WHERE state = 'ready';
CREATE INDEX tenure_tasks_claimed   ON tenure_tasks (queue, session) WHERE state = 'claimed';
CREATE INDEX tenure_tasks_finished  ON tenure_tasks (queue, state, finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX tenure_tasks_scheduled ON tenure_tasks (queue, run_at) WHERE state = 'scheduled';
CREATE INDEX tenure_tasks_waiting   ON tenure_tasks (queue) WHERE state = 'waiting';
CREATE INDEX tenure_tasks_held      ON tenure_tasks (concurrency, demand, effective_at, id) WHERE state = 'held';
CREATE INDEX tenure_tasks_keyed     ON tenure_tasks (concurrency) WHERE state = 'claimed' AND concurrency IS NOT NULL;
CREATE INDEX tenure_tasks_deadline  ON tenure_tasks (deadline) WHERE state = 'claimed' AND deadline IS NOT NULL;
CREATE INDEX tenure_tasks_patience  ON tenure_tasks (wait_until) WHERE wait_until IS NOT NULL;
CREATE UNIQUE INDEX tenure_tasks_key ON tenure_tasks (queue, key) WHERE key IS NOT NULL;
-- Of any state: whether a demand is still used by any.
CREATE INDEX tenure_tasks_demand    ON tenure_tasks (demand);

-- Who depends on whom.
CREATE TABLE tenure_task_parents (
    parent INTEGER NOT NULL,
    child  INTEGER NOT NULL,
    PRIMARY KEY (parent, child)
) STRICT, WITHOUT ROWID;
CREATE INDEX tenure_task_parents_child ON tenure_task_parents (child, parent);

-- Who sleeps until a queue has work. By name: the queue need not be there yet.
CREATE TABLE tenure_dozers (
    namespace TEXT    NOT NULL,
    queue     TEXT    NOT NULL,
    session   TEXT    NOT NULL,
    dozed_at  INTEGER NOT NULL,
    PRIMARY KEY (namespace, queue, session)
) STRICT, WITHOUT ROWID;

CREATE TABLE tenure_workers (
    namespace   TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    kind        TEXT    NOT NULL DEFAULT '',
    tags        TEXT    NOT NULL DEFAULT '[]',
    kinds       TEXT    NOT NULL DEFAULT '[]',
    queues      TEXT    NOT NULL DEFAULT '[]',
    location    TEXT    NOT NULL DEFAULT '',
    capacity    INTEGER NOT NULL DEFAULT 0,
    session     TEXT,
    approved_by TEXT,
    approved_at INTEGER,
    -- Null if it was approved and never seen.
    seen_at     INTEGER,
    PRIMARY KEY (namespace, name)
) STRICT, WITHOUT ROWID;

-- Where the leader is to be reached. One row.
CREATE TABLE tenure_posts (
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    token   INTEGER NOT NULL,
    session TEXT    NOT NULL,
    address TEXT    NOT NULL,
    secret  BLOB    NOT NULL
) STRICT;

CREATE TABLE tenure_pools (
    id           INTEGER PRIMARY KEY,
    namespace    TEXT    NOT NULL,
    name         TEXT    NOT NULL,
    mode         TEXT    NOT NULL CHECK (mode IN ('distributed', 'exclusive')),
    fallback     TEXT    NOT NULL CHECK (fallback IN ('none', 'distributed')),
    cool_down_ms INTEGER NOT NULL,
    priority     TEXT    NOT NULL,
    keep_ms      INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    UNIQUE (namespace, name)
) STRICT;

-- `request` has it. A name that was taken out and put in again goes on with its token: the row stays, with removed = 1.
CREATE TABLE tenure_resources (
    pool          INTEGER NOT NULL,
    name          TEXT    NOT NULL,
    tags          TEXT    NOT NULL DEFAULT '[]',
    enabled       INTEGER NOT NULL DEFAULT 1 CHECK (enabled IN (0, 1)),
    removed       INTEGER NOT NULL DEFAULT 0 CHECK (removed IN (0, 1)),
    token         INTEGER NOT NULL DEFAULT 0,
    request       INTEGER,
    cooling_until INTEGER,
    PRIMARY KEY (pool, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE tenure_pool_requests (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    pool        INTEGER NOT NULL,
    key         TEXT    NOT NULL,
    owner       TEXT    NOT NULL,
    requires    TEXT    NOT NULL,
    prefers     TEXT    NOT NULL,
    base        INTEGER NOT NULL,
    session     TEXT,
    hold_ms     INTEGER,
    max_wait_ms INTEGER,
    state       TEXT    NOT NULL CHECK (state IN ('waiting', 'granted', 'released', 'cancelled', 'expired')),
    resource    TEXT,
    token       INTEGER,
    created_at  INTEGER NOT NULL,
    granted_at  INTEGER,
    -- Of a waiting one: when it is given up. Of a granted one: when the claim ends.
    deadline    INTEGER,
    ended_at    INTEGER
) STRICT;
CREATE UNIQUE INDEX tenure_pool_requests_key ON tenure_pool_requests (pool, key) WHERE ended_at IS NULL;
CREATE INDEX tenure_pool_requests_open     ON tenure_pool_requests (pool, state, session) WHERE ended_at IS NULL;
CREATE INDEX tenure_pool_requests_deadline ON tenure_pool_requests (deadline) WHERE ended_at IS NULL AND deadline IS NOT NULL;
CREATE INDEX tenure_pool_requests_ended    ON tenure_pool_requests (pool, ended_at) WHERE ended_at IS NOT NULL;

-- Submission from any language, in the caller's own transaction:
--
--     INSERT INTO tenure_submit (queue, kind, payload) VALUES ('mail', 'welcome', '{"to":"ada"}');
--
-- Every column but `queue` may be left out; requires, prefers, workers and parents are JSON arrays. Under a `key` that the queue
-- remembers, nothing is inserted. A trigger can not ring for who sleeps: workers find the task by polling, in a moment.
-- It uses nothing that SQLite 3.38 does not know, for the caller's may be that old; so its messages are literal.
CREATE VIEW tenure_submit AS
SELECT q.namespace, q.name AS queue, d.kind, t.payload, t.priority, d.requires, d.prefers, d.workers, t.run_at AS run_at_ms,
       t.max_wait_ms, t.max_run_ms, t.max_attempts,
       (SELECT json_group_array(p.parent) FROM tenure_task_parents p WHERE p.child = t.id) AS parents,
       t.key, substr(t.concurrency, length(q.namespace) + 2) AS concurrency_key, t.concurrency_limit, t.id, t.state
FROM tenure_tasks t JOIN tenure_queues q ON q.id = t.queue JOIN tenure_demands d ON d.id = t.demand;

CREATE TRIGGER tenure_submit_insert INSTEAD OF INSERT ON tenure_submit
BEGIN
    -- What claim::check refuses of a submission from Rust. First what is no JSON: the rest looks into it.
    SELECT CASE
        WHEN NEW.queue IS NULL
            THEN RAISE(ABORT, 'tenure: name a queue: INSERT INTO tenure_submit (queue, payload) VALUES (''mail'', ''{}'')')
        WHEN NEW.queue GLOB '*[^A-Za-z0-9._:-]*' OR NEW.queue NOT GLOB '[A-Za-z0-9]*' OR length(NEW.queue) > 128
            THEN RAISE(ABORT, 'tenure: the queue''s name must be 1 to 128 letters, digits, ''.'', ''_'', '':'' or ''-'', the first a letter or digit')
        WHEN NEW.namespace GLOB '*[^A-Za-z0-9._:-]*' OR NEW.namespace NOT GLOB '[A-Za-z0-9]*' OR length(NEW.namespace) > 128
            THEN RAISE(ABORT, 'tenure: the namespace must be 1 to 128 letters, digits, ''.'', ''_'', '':'' or ''-'', the first a letter or digit; leave it out for ''default''')
        WHEN typeof(NEW.payload) = 'blob' OR json_valid(coalesce(NEW.payload, '[]')) = 0
            THEN RAISE(ABORT, 'tenure: the payload is not JSON text; quote it as JSON, as in ''{"to":"ada"}'' or json_object(''to'', ''ada'')')
        WHEN length(CAST(NEW.payload AS BLOB)) > 1048576
            THEN RAISE(ABORT, 'tenure: the payload has more than 1048576 bytes; keep it elsewhere, and submit where it is')
        WHEN json_valid(coalesce(NEW.requires, '[]')) = 0 OR json_valid(coalesce(NEW.prefers, '[]')) = 0
                OR json_valid(coalesce(NEW.workers, '[]')) = 0 OR json_valid(coalesce(NEW.parents, '[]')) = 0
            THEN RAISE(ABORT, 'tenure: requires, prefers, workers and parents are JSON arrays, as in ''["gpu"]'' or ''[12]''')
    END;
    SELECT CASE
        WHEN coalesce(json_type(NEW.requires), 'array') <> 'array' OR coalesce(json_type(NEW.prefers), 'array') <> 'array'
                OR coalesce(json_type(NEW.workers), 'array') <> 'array' OR coalesce(json_type(NEW.parents), 'array') <> 'array'
            THEN RAISE(ABORT, 'tenure: requires, prefers, workers and parents are JSON arrays, as in ''["gpu"]'' or ''[12]''')
        WHEN coalesce(json_array_length(NEW.requires), 0) > 64 OR coalesce(json_array_length(NEW.prefers), 0) > 64
                OR coalesce(json_array_length(NEW.workers), 0) > 64 OR coalesce(json_array_length(NEW.parents), 0) > 64
            THEN RAISE(ABORT, 'tenure: a task has at most 64 tags, named workers or parents of each sort; take some out')
        WHEN EXISTS (SELECT 1 FROM (SELECT type, value FROM json_each(coalesce(NEW.requires, '[]'))
                                    UNION ALL SELECT type, value FROM json_each(coalesce(NEW.prefers, '[]'))
                                    UNION ALL SELECT type, value FROM json_each(coalesce(NEW.workers, '[]'))) w
                     WHERE w.type <> 'text' OR length(CAST(w.value AS BLOB)) NOT BETWEEN 1 AND 256
                        OR w.value GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*')
            THEN RAISE(ABORT, 'tenure: tags and workers'' names are texts of 1 to 256 bytes without control characters')
        WHEN length(CAST(NEW.kind AS BLOB)) > 256 OR NEW.kind GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*'
            THEN RAISE(ABORT, 'tenure: the kind has more than 256 bytes, or a control character; give a shorter, plainer one')
        WHEN length(CAST(NEW.key AS BLOB)) NOT BETWEEN 1 AND 256 OR NEW.key GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*'
                OR length(CAST(NEW.concurrency_key AS BLOB)) NOT BETWEEN 1 AND 256
                OR NEW.concurrency_key GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*'
            THEN RAISE(ABORT, 'tenure: a key has 1 to 256 bytes and no control characters; leave it out, or give another')
        WHEN NEW.key GLOB '?*/?*@[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]T*Z*'
            THEN RAISE(ABORT, 'tenure: the key is one by which a schedule submits the task of a tick; give another')
        WHEN NEW.priority IS NOT NULL AND (typeof(NEW.priority) <> 'integer' OR abs(NEW.priority) > 1000000)
            THEN RAISE(ABORT, 'tenure: the priority is a whole number from -1000000 to 1000000')
        WHEN NEW.max_attempts IS NOT NULL AND (typeof(NEW.max_attempts) <> 'integer' OR NEW.max_attempts NOT BETWEEN 1 AND 2147483647)
            THEN RAISE(ABORT, 'tenure: max_attempts is a whole number from 1 to 2147483647')
        WHEN NEW.concurrency_limit IS NOT NULL AND (typeof(NEW.concurrency_limit) <> 'integer' OR NEW.concurrency_limit NOT BETWEEN 1 AND 2147483647)
            THEN RAISE(ABORT, 'tenure: concurrency_limit is a whole number from 1 to 2147483647')
        WHEN NEW.run_at_ms IS NOT NULL AND (typeof(NEW.run_at_ms) <> 'integer' OR NEW.run_at_ms NOT BETWEEN 0 AND 253402300799999)
            THEN RAISE(ABORT, 'tenure: run_at_ms is in whole milliseconds since 1970, as in unixepoch(''now'', ''+1 hour'') * 1000')
        WHEN (NEW.max_wait_ms IS NOT NULL AND (typeof(NEW.max_wait_ms) <> 'integer' OR NEW.max_wait_ms NOT BETWEEN 0 AND 3155760000000))
                OR (NEW.max_run_ms IS NOT NULL AND (typeof(NEW.max_run_ms) <> 'integer' OR NEW.max_run_ms NOT BETWEEN 0 AND 3155760000000))
            THEN RAISE(ABORT, 'tenure: max_wait_ms and max_run_ms are whole milliseconds, at most a hundred years')
        WHEN EXISTS (SELECT 1 FROM json_each(coalesce(NEW.parents, '[]')) p
                     WHERE p.type <> 'integer' OR NOT EXISTS (
                         SELECT 1 FROM tenure_tasks t JOIN tenure_queues q ON q.id = t.queue
                         WHERE t.id = p.value AND q.namespace = coalesce(NEW.namespace, 'default')))
            THEN RAISE(ABORT, 'tenure: a parent is not there in this namespace; parents are numbers of tasks (SELECT id FROM tenure_submit) that are remembered')
        WHEN EXISTS (SELECT 1 FROM json_each(coalesce(NEW.parents, '[]')) p JOIN tenure_tasks t ON t.id = p.value
                     WHERE t.state IN ('dead', 'cancelled'))
            THEN RAISE(ABORT, 'tenure: a parent is dead or cancelled, and its children would be too; retry the parent first: tenure tasks retry ID')
    END;

    INSERT INTO tenure_queues (namespace, name, created_at)
    SELECT coalesce(NEW.namespace, 'default'), NEW.queue, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)
    WHERE NOT EXISTS (SELECT 1 FROM tenure_queues q
                      WHERE q.namespace = coalesce(NEW.namespace, 'default') AND q.name = NEW.queue);

    INSERT INTO tenure_demands (queue, kind, requires, prefers, workers)
    SELECT w.queue, w.kind, w.requires, w.prefers, w.workers
    FROM (SELECT q.id AS queue, coalesce(NEW.kind, '') AS kind,
                 (SELECT json_group_array(value) FROM (SELECT DISTINCT value FROM json_each(coalesce(NEW.requires, '[]')) ORDER BY value)) AS requires,
                 (SELECT json_group_array(value) FROM (SELECT DISTINCT value FROM json_each(coalesce(NEW.prefers, '[]')) ORDER BY value)) AS prefers,
                 (SELECT json_group_array(value) FROM (SELECT DISTINCT value FROM json_each(coalesce(NEW.workers, '[]'))
                                                       WHERE NOT EXISTS (SELECT 1 FROM json_each(coalesce(NEW.workers, '[]')) a WHERE a.value = '*')
                                                       ORDER BY value)) AS workers
          FROM tenure_queues q WHERE q.namespace = coalesce(NEW.namespace, 'default') AND q.name = NEW.queue) w
    WHERE NOT EXISTS (SELECT 1 FROM tenure_demands d
                      WHERE d.queue = w.queue AND d.kind = w.kind AND d.requires = w.requires
                        AND d.prefers = w.prefers AND d.workers = w.workers);

    -- The task gets the number after the last one. Of several rows in one INSERT, sqlite_sequence learns at the end only.
    INSERT INTO tenure_task_parents (parent, child)
    SELECT DISTINCT p.value, max(coalesce((SELECT max(id) FROM tenure_tasks), 0),
                                 coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'tenure_tasks'), 0)) + 1
    FROM json_each(coalesce(NEW.parents, '[]')) p
    WHERE NEW.key IS NULL OR NOT EXISTS (
        SELECT 1 FROM tenure_tasks t JOIN tenure_queues q ON q.id = t.queue
        WHERE q.namespace = coalesce(NEW.namespace, 'default') AND q.name = NEW.queue AND t.key = NEW.key);

    INSERT INTO tenure_tasks
        (id, queue, demand, state, effective_at, priority, max_attempts, parents, concurrency, concurrency_limit, key,
         backoff_first_ms, backoff_most_ms, max_wait_ms, max_run_ms, enqueued_at, run_at, ready_at, wait_until, payload)
    SELECT n.id, n.queue, n.demand, n.state, n.now - coalesce(NEW.priority, 0) * 60000, coalesce(NEW.priority, 0),
           coalesce(NEW.max_attempts, 20),
           (SELECT count(DISTINCT p.value) FROM json_each(coalesce(NEW.parents, '[]')) p),
           coalesce(NEW.namespace, 'default') || '/' || NEW.concurrency_key, coalesce(NEW.concurrency_limit, 1), NEW.key,
           1000, 3600000, NEW.max_wait_ms, NEW.max_run_ms, n.now, NEW.run_at_ms,
           CASE WHEN n.state = 'ready' THEN n.now END,
           CASE WHEN n.state = 'ready' THEN n.now + NEW.max_wait_ms END,
           coalesce(CAST(NEW.payload AS TEXT), '{}')
    FROM (SELECT m.id, m.queue, m.demand, m.now,
                 CASE WHEN EXISTS (SELECT 1 FROM json_each(coalesce(NEW.parents, '[]')) p JOIN tenure_tasks t ON t.id = p.value
                                   WHERE t.state <> 'completed') THEN 'waiting'
                      WHEN NEW.run_at_ms > m.now THEN 'scheduled'
                      ELSE 'ready' END AS state
          FROM (SELECT max(coalesce((SELECT max(id) FROM tenure_tasks), 0),
                           coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'tenure_tasks'), 0)) + 1 AS id,
                       q.id AS queue, d.id AS demand,
                       CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) AS now
                FROM tenure_queues q JOIN tenure_demands d ON d.queue = q.id
                WHERE q.namespace = coalesce(NEW.namespace, 'default') AND q.name = NEW.queue
                  AND d.kind = coalesce(NEW.kind, '')
                  AND d.requires = (SELECT json_group_array(value) FROM (SELECT DISTINCT value FROM json_each(coalesce(NEW.requires, '[]')) ORDER BY value))
                  AND d.prefers = (SELECT json_group_array(value) FROM (SELECT DISTINCT value FROM json_each(coalesce(NEW.prefers, '[]')) ORDER BY value))
                  AND d.workers = (SELECT json_group_array(value) FROM (SELECT DISTINCT value FROM json_each(coalesce(NEW.workers, '[]'))
                                                                        WHERE NOT EXISTS (SELECT 1 FROM json_each(coalesce(NEW.workers, '[]')) a WHERE a.value = '*')
                                                                        ORDER BY value))
               ) m
         ) n
    WHERE NEW.key IS NULL OR NOT EXISTS (SELECT 1 FROM tenure_tasks t WHERE t.queue = n.queue AND t.key = NEW.key);
END;
