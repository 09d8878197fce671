-- Publishing.
--
-- Why nothing that is committed is ever skipped. A position is drawn from a sequence while the transaction has the row of its slot in
-- event_slots locked, and that lock is released after the commit is visible to everybody (a row is locked for as long as its locker is
-- in the list of transactions that run, which is what snapshots are made of; a prepared transaction stays in it until COMMIT
-- PREPARED). So whoever gets
-- the lock next draws a greater position, and all smaller ones of that slot are committed and visible by then, or never will be.
-- Hence who sees position P of a slot, in whatever snapshot, sees every smaller one that there will ever be. A bare sequence does
-- not give that: 5 may be committed after 6, and who has read up to 6 never sees it.
--
-- The lock is taken at the last moment, by a deferred constraint trigger: a transaction that lasts holds up nobody. The first row
-- that fires places all that its transaction published, with the locks taken in one order, so that no two transactions wait for
-- each other in a circle. Which rows those are is known by `batch`: it is drawn with the first publication and kept in the setting
-- tenure.batch, for the transaction. A savepoint that is rolled back takes it back as well. `X:N`: one call with one event, so that row is
-- all; `X:N+`: more. X is the transaction: what is set for the session, or was by another, is not this one's batch, whose events
-- would be placed again with it. It is emptied when the batch is placed: whoever publishes after that (SET CONSTRAINTS … IMMEDIATE, another
-- deferred trigger) begins another batch. Any session can set it to anything, so tenure.batch takes it only for a batch in which
-- this transaction has inserted a row: a batch never holds events of two transactions, whatever a client sets. SET CONSTRAINTS … IMMEDIATE takes the locks at once and keeps them until the commit: that,
-- a prepared transaction, and a commit that waits for a standby are what can hold up others; see tenure.blockers.

-- Into which slot a key falls, before it is taken modulo the slots: 32-bit FNV-1a with both halves folded.
CREATE FUNCTION tenure.key_hash(key text) RETURNS bigint LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    raw CONSTANT bytea := convert_to(key, 'UTF8');
    hash bigint := 2166136261;
