-- Sessions, elections and leases.
--
-- Every timestamptz is for people. Nothing that decides who leads reads one, or calls now().
-- There are no foreign keys: they would take row locks of their own, and the order of locks is part of the protocol.
-- Names compare by bytes (COLLATE "C"), as in every other store.

-- One row for each start of a process. `beat` is in no index and pages are left half empty, so that a beat is a HOT
-- update: it touches this one page and no index.
CREATE TABLE tenure.sessions (
    id         text COLLATE "C" PRIMARY KEY,
    name       text        NOT NULL,
    beat       bigint      NOT NULL DEFAULT 0,
    lease_ms   bigint      NOT NULL,
    state      text        NOT NULL DEFAULT 'live' CHECK (state IN ('live', 'ended', 'expired')),
    takeover   text        NOT NULL DEFAULT 'lease' CHECK (takeover IN ('lease', 'connection')),
    started_at timestamptz NOT NULL DEFAULT now(),
    beat_at    timestamptz NOT NULL DEFAULT now(),
    ended_at   timestamptz
) WITH (fillfactor = 50);
CREATE INDEX sessions_over ON tenure.sessions (ended_at) WHERE state <> 'live';

CREATE TABLE tenure.elections (
    namespace     text COLLATE "C",
    name          text COLLATE "C",
    slots         integer     NOT NULL,
    requires      jsonb       NOT NULL DEFAULT '[]',
    paused_by     text,
    paused_reason text,
    paused_at     timestamptz,
    created_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (namespace, name)
);

-- Who holds what. `session` is null while the lease is free; then `reserved` and `via` are about the next term.
-- Rows of a former, larger number of slots stay: their tokens must never be granted again.
-- While the lease is held under a token that another elector granted, `token` is that one and `own_token` the last that was
-- granted here. Tokens of different electors do not compare, so the next grant made here counts on from `own_token`.
CREATE TABLE tenure.leases (
    namespace  text COLLATE "C",
    name       text COLLATE "C",
    slot       integer,
    token      bigint      NOT NULL DEFAULT 0,
    own_token  bigint,
    session    text COLLATE "C",
    reserved   text COLLATE "C",
    via        text        NOT NULL DEFAULT 'release',
    granted_at timestamptz,
    PRIMARY KEY (namespace, name, slot)
) WITH (fillfactor = 70);
CREATE INDEX leases_session ON tenure.leases (session) WHERE session IS NOT NULL;

CREATE TABLE tenure.candidates (
    namespace    text COLLATE "C",
    election     text COLLATE "C",
    session      text COLLATE "C",
    id           text        NOT NULL,
    priority     integer     NOT NULL,
    observer     boolean     NOT NULL,
    capabilities jsonb       NOT NULL DEFAULT '[]',
    metadata     jsonb       NOT NULL DEFAULT '{}',
    joined_at    timestamptz NOT NULL DEFAULT now(),
    updated_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (namespace, election, session)
);
CREATE INDEX candidates_session ON tenure.candidates (session);

-- What is asked of a holder. Not on the lease's row: a guarded transaction may hold that row's lock for a long time,
-- and it is then above all that somebody asks. `session` is the holder's; a row whose token is no longer the lease's
-- means nothing.
CREATE TABLE tenure.requests (
    namespace text COLLATE "C",
    election  text COLLATE "C",
    slot      integer,
    token     bigint      NOT NULL,
    session   text COLLATE "C" NOT NULL,
    kind      text        NOT NULL CHECK (kind IN ('preempt', 'transfer', 'resign', 'pause')),
    successor text COLLATE "C",
    asked_by  text        NOT NULL,
    asked_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (namespace, election, slot)
);
CREATE INDEX requests_session ON tenure.requests (session);

-- The last terms of each election. `n` is their order: tokens compare only within a slot, and clocks can step back.
CREATE TABLE tenure.terms (
    namespace  text COLLATE "C",
    election   text COLLATE "C",
    slot       integer,
    token      bigint,
    n          bigint GENERATED ALWAYS AS IDENTITY,
    session    text COLLATE "C" NOT NULL,
    id         text        NOT NULL,
    via        text        NOT NULL,
    began_at   timestamptz NOT NULL DEFAULT now(),
    ended_at   timestamptz,
    end_reason text,
    PRIMARY KEY (namespace, election, slot, token)
);
CREATE INDEX terms_order ON tenure.terms (namespace, election, n);

