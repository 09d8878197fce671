SELECT id, slot, position, key, kind, payload::text AS payload, (extract(epoch FROM at) * 1000)::bigint AS at_ms
FROM tenure_bench.log WHERE slot = $1 AND position > $2 ORDER BY position LIMIT 1000
