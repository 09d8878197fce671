-- Lists go in as JSON, since every statement is a trip to the connection's thread. States are literals: a bound one would
-- not use a partial index. Which index is said where there are two, and only one of them is short.

-- name: submit_parents
SELECT j.value AS id, (SELECT t.state FROM tenure_tasks t JOIN tenure_queues q ON q.id = t.queue
                       WHERE t.id = j.value AND q.namespace = ?2) AS state
FROM json_each(?1) j;

-- name: submit_keys
-- Queue and key of each.
SELECT t.queue, t.key, t.id FROM json_each(?1) j
CROSS JOIN tenure_tasks t ON t.queue = j.value ->> 0 AND t.key = j.value ->> 1;

-- name: submit_next
-- Within a transaction that has written, nobody else gives numbers.
SELECT max(coalesce((SELECT max(id) FROM tenure_tasks), 0),
           coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'tenure_tasks'), 0)) + 1 AS id;

-- name: demand_make
INSERT INTO tenure_demands (queue, kind, requires, prefers, workers)
SELECT j.value ->> 0, j.value ->> 1, j.value ->> 2, j.value ->> 3, j.value ->> 4 FROM json_each(?1) j
WHERE true
ON CONFLICT (queue, kind, requires, prefers, workers) DO NOTHING;

-- name: demand_find
SELECT j.key AS place, d.id FROM json_each(?1) j
CROSS JOIN tenure_demands d ON d.queue = j.value ->> 0 AND d.kind = j.value ->> 1 AND d.requires = j.value ->> 2
    AND d.prefers = j.value ->> 3 AND d.workers = j.value ->> 4;

-- name: task_submit
-- Of one row, or of many: its values are repeated.
INSERT INTO tenure_tasks
    (id, queue, demand, state, effective_at, priority, max_attempts, parents, concurrency, concurrency_limit, key,
     leader_token, backoff_first_ms, backoff_most_ms, max_wait_ms, max_run_ms, enqueued_at, run_at, ready_at, wait_until, payload)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: task_parents_put
INSERT INTO tenure_task_parents (parent, child)
SELECT DISTINCT j.value ->> 0, j.value ->> 1 FROM json_each(?1) j;

-- name: task_due
-- From its time on it could have been claimed, whenever that is noticed.
UPDATE tenure_tasks
SET state = 'ready', ready_at = coalesce(run_at, ?2), wait_until = coalesce(run_at, ?2) + max_wait_ms
WHERE id IN (SELECT t.id FROM tenure_tasks t
             WHERE t.queue = ?1 AND t.state = 'scheduled' AND t.run_at <= ?2
             ORDER BY t.run_at LIMIT ?3);

-- name: claim_look
SELECT q.*, p.paused_at AS all_paused_at,
       EXISTS (SELECT 1 FROM tenure_leases l
               WHERE l.namespace = 'tenure' AND l.name = 'claims' AND l.slot = 0 AND l.session = ?4 AND l.token = ?5) AS leads,
       (SELECT min(t.run_at) FROM tenure_tasks t WHERE t.queue = q.id AND t.state = 'scheduled') AS next_run_at,
       CASE WHEN q.max_claimed IS NOT NULL
            THEN (SELECT count(*) FROM tenure_tasks t WHERE t.queue = q.id AND t.state = 'claimed') END AS claimed,
       (SELECT s.key FROM json_each(?3) s
        WHERE s.value ->> 1 IS NOT NULL
          AND NOT EXISTS (SELECT 1 FROM tenure_sessions l WHERE l.id = s.value ->> 1 AND l.state = 'live')
        ORDER BY s.key LIMIT 1) AS gone,
       CASE WHEN q.approval THEN
           (SELECT s.key FROM json_each(?3) s
            WHERE NOT EXISTS (SELECT 1 FROM tenure_workers w
                              WHERE w.namespace = ?1 AND w.name = s.value ->> 0 AND w.approved_by IS NOT NULL)
            ORDER BY s.key LIMIT 1) END AS unapproved
FROM tenure_queues q LEFT JOIN tenure_pauses p ON p.namespace = q.namespace
WHERE q.namespace = ?1 AND q.name = ?2;

-- name: demand_ready
SELECT d.id, d.kind, d.requires, d.prefers, d.workers FROM tenure_demands d
WHERE d.queue = ?1 AND EXISTS (SELECT 1 FROM tenure_tasks t INDEXED BY tenure_tasks_ready WHERE t.demand = d.id AND t.state = 'ready');

