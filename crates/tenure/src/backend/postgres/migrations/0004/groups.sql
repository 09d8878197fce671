-- Groups: who reads which slot, how far, and under which token.
--
-- Locks. Whoever makes, joins, sets, resets or deletes a group locks its row; a share is locked by who takes it, frees it, resets it or
-- commits under it. A commit is part of a handler's transaction, which may last: a reset waits for it as any call waits for a lock, and
-- a take for a moment; then it passes over what is locked, and whoever wants it tries again. A session is locked FOR KEY SHARE by who takes something in its name, as leases do it.

-- The hint that something about a group changed.
CREATE FUNCTION tenure.wake_group(in_group integer) RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT pg_catalog.pg_notify('tenure_wake', json_build_object('group', json_build_object(
        'topic', json_build_object('namespace', t.namespace, 'name', t.name), 'name', g.name))::text)
    FROM tenure.event_groups g JOIN tenure.topics t ON t.id = g.topic WHERE g.id = in_group
$$;

-- The number of a group; null if there is none.
CREATE FUNCTION tenure.find_group(in_namespace text, in_topic text, in_group text) RETURNS integer LANGUAGE sql STABLE AS $$
    SELECT g.id FROM tenure.topics t JOIN tenure.event_groups g ON g.topic = t.id AND g.name = in_group
    WHERE t.namespace = in_namespace AND t.name = in_topic
$$;

-- The number of a group. Raises TN014 if there is none.
CREATE FUNCTION tenure.group_id(in_namespace text, in_topic text, in_group text) RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    found_id CONSTANT integer := tenure.find_group(in_namespace, in_topic, in_group);
BEGIN
    IF found_id IS NULL THEN
        RAISE EXCEPTION 'there is no group %/%',
            CASE WHEN in_namespace = 'default' THEN in_topic ELSE concat(in_namespace, '/', in_topic) END, in_group
            USING ERRCODE = 'TN014', HINT = '`tenure events groups` shows those that there are';
    END IF;
    RETURN found_id;
END
$$;

-- How far a slot of a group is read.
CREATE FUNCTION tenure.offset_of(in_group integer, in_slot integer) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT o.position FROM tenure.event_offsets o WHERE o.group_id = in_group AND o.slot = in_slot
            ORDER BY o.generation DESC LIMIT 1);
END
$$;

