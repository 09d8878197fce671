-- name: share_make
INSERT INTO tenure_shares (of_group, slot, position)
SELECT ?1, j.value ->> 0, j.value ->> 1 FROM json_each(?2) j;

-- name: share_list
-- Who holds one lives.
SELECT h.slot, h.token, CASE WHEN s.state = 'live' THEN h.session END AS session, h.last, h.position
FROM tenure_shares h LEFT JOIN tenure_sessions s ON s.id = h.session
WHERE h.of_group = ?1
ORDER BY h.slot;

-- name: share_free_list
-- Those of these that may be taken: free, and under the token that was seen, by a live session that is a member.
SELECT h.slot, h.last, m.name
FROM tenure_members m CROSS JOIN tenure_sessions s ON s.id = m.session AND s.state = 'live'
CROSS JOIN json_each(?3) j
CROSS JOIN tenure_shares h ON h.of_group = m.of_group AND h.slot = j.value ->> 0 AND h.token = j.value ->> 1
WHERE m.of_group = ?1 AND m.session = ?2
  AND NOT EXISTS (SELECT 1 FROM tenure_sessions o WHERE o.id = h.session AND o.state = 'live');

-- name: share_take
UPDATE tenure_shares SET token = max(token, (SELECT o.epoch << 40 FROM tenure_epoch o WHERE o.id = 1)) + 1, session = ?2, last = ?3
WHERE of_group = ?1 AND slot IN (SELECT j.value FROM json_each(?4) j)
RETURNING slot, token, position;

-- name: share_moves
UPDATE tenure_groups SET moves = moves + ?2 WHERE id = ?1;

-- name: share_free
UPDATE tenure_shares SET session = NULL
WHERE of_group = ?1 AND session IS NOT NULL
  AND (slot, token) IN (SELECT j.value ->> 0, j.value ->> 1 FROM json_each(?2) j);

-- name: share_free_all
UPDATE tenure_shares SET session = NULL WHERE of_group = ?1 AND session = ?2;

-- name: share_guard
-- A write, whatever it says: from here to the commit nobody can take the share. Whether marks of what is done are passed by it.
UPDATE tenure_shares SET position = max(position, coalesce(?6, 0))
WHERE of_group = (SELECT g.id FROM tenure_topics t JOIN tenure_groups g ON g.topic = t.id
                  WHERE t.namespace = ?1 AND t.name = ?2 AND g.name = ?3)
  AND slot = ?4 AND token = ?5 AND session IS NOT NULL
  -- What was read in another epoch may not be here.
  AND ?5 >= (SELECT o.epoch << 40 FROM tenure_epoch o WHERE o.id = 1)
RETURNING EXISTS (SELECT 1 FROM tenure_event_done d
                  WHERE d.of_group = tenure_shares.of_group AND d.slot = tenure_shares.slot AND d.position <= ?6) AS passes;

-- name: share_held
-- Those of these that are held under the token that is named.
SELECT j.key AS place, g.id AS of_group, g.topic, h.position
FROM json_each(?1) j
CROSS JOIN tenure_topics t ON t.namespace = j.value ->> 0 AND t.name = j.value ->> 1
CROSS JOIN tenure_groups g ON g.topic = t.id AND g.name = j.value ->> 2
CROSS JOIN tenure_shares h ON h.of_group = g.id AND h.slot = j.value ->> 3
    AND h.token = j.value ->> 4 AND h.session IS NOT NULL
    -- What was read in another epoch may not be here.
    AND h.token >= (SELECT o.epoch << 40 FROM tenure_epoch o WHERE o.id = 1);

-- name: share_move
-- Never back.
UPDATE tenure_shares AS h SET position = j.value ->> 2
FROM json_each(?1) j
WHERE h.of_group = j.value ->> 0 AND h.slot = j.value ->> 1 AND h.position < j.value ->> 2;

-- name: share_reset
UPDATE tenure_shares AS h SET position = j.value ->> 2, token = max(h.token, (SELECT o.epoch << 40 FROM tenure_epoch o WHERE o.id = 1)) + 1, session = NULL
FROM json_each(?1) j
WHERE h.of_group = j.value ->> 0 AND h.slot = j.value ->> 1;