-- name: task_heads
-- The first of each demand.
SELECT t.id, t.demand, t.effective_at, t.ready_at, t.concurrency, t.concurrency_limit, t.parents,
       octet_length(t.payload) AS bytes
FROM json_each(?1) d CROSS JOIN tenure_tasks t
WHERE t.id IN (SELECT h.id FROM tenure_tasks h INDEXED BY tenure_tasks_ready WHERE h.demand = d.value AND h.state = 'ready'
               ORDER BY h.effective_at, h.id LIMIT ?2);

-- name: task_heads_waited
-- Of those that prefer others, the first that have been ready for long enough. Not all are looked at: a worker that is not
-- preferred does not read through a million that came just now.
SELECT t.id, t.demand, t.effective_at, t.ready_at, t.concurrency, t.concurrency_limit, t.parents,
       octet_length(t.payload) AS bytes
FROM json_each(?1) d CROSS JOIN tenure_tasks t
WHERE t.id IN (SELECT i.id FROM (SELECT h.id, h.ready_at FROM tenure_tasks h INDEXED BY tenure_tasks_ready WHERE h.demand = d.value AND h.state = 'ready'
                                 ORDER BY h.effective_at, h.id LIMIT ?2 + 5000) i
               WHERE i.ready_at <= ?3 LIMIT ?2);

-- name: task_heads_next
-- Since when the first of those that have not has been ready.
SELECT min(t.ready_at) FROM json_each(?1) d CROSS JOIN tenure_tasks t
WHERE t.id IN (SELECT h.id FROM tenure_tasks h INDEXED BY tenure_tasks_ready WHERE h.demand = d.value AND h.state = 'ready'
               ORDER BY h.effective_at, h.id LIMIT 1000)
  AND t.ready_at > ?2;

-- name: key_counts
SELECT t.concurrency AS key, count(*) AS claimed FROM json_each(?1) j CROSS JOIN tenure_tasks t
WHERE t.concurrency = j.value AND t.state = 'claimed'
GROUP BY t.concurrency;

-- name: task_hold
UPDATE tenure_tasks SET state = 'held' WHERE id IN (SELECT j.value FROM json_each(?1) j);

-- name: task_claim
-- Those that were just seen to be ready, by number.
UPDATE tenure_tasks AS t
SET state = 'claimed', attempt = t.attempt + 1, token = max(t.token, (SELECT o.epoch << 40 FROM tenure_epoch o WHERE o.id = 1)) + 1, worker = c.value ->> 1, session = c.value ->> 2,
    turn = c.value ->> 4, claimed_at = ?2, progress = NULL, wait_until = NULL,
    deadline = min(coalesce(?2 + (c.value ->> 3), ?2 + t.max_run_ms), coalesce(?2 + t.max_run_ms, ?2 + (c.value ->> 3)))
FROM json_each(?1) c
WHERE t.id = c.value ->> 0
RETURNING id, demand, token, attempt, max_attempts, priority, max_run_ms, deadline, enqueued_at, turn,
          leader_token, backoff_first_ms, backoff_most_ms, parents, key, payload;

-- name: task_inputs
SELECT e.child, e.parent, p.output FROM json_each(?1) j
CROSS JOIN tenure_task_parents e ON e.child = j.value
JOIN tenure_tasks p ON p.id = e.parent;

-- name: input_bytes
SELECT e.child, sum(octet_length(p.output)) AS bytes FROM json_each(?1) j
CROSS JOIN tenure_task_parents e ON e.child = j.value
JOIN tenure_tasks p ON p.id = e.parent
GROUP BY e.child;

-- name: queue_spend
UPDATE tenure_queues SET turn = turn + ?2, rate_used_to = ?3 WHERE id = ?1;

-- name: settle_look
SELECT t.id, t.queue, t.token, t.state, t.attempt, t.max_attempts, t.worker, t.concurrency, t.failures, q.namespace,
       q.max_claimed IS NOT NULL AS limited, EXISTS (SELECT 1 FROM tenure_task_parents e WHERE e.parent = t.id) AS has_children
FROM json_each(?1) j CROSS JOIN tenure_tasks t ON t.id = j.value JOIN tenure_queues q ON q.id = t.queue;

