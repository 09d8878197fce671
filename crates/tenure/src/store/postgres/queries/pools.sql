-- name: pool_list
-- $1 namespace, or null for all; $2 name, or null for all. As JSON: settings, resources, and waiting requests, whose
-- priority the library computes.
SELECT json_build_object(
    'namespace', p.namespace, 'name', p.name,
    'settings', json_build_object('mode', p.mode, 'fallback', p.fallback, 'cooldown_ms', p.cooldown_ms,
                                  'priority_formula', p.priority_formula, 'request_retention_ms', p.request_retention_ms),
    'paused', (SELECT json_build_object('paused_by', n.paused_by, 'reason', n.paused_reason, 'paused_at_ms',
        tenure.to_unix_ms(n.paused_at))
               FROM tenure.namespaces n WHERE n.name = p.namespace AND n.paused_at IS NOT NULL),
    'resources', coalesce((
        SELECT json_agg(json_build_object(
            'name', s.name, 'tags', s.tags, 'enabled', s.enabled, 'token', s.token,
            'held_by', (SELECT tenure.request_json(h) FROM tenure.pool_requests h WHERE h.id = s.request_id),
            'cooldown_until_at_ms', CASE WHEN s.cooldown_until > clock_timestamp() THEN tenure.to_unix_ms(s.cooldown_until) END)
            ORDER BY s.name)
        FROM tenure.resources s WHERE s.pool_id = p.id AND NOT s.removed), '[]'),
    'waiting_requests', coalesce((
        SELECT json_agg(tenure.request_json(r) ORDER BY r.id)
        FROM tenure.pool_requests r WHERE r.pool_id = p.id AND r.state = 'waiting'), '[]'))::text AS pool,
    tenure.to_unix_ms(clock_timestamp()) AS now_at_ms
FROM tenure.pools p
WHERE ($1::text IS NULL OR p.namespace = $1) AND ($2::text IS NULL OR p.name = $2)
ORDER BY p.namespace, p.name;

-- name: pool_set
-- $1 namespace, $2 name, $3 settings.
WITH updated AS (
    UPDATE tenure.pools p
    SET mode = s.mode, fallback = s.fallback, cooldown_ms = s.cooldown_ms, priority_formula = s.priority_formula,
        request_retention_ms = s.request_retention_ms
    FROM jsonb_to_record($3) AS s (mode text, fallback text, cooldown_ms bigint, priority_formula text,
        request_retention_ms bigint)
    WHERE p.id = tenure.ensure_pool($1, $2)
    RETURNING p.id
)
SELECT tenure.notify_pool(updated.id) FROM updated;

-- name: pool_create
-- $1 namespace, $2 name. Creates the pool if it does not exist, and locks it.
SELECT tenure.ensure_pool($1, $2);

-- name: resource_put
-- $1 namespace, $2 pool, $3 resources. Of two resources with the same name the last one counts.
WITH pool AS (
    SELECT p.id FROM tenure.pools p WHERE p.namespace = $1 AND p.name = $2
), put AS (
    INSERT INTO tenure.resources (pool_id, name, tags, enabled)
    SELECT DISTINCT ON (g.r ->> 'name') pool.id, g.r ->> 'name', g.r -> 'tags', (g.r ->> 'enabled')::boolean
    FROM pool, jsonb_array_elements($3) WITH ORDINALITY AS g (r, n) ORDER BY g.r ->> 'name', g.n DESC
    ON CONFLICT (pool_id, name) DO UPDATE SET tags = EXCLUDED.tags, enabled = EXCLUDED.enabled, removed = false
)
SELECT tenure.notify_pool(pool.id) FROM pool;

-- name: resource_remove
-- $1 namespace, $2 pool, $3 resource. No row: the resource does not exist. `holder`: the request that holds it, because of
-- which it stays.
WITH found AS (
    SELECT s.pool_id, s.name, s.request_id FROM tenure.resources s JOIN tenure.pools p ON p.id = s.pool_id
    WHERE p.namespace = $1 AND p.name = $2 AND s.name = $3 AND NOT s.removed FOR UPDATE OF s
), removed AS (
    UPDATE tenure.resources s SET removed = true, enabled = false
    FROM found f WHERE s.pool_id = f.pool_id AND s.name = f.name AND f.request_id IS NULL
)
SELECT f.request_id AS holder FROM found f;

-- name: pool_lock
-- $1 namespace, $2 name. Locks the pool, if it exists.
SELECT FROM tenure.pools p WHERE p.namespace = $1 AND p.name = $2 FOR NO KEY UPDATE;

