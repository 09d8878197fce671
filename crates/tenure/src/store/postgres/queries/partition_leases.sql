-- name: partition_lease_take
-- $1 namespace, $2 topic, $3 group, $4 session, $5 partitions, $6 tokens. See tenure.take_partitions.
SELECT t.partition, t.token, t.committed_offset, t.processed_event_ids::text, t.parked_keys::text
FROM tenure.take_partitions(tenure.find_group($1, $2, $3), $4, $5, $6) t ORDER BY t.partition;

-- name: partition_lease_release
-- $1 namespace, $2 topic, $3 group, $4 partitions, $5 tokens.
SELECT tenure.release_partitions(tenure.find_group($1, $2, $3), $4, $5);

-- name: partition_commit
-- $1 namespace, $2 topic, $3 group, $4 partition, $5 token, $6 offset; processed events: $7 ids, $8 offsets; parked events:
-- $9 ids, $10 offsets, $11 attempts, $12 delay in ms, $13 errors; settled events: $14 ids, $15 attempts, $16 delay in ms,
-- $17 errors. See tenure.commit_partition.
SELECT tenure.commit_partition(tenure.find_group($1, $2, $3), $4::integer, $5::bigint, $6::bigint, $7::bigint[], $8::bigint[],
    $9::bigint[],
                           $10::bigint[], $11::integer[], $12::bigint[], $13::text[], $14::bigint[], $15::integer[],
                               $16::bigint[],
                           $17::text[]) AS committed;

-- name: partition_commit_offsets
-- $1 namespace, $2 topic, $3 group, $4 partitions, $5 tokens, $6 offsets. See tenure.commit_offsets.
SELECT h.committed FROM unnest(tenure.commit_offsets(tenure.find_group($1, $2, $3), $4::integer[], $5::bigint[],
    $6::bigint[])) WITH ORDINALITY AS h (committed, n)
ORDER BY h.n;
