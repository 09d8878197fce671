-- Sessions, elections and leases.
--
-- No decision about leadership reads a timestamptz column or calls now(): these columns are informational.
-- There are no foreign keys: they would take row locks of their own, and the order of locks is part of the protocol.
-- Names compare by bytes (COLLATE "C"), as in every other store.

-- heartbeat_count is in no index and pages are left half empty, so that a heartbeat is a HOT update: it writes one page and no
-- index.
CREATE TABLE tenure.sessions (
    id              text COLLATE "C" PRIMARY KEY,
    name            text        NOT NULL,
    heartbeat_count bigint      NOT NULL DEFAULT 0,
    lease_ms        bigint      NOT NULL,
    state           text        NOT NULL DEFAULT 'live' CHECK (state IN ('live', 'ended', 'expired')),
    takeover        text        NOT NULL DEFAULT 'lease' CHECK (takeover IN ('lease', 'connection')),
    started_at      timestamptz NOT NULL DEFAULT now(),
    heartbeat_at    timestamptz NOT NULL DEFAULT now(),
    ended_at        timestamptz,
    owner           text
) WITH (fillfactor = 50);
CREATE INDEX sessions_ended ON tenure.sessions (ended_at) WHERE state <> 'live';
COMMENT ON TABLE tenure.sessions IS 'One row for each run of a process.';
COMMENT ON COLUMN tenure.sessions.id IS 'Random id of the run.';
COMMENT ON COLUMN tenure.sessions.heartbeat_count IS
'Number of heartbeats. A takeover compares it with the value that the candidate observed.';
COMMENT ON COLUMN tenure.sessions.lease_ms IS 'Lease duration: how long the session keeps what it holds without a heartbeat.';
COMMENT ON COLUMN tenure.sessions.state IS
'live, ended (by itself) or expired (by another session). A session never becomes live again.';
COMMENT ON COLUMN tenure.sessions.takeover IS
'lease: others wait for the whole lease. connection: others may also take over when the session''s connection ends.';
COMMENT ON COLUMN tenure.sessions.heartbeat_at IS 'Time of the last heartbeat. Informational.';
COMMENT ON COLUMN tenure.sessions.owner IS
'Principal for which a server opened the session; null if the process connects to the database itself.';

CREATE TABLE tenure.elections (
    namespace             text COLLATE "C",
    name                  text COLLATE "C",
    slots                 integer     NOT NULL,
    required_capabilities jsonb       NOT NULL DEFAULT '[]',
    paused_by             text,
    paused_reason         text,
    paused_at             timestamptz,
    created_at            timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (namespace, name)
);
COMMENT ON TABLE tenure.elections IS 'Elections. Rows are never deleted.';
COMMENT ON COLUMN tenure.elections.slots IS 'Number of leaders that the election allows at a time.';
COMMENT ON COLUMN tenure.elections.required_capabilities IS 'JSON list of the capabilities that a leader must declare.';
COMMENT ON COLUMN tenure.elections.paused_at IS 'Time of the pause; null if the election is not paused.';

CREATE TABLE tenure.leases (
    namespace    text COLLATE "C",
    election     text COLLATE "C",
    slot         integer,
    token        bigint      NOT NULL DEFAULT 0,
    own_token    bigint,
    session      text COLLATE "C",
    reserved_for text COLLATE "C",
    start_reason text        NOT NULL DEFAULT 'release',
    granted_at   timestamptz,
    PRIMARY KEY (namespace, election, slot)
) WITH (fillfactor = 70);
CREATE INDEX leases_session ON tenure.leases (session) WHERE session IS NOT NULL;
COMMENT ON TABLE tenure.leases IS
'One row for each slot of an election. Rows of slots that the election no longer has stay: their tokens must not be granted again.';
COMMENT ON COLUMN tenure.leases.token IS 'Fencing token of the last grant. Its upper bits are the epoch; it only grows.';
COMMENT ON COLUMN tenure.leases.own_token IS
'The last token that this store granted, while the lease is held under a token of another store (see adopted_leases). Tokens '
'of different stores do not compare, so the next grant counts on from this one.';
COMMENT ON COLUMN tenure.leases.session IS 'Session that holds the lease; null if the lease is free.';
COMMENT ON COLUMN tenure.leases.reserved_for IS 'Session that gets the next term, while the lease is free.';
COMMENT ON COLUMN tenure.leases.start_reason IS
'Why the current term started; while the lease is free, the reason of the next term.';

