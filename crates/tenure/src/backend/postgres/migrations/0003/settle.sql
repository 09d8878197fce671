-- Taking in what workers say.

-- A claim under each of these concurrency keys has ended (once for each time that a key is named): the first of each demand
-- that is held back by it goes back to ready. Keys are locked in order, so that two who do this do not meet head-on.
CREATE FUNCTION tenure.unhold(in_namespace text, keys text[], now_ timestamptz) RETURNS void LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
AS $$
DECLARE
    key_ record;
    demand_ integer;
    moved integer;
    rings integer[] := '{}';
BEGIN
    FOR key_ IN SELECT k.key, count(*)::integer AS times FROM unnest(keys) AS k (key) GROUP BY k.key
                ORDER BY tenure.key_lock(in_namespace, k.key) LOOP
        PERFORM FROM tenure.key_locks l WHERE l.n = tenure.key_lock(in_namespace, key_.key) FOR UPDATE;
        demand_ := NULL;
        LOOP
            SELECT t.demand INTO demand_ FROM tenure.tasks t
            WHERE t.state = 'held' AND t.concurrency_key = key_.key AND t.demand > coalesce(demand_, -1)
            ORDER BY t.demand LIMIT 1;
            EXIT WHEN NOT FOUND;
            CONTINUE WHEN NOT EXISTS (
                SELECT FROM tenure.demands d JOIN tenure.queues q ON q.id = d.queue
                WHERE d.id = demand_ AND q.namespace = in_namespace);
            UPDATE tenure.tasks t SET state = 'ready' WHERE t.ctid = ANY (ARRAY(
                SELECT h.ctid FROM tenure.tasks h
                WHERE h.state = 'held' AND h.concurrency_key = key_.key AND h.demand = demand_
                ORDER BY h.effective_at, h.id LIMIT key_.times FOR UPDATE SKIP LOCKED));
            rings := rings || demand_;
        END LOOP;
    END LOOP;
    PERFORM tenure.ring(q.namespace, q.name, true)
    FROM (SELECT DISTINCT d.queue FROM tenure.demands d WHERE d.id = ANY (rings)) r JOIN tenure.queues q ON q.id = r.queue;
END
$$;

-- This task is dead or cancelled (`fate`), and so is all that waits for it. Those that share the fate.
CREATE FUNCTION tenure.doom(in_task bigint, in_fate text, now_ timestamptz) RETURNS bigint[] LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    left_ bigint[] := ARRAY[in_task];
    parent_ bigint;
    fallen_ bigint[];
    doomed bigint[] := '{}';
BEGIN
    WHILE cardinality(left_) > 0 LOOP
        parent_ := left_[cardinality(left_)];
        left_ := left_[:cardinality(left_) - 1];
        PERFORM FROM tenure.tasks t
        WHERE t.id = ANY (ARRAY(SELECT e.child FROM tenure.parents e WHERE e.parent = parent_))
        ORDER BY t.id FOR NO KEY UPDATE;
        -- Whoever waits for a parent is nowhere but here: not ready, not claimed.
        WITH fallen AS (
            UPDATE tenure.tasks t
            SET state = in_fate, finished_at = now_, fate = parent_, session = NULL, deadline = NULL, give_up_at = NULL,
                reason = format('its parent %s is %s', parent_, in_fate)
            WHERE t.id = ANY (ARRAY(SELECT e.child FROM tenure.parents e WHERE e.parent = parent_))
              AND t.state NOT IN ('completed', 'dead', 'cancelled')
            RETURNING t.id
        )
        SELECT coalesce(array_agg(f.id ORDER BY f.id), '{}') INTO fallen_ FROM fallen f;
        doomed := doomed || fallen_;
        left_ := left_ || fallen_;
    END LOOP;
    RETURN doomed;
END
$$;

-- Completes claims, each under its token. `ids` are in order, and none is there twice. The numbers of those that are completed under it now, by this call or an
-- earlier one, with commas in between. `outputs`: null, or one for each.
CREATE FUNCTION tenure.complete(in_namespace text, ids bigint[], tokens bigint[], outputs text[])
RETURNS text LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    now_ timestamptz := date_trunc('milliseconds', clock_timestamp());
    queues_ integer[];
    limited boolean;
    done bigint[];
    parents_ bigint[];
    keys text[];
