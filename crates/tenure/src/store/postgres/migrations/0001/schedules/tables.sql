-- Schedules and their ticks.
--
-- Instants are in milliseconds since 1970, as the library computes them: no comparison rounds. The server's clock decides up to
-- which tick to fire, never from which one. fire.sql explains why no tick is lost or fires twice.

CREATE TABLE tenure.schedules (
    id         integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace  text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    definition json        NOT NULL,
    source     text COLLATE "C",
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    updated_by text        NOT NULL,
    UNIQUE (namespace, name)
);
COMMENT ON TABLE tenure.schedules IS 'Schedules as users defined them.';
COMMENT ON COLUMN tenure.schedules.definition IS 'Definition in JSON, stored verbatim.';
COMMENT ON COLUMN tenure.schedules.source IS 'File or program that manages the schedule; null if users manage it directly.';

-- Separate from tenure.schedules and narrow: a tick copies no definition and writes to no index of names. A transaction that changes
-- anything about a schedule, its ticks included, locks this row first.
CREATE TABLE tenure.schedule_state (
    schedule_id          integer PRIMARY KEY,
    consecutive_failures integer NOT NULL DEFAULT 0,
    version              bigint  NOT NULL,
    fired_count          bigint  NOT NULL DEFAULT 0,
    skipped_count        bigint  NOT NULL DEFAULT 0,
    overlapped_count     bigint  NOT NULL DEFAULT 0,
    tracks_runs          boolean NOT NULL,
    next_tick_at_ms      bigint,
    last_tick_at_ms      bigint,
    pruned_until_at_ms   bigint,
    due_at_ms            bigint,
    last_fired_at_ms     bigint,
    paused_at            timestamptz,
    paused_by            text,
    paused_reason        text,
    last_error           text
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05,
        autovacuum_vacuum_cost_delay = 0);
-- The cost of a look-up depends on the number of due schedules, not on the number of schedules.
CREATE INDEX schedule_state_due ON tenure.schedule_state (due_at_ms, schedule_id) WHERE due_at_ms IS NOT NULL;
COMMENT ON TABLE tenure.schedule_state IS
'State of each schedule: what changes with each tick, and what a firing is compared with.';
COMMENT ON COLUMN tenure.schedule_state.consecutive_failures IS 'Failed attempts to fire since the last success.';
COMMENT ON COLUMN tenure.schedule_state.version IS 'Version of the definition; each change increases it.';
COMMENT ON COLUMN tenure.schedule_state.tracks_runs IS
'Whether unfinished runs matter (see tracked_runs): the overlap policy is not allow.';
COMMENT ON COLUMN tenure.schedule_state.next_tick_at_ms IS 'The next tick; null if there is none.';
COMMENT ON COLUMN tenure.schedule_state.last_tick_at_ms IS 'The last tick that was decided.';
COMMENT ON COLUMN tenure.schedule_state.pruned_until_at_ms IS
'Newest pruned tick. Whether earlier ticks that are not in the table ticks fired is unknown.';
COMMENT ON COLUMN tenure.schedule_state.due_at_ms IS
'When the scheduler reads the schedule: its next tick is due, or a failed firing is retried. Null: it is paused or has no '
'ticks left.';
COMMENT ON COLUMN tenure.schedule_state.paused_at IS 'Time of the pause; null if the schedule is not paused.';
COMMENT ON COLUMN tenure.schedule_state.last_error IS 'Why the last firing failed; null after a success.';

CREATE TABLE tenure.schedule_versions (
    singleton           boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    max_deleted_version bigint  NOT NULL
);
INSERT INTO tenure.schedule_versions (max_deleted_version) VALUES (0);
COMMENT ON TABLE tenure.schedule_versions IS
'Greatest version of any deleted schedule (one row). A new schedule starts above it, so that a decision about a deleted '
'schedule never applies to a new one of the same name.';

CREATE TABLE tenure.schedule_webhook_secrets (
    schedule_id integer PRIMARY KEY,
    secret      text NOT NULL
);
COMMENT ON TABLE tenure.schedule_webhook_secrets IS 'Secrets that sign the webhooks of schedules.';

CREATE TABLE tenure.ticks (
    schedule_id   integer NOT NULL,
    manual        boolean NOT NULL,
    tick_at_ms    bigint  NOT NULL,
    due_at_ms     bigint  NOT NULL,
    decided_at_ms bigint  NOT NULL,
    token         bigint,
    event_id      bigint,
    task_id       bigint,
    decided_by    text    NOT NULL,
    PRIMARY KEY (schedule_id, tick_at_ms, manual)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.1,
        autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
-- For pruning. It grows at its end, and all ticks that one call decides share an entry.
CREATE INDEX ticks_decided ON tenure.ticks (decided_at_ms);
COMMENT ON TABLE tenure.ticks IS
'Ticks that fired or overlapped. An overlapped tick has neither an event nor a task. Rows are never updated.';
COMMENT ON COLUMN tenure.ticks.manual IS 'Whether an operator triggered the tick; it is then not a tick of the expression.';
COMMENT ON COLUMN tenure.ticks.due_at_ms IS 'tick_at_ms plus jitter. Lateness counts from here.';
COMMENT ON COLUMN tenure.ticks.decided_at_ms IS 'When the tick fired or overlapped.';
COMMENT ON COLUMN tenure.ticks.token IS 'Token of the scheduler; null for a trigger or a backfill.';
COMMENT ON COLUMN tenure.ticks.decided_by IS 'Name of the scheduler or operator.';

CREATE TABLE tenure.skipped_ticks (
    schedule_id      integer NOT NULL,
    first_tick_at_ms bigint  NOT NULL,
    last_tick_at_ms  bigint  NOT NULL,
    tick_count       bigint  NOT NULL,
    decided_at_ms    bigint  NOT NULL,
    token            bigint,
    decided_by       text    NOT NULL,
    PRIMARY KEY (schedule_id, last_tick_at_ms)
);
CREATE INDEX skipped_ticks_decided ON tenure.skipped_ticks (decided_at_ms);
COMMENT ON TABLE tenure.skipped_ticks IS 'Ranges of missed ticks that did not fire: a million of them are one row.';

CREATE TABLE tenure.orphaned_ticks (
    schedule_id integer PRIMARY KEY
);
COMMENT ON TABLE tenure.orphaned_ticks IS
'Ids of deleted schedules whose ticks are not deleted yet. An id is never used for another schedule.';

CREATE TABLE tenure.tracked_runs (
    schedule_id integer,
    task_id     bigint,
    PRIMARY KEY (schedule_id, task_id)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE tenure.tracked_runs IS
'Tasks of ticks that may be unfinished, of schedules with tracks_runs. The next firing deletes those that are finished.';
