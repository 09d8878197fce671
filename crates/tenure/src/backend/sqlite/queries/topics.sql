-- name: topic_set
-- How many slots it has is decided once.
INSERT INTO tenure_topics (namespace, name, slots, keep_ms, keep_unread_ms, max_bytes, created_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT (namespace, name) DO UPDATE SET
    keep_ms = excluded.keep_ms, keep_unread_ms = excluded.keep_unread_ms, max_bytes = excluded.max_bytes;

-- name: topic_find
SELECT id, slots, max_bytes FROM tenure_topics WHERE namespace = ?1 AND name = ?2;

-- name: topic_enter
-- To publish so many, of so many bytes at most: a write, whatever it comes to, so that from here on nobody else gives numbers.
UPDATE tenure_topics SET events = events + ?3
WHERE namespace = ?1 AND name = ?2 AND max_bytes >= ?4
RETURNING id, slots,
    max(coalesce((SELECT max(e.id) FROM tenure_events e), 0),
        coalesce((SELECT q.seq FROM sqlite_sequence q WHERE q.name = 'tenure_events'), 0)) + 1 AS next,
    EXISTS (SELECT 1 FROM tenure_event_dozers d WHERE d.namespace = ?1 AND d.topic = ?2) AS dozing;

-- name: topic_count
UPDATE tenure_topics SET events = events + ?2 WHERE id = ?1;

-- name: topic_names
SELECT namespace, name FROM tenure_topics WHERE ?1 IS NULL OR namespace = ?1 ORDER BY namespace, name;

-- name: topic_list
-- The age of the oldest and the newest is that of the first and the last of each slot.
SELECT t.*,
       (SELECT min(first.published_at) FROM (
            WITH RECURSIVE slots (slot) AS (SELECT 0 UNION ALL SELECT slot + 1 FROM slots WHERE slot + 1 < t.slots)
            SELECT (SELECT e.published_at FROM tenure_events e WHERE e.topic = t.id AND e.slot = s.slot
                    ORDER BY e.position, e.id LIMIT 1) AS published_at FROM slots s) first) AS oldest_at,
       (SELECT max(last.published_at) FROM (
            WITH RECURSIVE slots (slot) AS (SELECT 0 UNION ALL SELECT slot + 1 FROM slots WHERE slot + 1 < t.slots)
            SELECT (SELECT e.published_at FROM tenure_events e WHERE e.topic = t.id AND e.slot = s.slot
                    ORDER BY e.position DESC, e.id DESC LIMIT 1) AS published_at FROM slots s) last) AS newest_at,
       (SELECT json_group_array(n.name) FROM (SELECT g.name FROM tenure_groups g WHERE g.topic = t.id ORDER BY g.name) n) AS groups
FROM tenure_topics t
WHERE (?1 IS NULL OR t.namespace = ?1) AND (?2 IS NULL OR t.name = ?2)
ORDER BY t.namespace, t.name;

-- name: slot_ends
WITH RECURSIVE slots (slot) AS (SELECT 0 UNION ALL SELECT slot + 1 FROM slots WHERE slot + 1 < ?2)
SELECT s.slot, coalesce(f.position, 0) AS earliest,
       max(coalesce(f.position, 0),
           coalesce((SELECT max(e.position) FROM tenure_events e WHERE e.topic = ?1 AND e.slot = s.slot), 0)) AS latest
FROM slots s LEFT JOIN tenure_event_floors f ON f.topic = ?1 AND f.slot = s.slot
ORDER BY s.slot;

-- name: slot_before
-- The position before the first event at or after a moment; null: there is none.
WITH RECURSIVE slots (slot) AS (SELECT 0 UNION ALL SELECT slot + 1 FROM slots WHERE slot + 1 < ?2)
SELECT s.slot, (SELECT first.before FROM (
           SELECT (SELECT coalesce(max(p.position), 0) FROM tenure_events p
                   WHERE p.topic = ?1 AND p.slot = s.slot AND p.position < e.position) AS before
           FROM tenure_events e WHERE e.topic = ?1 AND e.slot = s.slot AND e.published_at >= ?3
           ORDER BY e.position, e.id LIMIT 1) first) AS position
FROM slots s
ORDER BY s.slot;

-- name: topic_delete
DELETE FROM tenure_topics WHERE id = ?1;

-- name: topic_strays
-- Events whose topic was deleted: found from topic to topic.
WITH RECURSIVE topics (topic) AS (
    SELECT min(e.topic) FROM tenure_events e
    UNION ALL SELECT (SELECT min(e.topic) FROM tenure_events e WHERE e.topic > t.topic) FROM topics t WHERE t.topic IS NOT NULL)
SELECT s.topic FROM topics s WHERE s.topic IS NOT NULL AND NOT EXISTS (SELECT 1 FROM tenure_topics t WHERE t.id = s.topic);

-- name: topic_clear
DELETE FROM tenure_events WHERE id IN (SELECT e.id FROM tenure_events e WHERE e.topic = ?1 LIMIT ?2);

-- name: topic_delete_floors
DELETE FROM tenure_event_floors WHERE topic = ?1;

-- name: topic_groups
SELECT id, name FROM tenure_groups WHERE topic = ?1 ORDER BY name;

-- name: topic_doze
INSERT INTO tenure_event_dozers (namespace, topic, session, dozed_at) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (namespace, topic, session) DO UPDATE SET dozed_at = excluded.dozed_at;

-- name: topic_wake
DELETE FROM tenure_event_dozers WHERE namespace = ?1 AND topic = ?2;

-- name: topic_doze_forget
DELETE FROM tenure_event_dozers
WHERE session NOT IN (SELECT s.id FROM tenure_sessions s WHERE s.state = 'live') OR dozed_at < ?1;
