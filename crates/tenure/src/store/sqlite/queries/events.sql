-- Lists are JSON parameters, because every statement costs a round trip to the thread of the connection. The list of partitions comes
-- first in every join, so that the index finds the rest.

-- name: event_find_by_idempotency_key
SELECT e.idempotency_key, e.id, e.partition FROM json_each(?2) j
CROSS JOIN tenure_events e ON e.topic_id = ?1 AND e.idempotency_key = j.value;

-- name: event_put
-- One row; the Rust code repeats the values for several rows.
INSERT INTO tenure_events
    (id, topic_id, partition, event_offset, payload_bytes, published_at_ms, leader_token, key, idempotency_key, type, headers,
     payload)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: commit_batch_list
-- The commit batches of each partition after an offset, until they contain ?4 events. The last batch is complete.
SELECT j.key AS list_index, e.event_offset, count(*) AS event_count, sum(e.payload_bytes) AS payload_bytes
FROM tenure_topics t CROSS JOIN json_each(?3) j CROSS JOIN tenure_events e
WHERE t.namespace = ?1 AND t.name = ?2
  AND e.topic_id = t.id AND e.partition = j.value ->> 0 AND e.event_offset > j.value ->> 1
  AND e.event_offset <= coalesce((SELECT r.event_offset FROM tenure_events r
                              WHERE r.topic_id = t.id AND r.partition = j.value ->> 0 AND r.event_offset > j.value ->> 1
                              ORDER BY r.event_offset, r.id LIMIT 1 OFFSET ?4 - 1), 9223372036854775807)
GROUP BY j.key, e.event_offset
ORDER BY j.key, e.event_offset;

-- name: event_read
-- ?3: JSON array of [partition, after, up to]. The order is that of the list, then that of the index.
SELECT e.id, e.partition, e.event_offset, e.published_at_ms, e.leader_token, e.key, e.type, e.headers, e.payload
FROM tenure_topics t CROSS JOIN json_each(?3) j CROSS JOIN tenure_events e
WHERE t.namespace = ?1 AND t.name = ?2
  AND e.topic_id = t.id AND e.partition = j.value ->> 0 AND e.event_offset > j.value ->> 1 AND e.event_offset <= j.value ->> 2;

-- name: event_get
SELECT e.id, e.partition, e.event_offset, e.published_at_ms, e.leader_token, e.key, e.type, e.headers, e.payload
FROM tenure_topics t CROSS JOIN tenure_events e ON e.id = ?3 AND e.topic_id = t.id
WHERE t.namespace = ?1 AND t.name = ?2;

-- name: event_list_oldest
-- The first event of each partition, and the lowest committed offset of all groups (null if the topic has no group).
WITH RECURSIVE partitions (topic_id, partition, partitions) AS (
    SELECT t.id, 0, t.partitions FROM tenure_topics t
    UNION ALL SELECT topic_id, partition + 1, partitions FROM partitions WHERE partition + 1 < partitions)
SELECT s.topic_id, s.partition, t.retention_ms, t.unread_retention_ms, e.event_offset, e.published_at_ms,
       (SELECT min(h.committed_offset) FROM tenure_consumer_groups g CROSS JOIN tenure_partition_leases h ON h.group_id = g.id AND h.partition = s.partition
        WHERE g.topic_id = s.topic_id) AS min_committed_offset
FROM partitions s CROSS JOIN tenure_topics t ON t.id = s.topic_id
CROSS JOIN tenure_events e ON e.id = (SELECT f.id FROM tenure_events f WHERE f.topic_id = s.topic_id AND f.partition = s.partition
                                      ORDER BY f.event_offset, f.id LIMIT 1);

-- name: commit_batch_list_first
-- The first event of each commit batch: its id is the offset of the batch.
SELECT e.event_offset, e.published_at_ms FROM tenure_events e
WHERE e.topic_id = ?1 AND e.partition = ?2 AND e.id = e.event_offset
ORDER BY e.event_offset LIMIT ?3;

-- name: event_prune
DELETE FROM tenure_events WHERE id IN (
    SELECT e.id FROM json_each(?2) j CROSS JOIN tenure_events e
    WHERE e.topic_id = ?1 AND e.partition = j.value ->> 0 AND e.event_offset <= j.value ->> 1);

-- name: partition_start_offset_set
INSERT INTO tenure_partition_start_offsets (topic_id, partition, start_offset)
SELECT ?1, j.value ->> 0, j.value ->> 1 FROM json_each(?2) j
WHERE true
ON CONFLICT (topic_id, partition) DO UPDATE SET start_offset = excluded.start_offset;
