-- name: roles_make
-- The roles are of the whole cluster, and somebody may make them in another database at this moment.
DO $$
DECLARE
    who text;
BEGIN
    FOREACH who IN ARRAY ARRAY['tenure_owner', 'tenure_server', 'tenure_runtime', 'tenure_publisher',
                               'tenure_reader'] LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = who) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I LOGIN', who);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL;
            END;
        END IF;
        EXECUTE format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), who);
    END LOOP;
END
$$;
CREATE SCHEMA IF NOT EXISTS tenure;
ALTER SCHEMA tenure OWNER TO tenure_owner;

-- name: roles_grant
-- Gives each role what it needs of what there is, and takes away whatever else it had. It does nothing where the schema
-- is not tenure_owner's: the roles may have been made for another database.
DO $$
DECLARE
    thing record;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_roles r ON r.oid = n.nspowner
                   WHERE n.nspname = 'tenure' AND r.rolname = 'tenure_owner') THEN
        RETURN;
    END IF;
    -- What somebody else made, such as a superuser who migrated. The sequences of columns go with their tables.
    FOR thing IN
        SELECT c.oid::regclass::text AS name, CASE c.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END AS kind
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_roles r ON r.oid = c.relowner
        WHERE c.relnamespace = 'tenure'::regnamespace AND c.relkind IN ('r', 'p', 'v') AND r.rolname <> 'tenure_owner'
        UNION ALL
        SELECT p.oid::regprocedure::text, 'FUNCTION'
        FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_roles r ON r.oid = p.proowner
        WHERE p.pronamespace = 'tenure'::regnamespace AND r.rolname <> 'tenure_owner'
    LOOP
        EXECUTE format('ALTER %s %s OWNER TO tenure_owner', thing.kind, thing.name);
    END LOOP;

    GRANT USAGE ON SCHEMA tenure TO tenure_server, tenure_runtime, tenure_publisher, tenure_reader;
    GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA tenure TO tenure_server, tenure_runtime, tenure_reader;
    -- The publisher calls the checked functions of the tables' owner, and has no other right.
    REVOKE ALL ON ALL FUNCTIONS IN SCHEMA tenure FROM tenure_publisher;
    REVOKE ALL ON ALL SEQUENCES IN SCHEMA tenure FROM tenure_server, tenure_runtime, tenure_publisher, tenure_reader;
    -- Functions that run with the owner's rights are for the roles that need them, and never for the reader: not even renew_epoch, which
    -- writes and keeps a row locked that everybody needs. tenure.current_epoch tells the reader the epoch that is stored.
    FOR thing IN
        SELECT p.oid::regprocedure::text AS name, coalesce(needed.roles, 'tenure_server, tenure_runtime') AS roles
        FROM pg_catalog.pg_proc p
        LEFT JOIN (VALUES
            ('publish', 'tenure_server, tenure_runtime, tenure_publisher'),
            ('publish_bytes', 'tenure_server, tenure_runtime, tenure_publisher'),
            ('publish_many', 'tenure_server, tenure_runtime, tenure_publisher'),
            ('publish_in', 'tenure_server, tenure_runtime, tenure_publisher'),
            ('append_audit', 'tenure_server, tenure_runtime'),
            ('prune_audit', 'tenure_server'),
            ('prune_credentials', 'tenure_server'),
            ('remove_probe', 'tenure_server, tenure_runtime')
        ) AS needed (name, roles) ON needed.name = p.proname
        WHERE p.pronamespace = 'tenure'::regnamespace AND p.prosecdef
    LOOP
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC, tenure_server, tenure_runtime, tenure_publisher, '
                       'tenure_reader', thing.name);
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', thing.name, thing.roles);
    END LOOP;
    REVOKE ALL ON ALL TABLES IN SCHEMA tenure FROM tenure_server, tenure_runtime, tenure_publisher, tenure_reader;
    FOR thing IN
        SELECT * FROM (VALUES
            ('migrations', 'SELECT', 'SELECT'),
            ('epoch', 'SELECT', 'SELECT'),
            ('epoch_now', 'SELECT', 'SELECT'),
            ('epoch_stored', 'SELECT', 'SELECT'),
            ('sessions', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            -- Elections, leases, adoptions and fences are for ever: what is gone could be granted again.
            ('elections', 'SELECT, INSERT, UPDATE', 'SELECT'),
            ('leases', 'SELECT, INSERT, UPDATE', 'SELECT'),
            ('adoptions', 'SELECT, INSERT, UPDATE', 'SELECT'),
            ('fences', 'SELECT, INSERT, UPDATE', 'SELECT'),
            ('candidates', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('requests', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('terms', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('node_records', 'SELECT', 'SELECT'),
            -- Credentials belong to the server, see below. The reader does not see the digests.
            ('credentials', NULL, 'SELECT (id, n, name, kind, grants, created_at, created_by, expires_at, revoked_at)'),
            -- Entries are appended and pruned by functions with the owner's rights.
            ('audit', 'SELECT', 'SELECT'),
            -- Queues and pools are for ever, as elections are: their tasks' tokens and turns go on.
            ('queues', 'SELECT, INSERT, UPDATE', 'SELECT'),
            ('turnstiles', 'SELECT, INSERT, UPDATE', 'SELECT'),
            -- To be locked.
            ('claim_gate', 'SELECT, UPDATE', 'SELECT'),
            ('key_locks', 'SELECT, UPDATE', 'SELECT'),
            ('namespaces', 'SELECT, INSERT, UPDATE', 'SELECT'),
            ('pools', 'SELECT, INSERT, UPDATE', 'SELECT'),
            ('demands', 'SELECT, INSERT, UPDATE (retired), DELETE', 'SELECT'),
            ('demand_sweep', 'SELECT, UPDATE', 'SELECT'),
            ('tasks', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('parents', 'SELECT, INSERT, DELETE', 'SELECT'),
            ('waiters', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('workers', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('resources', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('pool_requests', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            -- Who only looks does not see how the leader is spoken to.
            ('posts', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT (one, token, session, address)'),
            ('topics', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            -- Nobody rewrites what was published; what is old and read is forgotten.
            ('events', 'SELECT, INSERT, DELETE', 'SELECT'),
            ('event_units', 'SELECT, INSERT, DELETE', 'SELECT'),
            ('event_floors', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('event_slots', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('event_waiters', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('event_groups', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            -- Who only looks does not see what pushes are signed with.
            ('event_pushes', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT (group_id, url, timeout_ms)'),
            ('event_members', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('event_shares', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('event_offsets', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('event_done', 'SELECT, INSERT, DELETE', 'SELECT'),
            ('event_asides', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('schedules', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('schedule_progress', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('schedule_floor', 'SELECT, UPDATE', 'SELECT'),
            -- Who only looks does not see what calls are signed with.
            ('schedule_secrets', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT (schedule)'),
            -- Nobody rewrites what has fired; what is long past is forgotten.
            ('ticks', 'SELECT, INSERT, DELETE', 'SELECT'),
            ('tick_skips', 'SELECT, INSERT, DELETE', 'SELECT'),
            ('tick_runs', 'SELECT, INSERT, DELETE', 'SELECT'),
            ('tick_strays', 'SELECT, INSERT, UPDATE, DELETE', 'SELECT'),
            ('tick_records', 'SELECT', 'SELECT')
        ) AS rights (name, runtime, reader)
        WHERE to_regclass('tenure.' || name) IS NOT NULL
    LOOP
        IF thing.runtime IS NOT NULL THEN
            EXECUTE format('GRANT %s ON tenure.%I TO tenure_runtime, tenure_server', thing.runtime, thing.name);
        END IF;
        EXECUTE format('GRANT %s ON tenure.%I TO tenure_reader', thing.reader, thing.name);
    END LOOP;
    IF to_regclass('tenure.credentials') IS NOT NULL THEN
        -- The server creates credentials and ends them. It cannot widen one, and deletes ended ones by a function.
        GRANT SELECT, INSERT, UPDATE (expires_at, revoked_at) ON tenure.credentials TO tenure_server;
    END IF;
    IF to_regclass('tenure.tasks_id_seq') IS NOT NULL THEN
        GRANT USAGE ON SEQUENCE tenure.tasks_id_seq, tenure.waiter_numbers TO tenure_runtime, tenure_server;
    END IF;
    IF to_regclass('tenure.event_numbers') IS NOT NULL THEN
        GRANT USAGE ON SEQUENCE tenure.event_numbers TO tenure_runtime, tenure_server;
        FOR n IN 0..15 LOOP
            EXECUTE format('GRANT SELECT, UPDATE ON SEQUENCE tenure.event_waits_%s TO tenure_runtime, tenure_server', n);
        END LOOP;
    END IF;
END
$$;
