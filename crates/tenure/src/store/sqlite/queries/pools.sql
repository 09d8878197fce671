-- name: pool_create
INSERT INTO tenure_pools (namespace, name, mode, fallback, cooldown_ms, priority_formula, request_retention_ms, created_at_ms)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT (namespace, name) DO NOTHING;

-- name: pool_set
INSERT INTO tenure_pools (namespace, name, mode, fallback, cooldown_ms, priority_formula, request_retention_ms, created_at_ms)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT (namespace, name) DO UPDATE SET
    mode = excluded.mode, fallback = excluded.fallback, cooldown_ms = excluded.cooldown_ms,
    priority_formula = excluded.priority_formula, request_retention_ms = excluded.request_retention_ms;

-- name: pool_list
SELECT p.*, a.paused_by, a.paused_reason, a.paused_at_ms
FROM tenure_pools p LEFT JOIN tenure_namespaces a ON a.name = p.namespace
WHERE (?1 IS NULL OR p.namespace = ?1) AND (?2 IS NULL OR p.name = ?2)
ORDER BY p.namespace, p.name;

-- name: resource_put
INSERT INTO tenure_resources (pool_id, name, tags, enabled)
SELECT ?1, j.value ->> 0, j.value ->> 1, j.value ->> 2 FROM json_each(?2) j
WHERE true
ON CONFLICT (pool_id, name) DO UPDATE SET tags = excluded.tags, enabled = excluded.enabled, removed = 0;

-- name: resource_list
SELECT * FROM tenure_resources WHERE pool_id = ?1 AND removed = 0 ORDER BY name;

-- name: resource_remove
UPDATE tenure_resources SET removed = 1, enabled = 0 WHERE pool_id = ?1 AND name = ?2 AND removed = 0 AND request_id IS NULL;

-- name: resource_holder
SELECT r.id FROM tenure_resources s JOIN tenure_pool_requests r ON r.id = s.request_id
WHERE s.pool_id = ?1 AND s.name = ?2 AND s.removed = 0;

-- name: resource_grant
UPDATE tenure_resources
SET token = max(token, (SELECT o.epoch << 40 FROM tenure_epoch o WHERE o.singleton = 1)) + 1, request_id = ?3, cooldown_until_at_ms = NULL
WHERE pool_id = ?1 AND name = ?2 AND request_id IS NULL AND removed = 0
RETURNING token;

-- name: resource_release
-- Releases the resources of ended requests and starts their cooldown.
UPDATE tenure_resources
SET request_id = NULL, cooldown_until_at_ms = ?2 + (SELECT nullif(p.cooldown_ms, 0) FROM tenure_pools p WHERE p.id = pool_id)
WHERE (pool_id, name) IN (SELECT r.pool_id, r.resource FROM json_each(?1) j CROSS JOIN tenure_pool_requests r ON r.id = j.value)
  AND request_id IN (SELECT j.value FROM json_each(?1) j);

-- name: resource_end_cooldown
UPDATE tenure_resources SET cooldown_until_at_ms = NULL WHERE cooldown_until_at_ms <= ?1
RETURNING (SELECT p.namespace FROM tenure_pools p WHERE p.id = pool_id) AS namespace,
          (SELECT p.name FROM tenure_pools p WHERE p.id = pool_id) AS name;

-- name: pool_request_put
INSERT INTO tenure_pool_requests
    (pool_id, idempotency_key, owner, required_tags, preferred_tags, base_priority, session, claim_timeout_ms, max_wait_ms, state,
     created_at_ms, expires_at_ms)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 'waiting', ?10, ?10 + ?9)
ON CONFLICT (pool_id, idempotency_key) WHERE ended_at_ms IS NULL DO NOTHING;

-- name: pool_request_get_by_key
SELECT r.*, p.namespace, p.name AS pool_name, p.priority_formula FROM tenure_pool_requests r JOIN tenure_pools p ON p.id = r.pool_id
WHERE r.pool_id = ?1 AND r.idempotency_key = ?2 AND r.ended_at_ms IS NULL;

-- name: pool_request_get
SELECT r.*, p.namespace, p.name AS pool_name, p.priority_formula FROM tenure_pool_requests r JOIN tenure_pools p ON p.id = r.pool_id
WHERE r.id = ?2 AND p.namespace = ?1;

-- name: pool_request_list
-- Waiting and granted requests.
SELECT r.*, p.priority_formula,
       r.session IS NULL OR EXISTS (SELECT 1 FROM tenure_sessions s WHERE s.id = r.session AND s.state = 'live') AS live
FROM tenure_pool_requests r JOIN tenure_pools p ON p.id = r.pool_id
WHERE r.pool_id = ?1 AND r.ended_at_ms IS NULL
ORDER BY r.id;

-- name: pool_request_grant
UPDATE tenure_pool_requests SET state = 'granted', resource = ?2, token = ?3, granted_at_ms = ?4, expires_at_ms = ?4 + claim_timeout_ms
WHERE id = ?1 AND state = 'waiting'
RETURNING *;

-- name: pool_request_end
UPDATE tenure_pool_requests SET state = ?2, ended_at_ms = ?3
WHERE id IN (SELECT j.value FROM json_each(?1) j) AND ended_at_ms IS NULL;

-- name: pool_request_heartbeat
UPDATE tenure_pool_requests SET expires_at_ms = ?2 WHERE id = ?1 AND ended_at_ms IS NULL;

-- name: pool_request_list_expired
-- Waiting or granted requests whose session ended or whose time is over.
SELECT r.id, p.namespace, p.name, r.resource FROM tenure_pools p CROSS JOIN tenure_pool_requests r ON r.pool_id = p.id
WHERE r.ended_at_ms IS NULL
  AND (r.expires_at_ms < ?1
       OR (r.session IS NOT NULL
           AND NOT EXISTS (SELECT 1 FROM tenure_sessions s WHERE s.id = r.session AND s.state = 'live')))
LIMIT ?2;

-- name: pool_request_prune
DELETE FROM tenure_pool_requests WHERE id IN (
    SELECT r.id FROM tenure_pools p CROSS JOIN tenure_pool_requests r ON r.pool_id = p.id
    WHERE r.ended_at_ms IS NOT NULL AND r.ended_at_ms < ?1 - p.request_retention_ms LIMIT ?2);
