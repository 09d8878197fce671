-- Pools: resources, and requests for them.

CREATE TABLE tenure.pools (
    id                   integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace            text COLLATE "C" NOT NULL,
    name                 text COLLATE "C" NOT NULL,
    mode                 text   NOT NULL DEFAULT 'distributed' CHECK (mode IN ('distributed', 'exclusive')),
    fallback             text   NOT NULL DEFAULT 'none' CHECK (fallback IN ('none', 'distributed')),
    cooldown_ms          bigint NOT NULL DEFAULT 0,
    priority_formula     text   NOT NULL DEFAULT 'base_priority + age_minutes + 50 * simple',
    request_retention_ms bigint NOT NULL DEFAULT 86400000,
    UNIQUE (namespace, name)
);
COMMENT ON TABLE tenure.pools IS 'Pools with their settings. Rows are never deleted.';
COMMENT ON COLUMN tenure.pools.mode IS
'distributed: every process matches its own requests. exclusive: the leader of tenure/broker matches all requests.';
COMMENT ON COLUMN tenure.pools.fallback IS
'How an exclusive pool is matched while no broker can be reached: none (wait) or distributed.';
COMMENT ON COLUMN tenure.pools.cooldown_ms IS 'How long a resource is not granted again after a release.';
COMMENT ON COLUMN tenure.pools.priority_formula IS 'Formula for the priority of a waiting request.';
COMMENT ON COLUMN tenure.pools.request_retention_ms IS 'How long ended requests are kept.';

CREATE TABLE tenure.resources (
    pool_id        integer,
    name           text COLLATE "C",
    tags           jsonb   NOT NULL DEFAULT '[]',
    enabled        boolean NOT NULL DEFAULT true,
    removed        boolean NOT NULL DEFAULT false,
    token          bigint  NOT NULL DEFAULT 0,
    request_id     bigint,
    cooldown_until timestamptz,
    PRIMARY KEY (pool_id, name)
) WITH (fillfactor = 70);
COMMENT ON TABLE tenure.resources IS 'Resources of pools.';
COMMENT ON COLUMN tenure.resources.removed IS
'Whether the resource was removed. The row stays, so that its token continues if the resource is added again.';
COMMENT ON COLUMN tenure.resources.token IS 'Fencing token of the last grant.';
COMMENT ON COLUMN tenure.resources.request_id IS 'Request that holds the resource; null if the resource is free.';
COMMENT ON COLUMN tenure.resources.cooldown_until IS 'The resource is not granted before this time.';

