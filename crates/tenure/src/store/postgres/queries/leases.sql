-- name: lease_lock
-- $1 namespace, $2 election, $3 slot, $4 session of the candidate. Locks everything that a grant depends on, in this order,
-- so that a wait for a guard (FOR SHARE on the lease) blocks no other transaction. The lock of the election excludes a
-- pause, which must find either a leader to request or an election that no candidate can take; the lock of the candidate's
-- session excludes its end, not its heartbeats.
SELECT FROM tenure.leases l, tenure.elections e, tenure.sessions s
WHERE l.namespace = $1 AND l.election = $2 AND l.slot = $3
  AND e.namespace = l.namespace AND e.name = l.election AND s.id = $4
FOR NO KEY UPDATE OF l FOR SHARE OF e FOR KEY SHARE OF s;

-- name: lease_take
-- $1 namespace, $2 election, $3 slot, $4 session of the candidate, $5 token and $6 holder as observed, $7 notification, $8
-- epoch in which they were observed: an observation in another epoch may be undone.
-- Compare and swap on (token, session). If there was a holder, its session has ended by now, or nothing happens. Then the
-- candidate gets the lease if it may lead; otherwise the lease becomes free. A row: the new token.
WITH allowed AS (
    SELECT c.name AS candidate_name, e.paused_at IS NULL AND $3 < e.slots AND c.name IS NOT NULL AS may_lead
    FROM tenure.elections e
    JOIN tenure.sessions s ON s.id = $4 AND s.state = 'live'
    LEFT JOIN tenure.candidates c
        ON c.namespace = e.namespace AND c.election = e.name AND c.session = s.id
    WHERE e.namespace = $1 AND e.name = $2 AND tenure.current_epoch() = $8
), moved AS (
    UPDATE tenure.leases l
    SET token = CASE WHEN allowed.may_lead THEN greatest(coalesce(l.own_token, l.token), $8::bigint << 40) + 1
                     ELSE coalesce(l.own_token, l.token) END,
        own_token = NULL,
        session = CASE WHEN allowed.may_lead THEN $4 END,
        reserved_for = NULL,
        start_reason = CASE WHEN l.session IS NULL THEN l.start_reason ELSE 'takeover' END,
        granted_at = CASE WHEN allowed.may_lead THEN now() ELSE l.granted_at END
    FROM allowed
    WHERE l.namespace = $1 AND l.election = $2 AND l.slot = $3
      AND l.token = $5 AND l.session IS NOT DISTINCT FROM $6
      AND NOT EXISTS (SELECT FROM tenure.sessions h WHERE h.id = l.session AND h.state = 'live')
      AND (allowed.may_lead OR l.session IS NOT NULL)
    RETURNING l.namespace, l.election, l.slot, l.token, l.session, l.start_reason, allowed.candidate_name
), deleted AS (
    -- Requests to earlier terms. Their tokens may come from another store and be greater.
    DELETE FROM tenure.leader_requests r USING moved m
    WHERE r.namespace = m.namespace AND r.election = m.election AND r.slot = m.slot
), started AS (
    INSERT INTO tenure.terms (namespace, election, slot, token, session, candidate_name, start_reason)
    SELECT namespace, election, slot, token, session, candidate_name, start_reason FROM moved WHERE session IS NOT NULL
)
SELECT CASE WHEN session IS NOT NULL THEN token END AS token, pg_notify('tenure_notify', $7) FROM moved;

-- name: lease_release
-- $1 namespace, $2 election, $3 slot, $4 token, $5 session, $6 successor, $7 start reason of the next term, $8 notification.
-- Requests to the ended term are void; the next grant deletes them.
WITH released AS (
    UPDATE tenure.leases SET token = coalesce(own_token, token), own_token = NULL, session = NULL, reserved_for = $6,
        start_reason = $7
    WHERE namespace = $1 AND election = $2 AND slot = $3 AND token = $4 AND session = $5
    RETURNING slot
), ended AS (
    UPDATE tenure.terms t SET ended_at = now(), end_reason = 'released' FROM released
    WHERE t.namespace = $1 AND t.election = $2 AND t.slot = released.slot AND t.token = $4
      AND t.ended_at IS NULL
)
SELECT pg_notify('tenure_notify', $8) FROM released;

