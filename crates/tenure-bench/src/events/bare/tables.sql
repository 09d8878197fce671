-- An outbox as one writes it by hand: a row for each event, read by slot and position. Nothing keeps a position from becoming
-- visible after a greater one, which is what Tenure's costs are for.
DROP SCHEMA IF EXISTS tenure_bench CASCADE;
CREATE SCHEMA tenure_bench;
CREATE TABLE tenure_bench.events (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic   text        NOT NULL,
    slot    integer     NOT NULL,
    key     text,
    kind    text        NOT NULL,
    headers json,
    payload json        NOT NULL,
    at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE tenure_bench.log (
    slot     integer     NOT NULL,
    position bigint      NOT NULL,
    id       bigint      NOT NULL,
    key      text,
    kind     text        NOT NULL,
    headers  json,
    payload  json        NOT NULL,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (slot, position)
)
