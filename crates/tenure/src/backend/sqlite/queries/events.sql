-- Lists go in as JSON, since every statement is a trip to the connection's thread. Which slots are read comes first in every join:
-- the rest is found by the index.

-- name: event_known
SELECT e.idempotency_key, e.id, e.slot FROM json_each(?2) j
CROSS JOIN tenure_events e ON e.topic = ?1 AND e.idempotency_key = j.value;

-- name: event_put
-- Of one row, or of many: its values are repeated.
INSERT INTO tenure_events
    (id, topic, slot, position, bytes, published_at, leader_token, key, idempotency_key, kind, headers, payload)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: event_units
-- What was published together in each slot after a position, as far as so many events reach, the last of it whole.
SELECT j.key AS place, e.position, count(*) AS events, sum(e.bytes) AS bytes
FROM tenure_topics t CROSS JOIN json_each(?3) j CROSS JOIN tenure_events e
WHERE t.namespace = ?1 AND t.name = ?2
  AND e.topic = t.id AND e.slot = j.value ->> 0 AND e.position > j.value ->> 1
  AND e.position <= coalesce((SELECT r.position FROM tenure_events r
                              WHERE r.topic = t.id AND r.slot = j.value ->> 0 AND r.position > j.value ->> 1
                              ORDER BY r.position, r.id LIMIT 1 OFFSET ?4 - 1), 9223372036854775807)
GROUP BY j.key, e.position
ORDER BY j.key, e.position;

-- name: event_read
-- Of each slot what lies after one position and not after another. In the order of the list, and of the index.
SELECT e.id, e.slot, e.position, e.published_at, e.leader_token, e.key, e.kind, e.headers, e.payload
FROM tenure_topics t CROSS JOIN json_each(?3) j CROSS JOIN tenure_events e
WHERE t.namespace = ?1 AND t.name = ?2
  AND e.topic = t.id AND e.slot = j.value ->> 0 AND e.position > j.value ->> 1 AND e.position <= j.value ->> 2;

-- name: event_show
SELECT e.id, e.slot, e.position, e.published_at, e.leader_token, e.key, e.kind, e.headers, e.payload
FROM tenure_topics t CROSS JOIN tenure_events e ON e.id = ?3 AND e.topic = t.id
WHERE t.namespace = ?1 AND t.name = ?2;

-- name: event_oldest
-- The first of each slot, and up to where every group has read it; null: there is no group.
WITH RECURSIVE slots (topic, slot, slots) AS (
    SELECT t.id, 0, t.slots FROM tenure_topics t
    UNION ALL SELECT topic, slot + 1, slots FROM slots WHERE slot + 1 < slots)
SELECT s.topic, s.slot, t.keep_ms, t.keep_unread_ms, e.position, e.published_at,
       (SELECT min(h.position) FROM tenure_groups g CROSS JOIN tenure_shares h ON h.of_group = g.id AND h.slot = s.slot
        WHERE g.topic = s.topic) AS read_to
FROM slots s CROSS JOIN tenure_topics t ON t.id = s.topic
CROSS JOIN tenure_events e ON e.id = (SELECT f.id FROM tenure_events f WHERE f.topic = s.topic AND f.slot = s.slot
                                      ORDER BY f.position, f.id LIMIT 1);

-- name: event_first
-- The first event of what was published together, unit by unit: its number is its position.
SELECT e.position, e.published_at FROM tenure_events e
WHERE e.topic = ?1 AND e.slot = ?2 AND e.id = e.position
ORDER BY e.position LIMIT ?3;

-- name: event_forget
DELETE FROM tenure_events WHERE id IN (
    SELECT e.id FROM json_each(?2) j CROSS JOIN tenure_events e
    WHERE e.topic = ?1 AND e.slot = j.value ->> 0 AND e.position <= j.value ->> 1);

-- name: event_floor
INSERT INTO tenure_event_floors (topic, slot, position)
SELECT ?1, j.value ->> 0, j.value ->> 1 FROM json_each(?2) j
WHERE true
ON CONFLICT (topic, slot) DO UPDATE SET position = excluded.position;
