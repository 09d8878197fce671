-- Handing out.
--
-- Planning is held to what is right at every size: rows are found by their indexes, in the order of the index, whatever the
-- statistics say or do not say yet. And never `WHERE id IN (SELECT … LIMIT n FOR UPDATE SKIP LOCKED)`: the planner may run
-- that subquery once for each row, and hand out more than n. What was picked is an array before anything is updated.

-- Of these ready tasks (locked, in order, some with concurrency keys) those that may be claimed now. Those whose key is used
-- up are parked as held, out of the way of the next look. Whose key another call decides about at this moment is left as it
-- is, and `busy` says so; if they go `in_order`, those behind it wait too.
CREATE FUNCTION tenure.gate(
    in_namespace text, picked tid[], wanted integer, in_order boolean, OUT passed tid[], OUT busy boolean
)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    keys text[];
    counts bigint[];
    parked tid[];
    task record;
    place integer;
BEGIN
    busy := false;
    keys := ARRAY(
        SELECT k.key FROM (
            SELECT DISTINCT t.concurrency_key AS key FROM tenure.tasks t
            WHERE t.ctid = ANY (picked) AND t.concurrency_key IS NOT NULL
        ) k WHERE tenure.try_key(in_namespace, k.key));
    -- A new statement: its snapshot has all that was claimed under these keys before we had their locks.
    counts := ARRAY(
        SELECT (SELECT count(*) FROM tenure.tasks t JOIN tenure.queues q ON q.id = t.queue
                WHERE t.concurrency_key = k.key AND t.state = 'claimed' AND q.namespace = in_namespace)
        FROM unnest(keys) WITH ORDINALITY AS k (key, n) ORDER BY k.n);
    FOR task IN
        SELECT p.at, t.concurrency_key AS key, t.concurrency_limit AS most
        FROM unnest(picked) WITH ORDINALITY AS p (at, n) JOIN tenure.tasks t ON t.ctid = p.at ORDER BY p.n
    LOOP
        place := array_position(keys, task.key);
        IF task.key IS NULL THEN
            passed := passed || task.at;
        ELSIF place IS NULL THEN
            busy := true;
            EXIT WHEN in_order;
        ELSIF cardinality(passed) >= wanted THEN
            -- Not its turn; and nobody knows yet whether there is room for it.
            NULL;
        ELSIF counts[place] < task.most THEN
            counts[place] := counts[place] + 1;
            passed := passed || task.at;
        ELSE
            parked := parked || task.at;
        END IF;
    END LOOP;
    UPDATE tenure.tasks SET state = 'held' WHERE ctid = ANY (parked);
END
$$;

-- The lock of a concurrency key, among tenure.key_locks. Two keys may share one: then the one is decided about after the other.
CREATE FUNCTION tenure.key_lock(in_namespace text, key text) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    SELECT (hashtextextended(in_namespace || '/' || key, 8371) & 1023)::integer
$$;

