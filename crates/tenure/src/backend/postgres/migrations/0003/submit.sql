-- Submitting.

-- Notifies those who wait for work of this queue, if anybody does. `remove`: and notes down that they were. Not in a user's own
-- transaction, which may last: others would not notify them until it is over.
CREATE FUNCTION tenure.ring(in_namespace text, in_queue text, remove boolean) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    last_ record;
BEGIN
    SELECT w.ctid AS at, w.n, w.woken INTO last_ FROM tenure.waiters w
    WHERE w.namespace = in_namespace AND w.queue = in_queue ORDER BY w.n DESC, w.woken DESC LIMIT 1;
    IF last_.woken IS NOT FALSE THEN
        RETURN;
    END IF;
    IF remove THEN
        INSERT INTO tenure.waiters (namespace, queue, n, woken) VALUES (in_namespace, in_queue, last_.n, true);
        -- With one snapshot for the whole transaction, a row that changed since could only be an error.
        IF current_setting('transaction_isolation') = 'read committed' THEN
            DELETE FROM tenure.waiters WHERE ctid = ANY (ARRAY(
                SELECT w.ctid FROM tenure.waiters w WHERE w.ctid = last_.at AND w.n = last_.n AND NOT w.woken
                FOR UPDATE SKIP LOCKED));
        END IF;
    END IF;
    PERFORM pg_catalog.pg_notify('tenure_wake', json_build_object('work',
        json_build_object('namespace', in_namespace, 'name', in_queue))::text);
END
$$;

