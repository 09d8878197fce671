-- name: epoch_current
SELECT tenure.current_epoch();

-- name: epoch_get
SELECT e.epoch, tenure.to_unix_ms(e.changed_at) AS changed_at_ms, e.reason,
       format('system %s, timeline %s, database %s, table %s', e.system_identifier, e.timeline, e.database_oid,
           e.table_oid) AS identity
FROM (SELECT tenure.current_epoch() AS now) c, tenure.epoch e WHERE c.now IS NOT NULL;

-- name: epoch_bump
-- $1 the wanted epoch, $2 reason. Only the owner of the tables may call it.
SELECT tenure.bump_epoch($1, $2);
