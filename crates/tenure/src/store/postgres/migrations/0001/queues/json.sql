-- Tasks, queues and workers as JSON, in the form that the library reads.

CREATE FUNCTION tenure.task_json(t tenure.tasks) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_build_object(
        'id', t.id, 'namespace', q.namespace, 'queue', q.name, 'kind', d.kind, 'state', t.state, 'payload', t.payload,
        'result', t.result, 'priority', t.priority, 'required_tags', d.required_tags, 'preferred_tags', d.preferred_tags,
            'allowed_workers', d.allowed_workers,
        'attempt', t.attempt, 'max_attempts', t.max_attempts,
        'backoff', json_build_object('initial_ms', coalesce(t.initial_backoff_ms, 1000),
                                     'max_ms', coalesce(t.max_backoff_ms, 3600000)),
        'token', t.token, 'claim_seq', t.claim_seq, 'worker', t.worker, 'session', t.session, 'progress', t.progress,
        'failures', coalesce(t.failures, '[]'), 'end_reason', t.end_reason,
        'parents', coalesce((SELECT json_agg(e.parent_id ORDER BY e.parent_id) FROM tenure.task_dependencies e
                             WHERE t.pending_parent_count IS NOT NULL AND e.task_id = t.id), '[]'),
        'children', coalesce((SELECT json_agg(e.task_id ORDER BY e.task_id) FROM tenure.task_dependencies e
                              WHERE t.has_children AND e.parent_id = t.id), '[]'),
        'idempotency_key', t.idempotency_key, 'concurrency_key', t.concurrency_key, 'concurrency_limit', t.concurrency_limit,
        'leader_token', t.leader_token, 'max_wait_ms', t.max_wait_ms, 'max_run_ms', t.max_run_ms,
        'submitted_at_ms', tenure.to_unix_ms(t.submitted_at), 'effective_at_ms', tenure.to_unix_ms(t.effective_at),
        'run_at_ms', tenure.to_unix_ms(t.run_at), 'ready_at_ms', tenure.to_unix_ms(t.ready_at), 'claimed_at_ms',
            tenure.to_unix_ms(t.claimed_at),
        'claim_expires_at_ms', tenure.to_unix_ms(t.claim_expires_at), 'finished_at_ms', tenure.to_unix_ms(t.finished_at))
    FROM tenure.queues q, tenure.task_requirements d WHERE q.id = t.queue_id AND d.id = t.requirements_id
$$;

-- Number of claimed tasks by queue and worker. One scan over all claims, however many queues or workers are listed.
CREATE FUNCTION tenure.count_claims() RETURNS TABLE (queue_id integer, worker text, task_count bigint) LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    SELECT c.queue_id, c.worker, count(*) FROM (
        SELECT t.queue_id, t.worker FROM tenure.tasks t WHERE t.session IS NOT NULL AND t.state = 'claimed'
        UNION ALL
        SELECT t.queue_id, t.worker FROM tenure.tasks t
        WHERE t.claim_expires_at IS NOT NULL AND t.session IS NULL AND t.state = 'claimed') c
    GROUP BY c.queue_id, c.worker
$$;

-- Number of tasks of a queue by state, except claimed ones: each state from its own index.
CREATE FUNCTION tenure.count_tasks(in_queue integer) RETURNS TABLE (state text, task_count bigint) LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    SELECT 'ready', coalesce(sum(r.task_count), 0)::bigint FROM tenure.task_requirements d CROSS JOIN LATERAL (
        SELECT count(*) AS task_count FROM tenure.tasks t WHERE t.requirements_id = d.id AND t.state = 'ready') r
    WHERE d.queue_id = in_queue
    UNION ALL
    SELECT 'scheduled', count(*) FROM tenure.tasks t
    WHERE t.queue_id = in_queue AND t.run_at IS NOT NULL AND t.state = 'scheduled'
    UNION ALL
    SELECT 'waiting', count(*) FROM tenure.tasks t
    WHERE t.queue_id = in_queue AND t.pending_parent_count IS NOT NULL AND t.state = 'waiting'
    UNION ALL
    SELECT 'blocked', count(*) FROM tenure.tasks t
    WHERE t.queue_id = in_queue AND t.concurrency_key IS NOT NULL AND t.state = 'blocked'
    UNION ALL
    SELECT t.state, count(*) FROM tenure.tasks t
    WHERE t.queue_id = in_queue AND t.finished_at IS NOT NULL GROUP BY t.state
$$;

-- `claimed_count`: number of its claimed tasks, from tenure.count_claims.
CREATE FUNCTION tenure.queue_json(q tenure.queues, claimed_count bigint) RETURNS json LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    SELECT json_build_object(
        'namespace', q.namespace, 'name', q.name,
        'settings', json_build_object(
            'mode', q.mode, 'fallback', q.fallback, 'require_approval', q.require_approval,
            'rate', CASE WHEN q.rate_count IS NOT NULL
                         THEN json_build_object('count', q.rate_count, 'per_ms', q.rate_per_ms) END,
            'max_claimed', q.max_claimed, 'preference_window_ms', q.preference_window_ms, 'retention_ms', q.retention_ms,
                'dead_retention_ms', q.dead_retention_ms),
        'paused', CASE
            WHEN q.paused_at IS NOT NULL
            THEN json_build_object('paused_by', q.paused_by, 'reason', q.paused_reason, 'paused_at_ms',
                tenure.to_unix_ms(q.paused_at))
            ELSE (SELECT json_build_object('paused_by', n.paused_by, 'reason', n.paused_reason, 'paused_at_ms',
                tenure.to_unix_ms(n.paused_at))
                  FROM tenure.namespaces n WHERE n.name = q.namespace AND n.paused_at IS NOT NULL) END,
        'counts', coalesce((SELECT json_object_agg(c.state, c.n) FROM (
            SELECT n.state, n.task_count AS n FROM tenure.count_tasks(q.id) n WHERE n.task_count > 0
            UNION ALL SELECT 'claimed', claimed_count WHERE claimed_count > 0) c), '{}'),
        'oldest_ready_age_ms', (
            SELECT greatest(0, tenure.to_unix_ms(clock_timestamp()) - tenure.to_unix_ms(min(h.ready_at)))
            FROM tenure.task_requirements d CROSS JOIN LATERAL (
                SELECT t.ready_at FROM tenure.tasks t WHERE t.requirements_id = d.id AND t.state = 'ready'
                ORDER BY t.effective_at, t.id LIMIT 1) h
            WHERE d.queue_id = q.id HAVING count(*) > 0))
$$;

-- `claimed_count`: number of its claimed tasks, from tenure.count_claims.
CREATE FUNCTION tenure.worker_json(w tenure.workers, claimed_count bigint) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_build_object(
        'namespace', w.namespace, 'name', w.name, 'description', w.description, 'tags', w.tags, 'task_kinds', w.task_kinds,
            'queues', w.queues,
        'location', w.location, 'capacity', w.capacity, 'session', w.session, 'approved_by', w.approved_by,
        'online', CASE WHEN w.session IS NOT NULL THEN coalesce(s.state = 'live', false)
                     ELSE coalesce(w.last_seen_at > now() - interval '1 minute', false) END,
        'last_seen_at_ms', coalesce(tenure.to_unix_ms(greatest(w.last_seen_at, s.heartbeat_at)), 0),
        'claimed_count', coalesce(claimed_count, 0))
    FROM (SELECT) one LEFT JOIN tenure.sessions s ON s.id = w.session
$$;
