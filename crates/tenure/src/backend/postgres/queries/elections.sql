-- name: election_upsert
-- $1 namespace, $2 name, $3 slots, $4 requires, $5 the session that stands for it first.
INSERT INTO tenure.elections (namespace, name, slots, requires)
SELECT $1, $2, $3, $4 FROM tenure.sessions s WHERE s.id = $5 AND s.state = 'live'
ON CONFLICT (namespace, name) DO NOTHING;

-- name: election_lock
-- $1 namespace, $2 name. Waits for the takes under way, so that the next statement sees whom they made leader.
SELECT FROM tenure.elections WHERE namespace = $1 AND name = $2 FOR NO KEY UPDATE;

-- name: election_pause
-- $1 namespace, $2 name, $3 by, $4 reason, $5 when (ms, for people), $6 the hint. Each holder is asked to stop.
WITH changed AS (
    UPDATE tenure.elections
    SET paused_by = $3, paused_reason = $4, paused_at = timestamptz 'epoch' + $5 * interval '1 millisecond'
    WHERE namespace = $1 AND name = $2 AND paused_at IS NULL RETURNING name
), held AS (
    SELECT l.slot, l.token, l.session FROM tenure.leases l, changed
    WHERE l.namespace = $1 AND l.name = $2 AND l.session IS NOT NULL
), asked AS (
    INSERT INTO tenure.requests AS r (namespace, election, slot, token, session, kind, asked_by)
    SELECT $1, $2, slot, token, session, 'pause', $3 FROM held
    ON CONFLICT (namespace, election, slot) DO UPDATE
    SET token = EXCLUDED.token, session = EXCLUDED.session, kind = EXCLUDED.kind, successor = NULL,
        asked_by = EXCLUDED.asked_by, asked_at = now()
    WHERE r.token <= EXCLUDED.token
)
SELECT EXISTS (SELECT FROM tenure.elections WHERE namespace = $1 AND name = $2) AS known,
       EXISTS (SELECT FROM changed) AS changed,
       (SELECT count(pg_notify('tenure_wake', json_build_object('asked', session)::text)) FROM held),
       (SELECT pg_notify('tenure_wake', $6) FROM changed);

-- name: election_resume
-- $1 namespace, $2 name, $3 the hint.
WITH changed AS (
    UPDATE tenure.elections SET paused_by = NULL, paused_reason = NULL, paused_at = NULL
    WHERE namespace = $1 AND name = $2 AND paused_at IS NOT NULL RETURNING name
), unasked AS (
    DELETE FROM tenure.requests r USING changed
    WHERE r.namespace = $1 AND r.election = $2 AND r.kind = 'pause'
)
SELECT EXISTS (SELECT FROM tenure.elections WHERE namespace = $1 AND name = $2) AS known,
       EXISTS (SELECT FROM changed) AS changed,
       (SELECT pg_notify('tenure_wake', $3) FROM changed);

-- name: observe
-- $1 scope: contested, standing, only or all; $2 who looks, $3 the keys of `only`, $4 the namespace of `all` (null:
-- every). One statement, so one moment. The last two columns are JSON in the form that the library reads.
-- The scope is a literal by the time the planner sees it, so three of the four branches cost nothing.
WITH scope AS (
    SELECT c.namespace, c.election AS name FROM tenure.candidates c
    WHERE $1 IN ('contested', 'standing') AND c.session = $2
      AND ($1 = 'standing' OR NOT EXISTS (
          SELECT FROM tenure.leases l
          WHERE l.namespace = c.namespace AND l.name = c.election AND l.session = $2))
    UNION ALL
    SELECT DISTINCT k.namespace, k.name FROM jsonb_to_recordset($3) AS k (namespace text, name text) WHERE $1 = 'only'
    UNION ALL
    SELECT namespace, name FROM tenure.elections
    WHERE $1 = 'all' AND ($4::text IS NULL OR namespace = $4)
), views AS (
    SELECT e.namespace, e.name, json_build_object(
        'namespace', e.namespace, 'name', e.name, 'slots', e.slots, 'requires', e.requires,
        'paused', CASE WHEN e.paused_at IS NOT NULL THEN json_build_object(
            'by', e.paused_by, 'reason', e.paused_reason, 'at_ms', tenure.ms(e.paused_at)) END,
        'leases', coalesce((
            SELECT json_agg(json_build_object(
                'slot', l.slot, 'token', l.token, 'reserved', l.reserved, 'via', l.via,
                'granted_at_ms', tenure.ms(l.granted_at),
                'holder', CASE WHEN s.id IS NOT NULL THEN json_build_object(
                    'id', s.id, 'name', s.name, 'beat', s.beat, 'lease_ms', s.lease_ms,
                    'live', s.state = 'live', 'beat_at_ms', tenure.ms(s.beat_at), 'owner', s.owner) END) ORDER BY l.slot)
            FROM tenure.leases l LEFT JOIN tenure.sessions s ON s.id = l.session
            WHERE l.namespace = e.namespace AND l.name = e.name AND l.slot < e.slots), '[]'),
        'candidates', coalesce((
            SELECT json_agg(json_build_object(
                'id', c.id, 'priority', c.priority, 'observer', c.observer, 'capabilities', c.capabilities,
                'metadata', c.metadata, 'joined_at_ms', tenure.ms(c.joined_at),
                'session', json_build_object(
                    'id', s.id, 'name', s.name, 'beat', s.beat, 'lease_ms', s.lease_ms,
                    'live', s.state = 'live', 'beat_at_ms', tenure.ms(s.beat_at), 'owner', s.owner)) ORDER BY c.session)
            FROM tenure.candidates c JOIN tenure.sessions s ON s.id = c.session
            WHERE c.namespace = e.namespace AND c.election = e.name), '[]')) AS view
    FROM scope JOIN tenure.elections e ON e.namespace = scope.namespace AND e.name = scope.name
)
SELECT tenure.current_epoch() AS epoch,
       (SELECT json_agg(view ORDER BY namespace, name)::text FROM views) AS elections,
       (SELECT json_agg(json_build_array(
                   json_build_object('namespace', l.namespace, 'name', l.name), l.slot, l.token)
               ORDER BY l.namespace, l.name, l.slot)::text
        FROM tenure.leases l
        WHERE l.session = $2 AND NOT EXISTS (
            SELECT FROM tenure.candidates c
            WHERE c.namespace = l.namespace AND c.election = l.name AND c.session = $2)) AS strays;

-- name: store_identity
-- A promoted standby has the identity of its primary: tokens grow over that.
SELECT 'postgres ' || c.system_identifier || '/' || d.oid AS identity
FROM pg_catalog.pg_control_system() c, pg_catalog.pg_database d
WHERE d.datname = current_database();
