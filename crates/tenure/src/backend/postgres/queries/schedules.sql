-- name: schedule_due
-- $1 how many. See tenure.due.
SELECT d.namespace, d.name, d.version, d.definition, d.next_at_ms, d.last_at_ms, d.strikes, d.unfinished, d.due_ms,
       d.store_ms, d.schedule
FROM tenure.due($1) d;

-- name: schedule_bound
-- $1 the leader's session. What follows in this message takes no longer than its lease, as after a guard.
SELECT tenure.bound(s.lease_ms) FROM tenure.sessions s WHERE s.id = $1;

-- name: schedule_fire
-- $1 the leader's session, $2 its token; firings, ticks, events and tasks as tenure.fire reads them.
SELECT to_json(f.stale)::text AS stale, to_json(f.refused)::text AS refused, to_json(f.refused_events)::text AS refused_events,
       to_json(f.refused_most)::text AS refused_most
FROM tenure.fire($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25,
                 $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36) f;

-- name: schedule_fire_by_hand
-- $1 namespace, $2 name, $3 version, $4 whether it is for now, $5 whether it is only asked, $6 by whom; ticks, events and tasks as
-- tenure.fire_by_hand reads them.
SELECT f.n, f.outcome, f.event, f.task
FROM tenure.fire_by_hand($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23,
                         $24, $25) f ORDER BY f.n;

-- name: tick_prune
-- $1 the leader's session, $2 its token, $3 for how long they are kept, $4 how many. See tenure.prune_ticks.
SELECT p.forgotten, p.more FROM tenure.prune_ticks($1, $2, $3, $4) p;

-- name: schedule_list
-- $1 namespace, $2 source, $3 and $4 after which; null: any. $5 how many; 0: all. As JSON in the form that the library reads.
SELECT tenure.schedule_view(s)::text AS schedule FROM tenure.schedules s
WHERE ($1::text IS NULL OR s.namespace = $1) AND ($2::text IS NULL OR s.source = $2)
  AND ($3::text IS NULL OR (s.namespace, s.name) > ($3, $4))
ORDER BY s.namespace, s.name LIMIT nullif($5::bigint, 0);

-- name: schedule_show
-- $1 namespace, $2 name.
SELECT tenure.schedule_view(s)::text AS schedule FROM tenure.schedules s WHERE s.namespace = $1 AND s.name = $2;

-- name: schedule_look
-- $1 namespace, $2 name. What a change is decided from. `now_ms`: the moment that a tick by hand would be, and no other is.
SELECT p.version, s.definition::text AS definition, p.next_at_ms, p.last_at_ms, p.paused_at IS NOT NULL AS paused, s.source,
       e.secret, greatest(tenure.now_ms(), 1 + (
           SELECT t.at_ms FROM tenure.ticks t WHERE t.schedule = s.id AND t.at_ms >= tenure.now_ms() AND t.by_hand
           ORDER BY t.at_ms DESC LIMIT 1)) AS now_ms
FROM tenure.schedules s JOIN tenure.schedule_progress p ON p.schedule = s.id
LEFT JOIN tenure.schedule_secrets e ON e.schedule = s.id
WHERE s.namespace = $1 AND s.name = $2;

-- name: schedule_clock
SELECT tenure.now_ms() AS now_ms;

-- name: schedule_topic
-- $1 namespace, $2 topic. The longest payload that it takes. No row: there is none.
SELECT t.max_bytes FROM tenure.topics t WHERE t.namespace = $1 AND t.name = $2;

-- name: schedule_set
-- $1 namespace, $2 name, $3 version, $4 next tick, $5 last tick and $6 pause as seen, $7 definition, $8 whether runs count,
-- $9 next tick, $10 last tick, $11 when it is due, $12 secret, $13 source, $14 by whom, $15 as of when (ms). See tenure.set_schedule.
SELECT tenure.set_schedule($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) AS version;

-- name: schedule_delete
-- $1 namespace, $2 name, $3 its version, or null for any. See tenure.delete_schedule.
SELECT tenure.delete_schedule($1, $2, $3) AS deleted;

-- name: tick_sweep
-- $1 how many. See tenure.sweep_ticks.
SELECT tenure.sweep_ticks($1) AS swept;

