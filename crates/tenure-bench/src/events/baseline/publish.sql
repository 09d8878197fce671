\set key random(1, 10000)
SELECT tenure.publish(':topic', '{"cents": 4200, "to": "ada"}', key => 'key-' || :key, type => 'bench.made', namespace => 'tenure-bench');
