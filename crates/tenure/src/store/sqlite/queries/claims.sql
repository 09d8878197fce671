-- Lists are JSON parameters, because every statement costs a round trip to the thread of the connection. States are literals,
-- because SQLite does not use a partial index for a bound parameter. INDEXED BY selects the index where the planner may choose a
-- longer one.

-- name: submit_parent_states
SELECT j.value AS id, (SELECT t.state FROM tenure_tasks t JOIN tenure_queues q ON q.id = t.queue_id
                       WHERE t.id = j.value AND q.namespace = ?2) AS state
FROM json_each(?1) j;

-- name: submit_find_by_idempotency_key
-- ?1: JSON array of [queue_id, idempotency_key].
SELECT t.queue_id, t.idempotency_key, t.id FROM json_each(?1) j
CROSS JOIN tenure_tasks t ON t.queue_id = j.value ->> 0 AND t.idempotency_key = j.value ->> 1;

-- name: submit_next_id
-- The transaction must have written already, so that no other one can assign ids.
SELECT max(coalesce((SELECT max(id) FROM tenure_tasks), 0),
           coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'tenure_tasks'), 0)) + 1 AS id;

-- name: requirements_create
INSERT INTO tenure_task_requirements (queue_id, kind, required_tags, preferred_tags, allowed_workers)
SELECT j.value ->> 0, j.value ->> 1, j.value ->> 2, j.value ->> 3, j.value ->> 4 FROM json_each(?1) j
WHERE true
ON CONFLICT (queue_id, kind, required_tags, preferred_tags, allowed_workers) DO NOTHING;

-- name: requirements_find
SELECT j.key AS list_index, d.id FROM json_each(?1) j
CROSS JOIN tenure_task_requirements d ON d.queue_id = j.value ->> 0 AND d.kind = j.value ->> 1
    AND d.required_tags = j.value ->> 2 AND d.preferred_tags = j.value ->> 3 AND d.allowed_workers = j.value ->> 4;

-- name: task_submit
-- One row; the Rust code repeats the values for several rows.
INSERT INTO tenure_tasks
    (id, queue_id, requirements_id, state, effective_at_ms, priority, max_attempts, parent_count, concurrency_key, concurrency_limit,
     idempotency_key, leader_token, initial_backoff_ms, max_backoff_ms, max_wait_ms, max_run_ms, submitted_at_ms, run_at_ms,
     ready_at_ms, wait_expires_at_ms, payload)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: task_dependency_put
INSERT INTO tenure_task_dependencies (parent_id, task_id)
SELECT DISTINCT j.value ->> 0, j.value ->> 1 FROM json_each(?1) j;

-- name: task_promote_due
-- The task became ready at run_at_ms, even if the store promotes it later.
UPDATE tenure_tasks
SET state = 'ready', ready_at_ms = coalesce(run_at_ms, ?2), wait_expires_at_ms = coalesce(run_at_ms, ?2) + max_wait_ms
WHERE id IN (SELECT t.id FROM tenure_tasks t
             WHERE t.queue_id = ?1 AND t.state = 'scheduled' AND t.run_at_ms <= ?2
             ORDER BY t.run_at_ms LIMIT ?3);

-- name: claim_get
SELECT q.*, coalesce(c.claim_seq, 0) AS claim_seq, coalesce(c.rate_used_until_at_ms, 0.0) AS rate_used_until_at_ms,
       n.paused_at_ms AS namespace_paused_at_ms,
       EXISTS (SELECT 1 FROM tenure_leases l
               WHERE l.namespace = 'tenure' AND l.election = 'broker' AND l.slot = 0 AND l.session = ?4 AND l.token = ?5) AS is_leader,
       (SELECT min(t.run_at_ms) FROM tenure_tasks t WHERE t.queue_id = q.id AND t.state = 'scheduled') AS next_run_at_ms,
       CASE WHEN q.max_claimed IS NOT NULL
            THEN (SELECT count(*) FROM tenure_tasks t WHERE t.queue_id = q.id AND t.state = 'claimed') END AS claimed_count,
       (SELECT s.key FROM json_each(?3) s
        WHERE s.value ->> 1 IS NOT NULL
          AND NOT EXISTS (SELECT 1 FROM tenure_sessions l WHERE l.id = s.value ->> 1 AND l.state = 'live')
        ORDER BY s.key LIMIT 1) AS ended_session_index,
       CASE WHEN q.require_approval THEN
           (SELECT s.key FROM json_each(?3) s
            WHERE NOT EXISTS (SELECT 1 FROM tenure_workers w
                              WHERE w.namespace = ?1 AND w.name = s.value ->> 0 AND w.approved_by IS NOT NULL)
            ORDER BY s.key LIMIT 1) END AS unapproved_index
