WITH made AS (
    INSERT INTO tenure_bench.events (topic, slot, key, kind, headers, payload, token)
    SELECT 'bench', row.n % 64, row.key, row.key, row.headers::json, row.payload::json, 1
    FROM unnest($2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS row (key, headers, payload, n)
)
INSERT INTO tenure_bench.ticks (schedule, at_ms, by_hand, state, cause, due_ms, decided_ms, token, by, event)
SELECT row.n, $1, false, 'fired', 'clock', $1, $1 + 5, 1, 'bench', row.n
FROM unnest($2::text[]) WITH ORDINALITY AS row (key, n)
