INSERT INTO tenure_bench.events (topic, partition, key, type, payload)
SELECT 'bench', row.n % 64, row.key, row.type, row.payload::json
FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS row (key, type, payload, n)
