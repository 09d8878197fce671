-- name: queue_list
-- $1 namespace, or null for all. As JSON in the form that the library reads.
WITH claimed AS (
    SELECT c.queue_id, sum(c.task_count)::bigint AS task_count FROM tenure.count_claims() c GROUP BY c.queue_id
)
SELECT tenure.queue_json(q, c.task_count)::text AS queue FROM tenure.queues q LEFT JOIN claimed c ON c.queue_id = q.id
WHERE $1::text IS NULL OR q.namespace = $1
ORDER BY q.namespace, q.name;

-- name: queue_get
-- $1 namespace, $2 name.
SELECT tenure.queue_json(q, (SELECT sum(c.task_count)::bigint FROM tenure.count_claims() c
    WHERE c.queue_id = q.id))::text AS queue
FROM tenure.queues q WHERE q.namespace = $1 AND q.name = $2;

-- name: queue_create
-- $1 namespace, $2 name. Also waits for the claims in progress: none of them commits after a change of the queue.
SELECT tenure.lock_claims(tenure.ensure_queue($1, $2));

-- name: queue_set
-- $1 namespace, $2 name, $3 settings.
WITH settings AS (
    SELECT s.*, (s.rate ->> 'count')::bigint AS rate_count, (s.rate ->> 'per_ms')::bigint AS rate_per_ms
    FROM jsonb_to_record($3) AS s (
        mode text, fallback text, require_approval boolean, rate jsonb, max_claimed bigint, preference_window_ms bigint,
            retention_ms bigint,
        dead_retention_ms bigint)
), previous AS (
    SELECT q.id, q.rate_count, q.rate_per_ms FROM tenure.queues q WHERE q.namespace = $1 AND q.name = $2
), refilled AS (
    -- A new rate limit starts with full credit.
    UPDATE tenure.queue_counters t SET rate_credit = NULL FROM previous, settings g
    WHERE t.queue_id = previous.id AND (previous.rate_count, previous.rate_per_ms) IS DISTINCT
        FROM (g.rate_count, g.rate_per_ms)
), updated AS (
    UPDATE tenure.queues q
    SET mode = g.mode, fallback = g.fallback, require_approval = g.require_approval, rate_count = g.rate_count,
        rate_per_ms = g.rate_per_ms,
        max_claimed = g.max_claimed, preference_window_ms = g.preference_window_ms, retention_ms = g.retention_ms,
            dead_retention_ms = g.dead_retention_ms
    FROM settings g WHERE q.namespace = $1 AND q.name = $2
    RETURNING q.namespace, q.name
)
-- The old settings may have made consumers wait.
SELECT tenure.notify_queue(updated.namespace, updated.name, true) FROM updated;

-- name: queue_pause
-- $1 namespace, $2 name, $3 paused by, $4 reason, $5 time (ms). A row: it was not paused.
UPDATE tenure.queues SET paused_by = $3, paused_reason = $4, paused_at = tenure.from_unix_ms($5)
WHERE namespace = $1 AND name = $2 AND paused_at IS NULL RETURNING id;

-- name: queue_resume
-- $1 namespace, $2 name. A row: it was paused.
WITH resumed AS (
    UPDATE tenure.queues SET paused_by = NULL, paused_reason = NULL, paused_at = NULL
    WHERE namespace = $1 AND name = $2 AND paused_at IS NOT NULL RETURNING namespace, name
)
SELECT tenure.notify_queue(r.namespace, r.name, true) FROM resumed r;

-- name: namespace_pause
-- $1 namespace, $2 paused by, $3 reason, $4 time (ms). A row: it was not paused.
INSERT INTO tenure.namespaces AS n (name, paused_by, paused_reason, paused_at) VALUES ($1, $2, $3, tenure.from_unix_ms($4))
ON CONFLICT (name) DO UPDATE
SET paused_by = EXCLUDED.paused_by, paused_reason = EXCLUDED.paused_reason, paused_at = EXCLUDED.paused_at
WHERE n.paused_at IS NULL RETURNING name;

-- name: namespace_resume
-- $1 namespace. A row: it was paused.
WITH resumed AS (
    UPDATE tenure.namespaces SET paused_by = NULL, paused_reason = NULL, paused_at = NULL
    WHERE name = $1 AND paused_at IS NOT NULL RETURNING name
)
SELECT (SELECT count(tenure.notify_queue(q.namespace, q.name, true)) FROM tenure.queues q WHERE q.namespace = r.name),
       (SELECT count(tenure.notify_pool(p.id)) FROM tenure.pools p WHERE p.namespace = r.name)
FROM resumed r;
