-- What people see of topics and groups, as JSON in the form that the library reads.

-- Transactions that hold the lock of one of a topic's slots at this moment: those that commit, those that were prepared, and those
-- that asked for it early. The longest first.
CREATE FUNCTION tenure.blockers(in_topic integer) RETURNS json LANGUAGE sql VOLATILE AS $$
    WITH locks AS (
        SELECT s.slot, l.pid, l.virtualtransaction, s.xmax AS holder, (s.ctid::text::point)[0]::integer AS page,
               (s.ctid::text::point)[1]::integer AS tuple
        FROM tenure.event_slots s
        JOIN pg_catalog.pg_locks l ON l.locktype = 'transactionid' AND l.transactionid = s.xmax AND l.granted
            AND l.mode = 'ExclusiveLock'
        WHERE s.topic = in_topic
    ), held AS (
        SELECT l.slot, coalesce(l.pid, 0) AS pid,
               CASE WHEN l.pid IS NULL THEN concat_ws(' ', 'prepared transaction', quote_literal(p.gid), 'of', p.owner)
                    ELSE concat_ws(' ', coalesce(nullif(a.application_name, ''), 'a program without a name'), 'as', a.usename)
                    END AS who,
               CASE WHEN l.pid IS NULL THEN 'prepared, and neither committed nor rolled back'
                    WHEN a.state LIKE 'idle%' THEN a.state
                    WHEN a.wait_event = 'SyncRep' THEN 'committing: it waits for a synchronous standby'
                    ELSE coalesce(left(a.query, 200), a.state, '') END AS doing,
               greatest(0, tenure.ms(clock_timestamp()) - tenure.ms(coalesce(a.xact_start, p.prepared, clock_timestamp())))
                   AS since_ms,
               -- The first waits for the transaction, and those behind it for the row.
               (SELECT count(*) FROM pg_catalog.pg_locks w WHERE NOT w.granted AND (
                    w.locktype = 'transactionid' AND w.transactionid = l.holder
                    OR w.locktype = 'tuple' AND w.relation = 'tenure.event_slots'::regclass AND w.page = l.page
                       AND w.tuple = l.tuple AND w.database = (
                           SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database()))) AS waiting
        FROM locks l
        LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
        LEFT JOIN pg_catalog.pg_prepared_xacts p ON l.pid IS NULL AND p.transaction = l.holder
        WHERE l.pid IS DISTINCT FROM pg_backend_pid()
    )
    SELECT coalesce(json_agg(json_build_object('slot', h.slot, 'pid', h.pid, 'who', h.who, 'doing', h.doing,
                                               'since_ms', h.since_ms, 'waiting', h.waiting)
                             ORDER BY h.since_ms DESC, h.slot), '[]')
    FROM held h
$$;

-- How many events a topic has: counted as far as a hundred thousand units go, and beyond that what the planner thinks.
CREATE FUNCTION tenure.about(in_topic integer) RETURNS bigint LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    units_ bigint;
    events_ bigint;
    plan json;
BEGIN
    SELECT count(*), coalesce(sum(u.events), 0) INTO units_, events_
    FROM (SELECT s.events FROM tenure.event_units s WHERE s.topic = in_topic LIMIT 100000) u;
    IF units_ < 100000 THEN
        RETURN events_;
    END IF;
    EXECUTE format('EXPLAIN (FORMAT JSON) SELECT FROM tenure.event_units u WHERE u.topic = %s', in_topic) INTO plan;
    RETURN greatest(events_, round((plan -> 0 -> 'Plan' ->> 'Plan Rows')::numeric * events_ / units_));
END
$$;

CREATE FUNCTION tenure.topic_view(t tenure.topics) RETURNS json LANGUAGE sql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    SELECT json_build_object(
        'namespace', t.namespace, 'name', t.name,
        'settings', json_build_object('slots', t.slots, 'keep_ms', t.keep_ms, 'keep_unread_ms', t.keep_unread_ms,
                                      'max_bytes', t.max_bytes),
        'events', tenure.about(t.id), 'oldest_at_ms', tenure.ms(min(e.oldest)), 'newest_at_ms', tenure.ms(max(e.newest)),
        'groups', coalesce((SELECT json_agg(g.name ORDER BY g.name) FROM tenure.event_groups g WHERE g.topic = t.id), '[]'),
        'blockers', tenure.blockers(t.id))
    FROM generate_series(0, t.slots - 1) AS s (slot) CROSS JOIN LATERAL (
        SELECT (SELECT u.at FROM tenure.event_units u
                WHERE u.topic = t.id AND u.slot = s.slot AND u.position > coalesce((
                    SELECT f.position FROM tenure.event_floors f WHERE f.topic = t.id AND f.slot = s.slot), 0)
                ORDER BY u.position LIMIT 1) AS oldest,
               (SELECT u.at FROM tenure.event_units u WHERE u.topic = t.id AND u.slot = s.slot
                ORDER BY u.position DESC LIMIT 1) AS newest
    ) e
$$;

-- Unread units are counted one by one, up to so many events that it does not matter any more.
CREATE FUNCTION tenure.group_view(g tenure.event_groups) RETURNS json LANGUAGE sql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    SELECT json_build_object(
        'topic', json_build_object('namespace', t.namespace, 'name', t.name), 'name', g.name,
        'settings', tenure.group_settings(g), 'paused', tenure.group_pause(g), 'members', tenure.group_members(g.id),
        'slots', (
            SELECT coalesce(json_agg(json_build_object(
                       'slot', s.slot, 'token', s.token, 'holder', h.id, 'last', s.last, 'position', s.position,
                       'end', e.latest, 'lag', least(l.events, 10000), 'lag_exact', l.events <= 10000,
                       'lag_ms', coalesce(greatest(0, tenure.ms(clock_timestamp()) - tenure.ms(l.oldest)), 0))
                       ORDER BY s.slot), '[]')
            FROM (SELECT a.*, tenure.offset_of(a.group_id, a.slot) AS position FROM tenure.event_shares a
                  WHERE a.group_id = g.id OFFSET 0) s
            LEFT JOIN tenure.sessions h ON h.id = s.session AND h.state = 'live'
            CROSS JOIN LATERAL tenure.slot_ends(g.topic, s.slot) e
            CROSS JOIN LATERAL (
                SELECT coalesce(sum(u.events), 0) AS events, (array_agg(u.at ORDER BY u.position))[1] AS oldest FROM (
                    SELECT n.events, n.at, n.position FROM tenure.event_units n
                    WHERE n.topic = g.topic AND n.slot = s.slot AND n.position > s.position
                    ORDER BY n.position LIMIT 10001) u
            ) l),
        'aside', (SELECT count(*) FROM tenure.event_asides a WHERE a.group_id = g.id AND NOT a.dead),
        'dead', (SELECT count(*) FROM tenure.event_asides a WHERE a.group_id = g.id AND a.dead),
        'moves', g.moves,
        'push', (SELECT json_build_object('url', p.url, 'timeout_ms', p.timeout_ms)
                 FROM tenure.event_pushes p WHERE p.group_id = g.id))
    FROM tenure.topics t WHERE t.id = g.topic
$$;

-- Whether somebody publishes to this topic at this moment and may have looked for sleepers already.
CREATE FUNCTION tenure.publishing(in_topic integer) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT EXISTS (SELECT FROM tenure.event_slots s
                   JOIN pg_catalog.pg_locks l ON l.locktype = 'transactionid' AND l.transactionid = s.xmax AND l.granted
                   WHERE s.topic = in_topic)
$$;
