-- name: schema_version
SELECT max(version) AS version, max(oldest_compatible) AS oldest_compatible FROM tenure.migrations;

-- name: schema_objects
SELECT CASE c.relkind WHEN 'v' THEN 'view ' WHEN 'S' THEN 'sequence ' WHEN 'i' THEN 'index ' WHEN 'I' THEN 'index '
       ELSE 'table ' END || c.relname AS object
FROM pg_catalog.pg_class c
WHERE c.relnamespace = to_regnamespace('tenure') AND c.relkind IN ('r', 'p', 'v', 'S', 'i', 'I')
UNION
SELECT 'function ' || p.proname FROM pg_catalog.pg_proc p WHERE p.pronamespace = to_regnamespace('tenure')
UNION
SELECT 'trigger ' || t.tgname
FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid
WHERE c.relnamespace = to_regnamespace('tenure');

-- name: schema_blockers
-- The lock that the server process $1 waits for, and the processes that hold it. A prepared transaction has pid 0.
SELECT CASE w.locktype WHEN 'relation' THEN w.relation::regclass::text
                       WHEN 'advisory' THEN 'the migration lock'
                       ELSE 'a lock of type ' || w.locktype END AS lock,
       b.pid, a.usename::text AS usename, a.application_name,
       round(extract(epoch FROM clock_timestamp() - a.xact_start) * 1000)::bigint AS open_ms
FROM pg_catalog.pg_locks w
CROSS JOIN LATERAL unnest(pg_catalog.pg_blocking_pids(w.pid)) AS b (pid)
LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = b.pid
WHERE w.pid = $1 AND NOT w.granted;

-- name: schema_create
-- Not CREATE SCHEMA IF NOT EXISTS, which requires the right to create schemas even if the schema exists.
DO $$
BEGIN
    IF to_regnamespace('tenure') IS NULL THEN
        CREATE SCHEMA tenure;
    END IF;
END
$$;
CREATE TABLE IF NOT EXISTS tenure.migrations (
    version           bigint PRIMARY KEY,
    name              text        NOT NULL,
    oldest_compatible bigint      NOT NULL,
    applied_at        timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE tenure.migrations IS 'Migrations that were applied.';
COMMENT ON COLUMN tenure.migrations.oldest_compatible IS
'Oldest program that can run on this schema, by the schema version that it was built for.';

-- name: schema_lock
-- Replicas that start at the same time migrate one after the other; all but the first find nothing to do.
SELECT pg_advisory_xact_lock(hashtextextended('tenure.migrations', 0));

-- name: server_status
SELECT pg_is_in_recovery() AS in_recovery,
       current_setting('transaction_read_only')::boolean AS read_only,
       current_setting('synchronous_standby_names') AS standbys;

-- name: server_clock
-- Only the rate of the clock matters, for a report to the operator.
SELECT extract(epoch FROM clock_timestamp())::float8 AS seconds;

-- name: server_settings
SELECT 'PostgreSQL ' || current_setting('server_version') AS version,
       tenure.current_epoch()::text AS epoch,
       tenure.timeline()::text AS timeline,
       current_setting('synchronous_standby_names') AS standbys,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('fsync') AS fsync;

-- name: server_connections
-- The limits on connections, -1 for none, and the number of processes that use this database.
SELECT current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint
           - coalesce(current_setting('reserved_connections', true)::bigint, 0) AS server_limit,
       (SELECT d.datconnlimit::bigint FROM pg_catalog.pg_database d WHERE d.datname = current_database()) AS database_limit,
       (SELECT r.rolconnlimit::bigint FROM pg_catalog.pg_roles r WHERE r.rolname = current_user) AS role_limit,
       (SELECT count(*) FROM tenure.sessions s WHERE s.state = 'live' AND s.owner IS NULL) AS processes;

-- name: server_old_transactions
-- What prevents the removal of dead rows: transactions of this database that have been open for a minute or more, prepared
-- transactions, and replicas and replication slots that retain old rows. The oldest first.
SELECT holder, open_ms
FROM (SELECT 'process ' || a.pid || ' (' || concat_ws(', ', nullif(a.application_name, ''), 'user ' || a.usename, a.state)
                 || ')' AS holder,
             round(extract(epoch FROM clock_timestamp() - a.xact_start) * 1000)::bigint AS open_ms
      FROM pg_catalog.pg_stat_activity a
      WHERE a.datname = current_database() AND a.backend_type = 'client backend'
        AND a.xact_start < clock_timestamp() - interval '1 minute'
      UNION ALL
      SELECT 'prepared transaction ' || p.gid,
             round(extract(epoch FROM clock_timestamp() - p.prepared) * 1000)::bigint
      FROM pg_catalog.pg_prepared_xacts p
      WHERE p.database = current_database() AND p.prepared < clock_timestamp() - interval '1 minute'
      UNION ALL
      SELECT 'process ' || a.pid || ' (' || a.backend_type || ', backend_xmin is ' || age(a.backend_xmin)
                 || ' transactions old)', NULL
      FROM pg_catalog.pg_stat_activity a
      WHERE a.backend_type = 'walsender' AND age(a.backend_xmin) > 100000
      UNION ALL
      SELECT 'replication slot ' || s.slot_name || ' (' || age(s.xmin) || ' transactions old)', NULL
      FROM pg_catalog.pg_replication_slots s
      WHERE age(s.xmin) > 100000) held
ORDER BY open_ms DESC NULLS LAST LIMIT 5;

-- name: server_hidden_processes
-- Number of processes of this database that this role may not inspect.
SELECT count(*) AS hidden FROM pg_catalog.pg_stat_activity a
WHERE a.datname = current_database() AND a.query = '<insufficient privilege>';
