-- name: tick_list
-- $1 namespace, $2 name, $3 before this time, or null, $4 limit. The newest first; of ticks at the same time manual ones
-- first. As JSON in the form that the library reads.
SELECT json_build_object(
    'tick_at_ms', h.tick_at_ms, 'state', h.state, 'cause', h.cause, 'tick_count', h.tick_count,
    'first_tick_at_ms', h.first_tick_at_ms, 'decided_at_ms', h.decided_at_ms, 'lateness_ms', h.decided_at_ms - h.due_at_ms,
        'token', h.token, 'decided_by', h.decided_by, 'event_id', h.event_id, 'task_id', h.task_id)::text AS tick
FROM tenure.schedules s CROSS JOIN LATERAL (
    (SELECT t.tick_at_ms, CASE WHEN t.event_id IS NULL AND t.task_id IS NULL THEN 'overlapped' ELSE 'fired' END AS state,
            CASE WHEN t.manual THEN 'trigger' WHEN t.token IS NULL THEN 'backfill' ELSE 'schedule' END AS cause,
            1::bigint AS tick_count, NULL::bigint AS first_tick_at_ms, t.decided_at_ms, t.due_at_ms, t.token, t.decided_by,
                t.event_id, t.task_id, t.manual
     FROM tenure.ticks t WHERE t.schedule_id = s.id AND t.tick_at_ms < coalesce($3, 9223372036854775807)
     ORDER BY t.tick_at_ms DESC, t.manual DESC LIMIT $4)
    UNION ALL
    (SELECT k.last_tick_at_ms, 'skipped', 'schedule', k.tick_count, k.first_tick_at_ms, k.decided_at_ms, k.last_tick_at_ms,
        k.token, k.decided_by, NULL, NULL, false
     FROM tenure.skipped_ticks k WHERE k.schedule_id = s.id AND k.last_tick_at_ms < coalesce($3, 9223372036854775807)
     ORDER BY k.last_tick_at_ms DESC LIMIT $4)
) h
WHERE s.namespace = $1 AND s.name = $2
ORDER BY h.tick_at_ms DESC, h.manual DESC, h.decided_at_ms DESC LIMIT $4;

-- name: tick_prune
-- $1 session of the scheduler, $2 its token, $3 retention in ms, $4 limit. See tenure.prune_ticks.
SELECT p.pruned, p.has_more FROM tenure.prune_ticks($1, $2, $3, $4) p;

-- name: orphaned_tick_prune
-- $1 limit. See tenure.prune_orphaned_ticks.
SELECT tenure.prune_orphaned_ticks($1) AS deleted_count;
