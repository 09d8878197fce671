INSERT INTO tenure_bench.events (topic, slot, key, kind, payload)
SELECT 'bench', row.n % 64, row.key, row.kind, row.payload::json
FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS row (key, kind, payload, n)
