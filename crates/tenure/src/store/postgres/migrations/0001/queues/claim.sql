-- Claims.
--
-- Planner settings keep the plans right at every size: rows are found through their indexes, in index order, whatever the
-- statistics are. The code never uses `WHERE id IN (SELECT … LIMIT n FOR UPDATE SKIP LOCKED)`: the planner may run that
-- subquery once for each row and claim more than n. The chosen rows are an array before anything is updated.

-- Selects from these ready tasks (locked, in order, some with concurrency keys) those that may be claimed now. Tasks whose key
-- has reached its limit become blocked, so that the next claim does not read them. Tasks whose key another transaction has
-- locked stay as they are, and `contended` is true; with `in_order`, the tasks behind them wait too.
CREATE FUNCTION tenure.filter_by_concurrency(
    in_namespace text, picked tid[], wanted integer, in_order boolean, OUT allowed tid[], OUT contended boolean
)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    keys text[];
    counts bigint[];
    blocked tid[];
    task record;
    index integer;
BEGIN
    contended := false;
    keys := ARRAY(
        SELECT k.key FROM (
            SELECT DISTINCT t.concurrency_key AS key FROM tenure.tasks t
            WHERE t.ctid = ANY (picked) AND t.concurrency_key IS NOT NULL
        ) k WHERE tenure.try_lock_concurrency_key(in_namespace, k.key));
    -- A new statement: its snapshot includes everything that was claimed under these keys before this transaction locked them.
    counts := ARRAY(
        SELECT (SELECT count(*) FROM tenure.tasks t JOIN tenure.queues q ON q.id = t.queue_id
                WHERE t.concurrency_key = k.key AND t.state = 'claimed' AND q.namespace = in_namespace)
        FROM unnest(keys) WITH ORDINALITY AS k (key, n) ORDER BY k.n);
    FOR task IN
        SELECT p.at, t.concurrency_key AS key, t.concurrency_limit AS key_limit
        FROM unnest(picked) WITH ORDINALITY AS p (at, n) JOIN tenure.tasks t ON t.ctid = p.at ORDER BY p.n
    LOOP
        index := array_position(keys, task.key);
        IF task.key IS NULL THEN
            allowed := allowed || task.at;
        ELSIF index IS NULL THEN
            contended := true;
            EXIT WHEN in_order;
        ELSIF cardinality(allowed) >= wanted THEN
            -- Enough tasks are chosen. This task is neither claimed nor blocked; a later claim checks its key.
            NULL;
        ELSIF counts[index] < task.key_limit THEN
            counts[index] := counts[index] + 1;
            allowed := allowed || task.at;
        ELSE
            blocked := blocked || task.at;
        END IF;
    END LOOP;
    UPDATE tenure.tasks SET state = 'blocked' WHERE ctid = ANY (blocked);
END
$$;

-- The row of tenure.concurrency_locks for a concurrency key. Two keys may share a row; they are then processed one after the
-- other.
CREATE FUNCTION tenure.concurrency_lock_id(in_namespace text, key text) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    SELECT (hashtextextended(in_namespace || '/' || key, 8371) & 1023)::integer
$$;

