-- name: event_publish_in_transaction
-- In the transaction of a user. $1 namespace, $2 topic; one element for each event: $3 type, $4 key, $5 payload, $6 binary
-- payload, $7 headers, $8 idempotency key, $9 token of the leader. See tenure.publish_in_transaction.
SELECT p.index, p.event_id, p.partition, p.created, p.max_bytes
FROM tenure.publish_in_transaction($1, $2, $3::text[], $4::text[], $5::text[], $6::bytea[], $7::text[], $8::text[],
    $9::bigint[]) p
ORDER BY p.index;

-- name: event_publish
-- In a transaction of the library. $1 namespace, $2 topic; one element for each event: $3 hash of the key, $4 type, $5 key,
-- $6 payload, $7 binary payload, $8 headers, $9 idempotency key, $10 token of the leader. See tenure.publish_events.
SELECT p.index, p.event_id, p.partition, p.created, p.max_bytes
FROM tenure.publish_events($1, $2, $3::bigint[], $4::text[], $5::text[], $6::text[], $7::bytea[], $8::text[], $9::text[],
    $10::bigint[],
                        true) p
ORDER BY p.index;

-- name: event_publish_immediately
-- $1 namespace, $2 topic; one element for each event: $3 hash of the key, $4 type, $5 key, $6 payload, $7 binary payload, $8
-- headers, $9 token of the leader. See tenure.publish_events_immediately.
SELECT p.event_ids::text, p.partitions::text, p.index, p.max_bytes
    FROM tenure.publish_events_immediately($1, $2, $3, $4, $5, $6, $7, $8, $9) p;

-- name: event_publish_one
-- $1 namespace, $2 topic, $3 hash of the key, $4 type, $5 key, $6 payload, $7 binary payload, $8 headers, $9 token of the
-- leader. See tenure.publish_event.
SELECT p.index, p.event_id, p.partition, p.created, p.max_bytes FROM tenure.publish_event($1, $2, $3, $4, $5, $6, $7, $8, $9) p;

-- name: event_read
-- $1 namespace, $2 topic, $3 partitions, $4 after these offsets, $5 limit. See tenure.read_events. The library reads the
-- columns by position.
SELECT e.partition, e.event_offset, e.event_id, e.key, e.type, e.payload, encode(e.binary_payload, 'hex') AS binary_payload,
    e.headers::text, e.leader_token, e.published_at_ms
FROM tenure.read_events(tenure.require_topic($1, $2), $3, $4, $5) e;

-- name: event_get
-- $1 namespace, $2 topic, $3 event id. See tenure.get_event. The columns of event_read.
SELECT e.partition, e.event_offset, e.event_id, e.key, e.type, e.payload, encode(e.binary_payload, 'hex') AS binary_payload,
    e.headers::text, e.leader_token, e.published_at_ms
FROM tenure.topics t CROSS JOIN LATERAL tenure.get_event(t.id, $3) e WHERE t.namespace = $1 AND t.name = $2;

-- name: event_prune
-- $1 session, $2 token, $3 clock, $4 limit. See tenure.prune_events.
SELECT p.pruned, p.has_more FROM tenure.prune_events($1, $2, $3, $4) p;
