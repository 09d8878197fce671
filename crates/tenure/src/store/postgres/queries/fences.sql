-- name: fence
-- $1 name, $2 token. Raises TN001 if a greater token has been seen.
SELECT tenure.fence($1, $2::bigint);
