INSERT INTO events (topic, slot, key, kind, headers, payload, token, at)
SELECT 'bench', key % 64, value ->> 0, value ->> 0, value ->> 1, value ->> 2, 1, ?1 FROM json_each(?2)
