WITH next AS MATERIALIZED (
    SELECT id FROM tenure_bench.tasks WHERE state = 'ready' ORDER BY effective_at, id LIMIT 1 FOR UPDATE SKIP LOCKED
)
UPDATE tenure_bench.tasks t
SET state = 'claimed', attempt = attempt + 1, worker = 'baseline', claimed_at = now()
FROM next WHERE t.id = next.id RETURNING t.id, t.payload \gset
UPDATE tenure_bench.tasks SET state = 'completed', finished_at = now() WHERE id = :id;
