-- name: pool_list
-- $1 namespace, or null for all; $2 name, or null for all. As JSON: settings, resources, and the requests that wait, whose
-- priority the library adds.
SELECT json_build_object(
    'namespace', p.namespace, 'name', p.name,
    'settings', json_build_object('mode', p.mode, 'fallback', p.fallback, 'cool_down_ms', p.cool_down_ms,
                                  'priority', p.priority, 'keep_ms', p.keep_ms),
    'paused', (SELECT json_build_object('by', n.paused_by, 'reason', n.paused_reason, 'at_ms', tenure.ms(n.paused_at))
               FROM tenure.namespaces n WHERE n.name = p.namespace AND n.paused_at IS NOT NULL),
    'resources', coalesce((
        SELECT json_agg(json_build_object(
            'name', s.name, 'tags', s.tags, 'enabled', s.enabled, 'token', s.token,
            'holder', (SELECT tenure.request_view(h) FROM tenure.pool_requests h WHERE h.id = s.request),
            'cooling_until_ms', CASE WHEN s.cooling_until > clock_timestamp() THEN tenure.ms(s.cooling_until) END)
            ORDER BY s.name)
        FROM tenure.resources s WHERE s.pool = p.id AND NOT s.removed), '[]'),
    'waiting', coalesce((
        SELECT json_agg(tenure.request_view(r) ORDER BY r.id)
        FROM tenure.pool_requests r WHERE r.pool = p.id AND r.state = 'waiting'), '[]'))::text AS pool,
    tenure.ms(clock_timestamp()) AS now_ms
FROM tenure.pools p
WHERE ($1::text IS NULL OR p.namespace = $1) AND ($2::text IS NULL OR p.name = $2)
ORDER BY p.namespace, p.name;

-- name: pool_set
-- $1 namespace, $2 name, $3 settings.
WITH done AS (
    UPDATE tenure.pools p
    SET mode = s.mode, fallback = s.fallback, cool_down_ms = s.cool_down_ms, priority = s.priority, keep_ms = s.keep_ms
    FROM jsonb_to_record($3) AS s (mode text, fallback text, cool_down_ms bigint, priority text, keep_ms bigint)
    WHERE p.id = tenure.pool_id($1, $2)
    RETURNING p.id
)
SELECT tenure.pool_wake(done.id) FROM done;

-- name: pool_make
-- $1 namespace, $2 name. Made if it is not there, and held still.
SELECT tenure.pool_id($1, $2);

-- name: resource_put
-- $1 namespace, $2 name of the pool, $3 resources. The last one counts, should there be two of a name.
WITH pool AS (
    SELECT p.id FROM tenure.pools p WHERE p.namespace = $1 AND p.name = $2
), put AS (
    INSERT INTO tenure.resources (pool, name, tags, enabled)
    SELECT DISTINCT ON (g.r ->> 'name') pool.id, g.r ->> 'name', g.r -> 'tags', (g.r ->> 'enabled')::boolean
    FROM pool, jsonb_array_elements($3) WITH ORDINALITY AS g (r, n) ORDER BY g.r ->> 'name', g.n DESC
    ON CONFLICT (pool, name) DO UPDATE SET tags = EXCLUDED.tags, enabled = EXCLUDED.enabled, removed = false
)
SELECT tenure.pool_wake(pool.id) FROM pool;

-- name: resource_remove
-- $1 namespace, $2 name of the pool, $3 resource. No row: it is not there. `holder`: who has it, and so it stays.
WITH found AS (
    SELECT s.pool, s.name, s.request FROM tenure.resources s JOIN tenure.pools p ON p.id = s.pool
    WHERE p.namespace = $1 AND p.name = $2 AND s.name = $3 AND NOT s.removed FOR UPDATE OF s
), removed AS (
    UPDATE tenure.resources s SET removed = true, enabled = false
    FROM found f WHERE s.pool = f.pool AND s.name = f.name AND f.request IS NULL
)
SELECT f.request AS holder FROM found f;

-- name: pool_lock
-- $1 namespace, $2 name. Held still, if it is there.
SELECT FROM tenure.pools p WHERE p.namespace = $1 AND p.name = $2 FOR NO KEY UPDATE;

