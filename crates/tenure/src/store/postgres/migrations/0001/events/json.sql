-- Topics and groups as JSON, in the form that the library reads.

-- Transactions that hold the lock of one of a topic's partitions: those that are committing, prepared ones, and those that took
-- the lock early. The longest first.
CREATE FUNCTION tenure.topic_lock_holders_json(in_topic integer) RETURNS json LANGUAGE sql VOLATILE AS $$
    WITH locks AS (
        SELECT s.partition, l.pid, l.virtualtransaction, s.xmax AS holder, (s.ctid::text::point)[0]::integer AS page,
               (s.ctid::text::point)[1]::integer AS tuple
        FROM tenure.topic_partitions s
        JOIN pg_catalog.pg_locks l ON l.locktype = 'transactionid' AND l.transactionid = s.xmax AND l.granted
            AND l.mode = 'ExclusiveLock'
        WHERE s.topic_id = in_topic
    ), held AS (
        SELECT l.partition, coalesce(l.pid, 0) AS pid,
               CASE WHEN l.pid IS NULL THEN concat_ws(' ', 'prepared transaction', quote_literal(p.gid), 'of', p.owner)
                    ELSE concat_ws(' ', coalesce(nullif(a.application_name, ''), 'unnamed program'), 'as', a.usename)
                    END AS client,
               CASE WHEN l.pid IS NULL THEN 'prepared; waiting for COMMIT PREPARED or ROLLBACK PREPARED'
                    WHEN a.state LIKE 'idle%' THEN a.state
                    WHEN a.wait_event = 'SyncRep' THEN 'committing: waiting for a synchronous standby'
                    ELSE coalesce(left(a.query, 200), a.state, '') END AS activity,
               greatest(0, tenure.to_unix_ms(clock_timestamp()) - tenure.to_unix_ms(coalesce(a.xact_start, p.prepared,
                   clock_timestamp())))
                   AS open_ms,
               -- The first one waits for the transaction, and those behind it for the row.
               (SELECT count(*) FROM pg_catalog.pg_locks w WHERE NOT w.granted AND (
                    w.locktype = 'transactionid' AND w.transactionid = l.holder
                    OR w.locktype = 'tuple' AND w.relation = 'tenure.topic_partitions'::regclass AND w.page = l.page
                       AND w.tuple = l.tuple AND w.database = (
                           SELECT d.oid FROM pg_catalog.pg_database d
                               WHERE d.datname = current_database()))) AS waiting_transactions
        FROM locks l
        LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
        LEFT JOIN pg_catalog.pg_prepared_xacts p ON l.pid IS NULL AND p.transaction = l.holder
        WHERE l.pid IS DISTINCT FROM pg_backend_pid()
    )
    SELECT coalesce(json_agg(json_build_object('partition', h.partition, 'pid', h.pid, 'client', h.client, 'activity',
        h.activity,
                                               'open_ms', h.open_ms, 'waiting_transactions', h.waiting_transactions)
                             ORDER BY h.open_ms DESC, h.partition), '[]')
    FROM held h
$$;

-- Number of events of a topic: counted for up to a hundred thousand commit batches, beyond that the planner's estimate.
CREATE FUNCTION tenure.estimate_event_count(in_topic integer) RETURNS bigint LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    batches_ bigint;
    events_ bigint;
    plan json;
BEGIN
    SELECT count(*), coalesce(sum(u.event_count), 0) INTO batches_, events_
    FROM (SELECT s.event_count FROM tenure.commit_batches s WHERE s.topic_id = in_topic LIMIT 100000) u;
    IF batches_ < 100000 THEN
        RETURN events_;
    END IF;
    EXECUTE format('EXPLAIN (FORMAT JSON) SELECT FROM tenure.commit_batches u WHERE u.topic_id = %s', in_topic) INTO plan;
    RETURN greatest(events_, round((plan -> 0 -> 'Plan' ->> 'Plan Rows')::numeric * events_ / batches_));
END
$$;

