-- name: election_upsert
-- $1 namespace, $2 name, $3 slots, $4 required capabilities, $5 session of the first candidate.
INSERT INTO tenure.elections (namespace, name, slots, required_capabilities)
SELECT $1, $2, $3, $4 FROM tenure.sessions s WHERE s.id = $5 AND s.state = 'live'
ON CONFLICT (namespace, name) DO NOTHING;

-- name: election_lock
-- $1 namespace, $2 name. Waits for grants in progress, so that the next statement sees their leaders.
SELECT FROM tenure.elections WHERE namespace = $1 AND name = $2 FOR NO KEY UPDATE;

-- name: election_pause
-- $1 namespace, $2 name, $3 paused by, $4 reason, $5 time (ms, informational), $6 notification. Requests each leader to
-- stop.
WITH changed AS (
    UPDATE tenure.elections
    SET paused_by = $3, paused_reason = $4, paused_at = timestamptz 'epoch' + $5 * interval '1 millisecond'
    WHERE namespace = $1 AND name = $2 AND paused_at IS NULL RETURNING name
), leases_ AS (
    SELECT l.slot, l.token, l.session FROM tenure.leases l, changed
    WHERE l.namespace = $1 AND l.election = $2 AND l.session IS NOT NULL
), requested AS (
    INSERT INTO tenure.leader_requests AS r (namespace, election, slot, token, session, kind, requested_by)
    SELECT $1, $2, slot, token, session, 'pause', $3 FROM leases_
    ON CONFLICT (namespace, election, slot) DO UPDATE
    SET token = EXCLUDED.token, session = EXCLUDED.session, kind = EXCLUDED.kind, successor = NULL,
        requested_by = EXCLUDED.requested_by, requested_at = now()
    WHERE r.token <= EXCLUDED.token
)
SELECT EXISTS (SELECT FROM tenure.elections WHERE namespace = $1 AND name = $2) AS known,
       EXISTS (SELECT FROM changed) AS changed,
       (SELECT count(pg_notify('tenure_notify', json_build_object('leader_requested', session)::text)) FROM leases_),
       (SELECT pg_notify('tenure_notify', $6) FROM changed);

-- name: election_resume
-- $1 namespace, $2 name, $3 notification.
WITH changed AS (
    UPDATE tenure.elections SET paused_by = NULL, paused_reason = NULL, paused_at = NULL
    WHERE namespace = $1 AND name = $2 AND paused_at IS NOT NULL RETURNING name
), deleted AS (
    DELETE FROM tenure.leader_requests r USING changed
    WHERE r.namespace = $1 AND r.election = $2 AND r.kind = 'pause'
)
SELECT EXISTS (SELECT FROM tenure.elections WHERE namespace = $1 AND name = $2) AS known,
       EXISTS (SELECT FROM changed) AS changed,
       (SELECT pg_notify('tenure_notify', $3) FROM changed);

-- name: observe
-- $1 scope: contested, own, listed or all; $2 session of the caller, $3 keys of `listed`, $4 namespace of `all` (null:
-- every). One statement, so one snapshot. The last two columns are JSON in the form that the library reads. The scope is a
-- constant when the planner sees it, so that three of the four branches cost nothing.
WITH scope AS (
    SELECT c.namespace, c.election AS name FROM tenure.candidates c
    WHERE $1 IN ('contested', 'own') AND c.session = $2
      AND ($1 = 'own' OR NOT EXISTS (
          SELECT FROM tenure.leases l
          WHERE l.namespace = c.namespace AND l.election = c.election AND l.session = $2))
    UNION ALL
    SELECT DISTINCT k.namespace, k.name FROM jsonb_to_recordset($3) AS k (namespace text, name text) WHERE $1 = 'listed'
    UNION ALL
    SELECT namespace, name FROM tenure.elections
    WHERE $1 = 'all' AND ($4::text IS NULL OR namespace = $4)
), elections_ AS (
    SELECT e.namespace, e.name, json_build_object(
        'namespace', e.namespace, 'name', e.name, 'slots', e.slots, 'required_capabilities', e.required_capabilities,
        'paused', CASE WHEN e.paused_at IS NOT NULL THEN json_build_object(
            'paused_by', e.paused_by, 'reason', e.paused_reason, 'paused_at_ms', tenure.to_unix_ms(e.paused_at)) END,
        'leases', coalesce((
            SELECT json_agg(json_build_object(
                'slot', l.slot, 'token', l.token, 'reserved_for', l.reserved_for, 'start_reason', l.start_reason,
                'granted_at_ms', tenure.to_unix_ms(l.granted_at),
                'holder', CASE WHEN s.id IS NOT NULL THEN json_build_object(
                    'id', s.id, 'name', s.name, 'heartbeat_count', s.heartbeat_count, 'lease_ms', s.lease_ms,
                    'live', s.state = 'live', 'heartbeat_at_ms', tenure.to_unix_ms(s.heartbeat_at), 'owner', s.owner) END)
                        ORDER BY l.slot)
            FROM tenure.leases l LEFT JOIN tenure.sessions s ON s.id = l.session
            WHERE l.namespace = e.namespace AND l.election = e.name AND l.slot < e.slots), '[]'),
        'candidates', coalesce((
            SELECT json_agg(json_build_object(
                'name', c.name, 'priority', c.priority, 'observer', c.observer, 'capabilities', c.capabilities,
                'metadata', c.metadata, 'joined_at_ms', tenure.to_unix_ms(c.joined_at),
                'session', json_build_object(
                    'id', s.id, 'name', s.name, 'heartbeat_count', s.heartbeat_count, 'lease_ms', s.lease_ms,
                    'live', s.state = 'live', 'heartbeat_at_ms', tenure.to_unix_ms(s.heartbeat_at), 'owner', s.owner))
                        ORDER BY c.session)
            FROM tenure.candidates c JOIN tenure.sessions s ON s.id = c.session
            WHERE c.namespace = e.namespace AND c.election = e.name), '[]')) AS election_json
    FROM scope JOIN tenure.elections e ON e.namespace = scope.namespace AND e.name = scope.name
)
SELECT tenure.current_epoch() AS epoch,
       (SELECT json_agg(election_json ORDER BY namespace, name)::text FROM elections_) AS elections,
       (SELECT json_agg(json_build_array(
                   json_build_object('namespace', l.namespace, 'name', l.election), l.slot, l.token)
               ORDER BY l.namespace, l.election, l.slot)::text
        FROM tenure.leases l
        WHERE l.session = $2 AND NOT EXISTS (
            SELECT FROM tenure.candidates c
            WHERE c.namespace = l.namespace AND c.election = l.election AND c.session = $2)) AS orphaned_leases;

-- name: store_identity
-- A promoted standby has the identity of its primary: tokens continue to grow over a promotion.
SELECT 'postgres ' || c.system_identifier || '/' || d.oid AS identity
FROM pg_catalog.pg_control_system() c, pg_catalog.pg_database d
WHERE d.datname = current_database();
