-- Queues, tasks and workers.
--
-- Timestamps here decide what is due, what has waited too long and what comes first. They are by the server's clock: a step of
-- that clock moves queues forward or delays them. Whether a claim is held depends on states, tokens and sessions alone.

CREATE TABLE tenure.queues (
    id                   integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace            text COLLATE "C" NOT NULL,
    name                 text COLLATE "C" NOT NULL,
    mode                 text        NOT NULL DEFAULT 'distributed' CHECK (mode IN ('distributed', 'exclusive')),
    fallback             text        NOT NULL DEFAULT 'none' CHECK (fallback IN ('none', 'distributed')),
    require_approval     boolean     NOT NULL DEFAULT false,
    rate_count           integer,
    rate_per_ms          bigint,
    max_claimed          integer,
    preference_window_ms bigint      NOT NULL DEFAULT 5000,
    retention_ms         bigint      NOT NULL DEFAULT 86400000,
    dead_retention_ms    bigint      NOT NULL DEFAULT 2592000000,
    paused_by            text,
    paused_reason        text,
    paused_at            timestamptz,
    created_at           timestamptz NOT NULL DEFAULT now(),
    UNIQUE (namespace, name)
);
COMMENT ON TABLE tenure.queues IS 'Queues with their settings. Rows are never deleted.';
COMMENT ON COLUMN tenure.queues.mode IS
'distributed: every process claims directly. exclusive: the leader of tenure/broker assigns tasks in strict order.';
COMMENT ON COLUMN tenure.queues.fallback IS
'How an exclusive queue is claimed while no broker can be reached: none (wait) or distributed.';
COMMENT ON COLUMN tenure.queues.require_approval IS 'Whether only approved workers may claim.';
COMMENT ON COLUMN tenure.queues.rate_count IS 'Rate limit: at most this many claims per rate_per_ms; null for no limit.';
COMMENT ON COLUMN tenure.queues.rate_per_ms IS 'Period of the rate limit.';
COMMENT ON COLUMN tenure.queues.max_claimed IS 'Maximum number of tasks that are claimed at a time; null for no limit.';
COMMENT ON COLUMN tenure.queues.preference_window_ms IS
'How long a ready task is reserved for workers with one of its preferred tags.';
COMMENT ON COLUMN tenure.queues.retention_ms IS 'How long completed and cancelled tasks are kept.';
COMMENT ON COLUMN tenure.queues.dead_retention_ms IS 'How long dead tasks are kept.';
COMMENT ON COLUMN tenure.queues.paused_at IS 'Time of the pause; null if the queue is not paused.';

-- A table lock and not an advisory lock: any role that may connect can take an advisory lock.
CREATE TABLE tenure.claim_lock ();
COMMENT ON TABLE tenure.claim_lock IS
'Empty table whose lock separates claims (ROW SHARE) from changes of a queue''s settings (EXCLUSIVE): no claim runs while a '
'queue changes its mode.';

CREATE TABLE tenure.concurrency_locks (id integer PRIMARY KEY);
INSERT INTO tenure.concurrency_locks SELECT generate_series(0, 1023);
COMMENT ON TABLE tenure.concurrency_locks IS
'Rows that are locked while the claims of a concurrency key are counted: the row of the key''s hash. They are never changed.';

-- Separate from tenure.queues, whose row every claim reads.
CREATE TABLE tenure.queue_counters (
    queue_id         integer PRIMARY KEY,
    claim_seq        bigint  NOT NULL DEFAULT 0,
    rate_credit      numeric,
    rate_refilled_at timestamptz
) WITH (fillfactor = 50);
COMMENT ON TABLE tenure.queue_counters IS 'Counters of queues with a limit and of exclusive queues; each claim updates them.';
COMMENT ON COLUMN tenure.queue_counters.claim_seq IS 'Sequence number of the last claim in exclusive mode.';
COMMENT ON COLUMN tenure.queue_counters.rate_credit IS
'Remaining credit of the rate limit; null means full. A claim costs rate_per_ms, each millisecond adds rate_count, so that '
'nothing is rounded.';
COMMENT ON COLUMN tenure.queue_counters.rate_refilled_at IS 'Time up to which credit was added.';

