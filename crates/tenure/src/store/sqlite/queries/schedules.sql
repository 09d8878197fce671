-- Lists are JSON parameters or repeated values, because every statement costs a round trip to the thread of the connection.

-- name: schedule_due
-- The earliest due first. The caller asks for one more than it needs, to learn whether there are more and when they were due.
SELECT s.id, s.namespace, s.name, s.version, s.next_tick_at_ms, s.last_tick_at_ms, s.due_at_ms, s.consecutive_failures, s.definition
FROM tenure_schedules s
WHERE s.due_at_ms <= ?1 AND s.next_tick_at_ms IS NOT NULL
ORDER BY s.due_at_ms, s.id LIMIT ?2;

-- name: schedule_next_due
SELECT min(s.due_at_ms) FROM tenure_schedules s WHERE s.due_at_ms > ?1;

-- name: scheduler_leader
-- The name of the scheduler, if the session holds the lease. A transaction with the write lock keeps the lease until it commits.
SELECT coalesce((SELECT c.name FROM tenure_candidates c
                 WHERE c.namespace = 'tenure' AND c.election = 'scheduler' AND c.session = l.session),
                (SELECT s.name FROM tenure_sessions s WHERE s.id = l.session), '') AS name
FROM tenure_leases l
WHERE l.namespace = 'tenure' AND l.election = 'scheduler' AND l.slot = 0 AND l.session = ?1 AND l.token = ?2;

-- name: schedule_state_get
-- The schedules among these that are unchanged since they were read. Values: index, namespace, name, version, next
-- tick, first tick that fires. has_later_ticks: that tick or a later one already has a row, for example because a
-- clock was set back and the schedule was defined again. One row; the Rust code repeats the values for several
-- schedules.
SELECT v.column1 AS list_index, s.id,
       EXISTS (SELECT 1 FROM tenure_ticks t WHERE t.schedule_id = s.id AND t.tick_at_ms >= v.column6 AND t.manual = 0) AS has_later_ticks
FROM (VALUES (?, ?, ?, ?, ?, ?)) v
CROSS JOIN tenure_schedules s ON s.namespace = v.column2 AND s.name = v.column3
WHERE s.version = v.column4 AND s.next_tick_at_ms = v.column5 AND s.paused_at_ms IS NULL;

-- name: schedule_advance
-- Values: schedule, next and last tick, due instant, numbers of fired, skipped and overlapped ticks, and the instant if a tick fired. One
-- row; the Rust code repeats the values for several schedules.
UPDATE tenure_schedules AS s
SET next_tick_at_ms = v.column2, last_tick_at_ms = v.column3, due_at_ms = v.column4, fired_count = s.fired_count + v.column5,
    skipped_count = s.skipped_count + v.column6, overlapped_count = s.overlapped_count + v.column7,
    last_fired_at_ms = coalesce(v.column8, s.last_fired_at_ms), consecutive_failures = 0, last_error = NULL
FROM (VALUES (?, ?, ?, ?, ?, ?, ?, ?)) v
WHERE s.id = v.column1;

-- name: schedule_postpone
UPDATE tenure_schedules AS s
SET due_at_ms = c.value ->> 1, last_error = c.value ->> 2, consecutive_failures = s.consecutive_failures + 1
FROM json_each(?1) c
WHERE s.id = c.value ->> 0;

-- name: schedule_fire_manually
UPDATE tenure_schedules SET fired_count = fired_count + ?2, last_fired_at_ms = ?3 WHERE id = ?1;

-- name: schedule_get
SELECT s.*, w.secret FROM tenure_schedules s LEFT JOIN tenure_schedule_webhook_secrets w ON w.schedule_id = s.id
WHERE s.namespace = ?1 AND s.name = ?2;

-- name: schedule_list
-- No name is empty, so every schedule follows ('', '').
SELECT s.*, w.secret FROM tenure_schedules s LEFT JOIN tenure_schedule_webhook_secrets w ON w.schedule_id = s.id
WHERE (?1 IS NULL OR s.namespace = ?1) AND (?2 IS NULL OR s.source = ?2)
  AND (s.namespace, s.name) > (coalesce(?3, ''), coalesce(?4, ''))
ORDER BY s.namespace, s.name LIMIT ?5;

-- name: schedule_create
INSERT INTO tenure_schedules
    (namespace, name, version, next_tick_at_ms, last_tick_at_ms, due_at_ms, created_at_ms, updated_at_ms, updated_by, source, definition)
VALUES (?1, ?2, (SELECT v.max_deleted_version + 1 FROM tenure_schedule_versions v), ?3, ?4, ?5, ?6, ?6, ?7, ?8, ?9)
RETURNING id, version;

-- name: schedule_update
-- The change may have removed the cause of earlier failures.
UPDATE tenure_schedules
SET version = version + 1, next_tick_at_ms = ?2, last_tick_at_ms = ?3, due_at_ms = ?4, updated_at_ms = ?5, updated_by = ?6,
    source = ?7, definition = ?8, consecutive_failures = 0, last_error = NULL
WHERE id = ?1
RETURNING version;

-- name: schedule_pause
UPDATE tenure_schedules SET paused_by = ?2, paused_reason = ?3, paused_at_ms = ?4, due_at_ms = NULL WHERE id = ?1;

-- name: schedule_resume
UPDATE tenure_schedules
SET paused_by = NULL, paused_reason = NULL, paused_at_ms = NULL, due_at_ms = ?2, consecutive_failures = 0
WHERE id = ?1;

-- name: schedule_delete
DELETE FROM tenure_schedules WHERE id = ?1;

-- name: schedule_max_deleted_version
UPDATE tenure_schedule_versions SET max_deleted_version = max(max_deleted_version, ?1);

-- name: schedule_webhook_secret_get
SELECT w.secret FROM tenure_schedules s JOIN tenure_schedule_webhook_secrets w ON w.schedule_id = s.id
WHERE s.namespace = ?1 AND s.name = ?2;

-- name: schedule_webhook_secret_set
INSERT INTO tenure_schedule_webhook_secrets (schedule_id, secret) VALUES (?1, ?2)
ON CONFLICT (schedule_id) DO UPDATE SET secret = excluded.secret;

-- name: schedule_webhook_secret_delete
DELETE FROM tenure_schedule_webhook_secrets WHERE schedule_id = ?1;

-- name: schedule_stats
SELECT s.namespace, count(*) AS schedule_count, count(s.paused_at_ms) AS paused_count, count(s.last_error) AS failing_count,
       count(*) FILTER (WHERE s.due_at_ms <= ?1) AS overdue_count, min(s.due_at_ms) AS first_due_at_ms, max(s.last_fired_at_ms) AS last_fired_at_ms
FROM tenure_schedules s
GROUP BY s.namespace ORDER BY s.namespace;
