-- Lists go in as JSON, since every statement is a trip to the connection's thread. Which index is said where there are two, and only
-- one of them is short.

-- name: tick_known
-- Which of these were decided about: schedule and tick.
SELECT j.key AS place FROM json_each(?1) j
CROSS JOIN tenure_ticks t ON t.schedule = j.value ->> 0 AND t.tick_at = j.value ->> 1 AND t.by_hand = 0;

-- name: tick_put
-- Of one row, or of many: its values are repeated.
INSERT INTO tenure_ticks
    (schedule, tick_at, by_hand, state, cause, due_at, decided_at, token, decided_by, event, task, tracked)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: tick_free
-- The first instant from this on at which nobody has fired it by hand.
WITH RECURSIVE free (at) AS (
    SELECT ?2
    UNION ALL
    SELECT f.at + 1 FROM free f
    WHERE EXISTS (SELECT 1 FROM tenure_ticks t WHERE t.schedule = ?1 AND t.tick_at = f.at AND t.by_hand = 1))
SELECT max(f.at) FROM free f;

-- name: tick_load
-- How many runs of each are not over.
SELECT j.value AS schedule, count(*) AS unfinished
FROM json_each(?1) j
CROSS JOIN tenure_ticks t INDEXED BY tenure_ticks_tracked ON t.schedule = j.value AND t.tracked = 1
CROSS JOIN tenure_tasks k ON k.id = t.task AND k.finished_at IS NULL
GROUP BY j.value;

-- name: tick_over
-- Of these schedules, the runs that are over need not be looked at again.
UPDATE tenure_ticks SET tracked = 0
WHERE (schedule, tick_at, by_hand) IN (
    SELECT t.schedule, t.tick_at, t.by_hand FROM json_each(?1) j
    CROSS JOIN tenure_ticks t INDEXED BY tenure_ticks_tracked ON t.schedule = j.value AND t.tracked = 1
    WHERE NOT EXISTS (SELECT 1 FROM tenure_tasks k WHERE k.id = t.task AND k.finished_at IS NULL));

-- name: skip_put
INSERT INTO tenure_tick_skips (schedule, last_at, first_at, ticks, decided_at, token, decided_by)
SELECT j.value ->> 0, j.value ->> 1, j.value ->> 2, j.value ->> 3, ?2, ?3, ?4 FROM json_each(?1) j
WHERE true
ON CONFLICT (schedule, last_at) DO NOTHING;

-- name: tick_list
-- Those that fired or did nothing, and of those that were skipped the ranges. Each from its own index, the newest first.
SELECT * FROM (
    SELECT * FROM (SELECT t.tick_at, t.by_hand, t.state, t.cause, 1 AS ticks, NULL AS first_at, t.due_at, t.decided_at, t.token,
                          t.decided_by, t.event, t.task
                   FROM tenure_schedules s CROSS JOIN tenure_ticks t ON t.schedule = s.id
                   WHERE s.namespace = ?1 AND s.name = ?2 AND t.tick_at < ?3
                   ORDER BY t.tick_at DESC, t.by_hand DESC LIMIT ?4)
    UNION ALL
    SELECT * FROM (SELECT k.last_at, 0, 'skipped', 'clock', k.ticks, k.first_at, k.last_at, k.decided_at, k.token,
                          k.decided_by, NULL, NULL
                   FROM tenure_schedules s CROSS JOIN tenure_tick_skips k ON k.schedule = s.id
                   WHERE s.namespace = ?1 AND s.name = ?2 AND k.last_at < ?3
                   ORDER BY k.last_at DESC LIMIT ?4)) h
ORDER BY h.tick_at DESC, h.by_hand DESC, h.decided_at DESC LIMIT ?4;

-- name: tick_old
-- Whether there is anything to forget: old ticks, old ranges, or those of a schedule that was deleted.
SELECT EXISTS (SELECT 1 FROM tenure_ticks t WHERE t.decided_at < ?1)
    OR EXISTS (SELECT 1 FROM tenure_tick_skips k WHERE k.decided_at < ?1)
    OR EXISTS (SELECT 1 FROM tenure_tick_strays) AS old;

-- name: stray_put
INSERT INTO tenure_tick_strays (schedule) VALUES (?1);

-- name: stray_list
SELECT schedule FROM tenure_tick_strays ORDER BY schedule LIMIT ?1;

-- name: stray_done
DELETE FROM tenure_tick_strays WHERE schedule = ?1;

-- name: tick_forget
-- The oldest; but what counts as under way is remembered for as long as it does.
DELETE FROM tenure_ticks WHERE (schedule, tick_at, by_hand) IN (
    SELECT t.schedule, t.tick_at, t.by_hand FROM tenure_ticks t
    WHERE t.decided_at < ?1
      AND NOT (t.tracked = 1 AND EXISTS (SELECT 1 FROM tenure_tasks k WHERE k.id = t.task AND k.finished_at IS NULL))
    ORDER BY t.decided_at LIMIT ?2)
RETURNING schedule, tick_at, by_hand;

-- name: tick_forgotten
-- Schedule, and the newest of its ticks that are gone.
UPDATE tenure_schedules AS s SET forgotten_at = max(coalesce(s.forgotten_at, v.value ->> 1), v.value ->> 1)
FROM json_each(?1) v
WHERE s.id = v.value ->> 0;

-- name: skip_forget
DELETE FROM tenure_tick_skips WHERE (schedule, last_at) IN (
    SELECT k.schedule, k.last_at FROM tenure_tick_skips k WHERE k.decided_at < ?1 ORDER BY k.decided_at LIMIT ?2);

-- name: tick_clear
DELETE FROM tenure_ticks WHERE (schedule, tick_at, by_hand) IN (
    SELECT t.schedule, t.tick_at, t.by_hand FROM tenure_ticks t WHERE t.schedule = ?1 LIMIT ?2);

-- name: skip_clear
DELETE FROM tenure_tick_skips WHERE (schedule, last_at) IN (
    SELECT k.schedule, k.last_at FROM tenure_tick_skips k WHERE k.schedule = ?1 LIMIT ?2);