BEGIN
    FOR n IN 0..length(raw) - 1 LOOP
        hash := (hash # get_byte(raw, n)) * 16777619 & 4294967295;
    END LOOP;
    RETURN hash # (hash >> 16);
END
$$;

-- Moves the sequence of numbers to where this epoch begins, and beyond every number that is known here, if it is not there: it is behind
-- in a new epoch, or when it was restored, replicated without its value, or reset. It is moved far enough that no
-- number that others draw meanwhile comes again. By right of the owner: who may publish may draw numbers, and not set them.
CREATE FUNCTION tenure.begin_numbers() RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    first_ CONSTANT bigint := (tenure.current_epoch() - 1) << 40;
    known CONSTANT bigint := greatest(
        (SELECT max(e.latest) FROM tenure.topics t, generate_series(0, t.slots - 1) AS s (slot), tenure.slot_ends(t.id, s.slot) e),
        (SELECT max(e.id) FROM tenure.events e WHERE e.batch = (SELECT max(b.batch) FROM tenure.events b)),
        (SELECT max(o.position) FROM tenure.event_offsets o), (SELECT max(a.event) FROM tenure.event_asides a));
BEGIN
    IF (SELECT n.last_value FROM tenure.event_numbers n) > greatest(first_, known) THEN
        RETURN;
    END IF;
    LOCK TABLE tenure.event_slots IN SHARE UPDATE EXCLUSIVE MODE;
    IF (SELECT n.last_value FROM tenure.event_numbers n) <= greatest(first_, known) THEN
        PERFORM setval('tenure.event_numbers', CASE WHEN known > first_ THEN known + 1048576 ELSE first_ + 1 END);
    END IF;
END
$$;

-- The next number. Events and positions take them in turn, so that events that are published one by one would all have odd
-- numbers, or even ones, and those without a key would lie in half of the slots: with `any_`, one is left out now and then.
--
-- A standby that is promoted may not know the last numbers that were given, and they are out there: as idempotency keys, in cursors. So
-- each epoch after the first has numbers of its own, as tokens do.
CREATE FUNCTION tenure.event_number(any_ boolean) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    number bigint := nextval('tenure.event_numbers');
BEGIN
    -- Others that drew later may have committed already; then the sequence is beyond what they have.
    IF number <= (coalesce((SELECT n.epoch FROM tenure.epoch_stored n), tenure.current_epoch()) - 1) << 40 OR pg_sequence_last_value('tenure.event_numbers') <= (
        SELECT e.batch FROM tenure.events e ORDER BY e.batch DESC LIMIT 1)
    THEN
        PERFORM tenure.begin_numbers();
        number := nextval('tenure.event_numbers');
    END IF;
    IF any_ AND random() < 0.5 THEN
        number := nextval('tenure.event_numbers');
    END IF;
    RETURN number;
END
$$;

-- The position of what is placed in a slot whose lock is held: the number that was just drawn, if it is beyond the slot's last
-- position. If it is not, the sequence was reset, and is moved first. Nobody may read an event that a crash of the server takes
-- back, since its position would be given again: so the commit waits for the disk, whatever synchronous_commit says.
CREATE FUNCTION tenure.position_for(in_topic integer, in_slot integer, in_batch bigint, number bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'local', true);
    END IF;
    WHILE number <= greatest(in_batch, coalesce(
        (SELECT u.position FROM tenure.event_units u WHERE u.topic = in_topic AND u.slot = in_slot ORDER BY u.position DESC LIMIT 1),
        (SELECT f.position FROM tenure.event_floors f WHERE f.topic = in_topic AND f.slot = in_slot), 0))
    LOOP
        PERFORM tenure.begin_numbers();
        number := nextval('tenure.event_numbers');
    END LOOP;
    RETURN number;
END
$$;

-- Refuses, for want of a topic.
CREATE FUNCTION tenure.no_topic(in_namespace text, in_topic text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RAISE EXCEPTION 'there is no topic %',
        CASE WHEN in_namespace = 'default' THEN in_topic ELSE concat(in_namespace, '/', in_topic) END
        USING ERRCODE = 'TN013', HINT = format(
            'Make it first: `tenure events topics create %s%s`, or `PUT /v1/topics/%s`', in_topic,
            CASE WHEN in_namespace = 'default' THEN '' ELSE ' --namespace ' || in_namespace END, in_topic);
END
$$;

-- The number of a topic. Raises TN013 if there is none.
CREATE FUNCTION tenure.topic_id(in_namespace text, in_topic text) RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    found_id integer;
BEGIN
    SELECT t.id INTO found_id FROM tenure.topics t WHERE t.namespace = in_namespace AND t.name = in_topic;
    IF found_id IS NULL THEN
        PERFORM tenure.no_topic(in_namespace, in_topic);
    END IF;
    RETURN found_id;
END
$$;

-- Whether somebody waits for a topic, and is not notified yet. A transaction with one snapshot for all of it does not see who began to
-- wait since: it asks whether anybody did, for a topic with the same remainder, since a second before the transaction began. (What was
-- noted down a moment before it was committed counts, too.) Whoever is missed, all the same, looks by itself within a second.
CREATE FUNCTION tenure.is_awaited(in_topic integer) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN coalesce((SELECT NOT w.woken FROM tenure.event_waiters w WHERE w.topic = in_topic
                     ORDER BY w.n DESC, w.woken DESC LIMIT 1), false)
        OR current_setting('transaction_isolation') <> 'read committed'
           AND coalesce(pg_sequence_last_value(format('tenure.event_waits_%s', in_topic % 16)::regclass)
                        >= tenure.ms(transaction_timestamp()) - 1000, false);
END
$$;

-- Notifies those who wait for events of this topic: somebody does. And notes down that they were.
CREATE FUNCTION tenure.ring_topic(in_topic integer) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    last_ record;
BEGIN
    -- A transaction that notifies can not be prepared. Whoever sleeps finds what it published when it looks again.
    IF current_setting('max_prepared_transactions') <> '0' AND current_query() ~* 'prepare\s+transaction' THEN
        RETURN;
    END IF;
    SELECT w.ctid AS at, w.n, w.woken INTO last_ FROM tenure.event_waiters w WHERE w.topic = in_topic
    ORDER BY w.n DESC, w.woken DESC LIMIT 1;
    IF last_.woken IS FALSE THEN
        INSERT INTO tenure.event_waiters (topic, n, woken) VALUES (in_topic, last_.n, true);
        -- With one snapshot for the whole transaction, a row that changed since could only be an error.
        IF current_setting('transaction_isolation') = 'read committed' THEN
            DELETE FROM tenure.event_waiters WHERE ctid = ANY (ARRAY(
                SELECT w.ctid FROM tenure.event_waiters w WHERE w.ctid = last_.at AND w.n = last_.n AND NOT w.woken
                FOR UPDATE SKIP LOCKED));
        END IF;
    END IF;
    PERFORM pg_catalog.pg_notify('tenure_wake', json_build_object('events',
        json_build_object('namespace', t.namespace, 'name', t.name))::text)
    FROM tenure.topics t WHERE t.id = in_topic;
END
$$;

-- Notes down that somebody waits for events of a topic, if that is not known.
CREATE FUNCTION tenure.wait_for_events(in_topic integer) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    last_ record;
BEGIN
    SELECT w.ctid AS at, w.n, w.woken INTO last_ FROM tenure.event_waiters w WHERE w.topic = in_topic
    ORDER BY w.n DESC, w.woken DESC LIMIT 1;
    IF last_.woken THEN
        DELETE FROM tenure.event_waiters WHERE ctid = ANY (ARRAY(
            SELECT w.ctid FROM tenure.event_waiters w WHERE w.ctid = last_.at AND w.n = last_.n AND w.woken
            FOR UPDATE SKIP LOCKED));
    END IF;
    IF last_.woken IS NOT FALSE THEN
        PERFORM setval(format('tenure.event_waits_%s', in_topic % 16)::regclass, tenure.ms(clock_timestamp()));
        INSERT INTO tenure.event_waiters (topic, n, woken) VALUES (in_topic, nextval('tenure.waiter_numbers'), false);
    END IF;
END
$$;

-- Gives events their positions, pairwise what a batch has in each slot: the locks of all slots, in the order given, which is that of their
-- numbers; a unit for each; and rings.
CREATE FUNCTION tenure.place_units(
    in_batch bigint, topics integer[], slots integer[], firsts bigint[], lasts bigint[], counts bigint[], sizes bigint[]
) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    -- One after the other: in a join, the order of locks would be the planner's.
    FOR n IN 1..cardinality(topics) LOOP
        PERFORM FROM tenure.event_slots s WHERE s.topic = topics[n] AND s.slot = slots[n] FOR UPDATE;
    END LOOP;
    INSERT INTO tenure.event_units (topic, slot, position, batch, first_id, last_id, at, events, bytes)
    SELECT u.topic, u.slot, tenure.position_for(u.topic, u.slot, in_batch, nextval('tenure.event_numbers')), in_batch, u.first_id, u.last_id,
           date_trunc('milliseconds', clock_timestamp()), u.events, u.bytes
    FROM unnest(topics, slots, firsts, lasts, counts, sizes) WITH ORDINALITY
         AS u (topic, slot, first_id, last_id, events, bytes, n) ORDER BY u.n;
    PERFORM tenure.ring_topic(t.topic) FROM (SELECT DISTINCT d.topic FROM unnest(topics) AS d (topic)) t
    WHERE tenure.is_awaited(t.topic);
END
$$;

-- The same for all events of a batch, as they are in the table: a unit for each slot, or several if it has more than a thousand events.
-- `rest`: only for those that have no unit yet, at the price of a look at the units for each event.
CREATE FUNCTION tenure.place(in_batch bigint, rest boolean DEFAULT false) RETURNS void LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    units record;
BEGIN
    SELECT array_agg(u.topic) AS topics, array_agg(u.slot) AS slots, array_agg(u.first_id) AS firsts, array_agg(u.last_id) AS lasts,
           array_agg(u.events) AS counts, array_agg(u.bytes) AS sizes
    INTO units
    FROM (SELECT p.topic, p.slot, min(p.id) AS first_id, max(p.id) AS last_id, count(*) AS events, sum(p.bytes) AS bytes
          FROM (SELECT e.topic, e.slot, e.id, e.bytes,
                       (row_number() OVER (PARTITION BY e.topic, e.slot ORDER BY e.id) - 1) / 1000 AS part
                FROM tenure.events e WHERE e.batch = in_batch AND CASE WHEN rest THEN NOT EXISTS (
                    SELECT FROM tenure.event_units u
                    WHERE u.topic = e.topic AND u.slot = e.slot AND u.position > in_batch AND u.batch = in_batch
                      AND e.id BETWEEN u.first_id AND u.last_id) ELSE true END) p
          GROUP BY p.topic, p.slot, p.part ORDER BY p.topic, p.slot, p.part) u;
    PERFORM tenure.place_units(in_batch, units.topics, units.slots, units.firsts, units.lasts, units.counts, units.sizes);
END
$$;

-- The trigger: once for each call of a transaction that is about to commit. What is not of the batch is placed already. Most batches
-- are of one event, and then each expression counts: PL/pgSQL prepares each anew in every transaction.
--
-- It runs with the rights of the owner: who publishes has no rights on the tables. Units are made from rows, which only functions of
-- this file insert; the setting decides no more than which rows of this transaction go into one unit.
CREATE FUNCTION tenure.place_batch() RETURNS trigger LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now_ CONSTANT text := current_setting('tenure.batch', true);
    rings boolean;
BEGIN
    IF now_ = pg_current_xact_id()::text || ':' || NEW.batch AND NEW.id = NEW.batch THEN
        PERFORM FROM tenure.event_slots s WHERE s.topic = NEW.topic AND s.slot = NEW.slot FOR UPDATE;
        -- Always so: an expression costs less than a statement.
        IF set_config('tenure.batch', '', true) = '' THEN
            -- What tenure.position_for does, without a call if there is nothing to do.
            INSERT INTO tenure.event_units AS u (topic, slot, position, batch, first_id, last_id, at, events, bytes)
            SELECT NEW.topic, NEW.slot,
                   CASE WHEN d.number > d.last AND d.number > NEW.batch AND current_setting('synchronous_commit') <> 'off'
                        THEN d.number ELSE tenure.position_for(NEW.topic, NEW.slot, NEW.batch, d.number) END,
                   NEW.batch, NEW.id, NEW.id, date_trunc('milliseconds', clock_timestamp()), 1, NEW.bytes
            FROM (SELECT nextval('tenure.event_numbers') AS number, coalesce(
                      (SELECT l.position FROM tenure.event_units l WHERE l.topic = NEW.topic AND l.slot = NEW.slot
                       ORDER BY l.position DESC LIMIT 1),
                      (SELECT f.position FROM tenure.event_floors f WHERE f.topic = NEW.topic AND f.slot = NEW.slot), 0) AS last) d
            RETURNING coalesce((SELECT NOT w.woken FROM tenure.event_waiters w WHERE w.topic = u.topic
                                ORDER BY w.n DESC, w.woken DESC LIMIT 1), false)
                   OR current_setting('transaction_isolation') <> 'read committed' INTO rings;
        END IF;
        IF rings THEN
            PERFORM tenure.ring_topic(NEW.topic) WHERE tenure.is_awaited(NEW.topic);
        END IF;
    ELSIF now_ = pg_current_xact_id()::text || ':' || NEW.batch || '+' THEN
        PERFORM set_config('tenure.batch', '', true);
        PERFORM tenure.place(NEW.batch);
    ELSIF (SELECT u.batch = NEW.batch AND u.last_id >= NEW.id FROM tenure.event_units u
           WHERE u.topic = NEW.topic AND u.slot = NEW.slot ORDER BY u.position DESC LIMIT 1) THEN
        -- Placed with an earlier row of its batch: we hold the lock of the slot, so our unit is still the last one there.
        RETURN NULL;
    ELSIF NOT EXISTS (
        SELECT FROM tenure.event_units u
        WHERE u.topic = NEW.topic AND u.slot = NEW.slot AND u.position > NEW.batch AND u.batch = NEW.batch
          AND NEW.id BETWEEN u.first_id AND u.last_id)
    THEN
        -- Somebody has emptied or changed the setting (RESET ALL): what was published before is not lost for that.
        PERFORM tenure.place(NEW.batch, true);
    END IF;
    RETURN NULL;
END
$$;

-- One row of each call leads.
CREATE CONSTRAINT TRIGGER events_placed AFTER INSERT ON tenure.events DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW WHEN (NEW.leads) EXECUTE FUNCTION tenure.place_batch();

-- Whether this transaction has inserted rows of a batch that has no unit yet. A row that is visible although its transaction is in
-- progress is our own; and once it has a unit we hold the lock of its slot, where that unit is the last one.
CREATE FUNCTION tenure.is_our_batch(in_batch bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM tenure.events e WHERE e.batch = in_batch AND CASE WHEN age(e.xmin) <= 0
            THEN pg_xact_status((pg_current_xact_id()::text::bigint - age(e.xmin))::text::xid8) = 'in progress' ELSE false END
          AND in_batch IS DISTINCT FROM (SELECT u.batch FROM tenure.event_units u WHERE u.topic = e.topic AND u.slot = e.slot
                                         ORDER BY u.position DESC LIMIT 1));
END
$$;

-- The batch of this transaction; `new_` if it has none yet. `several`: more than this one event are in it.
CREATE FUNCTION tenure.batch(new_ bigint, several boolean) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    ours CONSTANT text := pg_current_xact_id()::text || ':';
    now_ CONSTANT text := current_setting('tenure.batch', true);
    given text;
BEGIN
    IF starts_with(now_, ours) THEN
        given := substr(rtrim(now_, '+'), length(ours) + 1);
        IF given ~ '^[0-9]{1,18}$' THEN
            -- The setting is the client's to change, so the table is asked.
            IF tenure.is_our_batch(given::bigint) THEN
                PERFORM set_config('tenure.batch', ours || given || '+', true);
                RETURN given::bigint;
            END IF;
        END IF;
    END IF;
    PERFORM set_config('tenure.batch', ours || new_ || CASE WHEN several THEN '+' ELSE '' END, true);
    RETURN new_;
END
$$;

-- The topic that events go to; or, in its place, the first event that is too long for it, and how long one may be.
CREATE FUNCTION tenure.target(
    in_namespace text, in_topic text, payloads text[], bodies bytea[], OUT topic integer, OUT slots integer, OUT n integer,
    OUT most bigint
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    most_ bigint;
BEGIN
    SELECT t.id, t.slots, t.max_bytes INTO topic, slots, most_
    FROM tenure.topics t WHERE t.namespace = in_namespace AND t.name = in_topic;
    IF topic IS NULL THEN
        PERFORM tenure.no_topic(in_namespace, in_topic);
    END IF;
    -- Nothing is longer than this, whatever the topic says.
    IF most_ < 1048576 THEN
        SELECT (p.n - 1)::integer, most_ INTO n, most
        FROM unnest(payloads, bodies) WITH ORDINALITY AS p (payload, body, n)
        WHERE coalesce(octet_length(p.payload), octet_length(p.body)) > most_ ORDER BY p.n LIMIT 1;
    END IF;
END
$$;

-- So many numbers for events, in order.
CREATE FUNCTION tenure.event_ids(count_ integer) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN ARRAY(SELECT tenure.event_number(true) FROM generate_series(1, 1)
                 UNION ALL SELECT nextval('tenure.event_numbers') FROM generate_series(2, count_));
END
$$;

-- Publishes events, all or nothing, in this transaction. Nothing is checked here but the topic and the length of payloads.
-- Of each event: `hashes`, of its key (null: it has none), kinds, keys, payloads or bodies, headers, idempotency keys, leaders'
-- tokens; a list in which all is null may be null itself. `own`: the transaction is over with this, so the slots may as well be
-- locked at once, without a trigger. One row for each event, in order; `most` in place of all that, if event `n` is too long.
CREATE FUNCTION tenure.publish_all(
    in_namespace text, in_topic text, hashes bigint[], kinds text[], keys text[], payloads text[], bodies bytea[],
    headers_ text[], idempotency_keys text[], tokens bigint[], own boolean
) RETURNS TABLE (n integer, id bigint, slot integer, new boolean, most bigint) LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    topic_ integer;
    slots_ integer;
    count_ CONSTANT integer := cardinality(kinds);
    ids bigint[];
    made bigint[];
    batch_ bigint;
BEGIN
    SELECT t.topic, t.slots, t.n, t.most INTO topic_, slots_, n, most
    FROM tenure.target(in_namespace, in_topic, payloads, bodies) t;
    IF count_ = 0 THEN
        RETURN;
    END IF;
    IF NOT own AND current_setting('session_replication_role') = 'replica' THEN
        RAISE EXCEPTION 'this session replicates, and what it publishes would never be read' USING ERRCODE = 'TN016',
            HINT = 'Triggers do not fire while session_replication_role is replica: set it to origin. Nothing was published.';
    END IF;
    IF n IS NOT NULL THEN
        RETURN NEXT;
        RETURN;
    END IF;
    -- The numbers are in the order of the call, whatever the order in which rows are inserted.
    ids := tenure.event_ids(count_);
    batch_ := CASE WHEN own THEN ids[1] ELSE tenure.batch(ids[1], count_ > 1) END;
    IF idempotency_keys IS NULL THEN
        INSERT INTO tenure.events AS v (batch, id, topic, slot, bytes, leads, leader_token, key, kind, headers, payload, body)
        SELECT batch_, e.id, topic_, (coalesce(e.hash, e.id) % slots_)::integer,
               coalesce(octet_length(e.payload), octet_length(e.body)), NOT own AND e.n = 1, e.token, e.key, e.kind,
               e.headers::json, e.payload, e.body
        FROM unnest(ids, hashes, kinds, keys, payloads, bodies, headers_, tokens)
             WITH ORDINALITY AS e (id, hash, kind, key, payload, body, headers, token, n);
    ELSE
        -- Each of them leads: nobody knows which are there already. In the order of their keys, so that two calls with the same
        -- keys wait for each other in one order.
        WITH inserted AS (
            INSERT INTO tenure.events AS v (
                batch, id, topic, slot, bytes, leads, leader_token, key, kind, idempotency_key, headers, payload, body)
            SELECT batch_, e.id, topic_, (coalesce(e.hash, e.id) % slots_)::integer,
                   coalesce(octet_length(e.payload), octet_length(e.body)), NOT own, e.token, e.key, e.kind, e.idem,
                   e.headers::json, e.payload, e.body
            FROM unnest(ids, hashes, kinds, keys, payloads, bodies, headers_, tokens, idempotency_keys)
                 AS e (id, hash, kind, key, payload, body, headers, token, idem)
            ORDER BY e.idem, e.id
            ON CONFLICT (topic, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
            RETURNING v.id
        )
        SELECT coalesce(array_agg(i.id), '{}') INTO made FROM inserted i;
    END IF;
    IF own AND made IS DISTINCT FROM '{}' THEN
        PERFORM tenure.place(batch_);
    END IF;
    IF made IS NULL THEN
        RETURN QUERY SELECT (e.n - 1)::integer, e.id, (coalesce(e.hash, e.id) % slots_)::integer, true, NULL::bigint
                     FROM unnest(ids, hashes) WITH ORDINALITY AS e (id, hash, n);
        RETURN;
    END IF;
    -- In a statement of its own, which sees those that were published by others meanwhile.
    FOR n, id, slot, new IN
        SELECT (e.n - 1)::integer, coalesce(m.id, k.id), coalesce(k.slot, (coalesce(e.hash, e.id) % slots_)::integer),
               m.id IS NOT NULL
        FROM unnest(ids, hashes, idempotency_keys) WITH ORDINALITY AS e (id, hash, idem, n)
        LEFT JOIN unnest(made) AS m (id) ON m.id = e.id
        LEFT JOIN tenure.events k ON m.id IS NULL AND k.topic = topic_ AND k.idempotency_key = e.idem
                                 AND k.idempotency_key IS NOT NULL
        ORDER BY e.n
    LOOP
        IF id IS NULL THEN
            RAISE EXCEPTION 'an event with the same idempotency key in % is being forgotten or published at this moment', in_topic
                USING ERRCODE = '40001', HINT = 'Publish it again.';
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;

-- The same for events without idempotency keys, in a transaction that is over with them: their numbers and slots, in order. What goes into
-- which slot is known from the call, and need not be read again to be placed.
CREATE FUNCTION tenure.publish_own(
    in_namespace text, in_topic text, hashes bigint[], kinds text[], keys text[], payloads text[], bodies bytea[],
    headers_ text[], tokens bigint[], OUT ids bigint[], OUT slots integer[], OUT n integer, OUT most bigint
) LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    topic_ integer;
    slots_ integer;
    count_ CONSTANT integer := cardinality(kinds);
    units record;
BEGIN
    SELECT t.topic, t.slots, t.n, t.most INTO topic_, slots_, n, most
    FROM tenure.target(in_namespace, in_topic, payloads, bodies) t;
    IF count_ = 0 OR n IS NOT NULL THEN
        RETURN;
    END IF;
    ids := tenure.event_ids(count_);
    slots := ARRAY(SELECT (coalesce(h.hash, h.id) % slots_)::integer FROM unnest(ids, hashes) WITH ORDINALITY AS h (id, hash, n)
                   ORDER BY h.n);
    -- In the order of the index, which is that of reading.
    INSERT INTO tenure.events (batch, id, topic, slot, bytes, leads, leader_token, key, kind, headers, payload, body)
    SELECT publish_own.ids[1], e.id, topic_, e.slot, coalesce(octet_length(e.payload), octet_length(e.body)), false, e.token, e.key,
           e.kind, e.headers::json, e.payload, e.body
    FROM unnest(publish_own.ids, publish_own.slots, kinds, keys, payloads, bodies, headers_, tokens)
         AS e (id, slot, kind, key, payload, body, headers, token)
    ORDER BY e.slot, e.id;
    IF count_ > 1000 THEN
        -- There may be more in a slot than a unit has.
        PERFORM tenure.place(publish_own.ids[1]);
        RETURN;
    END IF;
    SELECT array_agg(topic_) AS topics, array_agg(u.slot) AS slots, array_agg(u.first_id) AS firsts, array_agg(u.last_id) AS lasts,
           array_agg(u.events) AS counts, array_agg(u.bytes) AS sizes
    INTO units
    FROM (SELECT e.slot, min(e.id) AS first_id, max(e.id) AS last_id, count(*) AS events,
                 sum(coalesce(octet_length(e.payload), octet_length(e.body))) AS bytes
          FROM unnest(publish_own.ids, publish_own.slots, payloads, bodies) AS e (id, slot, payload, body)
          GROUP BY e.slot ORDER BY e.slot) u;
    PERFORM tenure.place_units(
        publish_own.ids[1], units.topics, units.slots, units.firsts, units.lasts, units.counts, units.sizes);
END
$$;

-- The same for one event without an idempotency key, in a transaction that is over with it: most are, and it takes a third of the time.
CREATE FUNCTION tenure.publish_one(
    in_namespace text, in_topic text, hash bigint, in_kind text, in_key text, in_payload text, in_body bytea, in_headers text,
    in_token bigint, OUT n integer, OUT id bigint, OUT slot integer, OUT new boolean, OUT most bigint
) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    topic_ integer;
    slots_ integer;
    most_ bigint;
    bytes_ integer;
    known bigint;
    rings boolean;
BEGIN
    SELECT t.id, t.slots, t.max_bytes, nextval('tenure.event_numbers'),
           coalesce(octet_length(in_payload), octet_length(in_body)), 0, true,
           greatest((coalesce((SELECT o.epoch FROM tenure.epoch_stored o), tenure.current_epoch()) - 1) << 40,
                    (SELECT e.batch FROM tenure.events e ORDER BY e.batch DESC LIMIT 1))
    INTO topic_, slots_, most_, id, bytes_, n, new, known
    FROM tenure.topics t WHERE t.namespace = in_namespace AND t.name = in_topic;
    IF topic_ IS NULL THEN
        PERFORM tenure.no_topic(in_namespace, in_topic);
    END IF;
    -- See tenure.event_number: a call of it costs a tenth of all this, and most have a key, and are of their epoch.
    IF hash IS NULL OR id <= known THEN
        id := tenure.event_number(hash IS NULL);
    END IF;
    IF bytes_ > most_ THEN
        most := most_;
        RETURN;
    END IF;
    slot := coalesce(hash, id) % slots_;
    INSERT INTO tenure.events (batch, id, topic, slot, bytes, leads, leader_token, key, kind, headers, payload, body)
    VALUES (id, id, topic_, slot, bytes_, false, in_token, in_key, in_kind, in_headers::json, in_payload, in_body);
    PERFORM FROM tenure.event_slots s WHERE s.topic = topic_ AND s.slot = publish_one.slot FOR UPDATE;
    -- As in tenure.place_batch.
    INSERT INTO tenure.event_units AS u (topic, slot, position, batch, first_id, last_id, at, events, bytes)
    SELECT topic_, publish_one.slot,
           CASE WHEN d.number > d.last AND d.number > publish_one.id AND current_setting('synchronous_commit') <> 'off'
                THEN d.number ELSE tenure.position_for(topic_, publish_one.slot, publish_one.id, d.number) END,
           publish_one.id, publish_one.id, publish_one.id, date_trunc('milliseconds', clock_timestamp()), 1, bytes_
    FROM (SELECT nextval('tenure.event_numbers') AS number, coalesce(
              (SELECT l.position FROM tenure.event_units l WHERE l.topic = topic_ AND l.slot = publish_one.slot
               ORDER BY l.position DESC LIMIT 1),
              (SELECT f.position FROM tenure.event_floors f WHERE f.topic = topic_ AND f.slot = publish_one.slot), 0) AS last) d
    RETURNING (SELECT NOT w.woken FROM tenure.event_waiters w WHERE w.topic = u.topic
               ORDER BY w.n DESC, w.woken DESC LIMIT 1) INTO rings;
    IF rings THEN
        PERFORM tenure.ring_topic(topic_);
    END IF;
END
$$;

-- The trigger runs for whoever publishes, and nobody calls it.
REVOKE ALL ON FUNCTION tenure.place_batch(), tenure.begin_numbers() FROM PUBLIC;
