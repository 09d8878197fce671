-- What is left of a firing if nothing is decided, fenced, swapped or rung for: a row for each tick and one for each event.
DROP SCHEMA IF EXISTS tenure_bench CASCADE;
CREATE SCHEMA tenure_bench;
CREATE TABLE tenure_bench.ticks (
    schedule   bigint  NOT NULL,
    at_ms      bigint  NOT NULL,
    by_hand    boolean NOT NULL,
    state      text    NOT NULL,
    cause      text    NOT NULL,
    due_ms     bigint  NOT NULL,
    decided_ms bigint  NOT NULL,
    token      bigint,
    by         text    NOT NULL,
    event      bigint,
    PRIMARY KEY (schedule, at_ms, by_hand)
);
CREATE TABLE tenure_bench.events (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic   text        NOT NULL,
    slot    integer     NOT NULL,
    key     text,
    kind    text        NOT NULL,
    headers json,
    payload json        NOT NULL,
    token   bigint,
    at      timestamptz NOT NULL DEFAULT clock_timestamp()
)
