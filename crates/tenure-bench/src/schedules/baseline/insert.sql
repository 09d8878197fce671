WITH made AS (
    INSERT INTO tenure_bench.events (topic, partition, key, type, headers, payload, token)
    SELECT 'bench', row.n % 64, row.key, row.key, row.headers::json, row.payload::json, 1
    FROM unnest($2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS row (key, headers, payload, n)
)
INSERT INTO tenure_bench.ticks (schedule_id, tick_at_ms, manual, outcome, cause, due_at_ms, decided_at_ms, token, decided_by, event_id)
SELECT row.n, $1, false, 'fired', 'schedule', $1, $1 + 5, 1, 'bench', row.n
FROM unnest($2::text[]) WITH ORDINALITY AS row (key, n)
