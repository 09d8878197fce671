-- Maintenance of queues by the broker, and operations of operators on tasks.

-- Recovers claims whose session ended or whose time is over, ends tasks that waited too long, makes due tasks ready
-- and prunes old tasks: at most `max_count` of each. Does nothing unless this session leads tenure/broker under this
-- token; the lease stays locked until the transaction ends.
--   * `clock_at_ms`: a lower bound of the server's clock, as the caller knows it. Null: unknown, and nothing expires
--     by the clock.
CREATE FUNCTION tenure.maintain_queues(
    in_session text, in_token bigint, clock_at_ms bigint, max_count integer,
    OUT is_leader boolean, OUT recovered bigint, OUT dead bigint, OUT promoted bigint, OUT pruned bigint, OUT released bigint,
    OUT has_more boolean, OUT store_now_at_ms bigint, OUT next_in_ms bigint
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    now_ timestamptz := date_trunc('milliseconds', clock_timestamp());
    clock_ timestamptz := CASE WHEN clock_at_ms IS NULL THEN '-infinity'
                               ELSE least(tenure.from_unix_ms(least(clock_at_ms, tenure.to_unix_ms(now_))), now_) END;
    found_ bigint[];
    task record;
    queue_ record;
    keys jsonb := '[]';
    queue_ids integer[] := '{}';
BEGIN
    is_leader := false;
    recovered := 0;
    dead := 0;
    promoted := 0;
    pruned := 0;
    released := 0;
    has_more := false;
    store_now_at_ms := tenure.to_unix_ms(now_);
    PERFORM FROM tenure.leases l
    WHERE l.namespace = 'tenure' AND l.election = 'broker' AND l.slot = 0 AND l.token = in_token AND l.session = in_session
    FOR SHARE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    is_leader := true;

    -- Claims of sessions that have ended: the claims between those of live sessions in the index, so that the claims of live
    -- sessions are not read. No session id has a character beyond chr(127), which every encoding has.
    found_ := ARRAY(
        SELECT t.id FROM (
            SELECT coalesce(lag(s.id) OVER (ORDER BY s.id), '') AS after, coalesce(s.id, chr(127)) AS before
            FROM (SELECT l.id FROM tenure.sessions l WHERE l.state = 'live' UNION ALL SELECT NULL) s
        ) gap CROSS JOIN LATERAL (
            SELECT c.id FROM tenure.tasks c
            WHERE c.session > gap.after AND c.session < gap.before AND c.session IS NOT NULL AND c.state = 'claimed'
            LIMIT max_count + 1 FOR UPDATE SKIP LOCKED
        ) t LIMIT max_count + 1);
    found_ := found_ || ARRAY(
        SELECT c.id FROM tenure.tasks c WHERE c.state = 'claimed' AND c.claim_expires_at < clock_
            AND c.claim_expires_at IS NOT NULL
        ORDER BY c.claim_expires_at LIMIT max_count + 1 FOR UPDATE SKIP LOCKED);
    -- A task whose end also ends its children waits for the next call if another transaction has locked one of them, so that
    -- the recovery of other tasks does not wait.
    found_ := ARRAY(
        SELECT t.id FROM tenure.tasks t WHERE t.id = ANY (found_)
          AND CASE WHEN t.has_children AND t.attempt >= t.max_attempts THEN tenure.try_lock_descendants(t.id) ELSE true END
        ORDER BY t.id);
    has_more := cardinality(found_) > max_count;
    -- Check again, now that the rows are locked.
    FOR task IN
        UPDATE tenure.tasks t
        SET state = CASE WHEN t.attempt < t.max_attempts THEN 'ready' ELSE 'dead' END, session = NULL, claim_expires_at = NULL,
            ready_at = CASE WHEN t.attempt < t.max_attempts THEN now_ ELSE t.ready_at END,
            wait_expires_at = CASE WHEN t.attempt < t.max_attempts THEN now_ + t.max_wait_ms * interval '1 millisecond' END,
            finished_at = CASE WHEN t.attempt < t.max_attempts THEN NULL ELSE now_ END,
            end_reason = CASE WHEN t.attempt < t.max_attempts THEN t.end_reason
                          ELSE format('attempt %s of %s failed: %s', t.attempt, t.max_attempts, l.error) END,
            failures = tenure.append_failure(t.failures, t.attempt, now_, t.worker, l.error)
        FROM (
            SELECT c.id, CASE WHEN c.session IS NOT NULL AND NOT EXISTS (
                                   SELECT FROM tenure.sessions s WHERE s.id = c.session AND s.state = 'live')
                              THEN 'claim lost: session ended'
                              WHEN c.claim_expires_at < clock_
                                  AND c.claimed_at + c.max_run_ms * interval '1 millisecond' <= c.claim_expires_at
                              THEN 'claim lost: max_run_ms exceeded'
                              WHEN c.claim_expires_at < clock_ THEN 'claim lost: claim timeout exceeded' END AS error
            FROM tenure.tasks c WHERE c.id = ANY (found_[1:max_count]) AND c.state = 'claimed'
        ) l
        WHERE t.id = l.id AND l.error IS NOT NULL
        RETURNING t.id, t.state, t.queue_id, t.concurrency_key AS key, t.has_children,
                  (SELECT q.namespace FROM tenure.queues q WHERE q.id = t.queue_id) AS namespace
    LOOP
        recovered := recovered + 1;
        queue_ids := queue_ids || task.queue_id;
        IF task.state = 'dead' AND task.has_children THEN
            dead := dead + cardinality(tenure.cascade_to_children(task.id, 'dead', now_));
        END IF;
        IF task.key IS NOT NULL THEN
            keys := keys || jsonb_build_array(jsonb_build_array(task.namespace, task.key));
        END IF;
    END LOOP;

    -- Tasks that no worker claimed within max_wait_ms.
    found_ := ARRAY(
        SELECT t.id FROM tenure.tasks t WHERE t.wait_expires_at < clock_ AND t.state IN ('ready', 'blocked')
        ORDER BY t.wait_expires_at LIMIT max_count + 1 FOR UPDATE SKIP LOCKED);
    found_ := ARRAY(
        SELECT t.id FROM tenure.tasks t WHERE t.id = ANY (found_)
          AND CASE WHEN t.has_children THEN tenure.try_lock_descendants(t.id) ELSE true END
        ORDER BY t.id);
    has_more := has_more OR cardinality(found_) > max_count;
    FOR task IN
        SELECT t.id, t.state, t.concurrency_key AS key, t.has_children, q.namespace
        FROM tenure.tasks t JOIN tenure.queues q ON q.id = t.queue_id WHERE t.id = ANY (found_[1:max_count]) ORDER BY t.id
    LOOP
        UPDATE tenure.tasks t
        SET state = 'dead', finished_at = now_, wait_expires_at = NULL,
            end_reason = format('not claimed within max_wait_ms (%s ms)', t.max_wait_ms)
        WHERE t.id = task.id;
        dead := dead + 1;
        IF task.has_children THEN
            dead := dead + cardinality(tenure.cascade_to_children(task.id, 'dead', now_));
        END IF;
        -- A ready task occupies a place of its concurrency key. Its end frees the place, as the end of a claim does.
        IF task.key IS NOT NULL AND task.state = 'ready' THEN
            keys := keys || jsonb_build_array(jsonb_build_array(task.namespace, task.key));
        END IF;
    END LOOP;
    PERFORM tenure.unblock_tasks(k.namespace, k.keys, now_) FROM (
        SELECT k ->> 0 AS namespace, array_agg(k ->> 1) AS keys FROM jsonb_array_elements(keys) k GROUP BY 1 ORDER BY 1) k;
    PERFORM tenure.unblock_missed_tasks(max_count, now_);

    FOR queue_ IN
        SELECT q.id FROM tenure.queues q WHERE EXISTS (
            SELECT FROM tenure.tasks t WHERE t.queue_id = q.id AND t.state = 'scheduled' AND t.run_at <= now_)
        ORDER BY q.id
    LOOP
        promoted := promoted + tenure.promote_due_tasks(queue_.id, '-infinity', now_, max_count - promoted::integer);
        queue_ids := queue_ids || queue_.id;
        has_more := has_more OR promoted >= max_count;
        EXIT WHEN promoted >= max_count;
    END LOOP;
    PERFORM tenure.notify_queue(q.namespace, q.name, true) FROM tenure.queues q WHERE q.id = ANY (queue_ids);

    pruned := tenure.prune_tasks(clock_, max_count);
    has_more := has_more OR pruned >= max_count;
    SELECT p.released, maintain_queues.has_more OR p.has_more INTO released, has_more
        FROM tenure.maintain_pools(clock_, now_, max_count) p;
    IF random() < 0.01 THEN
        -- Delete rows that are not the last one of their queue: two concurrent transactions may leave them.
        DELETE FROM tenure.queue_waiters WHERE ctid = ANY (ARRAY(
            SELECT w.ctid FROM tenure.queue_waiters w
            WHERE EXISTS (SELECT FROM tenure.queue_waiters l WHERE l.namespace = w.namespace AND l.queue = w.queue
                AND l.seq > w.seq)
            LIMIT max_count FOR UPDATE SKIP LOCKED));
    END IF;
    PERFORM tenure.prune_workers(clock_, max_count);
    PERFORM tenure.prune_requirements(greatest(max_count, 5000), 0.002);

    -- A row expires one millisecond after its instant.
    next_in_ms := least(
        tenure.to_unix_ms(least(
            (SELECT c.claim_expires_at FROM tenure.tasks c WHERE c.state = 'claimed' AND c.claim_expires_at IS NOT NULL
             ORDER BY c.claim_expires_at LIMIT 1),
            (SELECT t.wait_expires_at FROM tenure.tasks t WHERE t.wait_expires_at IS NOT NULL
                ORDER BY t.wait_expires_at LIMIT 1),
            (SELECT min(r.expires_at) FROM tenure.pool_requests r WHERE r.state = 'granted'),
            (SELECT min(r.created_at + r.max_wait_ms * interval '1 millisecond')
             FROM tenure.pool_requests r WHERE r.state = 'waiting')
        )) + 1 - CASE WHEN isfinite(clock_) THEN tenure.to_unix_ms(clock_) END,
        tenure.to_unix_ms(least(
            (SELECT min(f.run_at) FROM tenure.queues q CROSS JOIN LATERAL (
                SELECT t.run_at FROM tenure.tasks t WHERE t.queue_id = q.id AND t.state = 'scheduled' AND t.run_at IS NOT NULL
                ORDER BY t.run_at LIMIT 1) f),
            (SELECT min(r.cooldown_until) FROM tenure.resources r WHERE r.cooldown_until IS NOT NULL)
        )) - store_now_at_ms);
    next_in_ms := CASE WHEN next_in_ms < 0 THEN 0 ELSE next_in_ms END;
END
$$;

-- Locks all tasks that depend on this one, directly or not. False, and nothing is locked, if another transaction has locked one
-- of them.
CREATE FUNCTION tenure.try_lock_descendants(in_task bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    level_ bigint[] := ARRAY[in_task];
BEGIN
    WHILE cardinality(level_) > 0 LOOP
        level_ := ARRAY(
            SELECT t.id FROM tenure.tasks t
            WHERE t.id = ANY (ARRAY(SELECT e.task_id FROM tenure.task_dependencies e WHERE e.parent_id = ANY (level_)))
            ORDER BY t.id FOR NO KEY UPDATE NOWAIT);
        level_ := ARRAY(
            SELECT t.id FROM tenure.tasks t WHERE t.id = ANY (level_) AND t.state NOT IN ('completed', 'dead', 'cancelled'));
    END LOOP;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END
$$;

-- Makes the first blocked task of each set of requirements ready if its concurrency key is below its limit. Needed if
-- the call that should have unblocked it failed or skipped it. Skips requirements that have a ready task with that
-- key.
CREATE FUNCTION tenure.unblock_missed_tasks(max_count integer, now_ timestamptz) RETURNS void LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
AS $$
DECLARE
    key_ text := '';
    requirements_id_ integer := -1;
    blocked_ record;
    queue_ids integer[] := '{}';
BEGIN
    FOR n IN 1..max_count LOOP
        SELECT t.concurrency_key, t.requirements_id, t.concurrency_limit, t.queue_id, q.namespace INTO blocked_
        FROM (
            SELECT h.concurrency_key, h.requirements_id, h.concurrency_limit, h.queue_id FROM tenure.tasks h
            WHERE h.state = 'blocked' AND h.concurrency_key IS NOT NULL AND h.concurrency_key = key_
                AND h.requirements_id > requirements_id_
            ORDER BY h.requirements_id, h.effective_at, h.id LIMIT 1
        ) t JOIN tenure.queues q ON q.id = t.queue_id;
        IF NOT FOUND THEN
            SELECT t.concurrency_key, t.requirements_id, t.concurrency_limit, t.queue_id, q.namespace INTO blocked_
            FROM (
                SELECT h.concurrency_key, h.requirements_id, h.concurrency_limit, h.queue_id FROM tenure.tasks h
                WHERE h.concurrency_key IS NOT NULL AND h.state = 'blocked' AND h.concurrency_key > key_
                ORDER BY h.concurrency_key, h.state, h.requirements_id, h.effective_at, h.id LIMIT 1
            ) t JOIN tenure.queues q ON q.id = t.queue_id;
            EXIT WHEN NOT FOUND;
        END IF;
        key_ := blocked_.concurrency_key;
        requirements_id_ := blocked_.requirements_id;
        CONTINUE WHEN EXISTS (
            SELECT FROM tenure.tasks t WHERE t.concurrency_key = key_ AND t.state = 'ready'
                AND t.requirements_id = requirements_id_);
        -- Another transaction is claiming or unblocking tasks of this key. The next pass checks it again.
        CONTINUE WHEN NOT tenure.try_lock_concurrency_key(blocked_.namespace, key_);
        IF (SELECT count(*) FROM tenure.tasks t JOIN tenure.queues q ON q.id = t.queue_id
            WHERE t.concurrency_key = key_ AND t.state = 'claimed' AND q.namespace = blocked_.namespace)
           < blocked_.concurrency_limit THEN
            UPDATE tenure.tasks t SET state = 'ready' WHERE t.ctid = ANY (ARRAY(
                SELECT h.ctid FROM tenure.tasks h WHERE h.state = 'blocked' AND h.concurrency_key = key_
                    AND h.requirements_id = requirements_id_
                ORDER BY h.effective_at, h.id LIMIT 1 FOR UPDATE SKIP LOCKED));
            queue_ids := queue_ids || blocked_.queue_id;
        END IF;
    END LOOP;
    PERFORM tenure.notify_queue(q.namespace, q.name, true) FROM tenure.queues q WHERE q.id = ANY (queue_ids);
END
$$;

-- Prunes finished tasks beyond their retention, except those whose result a child may still need. Returns their number.
CREATE FUNCTION tenure.prune_tasks(clock_ timestamptz, max_count integer) RETURNS bigint LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    found_ tid[];
    pruned bigint[];
BEGIN
    found_ := ARRAY(
        SELECT f.ctid FROM tenure.queues q
        CROSS JOIN (VALUES ('completed'), ('cancelled'), ('dead')) AS ended (state)
        CROSS JOIN LATERAL (
            SELECT t.ctid FROM tenure.tasks t
            WHERE t.queue_id = q.id AND t.state = ended.state AND t.finished_at IS NOT NULL
              AND t.finished_at < clock_ - interval '1 millisecond'
                  * CASE ended.state WHEN 'dead' THEN q.dead_retention_ms ELSE q.retention_ms END
              AND NOT (t.has_children AND tenure.is_result_needed(t.id))
            ORDER BY t.finished_at LIMIT max_count FOR UPDATE SKIP LOCKED
        ) f LIMIT max_count);
    -- A child may have been submitted before the rows were locked.
    WITH deleted AS (
        DELETE FROM tenure.tasks t
        WHERE t.ctid = ANY (found_) AND NOT (t.has_children AND tenure.is_result_needed(t.id)) RETURNING t.id
    )
    SELECT coalesce(array_agg(d.id), '{}') INTO pruned FROM deleted d;
    DELETE FROM tenure.task_dependencies e WHERE e.task_id = ANY (pruned);
    RETURN cardinality(pruned);
END
$$;

-- Whether a child may still need the result of this task: a child that is not completed may be retried.
CREATE FUNCTION tenure.is_result_needed(in_task bigint) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT EXISTS (SELECT FROM tenure.task_dependencies e JOIN tenure.tasks c ON c.id = e.task_id
                   WHERE e.parent_id = in_task AND c.state <> 'completed')
$$;

-- Prunes workers that were not seen for a day. An approval stays until it is revoked.
CREATE FUNCTION tenure.prune_workers(clock_ timestamptz, max_count integer) RETURNS void LANGUAGE sql VOLATILE AS $$
    DELETE FROM tenure.workers d WHERE d.ctid = ANY (ARRAY(
        SELECT w.ctid FROM tenure.workers w LEFT JOIN tenure.sessions s ON s.id = w.session
        WHERE w.approved_by IS NULL AND coalesce(s.state, '') <> 'live'
          AND greatest(w.last_seen_at, s.heartbeat_at) < clock_ - interval '1 day'
        LIMIT max_count FOR UPDATE OF w SKIP LOCKED))
$$;

-- Deletes requirements that no task uses, in queues with many of them, and merges duplicates. This is one step: it reads at
-- most `max_count` tasks, in the order of their ids, and locks nothing that a submission needs. `start_probability`: how likely
-- it starts a new pass, if none is in progress. Returns whether a pass is in progress.
--
-- A pass collects the requirements of all tasks. At its end it retires requirements that existed when it began and that no task
-- uses: later submissions do not use them. But a submission in progress may have. When the next pass begins, it stores for each
-- retired row the transaction ids that exist by then; a submission has its id before it reads the requirements. When all of
-- those transactions have ended, at the beginning of a later pass, every task that will ever use the row is visible to that
-- pass. If there is none, the pass deletes the row; otherwise it takes the row back into use, unless another row has the same
-- digest.
CREATE FUNCTION tenure.prune_requirements(max_count integer,
    start_probability double precision) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    now_ pg_snapshot;
    state_ record;
    last_ bigint;
    count_ bigint;
BEGIN
    SELECT s.* INTO state_ FROM tenure.requirements_prune_state s FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN true;
    END IF;
    IF state_.last_task_id IS NULL THEN
        IF random() >= start_probability THEN
            RETURN false;
        END IF;
        -- After the lock: rows that the previous holder of the lock retired are committed in this snapshot.
        now_ := pg_current_snapshot();
        -- A transaction id of another cluster, of which this is a copy, may never be reached here.
        UPDATE tenure.task_requirements d SET retired_xid = pg_snapshot_xmax(now_)
        WHERE d.retired_xid = '0' OR d.retired_xid > pg_snapshot_xmax(now_);
        -- Of duplicates, the first row stays.
        UPDATE tenure.task_requirements d SET retired_xid = '0'
        WHERE d.retired_xid IS NULL AND EXISTS (
            SELECT FROM tenure.task_requirements f
            WHERE f.queue_id = d.queue_id AND f.digest = d.digest AND f.id < d.id AND f.retired_xid IS NULL);
        IF NOT EXISTS (SELECT FROM tenure.task_requirements d WHERE d.retired_xid IS NOT NULL)
           AND NOT EXISTS (SELECT FROM tenure.task_requirements d GROUP BY d.queue_id HAVING count(*) > 256) THEN
            RETURN false;
        END IF;
        state_.last_task_id := 0;
        state_.used_ids := '{}';
        state_.max_requirements_id := (SELECT max(d.id) FROM tenure.task_requirements d);
        state_.oldest_xid := pg_snapshot_xmin(now_);
    END IF;
    SELECT max(t.id), count(*), ARRAY(SELECT m FROM unnest(state_.used_ids || array_agg(DISTINCT t.requirements_id)) m
        GROUP BY m)
    INTO last_, count_, state_.used_ids
    FROM (SELECT i.id, i.requirements_id FROM tenure.tasks i WHERE i.id > state_.last_task_id ORDER BY i.id LIMIT max_count) t;
    IF count_ = max_count THEN
        state_.last_task_id := last_;
    ELSE
        DELETE FROM tenure.task_requirements d WHERE d.id = ANY (ARRAY(
            SELECT o.id FROM tenure.task_requirements o
            WHERE o.retired_xid > '0' AND o.retired_xid <= state_.oldest_xid AND NOT o.id = ANY (state_.used_ids)
                FOR UPDATE SKIP LOCKED));
        UPDATE tenure.task_requirements d SET retired_xid = NULL
        WHERE d.retired_xid IS NOT NULL AND d.id = ANY (state_.used_ids) AND NOT EXISTS (
            SELECT FROM tenure.task_requirements o
            WHERE o.queue_id = d.queue_id AND o.digest = d.digest AND o.id <> d.id AND (o.retired_xid IS NULL OR o.id < d.id));
        UPDATE tenure.task_requirements d SET retired_xid = '0'
        WHERE d.retired_xid IS NULL AND NOT d.id = ANY (state_.used_ids) AND d.id <= state_.max_requirements_id
            AND d.queue_id IN (
            SELECT o.queue_id FROM tenure.task_requirements o GROUP BY o.queue_id HAVING count(*) > 256);
        state_.last_task_id := NULL;
        state_.used_ids := '{}';
    END IF;
    UPDATE tenure.requirements_prune_state s
    SET last_task_id = state_.last_task_id, used_ids = state_.used_ids, max_requirements_id = state_.max_requirements_id,
        oldest_xid = state_.oldest_xid;
    RETURN state_.last_task_id IS NOT NULL;
END
$$;

-- Cancels tasks. Returns the ids of the tasks that changed, including their children.
CREATE FUNCTION tenure.cancel_tasks(in_namespace text, ids bigint[]) RETURNS SETOF bigint LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    now_ timestamptz := date_trunc('milliseconds', clock_timestamp());
    task record;
    cascaded bigint[];
    keys text[] := '{}';
    queue_ids integer[] := '{}';
BEGIN
    PERFORM FROM tenure.tasks t WHERE t.id = ANY (ids) ORDER BY t.id FOR UPDATE;
    FOR task IN
        SELECT t.id FROM tenure.tasks t JOIN tenure.queues q ON q.id = t.queue_id AND q.namespace = in_namespace
        WHERE t.id = ANY (ids) ORDER BY t.id
    LOOP
        SELECT t.id, t.state, t.session, t.queue_id, t.has_children, t.concurrency_key AS key INTO task
        FROM tenure.tasks t WHERE t.id = task.id;
        CONTINUE WHEN task.state IN ('completed', 'dead', 'cancelled');
        UPDATE tenure.tasks t
        SET state = 'cancelled', finished_at = now_, session = NULL, claim_expires_at = NULL, wait_expires_at = NULL,
            end_reason = 'cancelled'
        WHERE t.id = task.id;
        RETURN NEXT task.id;
        IF task.has_children THEN
            RETURN QUERY SELECT unnest(tenure.cascade_to_children(task.id, 'cancelled', now_));
        END IF;
        IF task.state = 'claimed' AND task.session IS NOT NULL THEN
            PERFORM pg_catalog.pg_notify('tenure_notify', json_build_object('claim_cancelled', task.session)::text);
        END IF;
        IF task.state = 'claimed' THEN
            queue_ids := queue_ids || task.queue_id;
        END IF;
        IF task.state IN ('claimed', 'ready') AND task.key IS NOT NULL THEN
            keys := keys || task.key;
        END IF;
    END LOOP;
    IF cardinality(keys) > 0 THEN
        PERFORM tenure.unblock_tasks(in_namespace, keys, now_);
    END IF;
    PERFORM tenure.notify_queue(q.namespace, q.name, true) FROM tenure.queues q
    WHERE q.id = ANY (queue_ids) AND q.max_claimed IS NOT NULL;
END
$$;

-- Whether a task may be retried: it is scheduled, or it has ended and no parent is dead or cancelled.
CREATE FUNCTION tenure.can_retry(in_task bigint) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT t.state = 'scheduled' OR t.state IN ('dead', 'cancelled') AND NOT EXISTS (
        SELECT FROM tenure.task_dependencies e JOIN tenure.tasks p ON p.id = e.parent_id
        WHERE e.task_id = t.id AND p.state IN ('dead', 'cancelled'))
    FROM tenure.tasks t WHERE t.id = in_task
$$;

-- Puts a task back: to waiting for its parents or to the queue. `immediately`: ignore run_at.
CREATE FUNCTION tenure.requeue_task(in_task bigint, immediately boolean,
    now_ timestamptz) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    pending integer;
BEGIN
    SELECT count(*) INTO pending FROM tenure.task_dependencies e JOIN tenure.tasks p ON p.id = e.parent_id
    WHERE e.task_id = in_task AND p.state <> 'completed';
    UPDATE tenure.tasks t
    SET attempt = 0, result = NULL, end_reason = NULL, cascaded_from_id = NULL, finished_at = NULL,
        run_at = CASE WHEN immediately THEN NULL ELSE t.run_at END,
        pending_parent_count = CASE WHEN t.pending_parent_count IS NOT NULL THEN pending END,
        state = CASE WHEN pending > 0 THEN 'waiting' WHEN NOT immediately AND t.run_at > now_ THEN 'scheduled' ELSE 'ready' END,
        ready_at = CASE WHEN pending > 0 OR NOT immediately AND t.run_at > now_ THEN t.ready_at ELSE now_ END,
        wait_expires_at = CASE WHEN pending > 0 OR NOT immediately AND t.run_at > now_ THEN NULL
                          ELSE now_ + t.max_wait_ms * interval '1 millisecond' END
    WHERE t.id = in_task;
END
$$;

-- Gives tasks another attempt. Returns the ids of the tasks that changed, including children that had ended with them.
CREATE FUNCTION tenure.retry_tasks(in_namespace text, ids bigint[]) RETURNS SETOF bigint LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    now_ timestamptz := date_trunc('milliseconds', clock_timestamp());
    remaining bigint[];
    retriable bigint[];
    descendants_ bigint[];
    task_ bigint;
    parent_ bigint;
    child_ bigint;
    retried bigint[] := '{}';
BEGIN
    PERFORM FROM tenure.tasks t WHERE t.id = ANY (ids) ORDER BY t.id FOR UPDATE;
    remaining := ARRAY(SELECT t.id FROM tenure.tasks t JOIN tenure.queues q ON q.id = t.queue_id AND q.namespace = in_namespace
                   WHERE t.id = ANY (ids) ORDER BY t.id);
    LOOP
        -- In any order: a task that comes back may make others retriable.
        retriable := ARRAY(SELECT l FROM unnest(remaining) l WHERE tenure.can_retry(l));
        EXIT WHEN cardinality(retriable) = 0;
        FOREACH task_ IN ARRAY retriable LOOP
            remaining := array_remove(remaining, task_);
            PERFORM tenure.requeue_task(task_, true, now_);
            retried := retried || task_;
            descendants_ := ARRAY[task_];
            WHILE cardinality(descendants_) > 0 LOOP
                parent_ := descendants_[cardinality(descendants_)];
                descendants_ := descendants_[:cardinality(descendants_) - 1];
                FOR child_ IN
                    SELECT t.id FROM tenure.task_dependencies e JOIN tenure.tasks t ON t.id = e.task_id
                    WHERE e.parent_id = parent_ AND t.cascaded_from_id = parent_ ORDER BY t.id FOR UPDATE OF t
                LOOP
                    IF tenure.can_retry(child_) THEN
                        PERFORM tenure.requeue_task(child_, false, now_);
                        retried := retried || child_;
                        descendants_ := descendants_ || child_;
                    ELSE
                        -- The parent that ended this task is back, but another parent is still dead or cancelled.
                        UPDATE tenure.tasks t SET cascaded_from_id = o.id, end_reason = format('parent %s is %s', o.id, o.state)
                        FROM (SELECT p.id, p.state FROM tenure.task_dependencies e JOIN tenure.tasks p ON p.id = e.parent_id
                              WHERE e.task_id = child_ AND p.state IN ('dead', 'cancelled') ORDER BY p.id LIMIT 1) o
                        WHERE t.id = child_;
                    END IF;
                END LOOP;
            END LOOP;
        END LOOP;
    END LOOP;
    PERFORM tenure.notify_queue(q.namespace, q.name, true) FROM tenure.queues q WHERE q.id = ANY (ARRAY(
        SELECT DISTINCT t.queue_id FROM tenure.tasks t WHERE t.id = ANY (retried) AND t.state = 'ready'));
    RETURN QUERY SELECT DISTINCT d FROM unnest(retried) d ORDER BY d;
END
$$;