-- name: lease_limit_transaction_time
-- $1 lease in ms. Before the guard, so that its own wait is limited too. The guard checks the setting: outside of a
-- transaction it is gone by then.
SELECT tenure.limit_transaction_time($1::bigint), set_config('tenure.guarding', 'on', true);

-- name: lease_guard
-- $1 namespace, $2 election, $3 slot, $4 token, $5 session. No row: the lease is not held under this token.
-- FOR SHARE conflicts with the UPDATE of a takeover and not with other guards; FOR KEY SHARE would conflict with neither. A
-- plain SELECT takes no lock, and a takeover could happen before the commit. Outside of a transaction the lock would end
-- with this statement, as the setting of lease_limit_transaction_time does.
SELECT coalesce(current_setting('tenure.guarding', true) = 'on', false) AS in_transaction
FROM tenure.leases
WHERE namespace = $1 AND election = $2 AND slot = $3::integer AND token = $4::bigint AND session = $5
FOR SHARE;

-- name: lease_adopt_create
-- $1 namespace, $2 election, $3 slot. A lease that has had no candidate here.
INSERT INTO tenure.leases (namespace, election, slot, token) VALUES ($1, $2, $3, tenure.current_epoch() << 40)
ON CONFLICT DO NOTHING;

-- name: lease_adopt_lock
-- $1 namespace, $2 election, $3 slot, $4 session of the holder. Locks as for a grant: waits for guarded transactions of the
-- previous holder, and the next statement, whose snapshot is newer, sees their changes and those of other adoptions.
SELECT FROM tenure.leases l, tenure.sessions s
WHERE l.namespace = $1 AND l.election = $2 AND l.slot = $3 AND s.id = $4
FOR NO KEY UPDATE OF l FOR KEY SHARE OF s;

-- name: lease_adopt
-- $1 namespace, $2 election, $3 slot, $4 token, $5 session of the holder, $6 identity of the store that granted it. No row:
-- rejected.
-- Rejects a token that is not greater than the last one of the same store, and a lease whose holder got it from another
-- store and is live: tokens of different stores do not compare.
WITH allowed AS (
    SELECT l.namespace, l.election, l.slot
    FROM tenure.leases l
    JOIN tenure.sessions s ON s.id = $5 AND s.state = 'live'
    LEFT JOIN tenure.adopted_leases a
        ON a.namespace = l.namespace AND a.election = l.election AND a.slot = l.slot AND a.granted_by = $6
    WHERE l.namespace = $1 AND l.election = $2 AND l.slot = $3
      AND $4 > coalesce(a.token, 0)
      AND (l.token = a.token AND l.session = a.session
           OR NOT EXISTS (SELECT FROM tenure.sessions h WHERE h.id = l.session AND h.state = 'live'))
), adopted AS (
    UPDATE tenure.leases l
    SET token = $4, own_token = coalesce(l.own_token, l.token), session = $5, reserved_for = NULL, start_reason = 'release',
        granted_at = now()
    FROM allowed WHERE l.namespace = allowed.namespace AND l.election = allowed.election AND l.slot = allowed.slot
    RETURNING l.slot
), deleted AS (
    DELETE FROM tenure.leader_requests r USING allowed
    WHERE r.namespace = allowed.namespace AND r.election = allowed.election AND r.slot = allowed.slot
), recorded AS (
    INSERT INTO tenure.adopted_leases AS a (namespace, election, slot, granted_by, token, session)
    SELECT allowed.namespace, allowed.election, allowed.slot, $6, $4, $5 FROM allowed
    ON CONFLICT (namespace, election, slot, granted_by)
    DO UPDATE SET token = EXCLUDED.token, session = EXCLUDED.session, adopted_at = now()
)
SELECT slot FROM adopted;