-- name: task_complete
-- With a name for the table, as json_each has an `id` of its own.
UPDATE tenure_tasks AS t
SET state = 'completed', output = c.value ->> 1, finished_at = ?2, session = NULL, deadline = NULL
FROM json_each(?1) c
WHERE t.id = c.value ->> 0;

-- name: task_return
-- Back to the queue, or dead.
UPDATE tenure_tasks AS t
SET state = c.value ->> 'state', attempt = c.value ->> 'attempt', 
    run_at = CASE WHEN json_type(c.value, '$.run_at') IS NULL THEN t.run_at ELSE c.value ->> 'run_at' END,
    ready_at = CASE WHEN c.value ->> 'state' = 'ready' THEN ?2 ELSE t.ready_at END,
    wait_until = CASE WHEN c.value ->> 'state' = 'ready' THEN ?2 + t.max_wait_ms END,
    failures = c.value ->> 'failures', reason = c.value ->> 'reason',
    finished_at = CASE WHEN c.value ->> 'state' = 'dead' THEN ?2 END, session = NULL, deadline = NULL
FROM json_each(?1) c
WHERE t.id = c.value ->> 'id';

-- name: task_progress
-- Never beyond its longest run, however often it is said.
UPDATE tenure_tasks AS t
SET progress = coalesce(c.value ->> 1, t.progress),
    deadline = CASE WHEN c.value ->> 2 IS NULL THEN t.deadline
                    ELSE min(?2 + (c.value ->> 2), coalesce(t.claimed_at + t.max_run_ms, ?2 + (c.value ->> 2))) END
FROM json_each(?1) c
WHERE t.id = c.value ->> 0;

-- name: children_free
-- Those that waited for the last of their parents.
UPDATE tenure_tasks AS t
SET state = CASE WHEN t.run_at > ?2 THEN 'scheduled' ELSE 'ready' END,
    ready_at = CASE WHEN t.run_at > ?2 THEN t.ready_at ELSE ?2 END,
    wait_until = CASE WHEN t.run_at > ?2 THEN NULL ELSE ?2 + t.max_wait_ms END
WHERE t.id IN (SELECT e.child FROM json_each(?1) j CROSS JOIN tenure_task_parents e ON e.parent = j.value)
  AND +t.state = 'waiting'
  AND NOT EXISTS (SELECT 1 FROM tenure_task_parents o JOIN tenure_tasks p ON p.id = o.parent
                  WHERE o.child = t.id AND p.state <> 'completed')
RETURNING queue, state;

-- name: children_fate
-- All that wait for these, directly or not, and are not finished. Each knows through which parent.
WITH RECURSIVE down (id, via, fate) AS (
    SELECT e.child, e.parent, p.state FROM json_each(?1) j CROSS JOIN tenure_tasks p ON p.id = j.value
    JOIN tenure_task_parents e ON e.parent = p.id
    WHERE p.state IN ('dead', 'cancelled')
    UNION
    SELECT e.child, e.parent, d.fate FROM down d CROSS JOIN tenure_tasks t ON t.id = d.id AND t.finished_at IS NULL
    JOIN tenure_task_parents e ON e.parent = d.id)
UPDATE tenure_tasks AS t
SET state = d.fate, fate = d.via, reason = 'its parent ' || d.via || ' is ' || d.fate, finished_at = ?2,
    session = NULL, deadline = NULL, wait_until = NULL
FROM (SELECT id, min(via) AS via, max(fate) AS fate FROM down GROUP BY id) d
WHERE t.id = d.id AND +t.finished_at IS NULL
RETURNING id;

-- name: keys_free
-- As many as claims ended, of each demand: which of them a worker will fit is not known here.
WITH RECURSIVE heads (key, n, demand) AS (
    SELECT j.value ->> 0, j.value ->> 1,
           (SELECT min(t.demand) FROM tenure_tasks t WHERE t.state = 'held' AND t.concurrency = j.value ->> 0)
    FROM json_each(?1) j
    UNION ALL
    SELECT h.key, h.n, (SELECT min(t.demand) FROM tenure_tasks t
                        WHERE t.state = 'held' AND t.concurrency = h.key AND t.demand > h.demand)
    FROM heads h WHERE h.demand IS NOT NULL)
