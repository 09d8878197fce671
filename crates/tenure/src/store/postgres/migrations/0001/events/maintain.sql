-- Retention of events.

-- Prunes the first commit batches of a partition, at most `max_count`: those from before `read_before` that all groups have
-- read, and those from before `unread_before` in any case (null: never). Returns the number of their events and batches.
CREATE FUNCTION tenure.prune_partition(
    in_topic integer, in_partition integer, read_before timestamptz, unread_before timestamptz, max_count integer,
    OUT event_count bigint, OUT batch_count bigint, OUT has_more boolean
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    start_offset_ bigint;
    -- The offset that all groups have committed; null if there is no group.
    committed_by_all bigint := (SELECT min(tenure.get_committed_offset(g.id, in_partition))
                                FROM tenure.consumer_groups g WHERE g.topic_id = in_topic);
    prunable boolean[];
    offsets bigint[];
BEGIN
    event_count := 0;
    batch_count := 0;
    has_more := false;
    SELECT f.start_offset INTO start_offset_ FROM tenure.partition_start_offsets f
        WHERE f.topic_id = in_topic AND f.partition = in_partition;
    -- From the start offset on, so that pruned entries that are not vacuumed yet are not scanned again.
    SELECT array_agg(u.prunable), array_agg(u.event_offset) INTO prunable, offsets FROM (
        SELECT u.event_offset, coalesce(u.published_at < unread_before, false)
               OR u.published_at < read_before AND u.event_offset <= coalesce(committed_by_all, u.event_offset) AS prunable
        FROM tenure.commit_batches u
        WHERE u.topic_id = in_topic AND u.partition = in_partition AND u.event_offset > coalesce(start_offset_, 0)
        ORDER BY u.event_offset LIMIT max_count + 1) u;
    batch_count := coalesce(array_position(prunable, false) - 1, cardinality(prunable), 0);
    IF batch_count > max_count THEN
        has_more := true;
        batch_count := max_count;
    END IF;
    IF batch_count = 0 THEN
        RETURN;
    END IF;
    WITH deleted AS (
        DELETE FROM tenure.commit_batches u
        WHERE u.topic_id = in_topic AND u.partition = in_partition AND u.event_offset = ANY (offsets[1:batch_count])
        RETURNING u.transaction_id, u.first_event_id, u.last_event_id
    ), pruned AS (
        DELETE FROM tenure.events e USING deleted g
        WHERE e.transaction_id = g.transaction_id AND e.topic_id = in_topic AND e.partition = in_partition
          AND e.id BETWEEN g.first_event_id AND g.last_event_id
        RETURNING e.id
    )
    SELECT count(*) INTO event_count FROM pruned;
    INSERT INTO tenure.partition_start_offsets AS f (topic_id, partition, start_offset)
        VALUES (in_topic, in_partition, offsets[batch_count])
    ON CONFLICT (topic_id, partition) DO UPDATE SET start_offset = greatest(f.start_offset, EXCLUDED.start_offset);
    DELETE FROM tenure.processed_events d USING tenure.consumer_groups g
    WHERE g.topic_id = in_topic AND d.group_id = g.id AND d.partition = in_partition AND d.event_offset <= offsets[batch_count];
END
$$;

-- Prunes old commit batches of all topics, at most `max_count` of each, and events of topics that were deleted during a
-- publication. Does nothing unless this session leads tenure/broker under this token. `clock_at_ms`: see
-- tenure.maintain_queues.
CREATE FUNCTION tenure.prune_events(
    in_session text, in_token bigint, clock_at_ms bigint, max_count integer, OUT pruned bigint, OUT has_more boolean
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    now_ CONSTANT timestamptz := date_trunc('milliseconds', clock_timestamp());
    clock_ CONSTANT timestamptz := least(tenure.from_unix_ms(least(clock_at_ms, tenure.to_unix_ms(now_))), now_);
    topic_ record;
    partition_ record;
    batches_left integer;
BEGIN
    pruned := 0;
    has_more := false;
    PERFORM FROM tenure.leases l
    WHERE l.namespace = 'tenure' AND l.election = 'broker' AND l.slot = 0 AND l.token = in_token AND l.session = in_session
    FOR SHARE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF random() < 0.01 THEN
        -- Delete rows that are not the last one of their topic: two concurrent transactions may leave them.
        DELETE FROM tenure.topic_waiters WHERE ctid = ANY (ARRAY(
            SELECT w.ctid FROM tenure.topic_waiters w
            WHERE EXISTS (SELECT FROM tenure.topic_waiters l WHERE l.topic_id = w.topic_id AND l.seq > w.seq)
            LIMIT max_count FOR UPDATE SKIP LOCKED));
    END IF;
    IF clock_at_ms IS NULL THEN
        RETURN;
    END IF;
    -- Skip a topic that is being deleted.
    FOR topic_ IN
        SELECT t.id, t.partitions, t.retention_ms, t.unread_retention_ms FROM tenure.topics t
            ORDER BY t.id FOR KEY SHARE SKIP LOCKED
    LOOP
        batches_left := max_count;
        -- Only partitions whose first batch is old enough: most have nothing to prune.
        FOR partition_ IN
            SELECT s.partition FROM generate_series(0, topic_.partitions - 1) AS s (partition)
            CROSS JOIN LATERAL (
                SELECT u.published_at FROM tenure.commit_batches u
                WHERE u.topic_id = topic_.id AND u.partition = s.partition AND u.event_offset > coalesce((
                    SELECT f.start_offset FROM tenure.partition_start_offsets f
                        WHERE f.topic_id = topic_.id AND f.partition = s.partition), 0)
                ORDER BY u.event_offset LIMIT 1
            ) oldest
            WHERE oldest.published_at < clock_ - topic_.retention_ms * interval '1 millisecond'
               OR oldest.published_at < clock_ - topic_.unread_retention_ms * interval '1 millisecond'
        LOOP
            SELECT pruned + f.event_count, batches_left - f.batch_count, has_more OR f.has_more INTO pruned, batches_left,
                has_more
            FROM tenure.prune_partition(topic_.id, partition_.partition,
                clock_ - topic_.retention_ms * interval '1 millisecond',
                                     clock_ - topic_.unread_retention_ms * interval '1 millisecond', batches_left) f;
        END LOOP;
    END LOOP;
    PERFORM tenure.prune_orphaned_events(max_count);
    IF random() < 0.01 THEN
        -- The deletion of a topic does not delete these rows, because it would have to wait for all publishers.
        DELETE FROM tenure.topic_partitions WHERE ctid = ANY (ARRAY(
            SELECT s.ctid FROM tenure.topic_partitions s WHERE NOT EXISTS (SELECT FROM tenure.topics t WHERE t.id = s.topic_id)
            LIMIT max_count FOR UPDATE SKIP LOCKED));
    END IF;
END
$$;

-- Prunes commit batches of deleted topics.
CREATE FUNCTION tenure.prune_orphaned_events(max_count integer) RETURNS void LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    topic_ integer := -1;
    offsets bigint[];
BEGIN
    LOOP
        -- From topic to topic, not from batch to batch.
        SELECT u.topic_id INTO topic_ FROM tenure.commit_batches u WHERE u.topic_id > topic_ ORDER BY u.topic_id LIMIT 1;
        EXIT WHEN NOT FOUND;
        CONTINUE WHEN EXISTS (SELECT FROM tenure.topics t WHERE t.id = topic_);
        offsets := ARRAY(SELECT u.event_offset FROM tenure.commit_batches u WHERE u.topic_id = topic_ LIMIT max_count);
        WITH deleted AS (
            DELETE FROM tenure.commit_batches u WHERE u.topic_id = topic_ AND u.event_offset = ANY (offsets)
            RETURNING u.transaction_id, u.partition, u.first_event_id, u.last_event_id
        )
        DELETE FROM tenure.events e USING deleted g
        WHERE e.transaction_id = g.transaction_id AND e.topic_id = topic_ AND e.partition = g.partition
          AND e.id BETWEEN g.first_event_id AND g.last_event_id;
    END LOOP;
END
$$;
