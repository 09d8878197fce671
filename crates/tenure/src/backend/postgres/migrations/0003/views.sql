-- What people see, as JSON in the form that the library reads.

CREATE FUNCTION tenure.task_view(t tenure.tasks) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_build_object(
        'id', t.id, 'namespace', q.namespace, 'queue', q.name, 'kind', d.kind, 'state', t.state, 'payload', t.payload,
        'output', t.output, 'priority', t.priority, 'requires', d.requires, 'prefers', d.prefers, 'workers', d.workers,
        'attempt', t.attempt, 'max_attempts', t.max_attempts,
        'backoff', json_build_object('first_ms', coalesce(t.backoff_first_ms, 1000),
                                     'most_ms', coalesce(t.backoff_most_ms, 3600000)),
        'token', t.token, 'turn', t.turn, 'worker', t.worker, 'session', t.session, 'progress', t.progress,
        'failures', coalesce(t.failures, '[]'), 'reason', t.reason,
        'parents', coalesce((SELECT json_agg(e.parent ORDER BY e.parent) FROM tenure.parents e
                             WHERE t.open_parents IS NOT NULL AND e.child = t.id), '[]'),
        'children', coalesce((SELECT json_agg(e.child ORDER BY e.child) FROM tenure.parents e
                              WHERE t.has_children AND e.parent = t.id), '[]'),
        'key', t.key, 'concurrency_key', t.concurrency_key, 'concurrency_limit', t.concurrency_limit,
        'leader_token', t.leader_token, 'max_wait_ms', t.max_wait_ms, 'max_run_ms', t.max_run_ms,
        'enqueued_at_ms', tenure.ms(t.enqueued_at), 'effective_at_ms', tenure.ms(t.effective_at),
        'run_at_ms', tenure.ms(t.run_at), 'ready_at_ms', tenure.ms(t.ready_at), 'claimed_at_ms', tenure.ms(t.claimed_at),
        'deadline_ms', tenure.ms(t.deadline), 'finished_at_ms', tenure.ms(t.finished_at))
    FROM tenure.queues q, tenure.demands d WHERE q.id = t.queue AND d.id = t.demand
$$;

-- What is claimed, by queue and worker. There is one walk over it, however many queues or workers are shown: it is never more
-- than what workers have in their hands.
CREATE FUNCTION tenure.claims_now() RETURNS TABLE (queue integer, worker text, tasks bigint) LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    SELECT c.queue, c.worker, count(*) FROM (
        SELECT t.queue, t.worker FROM tenure.tasks t WHERE t.session IS NOT NULL AND t.state = 'claimed'
        UNION ALL
        SELECT t.queue, t.worker FROM tenure.tasks t
        WHERE t.deadline IS NOT NULL AND t.session IS NULL AND t.state = 'claimed') c
    GROUP BY c.queue, c.worker
$$;

-- How many tasks of a queue stand where, but for those that are claimed: each state from its own index.
CREATE FUNCTION tenure.counts(in_queue integer) RETURNS TABLE (state text, tasks bigint) LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    SELECT 'ready', coalesce(sum(r.tasks), 0)::bigint FROM tenure.demands d CROSS JOIN LATERAL (
        SELECT count(*) AS tasks FROM tenure.tasks t WHERE t.demand = d.id AND t.state = 'ready') r
    WHERE d.queue = in_queue
    UNION ALL
    SELECT 'scheduled', count(*) FROM tenure.tasks t
    WHERE t.queue = in_queue AND t.run_at IS NOT NULL AND t.state = 'scheduled'
    UNION ALL
    SELECT 'waiting', count(*) FROM tenure.tasks t
    WHERE t.queue = in_queue AND t.open_parents IS NOT NULL AND t.state = 'waiting'
    UNION ALL
    SELECT 'held', count(*) FROM tenure.tasks t
    WHERE t.queue = in_queue AND t.concurrency_key IS NOT NULL AND t.state = 'held'
    UNION ALL
    SELECT t.state, count(*) FROM tenure.tasks t
    WHERE t.queue = in_queue AND t.finished_at IS NOT NULL GROUP BY t.state
$$;

-- `claimed`: how many of its tasks are, see claims_now.
CREATE FUNCTION tenure.queue_view(q tenure.queues, claimed bigint) RETURNS json LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    SELECT json_build_object(
        'namespace', q.namespace, 'name', q.name,
        'settings', json_build_object(
            'mode', q.mode, 'fallback', q.fallback, 'approval', q.approval,
            'rate', CASE WHEN q.rate_count IS NOT NULL
                         THEN json_build_object('count', q.rate_count, 'per_ms', q.rate_per_ms) END,
            'max_claimed', q.max_claimed, 'prefer_ms', q.prefer_ms, 'keep_ms', q.keep_ms, 'keep_dead_ms', q.keep_dead_ms),
        'paused', CASE
            WHEN q.paused_at IS NOT NULL
            THEN json_build_object('by', q.paused_by, 'reason', q.paused_reason, 'at_ms', tenure.ms(q.paused_at))
            ELSE (SELECT json_build_object('by', n.paused_by, 'reason', n.paused_reason, 'at_ms', tenure.ms(n.paused_at))
                  FROM tenure.namespaces n WHERE n.name = q.namespace AND n.paused_at IS NOT NULL) END,
        'counts', coalesce((SELECT json_object_agg(c.state, c.n) FROM (
            SELECT n.state, n.tasks AS n FROM tenure.counts(q.id) n WHERE n.tasks > 0
            UNION ALL SELECT 'claimed', claimed WHERE claimed > 0) c), '{}'),
        'oldest_ready_ms', (
            SELECT greatest(0, tenure.ms(clock_timestamp()) - tenure.ms(min(h.ready_at)))
            FROM tenure.demands d CROSS JOIN LATERAL (
                SELECT t.ready_at FROM tenure.tasks t WHERE t.demand = d.id AND t.state = 'ready'
                ORDER BY t.effective_at, t.id LIMIT 1) h
            WHERE d.queue = q.id HAVING count(*) > 0))
$$;

-- `claimed`: how many tasks it has, see claims_now.
CREATE FUNCTION tenure.worker_view(w tenure.workers, claimed bigint) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_build_object(
        'namespace', w.namespace, 'name', w.name, 'kind', w.kind, 'tags', w.tags, 'kinds', w.kinds, 'queues', w.queues,
        'location', w.location, 'capacity', w.capacity, 'session', w.session, 'approved_by', w.approved_by,
        'live', CASE WHEN w.session IS NOT NULL THEN coalesce(s.state = 'live', false)
                     ELSE coalesce(w.seen_at > now() - interval '1 minute', false) END,
        'seen_at_ms', coalesce(tenure.ms(greatest(w.seen_at, s.beat_at)), 0),
        'claimed', coalesce(claimed, 0))
    FROM (SELECT) one LEFT JOIN tenure.sessions s ON s.id = w.session
$$;

-- Without its priority, which is a matter of the pool's formula and of the moment.
CREATE FUNCTION tenure.request_view(r tenure.pool_requests) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_build_object(
        'id', r.id, 'key', r.key, 'owner', r.owner, 'requires', r.requires, 'prefers', r.prefers, 'base', r.base,
        'session', r.session, 'hold_ms', r.hold_ms, 'max_wait_ms', r.max_wait_ms, 'state', r.state, 'resource', r.resource,
        'token', r.token, 'priority', NULL, 'created_at_ms', tenure.ms(r.created_at),
        'granted_at_ms', tenure.ms(r.granted_at), 'deadline_ms', tenure.ms(r.deadline),
        'ended_at_ms', tenure.ms(r.ended_at))
$$;