-- name: done_put
INSERT INTO tenure_event_done (of_group, slot, position, event)
SELECT j.value ->> 0, e.slot, e.position, e.id
FROM json_each(?1) j CROSS JOIN tenure_events e ON e.id = j.value ->> 3 AND e.topic = j.value ->> 1 AND e.slot = j.value ->> 2
    AND e.position = j.value ->> 4
CROSS JOIN tenure_shares h ON h.of_group = j.value ->> 0 AND h.slot = j.value ->> 2 AND h.position < e.position
WHERE true
ON CONFLICT (of_group, slot, position, event) DO NOTHING;

-- name: done_pass
-- The position has passed them.
DELETE FROM tenure_event_done WHERE (of_group, slot, position, event) IN (
    SELECT d.of_group, d.slot, d.position, d.event FROM json_each(?1) j
    CROSS JOIN tenure_event_done d ON d.of_group = j.value ->> 0 AND d.slot = j.value ->> 1 AND d.position <= j.value ->> 2);

-- name: done_gone
-- So were their events.
DELETE FROM tenure_event_done WHERE (of_group, slot, position, event) IN (
    SELECT d.of_group, d.slot, d.position, d.event FROM tenure_groups g CROSS JOIN json_each(?2) j
    CROSS JOIN tenure_event_done d ON d.of_group = g.id AND d.slot = j.value ->> 0 AND d.position <= j.value ->> 1
    WHERE g.topic = ?1);

-- name: done_forget
DELETE FROM tenure_event_done WHERE (of_group, slot) IN (SELECT j.value ->> 0, j.value ->> 1 FROM json_each(?1) j);

-- name: done_list
SELECT d.slot, d.event FROM json_each(?2) j CROSS JOIN tenure_event_done d ON d.of_group = ?1 AND d.slot = j.value
ORDER BY d.slot, d.position, d.event;

-- name: aside_missing
-- What is to be set aside, and is not where it was said to be.
SELECT j.value ->> 3 AS event FROM json_each(?1) j
WHERE NOT EXISTS (SELECT 1 FROM tenure_events e
                  WHERE e.id = j.value ->> 3 AND e.topic = j.value ->> 1 AND e.slot = j.value ->> 2 AND e.position = j.value ->> 4)
ORDER BY j.key LIMIT 1;

-- name: aside_put
INSERT INTO tenure_event_asides
    (of_group, event, slot, position, dead, attempts, due_at, failed_at, error, published_at, leader_token, key, kind, headers, payload)
SELECT j.value ->> 0, e.id, e.slot, e.position, j.value ->> 5, j.value ->> 6, ?2 + (j.value ->> 7), ?2, j.value ->> 8,
       e.published_at, e.leader_token, e.key, e.kind, e.headers, e.payload
FROM json_each(?1) j CROSS JOIN tenure_events e ON e.id = j.value ->> 3 AND e.topic = j.value ->> 1 AND e.slot = j.value ->> 2
WHERE true
ON CONFLICT (of_group, event) DO UPDATE SET
    dead = excluded.dead, attempts = excluded.attempts, due_at = excluded.due_at, failed_at = excluded.failed_at, error = excluded.error
    -- What is aside already, and waits behind others, stays as it is; and what is dead stays dead.
    WHERE excluded.attempts > 0 AND NOT dead;

-- name: aside_settle
UPDATE tenure_event_asides AS a
SET dead = j.value ->> 3, attempts = j.value ->> 4, due_at = ?2 + (j.value ->> 5), failed_at = ?2, error = j.value ->> 6
FROM json_each(?1) j
-- The dead are for an operator to settle.
WHERE a.of_group = j.value ->> 0 AND a.slot = j.value ->> 1 AND a.event = j.value ->> 2 AND NOT a.dead;

-- name: aside_done
DELETE FROM tenure_event_asides WHERE (of_group, event) IN (
    SELECT a.of_group, a.event FROM json_each(?1) j
    CROSS JOIN tenure_event_asides a ON a.of_group = j.value ->> 0 AND a.event = j.value ->> 2 AND a.slot = j.value ->> 1
    WHERE NOT a.dead);

-- name: aside_forget
-- They are read again.
DELETE FROM tenure_event_asides WHERE (of_group, event) IN (
    SELECT a.of_group, a.event FROM json_each(?1) j
    CROSS JOIN tenure_event_asides a ON a.of_group = j.value ->> 0 AND a.slot = j.value ->> 1 AND a.position > j.value ->> 2);

