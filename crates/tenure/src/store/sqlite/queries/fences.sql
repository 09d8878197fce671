-- name: fence
INSERT INTO tenure_fences (name, max_token, updated_at_ms) VALUES (?1, ?2, ?3)
ON CONFLICT (name) DO UPDATE SET max_token = excluded.max_token, updated_at_ms = excluded.updated_at_ms
WHERE excluded.max_token >= tenure_fences.max_token;

-- name: fence_get
SELECT max_token FROM tenure_fences WHERE name = ?1;
