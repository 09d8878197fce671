-- Publication of events.
--
-- Why readers never skip a committed event. An offset is drawn from a sequence while the transaction holds the lock of the
-- partition's row in topic_partitions, and that lock is released after the commit is visible to all sessions (a row stays
-- locked as long as the locking transaction is in the list of running transactions, from which snapshots are made; a prepared
-- transaction stays in it until COMMIT PREPARED). So the next transaction that gets the lock draws a greater offset, and all
-- smaller offsets of the partition are committed and visible by then, or never will be. Hence a reader that sees offset N of a
-- partition, in any snapshot, sees every smaller offset that will ever exist. A plain sequence does not guarantee that: 5 may
-- be committed after 6, and a reader that has read up to 6 never sees 5.
--
-- A deferred constraint trigger takes the lock at the end of the transaction, so that a long transaction blocks no
-- other publisher. The first row that fires the trigger assigns the offsets of all events of its transaction. It
-- takes the locks in one order, so that transactions do not deadlock.
--
-- `transaction_id` identifies the events of one transaction: it is the id of the first event, N. The
-- transaction-local setting tenure.publish_transaction keeps it as `X:N` if the transaction has one event, and as
-- `X:N+` if it has more. X is the id of the PostgreSQL transaction: a value that the session or another transaction
-- has set is ignored, because the events of that transaction would get offsets again. A rollback to a savepoint
-- restores the setting. When the offsets are assigned, the setting is emptied: a later publication of the transaction
-- (after SET CONSTRAINTS … IMMEDIATE, or in another deferred trigger) starts another transaction_id. Any session can
-- change the setting, so tenure.publish_transaction_id accepts a value only if this transaction has inserted a row
-- with that id. Events of two transactions therefore never share a transaction_id, whatever a client sets.
--
-- SET CONSTRAINTS … IMMEDIATE takes the locks at once and keeps them until the commit. This, a prepared transaction,
-- and a commit that waits for a standby can block other publishers; see tenure.topic_lock_holders_json.

-- The hash of a key, before the modulo by the number of partitions: 32-bit FNV-1a with both halves folded.
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

-- Moves the sequence to the start of this epoch and beyond every known id and offset, if it is behind: in a new epoch, or after
-- it was restored, replicated without its value, or reset. Moves it far enough that no id that other sessions draw meanwhile
-- repeats. Runs with the rights of the owner: a publisher may draw ids and not set them.
CREATE FUNCTION tenure.start_event_sequence() RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    epoch_start CONSTANT bigint := (tenure.current_epoch() - 1) << 40;
    known CONSTANT bigint := greatest(
        (SELECT max(e.end_offset) FROM tenure.topics t, generate_series(0, t.partitions - 1) AS s (partition),
            tenure.partition_offsets(t.id, s.partition) e),
        (SELECT max(e.id) FROM tenure.events e WHERE e.transaction_id = (SELECT max(b.transaction_id) FROM tenure.events b)),
        (SELECT max(o.committed_offset) FROM tenure.committed_offsets o), (SELECT max(a.event_id) FROM tenure.parked_events a));
BEGIN
    IF (SELECT n.last_value FROM tenure.event_sequence n) > greatest(epoch_start, known) THEN
        RETURN;
    END IF;
    LOCK TABLE tenure.topic_partitions IN SHARE UPDATE EXCLUSIVE MODE;
    IF (SELECT n.last_value FROM tenure.event_sequence n) <= greatest(epoch_start, known) THEN
        PERFORM setval('tenure.event_sequence', CASE WHEN known > epoch_start THEN known + 1048576 ELSE epoch_start + 1 END);
    END IF;
END
$$;

-- The next event id. Events and offsets draw from one sequence in turn, so that events that are published one by one would all
-- have odd or even ids, and those without a key would use half of the partitions: with `spread`, a value is skipped at random.
--
-- A promoted standby may not know the last ids that were drawn, and clients may have stored them, as idempotency keys or
-- cursors. So each epoch after the first has ids of its own, as tokens do.
CREATE FUNCTION tenure.next_event_id(spread boolean) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    next_id bigint := nextval('tenure.event_sequence');
BEGIN
    -- Other sessions that drew later ids may have committed already; the sequence is then beyond their ids.
    IF next_id <= (coalesce((SELECT n.epoch FROM tenure.stored_epoch n), tenure.current_epoch()) - 1) << 40
        OR pg_sequence_last_value('tenure.event_sequence') <= (
        SELECT e.transaction_id FROM tenure.events e ORDER BY e.transaction_id DESC LIMIT 1)
    THEN
        PERFORM tenure.start_event_sequence();
        next_id := nextval('tenure.event_sequence');
    END IF;
    IF spread AND random() < 0.5 THEN
        next_id := nextval('tenure.event_sequence');
    END IF;
    RETURN next_id;