CREATE TABLE tenure.candidates (
    namespace    text COLLATE "C",
    election     text COLLATE "C",
    session      text COLLATE "C",
    name         text        NOT NULL,
    priority     integer     NOT NULL,
    observer     boolean     NOT NULL,
    capabilities jsonb       NOT NULL DEFAULT '[]',
    metadata     jsonb       NOT NULL DEFAULT '{}',
    joined_at    timestamptz NOT NULL DEFAULT now(),
    updated_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (namespace, election, session)
);
CREATE INDEX candidates_session ON tenure.candidates (session);
COMMENT ON TABLE tenure.candidates IS 'Sessions that take part in an election.';
COMMENT ON COLUMN tenure.candidates.name IS 'Name of the candidate. It need not be unique.';
COMMENT ON COLUMN tenure.candidates.priority IS 'The live candidate with the highest priority leads.';
COMMENT ON COLUMN tenure.candidates.observer IS 'Whether the candidate only watches and never leads.';
COMMENT ON COLUMN tenure.candidates.capabilities IS 'JSON list of the capabilities that the candidate declares.';

-- Not columns of tenure.leases: a guarded transaction may hold the lock of a lease's row for a long time, and an operator must
-- be able to send a request meanwhile.
CREATE TABLE tenure.leader_requests (
    namespace    text COLLATE "C",
    election     text COLLATE "C",
    slot         integer,
    token        bigint      NOT NULL,
    session      text COLLATE "C" NOT NULL,
    kind         text        NOT NULL CHECK (kind IN ('preempt', 'transfer', 'resign', 'pause')),
    successor    text COLLATE "C",
    requested_by text        NOT NULL,
    requested_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (namespace, election, slot)
);
CREATE INDEX leader_requests_session ON tenure.leader_requests (session);
COMMENT ON TABLE tenure.leader_requests IS 'Requests to a leader to finish its work and release the lease.';
COMMENT ON COLUMN tenure.leader_requests.token IS
'Token of the term that the request is for. The request is void if the lease has another token.';
COMMENT ON COLUMN tenure.leader_requests.session IS 'Session of the leader.';
COMMENT ON COLUMN tenure.leader_requests.successor IS 'Session that a transfer gives the lease to.';

CREATE TABLE tenure.terms (
    namespace      text COLLATE "C",
    election       text COLLATE "C",
    slot           integer,
    token          bigint,
    seq            bigint GENERATED ALWAYS AS IDENTITY,
    session        text COLLATE "C" NOT NULL,
    candidate_name text        NOT NULL,
    start_reason   text        NOT NULL,
    started_at     timestamptz NOT NULL DEFAULT now(),
    ended_at       timestamptz,
    end_reason     text,
    PRIMARY KEY (namespace, election, slot, token)
);
CREATE INDEX terms_seq ON tenure.terms (namespace, election, seq);
COMMENT ON TABLE tenure.terms IS 'The last hundred terms of each election.';
COMMENT ON COLUMN tenure.terms.seq IS
'Order of the terms. Tokens compare only within a slot, and clocks can step back.';

CREATE TABLE tenure.adopted_leases (
    namespace  text COLLATE "C",
    election   text COLLATE "C",
    slot       integer,
    granted_by text COLLATE "C",
    token      bigint      NOT NULL,
    session    text COLLATE "C" NOT NULL,
    adopted_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (namespace, election, slot, granted_by)
) WITH (fillfactor = 70);
COMMENT ON TABLE tenure.adopted_leases IS
'Leases that another store granted and that are held here under its token: the last one of each slot and store.';
COMMENT ON COLUMN tenure.adopted_leases.granted_by IS 'Identity of the store that granted the token.';

CREATE TABLE tenure.fences (
    name       text COLLATE "C" PRIMARY KEY,
    max_token  bigint      NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);
COMMENT ON TABLE tenure.fences IS 'Highest token seen for each fenced name (see tenure.fence). Any store may have granted it.';

-- Milliseconds since 1970, rounded.
CREATE FUNCTION tenure.to_unix_ms(at timestamptz) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT round(extract(epoch FROM at) * 1000)::bigint
$$;

