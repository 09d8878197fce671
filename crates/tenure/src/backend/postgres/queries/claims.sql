-- name: task_submit
-- $1 namespace, $2 queue, $3 demands, $4 tasks, $5 payloads, $6 whether the transaction is our own. See tenure.submit_all.
SELECT s.n, s.id, s.new FROM tenure.submit_all($1, $2, $3::json, $4::json, $5::text[], $6::boolean) s;

-- name: task_claim
-- $1 namespace, $2 queue, $3 authority, $4 leader, $5 its token, $6 seats, $7 floors, $8 a whole look. See tenure.claim.
SELECT c.seat, c.id, c.token, c.demand, c.effective_at_ms, c.kind, c.attempt, c.max_attempts, c.priority,
       c.payload, c.deadline_ms, c.turn, c.max_run_ms, c.backoff_first_ms, c.backoff_most_ms,
       c.leader_token, c.inputs, c.key, c.note, c.next_ms, c.looked
FROM tenure.claim($1, $2, $3, $4, $5, $6, $7, $8) c;

-- name: task_complete
-- $1 namespace, $2 tasks, $3 their tokens, $4 outputs. See tenure.complete.
SELECT tenure.complete($1, $2, $3, $4) AS done;

-- name: task_settle
-- $1 namespace, $2 what was said, $3 outputs. See tenure.settle.
SELECT s.n, s.now FROM tenure.settle($1, $2, $3) s;

-- name: task_held
-- $1 a session.
SELECT t.id, t.token FROM tenure.tasks t WHERE t.session = $1 AND t.session IS NOT NULL AND t.state = 'claimed' ORDER BY t.id;

-- name: doze
-- $1 queues.
SELECT tenure.wait_for_work(q.namespace, q.name) FROM jsonb_to_recordset($1) AS q (namespace text, name text)
ORDER BY q.namespace, q.name;