-- The last lease of each slot that was granted by another store and is held here under its token, by who granted it.
CREATE TABLE tenure.adoptions (
    namespace  text COLLATE "C",
    name       text COLLATE "C",
    slot       integer,
    elector    text COLLATE "C",
    token      bigint      NOT NULL,
    session    text COLLATE "C" NOT NULL,
    adopted_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (namespace, name, slot, elector)
) WITH (fillfactor = 70);

-- The highest token seen for each fenced name, which may be granted by another store.
CREATE TABLE tenure.fences (
    name    text COLLATE "C" PRIMARY KEY,
    token   bigint      NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);

-- The server's timeline, which grows with each promotion. From the name of the WAL file being written: the control
-- file (pg_control_checkpoint) still shows the old one for a while after a promotion.
CREATE FUNCTION tenure.timeline() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT ('x' || left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::bigint
$$;

-- The epoch: the high bits of every token and event number. It grows whenever these tables may have gone back in time or forward on two
-- servers at once: after a promotion, a restore, a copy, an upgrade. `system_identifier`, `timeline`, `database` and `relation` are
-- the identity of the store in this epoch (null: not known yet). `written` is the row's own xmin: a row that a restore or a
-- subscription wrote has another. `started_at` and `file` say for which run of the server the identity was compared last,
-- so that one statement without system calls suffices until the next restart.
CREATE TABLE tenure.epoch (
    one               boolean     PRIMARY KEY DEFAULT true CHECK (one),
    epoch             bigint      NOT NULL CHECK (epoch BETWEEN 1 AND 8191),
    system_identifier bigint,
    timeline          bigint,
    database          oid,
    relation          oid,
    written           xid,
    started_at        timestamptz,
    file              text,
    changed_at        timestamptz NOT NULL DEFAULT now(),
    reason            text        NOT NULL
) WITH (fillfactor = 50);
INSERT INTO tenure.epoch (epoch, reason) VALUES (1, 'installed');

-- The least epoch that may follow `stored`. The days since 2026 are in it so that a copy that is older than the last change of the epoch still
-- gets a greater one, unless both happened on one day. The clock only ever makes it larger. At least 2: the first epoch follows none.
CREATE FUNCTION tenure.next_epoch(stored bigint) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT greatest(stored + 1, 2, least(current_date - date '2026-01-01', 8000))
$$;

-- Notes the xmin of the row as it was just written in this transaction, or subtransaction: this update leaves the same.
CREATE FUNCTION tenure.sign_epoch() RETURNS void LANGUAGE sql VOLATILE AS $$
    UPDATE tenure.epoch SET written = xmin
$$;

-- Compares the identity of this server, database and table with the stored one, and begins a new epoch if they differ. The row
-- stays locked until the transaction is over. By right of the owner: everybody must be able to, and nobody may set the epoch.
CREATE FUNCTION tenure.renew_epoch() RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    stored tenure.epoch;
    system_ bigint;
    timeline_ CONSTANT bigint := tenure.timeline();
    database_ CONSTANT oid := (SELECT d.oid FROM pg_database d WHERE d.datname = current_database());
    relation_ CONSTANT oid := 'tenure.epoch'::regclass;
    found_ xid;
    reason_ text;
BEGIN
    BEGIN
        system_ := (SELECT c.system_identifier FROM pg_control_system() c);
    EXCEPTION WHEN insufficient_privilege THEN
        -- Some managed servers keep it to themselves: the rest of the identity must do.
        system_ := 0;
    END;
    -- Tables without this row came here by other means than a dump.
    INSERT INTO tenure.epoch (epoch, system_identifier, reason) VALUES (1, -1, 'missing') ON CONFLICT (one) DO NOTHING;
    SELECT e.* INTO STRICT stored FROM tenure.epoch e FOR UPDATE;
    found_ := (SELECT e.xmin FROM tenure.epoch e);
    reason_ := CASE WHEN stored.system_identifier IS NULL THEN NULL
                    WHEN stored.system_identifier <> system_ THEN 'other server'
                    WHEN stored.timeline IS DISTINCT FROM timeline_ THEN 'promotion'
                    WHEN stored.database IS DISTINCT FROM database_ THEN 'other database'
                    WHEN stored.relation IS DISTINCT FROM relation_ THEN 'other tables'
                    WHEN stored.written IS DISTINCT FROM found_ THEN 'restored' END;
    IF reason_ IS NOT NULL THEN
        -- Beyond every token that is here, too, whoever has copied them in.
        stored.epoch := greatest(tenure.next_epoch(stored.epoch),
            (SELECT max(coalesce(l.own_token, l.token) >> 40) + 1 FROM tenure.leases l));
    END IF;
    UPDATE tenure.epoch e
    SET epoch = stored.epoch, system_identifier = system_, timeline = timeline_, database = database_, relation = relation_,
        started_at = pg_postmaster_start_time(), file = pg_relation_filepath(relation_),
        changed_at = CASE WHEN reason_ IS NULL THEN e.changed_at ELSE now() END, reason = coalesce(reason_, e.reason);
    PERFORM tenure.sign_epoch();
    RETURN stored.epoch;
END
$$;

-- The epoch, if the identity was compared in this run of the server and is the same. All that this compares is in the server's memory.
-- `e.one`, so that there is an index for it: functions that forbid to walk over tables ask for it, and what can not be planned otherwise is
-- thought so expensive that it is compiled (jit), for a good part of a second.
CREATE VIEW tenure.epoch_now AS
SELECT e.epoch FROM tenure.epoch e
WHERE e.one AND e.started_at = pg_catalog.pg_postmaster_start_time() AND e.timeline = tenure.timeline()
  AND e.written = e.xmin AND e.relation = e.tableoid AND e.file = pg_catalog.pg_relation_filepath(e.tableoid);

-- The epoch as it is stored, if nothing says that this is another store. For what runs in a caller's transaction: it writes nothing, so
-- that a long transaction does not keep the row locked that every heartbeat needs when the server was restarted.
CREATE VIEW tenure.epoch_stored AS
SELECT e.epoch FROM tenure.epoch e
WHERE e.one
  AND (e.system_identifier IS NULL OR e.timeline = tenure.timeline() AND e.written = e.xmin AND e.relation = e.tableoid);

-- The epoch of this store. Who may neither renew it nor grant anything is told what is stored: it only looks. In statements of their own,
-- since the right to call a function is asked for by all of a statement, whether it calls it or not.
CREATE FUNCTION tenure.current_epoch() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    epoch_ bigint := (SELECT n.epoch FROM tenure.epoch_now n);
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

-- Begins a new epoch: one after this one, and at least `at_least`. For the owner alone: nobody else may update the table.
CREATE FUNCTION tenure.bump_epoch(at_least bigint, why text) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    epoch_ bigint;
BEGIN
    PERFORM tenure.current_epoch();
    UPDATE tenure.epoch e
    SET epoch = greatest(tenure.next_epoch(e.epoch), at_least), changed_at = now(), reason = why
    RETURNING e.epoch INTO STRICT epoch_;
    PERFORM tenure.sign_epoch();
    RETURN epoch_;
END
$$;

-- Milliseconds since 1970, for people.
CREATE FUNCTION tenure.ms(at timestamptz) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT round(extract(epoch FROM at) * 1000)::bigint
$$;

-- A token as people see it.
CREATE FUNCTION tenure.token_text(token bigint) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN token >> 40 = 0 THEN token::text
           ELSE (token >> 40)::text || '.' || (token & ((1::bigint << 40) - 1))::text END
$$;

-- Lowers the limits on the rest of this transaction to `lease_ms`, and never raises one: a leader that is stopped in
-- mid-transaction must not block the next one for longer than its lease. transaction_timeout exists from 17 on.
CREATE FUNCTION tenure.bound(lease_ms bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_catalog.set_config(limits.name, least(lease_ms, 2147483647)::text, true)
    FROM (SELECT name, extract(epoch FROM pg_catalog.current_setting(name, true)::interval) * 1000 AS now_ms
          FROM unnest(ARRAY['idle_in_transaction_session_timeout', 'statement_timeout', 'transaction_timeout']) AS name
         ) limits
    WHERE limits.now_ms = 0 OR limits.now_ms > lease_ms;
END
$$;

-- In the caller's transaction: goes on only if the lease is held under this token by this session, and then no other
-- can take it before the transaction is over. Raises TN002 otherwise.
--
-- FOR SHARE, so that several transactions of one leader do not wait for each other. FOR KEY SHARE would not do: it does
-- not conflict with the UPDATE of a take-over.
CREATE FUNCTION tenure.guard(namespace text, name text, slot integer, token bigint, session text)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM tenure.bound(s.lease_ms) FROM tenure.sessions s WHERE s.id = guard.session;
    PERFORM FROM tenure.leases l
    WHERE l.namespace = guard.namespace AND l.name = guard.name AND l.slot = guard.slot
      AND l.token = guard.token AND l.session = guard.session
    FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'session % does not hold %/% slot % under token %',
            guard.session, guard.namespace, guard.name, guard.slot, tenure.token_text(guard.token)
            USING ERRCODE = 'TN002',
                  HINT = 'Another may lead by now. Roll back, and do nothing more in the name of this term.';
    END IF;
END
$$;

-- In the caller's transaction: remembers the highest token seen under this name, and raises TN001 for a lower one. A
-- greater token waits for the transactions under the one before it; equal tokens do not wait for each other.
CREATE FUNCTION tenure.fence(name text, token bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    seen bigint;
BEGIN
    LOOP
        SELECT f.token INTO seen FROM tenure.fences f
        WHERE f.name = fence.name AND f.token >= fence.token FOR SHARE;
        IF seen = fence.token THEN
            RETURN;
        ELSIF seen > fence.token THEN
            RAISE EXCEPTION 'token % for % is stale: % has been seen',
                tenure.token_text(fence.token), fence.name, tenure.token_text(seen)
                USING ERRCODE = 'TN001', DETAIL = seen::text,
                      HINT = 'A later leader has been here. Roll back, and do nothing more in the name of this term.';
        END IF;
        -- Nothing, or a lower token. Not locked shared first: two that both want to raise it would then deadlock.
        INSERT INTO tenure.fences AS f (name, token) VALUES (fence.name, fence.token)
        ON CONFLICT ON CONSTRAINT fences_pkey DO UPDATE SET token = EXCLUDED.token, seen_at = now()
        WHERE f.token <= EXCLUDED.token;
        IF FOUND THEN
            RETURN;
        END IF;
        -- A greater token came in between: look again, and refuse.
    END LOOP;
END
$$;

-- In strict mode: this transaction is committed only when a synchronous standby has it, and TN003 if there is none.
CREATE FUNCTION tenure.strict() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF pg_catalog.current_setting('synchronous_standby_names') = '' THEN
        RAISE EXCEPTION 'strict mode needs a synchronous standby, and synchronous_standby_names is empty'
            USING ERRCODE = 'TN003';
    END IF;
    IF pg_catalog.current_setting('synchronous_commit') <> 'remote_apply' THEN
        PERFORM pg_catalog.set_config('synchronous_commit', 'on', true);
    END IF;
END
$$;

-- The candidates as the Bully elector's table shows them: derived, and so never stale. `term` is the token.
CREATE VIEW tenure.node_records AS
SELECT c.namespace,
       c.election,
       c.id,
       CASE WHEN mine.token IS NOT NULL THEN 'leader'
            WHEN c.observer THEN 'observer'
            WHEN EXISTS (SELECT FROM tenure.leases l JOIN tenure.sessions h ON h.id = l.session AND h.state = 'live'
                         WHERE l.namespace = c.namespace AND l.name = c.election) THEN 'follower'
            ELSE 'candidate' END AS status,
       s.beat_at AS last_heartbeat,
       coalesce(mine.token, (SELECT max(l.token) FROM tenure.leases l
                             WHERE l.namespace = c.namespace AND l.name = c.election
                               AND l.granted_at IS NOT NULL), 0) AS term,
       c.priority,
       c.capabilities,
       c.metadata,
       c.joined_at AS created_at,
       greatest(c.updated_at, s.beat_at) AS updated_at
FROM tenure.candidates c
JOIN tenure.sessions s ON s.id = c.session
LEFT JOIN LATERAL (
    SELECT max(l.token) AS token FROM tenure.leases l
    WHERE l.namespace = c.namespace AND l.name = c.election AND l.session = c.session AND s.state = 'live'
) mine ON true;
