-- name: topic_list
-- $1 namespace, or null for all. As JSON in the form that the library reads.
SELECT tenure.topic_view(t)::text AS topic FROM tenure.topics t WHERE $1::text IS NULL OR t.namespace = $1
ORDER BY t.namespace, t.name;

-- name: topic_names
-- $1 namespace, or null for all.
SELECT t.namespace, t.name AS topic FROM tenure.topics t WHERE $1::text IS NULL OR t.namespace = $1 ORDER BY t.namespace, t.name;

-- name: topic_show
-- $1 namespace, $2 name.
SELECT tenure.topic_view(t)::text AS topic FROM tenure.topics t WHERE t.namespace = $1 AND t.name = $2;

-- name: topic_set
-- $1 namespace, $2 name, $3 slots, $4 keep, $5 keep unread, $6 longest payload. `slots`: how many it has; they stay.
INSERT INTO tenure.topics AS t (namespace, name, slots, keep_ms, keep_unread_ms, max_bytes) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (namespace, name) DO UPDATE
SET keep_ms = CASE WHEN t.slots = EXCLUDED.slots THEN EXCLUDED.keep_ms ELSE t.keep_ms END,
    keep_unread_ms = CASE WHEN t.slots = EXCLUDED.slots THEN EXCLUDED.keep_unread_ms ELSE t.keep_unread_ms END,
    max_bytes = CASE WHEN t.slots = EXCLUDED.slots THEN EXCLUDED.max_bytes ELSE t.max_bytes END
RETURNING t.slots, t.xmax = 0 AS new;

-- name: topic_delete
-- $1 namespace, $2 name. No row: there is none. `busy`: a group of it that has live members, and so all of it stays; `members`: how
-- many.
SELECT d.busy, d.members FROM tenure.delete_topic($1, $2) d WHERE d.there;

-- name: topic_ends
-- $1 namespace, $2 name. No row: there is no such topic.
SELECT s.slot, e.earliest, e.latest FROM tenure.topics t CROSS JOIN LATERAL generate_series(0, t.slots - 1) AS s (slot)
CROSS JOIN LATERAL tenure.slot_ends(t.id, s.slot) e
WHERE t.namespace = $1 AND t.name = $2 ORDER BY s.slot;
