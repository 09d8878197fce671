-- name: topic_list
-- $1 namespace, or null for all. As JSON in the form that the library reads.
SELECT tenure.topic_json(t)::text AS topic FROM tenure.topics t WHERE $1::text IS NULL OR t.namespace = $1
ORDER BY t.namespace, t.name;

-- name: topic_names
-- $1 namespace, or null for all.
SELECT t.namespace, t.name AS topic FROM tenure.topics t WHERE $1::text IS NULL OR t.namespace = $1 ORDER BY t.namespace,
    t.name;

-- name: topic_get
-- $1 namespace, $2 name.
SELECT tenure.topic_json(t)::text AS topic FROM tenure.topics t WHERE t.namespace = $1 AND t.name = $2;

-- name: topic_set
-- $1 namespace, $2 name, $3 partitions, $4 retention, $5 retention of unread events, $6 maximum payload. Changes nothing if
-- the number of partitions differs; `partitions`: the stored number.
INSERT INTO tenure.topics AS t (namespace, name, partitions, retention_ms, unread_retention_ms, max_payload_bytes)
    VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (namespace, name) DO UPDATE
SET retention_ms = CASE WHEN t.partitions = EXCLUDED.partitions THEN EXCLUDED.retention_ms ELSE t.retention_ms END,
    unread_retention_ms = CASE WHEN t.partitions = EXCLUDED.partitions THEN EXCLUDED.unread_retention_ms
        ELSE t.unread_retention_ms END,
    max_payload_bytes = CASE WHEN t.partitions = EXCLUDED.partitions THEN EXCLUDED.max_payload_bytes
        ELSE t.max_payload_bytes END
RETURNING t.partitions, t.xmax = 0 AS created;

-- name: topic_delete
-- $1 namespace, $2 name. No row: the topic does not exist. `active_group`: a group with live members, because of which the
-- topic stays; `members`: their number.
SELECT d.active_group, d.members FROM tenure.delete_topic($1, $2) d WHERE d.existed;

-- name: topic_offsets
-- $1 namespace, $2 name. No row: the topic does not exist.
SELECT s.partition, e.start_offset, e.end_offset FROM tenure.topics t CROSS
    JOIN LATERAL generate_series(0, t.partitions - 1) AS s (partition)
CROSS JOIN LATERAL tenure.partition_offsets(t.id, s.partition) e
WHERE t.namespace = $1 AND t.name = $2 ORDER BY s.partition;

-- name: topic_waiter_register
-- $1 namespace, $2 topic. See tenure.register_topic_waiter.
SELECT tenure.register_topic_waiter(t.id) FROM tenure.topics t WHERE t.namespace = $1 AND t.name = $2;

-- name: topic_is_publishing
-- $1 namespace, $2 topic. Whether a transaction is committing events to it.
SELECT coalesce(bool_or(tenure.is_publishing(t.id)), false) AS is_publishing FROM tenure.topics t
    WHERE t.namespace = $1 AND t.name = $2;