FROM tenure_queues q LEFT JOIN tenure_queue_counters c ON c.queue_id = q.id LEFT JOIN tenure_namespaces n ON n.name = q.namespace
WHERE q.namespace = ?1 AND q.name = ?2;

-- name: requirements_with_ready_tasks
SELECT d.id, d.kind, d.required_tags, d.preferred_tags, d.allowed_workers FROM tenure_task_requirements d
WHERE d.queue_id = ?1 AND EXISTS (SELECT 1 FROM tenure_tasks t INDEXED BY tenure_tasks_ready WHERE t.requirements_id = d.id AND t.state = 'ready');

-- name: task_list_first
-- The first ready tasks of each set of requirements.
SELECT t.id, t.requirements_id, t.effective_at_ms, t.ready_at_ms, t.concurrency_key, t.concurrency_limit, t.parent_count,
       octet_length(t.payload) AS payload_bytes
FROM json_each(?1) d CROSS JOIN tenure_tasks t
WHERE t.id IN (SELECT h.id FROM tenure_tasks h INDEXED BY tenure_tasks_ready WHERE h.requirements_id = d.value AND h.state = 'ready'
               ORDER BY h.effective_at_ms, h.id LIMIT ?2);

-- name: task_list_first_waited
-- For requirements that prefer other workers: the first tasks whose preference window is over. The scan is limited, so that a worker
-- without the preferred tags does not read a million new tasks.
SELECT t.id, t.requirements_id, t.effective_at_ms, t.ready_at_ms, t.concurrency_key, t.concurrency_limit, t.parent_count,
       octet_length(t.payload) AS payload_bytes
FROM json_each(?1) d CROSS JOIN tenure_tasks t
WHERE t.id IN (SELECT i.id FROM (SELECT h.id, h.ready_at_ms FROM tenure_tasks h INDEXED BY tenure_tasks_ready WHERE h.requirements_id = d.value AND h.state = 'ready'
                                 ORDER BY h.effective_at_ms, h.id LIMIT ?2 + 5000) i
               WHERE i.ready_at_ms <= ?3 LIMIT ?2);

-- name: task_next_preference_end
-- When the next of these tasks whose preference window is not over became ready.
SELECT min(t.ready_at_ms) FROM json_each(?1) d CROSS JOIN tenure_tasks t
WHERE t.id IN (SELECT h.id FROM tenure_tasks h INDEXED BY tenure_tasks_ready WHERE h.requirements_id = d.value AND h.state = 'ready'
               ORDER BY h.effective_at_ms, h.id LIMIT 1000)
  AND t.ready_at_ms > ?2;

-- name: concurrency_key_counts
SELECT t.concurrency_key, count(*) AS claimed_count FROM json_each(?1) j CROSS JOIN tenure_tasks t
WHERE t.concurrency_key = j.value AND t.state = 'claimed'
GROUP BY t.concurrency_key;

-- name: task_block
UPDATE tenure_tasks SET state = 'blocked' WHERE id IN (SELECT j.value FROM json_each(?1) j);

-- name: task_claim
-- ?1: JSON array of [id, worker, session, claim_timeout_ms, claim_seq] of tasks that this transaction found ready.
UPDATE tenure_tasks AS t
SET state = 'claimed', attempt = t.attempt + 1,
    token = max(t.token, (SELECT o.epoch << 40 FROM tenure_epoch o WHERE o.singleton = 1)) + 1,
    worker = c.value ->> 1, session = c.value ->> 2,
    claim_seq = c.value ->> 4, claimed_at_ms = ?2, progress = NULL, wait_expires_at_ms = NULL,
    claim_expires_at_ms = min(coalesce(?2 + (c.value ->> 3), ?2 + t.max_run_ms), coalesce(?2 + t.max_run_ms, ?2 + (c.value ->> 3)))
