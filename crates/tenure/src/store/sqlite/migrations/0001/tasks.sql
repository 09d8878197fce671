-- Queues, tasks and workers.
--
-- Instants of tasks decide when a task is due. Maintenance compares expiry instants with a clock that tolerates a wall clock that
-- was set forward; see MaintenanceRequest::clock_ms.

-- Queues and their settings.
CREATE TABLE tenure_queues (
    id                   INTEGER PRIMARY KEY,
    namespace            TEXT    NOT NULL,
    name                 TEXT    NOT NULL,
    mode                 TEXT    NOT NULL DEFAULT 'distributed' CHECK (mode IN ('distributed', 'exclusive')),
    fallback             TEXT    NOT NULL DEFAULT 'none' CHECK (fallback IN ('none', 'distributed')),
    require_approval     INTEGER NOT NULL DEFAULT 0 CHECK (require_approval IN (0, 1)),
    -- The rate limit: rate_count claims in rate_per_ms; null: no limit.
    rate_count           INTEGER,
    rate_per_ms          INTEGER,
    -- How many tasks may be claimed at the same time; null: no limit.
    max_claimed          INTEGER,
    -- How long preferred tags are honoured.
    preference_window_ms INTEGER NOT NULL DEFAULT 5000,
    retention_ms         INTEGER NOT NULL DEFAULT 86400000,
    dead_retention_ms    INTEGER NOT NULL DEFAULT 2592000000,
    paused_by            TEXT,
    paused_reason        TEXT,
    paused_at_ms         INTEGER,
    created_at_ms        INTEGER NOT NULL,
    UNIQUE (namespace, name)
) STRICT;

-- Counters that claims change. No row: no claim has changed them yet.
CREATE TABLE tenure_queue_counters (
    queue_id              INTEGER PRIMARY KEY,
    -- The last claim sequence of an exclusive queue.
    claim_seq             INTEGER NOT NULL DEFAULT 0,
    -- The instant until which the rate limit is used up, in milliseconds since 1970 with fractions.
    rate_used_until_at_ms REAL    NOT NULL DEFAULT 0
) STRICT;

