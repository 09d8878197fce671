-- name: group_list
-- $1 namespace, or null for all. As JSON in the form that the library reads.
SELECT tenure.group_view(g)::text AS found FROM tenure.event_groups g JOIN tenure.topics t ON t.id = g.topic
WHERE $1::text IS NULL OR t.namespace = $1
ORDER BY t.namespace, t.name, g.name;

-- name: group_names
-- $1 namespace, or null for all.
SELECT t.namespace, t.name AS topic, g.name FROM tenure.event_groups g JOIN tenure.topics t ON t.id = g.topic
WHERE $1::text IS NULL OR t.namespace = $1 ORDER BY t.namespace, t.name, g.name;

-- name: group_show
-- $1 namespace, $2 topic, $3 name.
SELECT tenure.group_view(g)::text AS found FROM tenure.event_groups g WHERE g.id = tenure.find_group($1, $2, $3);

-- name: group_number
-- $1 namespace, $2 topic, $3 name. Raises TN014 if there is none.
SELECT tenure.group_id($1, $2, $3) AS id;

-- name: group_join
-- $1 namespace, $2 topic, $3 name, $4 session, $5 member, $6 from where, $7 which position or time. Null: the session is over.
SELECT tenure.join_group($1, $2, $3, $4, $5, $6, $7) AS id;

-- name: group_leave
-- $1 namespace, $2 topic, $3 name, $4 session.
SELECT tenure.leave_group(tenure.find_group($1, $2, $3), $4);

-- name: group_look
-- $1 namespace, $2 topic, $3 name. See tenure.look_group.
SELECT tenure.look_group(tenure.find_group($1, $2, $3))::text AS look;

-- name: share_take
-- $1 namespace, $2 topic, $3 name, $4 session, $5 slots, $6 tokens. See tenure.take_shares.
SELECT t.slot, t.token, t."position", t.done::text, t.aside::text
FROM tenure.take_shares(tenure.find_group($1, $2, $3), $4, $5, $6) t ORDER BY t.slot;

-- name: share_free
-- $1 namespace, $2 topic, $3 name, $4 slots, $5 tokens.
SELECT tenure.free_shares(tenure.find_group($1, $2, $3), $4, $5);

-- name: share_commit
-- $1 namespace, $2 topic, $3 name, $4 slot, $5 token, $6 position; done: $7 events, $8 positions; set aside: $9 events, $10 positions,
-- $11 attempts, $12 in how many ms, $13 errors; settled: $14 events, $15 attempts, $16 in how many ms, $17 errors. See
-- tenure.commit_share.
SELECT tenure.commit_share(tenure.find_group($1, $2, $3), $4::integer, $5::bigint, $6::bigint, $7::bigint[], $8::bigint[], $9::bigint[],
                           $10::bigint[], $11::integer[], $12::bigint[], $13::text[], $14::bigint[], $15::integer[], $16::bigint[],
                           $17::text[]) AS held;

-- name: share_commit_positions
-- $1 namespace, $2 topic, $3 name, $4 slots, $5 tokens, $6 positions. See tenure.commit_positions.
SELECT h.held FROM unnest(tenure.commit_positions(tenure.find_group($1, $2, $3), $4::integer[], $5::bigint[], $6::bigint[])) WITH ORDINALITY AS h (held, n)
ORDER BY h.n;

-- name: group_set
-- $1 namespace, $2 topic, $3 name, $4 attempts, $5 first and $6 most of the backoff in ms, $7 from where, $8 which position or time.
WITH made AS MATERIALIZED (
    SELECT m.id, m.new FROM tenure.make_group($1, $2, $3, $4, $5, $6, $7, $8) m
), anew AS (
    UPDATE tenure.event_groups g SET max_attempts = $4, backoff_first_ms = $5, backoff_most_ms = $6
    FROM made WHERE g.id = made.id AND NOT made.new RETURNING g.id
)
SELECT made.new, (SELECT count(tenure.wake_group(anew.id)) FROM anew) FROM made;

-- name: group_delete
-- $1 namespace, $2 topic, $3 name. `members`: how many live in it, and so it stays. No row: there is none.
SELECT d.members FROM tenure.delete_group(tenure.find_group($1, $2, $3)) d WHERE d.there;

-- name: group_pause
-- $1 the group's number, $2 by, $3 reason, $4 when (ms). A row: it was not.
WITH paused AS (
    UPDATE tenure.event_groups SET paused_by = $2, paused_reason = $3, paused_at = tenure.at($4)
    WHERE id = $1 AND paused_at IS NULL RETURNING id
)
SELECT tenure.wake_group(p.id) FROM paused p;

-- name: group_resume
-- $1 the group's number. A row: it was paused.
WITH resumed AS (
    UPDATE tenure.event_groups SET paused_by = NULL, paused_reason = NULL, paused_at = NULL
    WHERE id = $1 AND paused_at IS NOT NULL RETURNING id
)
SELECT tenure.wake_group(r.id) FROM resumed r;

-- name: group_reset
-- $1 the group's number, $2 to where, $3 which position or time, $4 slot, $5 only to say so. See tenure.reset_group.
SELECT r.slot, r.before_, r.after_ FROM tenure.reset_group($1, $2, $3, $4, $5) r ORDER BY r.slot;

-- name: group_wake
-- $1 the group's number.
SELECT tenure.wake_group($1);

-- name: push_set
-- $1 the group's number, $2 address, $3 secret, $4 how long an answer may take (ms).
INSERT INTO tenure.event_pushes (group_id, url, secret, timeout_ms) VALUES ($1, $2, $3, $4)
ON CONFLICT (group_id) DO UPDATE SET url = EXCLUDED.url, secret = EXCLUDED.secret, timeout_ms = EXCLUDED.timeout_ms
RETURNING tenure.wake_group(group_id);

-- name: push_end
-- $1 the group's number.
DELETE FROM tenure.event_pushes WHERE group_id = $1 RETURNING tenure.wake_group(group_id);

-- name: push_list
SELECT t.namespace, t.name AS topic, g.name, p.url, p.secret, p.timeout_ms
FROM tenure.event_pushes p JOIN tenure.event_groups g ON g.id = p.group_id JOIN tenure.topics t ON t.id = g.topic
ORDER BY t.namespace, t.name, g.name;