CREATE FUNCTION tenure.topic_json(t tenure.topics) RETURNS json LANGUAGE sql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    SELECT json_build_object(
        'namespace', t.namespace, 'name', t.name,
        'settings', json_build_object('partitions', t.partitions, 'retention_ms', t.retention_ms, 'unread_retention_ms',
            t.unread_retention_ms,
                                      'max_payload_bytes', t.max_payload_bytes),
        'event_count', tenure.estimate_event_count(t.id), 'oldest_published_at_ms', tenure.to_unix_ms(min(e.oldest)),
            'newest_published_at_ms', tenure.to_unix_ms(max(e.newest)),
        'groups', coalesce((SELECT json_agg(g.name ORDER BY g.name) FROM tenure.consumer_groups g WHERE g.topic_id = t.id),
            '[]'),
        'lock_holders', tenure.topic_lock_holders_json(t.id))
    FROM generate_series(0, t.partitions - 1) AS s (partition) CROSS JOIN LATERAL (
        SELECT (SELECT u.published_at FROM tenure.commit_batches u
                WHERE u.topic_id = t.id AND u.partition = s.partition AND u.event_offset > coalesce((
                    SELECT f.start_offset FROM tenure.partition_start_offsets f
                        WHERE f.topic_id = t.id AND f.partition = s.partition), 0)
                ORDER BY u.event_offset LIMIT 1) AS oldest,
               (SELECT u.published_at FROM tenure.commit_batches u WHERE u.topic_id = t.id AND u.partition = s.partition
                ORDER BY u.event_offset DESC LIMIT 1) AS newest
    ) e
$$;

-- Unread batches are counted one by one, up to the limit from which the exact number does not matter.
CREATE FUNCTION tenure.group_json(g tenure.consumer_groups) RETURNS json LANGUAGE sql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    SELECT json_build_object(
        'topic', json_build_object('namespace', t.namespace, 'name', t.name), 'name', g.name,
        'settings', tenure.group_settings_json(g), 'paused', tenure.group_pause_json(g), 'members',
            tenure.group_members_json(g.id),
        'partitions', (
            SELECT coalesce(json_agg(json_build_object(
                       'partition', s.partition, 'token', s.token, 'holder', h.id, 'last_member', s.last_member,
                           'committed_offset', s.committed_offset,
                       'end_offset', e.end_offset, 'lag_events', least(l.event_count, 10000), 'lag_exact',
                           l.event_count <= 10000,
                       'lag_ms', coalesce(greatest(0, tenure.to_unix_ms(clock_timestamp()) - tenure.to_unix_ms(l.oldest)), 0))
                       ORDER BY s.partition), '[]')
            FROM (SELECT a.*, tenure.get_committed_offset(a.group_id, a.partition) AS committed_offset
                FROM tenure.partition_leases a
                  WHERE a.group_id = g.id OFFSET 0) s
            LEFT JOIN tenure.sessions h ON h.id = s.session AND h.state = 'live'
            CROSS JOIN LATERAL tenure.partition_offsets(g.topic_id, s.partition) e
            CROSS JOIN LATERAL (
                SELECT coalesce(sum(u.event_count), 0) AS event_count,
                    (array_agg(u.published_at ORDER BY u.event_offset))[1] AS oldest FROM (
                    SELECT n.event_count, n.published_at, n.event_offset FROM tenure.commit_batches n
                    WHERE n.topic_id = g.topic_id AND n.partition = s.partition AND n.event_offset > s.committed_offset
                    ORDER BY n.event_offset LIMIT 10001) u
            ) l),
        'parked_event_count', (SELECT count(*) FROM tenure.parked_events a WHERE a.group_id = g.id AND NOT a.dead),
        'dead_letter_count', (SELECT count(*) FROM tenure.parked_events a WHERE a.group_id = g.id AND a.dead),
        'rebalanced_partition_count', g.rebalanced_partition_count,
        'webhook', (SELECT json_build_object('url', p.url, 'timeout_ms', p.timeout_ms)
                 FROM tenure.group_webhooks p WHERE p.group_id = g.id))
    FROM tenure.topics t WHERE t.id = g.topic_id
$$;

-- Whether a transaction is publishing to this topic and may have checked for waiters already.
CREATE FUNCTION tenure.is_publishing(in_topic integer) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT EXISTS (SELECT FROM tenure.topic_partitions s
                   JOIN pg_catalog.pg_locks l ON l.locktype = 'transactionid' AND l.transactionid = s.xmax AND l.granted
                   WHERE s.topic_id = in_topic)
$$;
