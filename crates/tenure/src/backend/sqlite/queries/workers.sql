-- name: worker_register
INSERT INTO tenure_workers (namespace, name, kind, tags, kinds, queues, location, capacity, session, seen_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
ON CONFLICT (namespace, name) DO UPDATE SET
    kind = excluded.kind, tags = excluded.tags, kinds = excluded.kinds, queues = excluded.queues, location = excluded.location,
    capacity = excluded.capacity, session = excluded.session, seen_at = excluded.seen_at;

-- name: worker_seen
-- Who has no session is known to live by its claims. Once a second is often enough.
UPDATE tenure_workers SET seen_at = ?3
WHERE namespace = ?1 AND name IN (SELECT j.value FROM json_each(?2) j) AND seen_at < ?3 - 1000;

-- name: worker_approve
INSERT INTO tenure_workers (namespace, name, approved_by, approved_at) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (namespace, name) DO UPDATE SET approved_by = excluded.approved_by, approved_at = excluded.approved_at
WHERE tenure_workers.approved_by IS NULL;

-- name: worker_disapprove
UPDATE tenure_workers SET approved_by = NULL, approved_at = NULL
WHERE namespace = ?1 AND name = ?2 AND approved_by IS NOT NULL;

-- name: worker_list
-- One walk over what is claimed, however many there are.
WITH claimed (namespace, worker, tasks) AS MATERIALIZED (
    SELECT q.namespace, t.worker, count(*) FROM tenure_queues q CROSS JOIN tenure_tasks t
    WHERE t.queue = q.id AND t.state = 'claimed'
    GROUP BY q.namespace, t.worker)
SELECT w.*, coalesce(s.state = 'live', 0) AS session_live, s.beat_at, coalesce(c.tasks, 0) AS claimed
FROM tenure_workers w LEFT JOIN tenure_sessions s ON s.id = w.session
LEFT JOIN claimed c ON c.namespace = w.namespace AND c.worker = w.name
WHERE ?1 IS NULL OR w.namespace = ?1
ORDER BY w.namespace, w.name;

-- name: worker_forget
-- Those that nobody has seen for long. An approval is somebody's word about a name, and stays until it is taken back.
DELETE FROM tenure_workers WHERE (namespace, name) IN (
    SELECT w.namespace, w.name FROM tenure_workers w LEFT JOIN tenure_sessions s ON s.id = w.session
    WHERE w.approved_by IS NULL AND coalesce(s.state, '') <> 'live'
      AND max(coalesce(w.seen_at, 0), coalesce(s.beat_at, 0)) < ?1
    LIMIT ?2);
