-- name: group_find
SELECT t.id AS topic_id, t.partitions, g.id, g.max_attempts, g.initial_backoff_ms, g.max_backoff_ms, g.paused_by, g.paused_reason,
       g.paused_at_ms, g.active_since_at_ms
FROM tenure_topics t LEFT JOIN tenure_consumer_groups g ON g.topic_id = t.id AND g.name = ?3
WHERE t.namespace = ?1 AND t.name = ?2;

-- name: group_count
SELECT count(*) AS group_count FROM tenure_consumer_groups WHERE topic_id = ?1;

-- name: group_set
INSERT INTO tenure_consumer_groups (topic_id, name, max_attempts, initial_backoff_ms, max_backoff_ms, created_at_ms)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (topic_id, name) DO UPDATE SET
    max_attempts = excluded.max_attempts, initial_backoff_ms = excluded.initial_backoff_ms, max_backoff_ms = excluded.max_backoff_ms
RETURNING id;

-- name: group_set_active_since
-- Sets the start of a period with members, if the group has none yet.
UPDATE tenure_consumer_groups SET active_since_at_ms = ?2
WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM tenure_group_members m WHERE m.group_id = ?1);

-- name: group_pause
UPDATE tenure_consumer_groups SET paused_by = ?2, paused_reason = ?3, paused_at_ms = ?4 WHERE id = ?1 AND paused_at_ms IS NULL;

-- name: group_resume
UPDATE tenure_consumer_groups SET paused_by = NULL, paused_reason = NULL, paused_at_ms = NULL WHERE id = ?1 AND paused_at_ms IS NOT NULL;

-- name: group_webhook_set
INSERT INTO tenure_group_webhooks (group_id, url, secret, timeout_ms) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (group_id) DO UPDATE SET url = excluded.url, secret = excluded.secret, timeout_ms = excluded.timeout_ms;

-- name: group_webhook_delete
DELETE FROM tenure_group_webhooks WHERE group_id = ?1;

-- name: group_webhook_list
SELECT t.namespace, t.name AS topic_name, g.name, w.url AS webhook_url, w.secret AS webhook_secret, w.timeout_ms AS webhook_timeout_ms
FROM tenure_group_webhooks w JOIN tenure_consumer_groups g ON g.id = w.group_id JOIN tenure_topics t ON t.id = g.topic_id
ORDER BY t.namespace, t.name, g.name;

-- name: group_names
SELECT t.namespace, t.name AS topic_name, g.name FROM tenure_consumer_groups g JOIN tenure_topics t ON t.id = g.topic_id
WHERE ?1 IS NULL OR t.namespace = ?1 ORDER BY t.namespace, t.name, g.name;

-- name: group_list
SELECT g.*, t.namespace, t.name AS topic_name, w.url AS webhook_url, w.secret AS webhook_secret, w.timeout_ms AS webhook_timeout_ms,
       (SELECT count(*) FROM tenure_parked_events a WHERE a.group_id = g.id AND a.dead = 1) AS dead_letter_count,
       (SELECT count(*) FROM tenure_parked_events a WHERE a.group_id = g.id) AS parked_and_dead_count
FROM tenure_consumer_groups g JOIN tenure_topics t ON t.id = g.topic_id
LEFT JOIN tenure_group_webhooks w ON w.group_id = g.id
WHERE (?1 IS NULL OR t.namespace = ?1) AND (?2 IS NULL OR t.name = ?2) AND (?3 IS NULL OR g.name = ?3)
ORDER BY t.namespace, t.name, g.name;

-- name: group_partitions
-- The partition leases of groups with their lag, which is counted up to ?2 events.
SELECT h.group_id, h.partition, h.token, CASE WHEN s.state = 'live' THEN h.session END AS session, h.last_member, h.committed_offset,
       max(coalesce(f.start_offset, 0),
           coalesce((SELECT max(e.event_offset) FROM tenure_events e WHERE e.topic_id = g.topic_id AND e.partition = h.partition), 0)) AS end_offset,
       (SELECT count(*) FROM (SELECT 1 FROM tenure_events e WHERE e.topic_id = g.topic_id AND e.partition = h.partition AND e.event_offset > h.committed_offset
                              LIMIT ?2)) AS lag_events,
       (SELECT e.published_at_ms FROM tenure_events e WHERE e.topic_id = g.topic_id AND e.partition = h.partition AND e.event_offset > h.committed_offset
        ORDER BY e.event_offset, e.id LIMIT 1) AS oldest_unread_at_ms
FROM json_each(?1) j CROSS JOIN tenure_consumer_groups g ON g.id = j.value
CROSS JOIN tenure_partition_leases h ON h.group_id = g.id
LEFT JOIN tenure_sessions s ON s.id = h.session
LEFT JOIN tenure_partition_start_offsets f ON f.topic_id = g.topic_id AND f.partition = h.partition
ORDER BY h.group_id, h.partition;

-- name: group_delete
DELETE FROM tenure_consumer_groups WHERE id = ?1;

-- name: group_delete_partition_leases
DELETE FROM tenure_partition_leases WHERE group_id = ?1;

-- name: group_delete_members
DELETE FROM tenure_group_members WHERE group_id = ?1;

-- name: group_delete_processed_events
DELETE FROM tenure_processed_events WHERE group_id = ?1;

-- name: group_delete_parked_events
DELETE FROM tenure_parked_events WHERE group_id = ?1;

-- name: member_prune
DELETE FROM tenure_group_members
WHERE group_id = ?1 AND session NOT IN (SELECT s.id FROM tenure_sessions s WHERE s.state = 'live');

-- name: member_put
INSERT INTO tenure_group_members (group_id, session, name, joined_at_ms) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (group_id, session) DO UPDATE SET name = excluded.name WHERE tenure_group_members.name <> excluded.name;

-- name: member_leave
DELETE FROM tenure_group_members WHERE group_id = ?1 AND session = ?2;

-- name: member_list
SELECT m.group_id, m.session, m.name
FROM json_each(?1) j CROSS JOIN tenure_group_members m ON m.group_id = j.value
CROSS JOIN tenure_sessions s ON s.id = m.session AND s.state = 'live'
ORDER BY m.group_id, m.session;

-- name: group_count_rebalanced
UPDATE tenure_consumer_groups SET rebalanced_partition_count = rebalanced_partition_count + ?2 WHERE id = ?1;
