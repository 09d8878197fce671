-- name: group_find
SELECT t.id AS topic, t.slots, g.id, g.max_attempts, g.backoff_first_ms, g.backoff_most_ms, g.paused_by, g.paused_reason,
       g.paused_at, g.gathered_at
FROM tenure_topics t LEFT JOIN tenure_groups g ON g.topic = t.id AND g.name = ?3
WHERE t.namespace = ?1 AND t.name = ?2;

-- name: group_count
SELECT count(*) AS groups FROM tenure_groups WHERE topic = ?1;

-- name: group_set
INSERT INTO tenure_groups (topic, name, max_attempts, backoff_first_ms, backoff_most_ms, created_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (topic, name) DO UPDATE SET
    max_attempts = excluded.max_attempts, backoff_first_ms = excluded.backoff_first_ms, backoff_most_ms = excluded.backoff_most_ms
RETURNING id;

-- name: group_gather
-- Nobody is there yet.
UPDATE tenure_groups SET gathered_at = ?2
WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM tenure_members m WHERE m.of_group = ?1);

-- name: group_pause
UPDATE tenure_groups SET paused_by = ?2, paused_reason = ?3, paused_at = ?4 WHERE id = ?1 AND paused_at IS NULL;

-- name: group_resume
UPDATE tenure_groups SET paused_by = NULL, paused_reason = NULL, paused_at = NULL WHERE id = ?1 AND paused_at IS NOT NULL;

-- name: group_push
UPDATE tenure_groups SET push_url = ?2, push_secret = ?3, push_timeout_ms = ?4 WHERE id = ?1;

-- name: group_pushes
SELECT t.namespace, t.name AS topic_name, g.name, g.push_url, g.push_secret, g.push_timeout_ms
FROM tenure_groups g JOIN tenure_topics t ON t.id = g.topic
WHERE g.push_url IS NOT NULL
ORDER BY t.namespace, t.name, g.name;

-- name: group_names
SELECT t.namespace, t.name AS topic_name, g.name FROM tenure_groups g JOIN tenure_topics t ON t.id = g.topic
WHERE ?1 IS NULL OR t.namespace = ?1 ORDER BY t.namespace, t.name, g.name;

-- name: group_list
SELECT g.*, t.namespace, t.name AS topic_name,
       (SELECT count(*) FROM tenure_event_asides a WHERE a.of_group = g.id AND a.dead = 1) AS dead,
       (SELECT count(*) FROM tenure_event_asides a WHERE a.of_group = g.id) AS aside_and_dead
FROM tenure_groups g JOIN tenure_topics t ON t.id = g.topic
WHERE (?1 IS NULL OR t.namespace = ?1) AND (?2 IS NULL OR t.name = ?2) AND (?3 IS NULL OR g.name = ?3)
ORDER BY t.namespace, t.name, g.name;

-- name: group_slots
-- The shares of groups, each with how far it is behind: counted up to a limit.
SELECT h.of_group, h.slot, h.token, CASE WHEN s.state = 'live' THEN h.session END AS session, h.last, h.position,
       max(coalesce(f.position, 0),
           coalesce((SELECT max(e.position) FROM tenure_events e WHERE e.topic = g.topic AND e.slot = h.slot), 0)) AS latest,
       (SELECT count(*) FROM (SELECT 1 FROM tenure_events e WHERE e.topic = g.topic AND e.slot = h.slot AND e.position > h.position
                              LIMIT ?2)) AS lag,
       (SELECT e.published_at FROM tenure_events e WHERE e.topic = g.topic AND e.slot = h.slot AND e.position > h.position
        ORDER BY e.position, e.id LIMIT 1) AS waits_since
FROM json_each(?1) j CROSS JOIN tenure_groups g ON g.id = j.value
CROSS JOIN tenure_shares h ON h.of_group = g.id
LEFT JOIN tenure_sessions s ON s.id = h.session
LEFT JOIN tenure_event_floors f ON f.topic = g.topic AND f.slot = h.slot
ORDER BY h.of_group, h.slot;

-- name: group_delete
DELETE FROM tenure_groups WHERE id = ?1;

-- name: group_delete_shares
DELETE FROM tenure_shares WHERE of_group = ?1;

-- name: group_delete_members
DELETE FROM tenure_members WHERE of_group = ?1;

-- name: group_delete_done
DELETE FROM tenure_event_done WHERE of_group = ?1;

-- name: group_delete_asides
DELETE FROM tenure_event_asides WHERE of_group = ?1;

-- name: member_sweep
DELETE FROM tenure_members
WHERE of_group = ?1 AND session NOT IN (SELECT s.id FROM tenure_sessions s WHERE s.state = 'live');

-- name: member_put
INSERT INTO tenure_members (of_group, session, name, joined_at) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (of_group, session) DO UPDATE SET name = excluded.name WHERE tenure_members.name <> excluded.name;

-- name: member_leave
DELETE FROM tenure_members WHERE of_group = ?1 AND session = ?2;

-- name: member_list
SELECT m.of_group, m.session, m.name
FROM json_each(?1) j CROSS JOIN tenure_members m ON m.of_group = j.value
CROSS JOIN tenure_sessions s ON s.id = m.session AND s.state = 'live'
ORDER BY m.of_group, m.session;