-- The inverse of tenure.to_unix_ms.
CREATE FUNCTION tenure.from_unix_ms(ms bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
    SELECT timestamptz 'epoch' + ms * interval '1 millisecond'
$$;

-- A token in its readable form, epoch.number.
CREATE FUNCTION tenure.format_token(token bigint) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN token >> 40 = 0 THEN token::text
           ELSE (token >> 40)::text || '.' || (token & ((1::bigint << 40) - 1))::text END
$$;

-- Lowers the timeouts of the rest of this transaction to `lease_ms`; it never raises one. A leader that stops in the middle of
-- a transaction must not block the next leader for longer than its lease. transaction_timeout exists from PostgreSQL 17 on.
CREATE FUNCTION tenure.limit_transaction_time(lease_ms bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_catalog.set_config(limits.name, least(lease_ms, 2147483647)::text, true)
    FROM (SELECT name, extract(epoch FROM pg_catalog.current_setting(name, true)::interval) * 1000 AS now_ms
          FROM unnest(ARRAY['idle_in_transaction_session_timeout', 'statement_timeout', 'transaction_timeout']) AS name
         ) limits
    WHERE limits.now_ms = 0 OR limits.now_ms > lease_ms;
END
$$;

-- FOR SHARE: several transactions of one leader do not wait for each other. FOR KEY SHARE would not suffice: it does not
-- conflict with the UPDATE of a takeover.
CREATE FUNCTION tenure.guard(namespace text, election text, slot integer, token bigint, session text)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM tenure.limit_transaction_time(s.lease_ms) FROM tenure.sessions s WHERE s.id = guard.session;
    PERFORM FROM tenure.leases l
    WHERE l.namespace = guard.namespace AND l.election = guard.election AND l.slot = guard.slot
      AND l.token = guard.token AND l.session = guard.session
    FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'session % does not hold %/% slot % under token %',
            guard.session, guard.namespace, guard.election, guard.slot, tenure.format_token(guard.token)
            USING ERRCODE = 'TN002',
                  HINT = 'Another candidate may lead now. Roll back and stop the work of this term.';
    END IF;
END
$$;

COMMENT ON FUNCTION tenure.guard IS
'Checks in the caller''s transaction that the session holds the lease under this token, and delays any takeover until the '
'transaction ends. Raises SQLSTATE TN002 if the lease is not held. Limits the rest of the transaction to the lease duration.';

-- A transaction with a greater token waits for transactions with the previous one; transactions with equal tokens do not wait
-- for each other.
CREATE FUNCTION tenure.fence(name text, token bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    max_seen bigint;
BEGIN
    LOOP
        SELECT f.max_token INTO max_seen FROM tenure.fences f
        WHERE f.name = fence.name AND f.max_token >= fence.token FOR SHARE;
        IF max_seen = fence.token THEN
            RETURN;
        ELSIF max_seen > fence.token THEN
            RAISE EXCEPTION 'token % for % is stale: % has been seen',
                tenure.format_token(fence.token), fence.name, tenure.format_token(max_seen)
                USING ERRCODE = 'TN001', DETAIL = max_seen::text,
                      HINT = 'A later leader has used this name. Roll back and stop the work of this term.';
        END IF;
        -- There is no row, or its token is lower. Do not take a shared lock first: two transactions that both raise the token
        -- would deadlock.
        INSERT INTO tenure.fences AS f (name, max_token) VALUES (fence.name, fence.token)
        ON CONFLICT ON CONSTRAINT fences_pkey DO UPDATE SET max_token = EXCLUDED.max_token, updated_at = now()
        WHERE f.max_token <= EXCLUDED.max_token;
        IF FOUND THEN
            RETURN;
        END IF;
        -- Another transaction stored a greater token: read it and reject this one.
    END LOOP;
END
$$;

COMMENT ON FUNCTION tenure.fence IS
'Checks in the caller''s transaction that no greater token has been seen for this name, and stores the token. Raises '
'SQLSTATE TN001 for a lower token; DETAIL is the highest token seen. Any store may have granted the token.';

-- For strict mode: makes this transaction commit only when a synchronous standby has it. Raises TN003 if no synchronous standby
-- is configured.
CREATE FUNCTION tenure.require_sync_standby() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
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

CREATE VIEW tenure.candidate_status AS
SELECT c.namespace,
       c.election,
       c.name,
       CASE WHEN mine.token IS NOT NULL THEN 'leader'
            WHEN c.observer THEN 'observer'
            WHEN EXISTS (SELECT FROM tenure.leases l JOIN tenure.sessions h ON h.id = l.session AND h.state = 'live'
                         WHERE l.namespace = c.namespace AND l.election = c.election) THEN 'follower'
            ELSE 'candidate' END AS role,
       s.heartbeat_at AS heartbeat_at,
       coalesce(mine.token, (SELECT max(l.token) FROM tenure.leases l
                             WHERE l.namespace = c.namespace AND l.election = c.election
                               AND l.granted_at IS NOT NULL), 0) AS token,
       c.priority,
       c.capabilities,
       c.metadata,
       c.joined_at,
       greatest(c.updated_at, s.heartbeat_at) AS updated_at
FROM tenure.candidates c
JOIN tenure.sessions s ON s.id = c.session
LEFT JOIN LATERAL (
    SELECT max(l.token) AS token FROM tenure.leases l
    WHERE l.namespace = c.namespace AND l.election = c.election AND l.session = c.session AND s.state = 'live'
) mine ON true;
COMMENT ON VIEW tenure.candidate_status IS 'Candidates with their current role, computed from sessions and leases.';
COMMENT ON COLUMN tenure.candidate_status.role IS 'leader, follower, candidate (there is no leader) or observer.';
COMMENT ON COLUMN tenure.candidate_status.token IS 'Token of the candidate''s term, or the highest token granted in the election.';
