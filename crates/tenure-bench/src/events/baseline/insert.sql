\set key random(1, 10000)
INSERT INTO tenure_bench.events (topic, partition, key, type, payload)
VALUES ('bench', :key % 64, 'key-' || :key, 'bench.made', '{"cents": 4200, "to": "ada"}');