CREATE TABLE tenure.namespaces (
    name          text COLLATE "C" PRIMARY KEY,
    paused_by     text,
    paused_reason text,
    paused_at     timestamptz
);
COMMENT ON TABLE tenure.namespaces IS 'Namespaces that are or were paused.';
COMMENT ON COLUMN tenure.namespaces.paused_at IS 'Time of the pause; null if the namespace is not paused.';

-- A claim compares the worker with these few rows and then reads the first tasks of each row that matches: a million tasks that the
-- worker cannot run cost nothing.
--
-- A submission uses the first row with its digest and inserts one if it sees none. There is no unique index: two open transactions
-- would wait for each other and could deadlock. So a combination may exist twice. That does no harm, since claims read both;
-- tenure.prune_requirements retires the second one.
CREATE TABLE tenure.task_requirements (
    id              integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id        integer NOT NULL,
    kind            text COLLATE "C"   NOT NULL,
    required_tags   text[] COLLATE "C" NOT NULL,
    preferred_tags  text[] COLLATE "C" NOT NULL,
    allowed_workers text[] COLLATE "C" NOT NULL,
    digest          bytea   NOT NULL,
    retired_xid     xid8
);
CREATE INDEX task_requirements_digest ON tenure.task_requirements (queue_id, digest, id);
COMMENT ON TABLE tenure.task_requirements IS 'Distinct requirements of the tasks of a queue.';
COMMENT ON COLUMN tenure.task_requirements.required_tags IS 'Tags that a worker must have, all of them.';
COMMENT ON COLUMN tenure.task_requirements.preferred_tags IS 'Tags of which a worker should have at least one.';
COMMENT ON COLUMN tenure.task_requirements.allowed_workers IS 'Names of the workers that may claim; empty for any worker.';
COMMENT ON COLUMN tenure.task_requirements.digest IS 'SHA-256 of kind, tags and workers.';
COMMENT ON COLUMN tenure.task_requirements.retired_xid IS
'Not null: submissions no longer use this row (see tenure.prune_requirements). 0: just retired; otherwise the first '
'transaction id that began after that.';

CREATE TABLE tenure.requirements_prune_state (
    singleton           boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    last_task_id        bigint,
    used_ids            integer[] NOT NULL DEFAULT '{}',
    max_requirements_id integer,
    oldest_xid          xid8
) WITH (fillfactor = 50);
INSERT INTO tenure.requirements_prune_state DEFAULT VALUES;
COMMENT ON TABLE tenure.requirements_prune_state IS 'Progress of tenure.prune_requirements (one row).';
COMMENT ON COLUMN tenure.requirements_prune_state.last_task_id IS
'The last task that this pass has read; null if no pass is in progress.';
COMMENT ON COLUMN tenure.requirements_prune_state.used_ids IS 'Ids of the requirements that this pass has found in use.';
COMMENT ON COLUMN tenure.requirements_prune_state.max_requirements_id IS 'The last row of task_requirements when this pass began.';
COMMENT ON COLUMN tenure.requirements_prune_state.oldest_xid IS 'The oldest running transaction when this pass began.';