-- Takes it, unless another has it.
CREATE FUNCTION tenure.try_key(in_namespace text, key text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM FROM tenure.key_locks l WHERE l.n = tenure.key_lock(in_namespace, key) FOR UPDATE SKIP LOCKED;
    RETURN FOUND;
END
$$;

-- Waits for the claims under way, and keeps others from beginning until the transaction is over.
CREATE FUNCTION tenure.close_gate(in_queue integer) RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    LOCK TABLE tenure.claim_gate IN EXCLUSIVE MODE;
    RETURN in_queue;
END
$$;

-- Locks the first `wanted` of several demands together, as far as they go in order: up to the first that somebody else has
-- locked. `met` is how many there are, whether locked or not.
CREATE FUNCTION tenure.firsts(
    demand_ids integer[], befores timestamptz[], wanted integer, OUT picked tid[], OUT met integer
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    heads tid[];
    locked tid[];
    reached integer := 0;
BEGIN
    heads := ARRAY(
        SELECT h.ctid FROM unnest(demand_ids, befores) AS p (demand, before)
        CROSS JOIN LATERAL (
            SELECT t.ctid, t.effective_at, t.id FROM tenure.tasks t
            WHERE t.demand = p.demand AND t.state = 'ready' AND t.ready_at <= p.before
            ORDER BY t.effective_at, t.id LIMIT wanted
        ) h ORDER BY h.effective_at, h.id LIMIT wanted);
    -- One that has changed since is another row by now, and is missing here.
    locked := ARRAY(SELECT t.ctid FROM tenure.tasks t WHERE t.ctid = ANY (heads) AND t.state = 'ready' FOR UPDATE SKIP LOCKED);
    met := cardinality(heads);
    WHILE reached < met AND heads[reached + 1] = ANY (locked) LOOP
        reached := reached + 1;
    END LOOP;
    picked := heads[1:reached];
END
$$;

-- Of these tasks, in their order, those whose payloads and inputs come to at most `most` bytes together, but one at least if
-- `first`. The bytes of those.
CREATE FUNCTION tenure.carried(INOUT picked tid[], most bigint, first boolean, OUT bytes bigint)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    size bigint;
BEGIN
    bytes := 0;
    -- One by one: what is not handed out is not read.
    FOR n IN 1..coalesce(cardinality(picked), 0) LOOP
        SELECT octet_length(t.payload::text) + CASE WHEN t.open_parents IS NULL THEN 0 ELSE coalesce((
                   SELECT sum(octet_length(o.output::text)) FROM tenure.parents e JOIN tenure.tasks o ON o.id = e.parent
                   WHERE e.child = t.id AND o.output IS NOT NULL), 0) END
        INTO size FROM tenure.tasks t WHERE t.ctid = picked[n];
        IF bytes + size > most AND NOT (first AND n = 1) THEN
            picked := picked[1:n - 1];
            RETURN;
        END IF;
        bytes := bytes + size;
    END LOOP;
END
$$;

-- How many of the first `wanted` of several demands together are of each: no row is locked that will not be handed out.
CREATE FUNCTION tenure.quotas(
    demand_ids integer[], ats timestamptz[], ids bigint[], befores timestamptz[], wanted integer
) RETURNS integer[] LANGUAGE sql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    WITH heads AS MATERIALIZED (
        SELECT p.n, h.effective_at, h.id
        FROM unnest(demand_ids, ats, ids, befores) WITH ORDINALITY AS p (demand, at, id, before, n)
        CROSS JOIN LATERAL (
            SELECT t.effective_at, t.id FROM tenure.tasks t
            WHERE t.demand = p.demand AND t.state = 'ready' AND (t.effective_at, t.id) > (p.at, p.id)
              AND t.ready_at <= p.before
            ORDER BY t.effective_at, t.id LIMIT wanted
        ) h
    ), firsts AS (
        SELECT n FROM heads ORDER BY effective_at, id LIMIT wanted
    )
    SELECT array_agg((SELECT count(*) FROM firsts f WHERE f.n = p.n)::integer ORDER BY p.n)
    FROM generate_subscripts(demand_ids, 1) AS p (n)
$$;

-- Lets scheduled tasks of a queue go whose time has come: those after `floor_`. How many there were.
CREATE FUNCTION tenure.promote(in_queue integer, floor_ timestamptz, now_ timestamptz, most integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    moved bigint;
BEGIN
    UPDATE tenure.tasks t
    SET state = 'ready', ready_at = t.run_at, give_up_at = t.run_at + t.max_wait_ms * interval '1 millisecond'
    WHERE t.ctid = ANY (ARRAY(
        SELECT s.ctid FROM tenure.tasks s WHERE s.queue = in_queue AND s.state = 'scheduled' AND s.run_at > floor_
          AND s.run_at <= now_ AND s.run_at IS NOT NULL
        ORDER BY s.run_at LIMIT most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS moved = ROW_COUNT;
    RETURN moved;
END
$$;

-- Hands out tasks of a queue.
-- `authority`: direct, leader or fallback; of a leader its session and token. `seats`: [{name, kinds, tags, wanted, session,
-- hold_ms}], served in order. `floors`: {"demand": [ms, id]}, behind which to look first unless `whole`; what comes before is
-- looked at if that does not suffice. In it, too, "due": the time (ms) up to which scheduled tasks were let go.
-- Rows: a task each, its kind left out if its demand is among the floors; and at the end one with seat = -1, where `note` is
-- why nothing was handed out, `next_ms` in how long there may be more, `looked` whether all was looked at, and `effective_at_ms` the
-- next "due".
CREATE FUNCTION tenure.claim(
    in_namespace text, in_queue text, authority text, leader text, leader_token_ bigint, seats json, floors jsonb,
    whole boolean
) RETURNS TABLE (
    seat integer, id bigint, token bigint, demand integer, effective_at_ms bigint, kind text, attempt integer,
    max_attempts integer, priority integer, payload json, deadline_ms bigint, turn bigint,
    max_run_ms bigint, backoff_first_ms bigint, backoff_most_ms bigint, leader_token bigint, inputs text,
    note text, next_ms bigint, looked boolean, key text
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    -- To the millisecond, as everybody sees it.
    now_ timestamptz := date_trunc('milliseconds', clock_timestamp());
    queue_id_ integer;
    queue_ record;
    seat_ record;
    base bigint;
    wanted integer;
    most integer;
    allowance integer;
    stile_turn bigint;
    stile_parts numeric;
    -- Of which demands the caller knows the kind.
    known CONSTANT integer[] := ARRAY(SELECT k::integer FROM jsonb_object_keys(floors - 'due') k);
    -- What was scheduled for a time before this was let go: it left dead entries at the head of the index, which an old snapshot keeps.
    due_floor timestamptz := CASE WHEN whole THEN '-infinity'
                                  ELSE coalesce(tenure.at((floors ->> 'due')::bigint), '-infinity') END;
    demand_ids integer[];
    quotas integer[];
    floors_at timestamptz[];
    floors_id bigint[];
    befores timestamptz[];
    picked tid[];
    keyed boolean;
    held_back boolean;
    from_start boolean;
    lap integer;
    found_ integer;
    got integer;
    served integer := 0;
    short boolean := false;
    busy boolean := false;
    coming timestamptz;
    clock_back boolean := false;
    -- How many bytes of payloads and inputs may still be handed out; and of what was picked, at most how many there are, should
    -- it be cheap to say (what is compressed may have 255 times its size), and whether some have parents.
    room bigint := 16777216;
    weight bigint;
    heavy boolean;
    offered integer;
    full_ boolean := false;
BEGIN
    -- Whoever sets a queue takes this lock alone. What is read below is read after that.
    LOCK TABLE tenure.claim_gate IN ROW SHARE MODE;
    SELECT q.id INTO queue_id_ FROM tenure.queues q WHERE q.namespace = in_namespace AND q.name = in_queue;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    seat := -1;
    SELECT q.mode, q.fallback, q.rate_count, q.rate_per_ms, q.max_claimed, q.prefer_ms,
           q.paused_at IS NOT NULL OR EXISTS (
               SELECT FROM tenure.namespaces s WHERE s.name = in_namespace AND s.paused_at IS NOT NULL) AS paused,
           (SELECT t.run_at FROM tenure.tasks t WHERE t.queue = q.id AND t.state = 'scheduled' AND t.run_at IS NOT NULL
              AND t.run_at > due_floor ORDER BY t.run_at LIMIT 1) AS due,
           (SELECT CASE WHEN s.gone THEN 'gone ' || s.session ELSE 'not-approved ' || s.name END
            FROM (SELECT g.name, g.session, g.session IS NOT NULL AND NOT EXISTS (
                             SELECT FROM tenure.sessions l WHERE l.id = g.session AND l.state = 'live') AS gone
                  FROM json_to_recordset(seats) AS g (name text, session text)) s
            WHERE s.gone OR q.approval AND NOT EXISTS (
                SELECT FROM tenure.workers w
                WHERE w.namespace = in_namespace AND w.name = s.name AND w.approved_by IS NOT NULL)
            LIMIT 1) AS unwelcome
    INTO queue_ FROM tenure.queues q WHERE q.id = queue_id_;
    IF authority = 'leader' AND queue_.mode = 'exclusive' THEN
        PERFORM FROM tenure.leases l
        WHERE l.namespace = 'tenure' AND l.name = 'claims' AND l.slot = 0 AND l.token = leader_token_
          AND l.session = leader
        FOR SHARE;
        note := CASE WHEN NOT FOUND THEN 'not-leader' END;
    ELSIF authority = 'leader' THEN
        note := 'mode distributed';
    ELSIF queue_.mode = 'exclusive' AND (authority = 'direct' OR queue_.fallback = 'none') THEN
        note := 'mode exclusive';
    END IF;
    IF note IS NULL AND queue_.paused THEN
        note := 'paused';
    END IF;
    IF note IS NULL THEN
        note := queue_.unwelcome;
    END IF;
    IF note IS NOT NULL THEN
        RETURN NEXT;
        RETURN;
    END IF;
    coming := queue_.due;
    IF coming <= now_ THEN
        PERFORM tenure.promote(queue_id_, due_floor, now_, 1000);
        -- From the first of those that were due: what was before it is not walked over again.
        due_floor := greatest(due_floor, coming - interval '1 millisecond');
        SELECT t.run_at INTO coming FROM tenure.tasks t WHERE t.queue = queue_id_ AND t.state = 'scheduled' AND t.run_at IS NOT NULL
          AND t.run_at > due_floor ORDER BY t.run_at LIMIT 1;
    END IF;
    -- A little before now: what is committed late is found at the next look from the beginning, and most is not late.
    due_floor := least(coming - interval '1 millisecond', now_ - interval '100 milliseconds');
    base := tenure.current_epoch() << 40;
    IF authority = 'leader' OR queue_.rate_count IS NOT NULL OR queue_.max_claimed IS NOT NULL THEN
        INSERT INTO tenure.turnstiles (queue) VALUES (queue_id_) ON CONFLICT (queue) DO NOTHING;
        SELECT s.turn, least(queue_.rate_count * queue_.rate_per_ms::numeric, coalesce(
                   s.parts + greatest(0, floor(date_part('epoch', now_ - s.filled_at) * 1000))::numeric * queue_.rate_count,
                   queue_.rate_count * queue_.rate_per_ms::numeric)), s.filled_at > clock_timestamp()
        INTO stile_turn, stile_parts, clock_back FROM tenure.turnstiles s WHERE s.queue = queue_id_ FOR NO KEY UPDATE;
        -- Others waited for that lock; what they claimed is seen from here on.
        allowance := least(div(stile_parts, queue_.rate_per_ms)::integer, queue_.max_claimed - CASE WHEN queue_.max_claimed > 0 THEN (
            SELECT (SELECT count(*) FROM tenure.tasks t
                    WHERE t.session IS NOT NULL AND t.state = 'claimed' AND t.queue = queue_id_)
                 + (SELECT count(*) FROM tenure.tasks t
                    WHERE t.deadline IS NOT NULL AND t.session IS NULL AND t.state = 'claimed' AND t.queue = queue_id_)
            )::integer ELSE 0 END);
    END IF;

    FOR seat_ IN
        SELECT (s.n - 1)::integer AS n, s.name, s.kinds, s.tags, s.session, s.hold_ms, s.wanted
        FROM ROWS FROM (json_to_recordset(seats) AS (
            name text, kinds text[], tags text[], session text, hold_ms bigint, wanted integer)
        ) WITH ORDINALITY AS s (name, kinds, tags, session, hold_ms, wanted, n)
    LOOP
        wanted := least(seat_.wanted, allowance);
        SELECT array_agg(d.id),
               array_agg(coalesce(to_timestamp((floors -> d.id::text ->> 0)::double precision / 1000), '-infinity')),
               array_agg(coalesce((floors -> d.id::text ->> 1)::bigint, 0)),
               array_agg(CASE WHEN cardinality(d.prefers) = 0 OR d.prefers && seat_.tags THEN 'infinity'
                              ELSE now_ - queue_.prefer_ms * interval '1 millisecond' END)
        INTO demand_ids, floors_at, floors_id, befores
        FROM tenure.demands d
        WHERE d.queue = queue_id_
          AND (d.kind = '' OR cardinality(seat_.kinds) = 0 OR d.kind = ANY (seat_.kinds))
          AND d.requires <@ seat_.tags
          AND (cardinality(d.workers) = 0 OR d.workers && ARRAY['*', seat_.name]);
        IF seat_.session IS NULL THEN
            -- Whoever has it locked says the same, or changes it: nobody waits for that.
            UPDATE tenure.workers w SET seen_at = now_ WHERE w.ctid = ANY (ARRAY(
                SELECT v.ctid FROM tenure.workers v
                WHERE v.namespace = in_namespace AND v.name = seat_.name AND v.seen_at < now_ - interval '1 second'
                FOR UPDATE SKIP LOCKED));
        END IF;
        from_start := false;
        held_back := false;
        lap := 0;
        WHILE wanted > 0 AND demand_ids IS NOT NULL LOOP
            IF lap = 0 AND NOT whole AND known <> '{}' THEN
                from_start := false;
            ELSE
                from_start := true;
                looked := true;
                floors_at := array_fill('-infinity'::timestamptz, ARRAY[cardinality(demand_ids)]);
            END IF;
            -- Where some are held back by their keys, look further at once.
            most := CASE WHEN held_back THEN greatest(wanted, 200) ELSE wanted END;
            IF authority = 'leader' THEN
                -- Strict order: what somebody has locked is waited for, not passed by.
                SELECT f.picked, f.met, busy OR cardinality(f.picked) < f.met INTO picked, found_, busy
                FROM tenure.firsts(demand_ids, befores, most) f;
                SELECT bool_or(t.concurrency_key IS NOT NULL), sum(CASE WHEN pg_column_compression(t.payload) IS NULL THEN pg_column_size(t.payload)
                                ELSE least(pg_column_size(t.payload) * 256::bigint, 1048576) END), bool_or(t.open_parents IS NOT NULL)
                INTO keyed, weight, heavy FROM tenure.tasks t WHERE t.ctid = ANY (picked);
            ELSE
                quotas := ARRAY[most];
                IF cardinality(demand_ids) > 1 THEN
                    quotas := tenure.quotas(demand_ids, floors_at, floors_id, befores, most);
                END IF;
                SELECT array_agg(h.ctid ORDER BY h.effective_at, h.id), bool_or(h.concurrency_key IS NOT NULL), count(*),
                       sum(CASE WHEN pg_column_compression(h.payload) IS NULL THEN pg_column_size(h.payload)
                                ELSE least(pg_column_size(h.payload) * 256::bigint, 1048576) END),
                       bool_or(h.open_parents IS NOT NULL)
                INTO picked, keyed, found_, weight, heavy
                FROM unnest(demand_ids, quotas, floors_at, floors_id, befores) AS p (demand, quota, at, id, before)
                CROSS JOIN LATERAL (
                    SELECT t.ctid, t.effective_at, t.id, t.concurrency_key, t.payload, t.open_parents FROM tenure.tasks t
                    WHERE t.demand = p.demand AND t.state = 'ready' AND (t.effective_at, t.id) > (p.at, p.id)
                      AND t.ready_at <= p.before
                    ORDER BY t.effective_at, t.id LIMIT p.quota FOR UPDATE SKIP LOCKED
                ) h;
            END IF;
            IF keyed THEN
                SELECT g.passed, busy OR g.busy INTO picked, busy
                FROM tenure.gate(in_namespace, picked, wanted, authority = 'leader') g;
                picked := picked[1:wanted];
                held_back := true;
            END IF;
            IF heavy OR weight > room THEN
                offered := cardinality(picked);
                SELECT c.picked, c.bytes INTO picked, weight FROM tenure.carried(picked, room, served = 0) c;
                full_ := cardinality(picked) < offered;
            END IF;
            room := room - coalesce(weight, 0);
            RETURN QUERY
            UPDATE tenure.tasks t
            SET state = 'claimed', attempt = t.attempt + 1, token = greatest(t.token, base) + 1,
                session = seat_.session, worker = seat_.name, claimed_at = now_, progress = NULL, give_up_at = NULL,
                deadline = least(now_ + seat_.hold_ms * interval '1 millisecond',
                                 now_ + t.max_run_ms * interval '1 millisecond'),
                turn = CASE WHEN authority = 'leader' THEN stile_turn + served + array_position(picked, t.ctid) END
            WHERE t.ctid = ANY (picked)
            RETURNING seat_.n, t.id, t.token, t.demand, (date_part('epoch', t.effective_at) * 1000)::bigint,
                CASE WHEN t.demand = ANY (known) THEN NULL
                     ELSE (SELECT d.kind FROM tenure.demands d WHERE d.id = t.demand) END,
                t.attempt, t.max_attempts, t.priority, t.payload,
                (date_part('epoch', t.deadline) * 1000)::bigint, t.turn, t.max_run_ms, t.backoff_first_ms,
                t.backoff_most_ms, t.leader_token,
                CASE WHEN t.open_parents IS NOT NULL THEN (
                    SELECT json_object_agg(e.parent, o.output)::text
                    FROM tenure.parents e JOIN tenure.tasks o ON o.id = e.parent
                    WHERE e.child = t.id AND o.output IS NOT NULL) END,
                NULL::text, NULL::bigint, NULL::boolean, t.key;
            GET DIAGNOSTICS got = ROW_COUNT;
            served := served + got;
            wanted := wanted - got;
            allowance := allowance - got;
            lap := lap + 1;
            IF full_ THEN
                -- The rest is for the next call.
                busy := true;
                EXIT;
            END IF;
            -- A look that did not begin at the beginning is followed by one that does. One that found some held back, or
            -- whose share of a demand another claim took first, is worth repeating.
            EXIT WHEN from_start AND (found_ = 0 OR NOT held_back AND cardinality(demand_ids) = 1);
            IF lap > 20 OR busy AND got = 0 THEN
                busy := true;
                EXIT;
            END IF;
        END LOOP;
        short := short OR wanted > 0 OR wanted IS NULL OR allowance = 0;
        EXIT WHEN full_;
    END LOOP;

    -- If our clock was put back, time counts from here.
    IF (served > 0 OR clock_back) AND stile_turn IS NOT NULL THEN
        stile_parts := stile_parts - served * queue_.rate_per_ms;
        UPDATE tenure.turnstiles s
        SET parts = stile_parts, filled_at = now_,
            turn = CASE WHEN authority = 'leader' THEN s.turn + served ELSE s.turn END
        WHERE s.queue = queue_id_;
    END IF;
    IF short THEN
        coming := least(coming,
            CASE WHEN busy THEN now_ + interval '5 milliseconds' END,
            CASE WHEN stile_parts < queue_.rate_per_ms THEN now_ + interval '1 millisecond'
                * ceil((queue_.rate_per_ms - stile_parts) / queue_.rate_count)::double precision END,
            (SELECT min(h.ready_at) + queue_.prefer_ms * interval '1 millisecond'
             FROM tenure.demands d CROSS JOIN LATERAL (
                 SELECT t.ready_at FROM tenure.tasks t WHERE t.demand = d.id AND t.state = 'ready'
                 ORDER BY t.effective_at, t.id LIMIT 1) h
             WHERE d.queue = queue_id_ AND cardinality(d.prefers) > 0
               AND h.ready_at + queue_.prefer_ms * interval '1 millisecond' > now_));
        next_ms := CASE WHEN coming IS NOT NULL
            THEN greatest(0, ceil(date_part('epoch', coming - clock_timestamp()) * 1000))::bigint END;
    END IF;
    effective_at_ms := tenure.ms(due_floor);
    RETURN NEXT;
END
$$;
