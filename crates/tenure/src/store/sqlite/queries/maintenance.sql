-- Lists are JSON parameters. States are literals, because SQLite does not use a partial index for a bound parameter.

-- name: claim_list_lost
-- Claims whose session ended or whose time is over.
SELECT t.id, t.queue_id, t.token, t.state, t.attempt, t.max_attempts, t.worker, t.concurrency_key, t.failures, q.namespace,
       q.max_claimed IS NOT NULL AS has_claim_limit, EXISTS (SELECT 1 FROM tenure_task_dependencies e WHERE e.parent_id = t.id) AS has_children,
       x.session_ended, coalesce(t.claimed_at_ms + t.max_run_ms <= t.claim_expires_at_ms, 0) AS max_run_exceeded
FROM (SELECT i.id, 1 AS session_ended FROM tenure_tasks i
      WHERE i.state = 'claimed' AND i.queue_id IN (SELECT a.id FROM tenure_queues a) AND i.session IN (
          SELECT c.session FROM tenure_tasks c WHERE c.state = 'claimed' AND c.session IS NOT NULL
          EXCEPT SELECT s.id FROM tenure_sessions s WHERE s.state = 'live')
      UNION ALL
      SELECT i.id, 0 FROM tenure_tasks i WHERE i.state = 'claimed' AND i.claim_expires_at_ms < ?1
      LIMIT ?2) x
CROSS JOIN tenure_tasks t ON t.id = x.id JOIN tenure_queues q ON q.id = t.queue_id;

-- name: task_list_wait_expired
-- Tasks that no worker claimed within max_wait_ms.
SELECT t.id FROM tenure_tasks t WHERE t.wait_expires_at_ms < ?1 ORDER BY t.wait_expires_at_ms LIMIT ?2;

-- name: task_expire_wait
UPDATE tenure_tasks
SET state = 'dead', finished_at_ms = ?2, wait_expires_at_ms = NULL,
    end_reason = 'not claimed within max_wait_ms (' || max_wait_ms || ' ms)'
WHERE id IN (SELECT j.value FROM json_each(?1) j)
RETURNING id, concurrency_key;

-- name: task_list_due
SELECT t.id FROM tenure_queues q CROSS JOIN tenure_tasks t
WHERE t.queue_id = q.id AND t.state = 'scheduled' AND t.run_at_ms <= ?1 LIMIT ?2;

-- name: task_promote
UPDATE tenure_tasks
SET state = 'ready', ready_at_ms = coalesce(run_at_ms, ?2), wait_expires_at_ms = coalesce(run_at_ms, ?2) + max_wait_ms
WHERE id IN (SELECT j.value FROM json_each(?1) j)
RETURNING queue_id;

-- name: blocked_rescue
-- Unblocks the first task of each set of requirements whose concurrency key is below its limit. Needed when the process that ended the
-- last claim did not unblock it.
WITH RECURSIVE heads (id, key, requirements_id) AS (
    SELECT t.id, t.concurrency_key, t.requirements_id FROM tenure_tasks t
    WHERE t.id = (SELECT f.id FROM tenure_tasks f WHERE f.state = 'blocked'
                  ORDER BY f.concurrency_key, f.requirements_id, f.effective_at_ms, f.id LIMIT 1)
    UNION ALL
    SELECT t.id, t.concurrency_key, t.requirements_id FROM heads h CROSS JOIN tenure_tasks t
    WHERE t.id = coalesce(
        (SELECT n.id FROM tenure_tasks n WHERE n.state = 'blocked' AND n.concurrency_key = h.key AND n.requirements_id > h.requirements_id
         ORDER BY n.requirements_id, n.effective_at_ms, n.id LIMIT 1),
        (SELECT n.id FROM tenure_tasks n WHERE n.state = 'blocked' AND n.concurrency_key > h.key
         ORDER BY n.concurrency_key, n.requirements_id, n.effective_at_ms, n.id LIMIT 1))
    LIMIT ?1)
UPDATE tenure_tasks SET state = 'ready'
WHERE id IN (SELECT h.id FROM heads h JOIN tenure_tasks t ON t.id = h.id
             WHERE (SELECT count(*) FROM tenure_tasks c WHERE c.state = 'claimed' AND c.concurrency_key = h.key) < t.concurrency_limit)
RETURNING queue_id;

