-- Lists go in as JSON, or as repeated values where they are long: every statement is a trip to the connection's thread.

-- name: schedule_due
-- The longest due first. One more than wanted shows whether there are more, and since when.
SELECT s.id, s.namespace, s.name, s.version, s.next_at, s.last_at, s.due_at, s.strikes, s.definition
FROM tenure_schedules s
WHERE s.due_at <= ?1 AND s.next_at IS NOT NULL
ORDER BY s.due_at, s.id LIMIT ?2;

-- name: schedule_next_due
SELECT min(s.due_at) FROM tenure_schedules s WHERE s.due_at > ?1;

-- name: scheduler_leader
-- Its name, if it leads. Within a transaction that has the write lock nobody takes the lease before the commit.
SELECT coalesce((SELECT c.id FROM tenure_candidates c
                 WHERE c.namespace = 'tenure' AND c.election = 'scheduler' AND c.session = l.session),
                (SELECT s.name FROM tenure_sessions s WHERE s.id = l.session), '') AS name
FROM tenure_leases l
WHERE l.namespace = 'tenure' AND l.name = 'scheduler' AND l.slot = 0 AND l.session = ?1 AND l.token = ?2;

-- name: schedule_stand
-- Those of these that stand as they were seen: number, namespace, name, version, next tick, the first that fires. `ahead`: that one,
-- or one after it, was decided about before, as when a clock was put back and the schedule defined anew.
-- Of one, or of many: its values are repeated.
SELECT v.column1 AS place, s.id,
       EXISTS (SELECT 1 FROM tenure_ticks t WHERE t.schedule = s.id AND t.tick_at >= v.column6 AND t.by_hand = 0) AS ahead
FROM (VALUES (?, ?, ?, ?, ?, ?)) v
CROSS JOIN tenure_schedules s ON s.namespace = v.column2 AND s.name = v.column3
WHERE s.version = v.column4 AND s.next_at = v.column5 AND s.paused_at IS NULL;

-- name: schedule_fired
-- How far each is, how many of its ticks fired, were skipped and did nothing, and when, if one fired. Its values are repeated.
UPDATE tenure_schedules AS s
SET next_at = v.column2, last_at = v.column3, due_at = v.column4, fired = s.fired + v.column5, skipped = s.skipped + v.column6,
    overlapped = s.overlapped + v.column7, last_fired_at = coalesce(v.column8, s.last_fired_at), strikes = 0, trouble = NULL
FROM (VALUES (?, ?, ?, ?, ?, ?, ?, ?)) v
WHERE s.id = v.column1;

-- name: schedule_put_off
UPDATE tenure_schedules AS s
SET due_at = c.value ->> 1, trouble = c.value ->> 2, strikes = s.strikes + 1
FROM json_each(?1) c
WHERE s.id = c.value ->> 0;

-- name: schedule_hand_fired
UPDATE tenure_schedules SET fired = fired + ?2, last_fired_at = ?3 WHERE id = ?1;

-- name: schedule_show
SELECT * FROM tenure_schedules WHERE namespace = ?1 AND name = ?2;

-- name: schedule_list
-- No name is empty, so all come after that.
SELECT s.* FROM tenure_schedules s
WHERE (?1 IS NULL OR s.namespace = ?1) AND (?2 IS NULL OR s.source = ?2)
  AND (s.namespace, s.name) > (coalesce(?3, ''), coalesce(?4, ''))
ORDER BY s.namespace, s.name LIMIT ?5;

-- name: schedule_make
INSERT INTO tenure_schedules
    (namespace, name, version, next_at, last_at, due_at, created_at, updated_at, updated_by, source, secret, definition)
VALUES (?1, ?2, (SELECT f.version + 1 FROM tenure_schedule_floor f), ?3, ?4, ?5, ?6, ?6, ?7, ?8, ?9, ?10)
RETURNING version;

-- name: schedule_change
-- Whatever kept it from firing may be gone with it.
UPDATE tenure_schedules
SET version = version + 1, next_at = ?2, last_at = ?3, due_at = ?4, updated_at = ?5, updated_by = ?6, source = ?7, secret = ?8,
    definition = ?9, strikes = 0, trouble = NULL
WHERE id = ?1
RETURNING version;

-- name: schedule_pause
UPDATE tenure_schedules SET paused_by = ?2, paused_reason = ?3, paused_at = ?4, due_at = NULL WHERE id = ?1;

-- name: schedule_resume
UPDATE tenure_schedules
SET paused_by = NULL, paused_reason = NULL, paused_at = NULL, due_at = ?2, strikes = 0
WHERE id = ?1;

-- name: schedule_delete
DELETE FROM tenure_schedules WHERE id = ?1;

-- name: schedule_floor
UPDATE tenure_schedule_floor SET version = max(version, ?1);

-- name: schedule_secret
SELECT secret FROM tenure_schedules WHERE namespace = ?1 AND name = ?2;

-- name: schedule_counts
SELECT s.namespace, count(*) AS schedules, count(s.paused_at) AS paused, count(s.trouble) AS troubled,
       count(*) FILTER (WHERE s.due_at <= ?1) AS overdue, min(s.due_at) AS first_due_at, max(s.last_fired_at) AS last_fired_at
FROM tenure_schedules s
GROUP BY s.namespace ORDER BY s.namespace;
