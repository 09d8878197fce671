-- Firing of schedules.
--
-- Why no tick is lost and none fires twice. A firing names what it was decided from: a version and the next tick. One
-- transaction compares them with the stored values and does nothing if they differ; it records the ticks with their events and
-- tasks; and it stores the next tick. So after a crash at any point either all of this has happened or none of it, and the next
-- scheduler decides again from the stored state. Two transactions that decide the same wait for each other at the row of
-- schedule_state; the second one finds another next tick, and its firing is stale. A scheduler that was replaced finds that its
-- lease is gone; one that holds its lease keeps it, by a shared lock, until its firing is committed. The clock only decides how
-- many ticks are due: if it steps, ticks fire early or late.
--
-- A scheduler that stops blocks no other process. A call is one message, which the server completes whether or not the client
-- waits for the response. It waits for no lock longer than a second, and takes in total no longer than the lease of the
-- scheduler (schedule_limit_transaction_time). Its response is one short row, so that a slow reader does not delay it.

-- The server's clock, truncated and not rounded, so that it is never ahead.
CREATE FUNCTION tenure.now_unix_ms() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT floor(date_part('epoch', clock_timestamp()) * 1000)::bigint
$$;

-- Due schedules, the longest due first: one more than `max_count`, if there are more. The last row has no name: it has the
-- clock and the time at which the next schedule is due.
CREATE FUNCTION tenure.due_schedules(max_count integer) RETURNS TABLE (
    namespace text, name text, version bigint, definition text, next_tick_at_ms bigint, last_tick_at_ms bigint,
        consecutive_failures integer,
    unfinished bigint, due_at_ms bigint, store_now_at_ms bigint, schedule_id integer
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_sort = off
AS $$
#variable_conflict use_column
DECLARE
    now_ CONSTANT bigint := tenure.now_unix_ms();
BEGIN
    RETURN QUERY
    SELECT s.namespace, s.name, p.version, s.definition::text, p.next_tick_at_ms, p.last_tick_at_ms, p.consecutive_failures,
           -- A pruned task is finished.
           CASE WHEN p.tracks_runs THEN (
               SELECT count(*) FROM tenure.tracked_runs r WHERE r.schedule_id = p.schedule_id AND (
                   SELECT t.state NOT IN ('completed', 'dead', 'cancelled') FROM tenure.tasks t WHERE t.id = r.task_id)
           ) ELSE 0 END, p.due_at_ms, now_, p.schedule_id
    FROM (SELECT * FROM tenure.schedule_state d WHERE d.due_at_ms <= now_ AND d.due_at_ms IS NOT NULL
          ORDER BY d.due_at_ms, d.schedule_id LIMIT max_count + 1) p
    JOIN tenure.schedules s ON s.id = p.schedule_id
    ORDER BY p.due_at_ms, p.schedule_id;
    RETURN QUERY
    SELECT NULL::text, NULL::text, NULL::bigint, NULL::text, NULL::bigint, NULL::bigint, NULL::integer, NULL::bigint, (
               SELECT p.due_at_ms FROM tenure.schedule_state p WHERE p.due_at_ms > now_ AND p.due_at_ms IS NOT NULL
               ORDER BY p.due_at_ms LIMIT 1), now_, NULL::integer;
END
$$;

-- Ids and payload limits of topics, whose rows are locked: no transaction changes or deletes them until this one ends. In the
-- order of `topics`, [{namespace, name}]; null for a topic that does not exist.
CREATE FUNCTION tenure.lock_topics(topics json, OUT ids integer[], OUT max_bytes bigint[]) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
BEGIN
    PERFORM FROM tenure.topics t
    WHERE (t.namespace, t.name) IN (SELECT k.namespace, k.name FROM json_to_recordset(topics) AS k (namespace text, name text))
    ORDER BY t.id FOR SHARE;
    SELECT array_agg(t.id ORDER BY k.n), array_agg(t.max_payload_bytes ORDER BY k.n) INTO ids, max_bytes
    FROM ROWS FROM (json_to_recordset(topics) AS (namespace text, name text)) WITH ORDINALITY AS k (namespace, name, n)
    LEFT JOIN tenure.topics t ON t.namespace = k.namespace AND t.name = k.name;
END
$$;

-- Publishes the events of ticks at `event_indexes`; `event_topics` is the index of the topic of each event. Writes their ids
-- into `ids`. Not immediately: the partitions are locked when the transaction commits, in one order over all topics, and only
-- for that moment.
CREATE FUNCTION tenure.publish_tick_events(
    topics json, topic_ids integer[], event_topics integer[], event_indexes integer[], hashes bigint[], types text[],
        keys text[],
    payloads text[], binary_payloads bytea[], headers_ text[], idempotency_keys text[], tokens bigint[], INOUT ids bigint[]
) LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    topic_ record;
    published_ids bigint[];
    index integer := 0;
BEGIN
    FOR topic_ IN
        SELECT k.namespace, k.name, e.event_indexes FROM (
            SELECT event_topics[p.index] AS topic, array_agg(p.index ORDER BY p.index) AS event_indexes
            FROM unnest(event_indexes) AS p (index) GROUP BY 1
        ) e
        JOIN ROWS FROM (json_to_recordset(topics) AS (namespace text, name text)) WITH ORDINALITY AS k (namespace, name, n)
            ON k.n = e.topic
        ORDER BY topic_ids[e.topic]
    LOOP
        IF cardinality(topic_.event_indexes) = cardinality(event_topics) THEN
            ids := ARRAY(
                SELECT p.event_id FROM tenure.publish_events(topic_.namespace, topic_.name, hashes, types, keys, payloads,
                                                             binary_payloads, headers_, idempotency_keys, tokens, false) p
                                                                 ORDER BY p.index);
        ELSE
            published_ids := ARRAY(
                SELECT p.event_id FROM tenure.publish_events(
                    topic_.namespace, topic_.name,
                    ARRAY(SELECT hashes[n] FROM unnest(topic_.event_indexes) n),
                    ARRAY(SELECT types[n] FROM unnest(topic_.event_indexes) n),
                    ARRAY(SELECT keys[n] FROM unnest(topic_.event_indexes) n),
                    ARRAY(SELECT payloads[n] FROM unnest(topic_.event_indexes) n),
                    ARRAY(SELECT binary_payloads[n] FROM unnest(topic_.event_indexes) n),
                    ARRAY(SELECT headers_[n] FROM unnest(topic_.event_indexes) n),
                    CASE WHEN idempotency_keys IS NOT NULL
                         THEN ARRAY(SELECT idempotency_keys[n] FROM unnest(topic_.event_indexes) n) END,
                    ARRAY(SELECT tokens[n] FROM unnest(topic_.event_indexes) n), false) p ORDER BY p.index);
            FOR n IN 1..cardinality(published_ids) LOOP
                index := topic_.event_indexes[n];
                ids[index] := published_ids[n];
            END LOOP;
        END IF;
    END LOOP;
END
$$;

-- Submits the tasks of ticks in the same way. `queues`: [{namespace, name, requirements}]; `task_queues` is the index of the
-- queue of each task; `tasks` and `payloads`: see tenure.submit_tasks.
CREATE FUNCTION tenure.submit_tick_tasks(
    queues json, task_queues integer[], task_indexes integer[], tasks json, payloads text[], INOUT ids bigint[]
) LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    queue_ record;
    submitted_ids bigint[];
    index integer := 0;
    task_texts text[];
BEGIN
    FOR queue_ IN
        SELECT q.namespace, q.name, q.requirements, t.task_indexes FROM (
            SELECT task_queues[p.index] AS queue_index, array_agg(p.index ORDER BY p.index) AS task_indexes
            FROM unnest(task_indexes) AS p (index) GROUP BY 1
        ) t
        JOIN ROWS FROM (json_to_recordset(queues) AS (namespace text, name text, requirements json))
             WITH ORDINALITY AS q (namespace, name, requirements, n) ON q.n = t.queue_index
        -- In one order, so that two calls do not deadlock.
        ORDER BY q.namespace, q.name
    LOOP
        IF cardinality(queue_.task_indexes) = cardinality(task_queues) THEN
            ids := ARRAY(SELECT s.task_id FROM tenure.submit_tasks(
                queue_.namespace, queue_.name, queue_.requirements, tasks, payloads, true) s ORDER BY s.index);
        ELSE
            task_texts := coalesce(task_texts, ARRAY(SELECT e.task::text
                FROM json_array_elements(tasks) WITH ORDINALITY AS e (task, n)
                                           ORDER BY e.n));
            submitted_ids := ARRAY(SELECT s.task_id FROM tenure.submit_tasks(
                queue_.namespace, queue_.name, queue_.requirements,
                (SELECT ('[' || string_agg(task_texts[n], ',' ORDER BY n) || ']')::json FROM unnest(queue_.task_indexes) n),
                ARRAY(SELECT payloads[n] FROM unnest(queue_.task_indexes) n ORDER BY n), true) s ORDER BY s.index);
            FOR n IN 1..cardinality(submitted_ids) LOOP
                index := queue_.task_indexes[n];
                ids[index] := submitted_ids[n];
            END LOOP;
        END IF;
    END LOOP;
END
$$;

-- Records ticks with their events and tasks. The arrays have one element for each tick: its schedule (null: do not fire), its
-- time, when it was due, whether its run is tracked, and the indexes of its event and task; events and tasks: see
-- publish_tick_events and submit_tick_tasks. The caller has locked the schedules.
CREATE FUNCTION tenure.record_ticks(
    tick_schedules integer[], tick_times bigint[], due_times bigint[], tracked boolean[], tick_events integer[],
        tick_tasks integer[],
    is_manual boolean, now_ bigint, in_token bigint, in_decided_by text,
    topics json, topic_ids integer[], event_topics integer[], hashes bigint[], types text[], keys text[], payloads text[],
    binary_payloads bytea[], headers_ text[], idempotency_keys text[], tokens bigint[],
    queues json, task_queues integer[], tasks json, task_payloads text[],
    OUT event_ids bigint[], OUT task_ids bigint[]
) LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    event_indexes integer[];
    task_indexes integer[];
BEGIN
    SELECT array_agg(k.event) FILTER (WHERE k.event IS NOT NULL), array_agg(k.task) FILTER (WHERE k.task IS NOT NULL)
    INTO event_indexes, task_indexes
    FROM unnest(tick_schedules, tick_events, tick_tasks) AS k (schedule_id, event, task) WHERE k.schedule_id IS NOT NULL;
    IF task_indexes IS NOT NULL THEN
        task_ids := tenure.submit_tick_tasks(
            queues, task_queues, task_indexes, tasks, task_payloads, array_fill(NULL::bigint, ARRAY[cardinality(task_queues)]));
    END IF;
    IF event_indexes IS NOT NULL THEN
        event_ids := tenure.publish_tick_events(
            topics, topic_ids, event_topics, event_indexes, hashes, types, keys, payloads, binary_payloads, headers_,
                idempotency_keys, tokens,
            array_fill(NULL::bigint, ARRAY[cardinality(event_topics)]));
    END IF;
    INSERT INTO tenure.ticks (schedule_id, manual, tick_at_ms, due_at_ms, decided_at_ms, token, event_id, task_id, decided_by)
    SELECT k.schedule_id, is_manual, k.tick_at_ms, k.due_at_ms, now_, in_token, event_ids[k.event], task_ids[k.task],
        in_decided_by
    FROM unnest(tick_schedules, tick_times, due_times, tick_events, tick_tasks) AS k (schedule_id, tick_at_ms, due_at_ms,
        event, task)
    WHERE k.schedule_id IS NOT NULL;
    IF tracked IS NOT NULL AND task_ids IS NOT NULL THEN
        INSERT INTO tenure.tracked_runs (schedule_id, task_id)
        SELECT k.schedule_id, task_ids[k.task] FROM unnest(tick_schedules, tracked, tick_tasks) AS k (schedule_id, tracked,
            task)
        WHERE k.tracked AND k.schedule_id IS NOT NULL AND k.task IS NOT NULL
        ON CONFLICT DO NOTHING;
    END IF;
END
$$;

-- Compare and swap for many schedules at once: advances those whose stored state equals the given one. Waits for a row that
-- another transaction changes, and then compares it. Returns the indexes of the schedules that advanced, their ids, and the ids
-- of those that track runs.
--
-- One index scan and one hash join, whatever the statistics are. The settings of the calling function may disable other joins.
CREATE FUNCTION tenure.advance_schedules(
    schedule_ids integer[], versions bigint[], next_ticks bigint[], new_next_ticks bigint[], new_last_ticks bigint[],
        new_due_times bigint[],
    errors text[], fired integer[], overlapped integer[], skipped bigint[], now_ bigint,
    OUT indexes integer[], OUT advanced_ids integer[], OUT tracking_ids integer[]
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off SET enable_mergejoin = off SET enable_hashjoin = on
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    WITH moved AS (
        UPDATE tenure.schedule_state p
        SET next_tick_at_ms = CASE WHEN g.error IS NULL THEN g.new_next_tick ELSE p.next_tick_at_ms END,
            last_tick_at_ms = CASE WHEN g.error IS NULL THEN g.new_last_tick ELSE p.last_tick_at_ms END,
            due_at_ms = g.new_due, last_error = g.error,
            consecutive_failures = CASE WHEN g.error IS NULL THEN 0 ELSE p.consecutive_failures + 1 END,
            fired_count = p.fired_count + g.fired, overlapped_count = p.overlapped_count + g.overlapped,
            skipped_count = p.skipped_count + coalesce(g.skipped, 0),
            last_fired_at_ms = CASE WHEN g.fired > 0 THEN now_ ELSE p.last_fired_at_ms END
        FROM unnest(schedule_ids, versions, next_ticks, new_next_ticks, new_last_ticks, new_due_times, errors, fired,
            overlapped, skipped)
             WITH ORDINALITY AS g (schedule_id, version, next_tick, new_next_tick, new_last_tick, new_due, error, fired,
                 overlapped, skipped, n)
        WHERE p.schedule_id = ANY (schedule_ids) AND p.schedule_id = g.schedule_id
          AND p.version = g.version AND p.next_tick_at_ms = g.next_tick AND p.paused_at IS NULL
        RETURNING g.n::integer AS n, p.schedule_id, p.tracks_runs
    )
    SELECT coalesce(array_agg(m.n ORDER BY m.n), '{}'), array_agg(m.schedule_id ORDER BY m.n),
           array_agg(m.schedule_id) FILTER (WHERE m.tracks_runs)
    INTO indexes, advanced_ids, tracking_ids FROM moved m;
END
$$;

-- Fires schedules under the lease of the scheduler. Indexes count from 1. An array with only nulls may be null.
--   * The first arrays have one element for each firing: namespace, name, version and next tick as they were read;
--     the new next tick, last tick and due time; the error, if it could not fire; the numbers of ticks that fire and
--     that overlap; its range of skipped ticks.
--   * The next arrays have one element for each tick: the index of its firing, and the arguments of
--     tenure.record_ticks.
--   * `known_ids`: ids of the schedules, as far as the caller knows them.
--
-- Returns no row and does nothing if this session does not lead under this token. Otherwise returns one short row:
-- the indexes of stale firings; the indexes of rejected firings; and for each rejected one the index of the invalid
-- event and the payload limit of its topic (null: the topic does not exist).
CREATE FUNCTION tenure.fire_schedules(
    in_session text, in_token bigint,
    namespaces text[], names text[], versions bigint[], next_ticks bigint[], new_next_ticks bigint[], new_last_ticks bigint[],
        new_due_times bigint[],
    errors text[], fired integer[], overlapped integer[], skipped bigint[], skipped_first bigint[], skipped_last bigint[],
    tick_firings integer[], tick_times bigint[], due_times bigint[], tracked boolean[], tick_events integer[],
        tick_tasks integer[],
    topics json, event_topics integer[], hashes bigint[], types text[], keys text[], payloads text[], binary_payloads bytea[],
    headers_ text[], idempotency_keys text[], tokens bigint[],
    queues json, task_queues integer[], tasks json, task_payloads text[], known_ids integer[] DEFAULT NULL
) RETURNS TABLE (stale integer[], rejected integer[], rejected_events integer[],
    rejected_max_bytes bigint[]) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    now_ CONSTANT bigint := tenure.now_unix_ms();
    count_ CONSTANT integer := cardinality(names);
    leader_name text;
    topic_ids integer[];
    topic_max_bytes bigint[];
    -- The id of the schedule of each firing; and the ids of those that advanced.
    schedule_ids integer[];
    advanced_ids integer[];
    indexes integer[];
    tracking_ids integer[];
    tick_schedules integer[];
    already_fired integer[];
BEGIN
    PERFORM FROM tenure.leases l
    WHERE l.namespace = 'tenure' AND l.election = 'scheduler' AND l.slot = 0 AND l.token = in_token AND l.session = in_session
    FOR SHARE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT coalesce(c.name, s.name, in_session) INTO leader_name
    FROM (SELECT) one LEFT JOIN tenure.sessions s ON s.id = in_session
    LEFT JOIN tenure.candidates c ON c.namespace = 'tenure' AND c.election = 'scheduler' AND c.session = in_session;
    rejected := '{}';
    IF event_topics IS NOT NULL THEN
        SELECT h.ids, h.max_bytes INTO topic_ids, topic_max_bytes FROM tenure.lock_topics(topics) h;
        -- The first invalid event of each firing.
        SELECT array_agg(r.firing), array_agg(r.event), array_agg(r.max_bytes) INTO rejected, rejected_events,
            rejected_max_bytes FROM (
            SELECT DISTINCT ON (k.firing) k.firing, k.event, topic_max_bytes[event_topics[k.event]] AS max_bytes
            FROM unnest(tick_firings, tick_events) AS k (firing, event)
            WHERE k.event IS NOT NULL
              AND (topic_ids[event_topics[k.event]] IS NULL
                   OR coalesce(octet_length(payloads[k.event]),
                       octet_length(binary_payloads[k.event])) > topic_max_bytes[event_topics[k.event]])
            ORDER BY k.firing, k.event) r;
        rejected := coalesce(rejected, '{}');
    END IF;

    schedule_ids := ARRAY(
        SELECT CASE WHEN rejected = '{}' OR g.n <> ALL (rejected) THEN coalesce(g.known_id, (
            SELECT s.id FROM tenure.schedules s WHERE s.namespace = g.namespace AND s.name = g.name)) END
        FROM unnest(namespaces, names, known_ids) WITH ORDINALITY AS g (namespace, name, known_id, n) ORDER BY g.n);
    SELECT a.indexes, a.advanced_ids, a.tracking_ids INTO indexes, advanced_ids, tracking_ids FROM tenure.advance_schedules(
        schedule_ids, versions, next_ticks, new_next_ticks, new_last_ticks, new_due_times, errors, fired, overlapped, skipped,
            now_) a;
    stale := '{}';
    IF cardinality(indexes) < count_ THEN
        advanced_ids := tenure.scatter_by_index(advanced_ids, indexes, count_);
        -- A rejected firing whose stored state differs is stale instead.
        stale := ARRAY(
            SELECT g.n FROM unnest(namespaces, names, versions, next_ticks) WITH ORDINALITY AS g (namespace, name, version,
                next_tick, n)
            WHERE advanced_ids[g.n] IS NULL AND (g.n <> ALL (rejected) OR (
                SELECT true FROM tenure.schedules s JOIN tenure.schedule_state p ON p.schedule_id = s.id
                WHERE s.namespace = g.namespace AND s.name = g.name AND p.version = g.version
                    AND p.next_tick_at_ms = g.next_tick
                  AND p.paused_at IS NULL LIMIT 1) IS NULL)
            ORDER BY g.n);
    END IF;

    IF cardinality(tick_firings) > 0 THEN
        tick_schedules := ARRAY(SELECT advanced_ids[k.firing] FROM unnest(tick_firings) WITH ORDINALITY AS k (firing, n)
            ORDER BY k.n);
        -- A tick that was fired by a backfill, when the clock or the expression was another, does not fire again.
        already_fired := ARRAY(
            SELECT k.n FROM unnest(tick_schedules, tick_times) WITH ORDINALITY AS k (schedule_id, tick_at_ms, n)
            WHERE (SELECT true FROM tenure.ticks t
                   WHERE t.schedule_id = k.schedule_id AND t.tick_at_ms = k.tick_at_ms AND NOT t.manual LIMIT 1));
        IF cardinality(already_fired) > 0 THEN
            UPDATE tenure.schedule_state p SET fired_count = p.fired_count - t.fired,
                overlapped_count = p.overlapped_count - t.overlapped
            FROM (SELECT tick_schedules[k.n] AS schedule_id,
                         count(*) FILTER (WHERE coalesce(tick_events[k.n], tick_tasks[k.n]) IS NOT NULL) AS fired,
                         count(*) FILTER (WHERE coalesce(tick_events[k.n], tick_tasks[k.n]) IS NULL) AS overlapped
                  FROM unnest(already_fired) AS k (n) GROUP BY 1) t
            WHERE p.schedule_id = t.schedule_id;
            FOR k IN 1..cardinality(already_fired) LOOP
                tick_schedules[already_fired[k]] := NULL;
            END LOOP;
        END IF;
        PERFORM tenure.record_ticks(
            tick_schedules, tick_times, due_times, tracked, tick_events, tick_tasks, false, now_, in_token, leader_name,
            topics, topic_ids, event_topics, hashes, types, keys, payloads, binary_payloads, headers_, idempotency_keys, tokens,
            queues, task_queues, tasks, task_payloads);
    END IF;
    IF skipped IS NOT NULL THEN
        INSERT INTO tenure.skipped_ticks (schedule_id, first_tick_at_ms, last_tick_at_ms, tick_count, decided_at_ms, token,
            decided_by)
        SELECT k.schedule_id, k.first_tick_at_ms, k.last_tick_at_ms, k.tick_count, now_, in_token, leader_name
        FROM unnest(advanced_ids, skipped_first, skipped_last, skipped) AS k (schedule_id, first_tick_at_ms, last_tick_at_ms,
            tick_count)
        WHERE k.schedule_id IS NOT NULL AND k.tick_count IS NOT NULL
        ON CONFLICT DO NOTHING;
    END IF;
    IF tracking_ids IS NOT NULL THEN
        DELETE FROM tenure.tracked_runs r WHERE r.schedule_id = ANY (tracking_ids) AND coalesce((
            SELECT t.state IN ('completed', 'dead', 'cancelled') FROM tenure.tasks t WHERE t.id = r.task_id), true);
    END IF;
    RETURN NEXT;
END
$$;

-- Distributes values to an array of `count_` elements by their indexes.
CREATE FUNCTION tenure.scatter_by_index(given integer[], indexes integer[],
    count_ integer) RETURNS integer[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    result_ integer[] := array_fill(NULL::integer, ARRAY[count_]);
BEGIN
    FOR k IN 1..coalesce(cardinality(given), 0) LOOP
        result_[indexes[k]] := given[k];
    END LOOP;
    RETURN result_;
END
$$;

-- Fires ticks of one schedule manually, in a transaction of its own and without a leader.
--   * `in_version`: the version that the caller has read.
--   * `is_trigger`: fire one extra tick now instead of past ticks.
--   * `dry_run`: return the outcomes without firing.
-- Returns no row if the schedule does not exist. Returns the single row `conflict` if the version differs, or if
-- another trigger has the same millisecond. Otherwise returns one row for each tick: fired, already_fired, in_future
-- or pruned.
CREATE FUNCTION tenure.fire_manually(
    in_namespace text, in_name text, in_version bigint, is_trigger boolean, dry_run boolean, in_decided_by text,
    tick_times bigint[], due_times bigint[], tracked boolean[], tick_events integer[], tick_tasks integer[],
    topics json, event_topics integer[], hashes bigint[], types text[], keys text[], payloads text[], binary_payloads bytea[],
    headers_ text[], idempotency_keys text[], tokens bigint[],
    queues json, task_queues integer[], tasks json, task_payloads text[]
) RETURNS TABLE (index integer, outcome text, event_id bigint, task_id bigint) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    -- A trigger fires at its own time.
    now_ CONSTANT bigint := CASE WHEN is_trigger THEN tick_times[1] ELSE tenure.now_unix_ms() END;
    state_ record;
    topic_ids integer[];
    topic_max_bytes bigint[];
    rejected record;
    outcomes text[];
    tick_schedules integer[];
    recorded record;
    fired_ bigint;
BEGIN
    SELECT p.schedule_id, p.version, p.next_tick_at_ms, p.pruned_until_at_ms INTO state_
    FROM tenure.schedules s JOIN tenure.schedule_state p ON p.schedule_id = s.id
    WHERE s.namespace = in_namespace AND s.name = in_name FOR NO KEY UPDATE OF p;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    -- A new statement, which sees the changes that this transaction waited for.
    outcomes := ARRAY(
        SELECT CASE WHEN EXISTS (SELECT FROM tenure.ticks t
                                 WHERE t.schedule_id = state_.schedule_id AND t.tick_at_ms = k.tick_at_ms
                                     AND t.manual = is_trigger)
                        THEN 'already_fired'
                    WHEN NOT is_trigger AND k.tick_at_ms >= state_.next_tick_at_ms THEN 'in_future'
                    WHEN NOT is_trigger AND k.tick_at_ms <= state_.pruned_until_at_ms THEN 'pruned'
                    ELSE 'fired' END
        FROM unnest(tick_times) WITH ORDINALITY AS k (tick_at_ms, index) ORDER BY k.index);
    IF state_.version <> in_version OR is_trigger AND 'already_fired' = ANY (outcomes) THEN
        index := 0;
        outcome := 'conflict';
        RETURN NEXT;
        RETURN;
    END IF;
    IF event_topics IS NOT NULL AND NOT dry_run AND 'fired' = ANY (outcomes) THEN
        SELECT h.ids, h.max_bytes INTO topic_ids, topic_max_bytes FROM tenure.lock_topics(topics) h;
        SELECT e.index, t.namespace, t.name, topic_max_bytes[e.topic] AS max_bytes,
               coalesce(octet_length(payloads[e.index]), octet_length(binary_payloads[e.index])) AS bytes
        INTO rejected
        FROM unnest(event_topics) WITH ORDINALITY AS e (topic, index)
        JOIN ROWS FROM (json_to_recordset(topics) AS (namespace text, name text)) WITH ORDINALITY AS t (namespace, name, index)
            ON t.index = e.topic
        WHERE topic_ids[e.topic] IS NULL
           OR coalesce(octet_length(payloads[e.index]), octet_length(binary_payloads[e.index])) > topic_max_bytes[e.topic]
        ORDER BY e.index LIMIT 1;
        IF FOUND AND rejected.max_bytes IS NULL THEN
            PERFORM tenure.raise_no_such_topic(rejected.namespace, rejected.name);
        ELSIF FOUND THEN
            PERFORM tenure.raise_payload_too_large(NULL, rejected.bytes, rejected.max_bytes);
        END IF;
    END IF;
    IF NOT dry_run THEN
        tick_schedules := ARRAY(SELECT CASE WHEN o.outcome = 'fired' THEN state_.schedule_id END
                                FROM unnest(outcomes) WITH ORDINALITY AS o (outcome, index) ORDER BY o.index);
        SELECT w.event_ids, w.task_ids INTO recorded FROM tenure.record_ticks(
            tick_schedules, tick_times, due_times, tracked, tick_events, tick_tasks, is_trigger, now_, NULL, in_decided_by,
            topics, topic_ids, event_topics, hashes, types, keys, payloads, binary_payloads, headers_, idempotency_keys, tokens,
            queues, task_queues, tasks, task_payloads) w;
        fired_ := cardinality(array_positions(outcomes, 'fired'));
        IF fired_ > 0 THEN
            UPDATE tenure.schedule_state p SET fired_count = p.fired_count + fired_, last_fired_at_ms = now_
            WHERE p.schedule_id = state_.schedule_id;
        END IF;
        RETURN QUERY
        SELECT (k.index - 1)::integer, k.outcome, CASE WHEN k.outcome = 'fired' THEN recorded.event_ids[k.event] END,
               CASE WHEN k.outcome = 'fired' THEN recorded.task_ids[k.task] END
        FROM unnest(outcomes, tick_events, tick_tasks) WITH ORDINALITY AS k (outcome, event, task, index);
        RETURN;
    END IF;
    RETURN QUERY SELECT (k.index - 1)::integer, k.outcome, NULL::bigint, NULL::bigint
                 FROM unnest(outcomes) WITH ORDINALITY AS k (outcome, index);
END
$$;

-- Prunes ticks and ranges of skipped ticks that were decided more than `retention_ms` ago, at most `max_count`, the oldest
-- first, and ticks of deleted schedules. Does nothing unless this session leads under this token. Skips schedules that another
-- transaction has locked; the next call prunes them.
CREATE FUNCTION tenure.prune_ticks(
    in_session text, in_token bigint, retention_ms bigint, max_count integer, OUT pruned bigint, OUT has_more boolean
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
AS $$
DECLARE
    cutoff_ms CONSTANT bigint := tenure.now_unix_ms() - retention_ms;
    old tid[];
    locked_ids integer[];
    got bigint;
BEGIN
    pruned := 0;
    has_more := false;
    PERFORM FROM tenure.leases l
    WHERE l.namespace = 'tenure' AND l.election = 'scheduler' AND l.slot = 0 AND l.token = in_token AND l.session = in_session
    FOR SHARE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    old := ARRAY(SELECT t.ctid FROM tenure.ticks t WHERE t.decided_at_ms < cutoff_ms ORDER BY t.decided_at_ms LIMIT max_count);
    locked_ids := ARRAY(
        SELECT p.schedule_id FROM tenure.schedule_state p
        WHERE p.schedule_id = ANY (ARRAY(SELECT t.schedule_id FROM tenure.ticks t WHERE t.ctid = ANY (old)))
        FOR NO KEY UPDATE SKIP LOCKED);
    -- Also store up to which time ticks are pruned.
    WITH deleted AS (
        DELETE FROM tenure.ticks t WHERE t.ctid = ANY (old) AND t.schedule_id = ANY (locked_ids)
        RETURNING t.schedule_id, t.tick_at_ms, t.manual
    ), recorded AS (
        UPDATE tenure.schedule_state p SET pruned_until_at_ms = greatest(p.pruned_until_at_ms, g.tick_at_ms)
        FROM (SELECT g.schedule_id, max(g.tick_at_ms) AS tick_at_ms FROM deleted g WHERE NOT g.manual GROUP BY g.schedule_id) g
        WHERE p.schedule_id = g.schedule_id
    )
    SELECT count(*) INTO pruned FROM deleted;
    DELETE FROM tenure.skipped_ticks WHERE ctid = ANY (ARRAY(
        SELECT t.ctid FROM tenure.skipped_ticks t WHERE t.decided_at_ms < cutoff_ms
            ORDER BY t.decided_at_ms LIMIT max_count - pruned));
    GET DIAGNOSTICS got = ROW_COUNT;
    pruned := pruned + got;
    IF pruned < max_count THEN
        pruned := pruned + tenure.prune_orphaned_ticks(max_count - pruned);
    END IF;
    has_more := pruned >= max_count;
END
$$;
