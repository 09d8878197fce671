-- name: queue_create
INSERT INTO tenure_queues (namespace, name, created_at_ms) VALUES (?1, ?2, ?3)
ON CONFLICT (namespace, name) DO NOTHING;

-- name: queue_create_all
-- ?1: JSON array of [namespace, name].
INSERT INTO tenure_queues (namespace, name, created_at_ms) SELECT j.value ->> 0, j.value ->> 1, ?2 FROM json_each(?1) j
WHERE true
ON CONFLICT (namespace, name) DO NOTHING;

-- name: queue_id_list
SELECT j.key AS list_index, q.id FROM json_each(?1) j
CROSS JOIN tenure_queues q ON q.namespace = j.value ->> 0 AND q.name = j.value ->> 1;

-- name: queue_id
SELECT id FROM tenure_queues WHERE namespace = ?1 AND name = ?2;

-- name: queue_set
INSERT INTO tenure_queues
    (namespace, name, created_at_ms, mode, fallback, require_approval, rate_count, rate_per_ms, max_claimed, preference_window_ms,
     retention_ms, dead_retention_ms)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
ON CONFLICT (namespace, name) DO UPDATE SET
    mode = excluded.mode, fallback = excluded.fallback, require_approval = excluded.require_approval, rate_count = excluded.rate_count,
    rate_per_ms = excluded.rate_per_ms, max_claimed = excluded.max_claimed, preference_window_ms = excluded.preference_window_ms,
    retention_ms = excluded.retention_ms, dead_retention_ms = excluded.dead_retention_ms
RETURNING id;

-- name: queue_counters_limit
-- After a change of the rate limit, at most the new limit is used up. ?2: now + rate_per_ms.
UPDATE tenure_queue_counters SET rate_used_until_at_ms = min(rate_used_until_at_ms, ?2) WHERE queue_id = ?1;

-- name: queue_pause
INSERT INTO tenure_queues (namespace, name, created_at_ms, paused_by, paused_reason, paused_at_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (namespace, name) DO UPDATE SET
    paused_by = excluded.paused_by, paused_reason = excluded.paused_reason, paused_at_ms = excluded.paused_at_ms
WHERE tenure_queues.paused_at_ms IS NULL
RETURNING id;

-- name: queue_resume
UPDATE tenure_queues SET paused_by = NULL, paused_reason = NULL, paused_at_ms = NULL
WHERE namespace = ?1 AND name = ?2 AND paused_at_ms IS NOT NULL
RETURNING id;

-- name: namespace_pause
INSERT INTO tenure_namespaces (name, paused_by, paused_reason, paused_at_ms) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (name) DO NOTHING;

-- name: namespace_resume
DELETE FROM tenure_namespaces WHERE name = ?1;

-- name: namespace_queues
SELECT id, name FROM tenure_queues WHERE namespace = ?1;

-- name: queue_list
SELECT q.*, coalesce(c.rate_used_until_at_ms, 0.0) AS rate_used_until_at_ms, n.paused_by AS namespace_paused_by,
       n.paused_reason AS namespace_paused_reason, n.paused_at_ms AS namespace_paused_at_ms
FROM tenure_queues q LEFT JOIN tenure_queue_counters c ON c.queue_id = q.id LEFT JOIN tenure_namespaces n ON n.name = q.namespace
WHERE (?1 IS NULL OR q.namespace = ?1) AND (?2 IS NULL OR q.name = ?2)
ORDER BY q.namespace, q.name;

-- name: queue_counts
-- Each state is counted by its own index.
SELECT d.queue_id, 'ready' AS state, count(*) AS task_count, min(t.ready_at_ms) AS oldest_ready_at_ms
FROM json_each(?1) j CROSS JOIN tenure_task_requirements d ON d.queue_id = j.value
CROSS JOIN tenure_tasks t INDEXED BY tenure_tasks_ready ON t.requirements_id = d.id AND t.state = 'ready'
GROUP BY d.queue_id
UNION ALL
SELECT t.queue_id, 'claimed', count(*), NULL FROM json_each(?1) j CROSS JOIN tenure_tasks t ON t.queue_id = j.value AND t.state = 'claimed'
GROUP BY t.queue_id
UNION ALL
SELECT t.queue_id, 'scheduled', count(*), NULL FROM json_each(?1) j CROSS JOIN tenure_tasks t ON t.queue_id = j.value AND t.state = 'scheduled'
GROUP BY t.queue_id
UNION ALL
SELECT t.queue_id, 'waiting', count(*), NULL FROM json_each(?1) j CROSS JOIN tenure_tasks t ON t.queue_id = j.value AND t.state = 'waiting'
GROUP BY t.queue_id
UNION ALL
SELECT d.queue_id, 'blocked', count(*), NULL FROM tenure_tasks t CROSS JOIN tenure_task_requirements d ON d.id = t.requirements_id
WHERE t.state = 'blocked' AND d.queue_id IN (SELECT j.value FROM json_each(?1) j)
GROUP BY d.queue_id
UNION ALL
SELECT t.queue_id, t.state, count(*), NULL FROM json_each(?1) j CROSS JOIN tenure_tasks t ON t.queue_id = j.value AND t.finished_at_ms IS NOT NULL
GROUP BY t.queue_id, t.state;

-- name: queue_next_run
SELECT min(run_at_ms) FROM tenure_tasks WHERE queue_id = ?1 AND state = 'scheduled';
