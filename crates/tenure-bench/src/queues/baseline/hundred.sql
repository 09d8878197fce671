WITH next AS MATERIALIZED (
    SELECT id FROM tenure_bench.tasks WHERE state = 'ready' ORDER BY effective_at, id LIMIT 100 FOR UPDATE SKIP LOCKED
), claimed AS (
    UPDATE tenure_bench.tasks t
    SET state = 'claimed', attempt = attempt + 1, worker = 'baseline', claimed_at = now()
    FROM next WHERE t.id = next.id RETURNING t.id, t.payload
)
SELECT array_agg(id) AS ids, jsonb_agg(payload) AS payloads FROM claimed \gset
UPDATE tenure_bench.tasks SET state = 'completed', finished_at = now() WHERE id = ANY (:ids::bigint[]);
