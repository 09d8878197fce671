-- name: leader_request_put
-- $1 namespace, $2 election, $3 slot, $4 token, $5 kind, $6 successor, $7 requested by. No row: that term has ended.
-- One request per term: a request of an operator replaces that of a candidate, not the reverse; a request to an older term
-- never replaces one to a newer term.
WITH term AS (
    SELECT session FROM tenure.leases
    WHERE namespace = $1 AND election = $2 AND slot = $3 AND token = $4 AND session IS NOT NULL
), put AS (
    INSERT INTO tenure.leader_requests AS r (namespace, election, slot, token, session, kind, successor, requested_by)
    SELECT $1, $2, $3, $4, session, $5, $6, $7 FROM term
    ON CONFLICT (namespace, election, slot) DO UPDATE
    SET token = EXCLUDED.token, session = EXCLUDED.session, kind = EXCLUDED.kind, successor = EXCLUDED.successor,
        requested_by = EXCLUDED.requested_by, requested_at = now()
    WHERE r.token < EXCLUDED.token OR (r.token = EXCLUDED.token AND EXCLUDED.kind <> 'preempt')
)
SELECT pg_notify('tenure_notify', json_build_object('leader_requested', session)::text) FROM term;
