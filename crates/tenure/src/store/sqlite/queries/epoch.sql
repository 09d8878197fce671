-- name: epoch_get
SELECT epoch, file_identity, write_count, changed_at_ms, reason FROM tenure_epoch WHERE singleton = 1;

-- name: epoch_count_write
-- Counts a write, so that an older copy of the file can be recognised.
UPDATE tenure_epoch SET write_count = write_count + 1 WHERE singleton = 1 RETURNING epoch, write_count;

-- name: epoch_count_grant
-- In a script (see script.rs): counts the grant if the preceding statement recorded one.
UPDATE tenure_epoch SET write_count = write_count + 1 WHERE singleton = 1 AND changes() > 0 RETURNING write_count AS counted_write_count;

-- name: epoch_set
UPDATE tenure_epoch
SET epoch = ?1, file_identity = ?2, write_count = max(write_count, ?3) + 1,
    changed_at_ms = CASE WHEN epoch = ?1 THEN changed_at_ms ELSE ?4 END, reason = coalesce(?5, reason)
WHERE singleton = 1
RETURNING epoch, write_count;

-- name: epoch_create_event_sequence
-- SQLite has no row here before the first event.
INSERT INTO sqlite_sequence (name, seq)
SELECT 'tenure_events', 0 WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'tenure_events');

-- name: epoch_raise_event_sequence
-- Event ids of a new epoch are greater than those of every earlier epoch.
UPDATE sqlite_sequence SET seq = max(seq, ?1 << 40) WHERE name = 'tenure_events';
