INSERT INTO events (topic, partition, key, type, headers, payload, token, published_at_ms)
SELECT 'bench', key % 64, value ->> 0, value ->> 0, value ->> 1, value ->> 2, 1, ?1 FROM json_each(?2)