-- name: schedule_pause
-- $1 namespace, $2 name, $3 by whom, $4 why, $5 when (ms). Who paused it first stays. No row: it is not there.
WITH found AS MATERIALIZED (
    SELECT s.id FROM tenure.schedules s WHERE s.namespace = $1 AND s.name = $2
), paused AS (
    UPDATE tenure.schedule_progress p SET paused_by = $3, paused_reason = $4, paused_at = tenure.at($5), due_ms = NULL
    FROM found f WHERE p.schedule = f.id AND p.paused_at IS NULL RETURNING p.schedule
)
SELECT EXISTS (SELECT FROM paused) AS changed, (SELECT tenure.ring_scheduler() FROM paused) FROM found;

-- name: schedule_resume
-- $1 namespace, $2 name, $3 version, $4 next tick and $5 last tick as seen, $6 when it is due. A row: what was seen was so.
UPDATE tenure.schedule_progress p SET paused_by = NULL, paused_reason = NULL, paused_at = NULL, due_ms = $6, strikes = 0
FROM tenure.schedules s
WHERE s.namespace = $1 AND s.name = $2 AND p.schedule = s.id AND p.version = $3 AND p.next_at_ms IS NOT DISTINCT FROM $4
  AND p.last_at_ms IS NOT DISTINCT FROM $5 AND p.paused_at IS NOT NULL
RETURNING tenure.ring_scheduler();

-- name: schedule_secret
-- $1 namespace, $2 name.
SELECT e.secret FROM tenure.schedules s JOIN tenure.schedule_secrets e ON e.schedule = s.id WHERE s.namespace = $1 AND s.name = $2;

-- name: schedule_stats
-- By namespace. As JSON in the form that the library reads.
SELECT json_build_object(
    'namespace', s.namespace, 'schedules', count(*), 'paused', count(p.paused_at), 'troubled', count(p.trouble),
    'overdue', count(*) FILTER (WHERE p.due_ms <= c.now_ms),
    'overdue_ms', coalesce(max(c.now_ms - p.due_ms) FILTER (WHERE p.due_ms <= c.now_ms), 0),
    'last_fired_ms', max(p.last_fired_ms))::text AS stats
FROM (SELECT tenure.now_ms() AS now_ms OFFSET 0) c CROSS JOIN tenure.schedules s JOIN tenure.schedule_progress p ON p.schedule = s.id
GROUP BY s.namespace ORDER BY s.namespace;

-- name: tick_list
-- $1 namespace, $2 name, $3 before which instant, or null, $4 how many. The newest first, of those at one instant what was done by
-- hand first. As JSON in the form that the library reads.
SELECT json_build_object(
    'at_ms', h.at_ms, 'state', h.state, 'cause', h.cause, 'count', h.count, 'first_ms', h.first_ms, 'decided_ms', h.decided_ms,
    'late_ms', h.decided_ms - h.due_ms, 'token', h.token, 'by', h.by, 'event', h.event, 'task', h.task)::text AS tick
FROM tenure.schedules s CROSS JOIN LATERAL (
    (SELECT t.at_ms, CASE WHEN t.event IS NULL AND t.task IS NULL THEN 'overlapped' ELSE 'fired' END AS state,
            CASE WHEN t.by_hand THEN 'trigger' WHEN t.token IS NULL THEN 'backfill' ELSE 'clock' END AS cause,
            1::bigint AS count, NULL::bigint AS first_ms, t.decided_ms, t.due_ms, t.token, t.by, t.event, t.task, t.by_hand
     FROM tenure.ticks t WHERE t.schedule = s.id AND t.at_ms < coalesce($3, 9223372036854775807)
     ORDER BY t.at_ms DESC, t.by_hand DESC LIMIT $4)
    UNION ALL
    (SELECT k.last_ms, 'skipped', 'clock', k.count, k.first_ms, k.decided_ms, k.last_ms, k.token, k.by, NULL, NULL, false
     FROM tenure.tick_skips k WHERE k.schedule = s.id AND k.last_ms < coalesce($3, 9223372036854775807)
     ORDER BY k.last_ms DESC LIMIT $4)
) h
WHERE s.namespace = $1 AND s.name = $2
ORDER BY h.at_ms DESC, h.by_hand DESC, h.decided_ms DESC LIMIT $4;