-- name: pool_request_put
-- $1 namespace, $2 pool, $3 request. After pool_lock, so that no other transaction creates one meanwhile. No row: the pool
-- does not exist. An existing request with the same key is returned instead.
WITH pool AS (
    SELECT p.id, p.priority_formula FROM tenure.pools p WHERE p.namespace = $1 AND p.name = $2
), known AS (
    SELECT r.* FROM tenure.pool_requests r JOIN pool ON r.pool_id = pool.id
    WHERE r.idempotency_key = $3::jsonb ->> 'idempotency_key' AND r.state IN ('waiting', 'granted')
), inserted AS (
    INSERT INTO tenure.pool_requests
        (pool_id, idempotency_key, owner, required_tags, preferred_tags, base_priority, session, claim_timeout_ms, max_wait_ms,
            created_at)
    SELECT pool.id, $3::jsonb ->> 'idempotency_key', $3::jsonb ->> 'owner', $3::jsonb -> 'required_tags',
        $3::jsonb -> 'preferred_tags', ($3::jsonb ->> 'base_priority')::integer,
           $3::jsonb ->> 'session', ($3::jsonb ->> 'claim_timeout_ms')::bigint, ($3::jsonb ->> 'max_wait_ms')::bigint,
           date_trunc('milliseconds', clock_timestamp())
    FROM pool WHERE NOT EXISTS (SELECT FROM known)
    RETURNING *
)
SELECT tenure.request_json(r)::text AS request, pool.priority_formula, tenure.to_unix_ms(clock_timestamp()) AS now_at_ms
FROM pool, (SELECT * FROM known UNION ALL SELECT * FROM inserted) r;

-- name: pool_request_get
-- $1 namespace, $2 request ids.
SELECT tenure.request_json(r)::text AS request, p.priority_formula, tenure.to_unix_ms(clock_timestamp()) AS now_at_ms
FROM tenure.pool_requests r JOIN tenure.pools p ON p.id = r.pool_id AND p.namespace = $1
WHERE r.id = ANY (ARRAY(SELECT jsonb_array_elements_text($2)::bigint))
ORDER BY r.id;

-- name: pool_request_lock
-- $1 namespace, $2 request id. Locks its pool.
SELECT FROM tenure.pools p WHERE p.namespace = $1 AND p.id = (SELECT r.pool_id FROM tenure.pool_requests r WHERE r.id = $2)
FOR NO KEY UPDATE;

-- name: pool_request_release
-- $1 namespace, $2 request id, $3 owner, $4 token. A row: the request ended.
SELECT tenure.end_request(r.id, CASE r.state WHEN 'waiting' THEN 'cancelled' ELSE 'released' END,
                          date_trunc('milliseconds', clock_timestamp()))
FROM tenure.pool_requests r JOIN tenure.pools p ON p.id = r.pool_id AND p.namespace = $1
WHERE r.id = $2 AND r.owner = $3 AND r.token IS NOT DISTINCT FROM $4 AND r.state IN ('waiting', 'granted');

-- name: pool_request_heartbeat
-- $1 namespace, $2 request id, $3 owner, $4 token, $5 claim timeout (ms). A row: the grant was extended.
UPDATE tenure.pool_requests r
SET expires_at = date_trunc('milliseconds', clock_timestamp()) + $5::bigint * interval '1 millisecond'
FROM tenure.pools p
WHERE p.id = r.pool_id AND p.namespace = $1 AND r.id = $2 AND r.owner = $3 AND r.token = $4 AND r.state = 'granted'
RETURNING r.id;

-- name: pool_match_input
-- $1 namespace, $2 name, $3 request id, or null for all. The input of a match: waiting requests without a session or with a
-- live one, and resources that are free, enabled and not in cooldown. No row: the pool does not exist.
SELECT p.id, p.priority_formula, tenure.to_unix_ms(clock_timestamp()) AS now_at_ms,
       (SELECT json_agg(tenure.request_json(r) ORDER BY r.id) FROM tenure.pool_requests r
        WHERE r.pool_id = p.id AND r.state = 'waiting' AND ($3::bigint IS NULL OR r.id = $3)
          AND (r.session IS NULL
               OR EXISTS (SELECT FROM tenure.sessions s WHERE s.id = r.session AND s.state = 'live')))::text AS waiting,
       (SELECT json_agg(json_build_object('name', s.name, 'tags', s.tags, 'enabled', s.enabled) ORDER BY s.name)
        FROM tenure.resources s
        WHERE s.pool_id = p.id AND s.enabled AND NOT s.removed AND s.request_id IS NULL
          AND (s.cooldown_until IS NULL OR s.cooldown_until <= clock_timestamp()))::text AS free
FROM tenure.pools p WHERE p.namespace = $1 AND p.name = $2;

-- name: pool_grant
-- $1 pool id, $2 authority, $3 session of the leader, $4 its token, $5 pairs of request and resource. See
-- tenure.grant_resources.
SELECT g.request_id, g.refusal FROM tenure.grant_resources($1, $2, $3, $4, $5) g;
