-- name: request_put
-- $1 namespace, $2 name, $3 slot, $4 token, $5 kind, $6 successor, $7 by. No row: that term is over.
-- One request per term: an operator's replaces a candidate's, never the other way round; an older term's never a newer
-- one's.
WITH term AS (
    SELECT session FROM tenure.leases
    WHERE namespace = $1 AND name = $2 AND slot = $3 AND token = $4 AND session IS NOT NULL
), put AS (
    INSERT INTO tenure.requests AS r (namespace, election, slot, token, session, kind, successor, asked_by)
    SELECT $1, $2, $3, $4, session, $5, $6, $7 FROM term
    ON CONFLICT (namespace, election, slot) DO UPDATE
    SET token = EXCLUDED.token, session = EXCLUDED.session, kind = EXCLUDED.kind, successor = EXCLUDED.successor,
        asked_by = EXCLUDED.asked_by, asked_at = now()
    WHERE r.token < EXCLUDED.token OR (r.token = EXCLUDED.token AND EXCLUDED.kind <> 'preempt')
)
SELECT pg_notify('tenure_wake', json_build_object('asked', session)::text) FROM term;