-- Locks the row of a concurrency key. False if another transaction has locked it.
CREATE FUNCTION tenure.try_lock_concurrency_key(in_namespace text, key text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM FROM tenure.concurrency_locks l WHERE l.id = tenure.concurrency_lock_id(in_namespace, key) FOR UPDATE SKIP LOCKED;
    RETURN FOUND;
END
$$;

-- Waits for the claims in progress, and blocks new ones until the transaction ends.
CREATE FUNCTION tenure.lock_claims(in_queue integer) RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    LOCK TABLE tenure.claim_lock IN EXCLUSIVE MODE;
    RETURN in_queue;
END
$$;

-- Locks the first `wanted` tasks of several requirements in strict order, up to the first task that another transaction has
-- locked. `found_count` is the number of tasks, locked or not.
CREATE FUNCTION tenure.lock_first_tasks(
    requirements_ids integer[], ready_before timestamptz[], wanted integer, OUT picked tid[], OUT found_count integer
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    first_tasks tid[];
    locked tid[];
    locked_count integer := 0;
BEGIN
    first_tasks := ARRAY(
        SELECT h.ctid FROM unnest(requirements_ids, ready_before) AS p (requirements_id, ready_until)
        CROSS JOIN LATERAL (
            SELECT t.ctid, t.effective_at, t.id FROM tenure.tasks t
            WHERE t.requirements_id = p.requirements_id AND t.state = 'ready' AND t.ready_at <= p.ready_until
            ORDER BY t.effective_at, t.id LIMIT wanted
        ) h ORDER BY h.effective_at, h.id LIMIT wanted);
    -- A task that changed meanwhile has another row version and is missing here.
    locked := ARRAY(SELECT t.ctid FROM tenure.tasks t WHERE t.ctid = ANY (first_tasks) AND t.state = 'ready'
        FOR UPDATE SKIP LOCKED);
    found_count := cardinality(first_tasks);
    WHILE locked_count < found_count AND first_tasks[locked_count + 1] = ANY (locked) LOOP
        locked_count := locked_count + 1;
    END LOOP;
    picked := first_tasks[1:locked_count];
END
$$;

-- Cuts the list of tasks where payloads and parent results exceed `max_bytes` in total; keeps at least one if `allow_first`.
-- `bytes` is the total of the tasks that remain.
CREATE FUNCTION tenure.limit_by_size(INOUT picked tid[], max_bytes bigint, allow_first boolean, OUT bytes bigint)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    size bigint;
BEGIN
    bytes := 0;
    -- One by one, so that the payloads of the other tasks are not read.
    FOR n IN 1..coalesce(cardinality(picked), 0) LOOP
        SELECT octet_length(t.payload::text) + CASE WHEN t.pending_parent_count IS NULL THEN 0 ELSE coalesce((
                   SELECT sum(octet_length(o.result::text)) FROM tenure.task_dependencies e
                       JOIN tenure.tasks o ON o.id = e.parent_id
                   WHERE e.task_id = t.id AND o.result IS NOT NULL), 0) END
        INTO size FROM tenure.tasks t WHERE t.ctid = picked[n];
        IF bytes + size > max_bytes AND NOT (allow_first AND n = 1) THEN
            picked := picked[1:n - 1];
            RETURN;
        END IF;
        bytes := bytes + size;
    END LOOP;
END
$$;

-- How many of the first `wanted` tasks each of several requirements has. With it a claim locks no row that it does not claim.
CREATE FUNCTION tenure.claim_quotas(
    requirements_ids integer[], after_times timestamptz[], after_ids bigint[], ready_before timestamptz[], wanted integer
) RETURNS integer[] LANGUAGE sql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    WITH candidates AS MATERIALIZED (
        SELECT p.n, h.effective_at, h.id
        FROM unnest(requirements_ids, after_times, after_ids, ready_before) WITH ORDINALITY AS p (requirements_id, after_time,
            id, ready_until, n)
        CROSS JOIN LATERAL (
            SELECT t.effective_at, t.id FROM tenure.tasks t
            WHERE t.requirements_id = p.requirements_id AND t.state = 'ready' AND (t.effective_at, t.id) > (p.after_time, p.id)
              AND t.ready_at <= p.ready_until
            ORDER BY t.effective_at, t.id LIMIT wanted
        ) h
    ), first_tasks AS (
        SELECT n FROM candidates ORDER BY effective_at, id LIMIT wanted
    )
    SELECT array_agg((SELECT count(*) FROM first_tasks f WHERE f.n = p.n)::integer ORDER BY p.n)
    FROM generate_subscripts(requirements_ids, 1) AS p (n)
$$;

-- Makes scheduled tasks of a queue ready whose run_at is after `after_` and has come. Returns their number.
CREATE FUNCTION tenure.promote_due_tasks(in_queue integer, after_ timestamptz, now_ timestamptz,
    max_count integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    moved bigint;
BEGIN
    UPDATE tenure.tasks t
    SET state = 'ready', ready_at = t.run_at, wait_expires_at = t.run_at + t.max_wait_ms * interval '1 millisecond'
    WHERE t.ctid = ANY (ARRAY(
        SELECT s.ctid FROM tenure.tasks s WHERE s.queue_id = in_queue AND s.state = 'scheduled' AND s.run_at > after_
          AND s.run_at <= now_ AND s.run_at IS NOT NULL
        ORDER BY s.run_at LIMIT max_count FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS moved = ROW_COUNT;
    RETURN moved;
END
$$;

-- Claims tasks of a queue.
--   * `authority`: direct, leader or fallback; `leader_session` and `leader_token_` are those of a leader.
--   * `requests`: [{name, task_kinds, tags, wanted, session, claim_timeout_ms}], served in order.
--   * `cursors`: {"requirements id": [effective_at in ms, task id]}. Its key "due" is the time (ms) up to which
--     scheduled tasks were made ready.
--   * `full_scan`: read the tasks from the beginning. Otherwise the call reads the tasks behind the cursors first,
--     and those before them only if it needs more.
-- Returns one row for each task, without its kind if `cursors` has its requirements. A last row, with -1 as its
-- request_index, has:
--   * `refusal`: why nothing was claimed.
--   * `next_in_ms`: when there may be more tasks.
--   * `scanned_all`: whether all tasks were read.
--   * `effective_at_ms`: the next value of "due".
CREATE FUNCTION tenure.claim_tasks(
    in_namespace text, in_queue text, authority text, leader_session text, leader_token_ bigint, requests json, cursors jsonb,
    full_scan boolean
) RETURNS TABLE (
    request_index integer, task_id bigint, token bigint, requirements_id integer, effective_at_ms bigint, kind text,
        attempt integer,
    max_attempts integer, priority integer, payload json, claim_expires_at_ms bigint, claim_seq bigint,
    max_run_ms bigint, initial_backoff_ms bigint, max_backoff_ms bigint, leader_token bigint, parent_results text,
    refusal text, next_in_ms bigint, scanned_all boolean, idempotency_key text
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    -- In milliseconds, the precision of every other store.
    now_ timestamptz := date_trunc('milliseconds', clock_timestamp());
    queue_id_ integer;
    queue_ record;
    request_ record;
    token_base bigint;
    wanted integer;
    max_count integer;
    allowance integer;
    last_claim_seq bigint;
    rate_credit_ numeric;
    -- The requirements whose kind the caller knows.
    known CONSTANT integer[] := ARRAY(SELECT k::integer FROM jsonb_object_keys(cursors - 'due') k);
    -- Scheduled tasks up to this time were made ready. They left dead entries at the start of the index, which an old snapshot
    -- retains.
    promoted_until timestamptz := CASE WHEN full_scan THEN '-infinity'
                                  ELSE coalesce(tenure.from_unix_ms((cursors ->> 'due')::bigint), '-infinity') END;
    requirements_ids integer[];
    quotas_ integer[];
    cursor_times timestamptz[];
    cursor_ids bigint[];
    ready_before timestamptz[];
    picked tid[];
    has_keys boolean;
    any_blocked boolean;
    from_start boolean;
    pass_ integer;
    found_ integer;
    got_count integer;
    claimed_count integer := 0;
    unsatisfied boolean := false;
    contended boolean := false;
    next_at timestamptz;
    clock_back boolean := false;
    -- The remaining size of payloads and parent results; an upper bound of the size of the chosen tasks, if it is cheap to
    -- compute (a compressed value may expand to 255 times its size); and whether some of them have parents.
    bytes_left bigint := 16777216;
    bytes_ bigint;
    has_parents_ boolean;
    offered_count integer;
    size_limit_reached boolean := false;
BEGIN
    -- A change of a queue's settings takes this lock exclusively. Everything below is read after that.
    LOCK TABLE tenure.claim_lock IN ROW SHARE MODE;
    SELECT q.id INTO queue_id_ FROM tenure.queues q WHERE q.namespace = in_namespace AND q.name = in_queue;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    request_index := -1;
    SELECT q.mode, q.fallback, q.rate_count, q.rate_per_ms, q.max_claimed, q.preference_window_ms,
           q.paused_at IS NOT NULL OR EXISTS (
               SELECT FROM tenure.namespaces s WHERE s.name = in_namespace AND s.paused_at IS NOT NULL) AS paused,
           (SELECT t.run_at FROM tenure.tasks t WHERE t.queue_id = q.id AND t.state = 'scheduled' AND t.run_at IS NOT NULL
              AND t.run_at > promoted_until ORDER BY t.run_at LIMIT 1) AS due,
           (SELECT CASE WHEN s.ended THEN 'session_ended ' || s.session ELSE 'not_approved ' || s.name END
            FROM (SELECT g.name, g.session, g.session IS NOT NULL AND NOT EXISTS (
                             SELECT FROM tenure.sessions l WHERE l.id = g.session AND l.state = 'live') AS ended
                  FROM json_to_recordset(requests) AS g (name text, session text)) s
            WHERE s.ended OR q.require_approval AND NOT EXISTS (
                SELECT FROM tenure.workers w
                WHERE w.namespace = in_namespace AND w.name = s.name AND w.approved_by IS NOT NULL)
            LIMIT 1) AS rejected_claimant
    INTO queue_ FROM tenure.queues q WHERE q.id = queue_id_;
    IF authority = 'leader' AND queue_.mode = 'exclusive' THEN
        PERFORM FROM tenure.leases l
        WHERE l.namespace = 'tenure' AND l.election = 'broker' AND l.slot = 0 AND l.token = leader_token_
          AND l.session = leader_session
        FOR SHARE;
        refusal := CASE WHEN NOT FOUND THEN 'not_leader' END;
    ELSIF authority = 'leader' THEN
        refusal := 'mode distributed';
    ELSIF queue_.mode = 'exclusive' AND (authority = 'direct' OR queue_.fallback = 'none') THEN
        refusal := 'mode exclusive';
    END IF;
    IF refusal IS NULL AND queue_.paused THEN
        refusal := 'paused';
    END IF;
    IF refusal IS NULL THEN
        refusal := queue_.rejected_claimant;
    END IF;
    IF refusal IS NOT NULL THEN
        RETURN NEXT;
        RETURN;
    END IF;
    next_at := queue_.due;
    IF next_at <= now_ THEN
        PERFORM tenure.promote_due_tasks(queue_id_, promoted_until, now_, 1000);
        -- Start at the first task that was due, so that entries before it are not read again.
        promoted_until := greatest(promoted_until, next_at - interval '1 millisecond');
        SELECT t.run_at INTO next_at FROM tenure.tasks t WHERE t.queue_id = queue_id_ AND t.state = 'scheduled'
            AND t.run_at IS NOT NULL
          AND t.run_at > promoted_until ORDER BY t.run_at LIMIT 1;
    END IF;
    -- Stay 100 ms behind now, because a task may be committed after its run_at. The next full scan finds later ones.
    promoted_until := least(next_at - interval '1 millisecond', now_ - interval '100 milliseconds');
    token_base := tenure.current_epoch() << 40;
    IF authority = 'leader' OR queue_.rate_count IS NOT NULL OR queue_.max_claimed IS NOT NULL THEN
        INSERT INTO tenure.queue_counters (queue_id) VALUES (queue_id_) ON CONFLICT (queue_id) DO NOTHING;
        SELECT s.claim_seq, least(queue_.rate_count * queue_.rate_per_ms::numeric, coalesce(
                   s.rate_credit + greatest(0, floor(date_part('epoch',
                       now_ - s.rate_refilled_at) * 1000))::numeric * queue_.rate_count,
                   queue_.rate_count * queue_.rate_per_ms::numeric)), s.rate_refilled_at > clock_timestamp()
        INTO last_claim_seq, rate_credit_, clock_back FROM tenure.queue_counters s
            WHERE s.queue_id = queue_id_ FOR NO KEY UPDATE;
        -- This transaction may have waited for that lock: it sees the claims of the others from here on.
        allowance := least(div(rate_credit_, queue_.rate_per_ms)::integer,
            queue_.max_claimed - CASE WHEN queue_.max_claimed > 0 THEN (
            SELECT (SELECT count(*) FROM tenure.tasks t
                    WHERE t.session IS NOT NULL AND t.state = 'claimed' AND t.queue_id = queue_id_)
                 + (SELECT count(*) FROM tenure.tasks t
                    WHERE t.claim_expires_at IS NOT NULL AND t.session IS NULL AND t.state = 'claimed'
                        AND t.queue_id = queue_id_)
            )::integer ELSE 0 END);
    END IF;

    FOR request_ IN
        SELECT (s.n - 1)::integer AS n, s.name, s.task_kinds, s.tags, s.session, s.claim_timeout_ms, s.wanted
        FROM ROWS FROM (json_to_recordset(requests) AS (
            name text, task_kinds text[], tags text[], session text, claim_timeout_ms bigint, wanted integer)
        ) WITH ORDINALITY AS s (name, task_kinds, tags, session, claim_timeout_ms, wanted, n)
    LOOP
        wanted := least(request_.wanted, allowance);
        SELECT array_agg(d.id),
               array_agg(coalesce(to_timestamp((cursors -> d.id::text ->> 0)::double precision / 1000), '-infinity')),
               array_agg(coalesce((cursors -> d.id::text ->> 1)::bigint, 0)),
               array_agg(CASE WHEN cardinality(d.preferred_tags) = 0 OR d.preferred_tags && request_.tags THEN 'infinity'
                              ELSE now_ - queue_.preference_window_ms * interval '1 millisecond' END)
        INTO requirements_ids, cursor_times, cursor_ids, ready_before
        FROM tenure.task_requirements d
        WHERE d.queue_id = queue_id_
          AND (d.kind = '' OR cardinality(request_.task_kinds) = 0 OR d.kind = ANY (request_.task_kinds))
          AND d.required_tags <@ request_.tags
          AND (cardinality(d.allowed_workers) = 0 OR d.allowed_workers && ARRAY['*', request_.name]);
        IF request_.session IS NULL THEN
            -- Skip a locked row: its owner sets the same value or changes the worker anyway.
            UPDATE tenure.workers w SET last_seen_at = now_ WHERE w.ctid = ANY (ARRAY(
                SELECT v.ctid FROM tenure.workers v
                WHERE v.namespace = in_namespace AND v.name = request_.name AND v.last_seen_at < now_ - interval '1 second'
                FOR UPDATE SKIP LOCKED));
        END IF;
        from_start := false;
        any_blocked := false;
        pass_ := 0;
        WHILE wanted > 0 AND requirements_ids IS NOT NULL LOOP
            IF pass_ = 0 AND NOT full_scan AND known <> '{}' THEN
                from_start := false;
            ELSE
                from_start := true;
                scanned_all := true;
                cursor_times := array_fill('-infinity'::timestamptz, ARRAY[cardinality(requirements_ids)]);
            END IF;
            -- If some tasks are blocked by their keys, read more at once.
            max_count := CASE WHEN any_blocked THEN greatest(wanted, 200) ELSE wanted END;
            IF authority = 'leader' THEN
                -- Strict order: wait for a task that another transaction has locked instead of skipping it.
                SELECT f.picked, f.found_count, contended OR cardinality(f.picked) < f.found_count INTO picked, found_,
                    contended
                FROM tenure.lock_first_tasks(requirements_ids, ready_before, max_count) f;
                SELECT bool_or(t.concurrency_key IS NOT NULL), sum(CASE WHEN pg_column_compression(t.payload) IS NULL
                    THEN pg_column_size(t.payload)
                                ELSE least(pg_column_size(t.payload) * 256::bigint, 1048576) END),
                                    bool_or(t.pending_parent_count IS NOT NULL)
                INTO has_keys, bytes_, has_parents_ FROM tenure.tasks t WHERE t.ctid = ANY (picked);
            ELSE
                quotas_ := ARRAY[max_count];
                IF cardinality(requirements_ids) > 1 THEN
                    quotas_ := tenure.claim_quotas(requirements_ids, cursor_times, cursor_ids, ready_before, max_count);
                END IF;
                SELECT array_agg(h.ctid ORDER BY h.effective_at, h.id), bool_or(h.concurrency_key IS NOT NULL), count(*),
                       sum(CASE WHEN pg_column_compression(h.payload) IS NULL THEN pg_column_size(h.payload)
                                ELSE least(pg_column_size(h.payload) * 256::bigint, 1048576) END),
                       bool_or(h.pending_parent_count IS NOT NULL)
                INTO picked, has_keys, found_, bytes_, has_parents_
                FROM unnest(requirements_ids, quotas_, cursor_times, cursor_ids, ready_before) AS p (requirements_id, quota,
                    after_time, after_id, ready_until)
                CROSS JOIN LATERAL (
                    SELECT t.ctid, t.effective_at, t.id, t.concurrency_key, t.payload, t.pending_parent_count
                        FROM tenure.tasks t
                    WHERE t.requirements_id = p.requirements_id AND t.state = 'ready'
                        AND (t.effective_at, t.id) > (p.after_time, p.after_id)
                      AND t.ready_at <= p.ready_until
                    ORDER BY t.effective_at, t.id LIMIT p.quota FOR UPDATE SKIP LOCKED
                ) h;
            END IF;
            IF has_keys THEN
                SELECT g.allowed, contended OR g.contended INTO picked, contended
                FROM tenure.filter_by_concurrency(in_namespace, picked, wanted, authority = 'leader') g;
                picked := picked[1:wanted];
                any_blocked := true;
            END IF;
            IF has_parents_ OR bytes_ > bytes_left THEN
                offered_count := cardinality(picked);
                SELECT c.picked, c.bytes INTO picked, bytes_ FROM tenure.limit_by_size(picked, bytes_left, claimed_count = 0) c;
                size_limit_reached := cardinality(picked) < offered_count;
            END IF;
            bytes_left := bytes_left - coalesce(bytes_, 0);
            RETURN QUERY
            UPDATE tenure.tasks t
            SET state = 'claimed', attempt = t.attempt + 1, token = greatest(t.token, token_base) + 1,
                session = request_.session, worker = request_.name, claimed_at = now_, progress = NULL, wait_expires_at = NULL,
                claim_expires_at = least(now_ + request_.claim_timeout_ms * interval '1 millisecond',
                                 now_ + t.max_run_ms * interval '1 millisecond'),
                claim_seq = CASE WHEN authority = 'leader' THEN last_claim_seq + claimed_count + array_position(picked,
                    t.ctid) END
            WHERE t.ctid = ANY (picked)
            RETURNING request_.n, t.id, t.token, t.requirements_id, (date_part('epoch', t.effective_at) * 1000)::bigint,
                CASE WHEN t.requirements_id = ANY (known) THEN NULL
                     ELSE (SELECT d.kind FROM tenure.task_requirements d WHERE d.id = t.requirements_id) END,
                t.attempt, t.max_attempts, t.priority, t.payload,
                (date_part('epoch', t.claim_expires_at) * 1000)::bigint, t.claim_seq, t.max_run_ms, t.initial_backoff_ms,
                t.max_backoff_ms, t.leader_token,
                CASE WHEN t.pending_parent_count IS NOT NULL THEN (
                    SELECT json_object_agg(e.parent_id, o.result)::text
                    FROM tenure.task_dependencies e JOIN tenure.tasks o ON o.id = e.parent_id
                    WHERE e.task_id = t.id AND o.result IS NOT NULL) END,
                NULL::text, NULL::bigint, NULL::boolean, t.idempotency_key;
            GET DIAGNOSTICS got_count = ROW_COUNT;
            claimed_count := claimed_count + got_count;
            wanted := wanted - got_count;
            allowance := allowance - got_count;
            pass_ := pass_ + 1;
            IF size_limit_reached THEN
                -- The next call claims the rest.
                contended := true;
                EXIT;
            END IF;
            -- After a pass that did not start at the beginning, make one that does. Repeat a pass that found blocked tasks, or
            -- lost part of its quota to another claim.
            EXIT WHEN from_start AND (found_ = 0 OR NOT any_blocked AND cardinality(requirements_ids) = 1);
            IF pass_ > 20 OR contended AND got_count = 0 THEN
                contended := true;
                EXIT;
            END IF;
        END LOOP;
        unsatisfied := unsatisfied OR wanted > 0 OR wanted IS NULL OR allowance = 0;
        EXIT WHEN size_limit_reached;
    END LOOP;

    -- If the clock was set back, count from the new time.
    IF (claimed_count > 0 OR clock_back) AND last_claim_seq IS NOT NULL THEN
        rate_credit_ := rate_credit_ - claimed_count * queue_.rate_per_ms;
        UPDATE tenure.queue_counters s
        SET rate_credit = rate_credit_, rate_refilled_at = now_,
            claim_seq = CASE WHEN authority = 'leader' THEN s.claim_seq + claimed_count ELSE s.claim_seq END
        WHERE s.queue_id = queue_id_;
    END IF;
    IF unsatisfied THEN
        next_at := least(next_at,
            CASE WHEN contended THEN now_ + interval '5 milliseconds' END,
            CASE WHEN rate_credit_ < queue_.rate_per_ms THEN now_ + interval '1 millisecond'
                * ceil((queue_.rate_per_ms - rate_credit_) / queue_.rate_count)::double precision END,
            (SELECT min(h.ready_at) + queue_.preference_window_ms * interval '1 millisecond'
             FROM tenure.task_requirements d CROSS JOIN LATERAL (
                 SELECT t.ready_at FROM tenure.tasks t WHERE t.requirements_id = d.id AND t.state = 'ready'
                 ORDER BY t.effective_at, t.id LIMIT 1) h
             WHERE d.queue_id = queue_id_ AND cardinality(d.preferred_tags) > 0
               AND h.ready_at + queue_.preference_window_ms * interval '1 millisecond' > now_));
        next_in_ms := CASE WHEN next_at IS NOT NULL
            THEN greatest(0, ceil(date_part('epoch', next_at - clock_timestamp()) * 1000))::bigint END;
    END IF;
    effective_at_ms := tenure.to_unix_ms(promoted_until);
    RETURN NEXT;
END
$$;
