-- Schedules and their ticks.
--
-- Instants are in milliseconds since 1970, as the rules of time count them: what is compared is never rounded. The server's
-- clock says how far to go, never where from. fire.sql says why no tick is lost or fires twice.

-- What people have said. It changes when they say something else.
CREATE TABLE tenure.schedules (
    id         integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace  text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    -- As it was given, to the letter.
    definition json        NOT NULL,
    source     text COLLATE "C",
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    updated_by text        NOT NULL,
    UNIQUE (namespace, name)
);

-- How far each is: what changes with each tick, and all that a firing is compared with. A row of its own, and a short one: a tick
-- copies no definition, and writes to no index of names. Whoever changes anything about a schedule, its ticks included, locks this
-- row first.
CREATE TABLE tenure.schedule_progress (
    schedule      integer PRIMARY KEY,
    strikes       integer NOT NULL DEFAULT 0,
    version       bigint  NOT NULL,
    fired         bigint  NOT NULL DEFAULT 0,
    skipped       bigint  NOT NULL DEFAULT 0,
    overlapped    bigint  NOT NULL DEFAULT 0,
    -- Whether runs that are not over count: see tick_runs.
    counted       boolean NOT NULL,
    -- Null: no tick is left.
    next_at_ms    bigint,
    last_at_ms    bigint,
    -- The newest tick that was forgotten: of those up to it that are not among the ticks, nobody knows whether they fired.
    forgotten_ms  bigint,
    -- When the leader looks at it: when its next tick is due, or a firing that failed is tried again. Null: it is paused, or over.
    due_ms        bigint,
    last_fired_ms bigint,
    paused_at     timestamptz,
    paused_by     text,
    paused_reason text,
    trouble       text
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05,
        autovacuum_vacuum_cost_delay = 0);
-- A look costs what it finds, however many schedules there are.
CREATE INDEX schedule_progress_due ON tenure.schedule_progress (due_ms, schedule) WHERE due_ms IS NOT NULL;

-- The greatest version of any schedule that was deleted. A new one begins above it: what was decided from one that is gone never fits
-- the next of its name.
CREATE TABLE tenure.schedule_floor (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    version bigint  NOT NULL
);
INSERT INTO tenure.schedule_floor (version) VALUES (0);

-- What the calls of a schedule are signed with. Not for people.
CREATE TABLE tenure.schedule_secrets (
    schedule integer PRIMARY KEY,
    secret   text NOT NULL
);

-- What fired, or did nothing because an earlier run was under way: then neither event nor task is there. `by_hand` is true of what
-- somebody wanted at that moment, which is none of the timetable's ticks. Without a token and not by hand: a past tick that somebody
-- wanted after all. Nothing here is ever updated.
CREATE TABLE tenure.ticks (
    schedule   integer NOT NULL,
    by_hand    boolean NOT NULL,
    at_ms      bigint  NOT NULL,
    -- Later than `at_ms` by its jitter: what lateness is counted from.
    due_ms     bigint  NOT NULL,
    decided_ms bigint  NOT NULL,
    token      bigint,
    event      bigint,
    task       bigint,
    by         text    NOT NULL,
    PRIMARY KEY (schedule, at_ms, by_hand)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.1,
        autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
-- For pruning. It grows at its end, and all that one call decides share an entry.
CREATE INDEX ticks_decided ON tenure.ticks (decided_ms);

-- Missed ticks that did not fire, as ranges, each known by its last: a million of them are one row.
CREATE TABLE tenure.tick_skips (
    schedule   integer NOT NULL,
    first_ms   bigint  NOT NULL,
    last_ms    bigint  NOT NULL,
    count      bigint  NOT NULL,
    decided_ms bigint  NOT NULL,
    token      bigint,
    by         text    NOT NULL,
    PRIMARY KEY (schedule, last_ms)
);
CREATE INDEX tick_skips_decided ON tenure.tick_skips (decided_ms);

-- Schedules that were deleted, and whose ticks are not cleared away yet: that is long, and nobody waits for it. No number is another
-- schedule's ever after.
CREATE TABLE tenure.tick_strays (
    schedule integer PRIMARY KEY
);

-- Runs that may not be over, of schedules that mind: those whose tasks are, are cleared away when it fires next.
CREATE TABLE tenure.tick_runs (
    schedule integer,
    task     bigint,
    PRIMARY KEY (schedule, task)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
