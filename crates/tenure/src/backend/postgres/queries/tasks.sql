-- name: task_list
-- $1 namespace, $2 queue, $3 states, $4 kind, $5 worker, $6 before which, $7 how many; null: any. As JSON in the form that the
-- library reads, the newest first.
SELECT tenure.task_view(t)::text AS task
FROM tenure.tasks t JOIN tenure.queues q ON q.id = t.queue JOIN tenure.demands d ON d.id = t.demand
WHERE ($1::text IS NULL OR q.namespace = $1) AND ($2::text IS NULL OR q.name = $2)
  AND ($3::text IS NULL OR t.state = ANY (string_to_array($3, ',')))
  AND ($4::text IS NULL OR d.kind = $4) AND ($5::text IS NULL OR t.worker = $5) AND t.id < $6
ORDER BY t.id DESC LIMIT $7;

-- name: task_show
-- $1 namespace, $2 which.
SELECT tenure.task_view(t)::text AS task
FROM tenure.tasks t JOIN tenure.queues q ON q.id = t.queue AND q.namespace = $1 WHERE t.id = $2;

-- name: task_cancel
-- $1 namespace, $2 which.
SELECT c.id FROM tenure.cancel($1, $2) AS c (id) ORDER BY c.id;

-- name: task_retry
-- $1 namespace, $2 which.
SELECT r.id FROM tenure.retry($1, $2) AS r (id) ORDER BY r.id;

-- name: task_finished
-- $1 namespace, $2 queue, $3 how many. The last first. One that nobody claimed has waited to its end.
SELECT json_build_object(
    'kind', d.kind, 'completed', f.state = 'completed', 'at_ms', tenure.ms(f.finished_at),
    'wait_ms', coalesce(greatest(0, tenure.ms(coalesce(f.claimed, f.finished_at)) - tenure.ms(f.ready_at)), 0),
    'run_ms', coalesce(greatest(0, tenure.ms(f.finished_at) - tenure.ms(f.claimed)), 0))::text AS finished
FROM (
    SELECT l.*, CASE WHEN l.ready_at IS NULL OR l.ready_at <= l.claimed_at THEN l.claimed_at END AS claimed
    FROM tenure.queues q CROSS JOIN LATERAL (
        (SELECT t.id, t.state, t.demand, t.ready_at, t.claimed_at, t.finished_at FROM tenure.tasks t
         WHERE t.queue = q.id AND t.state = 'completed' AND t.finished_at IS NOT NULL
         ORDER BY t.finished_at DESC LIMIT $3)
        UNION ALL
        (SELECT t.id, t.state, t.demand, t.ready_at, t.claimed_at, t.finished_at FROM tenure.tasks t
         WHERE t.queue = q.id AND t.state = 'dead' AND t.finished_at IS NOT NULL ORDER BY t.finished_at DESC LIMIT $3)
    ) l
    WHERE q.namespace = $1 AND q.name = $2
    ORDER BY l.finished_at DESC, l.id DESC LIMIT $3
) f JOIN tenure.demands d ON d.id = f.demand
ORDER BY f.finished_at DESC, f.id DESC;

-- name: task_look
-- $1 namespace, $2 which. What is needed to say why it waits. No row: there is no such task.
WITH claimed AS (
    SELECT c.queue, q.namespace, c.worker, c.tasks FROM tenure.claims_now() c JOIN tenure.queues q ON q.id = c.queue
)
SELECT tenure.task_view(t)::text AS task,
       tenure.queue_view(q, (SELECT sum(c.tasks)::bigint FROM claimed c WHERE c.queue = q.id))::text AS queue,
       (SELECT json_agg(tenure.worker_view(w, c.tasks)) FROM tenure.workers w LEFT JOIN (
            SELECT c.worker, sum(c.tasks)::bigint AS tasks FROM claimed c WHERE c.namespace = $1 GROUP BY c.worker
        ) c ON c.worker = w.name
        WHERE w.namespace = $1)::text AS workers,
       (SELECT json_agg(p.id ORDER BY p.id) FROM tenure.parents e JOIN tenure.tasks p ON p.id = e.parent
        WHERE e.child = t.id AND p.state <> 'completed')::text AS open_parents,
       (SELECT count(*) FROM tenure.demands d CROSS JOIN LATERAL (
            SELECT FROM tenure.tasks a WHERE a.demand = d.id AND a.state = 'ready'
              AND (a.effective_at, a.id) < (t.effective_at, t.id)) a
        WHERE d.queue = t.queue) AS ahead,
       (SELECT count(*) FROM tenure.tasks k JOIN tenure.queues kq ON kq.id = k.queue AND kq.namespace = $1
        WHERE k.concurrency_key = t.concurrency_key AND k.state = 'claimed') AS key_claimed,
       (SELECT ceil((q.rate_per_ms - p.parts) / q.rate_count)::bigint FROM (
            SELECT s.parts + greatest(0, floor(date_part('epoch', clock_timestamp() - s.filled_at) * 1000))::numeric
                   * q.rate_count AS parts
            FROM tenure.turnstiles s WHERE s.queue = q.id) p
        WHERE p.parts < q.rate_per_ms) AS rate_next_ms,
       EXISTS (SELECT FROM tenure.leases l JOIN tenure.sessions s ON s.id = l.session AND s.state = 'live'
               WHERE l.namespace = 'tenure' AND l.name = 'claims' AND l.slot = 0) AS led,
       tenure.ms(clock_timestamp()) AS now_ms
FROM tenure.tasks t JOIN tenure.queues q ON q.id = t.queue AND q.namespace = $1
WHERE t.id = $2;

-- name: keeper_tend
-- $1 session, $2 token, $3 clock, $4 how many. See tenure.tend.
SELECT * FROM tenure.tend($1, $2, $3, $4);

-- name: post_put
-- $1 session, $2 token, $3 address, $4 secret, in hex. No row: it does not lead under that token.
WITH leader AS (
    SELECT l.token, l.session FROM tenure.leases l
    WHERE l.namespace = 'tenure' AND l.name = 'claims' AND l.slot = 0 AND l.session = $1 AND l.token = $2
    FOR SHARE
)
INSERT INTO tenure.posts (token, session, address, secret)
SELECT leader.token, leader.session, $3, decode($4, 'hex') FROM leader
ON CONFLICT (one) DO UPDATE SET token = EXCLUDED.token, session = EXCLUDED.session, address = EXCLUDED.address,
    secret = EXCLUDED.secret
RETURNING token;

-- name: post_show
SELECT p.session, p.token, p.address, encode(p.secret, 'hex') AS secret
FROM tenure.posts p JOIN tenure.leases l
    ON l.namespace = 'tenure' AND l.name = 'claims' AND l.slot = 0 AND l.session = p.session AND l.token = p.token
JOIN tenure.sessions s ON s.id = p.session AND s.state = 'live';
