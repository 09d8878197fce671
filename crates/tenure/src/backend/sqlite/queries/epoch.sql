-- name: epoch_read
SELECT epoch, file, writes, changed_at, reason FROM tenure_epoch WHERE id = 1;

-- name: epoch_note
-- Counts a change that a restored copy must not repeat.
UPDATE tenure_epoch SET writes = writes + 1 WHERE id = 1 RETURNING epoch, writes;

-- name: epoch_note_grant
-- Of a script: counts the grant that the statement before it noted down.
UPDATE tenure_epoch SET writes = writes + 1 WHERE id = 1 AND changes() > 0 RETURNING writes AS noted;

-- name: epoch_set
UPDATE tenure_epoch
SET epoch = ?1, file = ?2, writes = max(writes, ?3) + 1,
    changed_at = CASE WHEN epoch = ?1 THEN changed_at ELSE ?4 END, reason = coalesce(?5, reason)
WHERE id = 1
RETURNING epoch, writes;

-- name: epoch_sequence
-- SQLite keeps no row here until the first event was published.
INSERT INTO sqlite_sequence (name, seq)
SELECT 'tenure_events', 0 WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'tenure_events');

-- name: epoch_numbers
-- Event numbers begin anew with the epoch, beyond those of every epoch before.
UPDATE sqlite_sequence SET seq = max(seq, ?1 << 40) WHERE name = 'tenure_events';
