-- The public SQL functions that publish events.
--
-- publish, publish_bytes, publish_many and publish_in_transaction run with the rights of the owner of the tables, so that a
-- role that may call them needs no right on any table and cannot write anything that they have not validated: the id, the
-- partition and the offset of an event are assigned here. Their search path is pinned.

-- Rejects an invalid event, by the same rules as the library. `index`: null if there is only one event.
CREATE FUNCTION tenure.check_event(
    index integer, key text, type text, headers jsonb, idempotency_key text, leader_token text
) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    prefix_ CONSTANT text := CASE WHEN index IS NULL THEN 'the' ELSE format('event %s: the', index) END;
    field text;
    value text;
    problem text;
BEGIN
    FOR field, value IN
        SELECT 'key', key WHERE key IS NOT NULL UNION ALL SELECT 'type', type
        UNION ALL SELECT 'idempotency key', idempotency_key WHERE idempotency_key IS NOT NULL
        UNION ALL SELECT 'header name', h.key FROM jsonb_each(headers) h
    LOOP
        problem := CASE
            WHEN value IS NULL THEN 'is null'
            WHEN value = '' AND field <> 'type' THEN 'is empty'
            WHEN octet_length(value) > 512 THEN format('has %s bytes; at most 512 are allowed', octet_length(value))
            WHEN value ~ '[\u0001-\u001f\u007f-\u009f]' THEN 'has a control character' END;
        IF problem IS NOT NULL THEN
            RAISE EXCEPTION '% % % %', prefix_, field, coalesce(quote_literal(left(value, 40)), ''), problem
                USING ERRCODE = 'TN010',
                      HINT = 'Use 1 to 512 bytes without control characters, or omit the argument. Nothing was published.';
        END IF;
    END LOOP;
    IF (CASE WHEN leader_token ~ '^[0-9]{1,19}$' THEN leader_token::numeric > 9223372036854775807
             ELSE leader_token IS NOT NULL END) THEN
        RAISE EXCEPTION '% leader token % is not a token', prefix_, quote_literal(left(leader_token, 40))
            USING ERRCODE = 'TN010',
                HINT = 'Pass an integer such as TENURE_TOKEN, or omit the argument. Nothing was published.';
    END IF;
    IF headers IS NULL THEN
        RETURN;
    END IF;
    SELECT h.key INTO value FROM jsonb_each(headers) h WHERE jsonb_typeof(h.value) <> 'string' LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '% header % is not a string', prefix_, quote_literal(left(value, 40))
            USING ERRCODE = 'TN010', HINT = 'Pass headers as an object of strings. Nothing was published.';
    END IF;
    IF (SELECT count(*) > 64 OR coalesce(sum(octet_length(h.key) + octet_length(h.value)), 0) > 16384
        FROM jsonb_each_text(headers) h) THEN
        RAISE EXCEPTION '% headers are too many or too large; at most 64 with 16384 bytes in total are allowed', prefix_
            USING ERRCODE = 'TN010', HINT = 'Put the data into the payload. Nothing was published.';
    END IF;
END
$$;

