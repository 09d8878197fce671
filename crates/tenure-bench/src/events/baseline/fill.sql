TRUNCATE tenure_bench.log;
INSERT INTO tenure_bench.log (partition, "offset", id, key, type, payload)
SELECT n % :partitions, n, n, 'key-' || n % 10000, 'bench.made', '{"cents": 4200, "to": "ada"}' FROM generate_series(1, :count) n;
VACUUM ANALYZE tenure_bench.log
