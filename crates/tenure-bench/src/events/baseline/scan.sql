SELECT id, partition, "offset", key, type, payload::text AS payload, (extract(epoch FROM published_at) * 1000)::bigint AS published_at_ms
FROM tenure_bench.log WHERE partition = $1 AND "offset" > $2 ORDER BY "offset" LIMIT 1000
