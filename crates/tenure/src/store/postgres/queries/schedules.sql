-- name: schedule_due
-- $1 limit. See tenure.due_schedules.
SELECT d.namespace, d.name, d.version, d.definition, d.next_tick_at_ms, d.last_tick_at_ms, d.consecutive_failures,
    d.unfinished, d.due_at_ms,
       d.store_now_at_ms, d.schedule_id
FROM tenure.due_schedules($1) d;

-- name: schedule_limit_transaction_time
-- $1 session of the scheduler. The rest of this message takes no longer than its lease, as after a guard.
SELECT tenure.limit_transaction_time(s.lease_ms) FROM tenure.sessions s WHERE s.id = $1;

-- name: schedule_fire
-- $1 session of the scheduler, $2 its token; firings, ticks, events and tasks: see tenure.fire_schedules.
SELECT to_json(f.stale)::text AS stale, to_json(f.rejected)::text AS rejected,
    to_json(f.rejected_events)::text AS rejected_events,
       to_json(f.rejected_max_bytes)::text AS rejected_max_bytes
FROM tenure.fire_schedules($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22,
    $23, $24, $25,
                 $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36) f;

-- name: schedule_fire_manually
-- $1 namespace, $2 name, $3 version, $4 whether it is a trigger, $5 dry run, $6 requested by; ticks, events and tasks: see
-- tenure.fire_manually.
SELECT f.index, f.outcome, f.event_id, f.task_id
FROM tenure.fire_manually($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22,
    $23,
                         $24, $25) f ORDER BY f.index;

-- name: schedule_list
-- $1 namespace, $2 source, $3 and $4 after this namespace and name; null: any. $5 limit; 0: all. As JSON in the form that
-- the library reads.
SELECT tenure.schedule_json(s)::text AS schedule FROM tenure.schedules s
WHERE ($1::text IS NULL OR s.namespace = $1) AND ($2::text IS NULL OR s.source = $2)
  AND ($3::text IS NULL OR (s.namespace, s.name) > ($3, $4))
ORDER BY s.namespace, s.name LIMIT nullif($5::bigint, 0);

-- name: schedule_get
-- $1 namespace, $2 name.
SELECT tenure.schedule_json(s)::text AS schedule FROM tenure.schedules s WHERE s.namespace = $1 AND s.name = $2;

-- name: schedule_state_get
-- $1 namespace, $2 name. The input of a change. `now_at_ms`: a time for a trigger that no other trigger has.
SELECT p.version, s.definition::text AS definition, p.next_tick_at_ms, p.last_tick_at_ms, p.paused_at IS NOT NULL AS paused,
    s.source,
       e.secret, greatest(tenure.now_unix_ms(), 1 + (
           SELECT t.tick_at_ms FROM tenure.ticks t WHERE t.schedule_id = s.id AND t.tick_at_ms >= tenure.now_unix_ms()
               AND t.manual
           ORDER BY t.tick_at_ms DESC LIMIT 1)) AS now_at_ms
FROM tenure.schedules s JOIN tenure.schedule_state p ON p.schedule_id = s.id
LEFT JOIN tenure.schedule_webhook_secrets e ON e.schedule_id = s.id
WHERE s.namespace = $1 AND s.name = $2;

-- name: schedule_clock
SELECT tenure.now_unix_ms() AS now_at_ms;

-- name: schedule_topic_limit
-- $1 namespace, $2 topic. The maximum payload. No row: the topic does not exist.
SELECT t.max_payload_bytes FROM tenure.topics t WHERE t.namespace = $1 AND t.name = $2;

-- name: schedule_set
-- $1 namespace, $2 name, $3 version, $4 next tick, $5 last tick and $6 pause as read, $7 definition, $8 whether runs are
-- tracked, $9 next tick, $10 last tick, $11 due time, $12 secret, $13 source, $14 updated by, $15 time of the decision (ms).
-- See tenure.set_schedule.
SELECT tenure.set_schedule($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) AS version;

-- name: schedule_delete
-- $1 namespace, $2 name, $3 version, or null for any. See tenure.delete_schedule.
SELECT tenure.delete_schedule($1, $2, $3) AS deleted;

-- name: schedule_pause
-- $1 namespace, $2 name, $3 paused by, $4 reason, $5 time (ms). An existing pause stays. No row: the schedule does not
-- exist.
WITH found AS MATERIALIZED (
    SELECT s.id FROM tenure.schedules s WHERE s.namespace = $1 AND s.name = $2
), paused AS (
    UPDATE tenure.schedule_state p SET paused_by = $3, paused_reason = $4, paused_at = tenure.from_unix_ms($5), due_at_ms = NULL
    FROM found f WHERE p.schedule_id = f.id AND p.paused_at IS NULL RETURNING p.schedule_id
)
SELECT EXISTS (SELECT FROM paused) AS changed, (SELECT tenure.notify_scheduler() FROM paused) FROM found;

-- name: schedule_resume
-- $1 namespace, $2 name, $3 version, $4 next tick and $5 last tick as read, $6 due time. A row: the stored state was as
-- read.
UPDATE tenure.schedule_state p SET paused_by = NULL, paused_reason = NULL, paused_at = NULL, due_at_ms = $6,
    consecutive_failures = 0
FROM tenure.schedules s
WHERE s.namespace = $1 AND s.name = $2 AND p.schedule_id = s.id AND p.version = $3 AND p.next_tick_at_ms IS NOT DISTINCT FROM $4
  AND p.last_tick_at_ms IS NOT DISTINCT FROM $5 AND p.paused_at IS NOT NULL
RETURNING tenure.notify_scheduler();

-- name: schedule_webhook_secret_get
-- $1 namespace, $2 name.
SELECT e.secret FROM tenure.schedules s JOIN tenure.schedule_webhook_secrets e ON e.schedule_id = s.id
    WHERE s.namespace = $1 AND s.name = $2;

-- name: schedule_stats
-- One row for each namespace. As JSON in the form that the library reads.
SELECT json_build_object(
    'namespace', s.namespace, 'schedule_count', count(*), 'paused_count', count(p.paused_at), 'failing_count',
        count(p.last_error),
    'overdue_count', count(*) FILTER (WHERE p.due_at_ms <= c.now_at_ms),
    'max_overdue_ms', coalesce(max(c.now_at_ms - p.due_at_ms) FILTER (WHERE p.due_at_ms <= c.now_at_ms), 0),
    'last_fired_at_ms', max(p.last_fired_at_ms))::text AS stats
FROM (SELECT tenure.now_unix_ms() AS now_at_ms OFFSET 0) c CROSS JOIN tenure.schedules s
    JOIN tenure.schedule_state p ON p.schedule_id = s.id
GROUP BY s.namespace ORDER BY s.namespace;
