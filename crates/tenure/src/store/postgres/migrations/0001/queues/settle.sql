-- Settlements: complete, fail, release and heartbeat of claims.

-- After claims under these concurrency keys ended (a key occurs once for each claim): for each key and set of
-- requirements, makes as many of the first blocked tasks ready as claims ended. Locks the keys in order, so that two
-- calls do not deadlock.
CREATE FUNCTION tenure.unblock_tasks(in_namespace text, keys text[], now_ timestamptz) RETURNS void LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
AS $$
DECLARE
    key_ record;
    requirements_id_ integer;
    moved integer;
    unblocked integer[] := '{}';
BEGIN
    FOR key_ IN SELECT k.key, count(*)::integer AS times FROM unnest(keys) AS k (key) GROUP BY k.key
                ORDER BY tenure.concurrency_lock_id(in_namespace, k.key) LOOP
        PERFORM FROM tenure.concurrency_locks l WHERE l.id = tenure.concurrency_lock_id(in_namespace, key_.key) FOR UPDATE;
        requirements_id_ := NULL;
        LOOP
            SELECT t.requirements_id INTO requirements_id_ FROM tenure.tasks t
            WHERE t.state = 'blocked' AND t.concurrency_key = key_.key AND t.requirements_id > coalesce(requirements_id_, -1)
            ORDER BY t.requirements_id LIMIT 1;
            EXIT WHEN NOT FOUND;
            CONTINUE WHEN NOT EXISTS (
                SELECT FROM tenure.task_requirements d JOIN tenure.queues q ON q.id = d.queue_id
                WHERE d.id = requirements_id_ AND q.namespace = in_namespace);
            UPDATE tenure.tasks t SET state = 'ready' WHERE t.ctid = ANY (ARRAY(
                SELECT h.ctid FROM tenure.tasks h
                WHERE h.state = 'blocked' AND h.concurrency_key = key_.key AND h.requirements_id = requirements_id_
                ORDER BY h.effective_at, h.id LIMIT key_.times FOR UPDATE SKIP LOCKED));
            unblocked := unblocked || requirements_id_;
        END LOOP;
    END LOOP;
    PERFORM tenure.notify_queue(q.namespace, q.name, true)
    FROM (SELECT DISTINCT d.queue_id FROM tenure.task_requirements d WHERE d.id = ANY (unblocked)) r
        JOIN tenure.queues q ON q.id = r.queue_id;
END
$$;

-- Gives all tasks that depend on this dead or cancelled task, directly or not, the same state (`in_state`). Returns
-- their ids.
CREATE FUNCTION tenure.cascade_to_children(in_task bigint, in_state text,
    now_ timestamptz) RETURNS bigint[] LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    pending_ bigint[] := ARRAY[in_task];
    parent_ bigint;
    ended_ids bigint[];
    all_ended bigint[] := '{}';
BEGIN
    WHILE cardinality(pending_) > 0 LOOP
        parent_ := pending_[cardinality(pending_)];
        pending_ := pending_[:cardinality(pending_) - 1];
        PERFORM FROM tenure.tasks t
        WHERE t.id = ANY (ARRAY(SELECT e.task_id FROM tenure.task_dependencies e WHERE e.parent_id = parent_))
        ORDER BY t.id FOR NO KEY UPDATE;
        -- A task with a pending parent is neither ready nor claimed, so no other path changes it.
        WITH ended AS (
            UPDATE tenure.tasks t
            SET state = in_state, finished_at = now_, cascaded_from_id = parent_, session = NULL, claim_expires_at = NULL,
                wait_expires_at = NULL,
                end_reason = format('parent %s is %s', parent_, in_state)
            WHERE t.id = ANY (ARRAY(SELECT e.task_id FROM tenure.task_dependencies e WHERE e.parent_id = parent_))
              AND t.state NOT IN ('completed', 'dead', 'cancelled')
            RETURNING t.id
        )
        SELECT coalesce(array_agg(f.id ORDER BY f.id), '{}') INTO ended_ids FROM ended f;
        all_ended := all_ended || ended_ids;
        pending_ := pending_ || ended_ids;
    END LOOP;
    RETURN all_ended;
END
$$;

-- Completes claims, each under its token. `ids` are in ascending order and unique. `results`: null, or one for each task.
-- Returns the ids of the tasks that are completed under their tokens, by this call or an earlier one, separated by commas.
CREATE FUNCTION tenure.complete_tasks(in_namespace text, ids bigint[], tokens bigint[], results text[])
RETURNS text LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    now_ timestamptz := date_trunc('milliseconds', clock_timestamp());
    queues_ integer[];
    limited boolean;
    completed bigint[];
    completed_parents bigint[];
    keys text[];
