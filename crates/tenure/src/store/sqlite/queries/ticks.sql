-- Lists are JSON parameters, because every statement costs a round trip to the thread of the connection. INDEXED BY selects the index
-- where the planner may choose a longer one.

-- name: tick_find
-- The ticks among these, [schedule_id, tick_at_ms], that already have a row: fired, skipped or overlapped.
SELECT j.key AS list_index FROM json_each(?1) j
CROSS JOIN tenure_ticks t ON t.schedule_id = j.value ->> 0 AND t.tick_at_ms = j.value ->> 1 AND t.manual = 0;

-- name: tick_put
-- One row; the Rust code repeats the values for several rows.
INSERT INTO tenure_ticks
    (schedule_id, tick_at_ms, manual, state, cause, due_at_ms, decided_at_ms, token, decided_by, event_id, task_id, run_tracked)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: tick_first_free
-- The first instant from ?2 on without a manual tick.
WITH RECURSIVE free (at_ms) AS (
    SELECT ?2
    UNION ALL
    SELECT f.at_ms + 1 FROM free f
    WHERE EXISTS (SELECT 1 FROM tenure_ticks t WHERE t.schedule_id = ?1 AND t.tick_at_ms = f.at_ms AND t.manual = 1))
SELECT max(f.at_ms) FROM free f;

-- name: tick_count_unfinished
-- The number of unfinished runs of each schedule.
SELECT j.value AS schedule_id, count(*) AS unfinished
FROM json_each(?1) j
CROSS JOIN tenure_ticks t INDEXED BY tenure_ticks_tracked ON t.schedule_id = j.value AND t.run_tracked = 1
CROSS JOIN tenure_tasks k ON k.id = t.task_id AND k.finished_at_ms IS NULL
GROUP BY j.value;

-- name: tick_end_tracking
-- Stops tracking the finished runs of these schedules.
UPDATE tenure_ticks SET run_tracked = 0
WHERE (schedule_id, tick_at_ms, manual) IN (
    SELECT t.schedule_id, t.tick_at_ms, t.manual FROM json_each(?1) j
    CROSS JOIN tenure_ticks t INDEXED BY tenure_ticks_tracked ON t.schedule_id = j.value AND t.run_tracked = 1
    WHERE NOT EXISTS (SELECT 1 FROM tenure_tasks k WHERE k.id = t.task_id AND k.finished_at_ms IS NULL));

-- name: skipped_tick_put
INSERT INTO tenure_skipped_ticks (schedule_id, last_tick_at_ms, first_tick_at_ms, tick_count, decided_at_ms, token, decided_by)
SELECT j.value ->> 0, j.value ->> 1, j.value ->> 2, j.value ->> 3, ?2, ?3, ?4 FROM json_each(?1) j
WHERE true
ON CONFLICT (schedule_id, last_tick_at_ms) DO NOTHING;

-- name: tick_list
-- Fired and overlapped ticks, and ranges of skipped ticks, each by its own index, newest first.
SELECT * FROM (
    SELECT * FROM (SELECT t.tick_at_ms, t.manual, t.state, t.cause, 1 AS tick_count, NULL AS first_tick_at_ms, t.due_at_ms, t.decided_at_ms, t.token,
                          t.decided_by, t.event_id, t.task_id
                   FROM tenure_schedules s CROSS JOIN tenure_ticks t ON t.schedule_id = s.id
                   WHERE s.namespace = ?1 AND s.name = ?2 AND t.tick_at_ms < ?3
                   ORDER BY t.tick_at_ms DESC, t.manual DESC LIMIT ?4)
    UNION ALL
    SELECT * FROM (SELECT k.last_tick_at_ms, 0, 'skipped', 'schedule', k.tick_count, k.first_tick_at_ms, k.last_tick_at_ms, k.decided_at_ms, k.token,
                          k.decided_by, NULL, NULL
                   FROM tenure_schedules s CROSS JOIN tenure_skipped_ticks k ON k.schedule_id = s.id
                   WHERE s.namespace = ?1 AND s.name = ?2 AND k.last_tick_at_ms < ?3
                   ORDER BY k.last_tick_at_ms DESC LIMIT ?4)) h
ORDER BY h.tick_at_ms DESC, h.manual DESC, h.decided_at_ms DESC LIMIT ?4;

-- name: tick_has_old
-- Whether there is anything to prune: old ticks, old ranges, or ticks of a deleted schedule.
SELECT EXISTS (SELECT 1 FROM tenure_ticks t WHERE t.decided_at_ms < ?1)
    OR EXISTS (SELECT 1 FROM tenure_skipped_ticks k WHERE k.decided_at_ms < ?1)
    OR EXISTS (SELECT 1 FROM tenure_orphaned_ticks) AS has_old;

-- name: orphaned_tick_put
INSERT INTO tenure_orphaned_ticks (schedule_id) VALUES (?1);

-- name: orphaned_tick_list
SELECT schedule_id FROM tenure_orphaned_ticks ORDER BY schedule_id LIMIT ?1;

-- name: orphaned_tick_delete
DELETE FROM tenure_orphaned_ticks WHERE schedule_id = ?1;

-- name: tick_prune
-- The oldest ticks. A tick with an unfinished run stays.
DELETE FROM tenure_ticks WHERE (schedule_id, tick_at_ms, manual) IN (
    SELECT t.schedule_id, t.tick_at_ms, t.manual FROM tenure_ticks t
    WHERE t.decided_at_ms < ?1
      AND NOT (t.run_tracked = 1 AND EXISTS (SELECT 1 FROM tenure_tasks k WHERE k.id = t.task_id AND k.finished_at_ms IS NULL))
    ORDER BY t.decided_at_ms LIMIT ?2)
RETURNING schedule_id, tick_at_ms, manual;

-- name: schedule_set_pruned_until
-- ?1: JSON array of [schedule_id, newest pruned tick].
UPDATE tenure_schedules AS s SET pruned_until_at_ms = max(coalesce(s.pruned_until_at_ms, v.value ->> 1), v.value ->> 1)
FROM json_each(?1) v
WHERE s.id = v.value ->> 0;

-- name: skipped_tick_prune
DELETE FROM tenure_skipped_ticks WHERE (schedule_id, last_tick_at_ms) IN (
    SELECT k.schedule_id, k.last_tick_at_ms FROM tenure_skipped_ticks k WHERE k.decided_at_ms < ?1 ORDER BY k.decided_at_ms LIMIT ?2);

-- name: tick_delete_schedule
DELETE FROM tenure_ticks WHERE (schedule_id, tick_at_ms, manual) IN (
    SELECT t.schedule_id, t.tick_at_ms, t.manual FROM tenure_ticks t WHERE t.schedule_id = ?1 LIMIT ?2);

-- name: skipped_tick_delete_schedule
DELETE FROM tenure_skipped_ticks WHERE (schedule_id, last_tick_at_ms) IN (
    SELECT k.schedule_id, k.last_tick_at_ms FROM tenure_skipped_ticks k WHERE k.schedule_id = ?1 LIMIT ?2);
