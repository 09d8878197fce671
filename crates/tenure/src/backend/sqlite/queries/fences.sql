-- name: fence
INSERT INTO tenure_fences (name, token, seen_at) VALUES (?1, ?2, ?3)
ON CONFLICT (name) DO UPDATE SET token = excluded.token, seen_at = excluded.seen_at
WHERE excluded.token >= tenure_fences.token;

-- name: fence_seen
SELECT token FROM tenure_fences WHERE name = ?1;
