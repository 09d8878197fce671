-- name: worker_register
INSERT INTO tenure_workers (namespace, name, description, tags, task_kinds, queues, location, capacity, session, last_seen_at_ms)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
ON CONFLICT (namespace, name) DO UPDATE SET
    description = excluded.description, tags = excluded.tags, task_kinds = excluded.task_kinds, queues = excluded.queues,
    location = excluded.location, capacity = excluded.capacity, session = excluded.session, last_seen_at_ms = excluded.last_seen_at_ms;

-- name: worker_set_last_seen
-- A worker without a session is online while it claims. At most one update per second.
UPDATE tenure_workers SET last_seen_at_ms = ?3
WHERE namespace = ?1 AND name IN (SELECT j.value FROM json_each(?2) j) AND last_seen_at_ms < ?3 - 1000;

-- name: worker_approve
INSERT INTO tenure_workers (namespace, name, approved_by, approved_at_ms) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (namespace, name) DO UPDATE SET approved_by = excluded.approved_by, approved_at_ms = excluded.approved_at_ms
WHERE tenure_workers.approved_by IS NULL;

-- name: worker_disapprove
UPDATE tenure_workers SET approved_by = NULL, approved_at_ms = NULL
WHERE namespace = ?1 AND name = ?2 AND approved_by IS NOT NULL;

-- name: worker_list
-- Counts the claims of all workers in one pass.
WITH claimed (namespace, worker, task_count) AS MATERIALIZED (
    SELECT q.namespace, t.worker, count(*) FROM tenure_queues q CROSS JOIN tenure_tasks t
    WHERE t.queue_id = q.id AND t.state = 'claimed'
    GROUP BY q.namespace, t.worker)
SELECT w.*, coalesce(s.state = 'live', 0) AS session_live, s.heartbeat_at_ms, coalesce(c.task_count, 0) AS claimed_count
FROM tenure_workers w LEFT JOIN tenure_sessions s ON s.id = w.session
LEFT JOIN claimed c ON c.namespace = w.namespace AND c.worker = w.name
WHERE ?1 IS NULL OR w.namespace = ?1
ORDER BY w.namespace, w.name;

-- name: worker_prune
-- Workers that were not seen for a long time. Approved names stay until the approval is revoked.
DELETE FROM tenure_workers WHERE (namespace, name) IN (
    SELECT w.namespace, w.name FROM tenure_workers w LEFT JOIN tenure_sessions s ON s.id = w.session
    WHERE w.approved_by IS NULL AND coalesce(s.state, '') <> 'live'
      AND max(coalesce(w.last_seen_at_ms, 0), coalesce(s.heartbeat_at_ms, 0)) < ?1
    LIMIT ?2);
