-- name: parked_event_missing
-- The first of these events that is not at the given offset.
SELECT j.value ->> 3 AS event_id FROM json_each(?1) j
WHERE NOT EXISTS (SELECT 1 FROM tenure_events e
                  WHERE e.id = j.value ->> 3 AND e.topic_id = j.value ->> 1 AND e.partition = j.value ->> 2 AND e.event_offset = j.value ->> 4)
ORDER BY j.key LIMIT 1;

-- name: parked_event_put
INSERT INTO tenure_parked_events
    (group_id, event_id, partition, event_offset, dead, attempts, retry_at_ms, last_failed_at_ms, last_error, published_at_ms,
     leader_token, key, type, headers, payload)
SELECT j.value ->> 0, e.id, e.partition, e.event_offset, j.value ->> 5, j.value ->> 6, ?2 + (j.value ->> 7), ?2, j.value ->> 8,
       e.published_at_ms, e.leader_token, e.key, e.type, e.headers, e.payload
FROM json_each(?1) j CROSS JOIN tenure_events e ON e.id = j.value ->> 3 AND e.topic_id = j.value ->> 1 AND e.partition = j.value ->> 2
WHERE true
ON CONFLICT (group_id, event_id) DO UPDATE SET
    dead = excluded.dead, attempts = excluded.attempts, retry_at_ms = excluded.retry_at_ms,
    last_failed_at_ms = excluded.last_failed_at_ms, last_error = excluded.last_error
    -- An event that only waits behind others does not change a parked event. Only an operator changes a dead letter.
    WHERE excluded.attempts > 0 AND NOT dead;

-- name: parked_event_settle
UPDATE tenure_parked_events AS a
SET dead = j.value ->> 3, attempts = j.value ->> 4, retry_at_ms = ?2 + (j.value ->> 5), last_failed_at_ms = ?2, last_error = j.value ->> 6
FROM json_each(?1) j
-- Only an operator changes a dead letter.
WHERE a.group_id = j.value ->> 0 AND a.partition = j.value ->> 1 AND a.event_id = j.value ->> 2 AND NOT a.dead;

-- name: parked_event_done
DELETE FROM tenure_parked_events WHERE (group_id, event_id) IN (
    SELECT a.group_id, a.event_id FROM json_each(?1) j
    CROSS JOIN tenure_parked_events a ON a.group_id = j.value ->> 0 AND a.event_id = j.value ->> 2 AND a.partition = j.value ->> 1
    WHERE NOT a.dead);

-- name: parked_event_prune
-- The group reads these events again.
DELETE FROM tenure_parked_events WHERE (group_id, event_id) IN (
    SELECT a.group_id, a.event_id FROM json_each(?1) j
    CROSS JOIN tenure_parked_events a ON a.group_id = j.value ->> 0 AND a.partition = j.value ->> 1 AND a.event_offset > j.value ->> 2);

-- name: parked_key_list
-- The first parked event of each key, and every parked event without a key. Each step seeks the next key in the index.
WITH RECURSIVE heads (partition, key) AS (
    SELECT j.value, (SELECT min(a.key) FROM tenure_parked_events a WHERE a.group_id = ?1 AND a.partition = j.value AND a.key IS NOT NULL)
    FROM json_each(?2) j
    UNION ALL
    SELECT h.partition, (SELECT min(a.key) FROM tenure_parked_events a WHERE a.group_id = ?1 AND a.partition = h.partition AND a.key > h.key)
    FROM heads h WHERE h.key IS NOT NULL)
SELECT a.partition, a.key, a.event_id, a.dead, a.attempts, a.retry_at_ms
FROM heads h CROSS JOIN tenure_parked_events a ON a.group_id = ?1
    AND a.event_id = (SELECT min(f.event_id) FROM tenure_parked_events f WHERE f.group_id = ?1 AND f.partition = h.partition AND f.key = h.key)
WHERE h.key IS NOT NULL
UNION ALL
SELECT a.partition, a.key, a.event_id, a.dead, a.attempts, a.retry_at_ms
FROM json_each(?2) j CROSS JOIN tenure_parked_events a ON a.group_id = ?1 AND a.partition = j.value AND a.key IS NULL
ORDER BY 1, 3;

-- name: parked_event_list
-- Parked events of a key, dead letters, or all, each by its own index. Returns as many as fit into 16 MiB, and at least one. Counts up to
-- 1000 events that wait behind each.
SELECT shown.event_id AS id, shown.partition, shown.event_offset, shown.published_at_ms, shown.leader_token, shown.key, shown.type, shown.headers, shown.payload,
       shown.dead, shown.attempts, shown.last_error, shown.last_failed_at_ms, shown.retry_at_ms,
       shown.key IS NULL OR NOT EXISTS (SELECT 1 FROM tenure_parked_events f
                                    WHERE f.group_id = shown.group_id AND f.partition = shown.partition AND f.key = shown.key AND f.event_id < shown.event_id) AS is_first,
       (SELECT count(*) FROM (SELECT 1 FROM tenure_parked_events b
                              WHERE b.group_id = shown.group_id AND b.partition = shown.partition AND b.key = shown.key AND b.event_id > shown.event_id
                              LIMIT 1000)) AS waiting_behind_count
FROM (
    SELECT l.*, sum(length(CAST(l.payload AS BLOB))) OVER (ORDER BY l.event_id) AS total, row_number() OVER (ORDER BY l.event_id) AS n
    FROM (
        SELECT i.* FROM tenure_parked_events i
        WHERE i.group_id = ?1 AND i.event_id IN (
            SELECT * FROM (SELECT k.event_id FROM tenure_parked_events k
                           WHERE ?5 IS NOT NULL AND k.group_id = ?1 AND k.partition = ?4 AND k.key = ?5 AND k.event_id > ?2 AND (?3 = 0 OR k.dead = 1)
                           ORDER BY k.event_id LIMIT ?6)
            UNION ALL
            SELECT * FROM (SELECT k.event_id FROM tenure_parked_events k
                           WHERE ?5 IS NULL AND ?3 = 1 AND k.group_id = ?1 AND k.event_id > ?2 AND k.dead = 1 AND (?4 IS NULL OR k.partition = ?4)
                           ORDER BY k.event_id LIMIT ?6)
            UNION ALL
            SELECT * FROM (SELECT k.event_id FROM tenure_parked_events k
                           WHERE ?5 IS NULL AND ?3 = 0 AND k.group_id = ?1 AND k.event_id > ?2 AND (?4 IS NULL OR k.partition = ?4)
                           ORDER BY k.event_id LIMIT ?6))
        ORDER BY i.event_id LIMIT ?6) l
) shown
WHERE shown.total <= 16777216 OR shown.n = 1
ORDER BY shown.event_id;

-- name: dead_letter_replay
-- The event is retried at once if it is the first of its key; otherwise it waits behind the others.
UPDATE tenure_parked_events SET dead = 0, attempts = 0, retry_at_ms = NULL
WHERE group_id = ?1 AND event_id IN (SELECT j.value FROM json_each(?2) j) AND dead = 1
RETURNING event_id;

-- name: dead_letter_drop
DELETE FROM tenure_parked_events
WHERE group_id = ?1 AND event_id IN (SELECT j.value FROM json_each(?2) j) AND dead = 1
RETURNING event_id;