UPDATE tenure_tasks SET state = 'ready'
WHERE id IN (
    SELECT f.id FROM (
        SELECT t.id, h.n, row_number() OVER (PARTITION BY t.concurrency, t.demand ORDER BY t.effective_at, t.id) AS place
        FROM heads h CROSS JOIN tenure_tasks t
        WHERE h.demand IS NOT NULL AND t.id IN (
            SELECT i.id FROM tenure_tasks i WHERE i.state = 'held' AND i.concurrency = h.key AND i.demand = h.demand
            ORDER BY i.effective_at, i.id LIMIT ?2)) f
    WHERE f.place <= f.n)
RETURNING queue;

-- name: held_rescue
-- The first of each demand that is held for a key of which fewer are claimed than may be: whoever should have let it in did not
-- come to it.
WITH RECURSIVE heads (id, key, demand) AS (
    SELECT t.id, t.concurrency, t.demand FROM tenure_tasks t
    WHERE t.id = (SELECT f.id FROM tenure_tasks f WHERE f.state = 'held'
                  ORDER BY f.concurrency, f.demand, f.effective_at, f.id LIMIT 1)
    UNION ALL
    SELECT t.id, t.concurrency, t.demand FROM heads h CROSS JOIN tenure_tasks t
    WHERE t.id = coalesce(
        (SELECT n.id FROM tenure_tasks n WHERE n.state = 'held' AND n.concurrency = h.key AND n.demand > h.demand
         ORDER BY n.demand, n.effective_at, n.id LIMIT 1),
        (SELECT n.id FROM tenure_tasks n WHERE n.state = 'held' AND n.concurrency > h.key
         ORDER BY n.concurrency, n.demand, n.effective_at, n.id LIMIT 1))
    LIMIT ?1)
UPDATE tenure_tasks SET state = 'ready'
WHERE id IN (SELECT h.id FROM heads h JOIN tenure_tasks t ON t.id = h.id
             WHERE (SELECT count(*) FROM tenure_tasks c WHERE c.state = 'claimed' AND c.concurrency = h.key) < t.concurrency_limit)
RETURNING queue;

-- name: claims_held
SELECT t.id, t.token FROM tenure_tasks t
WHERE t.queue IN (SELECT q.id FROM tenure_queues q) AND t.session = ?1 AND t.state = 'claimed'
ORDER BY t.id;

-- name: claims_lost
-- Whose session is over, or whose time is.
SELECT t.id, t.queue, t.token, t.state, t.attempt, t.max_attempts, t.worker, t.concurrency, t.failures, q.namespace,
       q.max_claimed IS NOT NULL AS limited, EXISTS (SELECT 1 FROM tenure_task_parents e WHERE e.parent = t.id) AS has_children, x.session_over,
       coalesce(t.claimed_at + t.max_run_ms <= t.deadline, 0) AS run_over
FROM (SELECT i.id, 1 AS session_over FROM tenure_tasks i
      WHERE i.state = 'claimed' AND i.queue IN (SELECT a.id FROM tenure_queues a) AND i.session IN (
          SELECT c.session FROM tenure_tasks c WHERE c.state = 'claimed' AND c.session IS NOT NULL
          EXCEPT SELECT s.id FROM tenure_sessions s WHERE s.state = 'live')
      UNION ALL
      SELECT i.id, 0 FROM tenure_tasks i WHERE i.state = 'claimed' AND i.deadline < ?1
      LIMIT ?2) x
CROSS JOIN tenure_tasks t ON t.id = x.id JOIN tenure_queues q ON q.id = t.queue;

-- name: tasks_overdue
-- Nobody claimed these for too long.
SELECT t.id FROM tenure_tasks t WHERE t.wait_until < ?1 ORDER BY t.wait_until LIMIT ?2;

-- name: task_give_up
UPDATE tenure_tasks
SET state = 'dead', finished_at = ?2, wait_until = NULL,
    reason = 'nobody claimed it for its longest wait of ' || max_wait_ms || ' ms'
WHERE id IN (SELECT j.value FROM json_each(?1) j)
RETURNING id, concurrency;

-- name: tasks_due
SELECT t.id FROM tenure_queues q CROSS JOIN tenure_tasks t
WHERE t.queue = q.id AND t.state = 'scheduled' AND t.run_at <= ?1 LIMIT ?2;

-- name: task_make_ready
UPDATE tenure_tasks
SET state = 'ready', ready_at = coalesce(run_at, ?2), wait_until = coalesce(run_at, ?2) + max_wait_ms
WHERE id IN (SELECT j.value FROM json_each(?1) j)
RETURNING queue;

