-- name: partition_lease_create
INSERT INTO tenure_partition_leases (group_id, partition, committed_offset)
SELECT ?1, j.value ->> 0, j.value ->> 1 FROM json_each(?2) j;

-- name: partition_lease_list
-- A lease whose session is not live has no holder.
SELECT h.partition, h.token, CASE WHEN s.state = 'live' THEN h.session END AS session, h.last_member, h.committed_offset
FROM tenure_partition_leases h LEFT JOIN tenure_sessions s ON s.id = h.session
WHERE h.group_id = ?1
ORDER BY h.partition;

-- name: partition_lease_list_free
-- The leases among these that the session may take: they are free and have the observed token, and the session is a live member.
SELECT h.partition, h.last_member, m.name
FROM tenure_group_members m CROSS JOIN tenure_sessions s ON s.id = m.session AND s.state = 'live'
CROSS JOIN json_each(?3) j
CROSS JOIN tenure_partition_leases h ON h.group_id = m.group_id AND h.partition = j.value ->> 0 AND h.token = j.value ->> 1
WHERE m.group_id = ?1 AND m.session = ?2
  AND NOT EXISTS (SELECT 1 FROM tenure_sessions o WHERE o.id = h.session AND o.state = 'live');

-- name: partition_lease_take
UPDATE tenure_partition_leases
SET token = max(token, (SELECT o.epoch << 40 FROM tenure_epoch o WHERE o.singleton = 1)) + 1, session = ?2, last_member = ?3
WHERE group_id = ?1 AND partition IN (SELECT j.value FROM json_each(?4) j)
RETURNING partition, token, committed_offset;

-- name: partition_lease_release
UPDATE tenure_partition_leases SET session = NULL
WHERE group_id = ?1 AND session IS NOT NULL
  AND (partition, token) IN (SELECT j.value ->> 0, j.value ->> 1 FROM json_each(?2) j);

-- name: partition_lease_release_all
UPDATE tenure_partition_leases SET session = NULL WHERE group_id = ?1 AND session = ?2;

-- name: partition_lease_guard
-- This statement takes the write lock, so no session can take the lease from here to the commit. Returns whether the new offset makes
-- rows of tenure_processed_events obsolete.
UPDATE tenure_partition_leases SET committed_offset = max(committed_offset, coalesce(?6, 0))
WHERE group_id = (SELECT g.id FROM tenure_topics t JOIN tenure_consumer_groups g ON g.topic_id = t.id
                  WHERE t.namespace = ?1 AND t.name = ?2 AND g.name = ?3)
  AND partition = ?4 AND token = ?5 AND session IS NOT NULL
  -- Events that were read in an earlier epoch may be missing in this file.
  AND ?5 >= (SELECT o.epoch << 40 FROM tenure_epoch o WHERE o.singleton = 1)
RETURNING EXISTS (SELECT 1 FROM tenure_processed_events d
                  WHERE d.group_id = tenure_partition_leases.group_id AND d.partition = tenure_partition_leases.partition AND d.event_offset <= ?6) AS passes_processed;

-- name: partition_lease_get
-- The leases among these that are held under the given token.
SELECT j.key AS list_index, g.id AS group_id, g.topic_id, h.committed_offset
FROM json_each(?1) j
CROSS JOIN tenure_topics t ON t.namespace = j.value ->> 0 AND t.name = j.value ->> 1
CROSS JOIN tenure_consumer_groups g ON g.topic_id = t.id AND g.name = j.value ->> 2
CROSS JOIN tenure_partition_leases h ON h.group_id = g.id AND h.partition = j.value ->> 3
    AND h.token = j.value ->> 4 AND h.session IS NOT NULL
    -- Events that were read in an earlier epoch may be missing in this file.
    AND h.token >= (SELECT o.epoch << 40 FROM tenure_epoch o WHERE o.singleton = 1);

-- name: partition_commit_offset
-- The committed offset never decreases.
UPDATE tenure_partition_leases AS h SET committed_offset = j.value ->> 2
FROM json_each(?1) j
WHERE h.group_id = j.value ->> 0 AND h.partition = j.value ->> 1 AND h.committed_offset < j.value ->> 2;

-- name: partition_reset_offset
UPDATE tenure_partition_leases AS h
SET committed_offset = j.value ->> 2, session = NULL,
    token = max(h.token, (SELECT o.epoch << 40 FROM tenure_epoch o WHERE o.singleton = 1)) + 1
FROM json_each(?1) j
WHERE h.group_id = j.value ->> 0 AND h.partition = j.value ->> 1;

-- name: processed_event_put
INSERT INTO tenure_processed_events (group_id, partition, event_offset, event_id)
SELECT j.value ->> 0, e.partition, e.event_offset, e.id
FROM json_each(?1) j CROSS JOIN tenure_events e ON e.id = j.value ->> 3 AND e.topic_id = j.value ->> 1 AND e.partition = j.value ->> 2
    AND e.event_offset = j.value ->> 4
CROSS JOIN tenure_partition_leases h ON h.group_id = j.value ->> 0 AND h.partition = j.value ->> 2 AND h.committed_offset < e.event_offset
WHERE true
ON CONFLICT (group_id, partition, event_offset, event_id) DO NOTHING;

-- name: processed_event_delete_committed
-- The committed offset has passed these events.
DELETE FROM tenure_processed_events WHERE (group_id, partition, event_offset, event_id) IN (
    SELECT d.group_id, d.partition, d.event_offset, d.event_id FROM json_each(?1) j
    CROSS JOIN tenure_processed_events d ON d.group_id = j.value ->> 0 AND d.partition = j.value ->> 1 AND d.event_offset <= j.value ->> 2);

-- name: processed_event_delete_pruned
-- The events were pruned.
DELETE FROM tenure_processed_events WHERE (group_id, partition, event_offset, event_id) IN (
    SELECT d.group_id, d.partition, d.event_offset, d.event_id FROM tenure_consumer_groups g CROSS JOIN json_each(?2) j
    CROSS JOIN tenure_processed_events d ON d.group_id = g.id AND d.partition = j.value ->> 0 AND d.event_offset <= j.value ->> 1
    WHERE g.topic_id = ?1);

-- name: processed_event_delete_partition
DELETE FROM tenure_processed_events WHERE (group_id, partition) IN (SELECT j.value ->> 0, j.value ->> 1 FROM json_each(?1) j);

-- name: processed_event_list
SELECT d.partition, d.event_id FROM json_each(?2) j CROSS JOIN tenure_processed_events d ON d.group_id = ?1 AND d.partition = j.value
ORDER BY d.partition, d.event_offset, d.event_id;