-- Paused namespaces. A pause stops every queue and pool of the namespace.
CREATE TABLE tenure_namespaces (
    name          TEXT    NOT NULL PRIMARY KEY,
    paused_by     TEXT    NOT NULL,
    paused_reason TEXT    NOT NULL,
    paused_at_ms  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Distinct requirements of the tasks of a queue. A claim reads only the first tasks of the requirements that the worker meets, so
-- tasks for other workers cost it nothing. The lists are JSON arrays, sorted, without duplicates.
CREATE TABLE tenure_task_requirements (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    queue_id        INTEGER NOT NULL,
    kind            TEXT    NOT NULL,
    required_tags   TEXT    NOT NULL,
    preferred_tags  TEXT    NOT NULL,
    allowed_workers TEXT    NOT NULL,
    UNIQUE (queue_id, kind, required_tags, preferred_tags, allowed_workers)
) STRICT;

-- Tasks. AUTOINCREMENT: pruning must not lead to a reused id.
CREATE TABLE tenure_tasks (
    id                  INTEGER PRIMARY KEY AUTOINCREMENT,
    queue_id            INTEGER NOT NULL,
    requirements_id     INTEGER NOT NULL,
    -- blocked: the limit of its concurrency key is reached.
    state               TEXT    NOT NULL CHECK (state IN
        ('waiting', 'scheduled', 'ready', 'blocked', 'claimed', 'completed', 'dead', 'cancelled')),
    -- submitted_at_ms minus one minute for each point of priority: the order of the queue. Never changes.
    effective_at_ms     INTEGER NOT NULL,
    priority            INTEGER NOT NULL,
    attempt             INTEGER NOT NULL DEFAULT 0,
    max_attempts        INTEGER NOT NULL,
    -- The token of the current or last claim.
    token               INTEGER NOT NULL DEFAULT 0,
    -- The number of the last claim in its exclusive queue.
    claim_seq           INTEGER,
    worker              TEXT,
    -- The session of the claim; null for a claim with a timeout.
    session             TEXT,
    parent_count        INTEGER NOT NULL DEFAULT 0,
    -- namespace/key. No namespace contains a slash.
    concurrency_key     TEXT,
    concurrency_limit   INTEGER NOT NULL,
    idempotency_key     TEXT,
    -- The token of the leader that submitted the task.
    leader_token        INTEGER,
    initial_backoff_ms  INTEGER NOT NULL,
    max_backoff_ms      INTEGER NOT NULL,
    max_wait_ms         INTEGER,
    max_run_ms          INTEGER,
    submitted_at_ms     INTEGER NOT NULL,
    run_at_ms           INTEGER,
    ready_at_ms         INTEGER,
    -- ready_at_ms + max_wait_ms: the task dies if no worker has claimed it by then.
    wait_expires_at_ms  INTEGER,
    claimed_at_ms       INTEGER,
    -- When the claim ends without a heartbeat; null if its session alone decides.
    claim_expires_at_ms INTEGER,
    finished_at_ms      INTEGER,
    -- The parent whose end ended this task.
    cascaded_from_id    INTEGER,
    -- Why the task is dead or cancelled.
    end_reason          TEXT,
    progress            TEXT,
    -- JSON array of the last failures.
    failures            TEXT    NOT NULL DEFAULT '[]',
    -- JSON.
    payload             TEXT    NOT NULL,
    -- JSON that the worker stored on completion.
    result              TEXT
) STRICT;
-- A task is in one or two of the partial indexes at a time. An ordinary task uses only ready, claimed and finished.
CREATE INDEX tenure_tasks_ready           ON tenure_tasks (requirements_id, effective_at_ms, id, ready_at_ms) WHERE state = 'ready';
CREATE INDEX tenure_tasks_claimed         ON tenure_tasks (queue_id, session) WHERE state = 'claimed';
CREATE INDEX tenure_tasks_finished        ON tenure_tasks (queue_id, state, finished_at_ms) WHERE finished_at_ms IS NOT NULL;
CREATE INDEX tenure_tasks_scheduled       ON tenure_tasks (queue_id, run_at_ms) WHERE state = 'scheduled';
CREATE INDEX tenure_tasks_waiting         ON tenure_tasks (queue_id) WHERE state = 'waiting';
CREATE INDEX tenure_tasks_blocked         ON tenure_tasks (concurrency_key, requirements_id, effective_at_ms, id) WHERE state = 'blocked';
CREATE INDEX tenure_tasks_concurrency_key ON tenure_tasks (concurrency_key) WHERE state = 'claimed' AND concurrency_key IS NOT NULL;
CREATE INDEX tenure_tasks_claim_expires   ON tenure_tasks (claim_expires_at_ms) WHERE state = 'claimed' AND claim_expires_at_ms IS NOT NULL;
CREATE INDEX tenure_tasks_wait_expires    ON tenure_tasks (wait_expires_at_ms) WHERE wait_expires_at_ms IS NOT NULL;
CREATE UNIQUE INDEX tenure_tasks_idempotency_key ON tenure_tasks (queue_id, idempotency_key) WHERE idempotency_key IS NOT NULL;
-- Tasks of every state: shows whether requirements are still in use.
CREATE INDEX tenure_tasks_requirements    ON tenure_tasks (requirements_id);

-- Dependencies: the parent must complete before the task may be claimed.
CREATE TABLE tenure_task_dependencies (
    parent_id INTEGER NOT NULL,
    task_id   INTEGER NOT NULL,
    PRIMARY KEY (parent_id, task_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX tenure_task_dependencies_task ON tenure_task_dependencies (task_id, parent_id);

-- Sessions that are notified when a queue has a ready task. The queue is a name, because it need not exist yet.
CREATE TABLE tenure_queue_waiters (
    namespace        TEXT    NOT NULL,
    queue            TEXT    NOT NULL,
    session          TEXT    NOT NULL,
    registered_at_ms INTEGER NOT NULL,
    PRIMARY KEY (namespace, queue, session)
) STRICT, WITHOUT ROWID;

-- Workers and their approvals.
CREATE TABLE tenure_workers (
    namespace       TEXT    NOT NULL,
    name            TEXT    NOT NULL,
    description     TEXT    NOT NULL DEFAULT '',
    -- tags, task_kinds and queues are JSON arrays.
    tags            TEXT    NOT NULL DEFAULT '[]',
    task_kinds      TEXT    NOT NULL DEFAULT '[]',
    queues          TEXT    NOT NULL DEFAULT '[]',
    location        TEXT    NOT NULL DEFAULT '',
    capacity        INTEGER NOT NULL DEFAULT 0,
    session         TEXT,
    approved_by     TEXT,
    approved_at_ms  INTEGER,
    -- Null if the name was approved before a worker registered under it.
    last_seen_at_ms INTEGER,
    PRIMARY KEY (namespace, name)
) STRICT, WITHOUT ROWID;

-- The address of the broker, the leader of tenure/broker. One row.
CREATE TABLE tenure_broker_endpoint (
    singleton INTEGER PRIMARY KEY CHECK (singleton = 1),
    token     INTEGER NOT NULL,
    session   TEXT    NOT NULL,
    address   TEXT    NOT NULL,
    secret    BLOB    NOT NULL
) STRICT;
