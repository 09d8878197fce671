-- The rows of a firing without decisions, fencing, compare-and-swap and notifications: one row per tick and one per event.
DROP SCHEMA IF EXISTS tenure_bench CASCADE;
CREATE SCHEMA tenure_bench;
CREATE TABLE tenure_bench.ticks (
    schedule_id   bigint  NOT NULL,
    tick_at_ms    bigint  NOT NULL,
    manual        boolean NOT NULL,
    outcome       text    NOT NULL,
    cause         text    NOT NULL,
    due_at_ms     bigint  NOT NULL,
    decided_at_ms bigint  NOT NULL,
    token         bigint,
    decided_by    text    NOT NULL,
    event_id      bigint,
    PRIMARY KEY (schedule_id, tick_at_ms, manual)
);
CREATE TABLE tenure_bench.events (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic        text        NOT NULL,
    partition    integer     NOT NULL,
    key          text,
    type         text        NOT NULL,
    headers      json,
    payload      json        NOT NULL,
    token        bigint,
    published_at timestamptz NOT NULL DEFAULT clock_timestamp()
)