-- Sets how far slots of a group are read, pairwise. The caller has their rows in event_shares locked.
CREATE FUNCTION tenure.set_offsets(in_group integer, in_slots integer[], in_positions bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
BEGIN
    WITH last_ AS MATERIALIZED (
        SELECT w.slot, w.position, o.generation, o.updates < 16 AS stays
        FROM unnest(in_slots, in_positions) AS w (slot, position)
        CROSS JOIN LATERAL (
            SELECT l.generation, l.updates FROM tenure.event_offsets l
            WHERE l.group_id = in_group AND l.slot = w.slot ORDER BY l.generation DESC LIMIT 1
        ) o
    ), gone AS (
        DELETE FROM tenure.event_offsets o USING last_ l
        WHERE o.group_id = in_group AND o.slot = l.slot AND o.generation = l.generation AND NOT l.stays
    ), made AS (
        INSERT INTO tenure.event_offsets (group_id, slot, generation, position)
        SELECT in_group, l.slot, l.generation + 1, l.position FROM last_ l WHERE NOT l.stays
    )
    UPDATE tenure.event_offsets o SET position = l.position, updates = o.updates + 1
    FROM last_ l
    WHERE o.group_id = in_group AND o.slot = l.slot AND o.generation = l.generation AND l.stays;
END
$$;

-- Makes a group, if it is not there, and where it begins. Whether it is new.
CREATE FUNCTION tenure.make_group(
    in_namespace text, in_topic text, in_group text, max_attempts bigint, first_ms bigint, most_ms bigint, begin_ text, value_ bigint,
    OUT id integer, OUT new boolean
) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    topic_ CONSTANT integer := tenure.topic_id(in_namespace, in_topic);
BEGIN
    -- Against the end of the topic.
    PERFORM FROM tenure.topics t WHERE t.id = topic_ FOR KEY SHARE;
    IF NOT FOUND THEN
        PERFORM tenure.no_topic(in_namespace, in_topic);
    END IF;
    -- Those who make one at this moment are not counted: it is about thousands, not about one.
    IF (SELECT count(*) >= 256 AND NOT coalesce(bool_or(g.name = in_group), false) FROM tenure.event_groups g WHERE g.topic = topic_) THEN
        RAISE EXCEPTION 'the topic % has 256 groups, and % would be one more',
            CASE WHEN in_namespace = 'default' THEN in_topic ELSE concat(in_namespace, '/', in_topic) END, in_group
            USING ERRCODE = 'TN017', HINT = 'delete one that nobody reads: `tenure events groups` shows them';
    END IF;
    INSERT INTO tenure.event_groups AS g (topic, name, max_attempts, backoff_first_ms, backoff_most_ms)
    VALUES (topic_, in_group, make_group.max_attempts, first_ms, most_ms)
    ON CONFLICT (topic, name) DO NOTHING RETURNING g.id INTO id;
    new := id IS NOT NULL;
    IF new THEN
        INSERT INTO tenure.event_shares (group_id, slot)
        SELECT make_group.id, s.slot FROM tenure.topics t, generate_series(0, t.slots - 1) AS s (slot) WHERE t.id = topic_;
        INSERT INTO tenure.event_offsets (group_id, slot, position)
        SELECT make_group.id, s.slot, tenure.place_of(topic_, s.slot, begin_, value_)
        FROM tenure.topics t, generate_series(0, t.slots - 1) AS s (slot) WHERE t.id = topic_;
    ELSE
        SELECT g.id INTO STRICT id FROM tenure.event_groups g WHERE g.topic = topic_ AND g.name = in_group;
    END IF;
END
$$;

-- Joins a group, which is made if it is not there. Null: the session is over.
CREATE FUNCTION tenure.join_group(
    in_namespace text, in_topic text, in_group text, in_session text, in_member text, begin_ text, value_ bigint
) RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    group_ integer;
    before_ text;
BEGIN
    PERFORM tenure.topic_id(in_namespace, in_topic);
    PERFORM FROM tenure.sessions s WHERE s.id = in_session AND s.state = 'live' FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    group_ := (SELECT m.id FROM tenure.make_group(in_namespace, in_topic, in_group, 10, 500, 60000, begin_, value_) m);
    PERFORM FROM tenure.event_groups g WHERE g.id = group_ FOR NO KEY UPDATE;
    -- From here on, who joined before us is seen.
    UPDATE tenure.event_groups g SET gathered_at = clock_timestamp()
    WHERE g.id = group_ AND NOT EXISTS (
        SELECT FROM tenure.event_members m JOIN tenure.sessions s ON s.id = m.session AND s.state = 'live'
        WHERE m.group_id = group_);
    DELETE FROM tenure.event_members m
    WHERE m.group_id = group_ AND NOT EXISTS (
        SELECT FROM tenure.sessions s WHERE s.id = m.session AND s.state = 'live');
    SELECT m.name INTO before_ FROM tenure.event_members m WHERE m.group_id = group_ AND m.session = in_session;
    INSERT INTO tenure.event_members (group_id, session, name) VALUES (group_, in_session, in_member)
    ON CONFLICT (group_id, session) DO UPDATE SET name = EXCLUDED.name;
    IF before_ IS DISTINCT FROM in_member THEN
        PERFORM tenure.wake_group(group_);
    END IF;
    RETURN group_;
END
$$;

-- Leaves a group: its shares are free.
CREATE FUNCTION tenure.leave_group(in_group integer, in_session text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    -- First: who is about to take something in its name holds this row still, and what it takes is seen below.
    DELETE FROM tenure.event_members m WHERE m.group_id = in_group AND m.session = in_session;
    IF FOUND THEN
        PERFORM tenure.wake_group(in_group);
    END IF;
    PERFORM FROM tenure.event_shares s WHERE s.group_id = in_group AND s.session = in_session ORDER BY s.slot FOR UPDATE;
    UPDATE tenure.event_shares s SET session = NULL WHERE s.group_id = in_group AND s.session = in_session;
END
$$;

CREATE FUNCTION tenure.group_settings(g tenure.event_groups) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_build_object('max_attempts', g.max_attempts, 'backoff', json_build_object(
        'first_ms', g.backoff_first_ms, 'most_ms', g.backoff_most_ms))
$$;

CREATE FUNCTION tenure.group_pause(g tenure.event_groups) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN g.paused_at IS NOT NULL THEN json_build_object(
        'by', g.paused_by, 'reason', g.paused_reason, 'at_ms', tenure.ms(g.paused_at)) END
$$;

CREATE FUNCTION tenure.group_members(in_group integer) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT coalesce(json_agg(json_build_object('session', m.session, 'name', m.name) ORDER BY m.session), '[]')
    FROM tenure.event_members m JOIN tenure.sessions s ON s.id = m.session AND s.state = 'live' WHERE m.group_id = in_group
$$;

-- A group as its members see it, as JSON in the form that the library reads.
CREATE FUNCTION tenure.look_group(in_group integer) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_build_object(
        'members', m.members,
        'shares', (SELECT coalesce(json_agg(json_build_object(
                       'slot', s.slot, 'token', s.token, 'holder', h.id, 'last', s.last,
                       'position', tenure.offset_of(s.group_id, s.slot)) ORDER BY s.slot), '[]')
                   FROM tenure.event_shares s LEFT JOIN tenure.sessions h ON h.id = s.session AND h.state = 'live'
                   WHERE s.group_id = g.id),
        'settings', tenure.group_settings(g), 'paused', tenure.group_pause(g),
        'gathered_ms', CASE WHEN json_array_length(m.members) = 0 THEN 0
                            ELSE greatest(0, tenure.ms(clock_timestamp()) - tenure.ms(g.gathered_at)) END)
    FROM tenure.event_groups g CROSS JOIN LATERAL (SELECT tenure.group_members(g.id) AS members) m
    WHERE g.id = in_group
$$;

-- The keys that are aside in a slot, by the first of each; one without a key stands for itself.
CREATE FUNCTION tenure.aside_keys(in_group integer, in_slot integer) RETURNS json LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    SELECT coalesce(json_agg(json_build_object(
               'key', a.key, 'event', a.event, 'attempts', a.attempts,
               'due_in_ms', CASE WHEN a.dead THEN NULL WHEN a.attempts = 0 THEN 0
                                 ELSE greatest(0, tenure.ms(a.due_at) - tenure.ms(clock_timestamp())) END)
               ORDER BY a.position, a.event), '[]')
    FROM (
        (SELECT DISTINCT ON (k.key) k.* FROM tenure.event_asides k
         WHERE k.group_id = in_group AND k.slot = in_slot AND k.key IS NOT NULL ORDER BY k.key, k.position, k.event)
        UNION ALL
        SELECT n.* FROM tenure.event_asides n WHERE n.group_id = in_group AND n.slot = in_slot AND n.key IS NULL
    ) a
$$;

-- Takes shares, pairwise: each if it is free, and its token the one that was seen. Who has one locked is waited for, for a moment: it
-- may be the last commit of who had it. Then it is left alone, so that a member that was stopped in mid-transaction does not keep
-- the other shares from being taken.
CREATE FUNCTION tenure.take_shares(in_group integer, in_session text, in_slots integer[], in_tokens bigint[])
RETURNS TABLE (slot integer, token bigint, "position" bigint, done json, aside json) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    base bigint := tenure.current_epoch() << 40;
    name_ text;
    locked integer[];
    rest integer[];
    moved bigint := 0;
    share record;
BEGIN
    SELECT m.name INTO name_ FROM tenure.event_members m JOIN tenure.sessions s ON s.id = m.session AND s.state = 'live'
    WHERE m.group_id = in_group AND m.session = in_session FOR KEY SHARE OF s, m;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    locked := ARRAY(
        SELECT s.slot FROM tenure.event_shares s
        WHERE s.group_id = in_group AND s.slot = ANY (in_slots) FOR UPDATE SKIP LOCKED);
    rest := ARRAY(
        SELECT s.slot FROM tenure.event_shares s JOIN unnest(in_slots, in_tokens) AS w (slot, token)
            ON w.slot = s.slot AND w.token = s.token
        WHERE s.group_id = in_group AND s.slot <> ALL (locked) AND NOT EXISTS (
            SELECT FROM tenure.sessions h WHERE h.id = s.session AND h.state = 'live'));
    IF cardinality(rest) > 0 THEN
        BEGIN
            PERFORM set_config('lock_timeout', '400', true);
            PERFORM FROM tenure.event_shares s WHERE s.group_id = in_group AND s.slot = ANY (rest) ORDER BY s.slot FOR UPDATE;
        EXCEPTION WHEN lock_not_available THEN
            NULL;
        END;
        locked := locked || ARRAY(
            SELECT s.slot FROM tenure.event_shares s
            WHERE s.group_id = in_group AND s.slot = ANY (rest) FOR UPDATE SKIP LOCKED);
    END IF;
    -- Now that they are held still.
    FOR share IN
        UPDATE tenure.event_shares s SET token = greatest(s.token, base) + 1, session = in_session, last = name_
        FROM (SELECT o.slot, o.token, o.last FROM tenure.event_shares o JOIN unnest(in_slots, in_tokens) AS w (slot, token)
                  ON w.slot = o.slot AND w.token = o.token
              WHERE o.group_id = in_group AND o.slot = ANY (locked) AND NOT EXISTS (
                  SELECT FROM tenure.sessions h WHERE h.id = o.session AND h.state = 'live')) seen
        WHERE s.group_id = in_group AND s.slot = seen.slot AND s.token = seen.token
        RETURNING s.slot, s.token, tenure.offset_of(in_group, s.slot) AS position, seen.last
    LOOP
        moved := moved + CASE WHEN share.last NOT IN ('', name_) THEN 1 ELSE 0 END;
        slot := share.slot;
        token := share.token;
        position := share.position;
        done := (SELECT coalesce(json_agg(d.event ORDER BY d.position, d.event), '[]') FROM tenure.event_done d
                 WHERE d.group_id = in_group AND d.slot = share.slot AND d.position > share.position);
        aside := tenure.aside_keys(in_group, share.slot);
        RETURN NEXT;
    END LOOP;
    IF moved > 0 THEN
        UPDATE tenure.event_groups g SET moves = g.moves + moved WHERE g.id = in_group;
    END IF;
END
$$;

-- Gives shares back, pairwise, each if it is held under that token.
CREATE FUNCTION tenure.free_shares(in_group integer, in_slots integer[], in_tokens bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
BEGIN
    PERFORM FROM tenure.event_shares s WHERE s.group_id = in_group AND s.slot = ANY (in_slots) ORDER BY s.slot FOR UPDATE;
    UPDATE tenure.event_shares s SET session = NULL FROM unnest(in_slots, in_tokens) AS w (slot, token)
    WHERE s.group_id = in_group AND s.slot = w.slot AND s.token = w.token AND s.session IS NOT NULL;
    IF FOUND THEN
        PERFORM tenure.wake_group(in_group);
    END IF;
END
$$;

-- In the caller's transaction: what a member says about a slot. False, and nothing was changed: it is not held under this token. The
-- share stays locked until the transaction is over, so that nobody takes it before. Of what is done: numbers and positions. Of what is set aside: the same, how often it
-- was tried (0: it waits behind another), in how long it is due (null: never, it is dead), what went wrong. Of what was aside and
-- is settled the same; done if `attempts` is null.
CREATE FUNCTION tenure.commit_share(
    in_group integer, in_slot integer, in_token bigint, in_position bigint, in_done bigint[], done_positions bigint[],
    aside_events bigint[], aside_positions bigint[], aside_attempts integer[], aside_after_ms bigint[], aside_errors text[],
    settled_events bigint[], settled_attempts integer[], settled_after_ms bigint[], settled_errors text[]
) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    now_ CONSTANT timestamptz := date_trunc('milliseconds', clock_timestamp());
    read_to bigint;
    before_ bigint;
    topic_ integer;
    lost bigint;
BEGIN
    -- A share that was taken on another epoch than this server's was read there, too: what it read may not be here.
    IF in_token >> 40 < coalesce((SELECT e.epoch FROM tenure.epoch_stored e), tenure.current_epoch()) THEN
        RETURN false;
    END IF;
    PERFORM FROM tenure.event_shares s
    WHERE s.group_id = in_group AND s.slot = in_slot AND s.token = in_token AND s.session IS NOT NULL FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- Now that it is held still.
    before_ := tenure.offset_of(in_group, in_slot);
    SELECT g.topic INTO STRICT topic_ FROM tenure.event_groups g WHERE g.id = in_group;
    read_to := greatest(before_, in_position);
    IF read_to > before_ THEN
        -- What was read and is not there any more was lost in a crash: its position will be given again, to something else.
        IF read_to > (SELECT e.latest FROM tenure.slot_ends(topic_, in_slot) e) THEN
            RETURN false;
        END IF;
        PERFORM tenure.set_offsets(in_group, ARRAY[in_slot], ARRAY[read_to]);
        -- What was before is deleted already: it is not walked over again.
        DELETE FROM tenure.event_done d
        WHERE d.group_id = in_group AND d.slot = in_slot AND d.position > before_ AND d.position <= read_to;
    END IF;
    IF in_done IS NOT NULL THEN
        INSERT INTO tenure.event_done (group_id, slot, position, event)
        SELECT in_group, in_slot, d.position, d.id FROM unnest(in_done, done_positions) AS d (id, position)
        JOIN tenure.event_units u ON u.topic = topic_ AND u.slot = in_slot AND u.position = d.position
        JOIN tenure.events e ON e.batch = u.batch AND e.topic = u.topic AND e.slot = u.slot AND e.id = d.id
        WHERE d.position > read_to AND d.id BETWEEN u.first_id AND u.last_id
        ON CONFLICT (group_id, slot, position, event) DO NOTHING;
    END IF;
    IF aside_events IS NOT NULL THEN
        -- Going on without one that is not there would lose it.
        SELECT a.id INTO lost
        FROM unnest(aside_events, aside_positions) AS a (id, position)
        LEFT JOIN tenure.event_units u ON u.topic = topic_ AND u.slot = in_slot AND u.position = a.position
        LEFT JOIN tenure.events e ON e.batch = u.batch AND e.topic = u.topic AND e.slot = u.slot AND e.id = a.id
        WHERE e.id IS NULL LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'event % can not be set aside for the group %: it is not at this position of slot %', lost,
                (SELECT concat(CASE WHEN t.namespace <> 'default' THEN t.namespace || '/' END, t.name, '/', g.name)
                 FROM tenure.event_groups g JOIN tenure.topics t ON t.id = g.topic WHERE g.id = in_group), in_slot
                USING ERRCODE = 'TN015', HINT = 'nothing was changed';
        END IF;
        INSERT INTO tenure.event_asides AS known (
            group_id, event, slot, position, dead, attempts, due_at, failed_at, at, leader_token, key, kind, error, headers,
            payload, body)
        SELECT in_group, e.id, in_slot, u.position, a.attempts > 0 AND a.after_ms IS NULL, a.attempts,
               now_ + coalesce(a.after_ms, 0) * interval '1 millisecond', now_, u.at, e.leader_token, e.key, e.kind,
               coalesce(a.error, ''), e.headers, e.payload, e.body
        FROM unnest(aside_events, aside_positions, aside_attempts, aside_after_ms, aside_errors)
             AS a (id, position, attempts, after_ms, error)
        JOIN tenure.event_units u ON u.topic = topic_ AND u.slot = in_slot AND u.position = a.position
        JOIN tenure.events e ON e.batch = u.batch AND e.topic = u.topic AND e.slot = u.slot AND e.id = a.id
        ON CONFLICT (group_id, event) DO UPDATE
        SET dead = EXCLUDED.dead, attempts = EXCLUDED.attempts, due_at = EXCLUDED.due_at, failed_at = EXCLUDED.failed_at,
            error = EXCLUDED.error
        -- What is aside already, and waits behind others, stays as it is; and what is dead stays dead.
        WHERE EXCLUDED.attempts > 0 AND NOT known.dead;
    END IF;
    -- The dead are for an operator to settle.
    IF settled_events IS NOT NULL THEN
        DELETE FROM tenure.event_asides a USING unnest(settled_events, settled_attempts) AS s (id, attempts)
        WHERE a.group_id = in_group AND a.event = s.id AND a.slot = in_slot AND s.attempts IS NULL AND NOT a.dead;
        UPDATE tenure.event_asides a
        SET dead = s.after_ms IS NULL, attempts = s.attempts, failed_at = now_, error = coalesce(s.error, ''),
            due_at = CASE WHEN s.after_ms IS NULL THEN a.due_at ELSE now_ + s.after_ms * interval '1 millisecond' END
        FROM unnest(settled_events, settled_attempts, settled_after_ms, settled_errors) AS s (id, attempts, after_ms, error)
        WHERE a.group_id = in_group AND a.event = s.id AND a.slot = in_slot AND s.attempts IS NOT NULL AND NOT a.dead;
    END IF;
    -- Nobody is rung for it: only who holds the slot has to do with what is aside in it, and that one has just said so.
    RETURN true;
END
$$;

-- The same for several shares of which nothing is said but how far they are read, pairwise: most commits are of this kind, and of many
-- shares at once. Whether each counts, in the order given. They are locked in the order of their slots, as everybody locks them.
CREATE FUNCTION tenure.commit_positions(in_group integer, in_slots integer[], in_tokens bigint[], in_positions bigint[])
RETURNS boolean[] LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    base CONSTANT bigint := coalesce((SELECT e.epoch FROM tenure.epoch_stored e), tenure.current_epoch());
    topic_ CONSTANT integer := (SELECT g.topic FROM tenure.event_groups g WHERE g.id = in_group);
    counts integer[];
    positions bigint[];
    befores bigint[];
BEGIN
    PERFORM FROM tenure.event_shares s WHERE s.group_id = in_group AND s.slot = ANY (in_slots) ORDER BY s.slot FOR UPDATE;
    -- Now that they are held still. As in tenure.commit_share: not what was read on another epoch, nor what is not there any more.
    SELECT array_agg(w.slot), array_agg(w.position), array_agg(w.before_) INTO counts, positions, befores FROM (
        SELECT s.slot, greatest(w.position, o.position) AS position, o.position AS before_
        FROM unnest(in_slots, in_tokens, in_positions) AS w (slot, token, position)
        JOIN tenure.event_shares s ON s.group_id = in_group AND s.slot = w.slot AND s.token = w.token
        CROSS JOIN LATERAL (
            SELECT l.position FROM tenure.event_offsets l WHERE l.group_id = in_group AND l.slot = w.slot
            ORDER BY l.generation DESC LIMIT 1
        ) o
        WHERE s.session IS NOT NULL AND w.token >> 40 >= base
          AND (w.position <= o.position
               OR EXISTS (SELECT FROM tenure.event_units u WHERE u.topic = topic_ AND u.slot = w.slot AND u.position >= w.position)
               OR EXISTS (SELECT FROM tenure.event_floors f
                          WHERE f.topic = topic_ AND f.slot = w.slot AND f.position >= w.position))
    ) w;
    PERFORM tenure.set_offsets(in_group, counts, positions);
    -- From where they were on: what was before is deleted already, and is not walked over again.
    DELETE FROM tenure.event_done d USING unnest(counts, befores, positions) AS w (slot, after, upto)
    WHERE d.group_id = in_group AND d.slot = w.slot AND d.position > w.after AND d.position <= w.upto;
    RETURN ARRAY(SELECT w.slot = ANY (coalesce(counts, '{}')) FROM unnest(in_slots) WITH ORDINALITY AS w (slot, n) ORDER BY w.n);
END
$$;

-- Moves a group's positions, of all slots or of one, under new tokens; `dry_run`: it only says so.
CREATE FUNCTION tenure.reset_group(in_group integer, begin_ text, value_ bigint, in_slot integer, dry_run boolean)
RETURNS TABLE (slot integer, before_ bigint, after_ bigint) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    base bigint := tenure.current_epoch() << 40;
    topic_ integer;
BEGIN
    SELECT g.topic INTO STRICT topic_ FROM tenure.event_groups g WHERE g.id = in_group;
    IF NOT dry_run THEN
        PERFORM FROM tenure.event_shares s
        WHERE s.group_id = in_group AND (in_slot IS NULL OR s.slot = in_slot) ORDER BY s.slot FOR UPDATE;
    END IF;
    FOR slot, before_, after_ IN
        SELECT s.slot, tenure.offset_of(in_group, s.slot), tenure.place_of(topic_, s.slot, begin_, value_)
        FROM tenure.event_shares s
        WHERE s.group_id = in_group AND (in_slot IS NULL OR s.slot = in_slot) ORDER BY s.slot
    LOOP
        IF NOT dry_run THEN
            UPDATE tenure.event_shares s
            SET token = greatest(s.token, base) + 1, session = NULL
            WHERE s.group_id = in_group AND s.slot = reset_group.slot;
            PERFORM tenure.set_offsets(in_group, ARRAY[reset_group.slot], ARRAY[after_]);
            DELETE FROM tenure.event_done d WHERE d.group_id = in_group AND d.slot = reset_group.slot;
            DELETE FROM tenure.event_asides a
            WHERE a.group_id = in_group AND a.slot = reset_group.slot AND a.position > after_;
        END IF;
        RETURN NEXT;
    END LOOP;
    IF NOT dry_run THEN
        PERFORM tenure.wake_group(in_group);
    END IF;
END
$$;

-- Deletes a group with its positions and what is aside, unless it has live members.
CREATE FUNCTION tenure.delete_group(in_group integer, OUT there boolean, OUT members bigint) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    -- Nobody joins from here on.
    PERFORM FROM tenure.event_groups g WHERE g.id = in_group FOR UPDATE;
    there := FOUND;
    members := (SELECT count(*) FROM tenure.event_members m JOIN tenure.sessions s ON s.id = m.session AND s.state = 'live'
                WHERE m.group_id = in_group);
    IF NOT there OR members > 0 THEN
        RETURN;
    END IF;
    PERFORM tenure.wake_group(in_group);
    DELETE FROM tenure.event_asides WHERE group_id = in_group;
    DELETE FROM tenure.event_done WHERE group_id = in_group;
    DELETE FROM tenure.event_shares WHERE group_id = in_group;
    DELETE FROM tenure.event_offsets WHERE group_id = in_group;
    DELETE FROM tenure.event_members WHERE group_id = in_group;
    DELETE FROM tenure.event_pushes WHERE group_id = in_group;
    DELETE FROM tenure.event_groups WHERE id = in_group;
END
$$;

-- Deletes a topic with its events and groups, unless one of those has live members. Whoever publishes to it at this moment and
-- commits later leaves strays, which the keeper clears away.
CREATE FUNCTION tenure.delete_topic(in_namespace text, in_topic text, OUT there boolean, OUT busy text, OUT members bigint)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    topic_ integer;
    group_ record;
BEGIN
    -- Nobody makes a group from here on.
    SELECT t.id INTO topic_ FROM tenure.topics t WHERE t.namespace = in_namespace AND t.name = in_topic FOR UPDATE;
    there := FOUND;
    IF NOT there THEN
        RETURN;
    END IF;
    PERFORM FROM tenure.event_groups g WHERE g.topic = topic_ ORDER BY g.id FOR UPDATE;
    SELECT g.name, count(*) INTO busy, members
    FROM tenure.event_groups g JOIN tenure.event_members m ON m.group_id = g.id
    JOIN tenure.sessions s ON s.id = m.session AND s.state = 'live'
    WHERE g.topic = topic_ GROUP BY g.name ORDER BY g.name LIMIT 1;
    IF busy IS NOT NULL THEN
        RETURN;
    END IF;
    PERFORM tenure.delete_group(g.id) FROM tenure.event_groups g WHERE g.topic = topic_;
    WITH gone AS (
        DELETE FROM tenure.event_units u WHERE u.topic = topic_ RETURNING u.batch, u.slot, u.first_id, u.last_id
    )
    DELETE FROM tenure.events e USING gone g
    WHERE e.batch = g.batch AND e.topic = topic_ AND e.slot = g.slot AND e.id BETWEEN g.first_id AND g.last_id;
    DELETE FROM tenure.event_floors WHERE topic = topic_;
    DELETE FROM tenure.event_waiters WHERE topic = topic_;
    DELETE FROM tenure.topics WHERE id = topic_;
END
$$;