-- name: aside_heads
-- The first of each key, found from key to key; and each that has none.
WITH RECURSIVE heads (slot, key) AS (
    SELECT j.value, (SELECT min(a.key) FROM tenure_event_asides a WHERE a.of_group = ?1 AND a.slot = j.value AND a.key IS NOT NULL)
    FROM json_each(?2) j
    UNION ALL
    SELECT h.slot, (SELECT min(a.key) FROM tenure_event_asides a WHERE a.of_group = ?1 AND a.slot = h.slot AND a.key > h.key)
    FROM heads h WHERE h.key IS NOT NULL)
SELECT a.slot, a.key, a.event, a.dead, a.attempts, a.due_at
FROM heads h CROSS JOIN tenure_event_asides a ON a.of_group = ?1
    AND a.event = (SELECT min(f.event) FROM tenure_event_asides f WHERE f.of_group = ?1 AND f.slot = h.slot AND f.key = h.key)
WHERE h.key IS NOT NULL
UNION ALL
SELECT a.slot, a.key, a.event, a.dead, a.attempts, a.due_at
FROM json_each(?2) j CROSS JOIN tenure_event_asides a ON a.of_group = ?1 AND a.slot = j.value AND a.key IS NULL
ORDER BY 1, 3;

-- name: aside_list
-- Of a key, of those that are dead, or of all: each by its own index. As many as fit into 16 MiB, and at least one. What waits behind one
-- is counted up to a thousand.
SELECT shown.event AS id, shown.slot, shown.position, shown.published_at, shown.leader_token, shown.key, shown.kind, shown.headers, shown.payload,
       shown.dead, shown.attempts, shown.error, shown.failed_at, shown.due_at,
       shown.key IS NULL OR NOT EXISTS (SELECT 1 FROM tenure_event_asides f
                                    WHERE f.of_group = shown.of_group AND f.slot = shown.slot AND f.key = shown.key AND f.event < shown.event) AS first,
       (SELECT count(*) FROM (SELECT 1 FROM tenure_event_asides b
                              WHERE b.of_group = shown.of_group AND b.slot = shown.slot AND b.key = shown.key AND b.event > shown.event
                              LIMIT 1000)) AS behind
FROM (
    SELECT l.*, sum(length(CAST(l.payload AS BLOB))) OVER (ORDER BY l.event) AS total, row_number() OVER (ORDER BY l.event) AS n
    FROM (
        SELECT i.* FROM tenure_event_asides i
        WHERE i.of_group = ?1 AND i.event IN (
            SELECT * FROM (SELECT k.event FROM tenure_event_asides k
                           WHERE ?5 IS NOT NULL AND k.of_group = ?1 AND k.slot = ?4 AND k.key = ?5 AND k.event > ?2 AND (?3 = 0 OR k.dead = 1)
                           ORDER BY k.event LIMIT ?6)
            UNION ALL
            SELECT * FROM (SELECT k.event FROM tenure_event_asides k
                           WHERE ?5 IS NULL AND ?3 = 1 AND k.of_group = ?1 AND k.event > ?2 AND k.dead = 1 AND (?4 IS NULL OR k.slot = ?4)
                           ORDER BY k.event LIMIT ?6)
            UNION ALL
            SELECT * FROM (SELECT k.event FROM tenure_event_asides k
                           WHERE ?5 IS NULL AND ?3 = 0 AND k.of_group = ?1 AND k.event > ?2 AND (?4 IS NULL OR k.slot = ?4)
                           ORDER BY k.event LIMIT ?6))
        ORDER BY i.event LIMIT ?6) l
) shown
WHERE shown.total <= 16777216 OR shown.n = 1
ORDER BY shown.event;

-- name: aside_replay
-- Due at once, if it is the first of its key: and a dead one is, or it was parked behind another.
UPDATE tenure_event_asides SET dead = 0, attempts = 0, due_at = NULL
WHERE of_group = ?1 AND event IN (SELECT j.value FROM json_each(?2) j) AND dead = 1
RETURNING event;

-- name: aside_drop
DELETE FROM tenure_event_asides
WHERE of_group = ?1 AND event IN (SELECT j.value FROM json_each(?2) j) AND dead = 1
RETURNING event;
