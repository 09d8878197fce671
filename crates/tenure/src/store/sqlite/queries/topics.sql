-- name: topic_set
-- The number of partitions never changes.
INSERT INTO tenure_topics (namespace, name, partitions, retention_ms, unread_retention_ms, max_payload_bytes, created_at_ms)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT (namespace, name) DO UPDATE SET
    retention_ms = excluded.retention_ms, unread_retention_ms = excluded.unread_retention_ms, max_payload_bytes = excluded.max_payload_bytes;

-- name: topic_find
SELECT id, partitions, max_payload_bytes FROM tenure_topics WHERE namespace = ?1 AND name = ?2;

-- name: topic_begin_publish
-- ?3: number of events, ?4: size of the largest payload. This statement takes the write lock, so no other transaction can assign ids
-- from here to the commit.
UPDATE tenure_topics SET event_count = event_count + ?3
WHERE namespace = ?1 AND name = ?2 AND max_payload_bytes >= ?4
RETURNING id, partitions,
    max(coalesce((SELECT max(e.id) FROM tenure_events e), 0),
        coalesce((SELECT q.seq FROM sqlite_sequence q WHERE q.name = 'tenure_events'), 0)) + 1 AS next_id,
    EXISTS (SELECT 1 FROM tenure_topic_waiters w WHERE w.namespace = ?1 AND w.topic = ?2) AS has_waiters;

-- name: topic_add_event_count
UPDATE tenure_topics SET event_count = event_count + ?2 WHERE id = ?1;

-- name: topic_names
SELECT namespace, name FROM tenure_topics WHERE ?1 IS NULL OR namespace = ?1 ORDER BY namespace, name;

-- name: topic_list
-- The oldest and the newest event are the first and the last event of some partition.
SELECT t.*,
       (SELECT min(first.published_at_ms) FROM (
            WITH RECURSIVE partitions (partition) AS (SELECT 0 UNION ALL SELECT partition + 1 FROM partitions WHERE partition + 1 < t.partitions)
            SELECT (SELECT e.published_at_ms FROM tenure_events e WHERE e.topic_id = t.id AND e.partition = s.partition
                    ORDER BY e.event_offset, e.id LIMIT 1) AS published_at_ms FROM partitions s) first) AS oldest_published_at_ms,
       (SELECT max(last.published_at_ms) FROM (
            WITH RECURSIVE partitions (partition) AS (SELECT 0 UNION ALL SELECT partition + 1 FROM partitions WHERE partition + 1 < t.partitions)
            SELECT (SELECT e.published_at_ms FROM tenure_events e WHERE e.topic_id = t.id AND e.partition = s.partition
                    ORDER BY e.event_offset DESC, e.id DESC LIMIT 1) AS published_at_ms FROM partitions s) last) AS newest_published_at_ms,
       (SELECT json_group_array(n.name) FROM (SELECT g.name FROM tenure_consumer_groups g WHERE g.topic_id = t.id ORDER BY g.name) n) AS groups
FROM tenure_topics t
WHERE (?1 IS NULL OR t.namespace = ?1) AND (?2 IS NULL OR t.name = ?2)
ORDER BY t.namespace, t.name;

-- name: partition_offsets
WITH RECURSIVE partitions (partition) AS (SELECT 0 UNION ALL SELECT partition + 1 FROM partitions WHERE partition + 1 < ?2)
SELECT s.partition, coalesce(f.start_offset, 0) AS start_offset,
       max(coalesce(f.start_offset, 0),
           coalesce((SELECT max(e.event_offset) FROM tenure_events e WHERE e.topic_id = ?1 AND e.partition = s.partition), 0)) AS end_offset
FROM partitions s LEFT JOIN tenure_partition_start_offsets f ON f.topic_id = ?1 AND f.partition = s.partition
ORDER BY s.partition;

-- name: partition_offset_before
-- The offset before the first event at or after an instant; null if there is no such event.
WITH RECURSIVE partitions (partition) AS (SELECT 0 UNION ALL SELECT partition + 1 FROM partitions WHERE partition + 1 < ?2)
SELECT s.partition, (SELECT first.before FROM (
           SELECT (SELECT coalesce(max(p.event_offset), 0) FROM tenure_events p
                   WHERE p.topic_id = ?1 AND p.partition = s.partition AND p.event_offset < e.event_offset) AS before
           FROM tenure_events e WHERE e.topic_id = ?1 AND e.partition = s.partition AND e.published_at_ms >= ?3
           ORDER BY e.event_offset, e.id LIMIT 1) first) AS event_offset
FROM partitions s
ORDER BY s.partition;

-- name: topic_delete
DELETE FROM tenure_topics WHERE id = ?1;

-- name: orphaned_event_topics
-- Deleted topics that still have events. Each step seeks the next topic in the index.
WITH RECURSIVE topics (topic_id) AS (
    SELECT min(e.topic_id) FROM tenure_events e
    UNION ALL SELECT (SELECT min(e.topic_id) FROM tenure_events e WHERE e.topic_id > t.topic_id) FROM topics t WHERE t.topic_id IS NOT NULL)
SELECT s.topic_id FROM topics s WHERE s.topic_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM tenure_topics t WHERE t.id = s.topic_id);

-- name: topic_delete_events
DELETE FROM tenure_events WHERE id IN (SELECT e.id FROM tenure_events e WHERE e.topic_id = ?1 LIMIT ?2);

-- name: partition_start_offset_delete
DELETE FROM tenure_partition_start_offsets WHERE topic_id = ?1;

-- name: topic_groups
SELECT id, name FROM tenure_consumer_groups WHERE topic_id = ?1 ORDER BY name;

-- name: topic_waiter_register
INSERT INTO tenure_topic_waiters (namespace, topic, session, registered_at_ms) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (namespace, topic, session) DO UPDATE SET registered_at_ms = excluded.registered_at_ms;

-- name: topic_waiter_notify
DELETE FROM tenure_topic_waiters WHERE namespace = ?1 AND topic = ?2;

-- name: topic_waiter_prune
DELETE FROM tenure_topic_waiters
WHERE session NOT IN (SELECT s.id FROM tenure_sessions s WHERE s.state = 'live') OR registered_at_ms < ?1;
