-- The epoch: the upper bits of every token and event id.

-- The server's WAL timeline, which grows with each promotion. Read from the name of the current WAL file: the control file
-- (pg_control_checkpoint) still shows the old timeline for a while after a promotion.
CREATE FUNCTION tenure.timeline() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT ('x' || left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::bigint
$$;

CREATE TABLE tenure.epoch (
    singleton         boolean     PRIMARY KEY DEFAULT true CHECK (singleton),
    epoch             bigint      NOT NULL CHECK (epoch BETWEEN 1 AND 8191),
    system_identifier bigint,
    timeline          bigint,
    database_oid      oid,
    table_oid         oid,
    row_xmin          xid,
    server_started_at timestamptz,
    file_path         text,
    changed_at        timestamptz NOT NULL DEFAULT now(),
    reason            text        NOT NULL
) WITH (fillfactor = 50);
INSERT INTO tenure.epoch (epoch, reason) VALUES (1, 'installed');
COMMENT ON TABLE tenure.epoch IS
'The epoch of the store (one row): the upper bits of every token and event id. It grows whenever the tables may have gone '
'back in time or may exist on two servers: after a promotion, a restore, a copy or an upgrade.';
COMMENT ON COLUMN tenure.epoch.system_identifier IS
'System identifier of the server. With timeline, database_oid and table_oid it is the identity of the store in this epoch; '
'null until the first comparison.';
COMMENT ON COLUMN tenure.epoch.timeline IS 'WAL timeline of the server.';
COMMENT ON COLUMN tenure.epoch.database_oid IS 'OID of the database.';
COMMENT ON COLUMN tenure.epoch.table_oid IS 'OID of this table.';
COMMENT ON COLUMN tenure.epoch.row_xmin IS 'The row''s own xmin. A row that a restore or a subscription wrote has another one.';
COMMENT ON COLUMN tenure.epoch.server_started_at IS
'Start time of the server when the identity was compared last. Until the next restart the epoch is verified without system calls.';
COMMENT ON COLUMN tenure.epoch.file_path IS 'File of this table when the identity was compared last.';
COMMENT ON COLUMN tenure.epoch.reason IS 'Why this epoch began.';

-- The smallest epoch that may follow `stored`. It includes the days since 2026, so that a copy that is older than the last
-- change of the epoch still gets a greater epoch, unless both changes happened on one day. The clock can only make the epoch
-- larger. At least 2: epoch 1 follows no other.
CREATE FUNCTION tenure.next_epoch(stored bigint) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT greatest(stored + 1, 2, least(current_date - date '2026-01-01', 8000))
$$;

-- Stores the xmin that the current (sub)transaction gave the row; this update leaves the same xmin.
CREATE FUNCTION tenure.record_epoch_xmin() RETURNS void LANGUAGE sql VOLATILE AS $$
    UPDATE tenure.epoch SET row_xmin = xmin
$$;

-- Compares the identity of this server, database and table with the stored one, and begins a new epoch if they differ. The row
-- stays locked until the transaction ends. Runs with the rights of the owner: every role must be able to renew the epoch, and
-- no role may set it.
CREATE FUNCTION tenure.renew_epoch() RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    stored tenure.epoch;
    system_id_ bigint;
    timeline_ CONSTANT bigint := tenure.timeline();
    database_oid_ CONSTANT oid := (SELECT d.oid FROM pg_database d WHERE d.datname = current_database());
    table_oid_ CONSTANT oid := 'tenure.epoch'::regclass;
    row_xmin_ xid;
    reason_ text;
BEGIN
    BEGIN
        system_id_ := (SELECT c.system_identifier FROM pg_control_system() c);
    EXCEPTION WHEN insufficient_privilege THEN
        -- Some managed servers hide the system identifier: use the rest of the identity.
        system_id_ := 0;
    END;
    -- Tables without this row were not copied by a dump.
    INSERT INTO tenure.epoch (epoch, system_identifier, reason) VALUES (1, -1, 'missing') ON CONFLICT (singleton) DO NOTHING;
    SELECT e.* INTO STRICT stored FROM tenure.epoch e FOR UPDATE;
    row_xmin_ := (SELECT e.xmin FROM tenure.epoch e);
    reason_ := CASE WHEN stored.system_identifier IS NULL THEN NULL
                    WHEN stored.system_identifier <> system_id_ THEN 'other server'
                    WHEN stored.timeline IS DISTINCT FROM timeline_ THEN 'promotion'
                    WHEN stored.database_oid IS DISTINCT FROM database_oid_ THEN 'other database'
                    WHEN stored.table_oid IS DISTINCT FROM table_oid_ THEN 'other tables'
                    WHEN stored.row_xmin IS DISTINCT FROM row_xmin_ THEN 'restored' END;
    IF reason_ IS NOT NULL THEN
        -- The new epoch must also exceed the epoch of every token in the tables, wherever these rows come from.
        stored.epoch := greatest(tenure.next_epoch(stored.epoch),
            (SELECT max(coalesce(l.own_token, l.token) >> 40) + 1 FROM tenure.leases l));
    END IF;
    UPDATE tenure.epoch e
    SET epoch = stored.epoch, system_identifier = system_id_, timeline = timeline_, database_oid = database_oid_,
        table_oid = table_oid_,
        server_started_at = pg_postmaster_start_time(), file_path = pg_relation_filepath(table_oid_),
        changed_at = CASE WHEN reason_ IS NULL THEN e.changed_at ELSE now() END, reason = coalesce(reason_, e.reason);
    PERFORM tenure.record_epoch_xmin();
    RETURN stored.epoch;
END
$$;

-- The epoch, if the identity was verified in this run of the server and has not changed. All values that it compares are in the
-- memory of the server. `e.singleton` lets the planner use the index: functions that disable sequential scans read this view,
-- and a plan without an index would be estimated as so expensive that PostgreSQL compiles it (jit), which takes a good part of
-- a second.
CREATE VIEW tenure.verified_epoch AS
SELECT e.epoch FROM tenure.epoch e
WHERE e.singleton AND e.server_started_at = pg_catalog.pg_postmaster_start_time() AND e.timeline = tenure.timeline()
  AND e.row_xmin = e.xmin AND e.table_oid = e.tableoid AND e.file_path = pg_catalog.pg_relation_filepath(e.tableoid);

-- The stored epoch, unless something shows that this is another store. For functions that run in the transaction of a caller:
-- it writes nothing, so that a long transaction does not lock the row that every heartbeat needs after a restart of the server.
CREATE VIEW tenure.stored_epoch AS
SELECT e.epoch FROM tenure.epoch e
WHERE e.singleton
  AND (e.system_identifier IS NULL OR e.timeline = tenure.timeline() AND e.row_xmin = e.xmin AND e.table_oid = e.tableoid);

-- The epoch of this store. A role that can neither renew the epoch nor grant anything gets the stored one: it only reads. In
-- separate statements, since PostgreSQL checks the right to call a function for the whole statement, whether it calls the
-- function or not.
CREATE FUNCTION tenure.current_epoch() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    epoch_ bigint := (SELECT n.epoch FROM tenure.verified_epoch n);
BEGIN
    IF epoch_ IS NOT NULL THEN
        RETURN epoch_;
    ELSIF pg_catalog.has_function_privilege('tenure.renew_epoch()', 'EXECUTE')
          OR pg_catalog.has_table_privilege('tenure.leases', 'UPDATE') THEN
        RETURN tenure.renew_epoch();
    END IF;
    RETURN (SELECT e.epoch FROM tenure.epoch e);
END
$$;

-- Begins a new epoch: greater than the current one, and at least `min_epoch`. Only the owner may update the table.
CREATE FUNCTION tenure.bump_epoch(min_epoch bigint, bump_reason text) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    epoch_ bigint;
BEGIN
    PERFORM tenure.current_epoch();
    UPDATE tenure.epoch e
    SET epoch = greatest(tenure.next_epoch(e.epoch), min_epoch), changed_at = now(), reason = bump_reason
    RETURNING e.epoch INTO STRICT epoch_;
    PERFORM tenure.record_epoch_xmin();
    RETURN epoch_;
END
$$;
