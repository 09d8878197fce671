-- name: candidate_lock
-- $1 a session that is about to stand. Held against its end, not against its beats, so that no candidate outlives its
-- session.
SELECT FROM tenure.sessions WHERE id = $1 FOR KEY SHARE;

-- name: candidate_join
-- $1 namespace, $2 name, $3 session, $4 id, $5 priority, $6 observer, $7 capabilities, $8 metadata, $9 slots,
-- $10 requires, $11 the hint. `live`: the session is; `standing`: the slots agree too.
WITH me AS (
    SELECT s.id FROM tenure.sessions s WHERE s.id = $3 AND s.state = 'live'
), others AS (
    SELECT EXISTS (
        SELECT FROM tenure.candidates c JOIN tenure.sessions s ON s.id = c.session AND s.state = 'live'
        WHERE c.namespace = $1 AND c.election = $2 AND c.session <> $3) AS stand
), agreed AS (
    -- Who requires nothing leaves what others require as it is.
    UPDATE tenure.elections e
    SET slots = $9, requires = CASE WHEN others.stand AND $10 = '[]'::jsonb THEN e.requires ELSE $10 END
    FROM me, others
    WHERE e.namespace = $1 AND e.name = $2 AND (e.slots IN ($9, 0) OR NOT others.stand)
    RETURNING e.slots
), made AS (
    -- A new row is of this epoch, so that its first grant is too.
    INSERT INTO tenure.leases (namespace, name, slot, token)
    SELECT $1, $2, slot, tenure.current_epoch() << 40 FROM agreed, generate_series(0, $9 - 1) AS slot
    ON CONFLICT (namespace, name, slot) DO NOTHING
), stood AS (
    INSERT INTO tenure.candidates (namespace, election, session, id, priority, observer, capabilities, metadata)
    SELECT $1, $2, $3, $4, $5, $6, $7, $8 FROM agreed
    ON CONFLICT (namespace, election, session) DO UPDATE
    SET id = EXCLUDED.id, priority = EXCLUDED.priority, observer = EXCLUDED.observer,
        capabilities = EXCLUDED.capabilities, metadata = EXCLUDED.metadata, updated_at = now()
)
SELECT EXISTS (SELECT FROM me) AS live,
       EXISTS (SELECT FROM agreed) AS standing,
       (SELECT e.slots FROM tenure.elections e WHERE e.namespace = $1 AND e.name = $2) AS slots,
       (SELECT pg_notify('tenure_wake', $11) FROM agreed);

-- name: candidate_drop
-- $1 namespace, $2 name, $3 session. What else happens tells the others.
DELETE FROM tenure.candidates WHERE namespace = $1 AND election = $2 AND session = $3;

-- name: candidate_leave
-- $1 namespace, $2 name, $3 session, $4 the hint.
WITH unstood AS (
    DELETE FROM tenure.candidates WHERE namespace = $1 AND election = $2 AND session = $3 RETURNING session
)
SELECT pg_notify('tenure_wake', $4) FROM unstood;