FROM json_each(?1) c
WHERE t.id = c.value ->> 0
RETURNING id, requirements_id, token, attempt, max_attempts, priority, max_run_ms, claim_expires_at_ms, submitted_at_ms, claim_seq,
          leader_token, initial_backoff_ms, max_backoff_ms, parent_count, idempotency_key, payload;

-- name: task_inputs
SELECT e.task_id, e.parent_id, p.result FROM json_each(?1) j
CROSS JOIN tenure_task_dependencies e ON e.task_id = j.value
JOIN tenure_tasks p ON p.id = e.parent_id;

-- name: task_input_bytes
SELECT e.task_id, sum(octet_length(p.result)) AS result_bytes FROM json_each(?1) j
CROSS JOIN tenure_task_dependencies e ON e.task_id = j.value
JOIN tenure_tasks p ON p.id = e.parent_id
GROUP BY e.task_id;

-- name: queue_counters_update
INSERT INTO tenure_queue_counters (queue_id, claim_seq, rate_used_until_at_ms) VALUES (?1, ?2, ?3)
ON CONFLICT (queue_id) DO UPDATE SET
    claim_seq = tenure_queue_counters.claim_seq + excluded.claim_seq, rate_used_until_at_ms = excluded.rate_used_until_at_ms;

-- name: settle_get
SELECT t.id, t.queue_id, t.token, t.state, t.attempt, t.max_attempts, t.worker, t.concurrency_key, t.failures, q.namespace,
       q.max_claimed IS NOT NULL AS has_claim_limit, EXISTS (SELECT 1 FROM tenure_task_dependencies e WHERE e.parent_id = t.id) AS has_children
FROM json_each(?1) j CROSS JOIN tenure_tasks t ON t.id = j.value JOIN tenure_queues q ON q.id = t.queue_id;

-- name: task_complete
-- The table has an alias, because json_each also has a column id.
UPDATE tenure_tasks AS t
SET state = 'completed', result = c.value ->> 1, finished_at_ms = ?2, session = NULL, claim_expires_at_ms = NULL
FROM json_each(?1) c
WHERE t.id = c.value ->> 0;

-- name: task_requeue
-- ?1: JSON array of objects. The state is ready, scheduled or dead.
UPDATE tenure_tasks AS t
SET state = c.value ->> 'state', attempt = c.value ->> 'attempt',
    run_at_ms = CASE WHEN json_type(c.value, '$.run_at_ms') IS NULL THEN t.run_at_ms ELSE c.value ->> 'run_at_ms' END,
    ready_at_ms = CASE WHEN c.value ->> 'state' = 'ready' THEN ?2 ELSE t.ready_at_ms END,
    wait_expires_at_ms = CASE WHEN c.value ->> 'state' = 'ready' THEN ?2 + t.max_wait_ms END,
    failures = c.value ->> 'failures', end_reason = c.value ->> 'end_reason',
    finished_at_ms = CASE WHEN c.value ->> 'state' = 'dead' THEN ?2 END, session = NULL, claim_expires_at_ms = NULL
FROM json_each(?1) c
WHERE t.id = c.value ->> 'id';

-- name: task_heartbeat
-- Heartbeats never extend a claim beyond max_run_ms.
UPDATE tenure_tasks AS t
SET progress = coalesce(c.value ->> 1, t.progress),
    claim_expires_at_ms = CASE WHEN c.value ->> 2 IS NULL THEN t.claim_expires_at_ms
                    ELSE min(?2 + (c.value ->> 2), coalesce(t.claimed_at_ms + t.max_run_ms, ?2 + (c.value ->> 2))) END
FROM json_each(?1) c
WHERE t.id = c.value ->> 0;

-- name: children_release
-- Releases children whose parents are all completed.
UPDATE tenure_tasks AS t
SET state = CASE WHEN t.run_at_ms > ?2 THEN 'scheduled' ELSE 'ready' END,
    ready_at_ms = CASE WHEN t.run_at_ms > ?2 THEN t.ready_at_ms ELSE ?2 END,
    wait_expires_at_ms = CASE WHEN t.run_at_ms > ?2 THEN NULL ELSE ?2 + t.max_wait_ms END
