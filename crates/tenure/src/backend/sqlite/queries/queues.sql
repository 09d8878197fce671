-- name: queue_make
INSERT INTO tenure_queues (namespace, name, created_at) VALUES (?1, ?2, ?3)
ON CONFLICT (namespace, name) DO NOTHING;

-- name: queue_make_all
-- Namespace and name of each.
INSERT INTO tenure_queues (namespace, name, created_at) SELECT j.value ->> 0, j.value ->> 1, ?2 FROM json_each(?1) j
WHERE true
ON CONFLICT (namespace, name) DO NOTHING;

-- name: queue_ids
SELECT j.key AS place, q.id FROM json_each(?1) j
CROSS JOIN tenure_queues q ON q.namespace = j.value ->> 0 AND q.name = j.value ->> 1;

-- name: queue_id
SELECT id FROM tenure_queues WHERE namespace = ?1 AND name = ?2;

-- name: queue_set
INSERT INTO tenure_queues
    (namespace, name, created_at, mode, fallback, approval, rate_count, rate_per_ms, max_claimed, prefer_ms, keep_ms, keep_dead_ms)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
ON CONFLICT (namespace, name) DO UPDATE SET
    mode = excluded.mode, fallback = excluded.fallback, approval = excluded.approval, rate_count = excluded.rate_count,
    rate_per_ms = excluded.rate_per_ms, max_claimed = excluded.max_claimed, prefer_ms = excluded.prefer_ms,
    keep_ms = excluded.keep_ms, keep_dead_ms = excluded.keep_dead_ms,
    -- At most as much is used up as the new rate can be.
    rate_used_to = min(tenure_queues.rate_used_to, ?3 + coalesce(excluded.rate_per_ms, 0))
RETURNING id;

-- name: queue_pause
INSERT INTO tenure_queues (namespace, name, created_at, paused_by, paused_reason, paused_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (namespace, name) DO UPDATE SET
    paused_by = excluded.paused_by, paused_reason = excluded.paused_reason, paused_at = excluded.paused_at
WHERE tenure_queues.paused_at IS NULL
RETURNING id;

-- name: queue_resume
UPDATE tenure_queues SET paused_by = NULL, paused_reason = NULL, paused_at = NULL
WHERE namespace = ?1 AND name = ?2 AND paused_at IS NOT NULL
RETURNING id;

-- name: namespace_pause
INSERT INTO tenure_pauses (namespace, paused_by, paused_reason, paused_at) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (namespace) DO NOTHING;

-- name: namespace_resume
DELETE FROM tenure_pauses WHERE namespace = ?1;

-- name: namespace_queues
SELECT id, name FROM tenure_queues WHERE namespace = ?1;

-- name: queue_list
SELECT q.*, p.paused_by AS all_paused_by, p.paused_reason AS all_paused_reason, p.paused_at AS all_paused_at
FROM tenure_queues q LEFT JOIN tenure_pauses p ON p.namespace = q.namespace
WHERE (?1 IS NULL OR q.namespace = ?1) AND (?2 IS NULL OR q.name = ?2)
ORDER BY q.namespace, q.name;

-- name: queue_counts
-- Each from its own index.
SELECT d.queue, 'ready' AS state, count(*) AS tasks, min(t.ready_at) AS oldest
FROM json_each(?1) j CROSS JOIN tenure_demands d ON d.queue = j.value
CROSS JOIN tenure_tasks t INDEXED BY tenure_tasks_ready ON t.demand = d.id AND t.state = 'ready'
GROUP BY d.queue
UNION ALL
SELECT t.queue, 'claimed', count(*), NULL FROM json_each(?1) j CROSS JOIN tenure_tasks t ON t.queue = j.value AND t.state = 'claimed'
GROUP BY t.queue
UNION ALL
SELECT t.queue, 'scheduled', count(*), NULL FROM json_each(?1) j CROSS JOIN tenure_tasks t ON t.queue = j.value AND t.state = 'scheduled'
GROUP BY t.queue
UNION ALL
SELECT t.queue, 'waiting', count(*), NULL FROM json_each(?1) j CROSS JOIN tenure_tasks t ON t.queue = j.value AND t.state = 'waiting'
GROUP BY t.queue
UNION ALL
SELECT d.queue, 'held', count(*), NULL FROM tenure_tasks t CROSS JOIN tenure_demands d ON d.id = t.demand
WHERE t.state = 'held' AND d.queue IN (SELECT j.value FROM json_each(?1) j)
GROUP BY d.queue
UNION ALL
SELECT t.queue, t.state, count(*), NULL FROM json_each(?1) j CROSS JOIN tenure_tasks t ON t.queue = j.value AND t.finished_at IS NOT NULL
GROUP BY t.queue, t.state;

-- name: dozer_put
INSERT INTO tenure_dozers (namespace, queue, session, dozed_at)
SELECT j.value ->> 0, j.value ->> 1, ?2, ?3 FROM json_each(?1) j
WHERE true
ON CONFLICT (namespace, queue, session) DO UPDATE SET dozed_at = excluded.dozed_at;

-- name: dozer_wake
DELETE FROM tenure_dozers
WHERE (namespace, queue) IN (SELECT q.namespace, q.name FROM json_each(?1) j CROSS JOIN tenure_queues q ON q.id = j.value)
RETURNING namespace, queue;

-- name: dozer_forget
DELETE FROM tenure_dozers WHERE session NOT IN (SELECT s.id FROM tenure_sessions s WHERE s.state = 'live') OR dozed_at < ?1;

-- name: claims_leader
SELECT 1 FROM tenure_leases
WHERE namespace = 'tenure' AND name = 'claims' AND slot = 0 AND session = ?1 AND token = ?2;

-- name: claims_led
SELECT 1 FROM tenure_leases WHERE namespace = 'tenure' AND name = 'claims' AND slot = 0 AND session IS NOT NULL;

-- name: post_put
INSERT INTO tenure_posts (id, token, session, address, secret)
SELECT 1, ?1, ?2, ?3, ?4 FROM tenure_leases l
WHERE l.namespace = 'tenure' AND l.name = 'claims' AND l.slot = 0 AND l.session = ?2 AND l.token = ?1
ON CONFLICT (id) DO UPDATE SET
    token = excluded.token, session = excluded.session, address = excluded.address, secret = excluded.secret;

-- name: post_show
SELECT p.token, p.session, p.address, p.secret FROM tenure_posts p
JOIN tenure_leases l ON l.namespace = 'tenure' AND l.name = 'claims' AND l.slot = 0 AND l.session = p.session AND l.token = p.token;

-- name: queue_next_run
SELECT min(run_at) FROM tenure_tasks WHERE queue = ?1 AND state = 'scheduled';
