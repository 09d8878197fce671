-- Reading.
--
-- Planning is held to what is right at every size, as with claims: rows are found by their keys, in the order of the index,
-- whatever the statistics say or do not say yet. Whoever reads begins after a position, so nobody walks over what was forgotten.

-- Units of these slots after these positions: one of each in turn, in the order given, until there are `most` events or 16 MiB (the
-- first one has it all, however long it is). What was published together is never cut. The events of each slot in order.
CREATE FUNCTION tenure.read(in_topic integer, in_slots integer[], in_afters bigint[], most integer)
RETURNS TABLE (
    slot integer, "position" bigint, id bigint, key text, kind text, payload text, body bytea, headers json,
    leader_token bigint, at_ms bigint
) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    -- Slots that may have more, by their place in the list, and after which position.
    places integer[] := ARRAY(SELECT generate_subscripts(in_slots, 1));
    afters bigint[] := in_afters;
    wanted integer := most;
    room bigint := 16777216;
    each_ integer;
    lap record;
    all_taken boolean;
    unit_places integer[] := '{}';
    unit_positions bigint[] := '{}';
    unit_batches bigint[] := '{}';
    unit_firsts bigint[] := '{}';
    unit_lasts bigint[] := '{}';
    unit_ats timestamptz[] := '{}';
BEGIN
    WHILE wanted > 0 AND cardinality(places) > 0 LOOP
        -- So many of each would do, if units go on to be as long as they were; at first a few of each tell how long they are. The next
        -- lap is about those that had as many.
        each_ := CASE WHEN unit_places = '{}' THEN least(2, ceil(wanted / cardinality(places)::numeric))
                      ELSE greatest(1, ceil(wanted::numeric * cardinality(unit_places) / (most - wanted) / cardinality(places))) END;
        SELECT array_agg(u.place) AS places, array_agg(u.position) AS positions, array_agg(u.batch) AS batches,
               array_agg(u.first_id) AS firsts, array_agg(u.last_id) AS lasts, array_agg(u.at) AS ats,
               array_agg(u.events) AS counts, array_agg(u.bytes) AS sizes, sum(u.events) AS events, sum(u.bytes) AS bytes
        INTO lap
        FROM (SELECT o.place, f.*
              FROM unnest(places, afters) AS o (place, after)
              CROSS JOIN LATERAL (
                  SELECT s.position, s.batch, s.first_id, s.last_id, s.at, s.events, s.bytes
                  FROM tenure.event_units s
                  WHERE s.topic = in_topic AND s.slot = in_slots[o.place] AND s.position > o.after
                  ORDER BY s.position LIMIT each_
              ) f) u;
        EXIT WHEN lap.places IS NULL;
        all_taken := lap.events <= wanted AND lap.bytes <= room;
        IF NOT all_taken THEN
            -- One of each in turn. The first one of all has it all, and the last may be longer than what was wanted.
            SELECT array_agg(t.place) AS places, array_agg(t.position) AS positions, array_agg(t.batch) AS batches,
                   array_agg(t.first_id) AS firsts, array_agg(t.last_id) AS lasts, array_agg(t.at) AS ats
            INTO lap
            FROM (SELECT r.*, sum(r.events) OVER turns AS sum_events, sum(r.bytes) OVER turns AS sum_bytes, row_number() OVER turns AS n
                  FROM (SELECT u.*, row_number() OVER (PARTITION BY u.place ORDER BY u.position) AS rank
                        FROM unnest(lap.places, lap.positions, lap.batches, lap.firsts, lap.lasts, lap.ats, lap.counts, lap.sizes)
                             AS u (place, position, batch, first_id, last_id, at, events, bytes)) r
                  WINDOW turns AS (ORDER BY r.rank, r.place ROWS UNBOUNDED PRECEDING)) t
            WHERE t.sum_events - t.events < wanted AND (t.sum_bytes <= room OR t.n = 1 AND unit_places = '{}');
            EXIT WHEN lap.places IS NULL;
        END IF;
        unit_places := unit_places || lap.places;
        unit_positions := unit_positions || lap.positions;
        unit_batches := unit_batches || lap.batches;
        unit_firsts := unit_firsts || lap.firsts;
        unit_lasts := unit_lasts || lap.lasts;
        unit_ats := unit_ats || lap.ats;
        EXIT WHEN NOT all_taken;
        wanted := wanted - lap.events;
        room := room - lap.bytes;
        EXIT WHEN wanted <= 0;
        SELECT array_agg(u.place), array_agg(u.last) INTO places, afters
        FROM (SELECT l.place, max(l.position) AS last FROM unnest(lap.places, lap.positions) AS l (place, position)
              GROUP BY l.place HAVING count(*) = each_ ORDER BY l.place) u;
    END LOOP;
    IF unit_places = '{}' THEN
        RETURN;
    END IF;
    RETURN QUERY
        SELECT in_slots[u.place], u.at, e.id, e.key, e.kind, e.payload, e.body, e.headers, e.leader_token, tenure.ms(u.published)
        FROM (SELECT * FROM unnest(unit_places, unit_positions, unit_batches, unit_firsts, unit_lasts, unit_ats)
                  AS s (place, at, batch, first_id, last_id, published)
              ORDER BY s.place, s.at) u
        CROSS JOIN LATERAL (
            SELECT v.* FROM tenure.events v
            WHERE v.batch = u.batch AND v.topic = in_topic AND v.slot = in_slots[u.place]
              AND v.id BETWEEN u.first_id AND u.last_id
            ORDER BY v.id
        ) e;