WHERE t.id IN (SELECT e.task_id FROM json_each(?1) j CROSS JOIN tenure_task_dependencies e ON e.parent_id = j.value)
  AND +t.state = 'waiting'
  AND NOT EXISTS (SELECT 1 FROM tenure_task_dependencies o JOIN tenure_tasks p ON p.id = o.parent_id
                  WHERE o.task_id = t.id AND p.state <> 'completed')
RETURNING queue_id, state;

-- name: children_cascade
-- Ends all unfinished descendants of these dead or cancelled tasks in the same state, and records the parent of each.
WITH RECURSIVE descendants (id, via, end_state) AS (
    SELECT e.task_id, e.parent_id, p.state FROM json_each(?1) j CROSS JOIN tenure_tasks p ON p.id = j.value
    JOIN tenure_task_dependencies e ON e.parent_id = p.id
    WHERE p.state IN ('dead', 'cancelled')
    UNION
    SELECT e.task_id, e.parent_id, d.end_state FROM descendants d CROSS JOIN tenure_tasks t ON t.id = d.id AND t.finished_at_ms IS NULL
    JOIN tenure_task_dependencies e ON e.parent_id = d.id)
UPDATE tenure_tasks AS t
SET state = d.end_state, cascaded_from_id = d.via, end_reason = 'parent ' || d.via || ' is ' || d.end_state, finished_at_ms = ?2,
    session = NULL, claim_expires_at_ms = NULL, wait_expires_at_ms = NULL
FROM (SELECT id, min(via) AS via, max(end_state) AS end_state FROM descendants GROUP BY id) d
WHERE t.id = d.id AND +t.finished_at_ms IS NULL
RETURNING id;

-- name: concurrency_keys_unblock
-- Unblocks, for each set of requirements, as many tasks as claims of the key ended: which requirements the next worker meets is not
-- known here.
WITH RECURSIVE heads (key, n, requirements_id) AS (
    SELECT j.value ->> 0, j.value ->> 1,
           (SELECT min(t.requirements_id) FROM tenure_tasks t WHERE t.state = 'blocked' AND t.concurrency_key = j.value ->> 0)
    FROM json_each(?1) j
    UNION ALL
    SELECT h.key, h.n, (SELECT min(t.requirements_id) FROM tenure_tasks t
                        WHERE t.state = 'blocked' AND t.concurrency_key = h.key AND t.requirements_id > h.requirements_id)
    FROM heads h WHERE h.requirements_id IS NOT NULL)
UPDATE tenure_tasks SET state = 'ready'
WHERE id IN (
    SELECT f.id FROM (
        SELECT t.id, h.n, row_number() OVER (PARTITION BY t.concurrency_key, t.requirements_id ORDER BY t.effective_at_ms, t.id) AS rank
        FROM heads h CROSS JOIN tenure_tasks t
        WHERE h.requirements_id IS NOT NULL AND t.id IN (
            SELECT i.id FROM tenure_tasks i WHERE i.state = 'blocked' AND i.concurrency_key = h.key AND i.requirements_id = h.requirements_id
            ORDER BY i.effective_at_ms, i.id LIMIT ?2)) f
    WHERE f.rank <= f.n)
RETURNING queue_id;

-- name: claim_list
SELECT t.id, t.token FROM tenure_tasks t
WHERE t.queue_id IN (SELECT q.id FROM tenure_queues q) AND t.session = ?1 AND t.state = 'claimed'
ORDER BY t.id;

-- name: queue_waiter_register
INSERT INTO tenure_queue_waiters (namespace, queue, session, registered_at_ms)
SELECT j.value ->> 0, j.value ->> 1, ?2, ?3 FROM json_each(?1) j
WHERE true
ON CONFLICT (namespace, queue, session) DO UPDATE SET registered_at_ms = excluded.registered_at_ms;

-- name: queue_waiter_notify
DELETE FROM tenure_queue_waiters
WHERE (namespace, queue) IN (SELECT q.namespace, q.name FROM json_each(?1) j CROSS JOIN tenure_queues q ON q.id = j.value)
RETURNING namespace, queue;
