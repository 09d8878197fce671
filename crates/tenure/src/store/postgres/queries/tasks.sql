-- name: task_list
-- $1 namespace, $2 queue, $3 states, $4 kind, $5 worker, $6 before this id, $7 limit; null: any. The newest first. As JSON
-- in the form that the library reads.
SELECT tenure.task_json(t)::text AS task
FROM tenure.tasks t JOIN tenure.queues q ON q.id = t.queue_id JOIN tenure.task_requirements d ON d.id = t.requirements_id
WHERE ($1::text IS NULL OR q.namespace = $1) AND ($2::text IS NULL OR q.name = $2)
  AND ($3::text IS NULL OR t.state = ANY (string_to_array($3, ',')))
  AND ($4::text IS NULL OR d.kind = $4) AND ($5::text IS NULL OR t.worker = $5) AND t.id < $6
ORDER BY t.id DESC LIMIT $7;

-- name: task_get
-- $1 namespace, $2 task id.
SELECT tenure.task_json(t)::text AS task
FROM tenure.tasks t JOIN tenure.queues q ON q.id = t.queue_id AND q.namespace = $1 WHERE t.id = $2;

-- name: task_cancel
-- $1 namespace, $2 task ids.
SELECT c.id FROM tenure.cancel_tasks($1, $2) AS c (id) ORDER BY c.id;

-- name: task_retry
-- $1 namespace, $2 task ids.
SELECT r.id FROM tenure.retry_tasks($1, $2) AS r (id) ORDER BY r.id;

-- name: task_list_finished
-- $1 namespace, $2 queue, $3 limit. The last one first. A task that was never claimed has waited until its end.
SELECT json_build_object(
    'kind', d.kind, 'completed', f.state = 'completed', 'finished_at_ms', tenure.to_unix_ms(f.finished_at),
    'wait_ms', coalesce(greatest(0, tenure.to_unix_ms(coalesce(f.claimed, f.finished_at)) - tenure.to_unix_ms(f.ready_at)), 0),
    'run_ms', coalesce(greatest(0, tenure.to_unix_ms(f.finished_at) - tenure.to_unix_ms(f.claimed)), 0))::text AS finished
FROM (
    SELECT l.*, CASE WHEN l.ready_at IS NULL OR l.ready_at <= l.claimed_at THEN l.claimed_at END AS claimed
    FROM tenure.queues q CROSS JOIN LATERAL (
        (SELECT t.id, t.state, t.requirements_id, t.ready_at, t.claimed_at, t.finished_at FROM tenure.tasks t
         WHERE t.queue_id = q.id AND t.state = 'completed' AND t.finished_at IS NOT NULL
         ORDER BY t.finished_at DESC LIMIT $3)
        UNION ALL
        (SELECT t.id, t.state, t.requirements_id, t.ready_at, t.claimed_at, t.finished_at FROM tenure.tasks t
         WHERE t.queue_id = q.id AND t.state = 'dead' AND t.finished_at IS NOT NULL ORDER BY t.finished_at DESC LIMIT $3)
    ) l
    WHERE q.namespace = $1 AND q.name = $2
    ORDER BY l.finished_at DESC, l.id DESC LIMIT $3
) f JOIN tenure.task_requirements d ON d.id = f.requirements_id
ORDER BY f.finished_at DESC, f.id DESC;

-- name: task_explain
-- $1 namespace, $2 task id. The input for the reasons why a task waits. No row: the task does not exist.
WITH claimed AS (
    SELECT c.queue_id, q.namespace, c.worker, c.task_count FROM tenure.count_claims() c
        JOIN tenure.queues q ON q.id = c.queue_id
)
SELECT tenure.task_json(t)::text AS task,
       tenure.queue_json(q, (SELECT sum(c.task_count)::bigint FROM claimed c WHERE c.queue_id = q.id))::text AS queue,
       (SELECT json_agg(tenure.worker_json(w, c.task_count)) FROM tenure.workers w LEFT JOIN (
            SELECT c.worker, sum(c.task_count)::bigint AS task_count FROM claimed c WHERE c.namespace = $1 GROUP BY c.worker
        ) c ON c.worker = w.name
        WHERE w.namespace = $1)::text AS workers,
       (SELECT json_agg(p.id ORDER BY p.id) FROM tenure.task_dependencies e JOIN tenure.tasks p ON p.id = e.parent_id
        WHERE e.task_id = t.id AND p.state <> 'completed')::text AS pending_parents,
       (SELECT count(*) FROM tenure.task_requirements d CROSS JOIN LATERAL (
            SELECT FROM tenure.tasks a WHERE a.requirements_id = d.id AND a.state = 'ready'
              AND (a.effective_at, a.id) < (t.effective_at, t.id)) a
        WHERE d.queue_id = t.queue_id) AS tasks_ahead,
       (SELECT count(*) FROM tenure.tasks k JOIN tenure.queues kq ON kq.id = k.queue_id AND kq.namespace = $1
        WHERE k.concurrency_key = t.concurrency_key AND k.state = 'claimed') AS key_claimed,
       (SELECT ceil((q.rate_per_ms - p.credit) / q.rate_count)::bigint FROM (
            SELECT s.rate_credit + greatest(0, floor(date_part('epoch',
                clock_timestamp() - s.rate_refilled_at) * 1000))::numeric
                   * q.rate_count AS credit
            FROM tenure.queue_counters s WHERE s.queue_id = q.id) p
        WHERE p.credit < q.rate_per_ms) AS rate_next_in_ms,
       EXISTS (SELECT FROM tenure.leases l JOIN tenure.sessions s ON s.id = l.session AND s.state = 'live'
               WHERE l.namespace = 'tenure' AND l.election = 'broker' AND l.slot = 0) AS has_broker,
       tenure.to_unix_ms(clock_timestamp()) AS now_at_ms
FROM tenure.tasks t JOIN tenure.queues q ON q.id = t.queue_id AND q.namespace = $1
WHERE t.id = $2;
