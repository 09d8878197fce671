-- A plain job table: one row per task, and an index of the ready tasks.
DROP SCHEMA IF EXISTS tenure_bench CASCADE;
CREATE SCHEMA tenure_bench;
CREATE TABLE tenure_bench.tasks (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    state        text        NOT NULL DEFAULT 'ready',
    payload      jsonb       NOT NULL,
    attempt      integer     NOT NULL DEFAULT 0,
    worker       text,
    effective_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    claimed_at   timestamptz,
    finished_at  timestamptz
);
CREATE INDEX tasks_ready ON tenure_bench.tasks (effective_at, id) WHERE state = 'ready';
INSERT INTO tenure_bench.tasks (payload) SELECT '{"n":1}' FROM generate_series(1, :count);
VACUUM ANALYZE tenure_bench.tasks;