BEGIN
    SELECT array_agg(q.id), bool_or(q.max_claimed IS NOT NULL) INTO queues_, limited
    FROM tenure.queues q WHERE q.namespace = in_namespace;
    -- By the primary key, whatever the planner knows of the table: no other index fits these conditions. width_bucket finds the
    -- place of a number among those given.
    WITH settled AS (
        UPDATE tenure.tasks t
        SET state = 'completed', finished_at = now_, output = outputs[width_bucket(t.id, ids)]::json, session = NULL,
            deadline = NULL
        WHERE t.id = ANY (ids) AND t.token = tokens[width_bucket(t.id, ids)] AND t.state = 'claimed'
          AND t.queue = ANY (queues_)
        RETURNING t.id, t.has_children, t.concurrency_key
    )
    SELECT array_agg(s.id), array_agg(s.id) FILTER (WHERE s.has_children),
           array_agg(s.concurrency_key) FILTER (WHERE s.concurrency_key IS NOT NULL)
    INTO done, parents_, keys FROM settled s;
    IF limited THEN
        -- Who waits for a full queue sleeps too.
        PERFORM tenure.ring(q.namespace, q.name, true) FROM tenure.queues q
        WHERE q.namespace = in_namespace AND q.max_claimed IS NOT NULL AND EXISTS (
            SELECT FROM tenure.tasks t WHERE t.id = ANY (done) AND t.queue = q.id);
    END IF;
    IF parents_ IS NOT NULL THEN
        PERFORM tenure.recount(ARRAY(SELECT DISTINCT e.child FROM tenure.parents e WHERE e.parent = ANY (parents_)),
                               now_, true);
    END IF;
    IF keys IS NOT NULL THEN
        PERFORM tenure.unhold(in_namespace, keys, now_);
    END IF;
    IF coalesce(cardinality(done), 0) < cardinality(ids) THEN
        -- An answer that was lost may be asked for again.
        done := done || ARRAY(
            SELECT t.id FROM tenure.tasks t
            WHERE t.id = ANY (ids) AND t.token = tokens[width_bucket(t.id, ids)] AND t.state = 'completed'
              AND t.queue = ANY (queues_) AND NOT coalesce(t.id = ANY (done), false));
    END IF;
    RETURN array_to_string(done, ',');
END
$$;

-- An attempt, as it is remembered; the last ten are.
CREATE FUNCTION tenure.failed(failures json, attempt integer, at timestamptz, worker text, error text)
RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_agg(f.failure ORDER BY f.n) FROM (
        SELECT * FROM (
            SELECT o.failure, o.n FROM json_array_elements(failures) WITH ORDINALITY AS o (failure, n)
            UNION ALL
            SELECT json_build_object('attempt', attempt, 'at_ms', tenure.ms(at), 'worker', worker, 'error', error), 1000
        ) every ORDER BY n DESC LIMIT 10
    ) f
$$;

-- Takes in whatever workers say, in its order. `items`: [{id, token, outcome, …}], `outputs` beside them. Where each task stands now; null: its claim
-- is lost.
CREATE FUNCTION tenure.settle(in_namespace text, items json, outputs text[]) RETURNS TABLE (n integer, now text)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    now_ timestamptz := date_trunc('milliseconds', clock_timestamp());
    item record;
    task record;
    children bigint[] := '{}';
    keys text[] := '{}';
    rings integer[] := '{}';
