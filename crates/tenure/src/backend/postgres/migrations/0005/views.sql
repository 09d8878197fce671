-- What people see of schedules.

-- As JSON in the form that the library reads.
CREATE FUNCTION tenure.schedule_view(s tenure.schedules) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_build_object(
        'namespace', s.namespace, 'version', p.version, 'definition', s.definition,
        'progress', CASE WHEN p.next_at_ms IS NOT NULL
                         THEN json_build_object('next_at_ms', p.next_at_ms, 'last_at_ms', p.last_at_ms) END,
        'due_ms', p.due_ms,
        'paused', CASE WHEN p.paused_at IS NOT NULL
                       THEN json_build_object('by', p.paused_by, 'reason', p.paused_reason, 'at_ms', tenure.ms(p.paused_at)) END,
        'trouble', p.trouble, 'fired', p.fired, 'skipped', p.skipped, 'overlapped', p.overlapped,
        'last_fired_ms', p.last_fired_ms, 'source', s.source,
        'signed', EXISTS (SELECT FROM tenure.schedule_secrets e WHERE e.schedule = s.id),
        'created_ms', tenure.ms(s.created_at), 'updated_ms', tenure.ms(s.updated_at), 'updated_by', s.updated_by)
    FROM tenure.schedule_progress p WHERE p.schedule = s.id
$$;

-- The history, for people who look with SQL: what fired and what did not, with times that one can read.
CREATE VIEW tenure.tick_records AS
SELECT s.namespace,
       s.name AS schedule,
       tenure.at(t.at_ms) AS at,
       CASE WHEN t.event IS NULL AND t.task IS NULL THEN 'overlapped' ELSE 'fired' END AS state,
       CASE WHEN t.by_hand THEN 'trigger' WHEN t.token IS NULL THEN 'backfill' ELSE 'clock' END AS cause,
       1::bigint AS count,
       NULL::timestamptz AS first_at,
       tenure.at(t.decided_ms) AS decided_at,
       (t.decided_ms - t.due_ms) * interval '1 millisecond' AS late,
       t.token,
       t.by,
       t.event,
       t.task
FROM tenure.ticks t JOIN tenure.schedules s ON s.id = t.schedule
UNION ALL
SELECT s.namespace, s.name, tenure.at(k.last_ms), 'skipped', 'clock', k.count, tenure.at(k.first_ms), tenure.at(k.decided_ms),
       (k.decided_ms - k.last_ms) * interval '1 millisecond', k.token, k.by, NULL, NULL
FROM tenure.tick_skips k JOIN tenure.schedules s ON s.id = k.schedule;
