-- name: session_open
-- $1 id, $2 name, $3 lease in ms, $4 takeover mode, $5 owner. No row: a session with this id exists or existed.
-- Also prunes sessions that ended more than a day ago by the clock of the server: nothing depends on them.
WITH pruned AS (
    DELETE FROM tenure.sessions WHERE id = ANY (ARRAY(
        SELECT s.id FROM tenure.sessions s
        WHERE s.state <> 'live' AND s.ended_at < now() - interval '1 day'
          AND NOT EXISTS (SELECT FROM tenure.leases l WHERE l.session = s.id)
        ORDER BY s.ended_at LIMIT 100 FOR UPDATE SKIP LOCKED))
), opened AS (
    INSERT INTO tenure.sessions (id, name, lease_ms, takeover, owner) VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (id) DO NOTHING RETURNING id
)
SELECT tenure.current_epoch() AS epoch FROM opened;

-- name: session_heartbeat
-- $1 id. No row: the session has ended. The condition `state = 'live'` prevents an expired session from coming back.
UPDATE tenure.sessions SET heartbeat_count = heartbeat_count + 1, heartbeat_at = now()
WHERE id = $1 AND state = 'live'
RETURNING tenure.current_epoch() AS epoch, (
    SELECT json_agg(json_build_object(
               'election', json_build_object('namespace', r.namespace, 'name', r.election),
               'slot', r.slot, 'token', r.token, 'requested_by', r.requested_by,
               'kind', json_strip_nulls(json_build_object('kind', r.kind, 'to', r.successor)))
           ORDER BY r.namespace, r.election, r.slot)::text
    FROM tenure.leader_requests r
    JOIN tenure.leases l ON l.namespace = r.namespace AND l.election = r.election AND l.slot = r.slot
    WHERE r.session = $1 AND l.session = $1 AND l.token = r.token
) AS leader_requests;

-- name: session_lock_timeout
-- $1 session. Limits how long this transaction waits for a lock, in particular that of a guard: less than the client waits
-- for a response, which is a tenth of the lease by default.
SELECT set_config('lock_timeout', greatest(40, least(60000, min(lease_ms) / 12))::text, true)
FROM tenure.sessions WHERE id = $1;

-- name: session_lock
-- $1 session that is about to end. FOR UPDATE waits for the FOR KEY SHARE of its own grants and joins (a heartbeat does
-- not), so that the next statement, whose snapshot is newer, sees all its leases and candidates.
SELECT FROM tenure.sessions WHERE id = $1 FOR UPDATE;

-- name: session_end
-- $1 session, $2 notification. The session ends by itself and releases all its leases.
WITH ended AS (
    UPDATE tenure.sessions SET state = 'ended', ended_at = now()
    WHERE id = $1 AND state = 'live' RETURNING id
), released AS (
    UPDATE tenure.leases l
    SET token = coalesce(l.own_token, l.token), own_token = NULL, session = NULL, reserved_for = NULL, start_reason = 'release'
    FROM ended WHERE l.session = ended.id
    RETURNING l.namespace, l.election, l.slot, l.token
), deleted_requests AS (
    DELETE FROM tenure.leader_requests r USING ended WHERE r.session = ended.id
), deleted_candidates AS (
    DELETE FROM tenure.candidates c USING ended WHERE c.session = ended.id
), ended_terms AS (
    UPDATE tenure.terms t SET ended_at = now(), end_reason = 'ended' FROM released f
    WHERE t.namespace = f.namespace AND t.election = f.election AND t.slot = f.slot AND t.token = f.token
      AND t.ended_at IS NULL
)
SELECT pg_notify('tenure_notify', $2) FROM ended;

-- name: session_expire
-- $1 session, $2 its heartbeat count as observed (null: its end is certain), $9 epoch of the observation. For a takeover: $3
-- session of the candidate, $4 namespace, $5 election, $6 slot, $7 token, $8 holder as observed, $10 epoch; null: there is
-- none.
-- A takeover that is rejected because the lease changed expires no session. The lease that it takes is left to lease_take;
-- its term ends here.
WITH expired AS (
    UPDATE tenure.sessions s SET state = 'expired', ended_at = now()
    WHERE s.id = $1 AND s.state = 'live' AND s.heartbeat_count = coalesce($2::bigint, s.heartbeat_count)
        AND tenure.current_epoch() = $9
      AND ($3::text IS NULL OR EXISTS (
          SELECT FROM tenure.leases l, tenure.sessions taker
          WHERE l.namespace = $4 AND l.election = $5 AND l.slot = $6 AND l.token = $7
            AND l.session IS NOT DISTINCT FROM $8 AND taker.id = $3 AND taker.state = 'live'
            AND tenure.current_epoch() = $10))
    RETURNING s.id
), released AS (
    UPDATE tenure.leases l
    SET token = coalesce(l.own_token, l.token), own_token = NULL, session = NULL, reserved_for = NULL, start_reason = 'takeover'
    FROM expired WHERE l.session = expired.id
      AND (l.namespace, l.election, l.slot) IS DISTINCT FROM ($4::text, $5::text, $6::integer)
    RETURNING l.namespace, l.election, l.slot, l.token
), deleted_requests AS (
    DELETE FROM tenure.leader_requests r USING expired WHERE r.session = expired.id
), deleted_candidates AS (
    DELETE FROM tenure.candidates c USING expired WHERE c.session = expired.id
    RETURNING c.namespace, c.election
), ended_terms AS (
    UPDATE tenure.terms t SET ended_at = now(), end_reason = 'expired'
    FROM (SELECT * FROM released UNION ALL SELECT $4, $5, $6, $7 FROM expired) f
    WHERE t.namespace = f.namespace AND t.election = f.election AND t.slot = f.slot AND t.token = f.token
      AND t.ended_at IS NULL
)
SELECT pg_notify('tenure_notify', json_build_object('election_changed',
           json_build_object('namespace', changed.namespace, 'name', changed.election))::text)
FROM (SELECT namespace, election FROM released UNION SELECT namespace, election FROM deleted_candidates) changed;

-- name: session_list
-- All live sessions. As JSON in the form that the library reads.
SELECT json_build_object(
    'id', s.id, 'name', s.name, 'heartbeat_count', s.heartbeat_count, 'lease_ms', s.lease_ms, 'live', true,
    'heartbeat_at_ms', tenure.to_unix_ms(s.heartbeat_at), 'owner', s.owner)::text AS session
FROM tenure.sessions s WHERE s.state = 'live'
ORDER BY s.id;

-- name: session_get
-- $1 ids. Live and ended sessions.
SELECT json_build_object(
    'id', s.id, 'name', s.name, 'heartbeat_count', s.heartbeat_count, 'lease_ms', s.lease_ms, 'live', s.state = 'live',
    'heartbeat_at_ms', tenure.to_unix_ms(s.heartbeat_at), 'owner', s.owner)::text AS session
FROM tenure.sessions s WHERE s.id = ANY (ARRAY(SELECT jsonb_array_elements_text($1)))
ORDER BY s.id;

-- name: session_is_watched
-- $1 session. Whether the end of its connection ends the session.
SELECT FROM tenure.sessions WHERE id = $1 AND state = 'live' AND takeover = 'connection';

-- name: session_hold_connection_lock
-- $1 session. The lock that shows that its connection is open; taken before its row exists.
SELECT pg_advisory_lock(hashtextextended($1, 8368));

-- name: session_await_connection_lock
-- $1 session. Waits until its lock is free, and releases it at once.
SELECT pg_advisory_xact_lock_shared(hashtextextended($1, 8368));
