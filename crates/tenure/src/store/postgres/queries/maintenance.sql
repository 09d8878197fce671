-- name: maintain_queues
-- $1 session, $2 token, $3 clock, $4 limit. See tenure.maintain_queues.
SELECT * FROM tenure.maintain_queues($1, $2, $3, $4);

-- name: broker_endpoint_put
-- $1 session, $2 token, $3 address, $4 secret in hex. No row: the session does not lead under this token.
WITH leader AS (
    SELECT l.token, l.session FROM tenure.leases l
    WHERE l.namespace = 'tenure' AND l.election = 'broker' AND l.slot = 0 AND l.session = $1 AND l.token = $2
    FOR SHARE
)
INSERT INTO tenure.broker_endpoint (token, session, address, secret)
SELECT leader.token, leader.session, $3, decode($4, 'hex') FROM leader
ON CONFLICT (singleton) DO UPDATE SET token = EXCLUDED.token, session = EXCLUDED.session, address = EXCLUDED.address,
    secret = EXCLUDED.secret
RETURNING token;

-- name: broker_endpoint_get
SELECT p.session, p.token, p.address, encode(p.secret, 'hex') AS secret
FROM tenure.broker_endpoint p JOIN tenure.leases l
    ON l.namespace = 'tenure' AND l.election = 'broker' AND l.slot = 0 AND l.session = p.session AND l.token = p.token
JOIN tenure.sessions s ON s.id = p.session AND s.state = 'live';
