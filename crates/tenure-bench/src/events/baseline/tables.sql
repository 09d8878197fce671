-- A plain outbox: one row per event, read by partition and offset. Nothing prevents an offset from becoming visible after
-- a greater one. Preventing that is the cost of Tenure.
DROP SCHEMA IF EXISTS tenure_bench CASCADE;
CREATE SCHEMA tenure_bench;
CREATE TABLE tenure_bench.events (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic        text        NOT NULL,
    partition    integer     NOT NULL,
    key          text,
    type         text        NOT NULL,
    headers      json,
    payload      json        NOT NULL,
    published_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE tenure_bench.log (
    partition    integer     NOT NULL,
    "offset"     bigint      NOT NULL,
    id           bigint      NOT NULL,
    key          text,
    type         text        NOT NULL,
    headers      json,
    payload      json        NOT NULL,
    published_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (partition, "offset")
)
