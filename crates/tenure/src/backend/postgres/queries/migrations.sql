-- name: schema_version
SELECT max(version) FROM tenure.migrations;

-- name: schema_create
-- Not CREATE SCHEMA IF NOT EXISTS, which asks for the right to make schemas even where there is nothing to make.
DO $$
BEGIN
    IF to_regnamespace('tenure') IS NULL THEN
        CREATE SCHEMA tenure;
    END IF;
END
$$;
CREATE TABLE IF NOT EXISTS tenure.migrations (
    version    bigint PRIMARY KEY,
    name       text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);

-- name: schema_record
INSERT INTO tenure.migrations (version, name) VALUES ($1, $2);

-- name: schema_lock
-- Ten replicas that start at once migrate one after the other; nine of them then find nothing to do.
SELECT pg_advisory_xact_lock(hashtextextended('tenure.migrations', 0));

-- name: server_facts
SELECT pg_is_in_recovery() AS in_recovery,
       current_setting('transaction_read_only')::boolean AS read_only,
       current_setting('synchronous_standby_names') AS standbys;

-- name: epoch_show
SELECT e.epoch, tenure.ms(e.changed_at) AS changed_at_ms, e.reason,
       format('system %s, timeline %s, database %s, table %s', e.system_identifier, e.timeline, e.database, e.relation) AS identity
FROM (SELECT tenure.current_epoch() AS now) c, tenure.epoch e WHERE c.now IS NOT NULL;

-- name: epoch_bump
-- $1 the epoch that is wanted, $2 why. For the owner of the tables alone.
SELECT tenure.bump_epoch($1, $2);

-- name: server_clock
-- Only its rate is of interest, and only to people.
SELECT extract(epoch FROM clock_timestamp())::float8 AS seconds;

-- name: server_examine
SELECT 'PostgreSQL ' || current_setting('server_version') AS version,
       tenure.current_epoch()::text AS epoch,
       tenure.timeline()::text AS timeline,
       current_setting('synchronous_standby_names') AS standbys,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('fsync') AS fsync;