-- name: task_list_old
-- A task stays while a child is not completed, because the child may be retried and needs the result.
SELECT o.id FROM (
    SELECT t.id FROM tenure_queues q CROSS JOIN tenure_tasks t
    WHERE t.queue_id = q.id AND t.state = 'completed' AND t.finished_at_ms IS NOT NULL AND t.finished_at_ms < ?1 - q.retention_ms
    UNION ALL
    SELECT t.id FROM tenure_queues q CROSS JOIN tenure_tasks t
    WHERE t.queue_id = q.id AND t.state = 'cancelled' AND t.finished_at_ms IS NOT NULL AND t.finished_at_ms < ?1 - q.retention_ms
    UNION ALL
    SELECT t.id FROM tenure_queues q CROSS JOIN tenure_tasks t
    WHERE t.queue_id = q.id AND t.state = 'dead' AND t.finished_at_ms IS NOT NULL AND t.finished_at_ms < ?1 - q.dead_retention_ms) o
WHERE NOT EXISTS (SELECT 1 FROM tenure_task_dependencies e JOIN tenure_tasks c ON c.id = e.task_id
                  WHERE e.parent_id = o.id AND c.state <> 'completed')
LIMIT ?2;

-- name: task_prune
DELETE FROM tenure_tasks WHERE id IN (SELECT j.value FROM json_each(?1) j);

-- name: task_dependency_prune
-- Dependencies are deleted with the child, not with the parent.
DELETE FROM tenure_task_dependencies
WHERE (parent_id, task_id) IN (SELECT e.parent_id, e.task_id FROM json_each(?1) j CROSS JOIN tenure_task_dependencies e ON e.task_id = j.value);

-- name: requirements_prune
DELETE FROM tenure_task_requirements WHERE id IN (
    SELECT d.id FROM tenure_task_requirements d WHERE NOT EXISTS (SELECT 1 FROM tenure_tasks t WHERE t.requirements_id = d.id) LIMIT ?1);

-- name: maintenance_next_due
-- When the next wait or claim expires, and when the next task or resource becomes due.
SELECT (SELECT min(at_ms) FROM (
            SELECT min(t.claim_expires_at_ms) AS at_ms FROM tenure_tasks t WHERE t.state = 'claimed' AND t.claim_expires_at_ms IS NOT NULL
            UNION ALL SELECT min(t.wait_expires_at_ms) FROM tenure_tasks t WHERE t.wait_expires_at_ms IS NOT NULL
            UNION ALL SELECT min(r.expires_at_ms) FROM tenure_pool_requests r
                      WHERE r.ended_at_ms IS NULL AND r.expires_at_ms IS NOT NULL
       )) AS next_expiry_at_ms,
       (SELECT min(at_ms) FROM (
            SELECT (SELECT min(t.run_at_ms) FROM tenure_tasks t WHERE t.queue_id = q.id AND t.state = 'scheduled') AS at_ms
            FROM tenure_queues q
            UNION ALL SELECT min(s.cooldown_until_at_ms) FROM tenure_resources s
       )) AS next_due_at_ms;

-- name: queue_waiter_prune
DELETE FROM tenure_queue_waiters WHERE session NOT IN (SELECT s.id FROM tenure_sessions s WHERE s.state = 'live') OR registered_at_ms < ?1;

-- name: broker_is_leader
SELECT 1 FROM tenure_leases
WHERE namespace = 'tenure' AND election = 'broker' AND slot = 0 AND session = ?1 AND token = ?2;

-- name: broker_has_leader
SELECT 1 FROM tenure_leases WHERE namespace = 'tenure' AND election = 'broker' AND slot = 0 AND session IS NOT NULL;

-- name: broker_endpoint_put
INSERT INTO tenure_broker_endpoint (singleton, token, session, address, secret)
SELECT 1, ?1, ?2, ?3, ?4 FROM tenure_leases l
WHERE l.namespace = 'tenure' AND l.election = 'broker' AND l.slot = 0 AND l.session = ?2 AND l.token = ?1
ON CONFLICT (singleton) DO UPDATE SET
    token = excluded.token, session = excluded.session, address = excluded.address, secret = excluded.secret;

-- name: broker_endpoint_get
SELECT p.token, p.session, p.address, p.secret FROM tenure_broker_endpoint p
JOIN tenure_leases l ON l.namespace = 'tenure' AND l.election = 'broker' AND l.slot = 0 AND l.session = p.session AND l.token = p.token;