BEGIN
    -- All at once and in order, so that two who settle the same tasks do not meet head-on.
    PERFORM FROM tenure.tasks t WHERE t.id = ANY (ARRAY(SELECT (i ->> 'id')::bigint FROM json_array_elements(items) i))
    ORDER BY t.id FOR UPDATE;
    FOR item IN
        SELECT (i.n - 1)::integer AS n, i.id, i.token, i.outcome, outputs[i.n]::json AS output, i.error, i.retry, i.after_ms, i.note, i.hold_ms
        FROM ROWS FROM (json_to_recordset(items) AS (
            id bigint, token bigint, outcome text, error text, retry boolean, after_ms bigint, note text,
            hold_ms bigint)
        ) WITH ORDINALITY AS i (id, token, outcome, error, retry, after_ms, note, hold_ms, n)
    LOOP
        n := item.n;
        now := NULL;
        SELECT t.state, t.attempt, t.max_attempts, t.queue, t.has_children, t.concurrency_key, q.max_claimed INTO task
        FROM tenure.tasks t JOIN tenure.queues q ON q.id = t.queue AND q.namespace = in_namespace
        WHERE t.id = item.id AND t.token = item.token AND t.state IN ('claimed', 'completed');
        IF NOT FOUND OR task.state = 'completed' THEN
            now := CASE WHEN task.state = 'completed' AND item.outcome = 'complete' THEN 'completed' END;
            RETURN NEXT;
            CONTINUE;
        END IF;
        IF item.outcome = 'progress' THEN
            now := 'claimed';
            UPDATE tenure.tasks t
            SET progress = coalesce(item.note, t.progress),
                -- Never beyond its longest run, however often it is said.
                deadline = CASE WHEN item.hold_ms IS NULL THEN t.deadline
                                ELSE least(now_ + item.hold_ms * interval '1 millisecond',
                                           t.claimed_at + t.max_run_ms * interval '1 millisecond') END
            WHERE t.id = item.id;
            RETURN NEXT;
            CONTINUE;
        ELSIF item.outcome = 'complete' THEN
            now := 'completed';
            UPDATE tenure.tasks t
            SET state = 'completed', finished_at = now_, output = item.output, session = NULL, deadline = NULL
            WHERE t.id = item.id;
            IF task.has_children THEN
                children := children || ARRAY(SELECT e.child FROM tenure.parents e WHERE e.parent = item.id);
            END IF;
        ELSIF item.outcome = 'release' THEN
            now := 'ready';
            UPDATE tenure.tasks t
            SET state = 'ready', attempt = t.attempt - 1, ready_at = now_, session = NULL, deadline = NULL,
                give_up_at = now_ + t.max_wait_ms * interval '1 millisecond'
            WHERE t.id = item.id;
        ELSIF item.retry AND task.attempt < task.max_attempts THEN
            now := CASE WHEN item.after_ms > 0 THEN 'scheduled' ELSE 'ready' END;
            UPDATE tenure.tasks t
            SET state = settle.now, session = NULL, deadline = NULL,
                run_at = CASE WHEN item.after_ms > 0 THEN now_ + item.after_ms * interval '1 millisecond' END,
                ready_at = CASE WHEN item.after_ms > 0 THEN t.ready_at ELSE now_ END,
                give_up_at = CASE WHEN item.after_ms > 0 THEN NULL
                                  ELSE now_ + t.max_wait_ms * interval '1 millisecond' END,
                failures = tenure.failed(t.failures, t.attempt, now_, t.worker, item.error)
            WHERE t.id = item.id;
        ELSE
            now := 'dead';
            UPDATE tenure.tasks t
            SET state = 'dead', finished_at = now_, session = NULL, deadline = NULL,
                reason = CASE WHEN item.retry
                              THEN format('attempt %s of %s failed: %s', t.attempt, t.max_attempts, item.error)
                              ELSE format('failed for good: %s', item.error) END,
                failures = tenure.failed(t.failures, t.attempt, now_, t.worker, item.error)
            WHERE t.id = item.id;
            IF task.has_children THEN
                PERFORM tenure.doom(item.id, 'dead', now_);
            END IF;
        END IF;
        IF now = 'ready' OR task.max_claimed IS NOT NULL THEN
            rings := rings || task.queue;
        END IF;
        IF task.concurrency_key IS NOT NULL THEN
            keys := keys || task.concurrency_key;
        END IF;
        RETURN NEXT;
    END LOOP;
    IF cardinality(children) > 0 THEN
        PERFORM tenure.recount(ARRAY(SELECT DISTINCT c FROM unnest(children) c), now_, true);
    END IF;
    IF cardinality(keys) > 0 THEN
        PERFORM tenure.unhold(in_namespace, keys, now_);
    END IF;
    PERFORM tenure.ring(q.namespace, q.name, true) FROM tenure.queues q WHERE q.id = ANY (rings);
END
$$;