-- Notes down that somebody waits for work of a queue, if that is not known.
CREATE FUNCTION tenure.wait_for_work(in_namespace text, in_queue text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    last_ record;
BEGIN
    SELECT w.ctid AS at, w.n, w.woken INTO last_ FROM tenure.waiters w
    WHERE w.namespace = in_namespace AND w.queue = in_queue ORDER BY w.n DESC, w.woken DESC LIMIT 1;
    IF last_.woken THEN
        DELETE FROM tenure.waiters WHERE ctid = ANY (ARRAY(
            SELECT w.ctid FROM tenure.waiters w WHERE w.ctid = last_.at AND w.n = last_.n AND w.woken FOR UPDATE SKIP LOCKED));
    END IF;
    IF last_.woken IS NOT FALSE THEN
        INSERT INTO tenure.waiters (namespace, queue, n, woken)
        VALUES (in_namespace, in_queue, nextval('tenure.waiter_numbers'), false);
    END IF;
END
$$;

-- The number of a queue, which is made if it is not there.
CREATE FUNCTION tenure.queue_id(in_namespace text, in_queue text) RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
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

-- The number of a demand, which is inserted if this transaction sees none: see the table. Nobody waits for anybody.
CREATE FUNCTION tenure.demand_id(
    in_queue integer, in_kind text, in_requires text[], in_prefers text[], in_workers text[]
) RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    found_id integer;
    -- As JSON, so that no two different demands read the same.
    mark bytea := sha256(convert_to(json_build_array(in_kind, in_requires, in_prefers, in_workers)::text, 'UTF8'));
BEGIN
    SELECT d.id INTO found_id FROM tenure.demands d
    WHERE d.queue = in_queue AND d.digest = mark AND d.retired IS NULL ORDER BY d.id LIMIT 1;
    IF found_id IS NULL THEN
        INSERT INTO tenure.demands (queue, kind, requires, prefers, workers, digest)
        VALUES (in_queue, in_kind, in_requires, in_prefers, in_workers, mark) RETURNING id INTO found_id;
    ELSIF current_setting('transaction_isolation') <> 'read committed' THEN
        -- It may be retired since the snapshot: that is an error of class 40. From here on it is not deleted.
        PERFORM FROM tenure.demands d WHERE d.id = found_id FOR KEY SHARE;
    END IF;
    RETURN found_id;
END
$$;

-- Submits tasks, all or nothing, in this transaction. Nothing is checked here but the parents.
-- `demands`: [{kind, requires, prefers, workers}]. `tasks`: each with `d`, the place of its demand in that list, and
-- whatever is not as usual; `payloads` beside them, as nothing must be done to their text. `remove`: see tenure.ring. One row for each task, `n` is its place.
CREATE FUNCTION tenure.submit_all(
    in_namespace text, in_queue text, demands json, tasks json, payloads text[], remove boolean
) RETURNS TABLE (n integer, id bigint, new boolean) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    -- Before the demands are read: those who retire them wait for the end of every transaction that had a number by then.
    xid_ CONSTANT xid8 := pg_current_xact_id();
    queue_ integer := tenure.queue_id(in_namespace, in_queue);
    now_ timestamptz := date_trunc('milliseconds', clock_timestamp());
    demand_ids integer[];
    given bigint[];
    ids bigint[];
    made bigint[];
    rings boolean;
BEGIN
    demand_ids := ARRAY(
        SELECT tenure.demand_id(queue_, d.kind, d.requires, d.prefers, d.workers)
        FROM json_to_recordset(demands) AS d(kind text, requires text[], prefers text[], workers text[]));
    -- The numbers are in the order of the submission, whatever the order in which rows are inserted.
    given := ARRAY(SELECT nextval('tenure.tasks_id_seq') FROM generate_series(1, json_array_length(tasks)));
    WITH inserted AS (
        INSERT INTO tenure.tasks (
            id, queue, demand, state, enqueued_at, effective_at, ready_at, give_up_at, run_at, priority, max_attempts,
            backoff_first_ms, backoff_most_ms, max_wait_ms, max_run_ms, open_parents, key, concurrency_key,
            concurrency_limit, leader_token, payload)
        SELECT given[t.n], queue_, demand_ids[t.d + 1],
            CASE WHEN t.has_parents THEN 'waiting' WHEN t.later THEN 'scheduled' ELSE 'ready' END,
            now_, now_ - t.priority * interval '1 minute',
            CASE WHEN NOT t.has_parents AND NOT t.later THEN now_ END,
            CASE WHEN NOT t.has_parents AND NOT t.later THEN now_ + t.max_wait_ms * interval '1 millisecond' END,
            t.at, t.priority, coalesce(t.max_attempts, 20),
            t.backoff_first_ms, t.backoff_most_ms, t.max_wait_ms, t.max_run_ms,
            CASE WHEN t.has_parents THEN 1 END, t.key, t.concurrency_key, coalesce(t.concurrency_limit, 1),
            t.leader_token, payloads[t.n]::json
        FROM (
            SELECT r.n, r.d, coalesce(r.priority, 0) AS priority, r.max_attempts, r.backoff_first_ms,
                   r.backoff_most_ms, r.max_wait_ms, r.max_run_ms, r.key, r.concurrency_key, r.concurrency_limit,
                   r.leader_token, r.parents IS NOT NULL OR r.indexes IS NOT NULL AS has_parents,
                   to_timestamp(r.run_at_ms::double precision / 1000) AS at,
                   coalesce(to_timestamp(r.run_at_ms::double precision / 1000) > now_, false) AS later
            FROM ROWS FROM (json_to_recordset(tasks) AS (
                d integer, priority integer, run_at_ms bigint, max_wait_ms bigint, max_run_ms bigint,
                max_attempts integer, backoff_first_ms bigint, backoff_most_ms bigint, parents bigint[],
                indexes integer[], key text, concurrency_key text, concurrency_limit integer, leader_token bigint)
            ) WITH ORDINALITY AS r (
                d, priority, run_at_ms, max_wait_ms, max_run_ms, max_attempts, backoff_first_ms,
                backoff_most_ms, parents, indexes, key, concurrency_key, concurrency_limit, leader_token, n)
        ) t
        -- By key, so that two submissions with the same keys wait for each other in one order.
        ORDER BY t.key, t.n
        ON CONFLICT (queue, key) WHERE key IS NOT NULL DO NOTHING
        RETURNING tasks.id, tasks.state
    )
    SELECT array_agg(i.id), coalesce(bool_or(i.state = 'ready'), false) INTO made, rings FROM inserted i;
    IF rings THEN
        PERFORM tenure.ring(in_namespace, in_queue, remove);
    END IF;
    ids := given;
    IF coalesce(cardinality(made), 0) < cardinality(given) THEN
        -- In a statement of its own, which sees those that were inserted by others meanwhile.
        ids := ARRAY(
            SELECT coalesce(m.id, (SELECT t.id FROM tenure.tasks t WHERE t.queue = queue_ AND t.key = r.key))
            FROM ROWS FROM (json_to_recordset(tasks) AS (key text)) WITH ORDINALITY AS r (key, n)
            LEFT JOIN unnest(made) AS m (id) ON m.id = given[r.n]
            ORDER BY r.n);
        IF array_position(ids, NULL) IS NOT NULL THEN
            RAISE EXCEPTION 'a task with the same key in % is being forgotten at this moment', in_queue
                USING ERRCODE = '40001', HINT = 'Submit it again.';
        END IF;
    END IF;
    IF position('"parents"' IN tasks::text) > 0 OR position('"indexes"' IN tasks::text) > 0 THEN
        PERFORM tenure.adopt(in_namespace, given, p.children, p.parents, now_, remove) FROM (
            SELECT array_agg(e.child ORDER BY e.child, e.parent) AS children,
                   array_agg(e.parent ORDER BY e.child, e.parent) AS parents
            FROM (
                SELECT DISTINCT ids[r.n] AS child, e.parent
                FROM ROWS FROM (json_to_recordset(tasks) AS (parents bigint[], indexes integer[]))
                     WITH ORDINALITY AS r (parents, indexes, n),
                     LATERAL (SELECT unnest(r.parents) UNION SELECT ids[i + 1] FROM unnest(r.indexes) i) e (parent)
                WHERE ids[r.n] = given[r.n]
            ) e
        ) p WHERE p.children IS NOT NULL;
    END IF;
    RETURN QUERY SELECT (o.n - 1)::integer, o.id, o.id = o.given
                 FROM unnest(ids, given) WITH ORDINALITY AS o (id, given, n);
END
$$;

-- Ties new tasks to their parents, pairwise; `given` are all of the submission, in its order. The parents' rows are locked, so that none completes or dies in between.
CREATE FUNCTION tenure.adopt(
    in_namespace text, given bigint[], in_children bigint[], in_parents bigint[], now_ timestamptz, remove boolean
) RETURNS void LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    wrong record;
BEGIN
    PERFORM FROM tenure.tasks t WHERE t.id = ANY (in_parents) ORDER BY t.id FOR NO KEY UPDATE;
    SELECT array_position(given, e.child) - 1 AS place, e.parent, t.state INTO wrong
    FROM unnest(in_children, in_parents) AS e (child, parent)
    LEFT JOIN tenure.tasks t ON t.id = e.parent
        AND EXISTS (SELECT FROM tenure.queues q WHERE q.id = t.queue AND q.namespace = in_namespace)
    WHERE t.id IS NULL OR t.state IN ('dead', 'cancelled')
    ORDER BY 1, 2 LIMIT 1;
    IF FOUND AND wrong.state IS NULL THEN
        RAISE EXCEPTION 'task %: there is no task % in namespace % that it could wait for',
            wrong.place, wrong.parent, in_namespace
            USING ERRCODE = 'TN011', HINT = 'It may be forgotten, or never was: leave this parent out, or submit it first. '
                                            'Nothing was submitted.';
    ELSIF FOUND THEN
        RAISE EXCEPTION 'task %: its parent % is %, so it would never begin', wrong.place, wrong.parent, wrong.state
            USING ERRCODE = 'TN012', HINT = format('Retry the parent first (`tenure tasks retry %s`). Nothing was submitted.',
                                                   wrong.parent);
    END IF;
    UPDATE tenure.tasks t SET has_children = true WHERE t.id = ANY (in_parents) AND NOT t.has_children;
    INSERT INTO tenure.parents (child, parent)
    SELECT e.child, e.parent FROM unnest(in_children, in_parents) AS e (child, parent);
    PERFORM tenure.recount(ARRAY(SELECT DISTINCT c FROM unnest(in_children) c), now_, remove);
END
$$;

-- Counts the open parents of these tasks anew, and lets those go that have none left. A count, not a subtraction: it does
-- not matter who counts, or how often.
CREATE FUNCTION tenure.recount(in_children bigint[], now_ timestamptz, remove boolean)
RETURNS void LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    rings integer[];
BEGIN
    PERFORM FROM tenure.tasks t WHERE t.id = ANY (in_children) ORDER BY t.id FOR NO KEY UPDATE;
    WITH counted AS (
        SELECT c.id, (SELECT count(*) FROM tenure.parents e JOIN tenure.tasks p ON p.id = e.parent
                      WHERE e.child = c.id AND p.state <> 'completed')::integer AS open
        FROM unnest(in_children) AS c (id)
    ), moved AS (
        UPDATE tenure.tasks t
        SET open_parents = c.open,
            state = CASE WHEN c.open > 0 THEN 'waiting' WHEN t.run_at > now_ THEN 'scheduled' ELSE 'ready' END,
            ready_at = CASE WHEN c.open = 0 AND (t.run_at IS NULL OR t.run_at <= now_) THEN now_ ELSE t.ready_at END,
            give_up_at = CASE WHEN c.open = 0 AND (t.run_at IS NULL OR t.run_at <= now_)
                              THEN now_ + t.max_wait_ms * interval '1 millisecond' END
        FROM counted c
        WHERE t.id = c.id AND t.state = 'waiting'
        RETURNING t.queue, t.state
    )
    SELECT array_agg(DISTINCT m.queue) INTO rings FROM moved m WHERE m.state = 'ready';
    PERFORM tenure.ring(q.namespace, q.name, remove) FROM tenure.queues q WHERE q.id = ANY (rings);
END
$$;