-- name: pool_request
-- $1 namespace, $2 name of the pool, $3 the request. After pool_lock: nobody else makes one meanwhile. No row: there is no such
-- pool. `owner`: of the request with this key.
WITH pool AS (
    SELECT p.id, p.priority FROM tenure.pools p WHERE p.namespace = $1 AND p.name = $2
), known AS (
    SELECT r.* FROM tenure.pool_requests r JOIN pool ON r.pool = pool.id
    WHERE r.key = $3::jsonb ->> 'key' AND r.state IN ('waiting', 'granted')
), made AS (
    INSERT INTO tenure.pool_requests
        (pool, key, owner, requires, prefers, base, session, hold_ms, max_wait_ms, created_at)
    SELECT pool.id, $3::jsonb ->> 'key', $3::jsonb ->> 'owner', $3::jsonb -> 'requires', $3::jsonb -> 'prefers', ($3::jsonb ->> 'base')::integer,
           $3::jsonb ->> 'session', ($3::jsonb ->> 'hold_ms')::bigint, ($3::jsonb ->> 'max_wait_ms')::bigint,
           date_trunc('milliseconds', clock_timestamp())
    FROM pool WHERE NOT EXISTS (SELECT FROM known)
    RETURNING *
)
SELECT tenure.request_view(r)::text AS request, pool.priority, tenure.ms(clock_timestamp()) AS now_ms
FROM pool, (SELECT * FROM known UNION ALL SELECT * FROM made) r;

-- name: request_show
-- $1 namespace, $2 which ones.
SELECT tenure.request_view(r)::text AS request, p.priority, tenure.ms(clock_timestamp()) AS now_ms
FROM tenure.pool_requests r JOIN tenure.pools p ON p.id = r.pool AND p.namespace = $1
WHERE r.id = ANY (ARRAY(SELECT jsonb_array_elements_text($2)::bigint))
ORDER BY r.id;

-- name: request_lock
-- $1 namespace, $2 a request. Its pool is held still.
SELECT FROM tenure.pools p WHERE p.namespace = $1 AND p.id = (SELECT r.pool FROM tenure.pool_requests r WHERE r.id = $2)
FOR NO KEY UPDATE;

-- name: request_release
-- $1 namespace, $2 which, $3 owner, $4 token. A row: it ends.
SELECT tenure.request_end(r.id, CASE r.state WHEN 'waiting' THEN 'cancelled' ELSE 'released' END,
                          date_trunc('milliseconds', clock_timestamp()))
FROM tenure.pool_requests r JOIN tenure.pools p ON p.id = r.pool AND p.namespace = $1
WHERE r.id = $2 AND r.owner = $3 AND r.token IS NOT DISTINCT FROM $4 AND r.state IN ('waiting', 'granted');

-- name: request_extend
-- $1 namespace, $2 which, $3 owner, $4 token, $5 for how long (ms). A row: it lasts.
UPDATE tenure.pool_requests r
SET deadline = date_trunc('milliseconds', clock_timestamp()) + $5::bigint * interval '1 millisecond'
FROM tenure.pools p
WHERE p.id = r.pool AND p.namespace = $1 AND r.id = $2 AND r.owner = $3 AND r.token = $4 AND r.state = 'granted'
RETURNING r.id;

-- name: pool_look
-- $1 namespace, $2 name, $3 one request, or null for all. What there is to match: requests that wait and whose session lives,
-- resources that are free, enabled and rested. No row: there is no such pool.
SELECT p.id, p.priority, tenure.ms(clock_timestamp()) AS now_ms,
       (SELECT json_agg(tenure.request_view(r) ORDER BY r.id) FROM tenure.pool_requests r
        WHERE r.pool = p.id AND r.state = 'waiting' AND ($3::bigint IS NULL OR r.id = $3)
          AND (r.session IS NULL
               OR EXISTS (SELECT FROM tenure.sessions s WHERE s.id = r.session AND s.state = 'live')))::text AS waiting,
       (SELECT json_agg(json_build_object('name', s.name, 'tags', s.tags, 'enabled', s.enabled) ORDER BY s.name)
        FROM tenure.resources s
        WHERE s.pool = p.id AND s.enabled AND NOT s.removed AND s.request IS NULL
          AND (s.cooling_until IS NULL OR s.cooling_until <= clock_timestamp()))::text AS free
FROM tenure.pools p WHERE p.namespace = $1 AND p.name = $2;

-- name: pool_grant
-- $1 the pool's number, $2 authority, $3 leader, $4 its token, $5 what is given. See tenure.grant_all.
SELECT g.request, g.note FROM tenure.grant_all($1, $2, $3, $4, $5) g;
