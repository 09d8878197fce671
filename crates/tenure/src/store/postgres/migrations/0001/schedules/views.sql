-- Schedules and ticks for readers.

-- A schedule as JSON, in the form that the library reads.
CREATE FUNCTION tenure.schedule_json(s tenure.schedules) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_build_object(
        'namespace', s.namespace, 'version', p.version, 'definition', s.definition,
        'tick_state', CASE WHEN p.next_tick_at_ms IS NOT NULL
                         THEN json_build_object('next_tick_at_ms', p.next_tick_at_ms, 'last_tick_at_ms', p.last_tick_at_ms) END,
        'due_at_ms', p.due_at_ms,
        'paused', CASE WHEN p.paused_at IS NOT NULL
                       THEN json_build_object('paused_by', p.paused_by, 'reason', p.paused_reason,
                                              'paused_at_ms', tenure.to_unix_ms(p.paused_at)) END,
        'last_error', p.last_error, 'fired_count', p.fired_count, 'skipped_count', p.skipped_count, 'overlapped_count',
            p.overlapped_count,
        'last_fired_at_ms', p.last_fired_at_ms, 'source', s.source,
        'webhook_signed', EXISTS (SELECT FROM tenure.schedule_webhook_secrets e WHERE e.schedule_id = s.id),
        'created_at_ms', tenure.to_unix_ms(s.created_at), 'updated_at_ms', tenure.to_unix_ms(s.updated_at), 'updated_by',
            s.updated_by)
    FROM tenure.schedule_state p WHERE p.schedule_id = s.id
$$;

CREATE VIEW tenure.tick_history AS
SELECT s.namespace,
       s.name AS schedule,
       tenure.from_unix_ms(t.tick_at_ms) AS tick_at,
       CASE WHEN t.event_id IS NULL AND t.task_id IS NULL THEN 'overlapped' ELSE 'fired' END AS state,
       CASE WHEN t.manual THEN 'trigger' WHEN t.token IS NULL THEN 'backfill' ELSE 'schedule' END AS cause,
       1::bigint AS tick_count,
       NULL::timestamptz AS first_tick_at,
       tenure.from_unix_ms(t.decided_at_ms) AS decided_at,
       (t.decided_at_ms - t.due_at_ms) * interval '1 millisecond' AS lateness,
       t.token,
       t.decided_by,
       t.event_id,
       t.task_id
FROM tenure.ticks t JOIN tenure.schedules s ON s.id = t.schedule_id
UNION ALL
SELECT s.namespace, s.name, tenure.from_unix_ms(k.last_tick_at_ms), 'skipped', 'schedule', k.tick_count,
       tenure.from_unix_ms(k.first_tick_at_ms), tenure.from_unix_ms(k.decided_at_ms),
       (k.decided_at_ms - k.last_tick_at_ms) * interval '1 millisecond', k.token, k.decided_by, NULL, NULL
FROM tenure.skipped_ticks k JOIN tenure.schedules s ON s.id = k.schedule_id;
COMMENT ON VIEW tenure.tick_history IS 'Ticks that fired, overlapped or were skipped, with readable times.';
COMMENT ON COLUMN tenure.tick_history.tick_at IS 'Time of the tick; the last tick of a skipped range.';
COMMENT ON COLUMN tenure.tick_history.state IS 'fired, overlapped or skipped.';
COMMENT ON COLUMN tenure.tick_history.cause IS 'schedule, backfill or trigger.';
COMMENT ON COLUMN tenure.tick_history.tick_count IS 'Number of ticks: 1, or the size of a skipped range.';
COMMENT ON COLUMN tenure.tick_history.first_tick_at IS 'The first tick of a skipped range.';
COMMENT ON COLUMN tenure.tick_history.decided_at IS 'When the tick fired, overlapped or was skipped.';
COMMENT ON COLUMN tenure.tick_history.lateness IS 'decided_at minus the time at which the tick was due.';
COMMENT ON COLUMN tenure.tick_history.token IS 'Token of the scheduler; null for a trigger or a backfill.';
COMMENT ON COLUMN tenure.tick_history.decided_by IS 'Name of the scheduler or operator.';
