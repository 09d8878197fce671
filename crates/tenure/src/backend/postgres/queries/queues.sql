-- name: queue_list
-- $1 namespace, or null for all. As JSON in the form that the library reads.
WITH claimed AS (
    SELECT c.queue, sum(c.tasks)::bigint AS tasks FROM tenure.claims_now() c GROUP BY c.queue
)
SELECT tenure.queue_view(q, c.tasks)::text AS queue FROM tenure.queues q LEFT JOIN claimed c ON c.queue = q.id
WHERE $1::text IS NULL OR q.namespace = $1
ORDER BY q.namespace, q.name;

-- name: queue_show
-- $1 namespace, $2 name.
SELECT tenure.queue_view(q, (SELECT sum(c.tasks)::bigint FROM tenure.claims_now() c WHERE c.queue = q.id))::text AS queue
FROM tenure.queues q WHERE q.namespace = $1 AND q.name = $2;

-- name: queue_make
-- $1 namespace, $2 name. And waits for the claims under way: none of them is committed after the queue was set.
SELECT tenure.close_gate(tenure.queue_id($1, $2));

-- name: queue_set
-- $1 namespace, $2 name, $3 settings.
WITH given AS (
    SELECT s.*, (s.rate ->> 'count')::bigint AS rate_count, (s.rate ->> 'per_ms')::bigint AS rate_per_ms
    FROM jsonb_to_record($3) AS s (
        mode text, fallback text, approval boolean, rate jsonb, max_claimed bigint, prefer_ms bigint, keep_ms bigint,
        keep_dead_ms bigint)
), was AS (
    SELECT q.id, q.rate_count, q.rate_per_ms FROM tenure.queues q WHERE q.namespace = $1 AND q.name = $2
), anew AS (
    -- Another rate begins with a full bucket.
    UPDATE tenure.turnstiles t SET parts = NULL FROM was, given g
    WHERE t.queue = was.id AND (was.rate_count, was.rate_per_ms) IS DISTINCT FROM (g.rate_count, g.rate_per_ms)
), done AS (
    UPDATE tenure.queues q
    SET mode = g.mode, fallback = g.fallback, approval = g.approval, rate_count = g.rate_count, rate_per_ms = g.rate_per_ms,
        max_claimed = g.max_claimed, prefer_ms = g.prefer_ms, keep_ms = g.keep_ms, keep_dead_ms = g.keep_dead_ms
    FROM given g WHERE q.namespace = $1 AND q.name = $2
    RETURNING q.namespace, q.name
)
-- Whatever kept somebody waiting may be no more.
SELECT tenure.ring(done.namespace, done.name, true) FROM done;

-- name: queue_pause
-- $1 namespace, $2 name, $3 by, $4 reason, $5 when (ms). A row: it was not.
UPDATE tenure.queues SET paused_by = $3, paused_reason = $4, paused_at = tenure.at($5)
WHERE namespace = $1 AND name = $2 AND paused_at IS NULL RETURNING id;

-- name: queue_resume
-- $1 namespace, $2 name. A row: it was paused.
WITH resumed AS (
    UPDATE tenure.queues SET paused_by = NULL, paused_reason = NULL, paused_at = NULL
    WHERE namespace = $1 AND name = $2 AND paused_at IS NOT NULL RETURNING namespace, name
)
SELECT tenure.ring(r.namespace, r.name, true) FROM resumed r;

-- name: namespace_pause
-- $1 namespace, $2 by, $3 reason, $4 when (ms). A row: it was not.
INSERT INTO tenure.namespaces AS n (name, paused_by, paused_reason, paused_at) VALUES ($1, $2, $3, tenure.at($4))
ON CONFLICT (name) DO UPDATE
SET paused_by = EXCLUDED.paused_by, paused_reason = EXCLUDED.paused_reason, paused_at = EXCLUDED.paused_at
WHERE n.paused_at IS NULL RETURNING name;

-- name: namespace_resume
-- $1 namespace. A row: it was paused.
WITH resumed AS (
    UPDATE tenure.namespaces SET paused_by = NULL, paused_reason = NULL, paused_at = NULL
    WHERE name = $1 AND paused_at IS NOT NULL RETURNING name
)
SELECT (SELECT count(tenure.ring(q.namespace, q.name, true)) FROM tenure.queues q WHERE q.namespace = r.name),
       (SELECT count(tenure.pool_wake(p.id)) FROM tenure.pools p WHERE p.namespace = r.name)
FROM resumed r;
