-- name: event_publish_in
-- In somebody else's transaction. $1 namespace, $2 topic; of each event: $3 type, $4 key, $5 payload, $6 bytes, $7 headers,
-- $8 idempotency key, $9 leader's token. See tenure.publish_in.
SELECT p.n, p.id, p.slot, p.new, p.most
FROM tenure.publish_in($1, $2, $3::text[], $4::text[], $5::text[], $6::bytea[], $7::text[], $8::text[], $9::bigint[]) p
ORDER BY p.n;

-- name: event_publish_keyed
-- In a transaction of our own. $1 namespace, $2 topic; of each event: $3 the hash of its key, $4 type, $5 key, $6 payload, $7 bytes,
-- $8 headers, $9 idempotency key, $10 leader's token. See tenure.publish_all.
SELECT p.n, p.id, p.slot, p.new, p.most
FROM tenure.publish_all($1, $2, $3::bigint[], $4::text[], $5::text[], $6::text[], $7::bytea[], $8::text[], $9::text[], $10::bigint[],
                        true) p
ORDER BY p.n;

-- name: event_publish_own
-- $1 namespace, $2 topic; of each event: $3 the hash of its key, $4 type, $5 key, $6 payload, $7 bytes, $8 headers, $9 leader's token. See
-- tenure.publish_own.
SELECT p.ids::text, p.slots::text, p.n, p.most FROM tenure.publish_own($1, $2, $3, $4, $5, $6, $7, $8, $9) p;

-- name: event_publish_one
-- $1 namespace, $2 topic, $3 the hash of its key, $4 type, $5 key, $6 payload, $7 bytes, $8 headers, $9 leader's token. See
-- tenure.publish_one.
SELECT p.n, p.id, p.slot, p.new, p.most FROM tenure.publish_one($1, $2, $3, $4, $5, $6, $7, $8, $9) p;

-- name: event_read
-- $1 namespace, $2 topic, $3 slots, $4 after which positions, $5 how many at most. See tenure.read.
SELECT e.slot, e."position", e.id, e.key, e.kind, e.payload, encode(e.body, 'hex') AS body, e.headers::text, e.leader_token, e.at_ms
FROM tenure.read(tenure.topic_id($1, $2), $3, $4, $5) e;

-- name: event_show
-- $1 namespace, $2 topic, $3 which. See tenure.show_event.
SELECT e.slot, e."position", e.id, e.key, e.kind, e.payload, encode(e.body, 'hex') AS body, e.headers::text, e.leader_token, e.at_ms
FROM tenure.topics t CROSS JOIN LATERAL tenure.show_event(t.id, $3) e WHERE t.namespace = $1 AND t.name = $2;

-- name: event_doze
-- $1 namespace, $2 topic. See tenure.wait_for_events.
SELECT tenure.wait_for_events(t.id) FROM tenure.topics t WHERE t.namespace = $1 AND t.name = $2;

-- name: event_publishing
-- $1 namespace, $2 topic. Whether somebody commits to it at this moment.
SELECT coalesce(bool_or(tenure.publishing(t.id)), false) AS publishing FROM tenure.topics t WHERE t.namespace = $1 AND t.name = $2;

-- name: event_prune
-- $1 session, $2 token, $3 clock, $4 how many. See tenure.prune_events.
SELECT p.forgotten, p.more FROM tenure.prune_events($1, $2, $3, $4) p;

-- name: aside_list
-- $1 the group's number, $2 only the dead, $3 slot, $4 key, $5 after which event, $6 how many; null: any. In the order of their
-- numbers; those of one key in their own order. As many as fit into 16 MiB, and at least one. What waits behind one is counted up to a
-- thousand.
SELECT a.slot, a."position", a.event AS id, a.key, a.kind, a.payload, encode(a.body, 'hex') AS body, a.headers::text,
       a.leader_token, tenure.ms(a.at) AS at_ms, a.dead, a.attempts, a.error, tenure.ms(a.failed_at) AS failed_at_ms,
       CASE WHEN a.dead OR (a.key IS NOT NULL AND EXISTS (
                     SELECT FROM tenure.event_asides o WHERE o.group_id = a.group_id AND o.slot = a.slot AND o.key = a.key
                       AND (o."position", o.event) < (a."position", a.event))) THEN NULL
            WHEN a.attempts = 0 THEN 0
            ELSE greatest(0, tenure.ms(a.due_at) - tenure.ms(clock_timestamp())) END AS due_in_ms,
       (SELECT count(*) FROM (
            SELECT FROM tenure.event_asides o
            WHERE o.group_id = a.group_id AND o.slot = a.slot AND o.key = a.key
              AND (o."position", o.event) > (a."position", a.event) LIMIT 1000) b) AS behind
FROM (
    SELECT l.*, row_number() OVER listed AS n,
           sum(coalesce(octet_length(l.payload), octet_length(l.body), 0)) OVER (listed ROWS UNBOUNDED PRECEDING) AS total
    FROM (
        SELECT i.* FROM tenure.event_asides i
        WHERE i.group_id = $1 AND (NOT $2 OR i.dead) AND ($3::integer IS NULL OR i.slot = $3) AND ($4::text IS NULL OR i.key = $4)
          AND i.event > $5
        ORDER BY CASE WHEN $4::text IS NULL THEN 0 ELSE i.slot END, CASE WHEN $4::text IS NULL THEN 0 ELSE i."position" END, i.event
        LIMIT $6) l
    WINDOW listed AS (
        ORDER BY CASE WHEN $4::text IS NULL THEN 0 ELSE l.slot END, CASE WHEN $4::text IS NULL THEN 0 ELSE l."position" END, l.event)
) a
WHERE a.total <= 16777216 OR a.n = 1
ORDER BY a.n;

-- name: aside_keys
-- $1 namespace, $2 topic, $3 group, $4 slot. See tenure.aside_keys.
SELECT tenure.aside_keys(tenure.find_group($1, $2, $3), $4)::text AS keys;

-- name: aside_keys_in
-- $1 namespace, $2 topic, $3 group, $4 slots. See tenure.aside_keys; only slots in which something is aside.
SELECT s.slot, tenure.aside_keys(g.id, s.slot)::text AS keys
FROM (SELECT tenure.find_group($1, $2, $3) AS id) g CROSS JOIN unnest($4::integer[]) AS s (slot)
WHERE EXISTS (SELECT FROM tenure.event_asides a WHERE a.group_id = g.id AND a.slot = s.slot);

-- name: dead_replay
-- $1 the group's number, $2 which.
UPDATE tenure.event_asides a SET dead = false, attempts = 0
WHERE a.group_id = $1 AND a.event = ANY ($2) AND a.dead RETURNING a.event AS id;

-- name: dead_drop
-- $1 the group's number, $2 which.
DELETE FROM tenure.event_asides a WHERE a.group_id = $1 AND a.event = ANY ($2) AND a.dead RETURNING a.event AS id;
