-- name: worker_register
-- $1 namespace, $2 name, $3 description, $4 tags, $5 task kinds, $6 queues, $7 location, $8 capacity, $9 session.
INSERT INTO tenure.workers (namespace, name, description, tags, task_kinds, queues, location, capacity, session, last_seen_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, now())
ON CONFLICT (namespace, name) DO UPDATE
SET description = EXCLUDED.description, tags = EXCLUDED.tags, task_kinds = EXCLUDED.task_kinds, queues = EXCLUDED.queues,
    location = EXCLUDED.location, capacity = EXCLUDED.capacity, session = EXCLUDED.session,
        last_seen_at = EXCLUDED.last_seen_at;

-- name: worker_list
-- $1 namespace, or null for all. As JSON in the form that the library reads.
WITH claimed AS (
    SELECT q.namespace, c.worker, sum(c.task_count)::bigint AS task_count
    FROM tenure.count_claims() c JOIN tenure.queues q ON q.id = c.queue_id GROUP BY 1, 2
)
SELECT tenure.worker_json(w, c.task_count)::text AS worker
FROM tenure.workers w LEFT JOIN claimed c ON c.namespace = w.namespace AND c.worker = w.name
WHERE $1::text IS NULL OR w.namespace = $1
ORDER BY w.namespace, w.name;

-- name: worker_approve
-- $1 namespace, $2 name, $3 approved by. A row: it was not approved.
WITH approved AS (
    INSERT INTO tenure.workers AS w (namespace, name, approved_by) VALUES ($1, $2, $3)
    ON CONFLICT (namespace, name) DO UPDATE SET approved_by = EXCLUDED.approved_by WHERE w.approved_by IS NULL
    RETURNING w.namespace
)
SELECT (SELECT count(tenure.notify_queue(q.namespace, q.name, true)) FROM tenure.queues q
        WHERE q.namespace = a.namespace AND q.require_approval) FROM approved a;

-- name: worker_disapprove
-- $1 namespace, $2 name. A row: it was approved. Deletes a worker that never registered.
WITH unseen AS (
    DELETE FROM tenure.workers WHERE namespace = $1 AND name = $2 AND approved_by IS NOT NULL AND last_seen_at IS NULL
    RETURNING name
), seen AS (
    UPDATE tenure.workers SET approved_by = NULL
    WHERE namespace = $1 AND name = $2 AND approved_by IS NOT NULL AND last_seen_at IS NOT NULL RETURNING name
)
SELECT name FROM unseen UNION ALL SELECT name FROM seen;
