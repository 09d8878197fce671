-- What the keeper does: it forgets what is old and read.

-- Forgets the first units of a slot, at most `most` of them: those from before `read_before` that all groups have read, and those
-- from before `unread_before` anyway (null: never). How many events and units they had.
CREATE FUNCTION tenure.forget_units(
    in_topic integer, in_slot integer, read_before timestamptz, unread_before timestamptz, most integer,
    OUT events bigint, OUT units bigint, OUT more boolean
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    floor_ bigint;
    -- What all groups have read; everything, if there is none.
    read_to bigint := (SELECT min(tenure.offset_of(g.id, in_slot)) FROM tenure.event_groups g WHERE g.topic = in_topic);
    over_ boolean[];
    positions bigint[];
BEGIN
    events := 0;
    units := 0;
    more := false;
    SELECT f.position INTO floor_ FROM tenure.event_floors f WHERE f.topic = in_topic AND f.slot = in_slot;
    -- From the floor on: not over what was forgotten before, and may not be cleared away yet.
    SELECT array_agg(u.over_), array_agg(u.position) INTO over_, positions FROM (
        SELECT u.position, coalesce(u.at < unread_before, false)
               OR u.at < read_before AND u.position <= coalesce(read_to, u.position) AS over_
        FROM tenure.event_units u
        WHERE u.topic = in_topic AND u.slot = in_slot AND u.position > coalesce(floor_, 0)
        ORDER BY u.position LIMIT most + 1) u;
    units := coalesce(array_position(over_, false) - 1, cardinality(over_), 0);
    IF units > most THEN
        more := true;
        units := most;
    END IF;
    IF units = 0 THEN
        RETURN;
    END IF;
    WITH gone AS (
        DELETE FROM tenure.event_units u
        WHERE u.topic = in_topic AND u.slot = in_slot AND u.position = ANY (positions[1:units])
        RETURNING u.batch, u.first_id, u.last_id
    ), forgotten AS (
        DELETE FROM tenure.events e USING gone g
        WHERE e.batch = g.batch AND e.topic = in_topic AND e.slot = in_slot AND e.id BETWEEN g.first_id AND g.last_id
        RETURNING e.id
    )
    SELECT count(*) INTO events FROM forgotten;
    INSERT INTO tenure.event_floors AS f (topic, slot, position) VALUES (in_topic, in_slot, positions[units])
    ON CONFLICT (topic, slot) DO UPDATE SET position = greatest(f.position, EXCLUDED.position);
    DELETE FROM tenure.event_done d USING tenure.event_groups g
    WHERE g.topic = in_topic AND d.group_id = g.id AND d.slot = in_slot AND d.position <= positions[units];
END
$$;

-- Forgets old units of all topics, at most `most` of each, and what is left of topics that were deleted while somebody published
-- to them. Nothing happens unless this session leads tenure/claims under this token. `clock_ms`: see tenure.tend.
CREATE FUNCTION tenure.prune_events(
    in_session text, in_token bigint, clock_ms bigint, most integer, OUT forgotten bigint, OUT more boolean
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    now_ CONSTANT timestamptz := date_trunc('milliseconds', clock_timestamp());
    clock_ CONSTANT timestamptz := least(tenure.at(least(clock_ms, tenure.ms(now_))), now_);
    topic_ record;
    slot_ record;
    left_ integer;
BEGIN
    forgotten := 0;
    more := false;
    PERFORM FROM tenure.leases l
    WHERE l.namespace = 'tenure' AND l.name = 'claims' AND l.slot = 0 AND l.token = in_token AND l.session = in_session
    FOR SHARE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF random() < 0.01 THEN
        -- What two left behind who did something at the same moment.
        DELETE FROM tenure.event_waiters WHERE ctid = ANY (ARRAY(
            SELECT w.ctid FROM tenure.event_waiters w
            WHERE EXISTS (SELECT FROM tenure.event_waiters l WHERE l.topic = w.topic AND l.n > w.n)
            LIMIT most FOR UPDATE SKIP LOCKED));
    END IF;
    IF clock_ms IS NULL THEN
        RETURN;
    END IF;
    -- Not one that is being deleted.
    FOR topic_ IN
        SELECT t.id, t.slots, t.keep_ms, t.keep_unread_ms FROM tenure.topics t ORDER BY t.id FOR KEY SHARE SKIP LOCKED
    LOOP
        left_ := most;
        -- Only where the first unit is old enough: most slots have nothing to forget.
        FOR slot_ IN
            SELECT s.slot FROM generate_series(0, topic_.slots - 1) AS s (slot)
            CROSS JOIN LATERAL (
                SELECT u.at FROM tenure.event_units u
                WHERE u.topic = topic_.id AND u.slot = s.slot AND u.position > coalesce((
                    SELECT f.position FROM tenure.event_floors f WHERE f.topic = topic_.id AND f.slot = s.slot), 0)
                ORDER BY u.position LIMIT 1
            ) oldest
            WHERE oldest.at < clock_ - topic_.keep_ms * interval '1 millisecond'
               OR oldest.at < clock_ - topic_.keep_unread_ms * interval '1 millisecond'
        LOOP
            SELECT forgotten + f.events, left_ - f.units, more OR f.more INTO forgotten, left_, more
            FROM tenure.forget_units(topic_.id, slot_.slot, clock_ - topic_.keep_ms * interval '1 millisecond',
                                     clock_ - topic_.keep_unread_ms * interval '1 millisecond', left_) f;
        END LOOP;
    END LOOP;
    PERFORM tenure.forget_strays(most);
    IF random() < 0.01 THEN
        -- Not with their topic, whose deletion would wait for everybody who places events in it.
        DELETE FROM tenure.event_slots WHERE ctid = ANY (ARRAY(
            SELECT s.ctid FROM tenure.event_slots s WHERE NOT EXISTS (SELECT FROM tenure.topics t WHERE t.id = s.topic)
            LIMIT most FOR UPDATE SKIP LOCKED));
    END IF;
END
$$;

-- Forgets units of topics that are no more.
CREATE FUNCTION tenure.forget_strays(most integer) RETURNS void LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    topic_ integer := -1;
    positions bigint[];
BEGIN
    LOOP
        -- From topic to topic, not from unit to unit.
        SELECT u.topic INTO topic_ FROM tenure.event_units u WHERE u.topic > topic_ ORDER BY u.topic LIMIT 1;
        EXIT WHEN NOT FOUND;
        CONTINUE WHEN EXISTS (SELECT FROM tenure.topics t WHERE t.id = topic_);
        positions := ARRAY(SELECT u.position FROM tenure.event_units u WHERE u.topic = topic_ LIMIT most);
        WITH gone AS (
            DELETE FROM tenure.event_units u WHERE u.topic = topic_ AND u.position = ANY (positions)
            RETURNING u.batch, u.slot, u.first_id, u.last_id
        )
        DELETE FROM tenure.events e USING gone g
        WHERE e.batch = g.batch AND e.topic = topic_ AND e.slot = g.slot AND e.id BETWEEN g.first_id AND g.last_id;
    END LOOP;
END
$$;