END
$$;

-- The offset for a partition whose lock is held: `next_offset`, which was just drawn, if it is beyond the last offset of the
-- partition. Otherwise the sequence was reset and is moved first. No session may read an event that a crash of the server takes
-- back, since its offset would be assigned again: so the commit waits for the disk, whatever synchronous_commit is.
CREATE FUNCTION tenure.next_event_offset(in_topic integer, in_partition integer, in_transaction_id bigint,
    next_offset bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'local', true);
    END IF;
    WHILE next_offset <= greatest(in_transaction_id, coalesce(
        (SELECT u.event_offset FROM tenure.commit_batches u WHERE u.topic_id = in_topic AND u.partition = in_partition
            ORDER BY u.event_offset DESC LIMIT 1),
        (SELECT f.start_offset FROM tenure.partition_start_offsets f
            WHERE f.topic_id = in_topic AND f.partition = in_partition), 0))
    LOOP
        PERFORM tenure.start_event_sequence();
        next_offset := nextval('tenure.event_sequence');
    END LOOP;
    RETURN next_offset;
END
$$;

-- Raises TN013: the topic does not exist.
CREATE FUNCTION tenure.raise_no_such_topic(in_namespace text, in_topic text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RAISE EXCEPTION 'topic % does not exist',
        CASE WHEN in_namespace = 'default' THEN in_topic ELSE concat(in_namespace, '/', in_topic) END
        USING ERRCODE = 'TN013', HINT = format(
            'Create it with `tenure events topics create %s%s` or `PUT /v1/topics/%s`', in_topic,
            CASE WHEN in_namespace = 'default' THEN '' ELSE ' --namespace ' || in_namespace END, in_topic);
END
$$;

-- The id of a topic. Raises TN013 if it does not exist.
CREATE FUNCTION tenure.require_topic(in_namespace text, in_topic text) RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    found_id integer;
BEGIN
    SELECT t.id INTO found_id FROM tenure.topics t WHERE t.namespace = in_namespace AND t.name = in_topic;
    IF found_id IS NULL THEN
        PERFORM tenure.raise_no_such_topic(in_namespace, in_topic);
    END IF;
    RETURN found_id;
END
$$;

-- Whether a consumer waits for a topic and is not notified yet. A transaction with one snapshot does not see later
-- registrations: it checks whether a consumer registered for any topic of the same sequence since one second before the
-- transaction began. (This includes registrations that were committed a moment later.) A consumer that is still missed polls
-- within a second.
CREATE FUNCTION tenure.has_topic_waiter(in_topic integer) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN coalesce((SELECT NOT w.notified FROM tenure.topic_waiters w WHERE w.topic_id = in_topic
                     ORDER BY w.seq DESC, w.notified DESC LIMIT 1), false)
        OR current_setting('transaction_isolation') <> 'read committed'
           AND coalesce(pg_sequence_last_value(format('tenure.topic_wait_times_%s', in_topic % 16)::regclass)
                        >= tenure.to_unix_ms(transaction_timestamp()) - 1000, false);
END
$$;

-- Sends NOTIFY to the consumers of a topic and records that they were notified.
CREATE FUNCTION tenure.notify_topic(in_topic integer) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    last_ record;
BEGIN
    -- A transaction that has sent NOTIFY cannot be prepared. The consumers find its events when they poll.
    IF current_setting('max_prepared_transactions') <> '0' AND current_query() ~* 'prepare\s+transaction' THEN
        RETURN;
    END IF;
    SELECT w.ctid AS at, w.seq, w.notified INTO last_ FROM tenure.topic_waiters w WHERE w.topic_id = in_topic
    ORDER BY w.seq DESC, w.notified DESC LIMIT 1;
    IF last_.notified IS FALSE THEN
        INSERT INTO tenure.topic_waiters (topic_id, seq, notified) VALUES (in_topic, last_.seq, true);
        -- With one snapshot for the whole transaction, a concurrent change of the row would be a serialization error.
        IF current_setting('transaction_isolation') = 'read committed' THEN
            DELETE FROM tenure.topic_waiters WHERE ctid = ANY (ARRAY(
                SELECT w.ctid FROM tenure.topic_waiters w WHERE w.ctid = last_.at AND w.seq = last_.seq AND NOT w.notified
                FOR UPDATE SKIP LOCKED));
        END IF;
    END IF;
    PERFORM pg_catalog.pg_notify('tenure_notify', json_build_object('topic_published',
        json_build_object('namespace', t.namespace, 'name', t.name))::text)
    FROM tenure.topics t WHERE t.id = in_topic;
END
$$;

-- Registers that a consumer waits for a topic, unless this is registered already.
CREATE FUNCTION tenure.register_topic_waiter(in_topic integer) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    last_ record;
BEGIN
    SELECT w.ctid AS at, w.seq, w.notified INTO last_ FROM tenure.topic_waiters w WHERE w.topic_id = in_topic
    ORDER BY w.seq DESC, w.notified DESC LIMIT 1;
    IF last_.notified THEN
        DELETE FROM tenure.topic_waiters WHERE ctid = ANY (ARRAY(
            SELECT w.ctid FROM tenure.topic_waiters w WHERE w.ctid = last_.at AND w.seq = last_.seq AND w.notified
            FOR UPDATE SKIP LOCKED));
    END IF;
    IF last_.notified IS NOT FALSE THEN
        PERFORM setval(format('tenure.topic_wait_times_%s', in_topic % 16)::regclass, tenure.to_unix_ms(clock_timestamp()));
        INSERT INTO tenure.topic_waiters (topic_id, seq, notified) VALUES (in_topic, nextval('tenure.waiter_sequence'), false);
    END IF;
END
$$;

-- Writes the commit batches of a transaction, given as parallel arrays: locks the partitions in the given order, which is
-- ascending, inserts one row for each batch, and notifies consumers.
CREATE FUNCTION tenure.write_commit_batches(
    in_transaction_id bigint, topic_ids integer[], partitions integer[], first_ids bigint[], last_ids bigint[],
        counts bigint[], sizes bigint[]
) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    -- One after the other: in a join, the planner would choose the order of the locks.
    FOR n IN 1..cardinality(topic_ids) LOOP
        PERFORM FROM tenure.topic_partitions s WHERE s.topic_id = topic_ids[n] AND s.partition = partitions[n] FOR UPDATE;
    END LOOP;
    INSERT INTO tenure.commit_batches (topic_id, partition, event_offset, transaction_id, first_event_id, last_event_id,
        published_at, event_count, payload_bytes)
    SELECT u.topic_id, u.partition, tenure.next_event_offset(u.topic_id, u.partition, in_transaction_id,
        nextval('tenure.event_sequence')), in_transaction_id, u.first_event_id, u.last_event_id,
           date_trunc('milliseconds', clock_timestamp()), u.event_count, u.payload_bytes
    FROM unnest(topic_ids, partitions, first_ids, last_ids, counts, sizes) WITH ORDINALITY
         AS u (topic_id, partition, first_event_id, last_event_id, event_count, payload_bytes, n) ORDER BY u.n;
    PERFORM tenure.notify_topic(t.topic_id) FROM (SELECT DISTINCT d.topic_id FROM unnest(topic_ids) AS d (topic_id)) t
    WHERE tenure.has_topic_waiter(t.topic_id);
END
$$;

-- Assigns offsets to all events of a transaction: one commit batch for each partition, or several if it has more than a
-- thousand events. `only_missing`: only for events without a commit batch, at the cost of one look-up for each event.
CREATE FUNCTION tenure.assign_offsets(in_transaction_id bigint,
    only_missing boolean DEFAULT false) RETURNS void LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    batches record;
BEGIN
    SELECT array_agg(u.topic_id) AS topic_ids, array_agg(u.partition) AS partitions, array_agg(u.first_event_id) AS first_ids,
        array_agg(u.last_event_id) AS last_ids,
           array_agg(u.event_count) AS counts, array_agg(u.payload_bytes) AS sizes
    INTO batches
    FROM (SELECT p.topic_id, p.partition, min(p.id) AS first_event_id, max(p.id) AS last_event_id, count(*) AS event_count,
        sum(p.payload_bytes) AS payload_bytes
          FROM (SELECT e.topic_id, e.partition, e.id, e.payload_bytes,
                       (row_number() OVER (PARTITION BY e.topic_id, e.partition ORDER BY e.id) - 1) / 1000 AS chunk
                FROM tenure.events e WHERE e.transaction_id = in_transaction_id AND CASE WHEN only_missing THEN NOT EXISTS (
                    SELECT FROM tenure.commit_batches u
                    WHERE u.topic_id = e.topic_id AND u.partition = e.partition AND u.event_offset > in_transaction_id
                        AND u.transaction_id = in_transaction_id
                      AND e.id BETWEEN u.first_event_id AND u.last_event_id) ELSE true END) p
          GROUP BY p.topic_id, p.partition, p.chunk ORDER BY p.topic_id, p.partition, p.chunk) u;
    PERFORM tenure.write_commit_batches(in_transaction_id, batches.topic_ids, batches.partitions, batches.first_ids,
        batches.last_ids, batches.counts, batches.sizes);
END
$$;

-- The trigger: runs once for each publishing call of a transaction that is about to commit. Events of another transaction_id
-- have their offsets already. Most transactions publish one event, and then each expression counts: PL/pgSQL prepares each one
-- anew in every transaction.
--
-- It runs with the rights of the owner: a publisher has no rights on the tables. Commit batches are made from rows that only
-- functions of this schema insert; the setting decides only which rows of this transaction share a batch.
CREATE FUNCTION tenure.assign_offsets_on_commit() RETURNS trigger LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    setting_ CONSTANT text := current_setting('tenure.publish_transaction', true);
    has_waiter boolean;
BEGIN
    IF setting_ = pg_current_xact_id()::text || ':' || NEW.transaction_id AND NEW.id = NEW.transaction_id THEN
        PERFORM FROM tenure.topic_partitions s WHERE s.topic_id = NEW.topic_id AND s.partition = NEW.partition FOR UPDATE;
        -- This condition is always true. PL/pgSQL evaluates an expression faster than a separate PERFORM.
        IF set_config('tenure.publish_transaction', '', true) = '' THEN
            -- As tenure.next_event_offset, without the call if there is nothing to do.
            INSERT INTO tenure.commit_batches AS u (topic_id, partition, event_offset, transaction_id, first_event_id,
                last_event_id, published_at, event_count, payload_bytes)
            SELECT NEW.topic_id, NEW.partition,
                   CASE WHEN d.next_offset > d.last_offset AND d.next_offset > NEW.transaction_id
                       AND current_setting('synchronous_commit') <> 'off'
                        THEN d.next_offset ELSE tenure.next_event_offset(NEW.topic_id, NEW.partition, NEW.transaction_id,
                            d.next_offset) END,
                   NEW.transaction_id, NEW.id, NEW.id, date_trunc('milliseconds', clock_timestamp()), 1, NEW.payload_bytes
            FROM (SELECT nextval('tenure.event_sequence') AS next_offset, coalesce(
                      (SELECT l.event_offset FROM tenure.commit_batches l
                          WHERE l.topic_id = NEW.topic_id AND l.partition = NEW.partition
                       ORDER BY l.event_offset DESC LIMIT 1),
                      (SELECT f.start_offset FROM tenure.partition_start_offsets f
                          WHERE f.topic_id = NEW.topic_id AND f.partition = NEW.partition), 0) AS last_offset) d
            RETURNING coalesce((SELECT NOT w.notified FROM tenure.topic_waiters w WHERE w.topic_id = u.topic_id
                                ORDER BY w.seq DESC, w.notified DESC LIMIT 1), false)
                   OR current_setting('transaction_isolation') <> 'read committed' INTO has_waiter;
        END IF;
        IF has_waiter THEN
            PERFORM tenure.notify_topic(NEW.topic_id) WHERE tenure.has_topic_waiter(NEW.topic_id);
        END IF;
    ELSIF setting_ = pg_current_xact_id()::text || ':' || NEW.transaction_id || '+' THEN
        PERFORM set_config('tenure.publish_transaction', '', true);
        PERFORM tenure.assign_offsets(NEW.transaction_id);
    ELSIF (SELECT u.transaction_id = NEW.transaction_id AND u.last_event_id >= NEW.id FROM tenure.commit_batches u
           WHERE u.topic_id = NEW.topic_id AND u.partition = NEW.partition ORDER BY u.event_offset DESC LIMIT 1) THEN
        -- An earlier row of this transaction_id has assigned the offsets: this transaction holds the lock of the partition, so
        -- its batch is still the last one.
        RETURN NULL;
    ELSIF NOT EXISTS (
        SELECT FROM tenure.commit_batches u
        WHERE u.topic_id = NEW.topic_id AND u.partition = NEW.partition AND u.event_offset > NEW.transaction_id
            AND u.transaction_id = NEW.transaction_id
          AND NEW.id BETWEEN u.first_event_id AND u.last_event_id)
    THEN
        -- A client has emptied or changed the setting (RESET ALL): assign offsets to the events that have none.
        PERFORM tenure.assign_offsets(NEW.transaction_id, true);
    END IF;
    RETURN NULL;
END
$$;

-- One row of each call fires the trigger.
CREATE CONSTRAINT TRIGGER events_assign_offsets AFTER INSERT ON tenure.events DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW WHEN (NEW.assigns_offsets) EXECUTE FUNCTION tenure.assign_offsets_on_commit();

-- Whether this transaction has inserted rows with this transaction_id that have no commit batch yet. A row that is visible
-- although its transaction is in progress belongs to this transaction; once it has a batch, this transaction holds the lock of
-- the partition, where that batch is the last one.
CREATE FUNCTION tenure.is_own_transaction_id(in_transaction_id bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM tenure.events e WHERE e.transaction_id = in_transaction_id AND CASE WHEN age(e.xmin) <= 0
            THEN pg_xact_status((pg_current_xact_id()::text::bigint - age(e.xmin))::text::xid8) = 'in progress' ELSE false END
          AND in_transaction_id IS DISTINCT FROM (SELECT u.transaction_id FROM tenure.commit_batches u
              WHERE u.topic_id = e.topic_id AND u.partition = e.partition
                                         ORDER BY u.event_offset DESC LIMIT 1));
END
$$;

-- The transaction_id of this transaction; `new_id` if it has none yet. `several`: the transaction has more events than this
-- one.
CREATE FUNCTION tenure.publish_transaction_id(new_id bigint, several boolean) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    prefix_ CONSTANT text := pg_current_xact_id()::text || ':';
    setting_ CONSTANT text := current_setting('tenure.publish_transaction', true);
    stored_id text;
BEGIN
    IF starts_with(setting_, prefix_) THEN
        stored_id := substr(rtrim(setting_, '+'), length(prefix_) + 1);
        IF stored_id ~ '^[0-9]{1,18}$' THEN
            -- A client can change the setting, so check the table.
            IF tenure.is_own_transaction_id(stored_id::bigint) THEN
                PERFORM set_config('tenure.publish_transaction', prefix_ || stored_id || '+', true);
                RETURN stored_id::bigint;
            END IF;
        END IF;
    END IF;
    PERFORM set_config('tenure.publish_transaction', prefix_ || new_id || CASE WHEN several THEN '+' ELSE '' END, true);
    RETURN new_id;
END
$$;

-- The topic of a publication; or the index of the first event that is too large, and the maximum size.
CREATE FUNCTION tenure.resolve_topic(
    in_namespace text, in_topic text, payloads text[], binary_payloads bytea[], OUT topic_id integer, OUT partitions integer,
        OUT index integer,
    OUT max_bytes bigint
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    max_bytes_ bigint;
BEGIN
    SELECT t.id, t.partitions, t.max_payload_bytes INTO topic_id, partitions, max_bytes_
    FROM tenure.topics t WHERE t.namespace = in_namespace AND t.name = in_topic;
    IF topic_id IS NULL THEN
        PERFORM tenure.raise_no_such_topic(in_namespace, in_topic);
    END IF;
    -- The library never sends a larger payload.
    IF max_bytes_ < 1048576 THEN
        SELECT (p.index - 1)::integer, max_bytes_ INTO index, max_bytes
        FROM unnest(payloads, binary_payloads) WITH ORDINALITY AS p (payload, binary_payload, index)
        WHERE coalesce(octet_length(p.payload), octet_length(p.binary_payload)) > max_bytes_ ORDER BY p.index LIMIT 1;
    END IF;
END
$$;

-- Ids for `count_` events, in ascending order.
CREATE FUNCTION tenure.reserve_event_ids(count_ integer) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN ARRAY(SELECT tenure.next_event_id(true) FROM generate_series(1, 1)
                 UNION ALL SELECT nextval('tenure.event_sequence') FROM generate_series(2, count_));
END
$$;

-- Publishes all events or none, in this transaction. Validates only the topic and the size of payloads.
--   * The arrays have one element for each event: hash of the key (null: no key), type, key, payload or binary
--     payload, headers, idempotency key, token of the leader. An array with only nulls may be null.
--   * `immediately`: the transaction publishes nothing else, so lock the partitions at once, without the trigger.
-- Returns one row for each event in order; or only `index` and `max_bytes` if the event at `index` is too large.
CREATE FUNCTION tenure.publish_events(
    in_namespace text, in_topic text, hashes bigint[], types text[], keys text[], payloads text[], binary_payloads bytea[],
    headers_ text[], idempotency_keys text[], tokens bigint[], immediately boolean
) RETURNS TABLE (index integer, event_id bigint, partition integer, created boolean, max_bytes bigint) LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    topic_ integer;
    partitions_ integer;
    count_ CONSTANT integer := cardinality(types);
    ids bigint[];
    inserted_ids bigint[];
    transaction_id_ bigint;
BEGIN
    SELECT t.topic_id, t.partitions, t.index, t.max_bytes INTO topic_, partitions_, index, max_bytes
    FROM tenure.resolve_topic(in_namespace, in_topic, payloads, binary_payloads) t;
    IF count_ = 0 THEN
        RETURN;
    END IF;
    IF NOT immediately AND current_setting('session_replication_role') = 'replica' THEN
        RAISE EXCEPTION 'session_replication_role is replica: published events would never get an offset' USING ERRCODE = 'TN016',
            HINT = 'Triggers do not fire in this mode. Set session_replication_role to origin. Nothing was published.';
    END IF;
    IF index IS NOT NULL THEN
        RETURN NEXT;
        RETURN;
    END IF;
    -- Ids are in the order of the call, whatever the order in which rows are inserted.
    ids := tenure.reserve_event_ids(count_);
    transaction_id_ := CASE WHEN immediately THEN ids[1] ELSE tenure.publish_transaction_id(ids[1], count_ > 1) END;
    IF idempotency_keys IS NULL THEN
        INSERT INTO tenure.events AS v (transaction_id, id, topic_id, partition, payload_bytes, assigns_offsets, leader_token,
            key, type, headers, payload,
        binary_payload)
        SELECT transaction_id_, e.id, topic_, (coalesce(e.hash, e.id) % partitions_)::integer,
               coalesce(octet_length(e.payload), octet_length(e.binary_payload)), NOT immediately AND e.index = 1, e.token,
                   e.key, e.type,
               e.headers::json, e.payload, e.binary_payload
        FROM unnest(ids, hashes, types, keys, payloads, binary_payloads, headers_, tokens)
             WITH ORDINALITY AS e (id, hash, type, key, payload, binary_payload, headers, token, index);
    ELSE
        -- Every row may fire the trigger: which events exist already is not known yet. In the order of the idempotency keys, so
        -- that two calls with the same keys lock them in the same order.
        WITH inserted AS (
            INSERT INTO tenure.events AS v (
                transaction_id, id, topic_id, partition, payload_bytes, assigns_offsets, leader_token, key, type,
                    idempotency_key, headers, payload, binary_payload)
            SELECT transaction_id_, e.id, topic_, (coalesce(e.hash, e.id) % partitions_)::integer,
                   coalesce(octet_length(e.payload), octet_length(e.binary_payload)), NOT immediately, e.token, e.key, e.type,
                       e.idempotency_key,
                   e.headers::json, e.payload, e.binary_payload
            FROM unnest(ids, hashes, types, keys, payloads, binary_payloads, headers_, tokens, idempotency_keys)
                 AS e (id, hash, type, key, payload, binary_payload, headers, token, idempotency_key)
            ORDER BY e.idempotency_key, e.id
            ON CONFLICT (topic_id, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
            RETURNING v.id
        )
        SELECT coalesce(array_agg(i.id), '{}') INTO inserted_ids FROM inserted i;
    END IF;
    IF immediately AND inserted_ids IS DISTINCT FROM '{}' THEN
        PERFORM tenure.assign_offsets(transaction_id_);
    END IF;
    IF inserted_ids IS NULL THEN
        RETURN QUERY SELECT (e.index - 1)::integer, e.id, (coalesce(e.hash, e.id) % partitions_)::integer, true, NULL::bigint
                     FROM unnest(ids, hashes) WITH ORDINALITY AS e (id, hash, index);
        RETURN;
    END IF;
    -- A new statement, which sees the events that other transactions published meanwhile.
    FOR index, event_id, partition, created IN
        SELECT (e.index - 1)::integer, coalesce(m.id, k.id), coalesce(k.partition,
            (coalesce(e.hash, e.id) % partitions_)::integer),
               m.id IS NOT NULL
        FROM unnest(ids, hashes, idempotency_keys) WITH ORDINALITY AS e (id, hash, idempotency_key, index)
        LEFT JOIN unnest(inserted_ids) AS m (id) ON m.id = e.id
        LEFT JOIN tenure.events k ON m.id IS NULL AND k.topic_id = topic_ AND k.idempotency_key = e.idempotency_key
                                 AND k.idempotency_key IS NOT NULL
        ORDER BY e.index
    LOOP
        IF event_id IS NULL THEN
            RAISE EXCEPTION 'an event with the same idempotency key in topic % is being pruned or published; retry', in_topic
                USING ERRCODE = '40001', HINT = 'Publish the event again.';
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;

-- As tenure.publish_events for events without idempotency keys, in a transaction that publishes nothing else. Returns ids and
-- partitions in order. The commit batches are computed from the arguments, without reading the events again.
CREATE FUNCTION tenure.publish_events_immediately(
    in_namespace text, in_topic text, hashes bigint[], types text[], keys text[], payloads text[], binary_payloads bytea[],
    headers_ text[], tokens bigint[], OUT event_ids bigint[], OUT partitions integer[], OUT index integer, OUT max_bytes bigint
) LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    topic_ integer;
    partitions_ integer;
    count_ CONSTANT integer := cardinality(types);
    batches record;
BEGIN
    SELECT t.topic_id, t.partitions, t.index, t.max_bytes INTO topic_, partitions_, index, max_bytes
    FROM tenure.resolve_topic(in_namespace, in_topic, payloads, binary_payloads) t;
    IF count_ = 0 OR index IS NOT NULL THEN
        RETURN;
    END IF;
    event_ids := tenure.reserve_event_ids(count_);
    partitions := ARRAY(SELECT (coalesce(h.hash, h.id) % partitions_)::integer
        FROM unnest(event_ids, hashes) WITH ORDINALITY AS h (id, hash, index)
                   ORDER BY h.index);
    -- In the order of the primary key, which is also the order of reading.
    INSERT INTO tenure.events (transaction_id, id, topic_id, partition, payload_bytes, assigns_offsets, leader_token, key,
        type, headers, payload,
        binary_payload)
    SELECT publish_events_immediately.event_ids[1], e.id, topic_, e.partition,
        coalesce(octet_length(e.payload), octet_length(e.binary_payload)), false, e.token, e.key,
           e.type, e.headers::json, e.payload, e.binary_payload
    FROM unnest(publish_events_immediately.event_ids, publish_events_immediately.partitions, types, keys, payloads,
        binary_payloads, headers_, tokens)
         AS e (id, partition, type, key, payload, binary_payload, headers, token)
    ORDER BY e.partition, e.id;
    IF count_ > 1000 THEN
        -- A partition may need more than one commit batch.
        PERFORM tenure.assign_offsets(publish_events_immediately.event_ids[1]);
        RETURN;
    END IF;
    SELECT array_agg(topic_) AS topic_ids, array_agg(u.partition) AS partitions, array_agg(u.first_event_id) AS first_ids,
        array_agg(u.last_event_id) AS last_ids,
           array_agg(u.event_count) AS counts, array_agg(u.payload_bytes) AS sizes
    INTO batches
    FROM (SELECT e.partition, min(e.id) AS first_event_id, max(e.id) AS last_event_id, count(*) AS event_count,
                 sum(coalesce(octet_length(e.payload), octet_length(e.binary_payload))) AS payload_bytes
          FROM unnest(publish_events_immediately.event_ids, publish_events_immediately.partitions, payloads,
              binary_payloads) AS e (id, partition, payload, binary_payload)
          GROUP BY e.partition ORDER BY e.partition) u;
    PERFORM tenure.write_commit_batches(
        publish_events_immediately.event_ids[1], batches.topic_ids, batches.partitions, batches.first_ids, batches.last_ids,
            batches.counts, batches.sizes);
END
$$;

-- As tenure.publish_events for one event without an idempotency key, in a transaction that publishes nothing else: the usual
-- case, in a third of the time.
CREATE FUNCTION tenure.publish_event(
    in_namespace text, in_topic text, hash bigint, in_type text, in_key text, in_payload text, in_binary_payload bytea,
        in_headers text,
    in_token bigint, OUT index integer, OUT event_id bigint, OUT partition integer, OUT created boolean, OUT max_bytes bigint
) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    topic_ integer;
    partitions_ integer;
    max_bytes_ bigint;
    payload_bytes_ integer;
    known bigint;
    has_waiter boolean;
BEGIN
    SELECT t.id, t.partitions, t.max_payload_bytes, nextval('tenure.event_sequence'),
           coalesce(octet_length(in_payload), octet_length(in_binary_payload)), 0, true,
           greatest((coalesce((SELECT o.epoch FROM tenure.stored_epoch o), tenure.current_epoch()) - 1) << 40,
                    (SELECT e.transaction_id FROM tenure.events e ORDER BY e.transaction_id DESC LIMIT 1))
    INTO topic_, partitions_, max_bytes_, event_id, payload_bytes_, index, created, known
    FROM tenure.topics t WHERE t.namespace = in_namespace AND t.name = in_topic;
    IF topic_ IS NULL THEN
        PERFORM tenure.raise_no_such_topic(in_namespace, in_topic);
    END IF;
    -- See tenure.next_event_id: a call of it costs a tenth of this function, and most events have a key and are of this epoch.
    IF hash IS NULL OR event_id <= known THEN
        event_id := tenure.next_event_id(hash IS NULL);
    END IF;
    IF payload_bytes_ > max_bytes_ THEN
        max_bytes := max_bytes_;
        RETURN;
    END IF;
    partition := coalesce(hash, event_id) % partitions_;
    INSERT INTO tenure.events (transaction_id, id, topic_id, partition, payload_bytes, assigns_offsets, leader_token, key,
        type, headers, payload,
        binary_payload)
    VALUES (event_id, event_id, topic_, partition, payload_bytes_, false, in_token, in_key, in_type, in_headers::json,
        in_payload, in_binary_payload);
    PERFORM FROM tenure.topic_partitions s WHERE s.topic_id = topic_ AND s.partition = publish_event.partition FOR UPDATE;
    -- As in tenure.assign_offsets_on_commit.
    INSERT INTO tenure.commit_batches AS u (topic_id, partition, event_offset, transaction_id, first_event_id, last_event_id,
        published_at, event_count, payload_bytes)
    SELECT topic_, publish_event.partition,
           CASE WHEN d.next_offset > d.last_offset AND d.next_offset > publish_event.event_id
               AND current_setting('synchronous_commit') <> 'off'
                THEN d.next_offset ELSE tenure.next_event_offset(topic_, publish_event.partition, publish_event.event_id,
                    d.next_offset) END,
           publish_event.event_id, publish_event.event_id, publish_event.event_id,
               date_trunc('milliseconds', clock_timestamp()), 1, payload_bytes_
    FROM (SELECT nextval('tenure.event_sequence') AS next_offset, coalesce(
              (SELECT l.event_offset FROM tenure.commit_batches l
                  WHERE l.topic_id = topic_ AND l.partition = publish_event.partition
               ORDER BY l.event_offset DESC LIMIT 1),
              (SELECT f.start_offset FROM tenure.partition_start_offsets f
                  WHERE f.topic_id = topic_ AND f.partition = publish_event.partition), 0) AS last_offset) d
    RETURNING (SELECT NOT w.notified FROM tenure.topic_waiters w WHERE w.topic_id = u.topic_id
               ORDER BY w.seq DESC, w.notified DESC LIMIT 1) INTO has_waiter;
    IF has_waiter THEN
        PERFORM tenure.notify_topic(topic_);
    END IF;
END
$$;

-- Publishers fire the trigger; no role calls these functions.
REVOKE ALL ON FUNCTION tenure.assign_offsets_on_commit(), tenure.start_event_sequence() FROM PUBLIC;
