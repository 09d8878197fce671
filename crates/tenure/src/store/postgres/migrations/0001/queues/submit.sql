-- Submission of tasks.

-- Sends NOTIFY if a consumer waits for this queue. `unregister`: also records that the consumers were notified. Do not set it
-- in a user's transaction, which may last: other transactions would not notify the consumers until it ends.
CREATE FUNCTION tenure.notify_queue(in_namespace text, in_queue text,
    unregister boolean) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    last_ record;
BEGIN
    SELECT w.ctid AS at, w.seq, w.notified INTO last_ FROM tenure.queue_waiters w
    WHERE w.namespace = in_namespace AND w.queue = in_queue ORDER BY w.seq DESC, w.notified DESC LIMIT 1;
    IF last_.notified IS NOT FALSE THEN
        RETURN;
    END IF;
    IF unregister THEN
        INSERT INTO tenure.queue_waiters (namespace, queue, seq, notified) VALUES (in_namespace, in_queue, last_.seq, true);
        -- With one snapshot for the whole transaction, a concurrent change of the row would be a serialization error.
        IF current_setting('transaction_isolation') = 'read committed' THEN
            DELETE FROM tenure.queue_waiters WHERE ctid = ANY (ARRAY(
                SELECT w.ctid FROM tenure.queue_waiters w WHERE w.ctid = last_.at AND w.seq = last_.seq AND NOT w.notified
                FOR UPDATE SKIP LOCKED));
        END IF;
    END IF;
    PERFORM pg_catalog.pg_notify('tenure_notify', json_build_object('queue_ready',
        json_build_object('namespace', in_namespace, 'name', in_queue))::text);
END
$$;