BEGIN
    SELECT array_agg(q.id), bool_or(q.max_claimed IS NOT NULL) INTO queues_, limited
    FROM tenure.queues q WHERE q.namespace = in_namespace;
    -- By the primary key, whatever the statistics are: no other index matches these conditions. width_bucket returns the index
    -- of an id in `ids`.
    WITH settled AS (
        UPDATE tenure.tasks t
        SET state = 'completed', finished_at = now_, result = results[width_bucket(t.id, ids)]::json, session = NULL,
            claim_expires_at = NULL
        WHERE t.id = ANY (ids) AND t.token = tokens[width_bucket(t.id, ids)] AND t.state = 'claimed'
          AND t.queue_id = ANY (queues_)
        RETURNING t.id, t.has_children, t.concurrency_key
    )
    SELECT array_agg(s.id), array_agg(s.id) FILTER (WHERE s.has_children),
           array_agg(s.concurrency_key) FILTER (WHERE s.concurrency_key IS NOT NULL)
    INTO completed, completed_parents, keys FROM settled s;
    IF limited THEN
        -- Workers also wait while the queue has reached max_claimed; a completed claim frees capacity for them.
        PERFORM tenure.notify_queue(q.namespace, q.name, true) FROM tenure.queues q
        WHERE q.namespace = in_namespace AND q.max_claimed IS NOT NULL AND EXISTS (
            SELECT FROM tenure.tasks t WHERE t.id = ANY (completed) AND t.queue_id = q.id);
    END IF;
    IF completed_parents IS NOT NULL THEN
        PERFORM tenure.count_pending_parents(ARRAY(SELECT DISTINCT e.task_id FROM tenure.task_dependencies e
            WHERE e.parent_id = ANY (completed_parents)),
                               now_, true);
    END IF;
    IF keys IS NOT NULL THEN
        PERFORM tenure.unblock_tasks(in_namespace, keys, now_);
    END IF;
    IF coalesce(cardinality(completed), 0) < cardinality(ids) THEN
        -- A client whose response was lost may repeat the call.
        completed := completed || ARRAY(
            SELECT t.id FROM tenure.tasks t
            WHERE t.id = ANY (ids) AND t.token = tokens[width_bucket(t.id, ids)] AND t.state = 'completed'
              AND t.queue_id = ANY (queues_) AND NOT coalesce(t.id = ANY (completed), false));
    END IF;
    RETURN array_to_string(completed, ',');
END
$$;

-- Appends a failed attempt; the last ten are kept.
CREATE FUNCTION tenure.append_failure(failures json, attempt integer, failed_at timestamptz, worker text, error text)
RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_agg(f.failure ORDER BY f.n) FROM (
        SELECT * FROM (
            SELECT o.failure, o.n FROM json_array_elements(failures) WITH ORDINALITY AS o (failure, n)
            UNION ALL
            SELECT json_build_object('attempt', attempt, 'failed_at_ms', tenure.to_unix_ms(failed_at), 'worker', worker,
                'error', error), 1000
        ) f ORDER BY n DESC LIMIT 10
    ) f
$$;

-- Applies settlements in their order. `items`: [{id, token, outcome, …}]; `results` are separate. Returns the new state of each
-- task; null if the claim is lost.
CREATE FUNCTION tenure.settle_tasks(in_namespace text, items json, results text[]) RETURNS TABLE (index integer, new_state text)
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
    queue_ids integer[] := '{}';