-- name: task_old
-- A task stays as long as a child may still want its output: one that is not completed may be retried.
SELECT o.id FROM (
    SELECT t.id FROM tenure_queues q CROSS JOIN tenure_tasks t
    WHERE t.queue = q.id AND t.state = 'completed' AND t.finished_at IS NOT NULL AND t.finished_at < ?1 - q.keep_ms
    UNION ALL
    SELECT t.id FROM tenure_queues q CROSS JOIN tenure_tasks t
    WHERE t.queue = q.id AND t.state = 'cancelled' AND t.finished_at IS NOT NULL AND t.finished_at < ?1 - q.keep_ms
    UNION ALL
    SELECT t.id FROM tenure_queues q CROSS JOIN tenure_tasks t
    WHERE t.queue = q.id AND t.state = 'dead' AND t.finished_at IS NOT NULL AND t.finished_at < ?1 - q.keep_dead_ms) o
WHERE NOT EXISTS (SELECT 1 FROM tenure_task_parents e JOIN tenure_tasks c ON c.id = e.child
                  WHERE e.parent = o.id AND c.state <> 'completed')
LIMIT ?2;

-- name: task_forget
DELETE FROM tenure_tasks WHERE id IN (SELECT j.value FROM json_each(?1) j);

-- name: task_forget_parents
-- A child remembers its parents for as long as it is remembered itself.
DELETE FROM tenure_task_parents
WHERE (parent, child) IN (SELECT e.parent, e.child FROM json_each(?1) j CROSS JOIN tenure_task_parents e ON e.child = j.value);

-- name: demand_forget
DELETE FROM tenure_demands WHERE id IN (
    SELECT d.id FROM tenure_demands d WHERE NOT EXISTS (SELECT 1 FROM tenure_tasks t WHERE t.demand = d.id) LIMIT ?1);

-- name: tend_next
-- When something is over, and when something begins.
SELECT (SELECT min(at) FROM (
            SELECT min(t.deadline) AS at FROM tenure_tasks t WHERE t.state = 'claimed' AND t.deadline IS NOT NULL
            UNION ALL SELECT min(t.wait_until) FROM tenure_tasks t WHERE t.wait_until IS NOT NULL
            UNION ALL SELECT min(r.deadline) FROM tenure_pool_requests r WHERE r.ended_at IS NULL AND r.deadline IS NOT NULL
       )) AS over_at,
       (SELECT min(at) FROM (
            SELECT (SELECT min(t.run_at) FROM tenure_tasks t WHERE t.queue = q.id AND t.state = 'scheduled') AS at
            FROM tenure_queues q
            UNION ALL SELECT min(s.cooling_until) FROM tenure_resources s
       )) AS due_at;

-- name: task_list
SELECT t.*, q.namespace, q.name AS queue_name, d.kind, d.requires, d.prefers, d.workers,
       (SELECT json_group_array(e.parent) FROM tenure_task_parents e WHERE e.child = t.id) AS parent_ids,
       (SELECT json_group_array(e.child) FROM tenure_task_parents e WHERE e.parent = t.id) AS child_ids
FROM tenure_tasks t JOIN tenure_queues q ON q.id = t.queue JOIN tenure_demands d ON d.id = t.demand
WHERE t.id < ?1 AND (?2 IS NULL OR q.namespace = ?2) AND (?3 IS NULL OR q.name = ?3)
  AND (?4 IS NULL OR t.state IN (SELECT j.value FROM json_each(?4) j))
  AND (?5 IS NULL OR d.kind = ?5) AND (?6 IS NULL OR t.worker = ?6)
ORDER BY t.id DESC LIMIT ?7;

-- name: task_show
SELECT t.*, q.namespace, q.name AS queue_name, d.kind, d.requires, d.prefers, d.workers,
       (SELECT json_group_array(e.parent) FROM tenure_task_parents e WHERE e.child = t.id) AS parent_ids,
       (SELECT json_group_array(e.child) FROM tenure_task_parents e WHERE e.parent = t.id) AS child_ids
FROM tenure_tasks t JOIN tenure_queues q ON q.id = t.queue JOIN tenure_demands d ON d.id = t.demand
WHERE t.id = ?2 AND q.namespace = ?1;

-- name: order_look
SELECT t.id, t.queue, t.state, t.session, t.concurrency, q.max_claimed IS NOT NULL AS limited
FROM json_each(?1) j CROSS JOIN tenure_tasks t ON t.id = j.value
JOIN tenure_queues q ON q.id = t.queue
WHERE q.namespace = ?2;