END
$$;

-- Where an event of a slot lies; null if it does not, or not any more. Positions are greater than numbers, and not by much unless its
-- transaction lasted: for people, who ask for one event.
CREATE FUNCTION tenure.position_of(in_topic integer, in_slot integer, in_id bigint) RETURNS bigint
LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    SELECT u.position FROM tenure.event_units u
    WHERE u.topic = in_topic AND u.slot = in_slot AND u.position > in_id
      AND in_id BETWEEN u.first_id AND u.last_id
      AND EXISTS (SELECT FROM tenure.events e
                  WHERE e.batch = u.batch AND e.topic = u.topic AND e.slot = u.slot AND e.id = in_id)
    ORDER BY u.position LIMIT 1
$$;

-- One event. Its batch is the number of the first event of its transaction: mostly its own, or one a little before. Not more than a
-- million before: who asks for one that is not there must not cost a walk over all that are.
CREATE FUNCTION tenure.show_event(in_topic integer, in_id bigint)
RETURNS TABLE (
    slot integer, "position" bigint, id bigint, key text, kind text, payload text, body bytea, headers json,
    leader_token bigint, at_ms bigint
) LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
    SELECT e.slot, u."position", e.id, e.key, e.kind, e.payload, e.body, e.headers, e.leader_token, tenure.ms(u.at)
    FROM (SELECT v.* FROM tenure.events v WHERE v.batch BETWEEN in_id - 1000000 AND in_id AND v.topic = in_topic AND v.id = in_id
          ORDER BY v.batch DESC LIMIT 1) e
    JOIN tenure.event_units u
        ON u.topic = in_topic AND u.slot = e.slot AND u."position" = tenure.position_of(in_topic, e.slot, e.id)
$$;

-- Up to where a slot has been forgotten, and where it ends.
CREATE FUNCTION tenure.slot_ends(in_topic integer, in_slot integer, OUT earliest bigint, OUT latest bigint)
LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    SELECT f.position, greatest(f.position, coalesce((
               SELECT u.position FROM tenure.event_units u WHERE u.topic = in_topic AND u.slot = in_slot
               ORDER BY u.position DESC LIMIT 1), 0))
    FROM (SELECT coalesce((SELECT f.position FROM tenure.event_floors f
                           WHERE f.topic = in_topic AND f.slot = in_slot), 0) AS position) f
$$;

-- The position after which to read, from the earliest or latest, after a position, or from a time on. Never after what is there,
-- so that nothing to come is passed over.
CREATE FUNCTION tenure.place_of(in_topic integer, in_slot integer, begin_ text, value_ bigint) RETURNS bigint
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    ends record;
    low bigint;
    high bigint;
    middle bigint;
    unit record;
BEGIN
    SELECT s.earliest, s.latest INTO ends FROM tenure.slot_ends(in_topic, in_slot) s;
    IF begin_ = 'earliest' THEN
        RETURN ends.earliest;
    ELSIF begin_ = 'latest' THEN
        RETURN ends.latest;
    ELSIF begin_ = 'position' THEN
        RETURN least(greatest(value_, ends.earliest), ends.latest);
    END IF;
    -- Times grow with positions, as far as the clock does: all up to `low` are older, the next after `high` is not.
    low := ends.earliest;
    high := ends.latest;
    WHILE low < high LOOP
        middle := low + (high - low) / 2;
        SELECT u.position, u.at INTO unit FROM tenure.event_units u
        WHERE u.topic = in_topic AND u.slot = in_slot AND u.position > middle ORDER BY u.position LIMIT 1;
        IF NOT FOUND OR unit.at >= tenure.at(value_) THEN
            high := middle;
        ELSE
            low := unit.position;
        END IF;
    END LOOP;
    RETURN low;
END
$$;
