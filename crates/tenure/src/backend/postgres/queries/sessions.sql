-- name: epoch_current
SELECT tenure.current_epoch();

-- name: session_open
-- $1 id, $2 name, $3 lease in ms, $4 take-over mode, $5 owner. No row: there was one of this id.
-- Rows that have been over for a day are cleared away on the occasion, by the server's clock: nothing depends on them.
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

-- name: session_beat
-- $1 id. No row: the session is over. `state = 'live'` is what keeps an expired session from coming back.
UPDATE tenure.sessions SET beat = beat + 1, beat_at = now()
WHERE id = $1 AND state = 'live'
RETURNING tenure.current_epoch() AS epoch, (
    SELECT json_agg(json_build_object(
               'election', json_build_object('namespace', r.namespace, 'name', r.election),
               'slot', r.slot, 'token', r.token, 'by', r.asked_by,
               'kind', json_strip_nulls(json_build_object('kind', r.kind, 'to', r.successor)))
           ORDER BY r.namespace, r.election, r.slot)::text
    FROM tenure.requests r
    JOIN tenure.leases l ON l.namespace = r.namespace AND l.name = r.election AND l.slot = r.slot
    WHERE r.session = $1 AND l.session = $1 AND l.token = r.token
) AS asks;

-- name: session_wait
-- $1 a session. How long this transaction waits for a lock, a guard's above all: less than the client waits for an
-- answer, which is a tenth of the lease by default.
SELECT set_config('lock_timeout', greatest(40, least(60000, min(lease_ms) / 12))::text, true)
FROM tenure.sessions WHERE id = $1;

-- name: session_lock
-- $1 a session that is about to be closed. FOR UPDATE waits for the FOR KEY SHARE of its own takes and joins (a beat
-- does not), so that the next statement, whose snapshot is newer, sees all that it holds and stands for.
SELECT FROM tenure.sessions WHERE id = $1 FOR UPDATE;

-- name: session_end
-- $1 the session, $2 its hint. It ends by itself, and all that it held is free.
WITH over AS (
    UPDATE tenure.sessions SET state = 'ended', ended_at = now()
    WHERE id = $1 AND state = 'live' RETURNING id
), freed AS (
    UPDATE tenure.leases l
    SET token = coalesce(l.own_token, l.token), own_token = NULL, session = NULL, reserved = NULL, via = 'release'
    FROM over WHERE l.session = over.id
    RETURNING l.namespace, l.name, l.slot, l.token
), unasked AS (
    DELETE FROM tenure.requests r USING over WHERE r.session = over.id
), unstood AS (
    DELETE FROM tenure.candidates c USING over WHERE c.session = over.id
), terms AS (
    UPDATE tenure.terms t SET ended_at = now(), end_reason = 'ended' FROM freed f
    WHERE t.namespace = f.namespace AND t.election = f.name AND t.slot = f.slot AND t.token = f.token
      AND t.ended_at IS NULL
)
SELECT pg_notify('tenure_wake', $2) FROM over;

-- name: session_expire
-- $1 the session, $2 the beat that was seen to stand still (null: it is known to be dead), $9 on which epoch.
-- Of a take: $3 who takes, $4 namespace, $5 name, $6 slot, $7 token, $8 holder, as seen, $10 on which epoch. Null:
-- nobody does.
-- A take that is refused for what it saw expires nobody. The lease that it wants is left to it; its term is over.
WITH over AS (
    UPDATE tenure.sessions s SET state = 'expired', ended_at = now()
    WHERE s.id = $1 AND s.state = 'live' AND s.beat = coalesce($2::bigint, s.beat) AND tenure.current_epoch() = $9
      AND ($3::text IS NULL OR EXISTS (
          SELECT FROM tenure.leases l, tenure.sessions taker
          WHERE l.namespace = $4 AND l.name = $5 AND l.slot = $6 AND l.token = $7
            AND l.session IS NOT DISTINCT FROM $8 AND taker.id = $3 AND taker.state = 'live'
            AND tenure.current_epoch() = $10))
    RETURNING s.id
), freed AS (
    UPDATE tenure.leases l
    SET token = coalesce(l.own_token, l.token), own_token = NULL, session = NULL, reserved = NULL, via = 'takeover'
    FROM over WHERE l.session = over.id
      AND (l.namespace, l.name, l.slot) IS DISTINCT FROM ($4::text, $5::text, $6::integer)
    RETURNING l.namespace, l.name, l.slot, l.token
), unasked AS (
    DELETE FROM tenure.requests r USING over WHERE r.session = over.id
), unstood AS (
    DELETE FROM tenure.candidates c USING over WHERE c.session = over.id
    RETURNING c.namespace, c.election
), terms AS (
    UPDATE tenure.terms t SET ended_at = now(), end_reason = 'expired'
    FROM (SELECT * FROM freed UNION ALL SELECT $4, $5, $6, $7 FROM over) f
    WHERE t.namespace = f.namespace AND t.election = f.name AND t.slot = f.slot AND t.token = f.token
      AND t.ended_at IS NULL
)
SELECT pg_notify('tenure_wake', json_build_object('changed',
           json_build_object('namespace', touched.namespace, 'name', touched.name))::text)
FROM (SELECT namespace, name FROM freed UNION SELECT namespace, election FROM unstood) touched;

-- name: session_list
-- All that live, as JSON in the form that the library reads.
SELECT json_build_object(
    'id', s.id, 'name', s.name, 'beat', s.beat, 'lease_ms', s.lease_ms, 'live', true,
    'beat_at_ms', tenure.ms(s.beat_at), 'owner', s.owner)::text AS session
FROM tenure.sessions s WHERE s.state = 'live'
ORDER BY s.id;

-- name: session_show
-- $1 the ids. Those that are remembered, over or not.
SELECT json_build_object(
    'id', s.id, 'name', s.name, 'beat', s.beat, 'lease_ms', s.lease_ms, 'live', s.state = 'live',
    'beat_at_ms', tenure.ms(s.beat_at), 'owner', s.owner)::text AS session
FROM tenure.sessions s WHERE s.id = ANY (ARRAY(SELECT jsonb_array_elements_text($1)))
ORDER BY s.id;

-- name: session_watched
-- $1 a session. Whether its connection's end tells of its death.
SELECT FROM tenure.sessions WHERE id = $1 AND state = 'live' AND takeover = 'connection';

-- name: session_hold
-- $1 a session. The lock that says its connection lives; taken before its row is there.
SELECT pg_advisory_lock(hashtextextended($1, 8368));

-- name: session_await
-- $1 a session. Waits until nobody holds its lock, and lets go of it at once.
SELECT pg_advisory_xact_lock_shared(hashtextextended($1, 8368));
