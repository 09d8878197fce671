-- name: group_list
-- $1 namespace, or null for all. As JSON in the form that the library reads.
SELECT tenure.group_json(g)::text AS group_json FROM tenure.consumer_groups g JOIN tenure.topics t ON t.id = g.topic_id
WHERE $1::text IS NULL OR t.namespace = $1
ORDER BY t.namespace, t.name, g.name;

-- name: group_names
-- $1 namespace, or null for all.
SELECT t.namespace, t.name AS topic, g.name FROM tenure.consumer_groups g JOIN tenure.topics t ON t.id = g.topic_id
WHERE $1::text IS NULL OR t.namespace = $1 ORDER BY t.namespace, t.name, g.name;

-- name: group_get
-- $1 namespace, $2 topic, $3 name.
SELECT tenure.group_json(g)::text AS group_json FROM tenure.consumer_groups g WHERE g.id = tenure.find_group($1, $2, $3);

-- name: group_id
-- $1 namespace, $2 topic, $3 name. Raises TN014 if the group does not exist.
SELECT tenure.require_group($1, $2, $3) AS id;

-- name: group_join
-- $1 namespace, $2 topic, $3 name, $4 session, $5 member, $6 start, $7 its offset or time. Null: the session has ended.
SELECT tenure.join_group($1, $2, $3, $4, $5, $6, $7) AS id;

-- name: group_leave
-- $1 namespace, $2 topic, $3 name, $4 session.
SELECT tenure.leave_group(tenure.find_group($1, $2, $3), $4);

-- name: group_assignment_get
-- $1 namespace, $2 topic, $3 name. See tenure.group_assignment_json.
SELECT tenure.group_assignment_json(tenure.find_group($1, $2, $3))::text AS assignment;

-- name: group_set
-- $1 namespace, $2 topic, $3 name, $4 attempts, $5 initial and $6 maximum backoff in ms, $7 start, $8 its offset or time.
WITH ensured AS MATERIALIZED (
    SELECT m.id, m.created FROM tenure.ensure_group($1, $2, $3, $4, $5, $6, $7, $8) m
), updated AS (
    UPDATE tenure.consumer_groups g SET max_attempts = $4, initial_backoff_ms = $5, max_backoff_ms = $6
    FROM ensured WHERE g.id = ensured.id AND NOT ensured.created RETURNING g.id
)
SELECT ensured.created, (SELECT count(tenure.notify_group(updated.id)) FROM updated) FROM ensured;

-- name: group_delete
-- $1 namespace, $2 topic, $3 name. `members`: number of live members, because of which the group stays. No row: the group
-- does not exist.
SELECT d.members FROM tenure.delete_group(tenure.find_group($1, $2, $3)) d WHERE d.existed;

-- name: group_pause
-- $1 group id, $2 paused by, $3 reason, $4 time (ms). A row: it was not paused.
WITH paused AS (
    UPDATE tenure.consumer_groups SET paused_by = $2, paused_reason = $3, paused_at = tenure.from_unix_ms($4)
    WHERE id = $1 AND paused_at IS NULL RETURNING id
)
SELECT tenure.notify_group(p.id) FROM paused p;

-- name: group_resume
-- $1 group id. A row: it was paused.
WITH resumed AS (
    UPDATE tenure.consumer_groups SET paused_by = NULL, paused_reason = NULL, paused_at = NULL
    WHERE id = $1 AND paused_at IS NOT NULL RETURNING id
)
SELECT tenure.notify_group(r.id) FROM resumed r;

-- name: group_reset
-- $1 group id, $2 start, $3 its offset or time, $4 partition, $5 dry run. See tenure.reset_offsets.
SELECT r.partition, r.from_offset, r.to_offset FROM tenure.reset_offsets($1, $2, $3, $4, $5) r ORDER BY r.partition;

-- name: group_notify
-- $1 group id.
SELECT tenure.notify_group($1);

-- name: group_webhook_set
-- $1 group id, $2 URL, $3 secret, $4 timeout of a response (ms).
INSERT INTO tenure.group_webhooks (group_id, url, secret, timeout_ms) VALUES ($1, $2, $3, $4)
ON CONFLICT (group_id) DO UPDATE SET url = EXCLUDED.url, secret = EXCLUDED.secret, timeout_ms = EXCLUDED.timeout_ms
RETURNING tenure.notify_group(group_id);

-- name: group_webhook_delete
-- $1 group id.
DELETE FROM tenure.group_webhooks WHERE group_id = $1 RETURNING tenure.notify_group(group_id);

-- name: group_webhook_list
SELECT t.namespace, t.name AS topic, g.name, p.url, p.secret, p.timeout_ms
FROM tenure.group_webhooks p JOIN tenure.consumer_groups g ON g.id = p.group_id JOIN tenure.topics t ON t.id = g.topic_id
ORDER BY t.namespace, t.name, g.name;
