-- Lists are JSON parameters. States are literals, because SQLite does not use a partial index for a bound parameter.

-- name: task_list
SELECT t.*, q.namespace, q.name AS queue_name, d.kind, d.required_tags, d.preferred_tags, d.allowed_workers,
       (SELECT json_group_array(e.parent_id) FROM tenure_task_dependencies e WHERE e.task_id = t.id) AS parent_ids,
       (SELECT json_group_array(e.task_id) FROM tenure_task_dependencies e WHERE e.parent_id = t.id) AS child_ids
FROM tenure_tasks t JOIN tenure_queues q ON q.id = t.queue_id JOIN tenure_task_requirements d ON d.id = t.requirements_id
WHERE t.id < ?1 AND (?2 IS NULL OR q.namespace = ?2) AND (?3 IS NULL OR q.name = ?3)
  AND (?4 IS NULL OR t.state IN (SELECT j.value FROM json_each(?4) j))
  AND (?5 IS NULL OR d.kind = ?5) AND (?6 IS NULL OR t.worker = ?6)
ORDER BY t.id DESC LIMIT ?7;

-- name: task_get
SELECT t.*, q.namespace, q.name AS queue_name, d.kind, d.required_tags, d.preferred_tags, d.allowed_workers,
       (SELECT json_group_array(e.parent_id) FROM tenure_task_dependencies e WHERE e.task_id = t.id) AS parent_ids,
       (SELECT json_group_array(e.task_id) FROM tenure_task_dependencies e WHERE e.parent_id = t.id) AS child_ids
FROM tenure_tasks t JOIN tenure_queues q ON q.id = t.queue_id JOIN tenure_task_requirements d ON d.id = t.requirements_id
WHERE t.id = ?2 AND q.namespace = ?1;

-- name: task_list_by_id
SELECT t.id, t.queue_id, t.state, t.session, t.concurrency_key, q.max_claimed IS NOT NULL AS has_claim_limit
FROM json_each(?1) j CROSS JOIN tenure_tasks t ON t.id = j.value
JOIN tenure_queues q ON q.id = t.queue_id
WHERE q.namespace = ?2;

-- name: task_cancel
UPDATE tenure_tasks
SET state = 'cancelled', finished_at_ms = ?2, end_reason = 'cancelled', session = NULL, claim_expires_at_ms = NULL, wait_expires_at_ms = NULL
WHERE id IN (SELECT j.value FROM json_each(?1) j) AND finished_at_ms IS NULL;

-- name: retry_get
-- The retryable tasks among these, and all descendants that ended because of them.
WITH RECURSIVE descendants (id) AS (
    SELECT t.id FROM json_each(?1) j CROSS JOIN tenure_tasks t ON t.id = j.value
    WHERE t.state IN ('dead', 'cancelled', 'scheduled')
    UNION
    SELECT t.id FROM descendants d CROSS JOIN tenure_task_dependencies e ON e.parent_id = d.id
    JOIN tenure_tasks t ON t.id = e.task_id AND t.cascaded_from_id = d.id AND t.state IN ('dead', 'cancelled'))
SELECT t.id, t.state, t.cascaded_from_id FROM descendants d CROSS JOIN tenure_tasks t ON t.id = d.id;

-- name: retry_parents
-- The dead or cancelled parents of these tasks.
SELECT e.task_id, e.parent_id, p.state FROM json_each(?1) j CROSS JOIN tenure_task_dependencies e ON e.task_id = j.value
JOIN tenure_tasks p ON p.id = e.parent_id
WHERE p.state IN ('dead', 'cancelled')
ORDER BY e.parent_id;

-- name: task_retry
-- All become waiting; task_release_waiting then releases those without pending parents. Tasks that the operator named (?2) lose
-- their run_at_ms.
UPDATE tenure_tasks
SET state = 'waiting', attempt = 0, result = NULL, finished_at_ms = NULL, cascaded_from_id = NULL, end_reason = NULL,
    wait_expires_at_ms = NULL, run_at_ms = CASE WHEN id IN (SELECT j.value FROM json_each(?2) j) THEN NULL ELSE run_at_ms END
WHERE id IN (SELECT j.value FROM json_each(?1) j);

-- name: task_set_cascade
-- The parent that ended the task is retried, but another parent is dead or cancelled.
UPDATE tenure_tasks AS t SET cascaded_from_id = c.value ->> 1, end_reason = 'parent ' || (c.value ->> 1) || ' is ' || (c.value ->> 2)
FROM json_each(?1) c
WHERE t.id = c.value ->> 0;

-- name: task_release_waiting
-- Releases the waiting tasks among these that have no pending parents.
UPDATE tenure_tasks AS t
SET state = CASE WHEN t.run_at_ms > ?2 THEN 'scheduled' ELSE 'ready' END,
    ready_at_ms = CASE WHEN t.run_at_ms > ?2 THEN t.ready_at_ms ELSE ?2 END,
    wait_expires_at_ms = CASE WHEN t.run_at_ms > ?2 THEN NULL ELSE ?2 + t.max_wait_ms END
WHERE t.id IN (SELECT j.value FROM json_each(?1) j) AND +t.state = 'waiting'
  AND NOT EXISTS (SELECT 1 FROM tenure_task_dependencies o JOIN tenure_tasks p ON p.id = o.parent_id
                  WHERE o.task_id = t.id AND p.state <> 'completed')
RETURNING queue_id, state;

-- name: task_pending_parents
SELECT p.id FROM tenure_task_dependencies e JOIN tenure_tasks p ON p.id = e.parent_id
WHERE e.task_id = ?1 AND p.state <> 'completed' ORDER BY p.id;

-- name: task_count_ahead
SELECT count(*) FROM tenure_task_requirements d CROSS JOIN tenure_tasks o INDEXED BY tenure_tasks_ready
WHERE d.queue_id = ?1 AND o.requirements_id = d.id AND o.state = 'ready' AND (o.effective_at_ms, o.id) < (?2, ?3);

-- name: task_list_finished
SELECT d.kind, t.state, t.ready_at_ms, t.claimed_at_ms, t.finished_at_ms FROM (
    SELECT * FROM (SELECT c.requirements_id, c.state, c.ready_at_ms, c.claimed_at_ms, c.finished_at_ms FROM tenure_tasks c
                   WHERE c.queue_id = ?1 AND c.state = 'completed' AND c.finished_at_ms IS NOT NULL
                   ORDER BY c.finished_at_ms DESC LIMIT ?2)
    UNION ALL
    SELECT * FROM (SELECT c.requirements_id, c.state, c.ready_at_ms, c.claimed_at_ms, c.finished_at_ms FROM tenure_tasks c
                   WHERE c.queue_id = ?1 AND c.state = 'dead' AND c.finished_at_ms IS NOT NULL
                   ORDER BY c.finished_at_ms DESC LIMIT ?2)) t
JOIN tenure_task_requirements d ON d.id = t.requirements_id
ORDER BY t.finished_at_ms DESC LIMIT ?2;
