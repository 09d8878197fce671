-- name: candidate_lock_session
-- $1 session that joins an election. Locks the session against its end, not against its heartbeats, so that no candidate
-- outlives its session.
SELECT FROM tenure.sessions WHERE id = $1 FOR KEY SHARE;

-- name: candidate_join
-- $1 namespace, $2 election, $3 session, $4 candidate name, $5 priority, $6 observer, $7 capabilities, $8 metadata, $9
-- slots, $10 required capabilities, $11 notification. `live`: the session is live; `joined`: also, the number of slots
-- agrees.
WITH me AS (
    SELECT s.id FROM tenure.sessions s WHERE s.id = $3 AND s.state = 'live'
), others AS (
    SELECT EXISTS (
        SELECT FROM tenure.candidates c JOIN tenure.sessions s ON s.id = c.session AND s.state = 'live'
        WHERE c.namespace = $1 AND c.election = $2 AND c.session <> $3) AS exist
), agreed AS (
    -- A candidate that requires nothing keeps the requirements of the others.
    UPDATE tenure.elections e
    SET slots = $9, required_capabilities = CASE WHEN others.exist AND $10 = '[]'::jsonb THEN e.required_capabilities
        ELSE $10 END
    FROM me, others
    WHERE e.namespace = $1 AND e.name = $2 AND (e.slots IN ($9, 0) OR NOT others.exist)
    RETURNING e.slots
), created AS (
    -- A new row starts in this epoch, and so does its first grant.
    INSERT INTO tenure.leases (namespace, election, slot, token)
    SELECT $1, $2, slot, tenure.current_epoch() << 40 FROM agreed, generate_series(0, $9 - 1) AS slot
    ON CONFLICT (namespace, election, slot) DO NOTHING
), added AS (
    INSERT INTO tenure.candidates (namespace, election, session, name, priority, observer, capabilities, metadata)
    SELECT $1, $2, $3, $4, $5, $6, $7, $8 FROM agreed
    ON CONFLICT (namespace, election, session) DO UPDATE
    SET name = EXCLUDED.name, priority = EXCLUDED.priority, observer = EXCLUDED.observer,
        capabilities = EXCLUDED.capabilities, metadata = EXCLUDED.metadata, updated_at = now()
)
SELECT EXISTS (SELECT FROM me) AS live,
       EXISTS (SELECT FROM agreed) AS joined,
       (SELECT e.slots FROM tenure.elections e WHERE e.namespace = $1 AND e.name = $2) AS slots,
       (SELECT pg_notify('tenure_notify', $11) FROM agreed);

-- name: candidate_delete
-- $1 namespace, $2 election, $3 session. Without a notification: the caller sends another one.
DELETE FROM tenure.candidates WHERE namespace = $1 AND election = $2 AND session = $3;

-- name: candidate_leave
-- $1 namespace, $2 election, $3 session, $4 notification.
WITH deleted AS (
    DELETE FROM tenure.candidates WHERE namespace = $1 AND election = $2 AND session = $3 RETURNING session
)
SELECT pg_notify('tenure_notify', $4) FROM deleted;