-- Raises TN010: the payload is too large.
CREATE FUNCTION tenure.raise_payload_too_large(index integer, payload_bytes bigint,
    max_bytes bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RAISE EXCEPTION '% payload has % bytes; this topic allows at most %',
        CASE WHEN index IS NULL THEN 'the' ELSE format('event %s: the', index) END, payload_bytes, max_bytes
        USING ERRCODE = 'TN010',
              HINT = 'Store the data elsewhere and publish its address, or raise the topic''s `max_payload_bytes`. Nothing was published.';
END
$$;

-- Publishes one event after a full validation.
CREATE FUNCTION tenure.publish_checked(
    in_namespace text, in_topic text, payload text, binary_payload bytea, key text, type text, headers jsonb,
        idempotency_key text,
    leader_token bigint
) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    payload_bytes_ CONSTANT bigint := coalesce(octet_length(payload), octet_length(binary_payload));
    published record;
BEGIN
    PERFORM tenure.check_event(NULL, key, type, headers, idempotency_key, leader_token::text);
    IF payload_bytes_ > 1048576 THEN
        PERFORM tenure.require_topic(in_namespace, in_topic), tenure.raise_payload_too_large(NULL, payload_bytes_, 1048576);
    END IF;
    SELECT p.event_id, p.max_bytes INTO published FROM tenure.publish_events(
        in_namespace, in_topic, ARRAY[tenure.key_hash(key)], ARRAY[type], ARRAY[key], ARRAY[payload], ARRAY[binary_payload],
        ARRAY[headers::text], CASE WHEN idempotency_key IS NOT NULL THEN ARRAY[idempotency_key] END,
        ARRAY[leader_token], false) p;
    IF published.max_bytes IS NOT NULL THEN
        PERFORM tenure.raise_payload_too_large(NULL, payload_bytes_, published.max_bytes);
    END IF;
    RETURN published.event_id;
END
$$;

CREATE FUNCTION tenure.publish(
    topic text,
    payload jsonb DEFAULT '{}',
    key text DEFAULT NULL,
    type text DEFAULT '',
    headers jsonb DEFAULT NULL,
    idempotency_key text DEFAULT NULL,
    namespace text DEFAULT 'default',
    leader_token bigint DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    topic_ integer;
    partitions_ integer;
    id_ bigint;
    known bigint;
    text_ CONSTANT text := payload;
    setting_ CONSTANT text := current_setting('tenure.publish_transaction', true);
BEGIN
    -- The usual case skips the full validation.
    SELECT t.id, t.partitions, CASE WHEN key IS NULL THEN tenure.next_event_id(true) ELSE nextval('tenure.event_sequence') END,
           greatest((coalesce((SELECT o.epoch FROM tenure.stored_epoch o), tenure.current_epoch()) - 1) << 40,
                    (SELECT e.transaction_id FROM tenure.events e ORDER BY e.transaction_id DESC LIMIT 1))
    INTO topic_, partitions_, id_, known FROM tenure.topics t
    WHERE t.namespace = publish.namespace AND t.name = publish.topic AND octet_length(text_) <= t.max_payload_bytes
      AND headers IS NULL AND idempotency_key IS NULL AND key IS DISTINCT FROM ''
      AND octet_length(coalesce(key, '') || type) <= 512 AND coalesce(key, '') || type !~ '[^ -~]'
      AND coalesce(leader_token, 0) >= 0 AND current_setting('session_replication_role') <> 'replica';
    -- The id: as in tenure.publish_event.
    IF topic_ IS NULL OR id_ <= known THEN
        RETURN tenure.publish_checked(
            publish.namespace, publish.topic, coalesce(payload, 'null')::text, NULL, key, type, headers, idempotency_key,
            leader_token);
    END IF;
    -- The first event of a transaction is usually the only one.
    INSERT INTO tenure.events (transaction_id, id, topic_id, partition, payload_bytes, assigns_offsets, leader_token, key,
        type, payload)
    VALUES (CASE WHEN setting_ <> '' THEN tenure.publish_transaction_id(id_, false)
                 WHEN set_config('tenure.publish_transaction', pg_current_xact_id()::text || ':' || id_, true) <> ''
                     THEN id_ END,
            id_, topic_, coalesce(tenure.key_hash(key), id_) % partitions_, octet_length(text_), true, leader_token, key, type,
                text_);
    RETURN id_;
END
$$;

COMMENT ON FUNCTION tenure.publish IS
'Publishes an event to a topic in the caller''s transaction. If the transaction commits, the event exists. Returns the id of the event; for
a known idempotency key, the id of the first event with that key.

    SELECT tenure.publish(''orders'', ''{"order": 7, "amount": 99.5}'', key => ''order-7'', type => ''order.paid'');

topic: must exist (`tenure events topics create orders`), otherwise SQLSTATE TN013. key: events with the same key are processed in commit
order. type: what happened. headers: an object of strings. idempotency_key: a second publication with the same key returns the first event,
as long as that is kept. leader_token: token under which the publisher leads, for the readers. Events that one transaction publishes to
one partition are delivered together, in the order of the calls. SQLSTATE TN010 for an invalid argument. The function takes no lock before
the commit, so a long transaction blocks no other publisher.';

CREATE FUNCTION tenure.publish_bytes(
    topic text,
    payload bytea,
    key text DEFAULT NULL,
    type text DEFAULT '',
    headers jsonb DEFAULT NULL,
    idempotency_key text DEFAULT NULL,
    namespace text DEFAULT 'default',
    leader_token bigint DEFAULT NULL
) RETURNS bigint LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT tenure.publish_checked(namespace, topic, NULL, coalesce(payload, ''), key, type, headers, idempotency_key,
        leader_token)
$$;

COMMENT ON FUNCTION tenure.publish_bytes IS
'Publishes an event with a binary payload. See tenure.publish.';

CREATE FUNCTION tenure.publish_many(topic text, events jsonb, namespace text DEFAULT 'default')
RETURNS TABLE (index integer, event_id bigint, partition integer, created boolean) LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    columns_ record;
    rejected record;
BEGIN
    IF jsonb_typeof(events) IS DISTINCT FROM 'array' THEN
        RAISE EXCEPTION 'the events are not a JSON array' USING ERRCODE = 'TN010',
            HINT = 'Pass an array of objects with payload, key, type, headers, idempotency_key and leader_token. Nothing was published.';
    ELSIF jsonb_array_length(events) > 10000 THEN
        RAISE EXCEPTION 'there are % events; at most 10000 are allowed in one call', jsonb_array_length(events)
            USING ERRCODE = 'TN010', HINT = 'Split them into several calls. Nothing was published.';
    END IF;
    SELECT (e.index - 1)::integer AS index, CASE WHEN jsonb_typeof(e.event) <> 'object' THEN 'is not an object'
               ELSE format('has an unknown field %s',
                           (SELECT quote_literal(left(k, 40)) FROM jsonb_object_keys(CASE WHEN jsonb_typeof(e.event) = 'object'
                                THEN e.event ELSE '{}' END) k
                            WHERE k NOT IN ('payload', 'key', 'type', 'headers', 'idempotency_key', 'leader_token')
                                LIMIT 1)) END AS problem
    INTO rejected FROM jsonb_array_elements(events) WITH ORDINALITY AS e (event, index)
    WHERE jsonb_typeof(e.event) <> 'object'
       OR NOT e.event - ARRAY['payload', 'key', 'type', 'headers', 'idempotency_key', 'leader_token'] = '{}'
           ORDER BY e.index LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'event % %', rejected.index, rejected.problem USING ERRCODE = 'TN010',
            HINT = 'Pass an array of objects with payload, key, type, headers, idempotency_key and leader_token. Nothing was published.';
    END IF;
    PERFORM tenure.check_event((e.index - 1)::integer, e.event ->> 'key', coalesce(e.event ->> 'type', ''),
                               nullif(e.event -> 'headers', 'null'), e.event ->> 'idempotency_key', e.event ->> 'leader_token')
    FROM jsonb_array_elements(events) WITH ORDINALITY AS e (event, index);
    SELECT array_agg(tenure.key_hash(e.event ->> 'key') ORDER BY e.index) AS hashes,
           array_agg(coalesce(e.event ->> 'type', '') ORDER BY e.index) AS types,
               array_agg(e.event ->> 'key' ORDER BY e.index) AS keys,
           array_agg(coalesce(e.event -> 'payload', '{}')::text ORDER BY e.index) AS payloads,
           array_agg(nullif(e.event -> 'headers', 'null')::text ORDER BY e.index) AS headers,
           CASE WHEN bool_or(e.event ->> 'idempotency_key' IS NOT NULL)
                THEN array_agg(e.event ->> 'idempotency_key' ORDER BY e.index) END AS idempotency_keys,
           array_agg((e.event ->> 'leader_token')::bigint ORDER BY e.index) AS tokens,
           min(e.index) FILTER (WHERE octet_length((e.event -> 'payload')::text) > 1048576) AS large
    INTO columns_ FROM jsonb_array_elements(events) WITH ORDINALITY AS e (event, index);
    IF columns_.large IS NOT NULL THEN
        PERFORM tenure.raise_payload_too_large((columns_.large - 1)::integer, octet_length(columns_.payloads[columns_.large]),
            1048576);
    END IF;
    FOR index, event_id, partition, created, columns_.large IN
        SELECT p.index, p.event_id, p.partition, p.created, p.max_bytes FROM tenure.publish_events(
            publish_many.namespace, publish_many.topic, coalesce(columns_.hashes, '{}'), coalesce(columns_.types, '{}'),
                columns_.keys,
            columns_.payloads, NULL, columns_.headers, columns_.idempotency_keys, columns_.tokens, false) p
    LOOP
        IF columns_.large IS NOT NULL THEN
            PERFORM tenure.raise_payload_too_large(index, octet_length(columns_.payloads[index + 1]), columns_.large);
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;

COMMENT ON FUNCTION tenure.publish_many IS
'Publishes up to 10,000 events to a topic, all or nothing, in the caller''s transaction. See tenure.publish.

    SELECT * FROM tenure.publish_many(''orders'', ''[{"key": "order-7", "type": "order.paid", "payload": {"amount": 99.5}}, {"key": "order-8"}]'');

events: an array of objects with the optional fields payload, key, type, headers, idempotency_key and leader_token. Returns one row for
each event, in order: its index from 0, its id, its partition, and whether it was created now.';

-- Called by the library in the transaction of its user. As tenure.publish_events without `hashes` and `immediately`, but it
-- validates everything: it does not trust its caller.
CREATE FUNCTION tenure.publish_in_transaction(
    namespace text, topic text, types text[], keys text[], payloads text[], binary_payloads bytea[], headers text[],
        idempotency_keys text[],
    tokens bigint[]
) RETURNS TABLE (index integer, event_id bigint, partition integer, created boolean,
    max_bytes bigint) LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    count_ CONSTANT integer := cardinality(types);
    rejected record;
BEGIN
    IF count_ > 10000 OR count_ <> ANY (ARRAY(SELECT coalesce(c, count_)
        FROM unnest(ARRAY[cardinality(keys), cardinality(payloads),
        cardinality(binary_payloads), cardinality(headers), cardinality(idempotency_keys), cardinality(tokens)]) c)) THEN
        RAISE EXCEPTION 'there are % events, or the arrays differ in length; at most 10000 events are allowed in one call',
            count_
            USING ERRCODE = 'TN010', HINT = 'Split them into several calls. Nothing was published.';
    END IF;
    -- Most events are valid. A payload that is not JSON fails here, with SQLSTATE 22P02.
    SELECT (e.n - 1)::integer AS index, e.* INTO rejected
    FROM unnest(types, keys, payloads, binary_payloads, idempotency_keys, tokens)
         WITH ORDINALITY AS e (type, key, payload, binary_payload, idempotency_key, token, n)
    WHERE (e.payload IS NULL) = (e.binary_payload IS NULL) OR e.payload::json IS NULL AND e.binary_payload IS NULL
       OR coalesce(octet_length(e.payload), octet_length(e.binary_payload)) > 1048576
       OR e.type IS NULL OR e.key = '' OR e.idempotency_key = '' OR e.token < 0
       OR greatest(octet_length(e.type), octet_length(e.key), octet_length(e.idempotency_key)) > 512
       OR concat(e.type, e.key, e.idempotency_key) ~ '[\u0001-\u001f\u007f-\u009f]'
    ORDER BY e.n LIMIT 1;
    IF FOUND THEN
        PERFORM tenure.check_event(rejected.index, rejected.key, rejected.type, NULL, rejected.idempotency_key,
            rejected.token::text);
        IF coalesce(octet_length(rejected.payload), octet_length(rejected.binary_payload)) > 1048576 THEN
            PERFORM tenure.raise_payload_too_large(
                rejected.index, coalesce(octet_length(rejected.payload), octet_length(rejected.binary_payload)), 1048576);
        END IF;
        RAISE EXCEPTION 'event %: pass either a payload or a binary payload', rejected.index USING ERRCODE = 'TN010',
            HINT = 'Nothing was published.';
    END IF;
    IF headers IS NOT NULL THEN
        SELECT (h.index - 1)::integer AS index INTO rejected
        FROM unnest(headers) WITH ORDINALITY AS h (headers, index) CROSS JOIN LATERAL (
            SELECT count(*) > 64 OR coalesce(sum(octet_length(j.key) + octet_length(j.value::text)), 0) > 131072
                   OR bool_or(json_typeof(j.value) <> 'string' OR j.key = '' OR octet_length(j.key) > 512
                              OR j.key ~ '[\u0001-\u001f\u007f-\u009f]') AS rejected
            FROM json_each(h.headers::json) j) j
        WHERE j.rejected ORDER BY h.index LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'event %: the headers are not an object of at most 64 strings',
                rejected.index USING ERRCODE = 'TN010',
                HINT = 'Pass headers as an object of strings. Nothing was published.';
        END IF;
    END IF;
    RETURN QUERY SELECT p.index, p.event_id, p.partition, p.created, p.max_bytes FROM tenure.publish_events(
        publish_in_transaction.namespace, publish_in_transaction.topic,
        ARRAY(SELECT tenure.key_hash(k.key) FROM unnest(coalesce(keys, array_fill(NULL::text, ARRAY[count_]))) WITH ORDINALITY
              AS k (key, index) ORDER BY k.index),
        types, keys, payloads, binary_payloads, headers, idempotency_keys, tokens, false) p ORDER BY p.index;
END
$$;

-- Callers of these functions publish with the rights of the owner; roles.sql grants them.
REVOKE ALL ON FUNCTION tenure.publish, tenure.publish_bytes, tenure.publish_many, tenure.publish_in_transaction FROM PUBLIC;

CREATE FUNCTION tenure.partition_for_key(key text,
    partitions integer) RETURNS integer LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT (tenure.key_hash(key) % greatest(partitions, 1))::integer
$$;

COMMENT ON FUNCTION tenure.partition_for_key IS
'The partition of a key in a topic with this number of partitions: 32-bit FNV-1a over the UTF-8 bytes, both halves folded, modulo the number
of partitions. The same in every store.';