-- Registers that a consumer waits for a queue, unless this is registered already.
CREATE FUNCTION tenure.register_queue_waiter(in_namespace text, in_queue text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    last_ record;
BEGIN
    SELECT w.ctid AS at, w.seq, w.notified INTO last_ FROM tenure.queue_waiters w
    WHERE w.namespace = in_namespace AND w.queue = in_queue ORDER BY w.seq DESC, w.notified DESC LIMIT 1;
    IF last_.notified THEN
        DELETE FROM tenure.queue_waiters WHERE ctid = ANY (ARRAY(
            SELECT w.ctid FROM tenure.queue_waiters w WHERE w.ctid = last_.at AND w.seq = last_.seq AND w.notified
                FOR UPDATE SKIP LOCKED));
    END IF;
    IF last_.notified IS NOT FALSE THEN
        INSERT INTO tenure.queue_waiters (namespace, queue, seq, notified)
        VALUES (in_namespace, in_queue, nextval('tenure.waiter_sequence'), false);
    END IF;
END
$$;

-- The id of a queue. Creates the queue if it does not exist.
CREATE FUNCTION tenure.ensure_queue(in_namespace text, in_queue text) RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    found_id integer;
BEGIN
    SELECT q.id INTO found_id FROM tenure.queues q WHERE q.namespace = in_namespace AND q.name = in_queue;
    IF found_id IS NULL THEN
        INSERT INTO tenure.queues (namespace, name) VALUES (in_namespace, in_queue)
        ON CONFLICT (namespace, name) DO NOTHING RETURNING id INTO found_id;
    END IF;
    IF found_id IS NULL THEN
        SELECT q.id INTO STRICT found_id FROM tenure.queues q WHERE q.namespace = in_namespace AND q.name = in_queue;
    END IF;
    RETURN found_id;
END
$$;

-- The id of a row with these requirements. Inserts one if this transaction sees none: see the table. No caller waits for
-- another.
CREATE FUNCTION tenure.ensure_requirements(
    in_queue integer, in_kind text, in_required_tags text[], in_preferred_tags text[], in_allowed_workers text[]
) RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    found_id integer;
    -- As JSON, so that no two different requirements have the same text.
    digest_ bytea := sha256(convert_to(json_build_array(in_kind, in_required_tags, in_preferred_tags,
        in_allowed_workers)::text, 'UTF8'));
BEGIN
    SELECT d.id INTO found_id FROM tenure.task_requirements d
    WHERE d.queue_id = in_queue AND d.digest = digest_ AND d.retired_xid IS NULL ORDER BY d.id LIMIT 1;
    IF found_id IS NULL THEN
        INSERT INTO tenure.task_requirements (queue_id, kind, required_tags, preferred_tags, allowed_workers, digest)
        VALUES (in_queue, in_kind, in_required_tags, in_preferred_tags, in_allowed_workers, digest_) RETURNING id INTO found_id;
    ELSIF current_setting('transaction_isolation') <> 'read committed' THEN
        -- The row may have been retired since the snapshot: that is an error of class 40. From here on it is not deleted.
        PERFORM FROM tenure.task_requirements d WHERE d.id = found_id FOR KEY SHARE;
    END IF;
    RETURN found_id;
END
$$;

-- Submits all tasks or none, in this transaction. Validates only the parents.
--   * `requirements`: [{kind, required_tags, preferred_tags, allowed_workers}].
--   * `tasks`: one object for each task with `requirements_index`, the index of its requirements in that list from 0,
--     and the options that differ from the defaults.
--   * `payloads`: the JSON of each task, separate so that its text is stored unchanged.
--   * `unregister`: see tenure.notify_queue.
-- Returns one row for each task; `index` counts from 0.
CREATE FUNCTION tenure.submit_tasks(
    in_namespace text, in_queue text, requirements json, tasks json, payloads text[], unregister boolean
) RETURNS TABLE (index integer, task_id bigint, created boolean) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    -- Assigned before the requirements are read: tenure.prune_requirements waits for the end of every transaction that had an
    -- id when it retired them.
    xid_ CONSTANT xid8 := pg_current_xact_id();
    queue_ integer := tenure.ensure_queue(in_namespace, in_queue);
    now_ timestamptz := date_trunc('milliseconds', clock_timestamp());
    requirements_ids integer[];
    reserved_ids bigint[];
    ids bigint[];
    inserted_ids bigint[];
    any_ready boolean;
BEGIN
    requirements_ids := ARRAY(
        SELECT tenure.ensure_requirements(queue_, d.kind, d.required_tags, d.preferred_tags, d.allowed_workers)
        FROM json_to_recordset(requirements) AS d(kind text, required_tags text[], preferred_tags text[],
            allowed_workers text[]));
    -- Ids are in the order of the submission, whatever the order in which rows are inserted.
    reserved_ids := ARRAY(SELECT nextval('tenure.tasks_id_seq') FROM generate_series(1, json_array_length(tasks)));
    WITH inserted AS (
        INSERT INTO tenure.tasks (
            id, queue_id, requirements_id, state, submitted_at, effective_at, ready_at, wait_expires_at, run_at, priority,
                max_attempts,
            initial_backoff_ms, max_backoff_ms, max_wait_ms, max_run_ms, pending_parent_count, idempotency_key, concurrency_key,
            concurrency_limit, leader_token, payload)
        SELECT reserved_ids[t.index], queue_, requirements_ids[t.requirements_index + 1],
            CASE WHEN t.has_parents THEN 'waiting' WHEN t.later THEN 'scheduled' ELSE 'ready' END,
            now_, now_ - t.priority * interval '1 minute',
            CASE WHEN NOT t.has_parents AND NOT t.later THEN now_ END,
            CASE WHEN NOT t.has_parents AND NOT t.later THEN now_ + t.max_wait_ms * interval '1 millisecond' END,
            t.at, t.priority, coalesce(t.max_attempts, 20),
            t.initial_backoff_ms, t.max_backoff_ms, t.max_wait_ms, t.max_run_ms,
            CASE WHEN t.has_parents THEN 1 END, t.idempotency_key, t.concurrency_key, coalesce(t.concurrency_limit, 1),
            t.leader_token, payloads[t.index]::json
        FROM (
            SELECT r.index, r.requirements_index, coalesce(r.priority, 0) AS priority, r.max_attempts, r.initial_backoff_ms,
                   r.max_backoff_ms, r.max_wait_ms, r.max_run_ms, r.idempotency_key, r.concurrency_key, r.concurrency_limit,
                   r.leader_token, r.parents IS NOT NULL OR r.parent_indexes IS NOT NULL AS has_parents,
                   to_timestamp(r.run_at_ms::double precision / 1000) AS at,
                   coalesce(to_timestamp(r.run_at_ms::double precision / 1000) > now_, false) AS later
            FROM ROWS FROM (json_to_recordset(tasks) AS (
                requirements_index integer, priority integer, run_at_ms bigint, max_wait_ms bigint, max_run_ms bigint,
                max_attempts integer, initial_backoff_ms bigint, max_backoff_ms bigint, parents bigint[],
                parent_indexes integer[], idempotency_key text, concurrency_key text, concurrency_limit integer,
                    leader_token bigint)
            ) WITH ORDINALITY AS r (
                requirements_index, priority, run_at_ms, max_wait_ms, max_run_ms, max_attempts, initial_backoff_ms,
                max_backoff_ms, parents, parent_indexes, idempotency_key, concurrency_key, concurrency_limit, leader_token,
                    index)
        ) t
        -- In the order of the keys, so that two submissions with the same keys lock them in the same order.
        ORDER BY t.idempotency_key, t.index
        ON CONFLICT (queue_id, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
        RETURNING tasks.id, tasks.state
    )
    SELECT array_agg(i.id), coalesce(bool_or(i.state = 'ready'), false) INTO inserted_ids, any_ready FROM inserted i;
    IF any_ready THEN
        PERFORM tenure.notify_queue(in_namespace, in_queue, unregister);
    END IF;
    ids := reserved_ids;
    IF coalesce(cardinality(inserted_ids), 0) < cardinality(reserved_ids) THEN
        -- A new statement, which sees the tasks that other transactions inserted meanwhile.
        ids := ARRAY(
            SELECT coalesce(m.id, (SELECT t.id FROM tenure.tasks t
                WHERE t.queue_id = queue_ AND t.idempotency_key = r.idempotency_key))
            FROM ROWS FROM (json_to_recordset(tasks) AS (idempotency_key text)) WITH ORDINALITY AS r (idempotency_key, index)
            LEFT JOIN unnest(inserted_ids) AS m (id) ON m.id = reserved_ids[r.index]
            ORDER BY r.index);
        IF array_position(ids, NULL) IS NOT NULL THEN
            RAISE EXCEPTION 'a task with the same idempotency key in queue % is being pruned; retry', in_queue
                USING ERRCODE = '40001', HINT = 'Submit the task again.';
        END IF;
    END IF;
    IF position('"parents"' IN tasks::text) > 0 OR position('"parent_indexes"' IN tasks::text) > 0 THEN
        PERFORM tenure.link_parents(in_namespace, reserved_ids, p.task_ids, p.parent_ids, now_, unregister) FROM (
            SELECT array_agg(e.task_id ORDER BY e.task_id, e.parent_id) AS task_ids,
                   array_agg(e.parent_id ORDER BY e.task_id, e.parent_id) AS parent_ids
            FROM (
                SELECT DISTINCT ids[r.index] AS task_id, e.parent_id
                FROM ROWS FROM (json_to_recordset(tasks) AS (parents bigint[], parent_indexes integer[]))
                     WITH ORDINALITY AS r (parents, parent_indexes, index),
                     LATERAL (SELECT unnest(r.parents) UNION SELECT ids[i + 1] FROM unnest(r.parent_indexes) i) e (parent_id)
                WHERE ids[r.index] = reserved_ids[r.index]
            ) e
        ) p WHERE p.task_ids IS NOT NULL;
    END IF;
    RETURN QUERY SELECT (o.index - 1)::integer, o.id, o.id = o.reserved_id
                 FROM unnest(ids, reserved_ids) WITH ORDINALITY AS o (id, reserved_id, index);
END
$$;

-- Links new tasks to their parents, pairwise; `reserved_ids` are all tasks of the submission in its order. Locks the rows of
-- the parents, so that none completes or dies meanwhile.
CREATE FUNCTION tenure.link_parents(
    in_namespace text, reserved_ids bigint[], in_tasks bigint[], in_parents bigint[], now_ timestamptz, unregister boolean
) RETURNS void LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    rejected record;
BEGIN
    PERFORM FROM tenure.tasks t WHERE t.id = ANY (in_parents) ORDER BY t.id FOR NO KEY UPDATE;
    SELECT array_position(reserved_ids, e.task_id) - 1 AS index, e.parent_id, t.state INTO rejected
    FROM unnest(in_tasks, in_parents) AS e (task_id, parent_id)
    LEFT JOIN tenure.tasks t ON t.id = e.parent_id
        AND EXISTS (SELECT FROM tenure.queues q WHERE q.id = t.queue_id AND q.namespace = in_namespace)
    WHERE t.id IS NULL OR t.state IN ('dead', 'cancelled')
    ORDER BY 1, 2 LIMIT 1;
    IF FOUND AND rejected.state IS NULL THEN
        RAISE EXCEPTION 'task %: parent % does not exist in namespace %',
            rejected.index, rejected.parent_id, in_namespace
            USING ERRCODE = 'TN011', HINT = 'It may have been pruned. Omit this parent or submit it first. '
                                            'Nothing was submitted.';
    ELSIF FOUND THEN
        RAISE EXCEPTION 'task %: parent % is %, so the task could never start', rejected.index, rejected.parent_id,
            rejected.state
            USING ERRCODE = 'TN012', HINT = format('Retry the parent first (`tenure tasks retry %s`). Nothing was submitted.',
                                                   rejected.parent_id);
    END IF;
    UPDATE tenure.tasks t SET has_children = true WHERE t.id = ANY (in_parents) AND NOT t.has_children;
    INSERT INTO tenure.task_dependencies (task_id, parent_id)
    SELECT e.task_id, e.parent_id FROM unnest(in_tasks, in_parents) AS e (task_id, parent_id);
    PERFORM tenure.count_pending_parents(ARRAY(SELECT DISTINCT c FROM unnest(in_tasks) c), now_, unregister);
END
$$;

-- Counts the pending parents of these tasks, and releases those that have none left. It counts instead of subtracting, so that
-- repeated and concurrent calls give the same result.
CREATE FUNCTION tenure.count_pending_parents(in_tasks bigint[], now_ timestamptz, unregister boolean)
RETURNS void LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    queue_ids integer[];
BEGIN
    PERFORM FROM tenure.tasks t WHERE t.id = ANY (in_tasks) ORDER BY t.id FOR NO KEY UPDATE;
    WITH counted AS (
        SELECT c.id, (SELECT count(*) FROM tenure.task_dependencies e JOIN tenure.tasks p ON p.id = e.parent_id
                      WHERE e.task_id = c.id AND p.state <> 'completed')::integer AS pending
        FROM unnest(in_tasks) AS c (id)
    ), moved AS (
        UPDATE tenure.tasks t
        SET pending_parent_count = c.pending,
            state = CASE WHEN c.pending > 0 THEN 'waiting' WHEN t.run_at > now_ THEN 'scheduled' ELSE 'ready' END,
            ready_at = CASE WHEN c.pending = 0 AND (t.run_at IS NULL OR t.run_at <= now_) THEN now_ ELSE t.ready_at END,
            wait_expires_at = CASE WHEN c.pending = 0 AND (t.run_at IS NULL OR t.run_at <= now_)
                              THEN now_ + t.max_wait_ms * interval '1 millisecond' END
        FROM counted c
        WHERE t.id = c.id AND t.state = 'waiting'
        RETURNING t.queue_id, t.state
    )
    SELECT array_agg(DISTINCT m.queue_id) INTO queue_ids FROM moved m WHERE m.state = 'ready';
    PERFORM tenure.notify_queue(q.namespace, q.name, unregister) FROM tenure.queues q WHERE q.id = ANY (queue_ids);
END
$$;