CREATE TABLE tenure.tasks (
    -- Columns of fixed width that are never null come first: their place in the row is constant.
    id                   bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    submitted_at         timestamptz NOT NULL,
    effective_at         timestamptz NOT NULL,
    token                bigint      NOT NULL DEFAULT 0,
    queue_id             integer     NOT NULL,
    requirements_id      integer     NOT NULL,
    priority             integer     NOT NULL DEFAULT 0,
    attempt              integer     NOT NULL DEFAULT 0,
    max_attempts         integer     NOT NULL DEFAULT 20,
    concurrency_limit    integer     NOT NULL DEFAULT 1,
    has_children         boolean     NOT NULL DEFAULT false,
    -- No check constraint: it would run with every change of a task.
    state                text COLLATE "C" NOT NULL,
    ready_at             timestamptz,
    claimed_at           timestamptz,
    finished_at          timestamptz,
    run_at               timestamptz,
    claim_expires_at     timestamptz,
    wait_expires_at      timestamptz,
    claim_seq            bigint,
    leader_token         bigint,
    cascaded_from_id     bigint,
    max_wait_ms          bigint,
    max_run_ms           bigint,
    initial_backoff_ms   bigint,
    max_backoff_ms       bigint,
    pending_parent_count integer,
    session              text COLLATE "C",
    worker               text COLLATE "C",
    idempotency_key      text COLLATE "C",
    concurrency_key      text COLLATE "C",
    progress             text,
    end_reason           text,
    failures             json,
    result               json,
    payload              json        NOT NULL
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.1,
        autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE tenure.tasks IS 'Tasks of all queues.';
COMMENT ON COLUMN tenure.tasks.effective_at IS 'submitted_at minus one minute for each point of priority: the order in the queue.';
COMMENT ON COLUMN tenure.tasks.token IS 'Fencing token of the last claim.';
COMMENT ON COLUMN tenure.tasks.attempt IS 'Number of the current or last attempt.';
COMMENT ON COLUMN tenure.tasks.concurrency_limit IS 'Maximum number of claimed tasks with the same concurrency key.';
COMMENT ON COLUMN tenure.tasks.has_children IS 'Whether other tasks depend on this one, or did.';
COMMENT ON COLUMN tenure.tasks.state IS 'waiting, scheduled, ready, blocked, claimed, completed, dead or cancelled.';
COMMENT ON COLUMN tenure.tasks.ready_at IS 'When the task became ready last.';
COMMENT ON COLUMN tenure.tasks.run_at IS 'The task is not claimed before this time.';
COMMENT ON COLUMN tenure.tasks.claim_expires_at IS
'When the claim ends without a heartbeat or exceeds max_run_ms; null for a claim that lasts as long as its session.';
COMMENT ON COLUMN tenure.tasks.wait_expires_at IS
'ready_at plus max_wait_ms, while the task is ready or blocked. Then the task is dead.';
COMMENT ON COLUMN tenure.tasks.claim_seq IS 'Sequence number of the claim in exclusive mode.';
COMMENT ON COLUMN tenure.tasks.leader_token IS 'Token under which the submitter led.';
COMMENT ON COLUMN tenure.tasks.cascaded_from_id IS 'Parent whose end ended this task.';
COMMENT ON COLUMN tenure.tasks.initial_backoff_ms IS 'First delay before a retry; null for the default.';
COMMENT ON COLUMN tenure.tasks.max_backoff_ms IS 'Longest delay before a retry; null for the default.';
COMMENT ON COLUMN tenure.tasks.pending_parent_count IS 'Number of parents that are not completed; null if the task has no parents.';
COMMENT ON COLUMN tenure.tasks.session IS 'Session that holds the claim; null for a claim without a session.';
COMMENT ON COLUMN tenure.tasks.idempotency_key IS 'A second submission with the same key returns this task.';
COMMENT ON COLUMN tenure.tasks.concurrency_key IS 'Limits how many tasks of the namespace with this key are claimed at a time.';
COMMENT ON COLUMN tenure.tasks.progress IS 'Last progress message of the worker.';
COMMENT ON COLUMN tenure.tasks.end_reason IS 'Why the task is dead or cancelled.';
COMMENT ON COLUMN tenure.tasks.failures IS 'The last ten failed attempts.';

-- Each change of a task writes two index entries: that of the primary key and that of the index for its new state; session and
-- finished_at are null unless the task is claimed or finished. PostgreSQL evaluates the conditions of all indexes with each change:
-- conditions without a comparison of texts come first and cost almost nothing.
CREATE INDEX tasks_ready ON tenure.tasks (requirements_id, effective_at, id) WHERE state = 'ready';
CREATE INDEX tasks_claimed ON tenure.tasks (session) WHERE session IS NOT NULL;
CREATE INDEX tasks_finished ON tenure.tasks (queue_id, state, finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX tasks_scheduled ON tenure.tasks (queue_id, run_at) WHERE run_at IS NOT NULL AND state = 'scheduled';
-- Indexes for options that few tasks use.
CREATE UNIQUE INDEX tasks_idempotency_key ON tenure.tasks (queue_id, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX tasks_claim_expires ON tenure.tasks (claim_expires_at) WHERE claim_expires_at IS NOT NULL;
CREATE INDEX tasks_wait_expires ON tenure.tasks (wait_expires_at) WHERE wait_expires_at IS NOT NULL;
CREATE INDEX tasks_waiting ON tenure.tasks (queue_id) WHERE pending_parent_count IS NOT NULL AND state = 'waiting';
CREATE INDEX tasks_blocked ON tenure.tasks (queue_id) WHERE concurrency_key IS NOT NULL AND state = 'blocked';
CREATE INDEX tasks_concurrency_key ON tenure.tasks (concurrency_key, state, requirements_id, effective_at, id)
    WHERE concurrency_key IS NOT NULL AND state IN ('ready', 'blocked', 'claimed');

CREATE TABLE tenure.task_dependencies (
    task_id   bigint,
    parent_id bigint,
    PRIMARY KEY (task_id, parent_id)
);
CREATE INDEX task_dependencies_parent ON tenure.task_dependencies (parent_id, task_id);
COMMENT ON TABLE tenure.task_dependencies IS 'Parents of tasks: a task is not claimed before all its parents are completed.';

-- The last row of a queue is its state: a worker waits, or (notified) the waiting workers were notified. No row is updated, and
-- only rows that are not the last one are deleted. So a lookup of the last row descends the index to it and never walks over
-- dead rows, however many of them an old snapshot retains. A row with notified = true has the seq of the row that it answers, and
-- there is no unique index: two transactions that notify at the same moment do not wait for each other.
CREATE TABLE tenure.queue_waiters (
    namespace text COLLATE "C" NOT NULL,
    queue     text COLLATE "C" NOT NULL,
    seq       bigint  NOT NULL,
    notified  boolean NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX queue_waiters_last ON tenure.queue_waiters (namespace, queue, seq, notified);
CREATE SEQUENCE tenure.waiter_sequence OWNED BY tenure.queue_waiters.seq;
COMMENT ON TABLE tenure.queue_waiters IS
'Queues that consumers wait for. NOTIFY is sent only if the last row of the queue is not notified yet.';
COMMENT ON COLUMN tenure.queue_waiters.queue IS 'Name of the queue, which need not exist yet.';
COMMENT ON COLUMN tenure.queue_waiters.seq IS 'Order of the registrations.';
COMMENT ON COLUMN tenure.queue_waiters.notified IS 'false: a consumer waits. true: the consumers were notified.';
COMMENT ON SEQUENCE tenure.waiter_sequence IS 'Source of queue_waiters.seq and topic_waiters.seq.';

CREATE TABLE tenure.workers (
    namespace    text COLLATE "C",
    name         text COLLATE "C",
    description  text        NOT NULL DEFAULT '',
    tags         jsonb       NOT NULL DEFAULT '[]',
    task_kinds   jsonb       NOT NULL DEFAULT '[]',
    queues       jsonb       NOT NULL DEFAULT '[]',
    location     text        NOT NULL DEFAULT '',
    capacity     bigint      NOT NULL DEFAULT 0,
    session      text COLLATE "C",
    approved_by  text,
    last_seen_at timestamptz,
    PRIMARY KEY (namespace, name)
) WITH (fillfactor = 70);
COMMENT ON TABLE tenure.workers IS 'Workers that registered or were approved.';
COMMENT ON COLUMN tenure.workers.task_kinds IS 'JSON list of the task kinds that the worker runs; empty for any.';
COMMENT ON COLUMN tenure.workers.queues IS 'JSON list of the queues that the worker claims from.';
COMMENT ON COLUMN tenure.workers.capacity IS 'Number of tasks that the worker runs at a time.';
COMMENT ON COLUMN tenure.workers.approved_by IS 'Operator that approved the worker; null if it is not approved.';
COMMENT ON COLUMN tenure.workers.last_seen_at IS
'Last registration or claim; null if the worker was approved and has not registered yet.';

CREATE TABLE tenure.broker_endpoint (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    token     bigint NOT NULL,
    session   text COLLATE "C" NOT NULL,
    address   text   NOT NULL,
    secret    bytea  NOT NULL
);
COMMENT ON TABLE tenure.broker_endpoint IS 'Address of the broker, the leader of the election tenure/broker (one row).';
COMMENT ON COLUMN tenure.broker_endpoint.token IS 'Token under which the broker leads.';
COMMENT ON COLUMN tenure.broker_endpoint.secret IS 'Secret with which processes authenticate to the broker.';
