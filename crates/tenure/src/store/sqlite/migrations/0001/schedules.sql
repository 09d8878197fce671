-- Schedules and their ticks.
--
-- The instants of ticks (tick_at_ms, next_tick_at_ms, last_tick_at_ms, first_tick_at_ms) come from the schedule and identify the
-- tick. All other instants come from the wall clock of the writer.

-- Schedules with their state. AUTOINCREMENT: a new schedule must not inherit the ticks of a deleted one that are not pruned yet.
-- The long columns come last, so that counting does not read them.
CREATE TABLE tenure_schedules (
    id                   INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace            TEXT    NOT NULL,
    name                 TEXT    NOT NULL,
    -- Grows with every change of the definition, the secret or the source.
    version              INTEGER NOT NULL,
    -- Null if the schedule has no further tick.
    next_tick_at_ms      INTEGER,
    last_tick_at_ms      INTEGER,
    -- The newest pruned tick. Whether a tick up to it fired is unknown, unless it is in tenure_ticks.
    pruned_until_at_ms   INTEGER,
    -- When the scheduler must act: the next tick with its jitter, or the retry of a failed one. Null if the schedule is paused or
    -- has no further tick.
    due_at_ms            INTEGER,
    consecutive_failures INTEGER NOT NULL DEFAULT 0,
    fired_count          INTEGER NOT NULL DEFAULT 0,
    skipped_count        INTEGER NOT NULL DEFAULT 0,
    overlapped_count     INTEGER NOT NULL DEFAULT 0,
    last_fired_at_ms     INTEGER,
    paused_at_ms         INTEGER,
    paused_by            TEXT,
    paused_reason        TEXT,
    created_at_ms        INTEGER NOT NULL,
    updated_at_ms        INTEGER NOT NULL,
    updated_by           TEXT    NOT NULL,
    -- Why the last firing failed; null if it succeeded.
    last_error           TEXT,
    -- The file or tool that manages the schedule.
    source               TEXT,
    -- JSON.
    definition           TEXT    NOT NULL,
    UNIQUE (namespace, name)
) STRICT;
-- Finds due schedules at a cost that does not depend on the number of schedules.
CREATE INDEX tenure_schedules_due ON tenure_schedules (due_at_ms) WHERE due_at_ms IS NOT NULL;

-- The keys that sign the webhook calls of schedules.
CREATE TABLE tenure_schedule_webhook_secrets (
    schedule_id INTEGER PRIMARY KEY,
    secret      TEXT    NOT NULL
) STRICT;

-- The highest version of any deleted schedule. One row. A new schedule starts above it, so a decision that was based on a deleted
-- schedule never matches a new one of the same name.
CREATE TABLE tenure_schedule_versions (
    singleton           INTEGER PRIMARY KEY CHECK (singleton = 1),
    max_deleted_version INTEGER NOT NULL
) STRICT;
INSERT INTO tenure_schedule_versions (singleton, max_deleted_version) VALUES (1, 0);

-- Ticks that fired or were overlapped. The primary key ensures that a tick fires at most once.
CREATE TABLE tenure_ticks (
    schedule_id   INTEGER NOT NULL,
    tick_at_ms    INTEGER NOT NULL,
    -- 1: an extra tick (cause 'trigger') that the schedule itself does not contain, even if one of the same instant exists.
    manual        INTEGER NOT NULL CHECK (manual IN (0, 1)),
    state         TEXT    NOT NULL CHECK (state IN ('fired', 'overlapped')),
    cause         TEXT    NOT NULL CHECK (cause IN ('schedule', 'backfill', 'trigger')),
    due_at_ms     INTEGER NOT NULL,
    decided_at_ms INTEGER NOT NULL,
    -- The token of the scheduler that decided; null for a tick that an operator fired.
    token         INTEGER,
    decided_by    TEXT    NOT NULL,
    event_id      INTEGER,
    task_id       INTEGER,
    -- 1: the run counts as unfinished until its task finishes. The scheduler resets it then, so that few rows are counted.
    run_tracked   INTEGER NOT NULL CHECK (run_tracked IN (0, 1)),
    PRIMARY KEY (schedule_id, tick_at_ms, manual)
) STRICT, WITHOUT ROWID;
CREATE INDEX tenure_ticks_tracked ON tenure_ticks (schedule_id, task_id) WHERE run_tracked = 1;
CREATE INDEX tenure_ticks_decided ON tenure_ticks (decided_at_ms);

-- Ranges of skipped ticks. One row covers any number of ticks.
CREATE TABLE tenure_skipped_ticks (
    schedule_id      INTEGER NOT NULL,
    last_tick_at_ms  INTEGER NOT NULL,
    first_tick_at_ms INTEGER NOT NULL,
    tick_count       INTEGER NOT NULL,
    decided_at_ms    INTEGER NOT NULL,
    token            INTEGER,
    decided_by       TEXT    NOT NULL,
    PRIMARY KEY (schedule_id, last_tick_at_ms)
) STRICT, WITHOUT ROWID;
CREATE INDEX tenure_skipped_ticks_decided ON tenure_skipped_ticks (decided_at_ms);

-- Deleted schedules whose ticks are not deleted yet. Maintenance deletes them in small steps.
CREATE TABLE tenure_orphaned_ticks (
    schedule_id INTEGER PRIMARY KEY
) STRICT;