-- name: task_cancel
UPDATE tenure_tasks
SET state = 'cancelled', finished_at = ?2, reason = 'called off', session = NULL, deadline = NULL, wait_until = NULL
WHERE id IN (SELECT j.value FROM json_each(?1) j) AND finished_at IS NULL;

-- name: retry_look
-- These, as far as they may be retried, and all that shared their fate.
WITH RECURSIVE down (id) AS (
    SELECT t.id FROM json_each(?1) j CROSS JOIN tenure_tasks t ON t.id = j.value
    WHERE t.state IN ('dead', 'cancelled', 'scheduled')
    UNION
    SELECT t.id FROM down d CROSS JOIN tenure_task_parents e ON e.parent = d.id
    JOIN tenure_tasks t ON t.id = e.child AND t.fate = d.id AND t.state IN ('dead', 'cancelled'))
SELECT t.id, t.state, t.fate FROM down d CROSS JOIN tenure_tasks t ON t.id = d.id;

-- name: retry_parents
-- The parents of these that are dead or cancelled.
SELECT e.child, e.parent, p.state FROM json_each(?1) j CROSS JOIN tenure_task_parents e ON e.child = j.value
JOIN tenure_tasks p ON p.id = e.parent
WHERE p.state IN ('dead', 'cancelled')
ORDER BY e.parent;

-- name: task_retry
-- They wait; those that wait for nobody are let go next. Who was named need not wait for its time.
UPDATE tenure_tasks
SET state = 'waiting', attempt = 0, output = NULL, finished_at = NULL, fate = NULL, reason = NULL,
    wait_until = NULL, run_at = CASE WHEN id IN (SELECT j.value FROM json_each(?2) j) THEN NULL ELSE run_at END
WHERE id IN (SELECT j.value FROM json_each(?1) j);

-- name: task_refate
-- The parent that it fell with is back, but there is another that keeps it down.
UPDATE tenure_tasks AS t SET fate = c.value ->> 1, reason = 'its parent ' || (c.value ->> 1) || ' is ' || (c.value ->> 2)
FROM json_each(?1) c
WHERE t.id = c.value ->> 0;

-- name: task_let_go
-- Of these, those that wait for nobody.
UPDATE tenure_tasks AS t
SET state = CASE WHEN t.run_at > ?2 THEN 'scheduled' ELSE 'ready' END,
    ready_at = CASE WHEN t.run_at > ?2 THEN t.ready_at ELSE ?2 END,
    wait_until = CASE WHEN t.run_at > ?2 THEN NULL ELSE ?2 + t.max_wait_ms END
WHERE t.id IN (SELECT j.value FROM json_each(?1) j) AND +t.state = 'waiting'
  AND NOT EXISTS (SELECT 1 FROM tenure_task_parents o JOIN tenure_tasks p ON p.id = o.parent
                  WHERE o.child = t.id AND p.state <> 'completed')
RETURNING queue, state;

-- name: task_open_parents
SELECT p.id FROM tenure_task_parents e JOIN tenure_tasks p ON p.id = e.parent
WHERE e.child = ?1 AND p.state <> 'completed' ORDER BY p.id;

-- name: task_ahead
SELECT count(*) FROM tenure_demands d CROSS JOIN tenure_tasks o INDEXED BY tenure_tasks_ready
WHERE d.queue = ?1 AND o.demand = d.id AND o.state = 'ready' AND (o.effective_at, o.id) < (?2, ?3);

-- name: task_finished
SELECT d.kind, t.state, t.ready_at, t.claimed_at, t.finished_at FROM (
    SELECT * FROM (SELECT c.demand, c.state, c.ready_at, c.claimed_at, c.finished_at FROM tenure_tasks c
                   WHERE c.queue = ?1 AND c.state = 'completed' AND c.finished_at IS NOT NULL
                   ORDER BY c.finished_at DESC LIMIT ?2)
    UNION ALL
    SELECT * FROM (SELECT c.demand, c.state, c.ready_at, c.claimed_at, c.finished_at FROM tenure_tasks c
                   WHERE c.queue = ?1 AND c.state = 'dead' AND c.finished_at IS NOT NULL
                   ORDER BY c.finished_at DESC LIMIT ?2)) t
JOIN tenure_demands d ON d.id = t.demand
ORDER BY t.finished_at DESC LIMIT ?2;