BEGIN
    -- All at once and in order, so that two calls with the same tasks do not deadlock.
    PERFORM FROM tenure.tasks t WHERE t.id = ANY (ARRAY(SELECT (i ->> 'id')::bigint FROM json_array_elements(items) i))
    ORDER BY t.id FOR UPDATE;
    FOR item IN
        SELECT (i.index - 1)::integer AS index, i.id, i.token, i.outcome, results[i.index]::json AS result, i.error, i.retry,
            i.retry_in_ms,
               i.progress, i.claim_timeout_ms
        FROM ROWS FROM (json_to_recordset(items) AS (
            id bigint, token bigint, outcome text, error text, retry boolean, retry_in_ms bigint, progress text,
            claim_timeout_ms bigint)
        ) WITH ORDINALITY AS i (id, token, outcome, error, retry, retry_in_ms, progress, claim_timeout_ms, index)
    LOOP
        index := item.index;
        new_state := NULL;
        SELECT t.state, t.attempt, t.max_attempts, t.queue_id, t.has_children, t.concurrency_key, q.max_claimed INTO task
        FROM tenure.tasks t JOIN tenure.queues q ON q.id = t.queue_id AND q.namespace = in_namespace
        WHERE t.id = item.id AND t.token = item.token AND t.state IN ('claimed', 'completed');
        IF NOT FOUND OR task.state = 'completed' THEN
            new_state := CASE WHEN task.state = 'completed' AND item.outcome = 'complete' THEN 'completed' END;
            RETURN NEXT;
            CONTINUE;
        END IF;
        IF item.outcome = 'heartbeat' THEN
            new_state := 'claimed';
            UPDATE tenure.tasks t
            SET progress = coalesce(item.progress, t.progress),
                -- Never beyond max_run_ms, however many heartbeats arrive.
                claim_expires_at = CASE WHEN item.claim_timeout_ms IS NULL THEN t.claim_expires_at
                                ELSE least(now_ + item.claim_timeout_ms * interval '1 millisecond',
                                           t.claimed_at + t.max_run_ms * interval '1 millisecond') END
            WHERE t.id = item.id;
            RETURN NEXT;
            CONTINUE;
        ELSIF item.outcome = 'complete' THEN
            new_state := 'completed';
            UPDATE tenure.tasks t
            SET state = 'completed', finished_at = now_, result = item.result, session = NULL, claim_expires_at = NULL
            WHERE t.id = item.id;
            IF task.has_children THEN
                children := children || ARRAY(SELECT e.task_id FROM tenure.task_dependencies e WHERE e.parent_id = item.id);
            END IF;
        ELSIF item.outcome = 'release' THEN
            new_state := 'ready';
            UPDATE tenure.tasks t
            SET state = 'ready', attempt = t.attempt - 1, ready_at = now_, session = NULL, claim_expires_at = NULL,
                wait_expires_at = now_ + t.max_wait_ms * interval '1 millisecond'
            WHERE t.id = item.id;
        ELSIF item.retry AND task.attempt < task.max_attempts THEN
            new_state := CASE WHEN item.retry_in_ms > 0 THEN 'scheduled' ELSE 'ready' END;
            UPDATE tenure.tasks t
            SET state = settle_tasks.new_state, session = NULL, claim_expires_at = NULL,
                run_at = CASE WHEN item.retry_in_ms > 0 THEN now_ + item.retry_in_ms * interval '1 millisecond' END,
                ready_at = CASE WHEN item.retry_in_ms > 0 THEN t.ready_at ELSE now_ END,
                wait_expires_at = CASE WHEN item.retry_in_ms > 0 THEN NULL
                                  ELSE now_ + t.max_wait_ms * interval '1 millisecond' END,
                failures = tenure.append_failure(t.failures, t.attempt, now_, t.worker, item.error)
            WHERE t.id = item.id;
        ELSE
            new_state := 'dead';
            UPDATE tenure.tasks t
            SET state = 'dead', finished_at = now_, session = NULL, claim_expires_at = NULL,
                end_reason = CASE WHEN item.retry
                              THEN format('attempt %s of %s failed: %s', t.attempt, t.max_attempts, item.error)
                              ELSE format('failed permanently: %s', item.error) END,
                failures = tenure.append_failure(t.failures, t.attempt, now_, t.worker, item.error)
            WHERE t.id = item.id;
            IF task.has_children THEN
                PERFORM tenure.cascade_to_children(item.id, 'dead', now_);
            END IF;
        END IF;
        IF new_state = 'ready' OR task.max_claimed IS NOT NULL THEN
            queue_ids := queue_ids || task.queue_id;
        END IF;
        IF task.concurrency_key IS NOT NULL THEN
            keys := keys || task.concurrency_key;
        END IF;
        RETURN NEXT;
    END LOOP;
    IF cardinality(children) > 0 THEN
        PERFORM tenure.count_pending_parents(ARRAY(SELECT DISTINCT c FROM unnest(children) c), now_, true);
    END IF;
    IF cardinality(keys) > 0 THEN
        PERFORM tenure.unblock_tasks(in_namespace, keys, now_);
    END IF;
    PERFORM tenure.notify_queue(q.namespace, q.name, true) FROM tenure.queues q WHERE q.id = ANY (queue_ids);
END
$$;
