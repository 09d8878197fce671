-- name: parked_event_list
-- $1 group id, $2 only dead letters, $3 partition, $4 key, $5 after this event id, $6 limit; null: any. In the order of
-- their ids; events of one key in the order of the key. As many as fit into 16 MiB, and at least one. Events that wait
-- behind one are counted up to a thousand. The first columns are those of event_read.
SELECT a.partition, a.event_offset, a.event_id, a.key, a.type, a.payload, encode(a.binary_payload, 'hex') AS binary_payload,
    a.headers::text,
       a.leader_token, tenure.to_unix_ms(a.published_at) AS published_at_ms, a.dead, a.attempts, a.last_error,
           tenure.to_unix_ms(a.last_failed_at) AS last_failed_at_ms,
       CASE WHEN a.dead OR (a.key IS NOT NULL AND EXISTS (
                     SELECT FROM tenure.parked_events o WHERE o.group_id = a.group_id AND o.partition = a.partition
                         AND o.key = a.key
                       AND (o.event_offset, o.event_id) < (a.event_offset, a.event_id))) THEN NULL
            WHEN a.attempts = 0 THEN 0
            ELSE greatest(0, tenure.to_unix_ms(a.retry_at) - tenure.to_unix_ms(clock_timestamp())) END AS retry_in_ms,
       (SELECT count(*) FROM (
            SELECT FROM tenure.parked_events o
            WHERE o.group_id = a.group_id AND o.partition = a.partition AND o.key = a.key
              AND (o.event_offset, o.event_id) > (a.event_offset, a.event_id) LIMIT 1000) b) AS waiting_behind_count
FROM (
    SELECT l.*, row_number() OVER listed AS n,
           sum(coalesce(octet_length(l.payload), octet_length(l.binary_payload),
               0)) OVER (listed ROWS UNBOUNDED PRECEDING) AS total
    FROM (
        SELECT i.* FROM tenure.parked_events i
        WHERE i.group_id = $1 AND (NOT $2 OR i.dead) AND ($3::integer IS NULL OR i.partition = $3)
            AND ($4::text IS NULL OR i.key = $4)
          AND i.event_id > $5
        ORDER BY CASE WHEN $4::text IS NULL THEN 0 ELSE i.partition END,
            CASE WHEN $4::text IS NULL THEN 0 ELSE i.event_offset END, i.event_id
        LIMIT $6) l
    WINDOW listed AS (
        ORDER BY CASE WHEN $4::text IS NULL THEN 0 ELSE l.partition END,
            CASE WHEN $4::text IS NULL THEN 0 ELSE l.event_offset END, l.event_id)
) a
WHERE a.total <= 16777216 OR a.n = 1
ORDER BY a.n;

-- name: parked_key_list
-- $1 namespace, $2 topic, $3 group, $4 partition. See tenure.parked_keys_json.
SELECT tenure.parked_keys_json(tenure.find_group($1, $2, $3), $4)::text AS keys;

-- name: parked_key_list_in
-- $1 namespace, $2 topic, $3 group, $4 partitions. See tenure.parked_keys_json; only partitions with parked events.
SELECT s.partition, tenure.parked_keys_json(g.id, s.partition)::text AS keys
FROM (SELECT tenure.find_group($1, $2, $3) AS id) g CROSS JOIN unnest($4::integer[]) AS s (partition)
WHERE EXISTS (SELECT FROM tenure.parked_events a WHERE a.group_id = g.id AND a.partition = s.partition);

-- name: dead_letter_replay
-- $1 group id, $2 event ids.
UPDATE tenure.parked_events a SET dead = false, attempts = 0
WHERE a.group_id = $1 AND a.event_id = ANY ($2) AND a.dead RETURNING a.event_id;

-- name: dead_letter_drop
-- $1 group id, $2 event ids.
DELETE FROM tenure.parked_events a WHERE a.group_id = $1 AND a.event_id = ANY ($2) AND a.dead RETURNING a.event_id;
