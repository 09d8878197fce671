-- name: pool_make
INSERT INTO tenure_pools (namespace, name, mode, fallback, cool_down_ms, priority, keep_ms, created_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT (namespace, name) DO NOTHING;

-- name: pool_set
INSERT INTO tenure_pools (namespace, name, mode, fallback, cool_down_ms, priority, keep_ms, created_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT (namespace, name) DO UPDATE SET
    mode = excluded.mode, fallback = excluded.fallback, cool_down_ms = excluded.cool_down_ms,
    priority = excluded.priority, keep_ms = excluded.keep_ms;

-- name: pool_list
SELECT p.*, a.paused_by, a.paused_reason, a.paused_at
FROM tenure_pools p LEFT JOIN tenure_pauses a ON a.namespace = p.namespace
WHERE (?1 IS NULL OR p.namespace = ?1) AND (?2 IS NULL OR p.name = ?2)
ORDER BY p.namespace, p.name;

-- name: resource_put
INSERT INTO tenure_resources (pool, name, tags, enabled)
SELECT ?1, j.value ->> 0, j.value ->> 1, j.value ->> 2 FROM json_each(?2) j
WHERE true
ON CONFLICT (pool, name) DO UPDATE SET tags = excluded.tags, enabled = excluded.enabled, removed = 0;

-- name: resource_list
SELECT * FROM tenure_resources WHERE pool = ?1 AND removed = 0 ORDER BY name;

-- name: resource_remove
UPDATE tenure_resources SET removed = 1, enabled = 0 WHERE pool = ?1 AND name = ?2 AND removed = 0 AND request IS NULL;

-- name: resource_holder
SELECT r.id FROM tenure_resources s JOIN tenure_pool_requests r ON r.id = s.request
WHERE s.pool = ?1 AND s.name = ?2 AND s.removed = 0;

-- name: resource_grant
UPDATE tenure_resources SET token = max(token, (SELECT o.epoch << 40 FROM tenure_epoch o WHERE o.id = 1)) + 1, request = ?3, cooling_until = NULL
WHERE pool = ?1 AND name = ?2 AND request IS NULL AND removed = 0
RETURNING token;

-- name: resource_free
-- Those whose requests are over; they rest.
UPDATE tenure_resources
SET request = NULL, cooling_until = ?2 + (SELECT nullif(p.cool_down_ms, 0) FROM tenure_pools p WHERE p.id = pool)
WHERE (pool, name) IN (SELECT r.pool, r.resource FROM json_each(?1) j CROSS JOIN tenure_pool_requests r ON r.id = j.value)
  AND request IN (SELECT j.value FROM json_each(?1) j);

-- name: resource_rested
UPDATE tenure_resources SET cooling_until = NULL WHERE cooling_until <= ?1
RETURNING (SELECT p.namespace FROM tenure_pools p WHERE p.id = pool) AS namespace,
          (SELECT p.name FROM tenure_pools p WHERE p.id = pool) AS name;

-- name: pool_request_put
INSERT INTO tenure_pool_requests
    (pool, key, owner, requires, prefers, base, session, hold_ms, max_wait_ms, state, created_at, deadline)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 'waiting', ?10, ?10 + ?9)
ON CONFLICT (pool, key) WHERE ended_at IS NULL DO NOTHING;

-- name: pool_request_open
SELECT r.*, p.namespace, p.name AS pool_name, p.priority FROM tenure_pool_requests r JOIN tenure_pools p ON p.id = r.pool
WHERE r.pool = ?1 AND r.key = ?2 AND r.ended_at IS NULL;

-- name: pool_request_show
SELECT r.*, p.namespace, p.name AS pool_name, p.priority FROM tenure_pool_requests r JOIN tenure_pools p ON p.id = r.pool
WHERE r.id = ?2 AND p.namespace = ?1;

-- name: pool_request_list
-- Those that wait or have something.
SELECT r.*, p.priority,
       r.session IS NULL OR EXISTS (SELECT 1 FROM tenure_sessions s WHERE s.id = r.session AND s.state = 'live') AS live
FROM tenure_pool_requests r JOIN tenure_pools p ON p.id = r.pool
WHERE r.pool = ?1 AND r.ended_at IS NULL
ORDER BY r.id;

-- name: pool_request_grant
UPDATE tenure_pool_requests SET state = 'granted', resource = ?2, token = ?3, granted_at = ?4, deadline = ?4 + hold_ms
WHERE id = ?1 AND state = 'waiting'
RETURNING *;

-- name: pool_request_end
UPDATE tenure_pool_requests SET state = ?2, ended_at = ?3
WHERE id IN (SELECT j.value FROM json_each(?1) j) AND ended_at IS NULL;

-- name: pool_request_extend
UPDATE tenure_pool_requests SET deadline = ?2 WHERE id = ?1 AND ended_at IS NULL;

-- name: pool_request_over
-- Whose session is over, or whose time is, waiting or granted.
SELECT r.id, p.namespace, p.name, r.resource FROM tenure_pools p CROSS JOIN tenure_pool_requests r ON r.pool = p.id
WHERE r.ended_at IS NULL
  AND (r.deadline < ?1
       OR (r.session IS NOT NULL
           AND NOT EXISTS (SELECT 1 FROM tenure_sessions s WHERE s.id = r.session AND s.state = 'live')))
LIMIT ?2;

-- name: pool_request_forget
DELETE FROM tenure_pool_requests WHERE id IN (
    SELECT r.id FROM tenure_pools p CROSS JOIN tenure_pool_requests r ON r.pool = p.id
    WHERE r.ended_at IS NOT NULL AND r.ended_at < ?1 - p.keep_ms LIMIT ?2);
