-- Resources and who waits for them.

-- The hint that something happened in a pool.
CREATE FUNCTION tenure.pool_wake(in_pool integer) RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT pg_catalog.pg_notify('tenure_wake', json_build_object('pool',
        json_build_object('namespace', p.namespace, 'name', p.name))::text)
    FROM tenure.pools p WHERE p.id = in_pool
$$;

-- The number of a pool, which is made if it is not there; and it is held still.
CREATE FUNCTION tenure.pool_id(in_namespace text, in_name text) RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
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

-- Ends a request, and lets its resource rest.
CREATE FUNCTION tenure.request_end(in_request bigint, in_state text, now_ timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    pool_ integer;
    rest bigint;
BEGIN
    UPDATE tenure.pool_requests r SET state = in_state, ended_at = now_ WHERE r.id = in_request RETURNING r.pool INTO pool_;
    SELECT nullif(p.cool_down_ms, 0) INTO rest FROM tenure.pools p WHERE p.id = pool_;
    UPDATE tenure.resources s SET request = NULL, cooling_until = now_ + rest * interval '1 millisecond'
    WHERE s.pool = pool_ AND s.request = in_request;
    PERFORM tenure.pool_wake(pool_);
END
$$;

-- Hands resources to requests, pairwise, as far as both are still to be had: [[request, resource]]. Those that got one.
-- `note`: why nothing was handed out.
CREATE FUNCTION tenure.grant_all(in_pool integer, authority text, leader text, leader_token bigint, given jsonb)
RETURNS TABLE (request bigint, note text) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    now_ timestamptz := date_trunc('milliseconds', clock_timestamp());
    base bigint := tenure.current_epoch() << 40;
    pool_ record;
    pair record;
    token_ bigint;
    any_ boolean := false;
BEGIN
    SELECT p.mode, p.fallback, EXISTS (
               SELECT FROM tenure.namespaces s WHERE s.name = p.namespace AND s.paused_at IS NOT NULL) AS paused
    INTO pool_ FROM tenure.pools p WHERE p.id = in_pool FOR NO KEY UPDATE;
    IF authority = 'leader' AND pool_.mode = 'exclusive' THEN
        PERFORM FROM tenure.leases l
        WHERE l.namespace = 'tenure' AND l.name = 'claims' AND l.slot = 0 AND l.token = leader_token
          AND l.session = leader
        FOR SHARE;
        note := CASE WHEN NOT FOUND THEN 'not-leader' END;
    ELSIF authority = 'leader' THEN
        note := 'mode distributed';
    ELSIF pool_.mode = 'exclusive' AND (authority = 'direct' OR pool_.fallback = 'none') THEN
        note := 'mode exclusive';
    END IF;
    IF note IS NULL AND pool_.paused THEN
        note := 'paused';
    END IF;
    IF note IS NOT NULL THEN
        RETURN NEXT;
        RETURN;
    END IF;
    FOR pair IN SELECT (g.pair ->> 0)::bigint AS request, g.pair ->> 1 AS resource
                FROM jsonb_array_elements(given) WITH ORDINALITY AS g (pair, n) ORDER BY g.n LOOP
        CONTINUE WHEN NOT EXISTS (
            SELECT FROM tenure.pool_requests r WHERE r.id = pair.request AND r.pool = in_pool AND r.state = 'waiting'
              AND (r.session IS NULL
                   OR EXISTS (SELECT FROM tenure.sessions s WHERE s.id = r.session AND s.state = 'live')));
        UPDATE tenure.resources s
        SET token = greatest(s.token, base) + 1, request = pair.request, cooling_until = NULL
        WHERE s.pool = in_pool AND s.name = pair.resource AND s.request IS NULL AND s.enabled AND NOT s.removed
          AND (s.cooling_until IS NULL OR s.cooling_until <= now_)
        RETURNING s.token INTO token_;
        CONTINUE WHEN NOT FOUND;
        UPDATE tenure.pool_requests r
        SET state = 'granted', resource = pair.resource, token = token_, granted_at = now_,
            deadline = now_ + r.hold_ms * interval '1 millisecond'
        WHERE r.id = pair.request;
        any_ := true;
        request := pair.request;
        RETURN NEXT;
    END LOOP;
    IF any_ THEN
        PERFORM tenure.pool_wake(in_pool);
    END IF;
END
$$;

-- Ends requests whose session or time is over, wakes who waits for what has rested, forgets what is old.
CREATE FUNCTION tenure.tend_pools(
    clock_ timestamptz, now_ timestamptz, most integer, OUT freed bigint, OUT more boolean
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    found_ record;
    n integer := 0;
BEGIN
    freed := 0;
    more := false;
    -- The pools first, as everybody else does it.
    PERFORM FROM tenure.pools p WHERE p.id IN (
        SELECT r.pool FROM tenure.pool_requests r WHERE r.state IN ('waiting', 'granted')
        UNION SELECT s.pool FROM tenure.resources s WHERE s.cooling_until <= now_) ORDER BY p.id FOR NO KEY UPDATE;
    FOR found_ IN
        SELECT r.id, r.state FROM tenure.pool_requests r
        WHERE r.state IN ('waiting', 'granted') AND (
            r.session IS NOT NULL
                AND NOT EXISTS (SELECT FROM tenure.sessions s WHERE s.id = r.session AND s.state = 'live')
            OR r.state = 'granted' AND r.deadline < clock_
            OR r.state = 'waiting' AND r.created_at + r.max_wait_ms * interval '1 millisecond' < clock_)
        ORDER BY r.id LIMIT most + 1
    LOOP
        n := n + 1;
        IF n > most THEN
            more := true;
            EXIT;
        END IF;
        PERFORM tenure.request_end(found_.id, 'expired', now_);
        freed := freed + CASE WHEN found_.state = 'granted' THEN 1 ELSE 0 END;
    END LOOP;
    FOR found_ IN
        UPDATE tenure.resources s SET cooling_until = NULL WHERE s.cooling_until <= now_ RETURNING s.pool
    LOOP
        PERFORM tenure.pool_wake(found_.pool);
    END LOOP;
    DELETE FROM tenure.pool_requests WHERE id = ANY (ARRAY(
        SELECT r.id FROM tenure.pools p CROSS JOIN LATERAL (
            SELECT o.id FROM tenure.pool_requests o
            WHERE o.pool = p.id AND o.ended_at < clock_ - p.keep_ms * interval '1 millisecond'
            ORDER BY o.ended_at LIMIT most) r
        LIMIT most));
END
$$;
