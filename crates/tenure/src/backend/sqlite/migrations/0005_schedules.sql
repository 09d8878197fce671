-- Schedules, and what became of their ticks.
--
-- As before: columns that end in _at are milliseconds since 1970 by the writer's wall clock. Those of a tick (next_at, last_at,
-- tick_at, first_at) are no clock's but the timetable's: they say which tick, whenever it is looked at.

-- AUTOINCREMENT: the ticks of a schedule that was deleted, and is not cleared away yet, are never another's.
-- Both next_at and due_at are null when no tick is left; due_at alone when it is paused. What is long comes last: who counts does
-- not read it.
CREATE TABLE tenure_schedules (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace     TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    -- Grows with every change of the definition, the secret or the source.
    version       INTEGER NOT NULL,
    next_at       INTEGER,
    last_at       INTEGER,
    -- The newest tick that was forgotten: of those up to it that are not among the ticks, nobody knows whether they fired.
    forgotten_at  INTEGER,
    -- When its leader must look: the next tick and its jitter, or when a firing that failed is tried again.
    due_at        INTEGER,
    -- How often in a row it could not fire.
    strikes       INTEGER NOT NULL DEFAULT 0,
    fired         INTEGER NOT NULL DEFAULT 0,
    skipped       INTEGER NOT NULL DEFAULT 0,
    overlapped    INTEGER NOT NULL DEFAULT 0,
    last_fired_at INTEGER,
    paused_at     INTEGER,
    paused_by     TEXT,
    paused_reason TEXT,
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    updated_by    TEXT    NOT NULL,
    trouble       TEXT,
    source        TEXT,
    secret        TEXT,
    definition    TEXT    NOT NULL,
    UNIQUE (namespace, name)
) STRICT;
-- A look costs what it finds, however many schedules there are.
CREATE INDEX tenure_schedules_due ON tenure_schedules (due_at) WHERE due_at IS NOT NULL;

-- The greatest version of any schedule that was deleted. A new one begins above it: what was decided from one that is gone never fits
-- the next of its name.
CREATE TABLE tenure_schedule_floor (
    one     INTEGER PRIMARY KEY CHECK (one = 1),
    version INTEGER NOT NULL
) STRICT;
INSERT INTO tenure_schedule_floor (one, version) VALUES (1, 0);

-- What was decided about a tick, once: this is the key by which none fires twice. One that somebody wanted now (cause 'trigger') is
-- none of the timetable's, and by_hand = 1 tells it from one of the same instant.
CREATE TABLE tenure_ticks (
    schedule   INTEGER NOT NULL,
    tick_at    INTEGER NOT NULL,
    by_hand    INTEGER NOT NULL CHECK (by_hand IN (0, 1)),
    state      TEXT    NOT NULL CHECK (state IN ('fired', 'overlapped')),
    cause      TEXT    NOT NULL CHECK (cause IN ('clock', 'backfill', 'trigger')),
    due_at     INTEGER NOT NULL,
    decided_at INTEGER NOT NULL,
    -- Of the leader that decided; null: by hand.
    token      INTEGER,
    decided_by TEXT    NOT NULL,
    event      INTEGER,
    task       INTEGER,
    -- Whether it counts as under way for as long as its task is not finished. Taken back once that is seen to be, so that what is
    -- counted stays short.
    tracked    INTEGER NOT NULL CHECK (tracked IN (0, 1)),
    PRIMARY KEY (schedule, tick_at, by_hand)
) STRICT, WITHOUT ROWID;
CREATE INDEX tenure_ticks_tracked ON tenure_ticks (schedule, task) WHERE tracked = 1;
CREATE INDEX tenure_ticks_decided ON tenure_ticks (decided_at);

-- Ticks that were missed and did not fire, as ranges: millions of them are one row.
CREATE TABLE tenure_tick_skips (
    schedule   INTEGER NOT NULL,
    last_at    INTEGER NOT NULL,
    first_at   INTEGER NOT NULL,
    ticks      INTEGER NOT NULL,
    decided_at INTEGER NOT NULL,
    token      INTEGER,
    decided_by TEXT    NOT NULL,
    PRIMARY KEY (schedule, last_at)
) STRICT, WITHOUT ROWID;
CREATE INDEX tenure_tick_skips_decided ON tenure_tick_skips (decided_at);

-- Schedules that were deleted, and whose ticks are not cleared away yet: that is long, and nobody waits for it.
CREATE TABLE tenure_tick_strays (
    schedule INTEGER PRIMARY KEY
) STRICT;
