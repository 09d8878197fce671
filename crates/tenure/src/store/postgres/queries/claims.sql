-- name: task_submit
-- $1 namespace, $2 queue, $3 requirements, $4 tasks, $5 payloads, $6 whether this is a transaction of the library. See
-- tenure.submit_tasks.
SELECT s.index, s.task_id, s.created FROM tenure.submit_tasks($1, $2, $3::json, $4::json, $5::text[], $6::boolean) s;

-- name: task_claim
-- $1 namespace, $2 queue, $3 authority, $4 session of the leader, $5 its token, $6 requests, $7 cursors, $8 full scan. See
-- tenure.claim_tasks. The library reads the columns by position.
SELECT c.request_index, c.task_id, c.token, c.requirements_id, c.effective_at_ms, c.kind, c.attempt, c.max_attempts, c.priority,
       c.payload, c.claim_expires_at_ms, c.claim_seq, c.max_run_ms, c.initial_backoff_ms, c.max_backoff_ms,
       c.leader_token, c.parent_results, c.idempotency_key, c.refusal, c.next_in_ms, c.scanned_all
FROM tenure.claim_tasks($1, $2, $3, $4, $5, $6, $7, $8) c;

-- name: task_complete
-- $1 namespace, $2 task ids, $3 their tokens, $4 results. See tenure.complete_tasks.
SELECT tenure.complete_tasks($1, $2, $3, $4) AS completed;

-- name: task_settle
-- $1 namespace, $2 settlements, $3 results. See tenure.settle_tasks.
SELECT s.index, s.new_state FROM tenure.settle_tasks($1, $2, $3) s;

-- name: claim_list
-- $1 session.
SELECT t.id, t.token FROM tenure.tasks t WHERE t.session = $1 AND t.session IS NOT NULL AND t.state = 'claimed' ORDER BY t.id;

-- name: queue_waiter_register
-- $1 queues as JSON. See tenure.register_queue_waiter.
SELECT tenure.register_queue_waiter(q.namespace, q.name) FROM jsonb_to_recordset($1) AS q (namespace text, name text)
ORDER BY q.namespace, q.name;
