-- Firing.
--
-- Why no tick is lost, and none fires twice. A firing says what it was decided from: a version and the next tick. In one transaction it
-- is compared with what is stored, and is nothing if that is another by now; the ticks are written, with all that follows from them; and
-- the next tick is stored. So whatever dies between two statements, all of it has happened, or nothing has, and whoever comes next
-- decides anew from what is stored. Two that decide the same wait for each other at the schedule's row of schedule_progress; the second
-- finds another next tick, and its firing is stale. A leader that was replaced finds its lease gone; one that still has it keeps it,
-- by a shared lock, until its firing is committed. The clock only says how many ticks are due: if it steps, ticks come early or late.
--
-- What a leader that is stopped can hold up: nobody. A call is one message, which the server works off whether or not anybody waits for
-- the answer; it waits for no lock longer than a second, for all of it together no longer than the leader's lease (schedule_bound), and
-- not for a reader of its answer either, which is one short row.

-- The server's clock. Never ahead of itself: cut off, not rounded.
CREATE FUNCTION tenure.now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT floor(date_part('epoch', clock_timestamp()) * 1000)::bigint
$$;

-- What is due, the longest due first: one more than `most`, if there are. And a row without a name, with the clock, and when the
-- first of those falls due that are not.
CREATE FUNCTION tenure.due(most integer) RETURNS TABLE (
    namespace text, name text, version bigint, definition text, next_at_ms bigint, last_at_ms bigint, strikes integer,
    unfinished bigint, due_ms bigint, store_ms bigint, schedule integer
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_sort = off
AS $$
#variable_conflict use_column
DECLARE
    now_ CONSTANT bigint := tenure.now_ms();
BEGIN
    RETURN QUERY
    SELECT s.namespace, s.name, p.version, s.definition::text, p.next_at_ms, p.last_at_ms, p.strikes,
           -- A task that was forgotten is over.
           CASE WHEN p.counted THEN (
               SELECT count(*) FROM tenure.tick_runs r WHERE r.schedule = p.schedule AND (
                   SELECT t.state NOT IN ('completed', 'dead', 'cancelled') FROM tenure.tasks t WHERE t.id = r.task)
           ) ELSE 0 END, p.due_ms, now_, p.schedule
    FROM (SELECT * FROM tenure.schedule_progress d WHERE d.due_ms <= now_ AND d.due_ms IS NOT NULL
          ORDER BY d.due_ms, d.schedule LIMIT most + 1) p
    JOIN tenure.schedules s ON s.id = p.schedule
    ORDER BY p.due_ms, p.schedule;
    RETURN QUERY
    SELECT NULL::text, NULL::text, NULL::bigint, NULL::text, NULL::bigint, NULL::bigint, NULL::integer, NULL::bigint, (
               SELECT p.due_ms FROM tenure.schedule_progress p WHERE p.due_ms > now_ AND p.due_ms IS NOT NULL
               ORDER BY p.due_ms LIMIT 1), now_, NULL::integer;
END
$$;

-- The numbers and limits of topics, held still: from here on nobody deletes them or sets them until this transaction is over. In the
-- order of `topics`, [{namespace, name}]; null: there is none.
CREATE FUNCTION tenure.hold_topics(topics json, OUT ids integer[], OUT most bigint[]) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
BEGIN
    PERFORM FROM tenure.topics t
    WHERE (t.namespace, t.name) IN (SELECT k.namespace, k.name FROM json_to_recordset(topics) AS k (namespace text, name text))
    ORDER BY t.id FOR SHARE;
    SELECT array_agg(t.id ORDER BY k.n), array_agg(t.max_bytes ORDER BY k.n) INTO ids, most
    FROM ROWS FROM (json_to_recordset(topics) AS (namespace text, name text)) WITH ORDINALITY AS k (namespace, name, n)
    LEFT JOIN tenure.topics t ON t.namespace = k.namespace AND t.name = k.name;
END
$$;

-- Publishes events of ticks: those at `places`, of which each lies in the topic of its place in `event_topics`. Their numbers are put
-- into `ids`. Not as a transaction of our own: slots are locked when it commits, in one order over all topics, and for that moment only.
CREATE FUNCTION tenure.publish_ticks(
    topics json, topic_ids integer[], event_topics integer[], places integer[], hashes bigint[], kinds text[], keys text[],
    payloads text[], bodies bytea[], headers_ text[], idempotency_keys text[], tokens bigint[], INOUT ids bigint[]
) LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    topic_ record;
    got bigint[];
    place integer := 0;
BEGIN
    FOR topic_ IN
        SELECT k.namespace, k.name, e.places FROM (
            SELECT event_topics[p.place] AS topic, array_agg(p.place ORDER BY p.place) AS places
            FROM unnest(places) AS p (place) GROUP BY 1
        ) e
        JOIN ROWS FROM (json_to_recordset(topics) AS (namespace text, name text)) WITH ORDINALITY AS k (namespace, name, n)
            ON k.n = e.topic
        ORDER BY topic_ids[e.topic]
    LOOP
        IF cardinality(topic_.places) = cardinality(event_topics) THEN
            ids := ARRAY(
                SELECT p.id FROM tenure.publish_all(topic_.namespace, topic_.name, hashes, kinds, keys, payloads, bodies, headers_,
                                                    idempotency_keys, tokens, false) p ORDER BY p.n);
        ELSE
            got := ARRAY(
                SELECT p.id FROM tenure.publish_all(
                    topic_.namespace, topic_.name,
                    ARRAY(SELECT hashes[n] FROM unnest(topic_.places) n), ARRAY(SELECT kinds[n] FROM unnest(topic_.places) n),
                    ARRAY(SELECT keys[n] FROM unnest(topic_.places) n), ARRAY(SELECT payloads[n] FROM unnest(topic_.places) n),
                    ARRAY(SELECT bodies[n] FROM unnest(topic_.places) n), ARRAY(SELECT headers_[n] FROM unnest(topic_.places) n),
                    CASE WHEN idempotency_keys IS NOT NULL
                         THEN ARRAY(SELECT idempotency_keys[n] FROM unnest(topic_.places) n) END,
                    ARRAY(SELECT tokens[n] FROM unnest(topic_.places) n), false) p ORDER BY p.n);
            FOR n IN 1..cardinality(got) LOOP
                place := topic_.places[n];
                ids[place] := got[n];
            END LOOP;
        END IF;
    END LOOP;
END
$$;

-- Submits tasks of ticks, in the same way. `queues`: [{namespace, name, demands}]; of each task its queue's place, its payload, and in
-- the list `tasks` what tenure.submit_all reads of it.
CREATE FUNCTION tenure.submit_ticks(
    queues json, task_queues integer[], places integer[], tasks json, payloads text[], INOUT ids bigint[]
) LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    queue_ record;
    got bigint[];
    place integer := 0;
    parts text[];
BEGIN
    FOR queue_ IN
        SELECT q.namespace, q.name, q.demands, t.places FROM (
            SELECT task_queues[p.place] AS queue, array_agg(p.place ORDER BY p.place) AS places
            FROM unnest(places) AS p (place) GROUP BY 1
        ) t
        JOIN ROWS FROM (json_to_recordset(queues) AS (namespace text, name text, demands json))
             WITH ORDINALITY AS q (namespace, name, demands, n) ON q.n = t.queue
        -- In one order, so that no two calls wait for each other in a circle.
        ORDER BY q.namespace, q.name
    LOOP
        IF cardinality(queue_.places) = cardinality(task_queues) THEN
            ids := ARRAY(SELECT s.id FROM tenure.submit_all(
                queue_.namespace, queue_.name, queue_.demands, tasks, payloads, true) s ORDER BY s.n);
        ELSE
            parts := coalesce(parts, ARRAY(SELECT e.task::text FROM json_array_elements(tasks) WITH ORDINALITY AS e (task, n)
                                           ORDER BY e.n));
            got := ARRAY(SELECT s.id FROM tenure.submit_all(
                queue_.namespace, queue_.name, queue_.demands,
                (SELECT ('[' || string_agg(parts[n], ',' ORDER BY n) || ']')::json FROM unnest(queue_.places) n),
                ARRAY(SELECT payloads[n] FROM unnest(queue_.places) n ORDER BY n), true) s ORDER BY s.n);
            FOR n IN 1..cardinality(got) LOOP
                place := queue_.places[n];
                ids[place] := got[n];
            END LOOP;
        END IF;
    END LOOP;
END
$$;

-- Writes ticks down, with all that follows from them. Of each tick: its schedule (null: it is none of ours to fire), when it is and
-- was due, whether its run counts, and the places of its event and of its task among those; events and tasks as publish_ticks and
-- submit_ticks read them. Whoever calls has locked the schedules.
CREATE FUNCTION tenure.write_ticks(
    tick_schedules integer[], ats bigint[], dues bigint[], tracked boolean[], tick_events integer[], tick_tasks integer[],
    is_by_hand boolean, now_ bigint, in_token bigint, in_by text,
    topics json, topic_ids integer[], event_topics integer[], hashes bigint[], kinds text[], keys text[], payloads text[],
    bodies bytea[], headers_ text[], idempotency_keys text[], tokens bigint[],
    queues json, task_queues integer[], tasks json, task_payloads text[],
    OUT event_ids bigint[], OUT task_ids bigint[]
) LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    event_places integer[];
    task_places integer[];
BEGIN
    SELECT array_agg(k.event) FILTER (WHERE k.event IS NOT NULL), array_agg(k.task) FILTER (WHERE k.task IS NOT NULL)
    INTO event_places, task_places
    FROM unnest(tick_schedules, tick_events, tick_tasks) AS k (schedule, event, task) WHERE k.schedule IS NOT NULL;
    IF task_places IS NOT NULL THEN
        task_ids := tenure.submit_ticks(
            queues, task_queues, task_places, tasks, task_payloads, array_fill(NULL::bigint, ARRAY[cardinality(task_queues)]));
    END IF;
    IF event_places IS NOT NULL THEN
        event_ids := tenure.publish_ticks(
            topics, topic_ids, event_topics, event_places, hashes, kinds, keys, payloads, bodies, headers_, idempotency_keys, tokens,
            array_fill(NULL::bigint, ARRAY[cardinality(event_topics)]));
    END IF;
    INSERT INTO tenure.ticks (schedule, by_hand, at_ms, due_ms, decided_ms, token, event, task, by)
    SELECT k.schedule, is_by_hand, k.at, k.due, now_, in_token, event_ids[k.event], task_ids[k.task], in_by
    FROM unnest(tick_schedules, ats, dues, tick_events, tick_tasks) AS k (schedule, at, due, event, task)
    WHERE k.schedule IS NOT NULL;
    IF tracked IS NOT NULL AND task_ids IS NOT NULL THEN
        INSERT INTO tenure.tick_runs (schedule, task)
        SELECT k.schedule, task_ids[k.task] FROM unnest(tick_schedules, tracked, tick_tasks) AS k (schedule, tracked, task)
        WHERE k.tracked AND k.schedule IS NOT NULL AND k.task IS NOT NULL
        ON CONFLICT DO NOTHING;
    END IF;
END
$$;

-- Compare and swap, for many schedules at once: those that still stand as they were seen go on to what is next. A row that another
-- changes at this moment is waited for, and then compared. The places of those that did, the numbers of their schedules, and of those
-- whose runs count.
--
-- One walk over the index and one join, whatever the planner thinks of the table: not a walk over the one for each row of the other.
-- Whoever calls may have other joins switched on and off.
CREATE FUNCTION tenure.advance(
    seen integer[], versions bigint[], nexts bigint[], then_nexts bigint[], then_lasts bigint[], then_dues bigint[],
    troubles text[], runs integer[], rests integer[], skips bigint[], now_ bigint,
    OUT places integer[], OUT ids integer[], OUT counted integer[]
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off SET enable_mergejoin = off SET enable_hashjoin = on
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    WITH moved AS (
        UPDATE tenure.schedule_progress p
        SET next_at_ms = CASE WHEN g.trouble IS NULL THEN g.then_next ELSE p.next_at_ms END,
            last_at_ms = CASE WHEN g.trouble IS NULL THEN g.then_last ELSE p.last_at_ms END,
            due_ms = g.due, trouble = g.trouble,
            strikes = CASE WHEN g.trouble IS NULL THEN 0 ELSE p.strikes + 1 END,
            fired = p.fired + g.runs, overlapped = p.overlapped + g.rests, skipped = p.skipped + coalesce(g.skips, 0),
            last_fired_ms = CASE WHEN g.runs > 0 THEN now_ ELSE p.last_fired_ms END
        FROM unnest(seen, versions, nexts, then_nexts, then_lasts, then_dues, troubles, runs, rests, skips)
             WITH ORDINALITY AS g (schedule, version, next, then_next, then_last, due, trouble, runs, rests, skips, n)
        WHERE p.schedule = ANY (seen) AND p.schedule = g.schedule
          AND p.version = g.version AND p.next_at_ms = g.next AND p.paused_at IS NULL
        RETURNING g.n::integer AS n, p.schedule, p.counted
    )
    SELECT coalesce(array_agg(m.n ORDER BY m.n), '{}'), array_agg(m.schedule ORDER BY m.n),
           array_agg(m.schedule) FILTER (WHERE m.counted)
    INTO places, ids, counted FROM moved m;
END
$$;

-- Fires, under the leader's lease. Of each firing: namespace, name, version and next tick as they were seen; next and last tick and
-- when it is due from then on; why it could not fire, if so; how many ticks of it run, and how many do not because of others; its
-- range of missed ticks. Of each tick its firing's place, and what tenure.write_ticks reads. `known`: the numbers of the schedules, as
-- far as the caller has seen them. A list in which all is null may be null itself. Places are counted from 1.
--
-- No row: this session does not lead under this token, and nothing was done. Otherwise one, which is short: the places of those that are
-- stale; of those whose target can not be; and of these the place of the event that is not possible, and the longest payload that its
-- topic takes (null: there is no such topic).
CREATE FUNCTION tenure.fire(
    in_session text, in_token bigint,
    namespaces text[], names text[], versions bigint[], nexts bigint[], then_nexts bigint[], then_lasts bigint[], then_dues bigint[],
    troubles text[], runs integer[], rests integer[], skips bigint[], skips_first bigint[], skips_last bigint[],
    tick_firings integer[], ats bigint[], dues bigint[], tracked boolean[], tick_events integer[], tick_tasks integer[],
    topics json, event_topics integer[], hashes bigint[], kinds text[], keys text[], payloads text[], bodies bytea[],
    headers_ text[], idempotency_keys text[], tokens bigint[],
    queues json, task_queues integer[], tasks json, task_payloads text[], known integer[] DEFAULT NULL
) RETURNS TABLE (stale integer[], refused integer[], refused_events integer[], refused_most bigint[]) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    now_ CONSTANT bigint := tenure.now_ms();
    count_ CONSTANT integer := cardinality(names);
    leader text;
    topic_ids integer[];
    topic_most bigint[];
    -- Of each firing the number of its schedule; and the same, if it counts.
    seen integer[];
    ids integer[];
    places integer[];
    counted integer[];
    tick_schedules integer[];
    taken integer[];
BEGIN
    PERFORM FROM tenure.leases l
    WHERE l.namespace = 'tenure' AND l.name = 'scheduler' AND l.slot = 0 AND l.token = in_token AND l.session = in_session
    FOR SHARE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT coalesce(c.id, s.name, in_session) INTO leader
    FROM (SELECT) one LEFT JOIN tenure.sessions s ON s.id = in_session
    LEFT JOIN tenure.candidates c ON c.namespace = 'tenure' AND c.election = 'scheduler' AND c.session = in_session;
    refused := '{}';
    IF event_topics IS NOT NULL THEN
        SELECT h.ids, h.most INTO topic_ids, topic_most FROM tenure.hold_topics(topics) h;
        -- The first event of a firing that is not possible.
        SELECT array_agg(r.firing), array_agg(r.event), array_agg(r.most) INTO refused, refused_events, refused_most FROM (
            SELECT DISTINCT ON (k.firing) k.firing, k.event, topic_most[event_topics[k.event]] AS most
            FROM unnest(tick_firings, tick_events) AS k (firing, event)
            WHERE k.event IS NOT NULL
              AND (topic_ids[event_topics[k.event]] IS NULL
                   OR coalesce(octet_length(payloads[k.event]), octet_length(bodies[k.event])) > topic_most[event_topics[k.event]])
            ORDER BY k.firing, k.event) r;
        refused := coalesce(refused, '{}');
    END IF;

    seen := ARRAY(
        SELECT CASE WHEN refused = '{}' OR g.n <> ALL (refused) THEN coalesce(g.known, (
            SELECT s.id FROM tenure.schedules s WHERE s.namespace = g.namespace AND s.name = g.name)) END
        FROM unnest(namespaces, names, known) WITH ORDINALITY AS g (namespace, name, known, n) ORDER BY g.n);
    SELECT a.places, a.ids, a.counted INTO places, ids, counted FROM tenure.advance(
        seen, versions, nexts, then_nexts, then_lasts, then_dues, troubles, runs, rests, skips, now_) a;
    stale := '{}';
    IF cardinality(places) < count_ THEN
        ids := tenure.at_places(ids, places, count_);
        -- Of those that are refused, those are rather stale that do not stand as they were seen.
        stale := ARRAY(
            SELECT g.n FROM unnest(namespaces, names, versions, nexts) WITH ORDINALITY AS g (namespace, name, version, next, n)
            WHERE ids[g.n] IS NULL AND (g.n <> ALL (refused) OR (
                SELECT true FROM tenure.schedules s JOIN tenure.schedule_progress p ON p.schedule = s.id
                WHERE s.namespace = g.namespace AND s.name = g.name AND p.version = g.version AND p.next_at_ms = g.next
                  AND p.paused_at IS NULL LIMIT 1) IS NULL)
            ORDER BY g.n);
    END IF;

    IF cardinality(tick_firings) > 0 THEN
        tick_schedules := ARRAY(SELECT ids[k.firing] FROM unnest(tick_firings) WITH ORDINALITY AS k (firing, n) ORDER BY k.n);
        -- What somebody has fired by hand, when the clock or the times were others, does not fire again.
        taken := ARRAY(
            SELECT k.n FROM unnest(tick_schedules, ats) WITH ORDINALITY AS k (schedule, at, n)
            WHERE (SELECT true FROM tenure.ticks t
                   WHERE t.schedule = k.schedule AND t.at_ms = k.at AND NOT t.by_hand LIMIT 1));
        IF cardinality(taken) > 0 THEN
            UPDATE tenure.schedule_progress p SET fired = p.fired - t.fired, overlapped = p.overlapped - t.overlapped
            FROM (SELECT tick_schedules[k.n] AS schedule,
                         count(*) FILTER (WHERE coalesce(tick_events[k.n], tick_tasks[k.n]) IS NOT NULL) AS fired,
                         count(*) FILTER (WHERE coalesce(tick_events[k.n], tick_tasks[k.n]) IS NULL) AS overlapped
                  FROM unnest(taken) AS k (n) GROUP BY 1) t
            WHERE p.schedule = t.schedule;
            FOR k IN 1..cardinality(taken) LOOP
                tick_schedules[taken[k]] := NULL;
            END LOOP;
        END IF;
        PERFORM tenure.write_ticks(
            tick_schedules, ats, dues, tracked, tick_events, tick_tasks, false, now_, in_token, leader,
            topics, topic_ids, event_topics, hashes, kinds, keys, payloads, bodies, headers_, idempotency_keys, tokens,
            queues, task_queues, tasks, task_payloads);
    END IF;
    IF skips IS NOT NULL THEN
        INSERT INTO tenure.tick_skips (schedule, first_ms, last_ms, count, decided_ms, token, by)
        SELECT k.schedule, k.first_ms, k.last_ms, k.count, now_, in_token, leader
        FROM unnest(ids, skips_first, skips_last, skips) AS k (schedule, first_ms, last_ms, count)
        WHERE k.schedule IS NOT NULL AND k.count IS NOT NULL
        ON CONFLICT DO NOTHING;
    END IF;
    IF counted IS NOT NULL THEN
        DELETE FROM tenure.tick_runs r WHERE r.schedule = ANY (counted) AND coalesce((
            SELECT t.state IN ('completed', 'dead', 'cancelled') FROM tenure.tasks t WHERE t.id = r.task), true);
    END IF;
    RETURN NEXT;
END
$$;

-- These numbers at these places of so many.
CREATE FUNCTION tenure.at_places(given integer[], places integer[], count_ integer) RETURNS integer[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    all_ integer[] := array_fill(NULL::integer, ARRAY[count_]);
BEGIN
    FOR k IN 1..coalesce(cardinality(given), 0) LOOP
        all_[places[k]] := given[k];
    END LOOP;
    RETURN all_;
END
$$;

-- Fires ticks of one schedule by hand, in a transaction of its own and without a leader. `in_version`: what was seen; if it is another
-- by now, or if `is_now` and somebody else wanted one in the same millisecond, the one row is `changed`. Otherwise a row for each tick:
-- `fired`, `already`, `ahead` or `forgotten`. No row: there is no such schedule. `dry`: only says what would be.
CREATE FUNCTION tenure.fire_by_hand(
    in_namespace text, in_name text, in_version bigint, is_now boolean, dry boolean, in_by text,
    ats bigint[], dues bigint[], tracked boolean[], tick_events integer[], tick_tasks integer[],
    topics json, event_topics integer[], hashes bigint[], kinds text[], keys text[], payloads text[], bodies bytea[],
    headers_ text[], idempotency_keys text[], tokens bigint[],
    queues json, task_queues integer[], tasks json, task_payloads text[]
) RETURNS TABLE (n integer, outcome text, event bigint, task bigint) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    -- What is wanted now is decided now.
    now_ CONSTANT bigint := CASE WHEN is_now THEN ats[1] ELSE tenure.now_ms() END;
    progress record;
    topic_ids integer[];
    topic_most bigint[];
    refused record;
    outcomes text[];
    tick_schedules integer[];
    done record;
    fired_ bigint;
BEGIN
    SELECT p.schedule, p.version, p.next_at_ms, p.forgotten_ms INTO progress
    FROM tenure.schedules s JOIN tenure.schedule_progress p ON p.schedule = s.id
    WHERE s.namespace = in_namespace AND s.name = in_name FOR NO KEY UPDATE OF p;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    -- Another statement: what was waited for is seen.
    outcomes := ARRAY(
        SELECT CASE WHEN EXISTS (SELECT FROM tenure.ticks t
                                 WHERE t.schedule = progress.schedule AND t.at_ms = k.at AND t.by_hand = is_now) THEN 'already'
                    WHEN NOT is_now AND k.at >= progress.next_at_ms THEN 'ahead'
                    WHEN NOT is_now AND k.at <= progress.forgotten_ms THEN 'forgotten'
                    ELSE 'fired' END
        FROM unnest(ats) WITH ORDINALITY AS k (at, n) ORDER BY k.n);
    IF progress.version <> in_version OR is_now AND 'already' = ANY (outcomes) THEN
        n := 0;
        outcome := 'changed';
        RETURN NEXT;
        RETURN;
    END IF;
    IF event_topics IS NOT NULL AND NOT dry AND 'fired' = ANY (outcomes) THEN
        SELECT h.ids, h.most INTO topic_ids, topic_most FROM tenure.hold_topics(topics) h;
        SELECT e.n, t.namespace, t.name, topic_most[e.topic] AS most,
               coalesce(octet_length(payloads[e.n]), octet_length(bodies[e.n])) AS bytes
        INTO refused
        FROM unnest(event_topics) WITH ORDINALITY AS e (topic, n)
        JOIN ROWS FROM (json_to_recordset(topics) AS (namespace text, name text)) WITH ORDINALITY AS t (namespace, name, n)
            ON t.n = e.topic
        WHERE topic_ids[e.topic] IS NULL
           OR coalesce(octet_length(payloads[e.n]), octet_length(bodies[e.n])) > topic_most[e.topic]
        ORDER BY e.n LIMIT 1;
        IF FOUND AND refused.most IS NULL THEN
            PERFORM tenure.no_topic(refused.namespace, refused.name);
        ELSIF FOUND THEN
            PERFORM tenure.too_large(NULL, refused.bytes, refused.most);
        END IF;
    END IF;
    IF NOT dry THEN
        tick_schedules := ARRAY(SELECT CASE WHEN o.outcome = 'fired' THEN progress.schedule END
                                FROM unnest(outcomes) WITH ORDINALITY AS o (outcome, n) ORDER BY o.n);
        SELECT w.event_ids, w.task_ids INTO done FROM tenure.write_ticks(
            tick_schedules, ats, dues, tracked, tick_events, tick_tasks, is_now, now_, NULL, in_by,
            topics, topic_ids, event_topics, hashes, kinds, keys, payloads, bodies, headers_, idempotency_keys, tokens,
            queues, task_queues, tasks, task_payloads) w;
        fired_ := cardinality(array_positions(outcomes, 'fired'));
        IF fired_ > 0 THEN
            UPDATE tenure.schedule_progress p SET fired = p.fired + fired_, last_fired_ms = now_
            WHERE p.schedule = progress.schedule;
        END IF;
        RETURN QUERY
        SELECT (k.n - 1)::integer, k.outcome, CASE WHEN k.outcome = 'fired' THEN done.event_ids[k.event] END,
               CASE WHEN k.outcome = 'fired' THEN done.task_ids[k.task] END
        FROM unnest(outcomes, tick_events, tick_tasks) WITH ORDINALITY AS k (outcome, event, task, n);
        RETURN;
    END IF;
    RETURN QUERY SELECT (k.n - 1)::integer, k.outcome, NULL::bigint, NULL::bigint
                 FROM unnest(outcomes) WITH ORDINALITY AS k (outcome, n);
END
$$;

-- Forgets ticks, and ranges of missed ones, that were decided about longer ago than `keep_ms`, at most `most`, the oldest first; and
-- what deleted schedules left. Nothing happens unless this session leads under this token. It waits for no schedule: those of one that
-- somebody changes at this moment are for the next time.
CREATE FUNCTION tenure.prune_ticks(
    in_session text, in_token bigint, keep_ms bigint, most integer, OUT forgotten bigint, OUT more boolean
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
AS $$
DECLARE
    before_ CONSTANT bigint := tenure.now_ms() - keep_ms;
    old tid[];
    mine integer[];
    got bigint;
BEGIN
    forgotten := 0;
    more := false;
    PERFORM FROM tenure.leases l
    WHERE l.namespace = 'tenure' AND l.name = 'scheduler' AND l.slot = 0 AND l.token = in_token AND l.session = in_session
    FOR SHARE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    old := ARRAY(SELECT t.ctid FROM tenure.ticks t WHERE t.decided_ms < before_ ORDER BY t.decided_ms LIMIT most);
    mine := ARRAY(
        SELECT p.schedule FROM tenure.schedule_progress p
        WHERE p.schedule = ANY (ARRAY(SELECT t.schedule FROM tenure.ticks t WHERE t.ctid = ANY (old)))
        FOR NO KEY UPDATE SKIP LOCKED);
    -- How far back nothing is known is written down with it.
    WITH gone AS (
        DELETE FROM tenure.ticks t WHERE t.ctid = ANY (old) AND t.schedule = ANY (mine) RETURNING t.schedule, t.at_ms, t.by_hand
    ), noted AS (
        UPDATE tenure.schedule_progress p SET forgotten_ms = greatest(p.forgotten_ms, g.at_ms)
        FROM (SELECT g.schedule, max(g.at_ms) AS at_ms FROM gone g WHERE NOT g.by_hand GROUP BY g.schedule) g
        WHERE p.schedule = g.schedule
    )
    SELECT count(*) INTO forgotten FROM gone;
    DELETE FROM tenure.tick_skips WHERE ctid = ANY (ARRAY(
        SELECT t.ctid FROM tenure.tick_skips t WHERE t.decided_ms < before_ ORDER BY t.decided_ms LIMIT most - forgotten));
    GET DIAGNOSTICS got = ROW_COUNT;
    forgotten := forgotten + got;
    IF forgotten < most THEN
        forgotten := forgotten + tenure.sweep_ticks(most - forgotten);
    END IF;
    more := forgotten >= most;
END
$$;
