-- Reading events.
--
-- Planner settings keep the plans right at every size, as for claims: rows are found by their keys, in index order, whatever
-- the statistics are. A reader starts after an offset, so that it never scans pruned entries.

-- Commit batches of these partitions after these offsets: one of each partition in turn, in the given order, up to `max_events`
-- events or 16 MiB (the first batch is returned whole, however large it is). Batches are never split. The events of each
-- partition are in order.
CREATE FUNCTION tenure.read_events(in_topic integer, in_partitions integer[], after_offsets bigint[], max_events integer)
RETURNS TABLE (
    partition integer, event_offset bigint, event_id bigint, key text, type text, payload text, binary_payload bytea,
        headers json,
    leader_token bigint, published_at_ms bigint
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    -- Partitions that may have more, by their index in the list, and their offsets.
    indexes integer[] := ARRAY(SELECT generate_subscripts(in_partitions, 1));
    after_ bigint[] := after_offsets;
    wanted integer := max_events;
    bytes_left bigint := 16777216;
    batches_per_partition integer;
    pass_ record;
    all_taken boolean;
    batch_indexes integer[] := '{}';
    batch_offsets bigint[] := '{}';
    batch_transactions bigint[] := '{}';
    batch_first_ids bigint[] := '{}';
    batch_last_ids bigint[] := '{}';
    batch_times timestamptz[] := '{}';
BEGIN
    WHILE wanted > 0 AND cardinality(indexes) > 0 LOOP
        -- This many batches of each partition would suffice if they are as large as those before; the first pass reads a few to
        -- learn their size. The next pass reads the partitions that had this many.
        batches_per_partition := CASE
            WHEN batch_indexes = '{}' THEN least(2, ceil(wanted / cardinality(indexes)::numeric))
            ELSE greatest(1, ceil(wanted::numeric * cardinality(batch_indexes) / (max_events - wanted) / cardinality(indexes))) END;
        SELECT array_agg(u.index) AS indexes, array_agg(u.event_offset) AS offsets,
            array_agg(u.transaction_id) AS transaction_ids,
               array_agg(u.first_event_id) AS first_ids, array_agg(u.last_event_id) AS last_ids,
                   array_agg(u.published_at) AS times,
               array_agg(u.event_count) AS counts, array_agg(u.payload_bytes) AS sizes,
               sum(u.event_count) AS event_count, sum(u.payload_bytes) AS payload_bytes
        INTO pass_
        FROM (SELECT o.index, f.*
              FROM unnest(indexes, after_) AS o (index, after_offset)
              CROSS JOIN LATERAL (
                  SELECT s.event_offset, s.transaction_id, s.first_event_id, s.last_event_id, s.published_at, s.event_count,
                      s.payload_bytes
                  FROM tenure.commit_batches s
                  WHERE s.topic_id = in_topic AND s.partition = in_partitions[o.index] AND s.event_offset > o.after_offset
                  ORDER BY s.event_offset LIMIT batches_per_partition
              ) f) u;
        EXIT WHEN pass_.indexes IS NULL;
        all_taken := pass_.event_count <= wanted AND pass_.payload_bytes <= bytes_left;
        IF NOT all_taken THEN
            -- One of each partition in turn. The first batch of all is returned whole, and the last one may exceed the wanted
            -- number.
            SELECT array_agg(t.index) AS indexes, array_agg(t.event_offset) AS offsets,
                array_agg(t.transaction_id) AS transaction_ids,
                   array_agg(t.first_event_id) AS first_ids, array_agg(t.last_event_id) AS last_ids,
                       array_agg(t.published_at) AS times
            INTO pass_
            FROM (SELECT r.*, sum(r.event_count) OVER turns AS sum_events, sum(r.payload_bytes) OVER turns AS sum_bytes,
                         row_number() OVER turns AS n
                  FROM (SELECT u.*, row_number() OVER (PARTITION BY u.index ORDER BY u.event_offset) AS rank
                        FROM unnest(pass_.indexes, pass_.offsets, pass_.transaction_ids, pass_.first_ids, pass_.last_ids,
                                    pass_.times, pass_.counts, pass_.sizes)
                             AS u (index, event_offset, transaction_id, first_event_id, last_event_id, published_at,
                                 event_count, payload_bytes)) r
                  WINDOW turns AS (ORDER BY r.rank, r.index ROWS UNBOUNDED PRECEDING)) t
            WHERE t.sum_events - t.event_count < wanted AND (t.sum_bytes <= bytes_left OR t.n = 1 AND batch_indexes = '{}');
            EXIT WHEN pass_.indexes IS NULL;
        END IF;
        batch_indexes := batch_indexes || pass_.indexes;
        batch_offsets := batch_offsets || pass_.offsets;
        batch_transactions := batch_transactions || pass_.transaction_ids;
        batch_first_ids := batch_first_ids || pass_.first_ids;
        batch_last_ids := batch_last_ids || pass_.last_ids;
        batch_times := batch_times || pass_.times;
        EXIT WHEN NOT all_taken;
        wanted := wanted - pass_.event_count;
        bytes_left := bytes_left - pass_.payload_bytes;
        EXIT WHEN wanted <= 0;
        SELECT array_agg(u.index), array_agg(u.last) INTO indexes, after_
        FROM (SELECT l.index, max(l.event_offset) AS last FROM unnest(pass_.indexes, pass_.offsets) AS l (index, event_offset)
              GROUP BY l.index HAVING count(*) = batches_per_partition ORDER BY l.index) u;
    END LOOP;
    IF batch_indexes = '{}' THEN
        RETURN;
    END IF;
    RETURN QUERY
        SELECT in_partitions[u.index], u.event_offset, e.id, e.key, e.type, e.payload, e.binary_payload, e.headers,
            e.leader_token,
               tenure.to_unix_ms(u.published_at)
        FROM (SELECT * FROM unnest(batch_indexes, batch_offsets, batch_transactions, batch_first_ids, batch_last_ids,
            batch_times)
                  AS s (index, event_offset, transaction_id, first_event_id, last_event_id, published_at)
              ORDER BY s.index, s.event_offset) u
        CROSS JOIN LATERAL (
            SELECT v.* FROM tenure.events v
            WHERE v.transaction_id = u.transaction_id AND v.topic_id = in_topic AND v.partition = in_partitions[u.index]
              AND v.id BETWEEN u.first_event_id AND u.last_event_id
            ORDER BY v.id
        ) e;
END
$$;

-- The offset of an event in a partition; null if the event does not exist or was pruned. Offsets are greater than ids, and not
-- by much unless the transaction took long. For operators, who ask for one event.
CREATE FUNCTION tenure.find_event_offset(in_topic integer, in_partition integer, in_id bigint) RETURNS bigint
LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    SELECT u.event_offset FROM tenure.commit_batches u
    WHERE u.topic_id = in_topic AND u.partition = in_partition AND u.event_offset > in_id
      AND in_id BETWEEN u.first_event_id AND u.last_event_id
      AND EXISTS (SELECT FROM tenure.events e
                  WHERE e.transaction_id = u.transaction_id AND e.topic_id = u.topic_id AND e.partition = u.partition
                      AND e.id = in_id)
    ORDER BY u.event_offset LIMIT 1
$$;

-- One event. Its transaction_id is the id of the first event of its transaction: usually its own id, or a slightly smaller one.
-- Searches at most a million ids, so that a request for an unknown event does not scan the whole table.
CREATE FUNCTION tenure.get_event(in_topic integer, in_id bigint)
RETURNS TABLE (
    partition integer, event_offset bigint, event_id bigint, key text, type text, payload text, binary_payload bytea,
        headers json,
    leader_token bigint, published_at_ms bigint
) LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
    SELECT e.partition, u.event_offset, e.id, e.key, e.type, e.payload, e.binary_payload, e.headers, e.leader_token,
           tenure.to_unix_ms(u.published_at)
    FROM (SELECT v.* FROM tenure.events v WHERE v.transaction_id BETWEEN in_id - 1000000 AND in_id AND v.topic_id = in_topic
        AND v.id = in_id
          ORDER BY v.transaction_id DESC LIMIT 1) e
    JOIN tenure.commit_batches u
        ON u.topic_id = in_topic AND u.partition = e.partition AND u.event_offset = tenure.find_event_offset(in_topic,
            e.partition, e.id)
$$;

-- The offset up to which a partition was pruned, and its last offset.
CREATE FUNCTION tenure.partition_offsets(in_topic integer, in_partition integer, OUT start_offset bigint, OUT end_offset bigint)
LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    SELECT f.start_offset, greatest(f.start_offset, coalesce((
               SELECT u.event_offset FROM tenure.commit_batches u WHERE u.topic_id = in_topic AND u.partition = in_partition
               ORDER BY u.event_offset DESC LIMIT 1), 0))
    FROM (SELECT coalesce((SELECT f.start_offset FROM tenure.partition_start_offsets f
                           WHERE f.topic_id = in_topic AND f.partition = in_partition), 0) AS start_offset) f
$$;

-- The offset after which to read: `start_at` is earliest, latest, offset or published_at_ms; `start_value` is the offset or the
-- time. Never beyond the last offset, so that no later event is skipped.
CREATE FUNCTION tenure.resolve_offset(in_topic integer, in_partition integer, start_at text, start_value bigint) RETURNS bigint
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    offsets_ record;
    low bigint;
    high bigint;
    middle bigint;
    batch_ record;
BEGIN
    SELECT s.start_offset, s.end_offset INTO offsets_ FROM tenure.partition_offsets(in_topic, in_partition) s;
    IF start_at = 'earliest' THEN
        RETURN offsets_.start_offset;
    ELSIF start_at = 'latest' THEN
        RETURN offsets_.end_offset;
    ELSIF start_at = 'offset' THEN
        RETURN least(greatest(start_value, offsets_.start_offset), offsets_.end_offset);
    END IF;
    -- Times grow with offsets, as far as the clock does: all batches up to `low` are older, the next one after `high` is not.
    low := offsets_.start_offset;
    high := offsets_.end_offset;
    WHILE low < high LOOP
        middle := low + (high - low) / 2;
        SELECT u.event_offset, u.published_at INTO batch_ FROM tenure.commit_batches u
        WHERE u.topic_id = in_topic AND u.partition = in_partition AND u.event_offset > middle ORDER BY u.event_offset LIMIT 1;
        IF NOT FOUND OR batch_.published_at >= tenure.from_unix_ms(start_value) THEN
            high := middle;
        ELSE
            low := batch_.event_offset;
        END IF;
    END LOOP;
    RETURN low;
END
$$;
