-- name: roles_create
-- Roles belong to the whole cluster, and another database may create them at the same time.
DO $$
DECLARE
    role_name text;
BEGIN
    FOREACH role_name IN ARRAY ARRAY['tenure_owner', 'tenure_server', 'tenure_runtime', 'tenure_publisher',
                               'tenure_reader'] LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = role_name) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I LOGIN', role_name);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL;
            END;
        END IF;
        EXECUTE format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), role_name);
    END LOOP;
END
$$;
CREATE SCHEMA IF NOT EXISTS tenure;
ALTER SCHEMA tenure OWNER TO tenure_owner;

-- name: roles_grant
-- Grants each role the rights that it needs on the existing objects, and revokes all others. Does nothing if tenure_owner does
-- not own the schema: the roles may have been created for another database.
DO $$
DECLARE
    item record;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_roles r ON r.oid = n.nspowner
                   WHERE n.nspname = 'tenure' AND r.rolname = 'tenure_owner') THEN
        RETURN;
    END IF;
    -- Objects that another role created, such as a superuser that migrated. Sequences of columns go with their tables.
    FOR item IN
        SELECT c.oid::regclass::text AS name, CASE c.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END AS kind
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_roles r ON r.oid = c.relowner
        WHERE c.relnamespace = 'tenure'::regnamespace AND c.relkind IN ('r', 'p', 'v') AND r.rolname <> 'tenure_owner'
        UNION ALL
        SELECT p.oid::regprocedure::text, 'FUNCTION'
        FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_roles r ON r.oid = p.proowner
        WHERE p.pronamespace = 'tenure'::regnamespace AND r.rolname <> 'tenure_owner'
    LOOP
        EXECUTE format('ALTER %s %s OWNER TO tenure_owner', item.kind, item.name);
    END LOOP;

    GRANT USAGE ON SCHEMA tenure TO tenure_server, tenure_runtime, tenure_publisher, tenure_reader;
    GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA tenure TO tenure_server, tenure_runtime, tenure_reader;
    -- The publisher may only call the functions that validate and run with the owner's rights.
    REVOKE ALL ON ALL FUNCTIONS IN SCHEMA tenure FROM tenure_publisher;
    REVOKE ALL ON ALL SEQUENCES IN SCHEMA tenure FROM tenure_server, tenure_runtime, tenure_publisher, tenure_reader;
    -- Functions that run with the owner's rights are granted to the roles that need them, and never to the reader: not even
    -- renew_epoch, which writes, and locks a row that every heartbeat needs. tenure.current_epoch returns the stored epoch to
    -- the reader.
    FOR item IN
        SELECT p.oid::regprocedure::text AS name, coalesce(needed.roles, 'tenure_server, tenure_runtime') AS roles
        FROM pg_catalog.pg_proc p
        LEFT JOIN (VALUES
            ('publish', 'tenure_server, tenure_runtime, tenure_publisher'),
            ('publish_bytes', 'tenure_server, tenure_runtime, tenure_publisher'),
            ('publish_many', 'tenure_server, tenure_runtime, tenure_publisher'),
            ('publish_in_transaction', 'tenure_server, tenure_runtime, tenure_publisher'),
            ('append_audit', 'tenure_server, tenure_runtime'),
            ('prune_audit', 'tenure_server'),
            ('prune_credentials', 'tenure_server'),
            ('delete_probe', 'tenure_server, tenure_runtime')
        ) AS needed (name, roles) ON needed.name = p.proname
        WHERE p.pronamespace = 'tenure'::regnamespace AND p.prosecdef
    LOOP
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC, tenure_server, tenure_runtime, tenure_publisher, '
                       'tenure_reader', item.name);
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', item.name, item.roles);
    END LOOP;
    REVOKE ALL ON ALL TABLES IN SCHEMA tenure FROM tenure_server, tenure_runtime, tenure_publisher, tenure_reader;
    FOR item IN
        SELECT * FROM (VALUES
            ('migrations', 'SELECT', 'SELECT'),
            ('epoch', 'SELECT', 'SELECT'),
            ('verified_epoch', 'SELECT', 'SELECT'),
            ('stored_epoch', 'SELECT', 'SELECT'),
            ('sessions', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            -- Elections, leases, adopted leases and fences are never deleted: a deleted token could be granted again.
            ('elections', 'SELECT, INSERT, UPDATE', 'SELECT'),
            ('leases', 'SELECT, INSERT, UPDATE', 'SELECT'),
            ('adopted_leases', 'SELECT, INSERT, UPDATE', 'SELECT'),
            ('fences', 'SELECT, INSERT, UPDATE', 'SELECT'),
            ('candidates', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('leader_requests', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('terms', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('candidate_status', 'SELECT', 'SELECT'),
            -- Only the server manages credentials, see below. The reader cannot read the verifiers.
            ('credentials', NULL, 'SELECT (id, seq, name, kind, grants, created_at, created_by, expires_at, revoked_at)'),
            -- Functions with the owner's rights append and prune entries.
            ('audit_log', 'SELECT', 'SELECT'),
            -- Queues and pools are never deleted, as elections: their tokens and claim sequences continue.
            ('queues', 'SELECT, INSERT, UPDATE', 'SELECT'),
            ('queue_counters', 'SELECT, INSERT, UPDATE', 'SELECT'),
            -- UPDATE is needed for row and table locks.
            ('claim_lock', 'SELECT, UPDATE', 'SELECT'),
            ('concurrency_locks', 'SELECT, UPDATE', 'SELECT'),
            ('namespaces', 'SELECT, INSERT, UPDATE', 'SELECT'),
            ('pools', 'SELECT, INSERT, UPDATE', 'SELECT'),
            ('task_requirements', 'SELECT, INSERT, UPDATE (retired_xid), DELETE', 'SELECT'),
            ('requirements_prune_state', 'SELECT, UPDATE', 'SELECT'),
            ('tasks', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('task_dependencies', 'SELECT, INSERT, DELETE', 'SELECT'),
            ('queue_waiters', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('workers', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('resources', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('pool_requests', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            -- The reader cannot read the secret of the broker.
            ('broker_endpoint', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT (singleton, token, session, address)'),
            ('topics', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            -- Published events are never changed; retention deletes them.
            ('events', 'SELECT, INSERT, DELETE', 'SELECT'),
            ('commit_batches', 'SELECT, INSERT, DELETE', 'SELECT'),
            ('partition_start_offsets', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('topic_partitions', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('topic_waiters', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('consumer_groups', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            -- The reader cannot read the secrets of webhooks.
            ('group_webhooks', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT (group_id, url, timeout_ms)'),
            ('group_members', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('partition_leases', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('committed_offsets', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('processed_events', 'SELECT, INSERT, DELETE', 'SELECT'),
            ('parked_events', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('schedules', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('schedule_state', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('schedule_versions', 'SELECT, UPDATE', 'SELECT'),
            -- The reader cannot read the secrets of webhooks.
            ('schedule_webhook_secrets', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT (schedule_id)'),
            -- Ticks are never changed; retention deletes them.
            ('ticks', 'SELECT, INSERT, DELETE', 'SELECT'),
            ('skipped_ticks', 'SELECT, INSERT, DELETE', 'SELECT'),
            ('tracked_runs', 'SELECT, INSERT, DELETE', 'SELECT'),
            ('orphaned_ticks', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('tick_history', 'SELECT', 'SELECT')
        ) AS rights (name, runtime, reader)
        WHERE to_regclass('tenure.' || name) IS NOT NULL
    LOOP
        IF item.runtime IS NOT NULL THEN
            EXECUTE format('GRANT %s ON tenure.%I TO tenure_runtime, tenure_server', item.runtime, item.name);
        END IF;
        EXECUTE format('GRANT %s ON tenure.%I TO tenure_reader', item.reader, item.name);
    END LOOP;
    IF to_regclass('tenure.credentials') IS NOT NULL THEN
        -- The server creates and ends credentials. It cannot add grants to one, and deletes ended ones with a function.
        GRANT SELECT, INSERT, UPDATE (expires_at, revoked_at) ON tenure.credentials TO tenure_server;
    END IF;
    IF to_regclass('tenure.tasks_id_seq') IS NOT NULL THEN
        GRANT USAGE ON SEQUENCE tenure.tasks_id_seq, tenure.waiter_sequence TO tenure_runtime, tenure_server;
    END IF;
    IF to_regclass('tenure.event_sequence') IS NOT NULL THEN
        GRANT USAGE ON SEQUENCE tenure.event_sequence TO tenure_runtime, tenure_server;
        FOR n IN 0..15 LOOP
            EXECUTE format('GRANT SELECT, UPDATE ON SEQUENCE tenure.topic_wait_times_%s TO tenure_runtime, tenure_server', n);
        END LOOP;
    END IF;
END
$$;
