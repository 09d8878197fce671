-- name: lease_lock
-- $1 namespace, $2 name, $3 slot, $4 who takes. All that the take depends on, held still; in this order, so that a wait
-- for a guard (the lease's FOR SHARE) holds up nobody else. The election is locked against a pause, which must find
-- either a holder to ask or an election that nobody can take; the taker's session against its end, not its beats.
SELECT FROM tenure.leases l, tenure.elections e, tenure.sessions s
WHERE l.namespace = $1 AND l.name = $2 AND l.slot = $3
  AND e.namespace = l.namespace AND e.name = l.name AND s.id = $4
FOR NO KEY UPDATE OF l FOR SHARE OF e FOR KEY SHARE OF s;

-- name: lease_take
-- $1 namespace, $2 name, $3 slot, $4 who takes, $5 token and $6 holder as seen, $7 the hint, $8 the epoch in which
-- they were seen: what was seen on another may be undone.
-- Compare and swap on (token, session). A holder that was seen is dead by now, or nothing happens; then the lease is
-- the taker's if it may have it, and otherwise free. A row: the new token.
WITH may AS (
    SELECT c.id AS candidate, e.paused_at IS NULL AND $3 < e.slots AND c.id IS NOT NULL AS lead
    FROM tenure.elections e
    JOIN tenure.sessions s ON s.id = $4 AND s.state = 'live'
    LEFT JOIN tenure.candidates c
        ON c.namespace = e.namespace AND c.election = e.name AND c.session = s.id
    WHERE e.namespace = $1 AND e.name = $2 AND tenure.current_epoch() = $8
), moved AS (
    UPDATE tenure.leases l
    SET token = CASE WHEN may.lead THEN greatest(coalesce(l.own_token, l.token), $8::bigint << 40) + 1
                     ELSE coalesce(l.own_token, l.token) END,
        own_token = NULL,
        session = CASE WHEN may.lead THEN $4 END,
        reserved = NULL,
        via = CASE WHEN l.session IS NULL THEN l.via ELSE 'takeover' END,
        granted_at = CASE WHEN may.lead THEN now() ELSE l.granted_at END
    FROM may
    WHERE l.namespace = $1 AND l.name = $2 AND l.slot = $3
      AND l.token = $5 AND l.session IS NOT DISTINCT FROM $6
      AND NOT EXISTS (SELECT FROM tenure.sessions h WHERE h.id = l.session AND h.state = 'live')
      AND (may.lead OR l.session IS NOT NULL)
    RETURNING l.namespace, l.name, l.slot, l.token, l.session, l.via, may.candidate
), unasked AS (
    -- What was asked of earlier terms. Their tokens may be another elector's, and greater.
    DELETE FROM tenure.requests r USING moved m
    WHERE r.namespace = m.namespace AND r.election = m.name AND r.slot = m.slot
), term_begin AS (
    INSERT INTO tenure.terms (namespace, election, slot, token, session, id, via)
    SELECT namespace, name, slot, token, session, candidate, via FROM moved WHERE session IS NOT NULL
)
SELECT CASE WHEN session IS NOT NULL THEN token END AS token, pg_notify('tenure_wake', $7) FROM moved;

-- name: lease_release
-- $1 namespace, $2 name, $3 slot, $4 token, $5 session, $6 successor, $7 via, $8 the hint.
-- What is asked of the term means nothing from now on, and goes with the next grant.
WITH freed AS (
    UPDATE tenure.leases SET token = coalesce(own_token, token), own_token = NULL, session = NULL, reserved = $6, via = $7
    WHERE namespace = $1 AND name = $2 AND slot = $3 AND token = $4 AND session = $5
    RETURNING slot
), term_end AS (
    UPDATE tenure.terms t SET ended_at = now(), end_reason = 'released' FROM freed
    WHERE t.namespace = $1 AND t.election = $2 AND t.slot = freed.slot AND t.token = $4
      AND t.ended_at IS NULL
)
SELECT pg_notify('tenure_wake', $8) FROM freed;

-- name: lease_bound
-- $1 the lease in ms. Before the guard, so that its own wait is bounded too. The guard looks for the setting: outside of a
-- transaction it is gone by then.
SELECT tenure.bound($1::bigint), set_config('tenure.guarding', 'on', true);

-- name: lease_guard
-- $1 namespace, $2 name, $3 slot, $4 token, $5 session. No row: not held under it.
-- FOR SHARE conflicts with the UPDATE of a take-over and not with other guards; FOR KEY SHARE would conflict with
-- neither. A plain SELECT takes no lock, and a take-over would slip in before the commit.
-- Outside of a transaction the lock would be gone with this statement, as the setting of lease_bound is.
SELECT coalesce(current_setting('tenure.guarding', true) = 'on', false) AS lasting
FROM tenure.leases
WHERE namespace = $1 AND name = $2 AND slot = $3::integer AND token = $4::bigint AND session = $5
FOR SHARE;

-- name: lease_adopt_make
-- $1 namespace, $2 name, $3 slot. A lease that nobody has stood for here.
INSERT INTO tenure.leases (namespace, name, slot, token) VALUES ($1, $2, $3, tenure.current_epoch() << 40)
ON CONFLICT DO NOTHING;

-- name: lease_adopt_lock
-- $1 namespace, $2 name, $3 slot, $4 who has it. Held still, as for a take: an earlier holder's guarded transactions come
-- first, and the next statement, whose snapshot is newer, sees what they and other adoptions left.
SELECT FROM tenure.leases l, tenure.sessions s
WHERE l.namespace = $1 AND l.name = $2 AND l.slot = $3 AND s.id = $4
FOR NO KEY UPDATE OF l FOR KEY SHARE OF s;

-- name: lease_adopt
-- $1 namespace, $2 name, $3 slot, $4 token, $5 who has it, $6 who granted it. No row: refused.
-- A later grant of the same elector must not have been here before, and who was elected by another one must be gone: tokens of
-- different electors do not compare.
WITH may AS (
    SELECT l.namespace, l.name, l.slot
    FROM tenure.leases l
    JOIN tenure.sessions s ON s.id = $5 AND s.state = 'live'
    LEFT JOIN tenure.adoptions a
        ON a.namespace = l.namespace AND a.name = l.name AND a.slot = l.slot AND a.elector = $6
    WHERE l.namespace = $1 AND l.name = $2 AND l.slot = $3
      AND $4 > coalesce(a.token, 0)
      AND (l.token = a.token AND l.session = a.session
           OR NOT EXISTS (SELECT FROM tenure.sessions h WHERE h.id = l.session AND h.state = 'live'))
), adopted AS (
    UPDATE tenure.leases l
    SET token = $4, own_token = coalesce(l.own_token, l.token), session = $5, reserved = NULL, via = 'release',
        granted_at = now()
    FROM may WHERE l.namespace = may.namespace AND l.name = may.name AND l.slot = may.slot
    RETURNING l.slot
), unasked AS (
    DELETE FROM tenure.requests r USING may
    WHERE r.namespace = may.namespace AND r.election = may.name AND r.slot = may.slot
), remembered AS (
    INSERT INTO tenure.adoptions AS a (namespace, name, slot, elector, token, session)
    SELECT may.namespace, may.name, may.slot, $6, $4, $5 FROM may
    ON CONFLICT (namespace, name, slot, elector)
    DO UPDATE SET token = EXCLUDED.token, session = EXCLUDED.session, adopted_at = now()
)
SELECT slot FROM adopted;