CREATE TABLE tenure.pool_requests (
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pool_id          integer     NOT NULL,
    idempotency_key  text COLLATE "C" NOT NULL,
    owner            text        NOT NULL,
    required_tags    jsonb       NOT NULL,
    preferred_tags   jsonb       NOT NULL,
    base_priority    integer     NOT NULL,
    session          text COLLATE "C",
    claim_timeout_ms bigint,
    max_wait_ms      bigint,
    state            text        NOT NULL DEFAULT 'waiting'
        CHECK (state IN ('waiting', 'granted', 'released', 'cancelled', 'expired')),
    resource         text COLLATE "C",
    token            bigint,
    created_at       timestamptz NOT NULL,
    granted_at       timestamptz,
    expires_at       timestamptz,
    ended_at         timestamptz
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX pool_requests_idempotency_key ON tenure.pool_requests (pool_id, idempotency_key)
    WHERE state IN ('waiting', 'granted');
CREATE INDEX pool_requests_ended ON tenure.pool_requests (pool_id, ended_at) WHERE ended_at IS NOT NULL;
COMMENT ON TABLE tenure.pool_requests IS 'Requests for a resource of a pool.';
COMMENT ON COLUMN tenure.pool_requests.idempotency_key IS
'A second request with the same key returns this one while it is waiting or granted.';
COMMENT ON COLUMN tenure.pool_requests.owner IS 'Principal that made the request.';
COMMENT ON COLUMN tenure.pool_requests.base_priority IS 'Priority of the request as given; an input of the pool''s formula.';
COMMENT ON COLUMN tenure.pool_requests.session IS 'Session that the request belongs to; null for a request without a session.';
COMMENT ON COLUMN tenure.pool_requests.claim_timeout_ms IS 'How long a grant without a session lasts without a heartbeat.';
COMMENT ON COLUMN tenure.pool_requests.max_wait_ms IS 'How long the request may wait; null for ever.';
COMMENT ON COLUMN tenure.pool_requests.resource IS 'Name of the granted resource.';
COMMENT ON COLUMN tenure.pool_requests.token IS 'Fencing token of the grant.';
COMMENT ON COLUMN tenure.pool_requests.expires_at IS 'When a grant without a session ends.';

-- Sends NOTIFY that a pool changed.
CREATE FUNCTION tenure.notify_pool(in_pool integer) RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT pg_catalog.pg_notify('tenure_notify', json_build_object('pool_changed',
        json_build_object('namespace', p.namespace, 'name', p.name))::text)
    FROM tenure.pools p WHERE p.id = in_pool
$$;

-- The id of a pool, whose row is locked. Creates the pool if it does not exist.
CREATE FUNCTION tenure.ensure_pool(in_namespace text, in_name text) RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    found_id integer;
BEGIN
    INSERT INTO tenure.pools (namespace, name) VALUES (in_namespace, in_name)
    ON CONFLICT (namespace, name) DO NOTHING;
    SELECT p.id INTO STRICT found_id FROM tenure.pools p WHERE p.namespace = in_namespace AND p.name = in_name
    FOR NO KEY UPDATE;
    RETURN found_id;
END
$$;

-- Ends a request; its resource starts its cooldown.
CREATE FUNCTION tenure.end_request(in_request bigint, in_state text, now_ timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    pool_ integer;
    cooldown_ bigint;
BEGIN
    UPDATE tenure.pool_requests r SET state = in_state, ended_at = now_ WHERE r.id = in_request RETURNING r.pool_id INTO pool_;
    SELECT nullif(p.cooldown_ms, 0) INTO cooldown_ FROM tenure.pools p WHERE p.id = pool_;
    UPDATE tenure.resources s SET request_id = NULL, cooldown_until = now_ + cooldown_ * interval '1 millisecond'
    WHERE s.pool_id = pool_ AND s.request_id = in_request;
    PERFORM tenure.notify_pool(pool_);
END
$$;

-- Grants resources to requests, [[request id, resource name]], if both are still available. Returns the requests that got one;
-- `refusal` is why nothing was granted.
CREATE FUNCTION tenure.grant_resources(in_pool integer, authority text, leader_session text, leader_token bigint, pairs jsonb)
RETURNS TABLE (request_id bigint, refusal text) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    now_ timestamptz := date_trunc('milliseconds', clock_timestamp());
    token_base bigint := tenure.current_epoch() << 40;
    pool_ record;
    pair record;
    token_ bigint;
    any_granted boolean := false;
BEGIN
    SELECT p.mode, p.fallback, EXISTS (
               SELECT FROM tenure.namespaces s WHERE s.name = p.namespace AND s.paused_at IS NOT NULL) AS paused
    INTO pool_ FROM tenure.pools p WHERE p.id = in_pool FOR NO KEY UPDATE;
    IF authority = 'leader' AND pool_.mode = 'exclusive' THEN
        PERFORM FROM tenure.leases l
        WHERE l.namespace = 'tenure' AND l.election = 'broker' AND l.slot = 0 AND l.token = leader_token
          AND l.session = leader_session
        FOR SHARE;
        refusal := CASE WHEN NOT FOUND THEN 'not_leader' END;
    ELSIF authority = 'leader' THEN
        refusal := 'mode distributed';
    ELSIF pool_.mode = 'exclusive' AND (authority = 'direct' OR pool_.fallback = 'none') THEN
        refusal := 'mode exclusive';
    END IF;
    IF refusal IS NULL AND pool_.paused THEN
        refusal := 'paused';
    END IF;
    IF refusal IS NOT NULL THEN
        RETURN NEXT;
        RETURN;
    END IF;
    FOR pair IN SELECT (g.pair ->> 0)::bigint AS request_id, g.pair ->> 1 AS resource
                FROM jsonb_array_elements(pairs) WITH ORDINALITY AS g (pair, n) ORDER BY g.n LOOP
        CONTINUE WHEN NOT EXISTS (
            SELECT FROM tenure.pool_requests r WHERE r.id = pair.request_id AND r.pool_id = in_pool AND r.state = 'waiting'
              AND (r.session IS NULL
                   OR EXISTS (SELECT FROM tenure.sessions s WHERE s.id = r.session AND s.state = 'live')));
        UPDATE tenure.resources s
        SET token = greatest(s.token, token_base) + 1, request_id = pair.request_id, cooldown_until = NULL
        WHERE s.pool_id = in_pool AND s.name = pair.resource AND s.request_id IS NULL AND s.enabled AND NOT s.removed
          AND (s.cooldown_until IS NULL OR s.cooldown_until <= now_)
        RETURNING s.token INTO token_;
        CONTINUE WHEN NOT FOUND;
        UPDATE tenure.pool_requests r
        SET state = 'granted', resource = pair.resource, token = token_, granted_at = now_,
            expires_at = now_ + r.claim_timeout_ms * interval '1 millisecond'
        WHERE r.id = pair.request_id;
        any_granted := true;
        request_id := pair.request_id;
        RETURN NEXT;
    END LOOP;
    IF any_granted THEN
        PERFORM tenure.notify_pool(in_pool);
    END IF;
END
$$;

-- Ends requests whose session ended or whose time is over, notifies pools whose resources finished their cooldown,
-- and prunes old requests.
CREATE FUNCTION tenure.maintain_pools(
    clock_ timestamptz, now_ timestamptz, max_count integer, OUT released bigint, OUT has_more boolean
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    found_ record;
    ended_count integer := 0;
BEGIN
    released := 0;
    has_more := false;
    -- Lock the pools first, as all other calls do.
    PERFORM FROM tenure.pools p WHERE p.id IN (
        SELECT r.pool_id FROM tenure.pool_requests r WHERE r.state IN ('waiting', 'granted')
        UNION SELECT s.pool_id FROM tenure.resources s WHERE s.cooldown_until <= now_) ORDER BY p.id FOR NO KEY UPDATE;
    FOR found_ IN
        SELECT r.id, r.state FROM tenure.pool_requests r
        WHERE r.state IN ('waiting', 'granted') AND (
            r.session IS NOT NULL
                AND NOT EXISTS (SELECT FROM tenure.sessions s WHERE s.id = r.session AND s.state = 'live')
            OR r.state = 'granted' AND r.expires_at < clock_
            OR r.state = 'waiting' AND r.created_at + r.max_wait_ms * interval '1 millisecond' < clock_)
        ORDER BY r.id LIMIT max_count + 1
    LOOP
        ended_count := ended_count + 1;
        IF ended_count > max_count THEN
            has_more := true;
            EXIT;
        END IF;
        PERFORM tenure.end_request(found_.id, 'expired', now_);
        released := released + CASE WHEN found_.state = 'granted' THEN 1 ELSE 0 END;
    END LOOP;
    FOR found_ IN
        UPDATE tenure.resources s SET cooldown_until = NULL WHERE s.cooldown_until <= now_ RETURNING s.pool_id
    LOOP
        PERFORM tenure.notify_pool(found_.pool_id);
    END LOOP;
    DELETE FROM tenure.pool_requests WHERE id = ANY (ARRAY(
        SELECT r.id FROM tenure.pools p CROSS JOIN LATERAL (
            SELECT o.id FROM tenure.pool_requests o
            WHERE o.pool_id = p.id AND o.ended_at < clock_ - p.request_retention_ms * interval '1 millisecond'
            ORDER BY o.ended_at LIMIT max_count) r
        LIMIT max_count));
END
$$;

-- A request as JSON. Without its priority, which depends on the pool's formula and on the time.
CREATE FUNCTION tenure.request_json(r tenure.pool_requests) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_build_object(
        'id', r.id, 'idempotency_key', r.idempotency_key, 'owner', r.owner, 'required_tags', r.required_tags,
        'preferred_tags', r.preferred_tags, 'base_priority', r.base_priority, 'session', r.session, 'claim_timeout_ms',
            r.claim_timeout_ms,
        'max_wait_ms', r.max_wait_ms, 'state', r.state, 'resource', r.resource, 'token', r.token, 'priority', NULL,
            'created_at_ms', tenure.to_unix_ms(r.created_at),
        'granted_at_ms', tenure.to_unix_ms(r.granted_at), 'expires_at_ms', tenure.to_unix_ms(r.expires_at),
        'ended_at_ms', tenure.to_unix_ms(r.ended_at))
$$;
