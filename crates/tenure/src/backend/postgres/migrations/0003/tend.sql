-- What the keeper does, and what operators order.

-- Returns claims whose session or time is over, gives up what waited too long, lets go what is due, forgets what is old: at
-- most `most` of each. Nothing happens unless this session leads tenure/claims under this token; and it goes on leading until
-- the transaction is over. `clock_ms`: what the keeper thinks that our clock shows at least; null: it does not know, and nothing
-- is over that goes by the clock.
CREATE FUNCTION tenure.tend(
    in_session text, in_token bigint, clock_ms bigint, most integer,
    OUT leads boolean, OUT returned bigint, OUT dead bigint, OUT due bigint, OUT forgotten bigint, OUT freed bigint,
    OUT more boolean, OUT store_ms bigint, OUT next_ms bigint
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    now_ timestamptz := date_trunc('milliseconds', clock_timestamp());
    clock_ timestamptz := CASE WHEN clock_ms IS NULL THEN '-infinity'
                               ELSE least(tenure.at(least(clock_ms, tenure.ms(now_))), now_) END;
    found_ bigint[];
    task record;
    queue_ record;
    keys jsonb := '[]';
    rings integer[] := '{}';
BEGIN
    leads := false;
    returned := 0;
    dead := 0;
    due := 0;
    forgotten := 0;
    freed := 0;
    more := false;
    store_ms := tenure.ms(now_);
    PERFORM FROM tenure.leases l
    WHERE l.namespace = 'tenure' AND l.name = 'claims' AND l.slot = 0 AND l.token = in_token AND l.session = in_session
    FOR SHARE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    leads := true;

    -- Claims of sessions that are over: those between the living ones, so that nobody walks over what these have. No session's
    -- name has a character beyond chr(127), which every encoding has.
    found_ := ARRAY(
        SELECT t.id FROM (
            SELECT coalesce(lag(s.id) OVER (ORDER BY s.id), '') AS after, coalesce(s.id, chr(127)) AS before
            FROM (SELECT l.id FROM tenure.sessions l WHERE l.state = 'live' UNION ALL SELECT NULL) s
        ) gap CROSS JOIN LATERAL (
            SELECT c.id FROM tenure.tasks c
            WHERE c.session > gap.after AND c.session < gap.before AND c.session IS NOT NULL AND c.state = 'claimed'
            LIMIT most + 1 FOR UPDATE SKIP LOCKED
        ) t LIMIT most + 1);
    found_ := found_ || ARRAY(
        SELECT c.id FROM tenure.tasks c WHERE c.state = 'claimed' AND c.deadline < clock_ AND c.deadline IS NOT NULL
        ORDER BY c.deadline LIMIT most + 1 FOR UPDATE SKIP LOCKED);
    -- One whose fate others share waits for the next round, should somebody else have one of those locked: nobody else's
    -- recovery waits for that.
    found_ := ARRAY(
        SELECT t.id FROM tenure.tasks t WHERE t.id = ANY (found_)
          AND CASE WHEN t.has_children AND t.attempt >= t.max_attempts THEN tenure.reach(t.id) ELSE true END
        ORDER BY t.id);
    more := cardinality(found_) > most;
    -- Once more, now that they are locked.
    FOR task IN
        UPDATE tenure.tasks t
        SET state = CASE WHEN t.attempt < t.max_attempts THEN 'ready' ELSE 'dead' END, session = NULL, deadline = NULL,
            ready_at = CASE WHEN t.attempt < t.max_attempts THEN now_ ELSE t.ready_at END,
            give_up_at = CASE WHEN t.attempt < t.max_attempts THEN now_ + t.max_wait_ms * interval '1 millisecond' END,
            finished_at = CASE WHEN t.attempt < t.max_attempts THEN NULL ELSE now_ END,
            reason = CASE WHEN t.attempt < t.max_attempts THEN t.reason
                          ELSE format('attempt %s of %s was %s', t.attempt, t.max_attempts, l.error) END,
            failures = tenure.failed(t.failures, t.attempt, now_, t.worker, l.error)
        FROM (
            SELECT c.id, CASE WHEN c.session IS NOT NULL AND NOT EXISTS (
                                   SELECT FROM tenure.sessions s WHERE s.id = c.session AND s.state = 'live')
                              THEN 'lost: its session ended'
                              WHEN c.deadline < clock_ AND c.claimed_at + c.max_run_ms * interval '1 millisecond' <= c.deadline
                              THEN 'lost: run time is over'
                              WHEN c.deadline < clock_ THEN 'lost: its claim timed out' END AS error
            FROM tenure.tasks c WHERE c.id = ANY (found_[1:most]) AND c.state = 'claimed'
        ) l
        WHERE t.id = l.id AND l.error IS NOT NULL
        RETURNING t.id, t.state, t.queue, t.concurrency_key AS key, t.has_children,
                  (SELECT q.namespace FROM tenure.queues q WHERE q.id = t.queue) AS namespace
    LOOP
        returned := returned + 1;
        rings := rings || task.queue;
        IF task.state = 'dead' AND task.has_children THEN
            dead := dead + cardinality(tenure.doom(task.id, 'dead', now_));
        END IF;
        IF task.key IS NOT NULL THEN
            keys := keys || jsonb_build_array(jsonb_build_array(task.namespace, task.key));
        END IF;
    END LOOP;

    -- What nobody claimed for too long.
    found_ := ARRAY(
        SELECT t.id FROM tenure.tasks t WHERE t.give_up_at < clock_ AND t.state IN ('ready', 'held')
        ORDER BY t.give_up_at LIMIT most + 1 FOR UPDATE SKIP LOCKED);
    found_ := ARRAY(
        SELECT t.id FROM tenure.tasks t WHERE t.id = ANY (found_)
          AND CASE WHEN t.has_children THEN tenure.reach(t.id) ELSE true END
        ORDER BY t.id);
    more := more OR cardinality(found_) > most;
    FOR task IN
        SELECT t.id, t.state, t.concurrency_key AS key, t.has_children, q.namespace
        FROM tenure.tasks t JOIN tenure.queues q ON q.id = t.queue WHERE t.id = ANY (found_[1:most]) ORDER BY t.id
    LOOP
        UPDATE tenure.tasks t
        SET state = 'dead', finished_at = now_, give_up_at = NULL,
            reason = format('nobody claimed it for its longest wait of %s ms', t.max_wait_ms)
        WHERE t.id = task.id;
        dead := dead + 1;
        IF task.has_children THEN
            dead := dead + cardinality(tenure.doom(task.id, 'dead', now_));
        END IF;
        -- One that was let in makes room as well as a claim that ends: or nobody would be let in again.
        IF task.key IS NOT NULL AND task.state = 'ready' THEN
            keys := keys || jsonb_build_array(jsonb_build_array(task.namespace, task.key));
        END IF;
    END LOOP;
    PERFORM tenure.unhold(k.namespace, k.keys, now_) FROM (
        SELECT k ->> 0 AS namespace, array_agg(k ->> 1) AS keys FROM jsonb_array_elements(keys) k GROUP BY 1 ORDER BY 1) k;
    PERFORM tenure.unhold_strays(most, now_);

    FOR queue_ IN
        SELECT q.id FROM tenure.queues q WHERE EXISTS (
            SELECT FROM tenure.tasks t WHERE t.queue = q.id AND t.state = 'scheduled' AND t.run_at <= now_)
        ORDER BY q.id
    LOOP
        due := due + tenure.promote(queue_.id, '-infinity', now_, most - due::integer);
        rings := rings || queue_.id;
        more := more OR due >= most;
        EXIT WHEN due >= most;
    END LOOP;
    PERFORM tenure.ring(q.namespace, q.name, true) FROM tenure.queues q WHERE q.id = ANY (rings);

    forgotten := tenure.forget(clock_, most);
    more := more OR forgotten >= most;
    SELECT p.freed, tend.more OR p.more INTO freed, more FROM tenure.tend_pools(clock_, now_, most) p;
    IF random() < 0.01 THEN
        -- What two left behind who did something at the same moment.
        DELETE FROM tenure.waiters WHERE ctid = ANY (ARRAY(
            SELECT w.ctid FROM tenure.waiters w
            WHERE EXISTS (SELECT FROM tenure.waiters l WHERE l.namespace = w.namespace AND l.queue = w.queue AND l.n > w.n)
            LIMIT most FOR UPDATE SKIP LOCKED));
    END IF;
    PERFORM tenure.forget_workers(clock_, most);
    PERFORM tenure.sweep_demands(greatest(most, 5000), 0.002);

    -- Over is what is past: one more millisecond.
    next_ms := least(
        tenure.ms(least(
            (SELECT c.deadline FROM tenure.tasks c WHERE c.state = 'claimed' AND c.deadline IS NOT NULL
             ORDER BY c.deadline LIMIT 1),
            (SELECT t.give_up_at FROM tenure.tasks t WHERE t.give_up_at IS NOT NULL ORDER BY t.give_up_at LIMIT 1),
            (SELECT min(r.deadline) FROM tenure.pool_requests r WHERE r.state = 'granted'),
            (SELECT min(r.created_at + r.max_wait_ms * interval '1 millisecond')
             FROM tenure.pool_requests r WHERE r.state = 'waiting')
        )) + 1 - CASE WHEN isfinite(clock_) THEN tenure.ms(clock_) END,
        tenure.ms(least(
            (SELECT min(f.run_at) FROM tenure.queues q CROSS JOIN LATERAL (
                SELECT t.run_at FROM tenure.tasks t WHERE t.queue = q.id AND t.state = 'scheduled' AND t.run_at IS NOT NULL
                ORDER BY t.run_at LIMIT 1) f),
            (SELECT min(r.cooling_until) FROM tenure.resources r WHERE r.cooling_until IS NOT NULL)
        )) - store_ms);
    next_ms := CASE WHEN next_ms < 0 THEN 0 ELSE next_ms END;
END
$$;

-- Locks all that wait for this task, directly or not. False, and nothing is locked, if somebody else has one of them.
CREATE FUNCTION tenure.reach(in_task bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    left_ bigint[] := ARRAY[in_task];
BEGIN
    WHILE cardinality(left_) > 0 LOOP
        left_ := ARRAY(
            SELECT t.id FROM tenure.tasks t
            WHERE t.id = ANY (ARRAY(SELECT e.child FROM tenure.parents e WHERE e.parent = ANY (left_)))
            ORDER BY t.id FOR NO KEY UPDATE NOWAIT);
        left_ := ARRAY(
            SELECT t.id FROM tenure.tasks t WHERE t.id = ANY (left_) AND t.state NOT IN ('completed', 'dead', 'cancelled'));
    END LOOP;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END
$$;

-- Lets in the first of each demand that is held back by a concurrency key of which fewer are claimed than may be: whoever
-- should have let it in did not come to it. Not while one of them stands there ready.
CREATE FUNCTION tenure.unhold_strays(most integer, now_ timestamptz) RETURNS void LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
AS $$
DECLARE
    key_ text := '';
    demand_ integer := -1;
    held_ record;
    rings integer[] := '{}';
BEGIN
    FOR n IN 1..most LOOP
        SELECT t.concurrency_key, t.demand, t.concurrency_limit, t.queue, q.namespace INTO held_
        FROM (
            SELECT h.concurrency_key, h.demand, h.concurrency_limit, h.queue FROM tenure.tasks h
            WHERE h.state = 'held' AND h.concurrency_key IS NOT NULL AND h.concurrency_key = key_ AND h.demand > demand_
            ORDER BY h.demand, h.effective_at, h.id LIMIT 1
        ) t JOIN tenure.queues q ON q.id = t.queue;
        IF NOT FOUND THEN
            SELECT t.concurrency_key, t.demand, t.concurrency_limit, t.queue, q.namespace INTO held_
            FROM (
                SELECT h.concurrency_key, h.demand, h.concurrency_limit, h.queue FROM tenure.tasks h
                WHERE h.concurrency_key IS NOT NULL AND h.state = 'held' AND h.concurrency_key > key_
                ORDER BY h.concurrency_key, h.state, h.demand, h.effective_at, h.id LIMIT 1
            ) t JOIN tenure.queues q ON q.id = t.queue;
            EXIT WHEN NOT FOUND;
        END IF;
        key_ := held_.concurrency_key;
        demand_ := held_.demand;
        CONTINUE WHEN EXISTS (
            SELECT FROM tenure.tasks t WHERE t.concurrency_key = key_ AND t.state = 'ready' AND t.demand = demand_);
        -- Somebody decides about it at this moment: then it is no stray.
        CONTINUE WHEN NOT tenure.try_key(held_.namespace, key_);
        IF (SELECT count(*) FROM tenure.tasks t JOIN tenure.queues q ON q.id = t.queue
            WHERE t.concurrency_key = key_ AND t.state = 'claimed' AND q.namespace = held_.namespace)
           < held_.concurrency_limit THEN
            UPDATE tenure.tasks t SET state = 'ready' WHERE t.ctid = ANY (ARRAY(
                SELECT h.ctid FROM tenure.tasks h WHERE h.state = 'held' AND h.concurrency_key = key_ AND h.demand = demand_
                ORDER BY h.effective_at, h.id LIMIT 1 FOR UPDATE SKIP LOCKED));
            rings := rings || held_.queue;
        END IF;
    END LOOP;
    PERFORM tenure.ring(q.namespace, q.name, true) FROM tenure.queues q WHERE q.id = ANY (rings);
END
$$;

-- Forgets finished tasks that are old, but for those whose output a child may still want. How many.
CREATE FUNCTION tenure.forget(clock_ timestamptz, most integer) RETURNS bigint LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    found_ tid[];
    gone bigint[];
BEGIN
    found_ := ARRAY(
        SELECT f.ctid FROM tenure.queues q
        CROSS JOIN (VALUES ('completed'), ('cancelled'), ('dead')) AS ended (state)
        CROSS JOIN LATERAL (
            SELECT t.ctid FROM tenure.tasks t
            WHERE t.queue = q.id AND t.state = ended.state AND t.finished_at IS NOT NULL
              AND t.finished_at < clock_ - interval '1 millisecond'
                  * CASE ended.state WHEN 'dead' THEN q.keep_dead_ms ELSE q.keep_ms END
              AND NOT (t.has_children AND tenure.is_wanted(t.id))
            ORDER BY t.finished_at LIMIT most FOR UPDATE SKIP LOCKED
        ) f LIMIT most);
    -- A child may have come in before they were locked.
    WITH deleted AS (
        DELETE FROM tenure.tasks t
        WHERE t.ctid = ANY (found_) AND NOT (t.has_children AND tenure.is_wanted(t.id)) RETURNING t.id
    )
    SELECT coalesce(array_agg(d.id), '{}') INTO gone FROM deleted d;
    DELETE FROM tenure.parents e WHERE e.child = ANY (gone);
    RETURN cardinality(gone);
END
$$;

-- Whether a child may still want this task's output: one that is not completed may be retried.
CREATE FUNCTION tenure.is_wanted(in_task bigint) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT EXISTS (SELECT FROM tenure.parents e JOIN tenure.tasks c ON c.id = e.child
                   WHERE e.parent = in_task AND c.state <> 'completed')
$$;

-- Forgets workers that nobody has seen for a day. An approval is somebody's word about a name, and stays until it is taken back.
CREATE FUNCTION tenure.forget_workers(clock_ timestamptz, most integer) RETURNS void LANGUAGE sql VOLATILE AS $$
    DELETE FROM tenure.workers d WHERE d.ctid = ANY (ARRAY(
        SELECT w.ctid FROM tenure.workers w LEFT JOIN tenure.sessions s ON s.id = w.session
        WHERE w.approved_by IS NULL AND coalesce(s.state, '') <> 'live'
          AND greatest(w.seen_at, s.beat_at) < clock_ - interval '1 day'
        LIMIT most FOR UPDATE OF w SKIP LOCKED))
$$;

-- Deletes demands that no task has any more, where there are many, and merges those that are there twice. One step: it looks at `most`
-- tasks at most, in the order of their numbers, and locks nothing that a submission needs. `chance`: how likely it is to begin anew, if
-- no sweep is under way. False: none is under way now.
--
-- A sweep meets the demands of all tasks. At its end, demands that were there from its beginning and were not met are retired: no
-- submission takes them from now on. But one that is under way may have. When the next sweep begins, it writes down for each retired
-- demand which transactions have a number by then; a submission has one before it reads the demands. When all of those are over, at
-- the beginning of a later sweep, every task that will ever have the demand is there to be met by that sweep. If none is, the demand is
-- deleted; otherwise it is taken back into service, unless another row has the same digest by now.
CREATE FUNCTION tenure.sweep_demands(most integer, chance double precision) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    now_ pg_snapshot;
    sweep_ record;
    last_ bigint;
    count_ bigint;
BEGIN
    SELECT s.* INTO sweep_ FROM tenure.demand_sweep s FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN true;
    END IF;
    IF sweep_.task IS NULL THEN
        IF random() >= chance THEN
            RETURN false;
        END IF;
        -- After the lock: what was retired by another, who had it before, is committed in this snapshot.
        now_ := pg_current_snapshot();
        -- A number from another cluster, of which this is a copy, may be one that is never reached.
        UPDATE tenure.demands d SET retired = pg_snapshot_xmax(now_)
        WHERE d.retired = '0' OR d.retired > pg_snapshot_xmax(now_);
        -- Of those that are there twice, the first stays.
        UPDATE tenure.demands d SET retired = '0'
        WHERE d.retired IS NULL AND EXISTS (
            SELECT FROM tenure.demands f
            WHERE f.queue = d.queue AND f.digest = d.digest AND f.id < d.id AND f.retired IS NULL);
        IF NOT EXISTS (SELECT FROM tenure.demands d WHERE d.retired IS NOT NULL)
           AND NOT EXISTS (SELECT FROM tenure.demands d GROUP BY d.queue HAVING count(*) > 256) THEN
            RETURN false;
        END IF;
        sweep_.task := 0;
        sweep_.met := '{}';
        sweep_.demand := (SELECT max(d.id) FROM tenure.demands d);
        sweep_.horizon := pg_snapshot_xmin(now_);
    END IF;
    SELECT max(t.id), count(*), ARRAY(SELECT m FROM unnest(sweep_.met || array_agg(DISTINCT t.demand)) m GROUP BY m)
    INTO last_, count_, sweep_.met
    FROM (SELECT i.id, i.demand FROM tenure.tasks i WHERE i.id > sweep_.task ORDER BY i.id LIMIT most) t;
    IF count_ = most THEN
        sweep_.task := last_;
    ELSE
        DELETE FROM tenure.demands d WHERE d.id = ANY (ARRAY(
            SELECT o.id FROM tenure.demands o
            WHERE o.retired > '0' AND o.retired <= sweep_.horizon AND NOT o.id = ANY (sweep_.met) FOR UPDATE SKIP LOCKED));
        UPDATE tenure.demands d SET retired = NULL
        WHERE d.retired IS NOT NULL AND d.id = ANY (sweep_.met) AND NOT EXISTS (
            SELECT FROM tenure.demands o
            WHERE o.queue = d.queue AND o.digest = d.digest AND o.id <> d.id AND (o.retired IS NULL OR o.id < d.id));
        UPDATE tenure.demands d SET retired = '0'
        WHERE d.retired IS NULL AND NOT d.id = ANY (sweep_.met) AND d.id <= sweep_.demand AND d.queue IN (
            SELECT o.queue FROM tenure.demands o GROUP BY o.queue HAVING count(*) > 256);
        sweep_.task := NULL;
        sweep_.met := '{}';
    END IF;
    UPDATE tenure.demand_sweep s
    SET task = sweep_.task, met = sweep_.met, demand = sweep_.demand, horizon = sweep_.horizon;
    RETURN sweep_.task IS NOT NULL;
END
$$;

-- Calls tasks off. Those on which it had an effect, those that shared a fate included.
CREATE FUNCTION tenure.cancel(in_namespace text, ids bigint[]) RETURNS SETOF bigint LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    now_ timestamptz := date_trunc('milliseconds', clock_timestamp());
    task record;
    shared bigint[];
    keys text[] := '{}';
    rings integer[] := '{}';
BEGIN
    PERFORM FROM tenure.tasks t WHERE t.id = ANY (ids) ORDER BY t.id FOR UPDATE;
    FOR task IN
        SELECT t.id FROM tenure.tasks t JOIN tenure.queues q ON q.id = t.queue AND q.namespace = in_namespace
        WHERE t.id = ANY (ids) ORDER BY t.id
    LOOP
        SELECT t.id, t.state, t.session, t.queue, t.has_children, t.concurrency_key AS key INTO task
        FROM tenure.tasks t WHERE t.id = task.id;
        CONTINUE WHEN task.state IN ('completed', 'dead', 'cancelled');
        UPDATE tenure.tasks t
        SET state = 'cancelled', finished_at = now_, session = NULL, deadline = NULL, give_up_at = NULL, reason = 'called off'
        WHERE t.id = task.id;
        RETURN NEXT task.id;
        IF task.has_children THEN
            RETURN QUERY SELECT unnest(tenure.doom(task.id, 'cancelled', now_));
        END IF;
        IF task.state = 'claimed' AND task.session IS NOT NULL THEN
            PERFORM pg_catalog.pg_notify('tenure_wake', json_build_object('recalled', task.session)::text);
        END IF;
        IF task.state = 'claimed' THEN
            rings := rings || task.queue;
        END IF;
        IF task.state IN ('claimed', 'ready') AND task.key IS NOT NULL THEN
            keys := keys || task.key;
        END IF;
    END LOOP;
    IF cardinality(keys) > 0 THEN
        PERFORM tenure.unhold(in_namespace, keys, now_);
    END IF;
    PERFORM tenure.ring(q.namespace, q.name, true) FROM tenure.queues q
    WHERE q.id = ANY (rings) AND q.max_claimed IS NOT NULL;
END
$$;

-- Whether a task may be retried: it is scheduled; or it is over, and none of its parents would keep it for ever.
CREATE FUNCTION tenure.may_retry(in_task bigint) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT t.state = 'scheduled' OR t.state IN ('dead', 'cancelled') AND NOT EXISTS (
        SELECT FROM tenure.parents e JOIN tenure.tasks p ON p.id = e.parent
        WHERE e.child = t.id AND p.state IN ('dead', 'cancelled'))
    FROM tenure.tasks t WHERE t.id = in_task
$$;

-- Brings a task back, to its parents or to the queue. `at_once`: whatever it was scheduled for.
CREATE FUNCTION tenure.revive(in_task bigint, at_once boolean, now_ timestamptz) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    open integer;
BEGIN
    SELECT count(*) INTO open FROM tenure.parents e JOIN tenure.tasks p ON p.id = e.parent
    WHERE e.child = in_task AND p.state <> 'completed';
    UPDATE tenure.tasks t
    SET attempt = 0, output = NULL, reason = NULL, fate = NULL, finished_at = NULL,
        run_at = CASE WHEN at_once THEN NULL ELSE t.run_at END,
        open_parents = CASE WHEN t.open_parents IS NOT NULL THEN open END,
        state = CASE WHEN open > 0 THEN 'waiting' WHEN NOT at_once AND t.run_at > now_ THEN 'scheduled' ELSE 'ready' END,
        ready_at = CASE WHEN open > 0 OR NOT at_once AND t.run_at > now_ THEN t.ready_at ELSE now_ END,
        give_up_at = CASE WHEN open > 0 OR NOT at_once AND t.run_at > now_ THEN NULL
                          ELSE now_ + t.max_wait_ms * interval '1 millisecond' END
    WHERE t.id = in_task;
END
$$;

-- Gives tasks another attempt. Those on which it had an effect, those that had shared a fate included.
CREATE FUNCTION tenure.retry(in_namespace text, ids bigint[]) RETURNS SETOF bigint LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    now_ timestamptz := date_trunc('milliseconds', clock_timestamp());
    left_ bigint[];
    here bigint[];
    next_ bigint[];
    task_ bigint;
    parent_ bigint;
    child_ bigint;
    done bigint[] := '{}';
BEGIN
    PERFORM FROM tenure.tasks t WHERE t.id = ANY (ids) ORDER BY t.id FOR UPDATE;
    left_ := ARRAY(SELECT t.id FROM tenure.tasks t JOIN tenure.queues q ON q.id = t.queue AND q.namespace = in_namespace
                   WHERE t.id = ANY (ids) ORDER BY t.id);
    LOOP
        -- In whatever order they are named: one that comes back may bring others within reach.
        here := ARRAY(SELECT l FROM unnest(left_) l WHERE tenure.may_retry(l));
        EXIT WHEN cardinality(here) = 0;
        FOREACH task_ IN ARRAY here LOOP
            left_ := array_remove(left_, task_);
            PERFORM tenure.revive(task_, true, now_);
            done := done || task_;
            next_ := ARRAY[task_];
            WHILE cardinality(next_) > 0 LOOP
                parent_ := next_[cardinality(next_)];
                next_ := next_[:cardinality(next_) - 1];
                FOR child_ IN
                    SELECT t.id FROM tenure.parents e JOIN tenure.tasks t ON t.id = e.child
                    WHERE e.parent = parent_ AND t.fate = parent_ ORDER BY t.id FOR UPDATE OF t
                LOOP
                    IF tenure.may_retry(child_) THEN
                        PERFORM tenure.revive(child_, false, now_);
                        done := done || child_;
                        next_ := next_ || child_;
                    ELSE
                        -- The parent that it fell with is back, but there is another that keeps it down.
                        UPDATE tenure.tasks t SET fate = o.id, reason = format('its parent %s is lost', o.id)
                        FROM (SELECT p.id FROM tenure.parents e JOIN tenure.tasks p ON p.id = e.parent
                              WHERE e.child = child_ AND p.state IN ('dead', 'cancelled') ORDER BY p.id LIMIT 1) o
                        WHERE t.id = child_;
                    END IF;
                END LOOP;
            END LOOP;
        END LOOP;
    END LOOP;
    PERFORM tenure.ring(q.namespace, q.name, true) FROM tenure.queues q WHERE q.id = ANY (ARRAY(
        SELECT DISTINCT t.queue FROM tenure.tasks t WHERE t.id = ANY (done) AND t.state = 'ready'));
    RETURN QUERY SELECT DISTINCT d FROM unnest(done) d ORDER BY d;
END
$$;
