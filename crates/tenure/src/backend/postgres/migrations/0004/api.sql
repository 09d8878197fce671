-- For any language: events, published in the caller's own transaction.
--
-- publish, publish_bytes, publish_many and publish_in run with the rights of the owner of the tables, so that a role that may call
-- them needs no right on any table, and can write nothing that they have not checked: the numbers, the slot and the offset of an event
-- are drawn here. Their search path is pinned.

-- Refuses an event that makes no sense: see event::check. `place`: which, null if there is only one.
CREATE FUNCTION tenure.check_event(
    place integer, key text, type text, headers jsonb, idempotency_key text, leader_token text
) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    whose CONSTANT text := CASE WHEN place IS NULL THEN 'its' ELSE format('event %s: its', place) END;
    what text;
    word text;
    problem text;
BEGIN
    FOR what, word IN
        SELECT 'key', key WHERE key IS NOT NULL UNION ALL SELECT 'type', type
        UNION ALL SELECT 'idempotency key', idempotency_key WHERE idempotency_key IS NOT NULL
        UNION ALL SELECT 'header name', h.key FROM jsonb_each(headers) h
    LOOP
        problem := CASE
            WHEN word IS NULL THEN 'is null'
            WHEN word = '' AND what <> 'type' THEN 'is empty'
            WHEN octet_length(word) > 512 THEN format('has %s bytes; at most 512 are allowed', octet_length(word))
            WHEN word ~ '[\u0001-\u001f\u007f-\u009f]' THEN 'has a control character' END;
        IF problem IS NOT NULL THEN
            RAISE EXCEPTION '% % % %', whose, what, coalesce(quote_literal(left(word, 40)), ''), problem
                USING ERRCODE = 'TN010',
                      HINT = 'Give it 1 to 512 bytes without control characters, or leave it out. Nothing was published.';
        END IF;
    END LOOP;
    IF (CASE WHEN leader_token ~ '^[0-9]{1,19}$' THEN leader_token::numeric > 9223372036854775807
             ELSE leader_token IS NOT NULL END) THEN
        RAISE EXCEPTION '% leader token % is none', whose, quote_literal(left(leader_token, 40))
            USING ERRCODE = 'TN010', HINT = 'Give a whole number, as TENURE_TOKEN is, or leave it out. Nothing was published.';
    END IF;
    IF headers IS NULL THEN
        RETURN;
    END IF;
    SELECT h.key INTO word FROM jsonb_each(headers) h WHERE jsonb_typeof(h.value) <> 'string' LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '% header % is no text', whose, quote_literal(left(word, 40))
            USING ERRCODE = 'TN010', HINT = 'Give headers as an object of texts. Nothing was published.';
    END IF;
    IF (SELECT count(*) > 64 OR coalesce(sum(octet_length(h.key) + octet_length(h.value)), 0) > 16384
        FROM jsonb_each_text(headers) h) THEN
        RAISE EXCEPTION '% headers are too many or too long; at most 64 with 16384 bytes together are allowed', whose
            USING ERRCODE = 'TN010', HINT = 'Put the data into the payload. Nothing was published.';
    END IF;
END
$$;

-- Refuses a payload that is too long.
CREATE FUNCTION tenure.too_large(place integer, bytes bigint, most bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RAISE EXCEPTION '% payload has % bytes; this topic takes at most %',
        CASE WHEN place IS NULL THEN 'its' ELSE format('event %s: its', place) END, bytes, most
        USING ERRCODE = 'TN010',
              HINT = 'Keep the data elsewhere and give its address, or set the topic''s `max_bytes`. Nothing was published.';
END
$$;

-- An event that has more to it than most, or makes no sense.
CREATE FUNCTION tenure.publish_with_care(
    in_namespace text, in_topic text, payload text, body bytea, key text, type text, headers jsonb, idempotency_key text,
    leader_token bigint
) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    bytes CONSTANT bigint := coalesce(octet_length(payload), octet_length(body));
    done record;
BEGIN
    PERFORM tenure.check_event(NULL, key, type, headers, idempotency_key, leader_token::text);
    IF bytes > 1048576 THEN
        PERFORM tenure.topic_id(in_namespace, in_topic), tenure.too_large(NULL, bytes, 1048576);
    END IF;
    SELECT p.id, p.most INTO done FROM tenure.publish_all(
        in_namespace, in_topic, ARRAY[tenure.key_hash(key)], ARRAY[type], ARRAY[key], ARRAY[payload], ARRAY[body],
        ARRAY[headers::text], CASE WHEN idempotency_key IS NOT NULL THEN ARRAY[idempotency_key] END,
        ARRAY[leader_token], false) p;
    IF done.most IS NOT NULL THEN
        PERFORM tenure.too_large(NULL, bytes, done.most);
    END IF;
    RETURN done.id;
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
    slots_ integer;
    id_ bigint;
    known bigint;
    text_ CONSTANT text := payload;
    batch_ CONSTANT text := current_setting('tenure.batch', true);
BEGIN
    -- What nobody could find fault with is not looked at more closely.
    SELECT t.id, t.slots, CASE WHEN key IS NULL THEN tenure.event_number(true) ELSE nextval('tenure.event_numbers') END,
           greatest((coalesce((SELECT o.epoch FROM tenure.epoch_stored o), tenure.current_epoch()) - 1) << 40,
                    (SELECT e.batch FROM tenure.events e ORDER BY e.batch DESC LIMIT 1))
    INTO topic_, slots_, id_, known FROM tenure.topics t
    WHERE t.namespace = publish.namespace AND t.name = publish.topic AND octet_length(text_) <= t.max_bytes
      AND headers IS NULL AND idempotency_key IS NULL AND key IS DISTINCT FROM ''
      AND octet_length(coalesce(key, '') || type) <= 512 AND coalesce(key, '') || type !~ '[^ -~]'
      AND coalesce(leader_token, 0) >= 0 AND current_setting('session_replication_role') <> 'replica';
    -- The number: as in tenure.publish_one.
    IF topic_ IS NULL OR id_ <= known THEN
        RETURN tenure.publish_with_care(
            publish.namespace, publish.topic, coalesce(payload, 'null')::text, NULL, key, type, headers, idempotency_key,
            leader_token);
    END IF;
    -- The first of a transaction is most often all of it.
    INSERT INTO tenure.events (batch, id, topic, slot, bytes, leads, leader_token, key, kind, payload)
    VALUES (CASE WHEN batch_ <> '' THEN tenure.batch(id_, false)
                 WHEN set_config('tenure.batch', pg_current_xact_id()::text || ':' || id_, true) <> '' THEN id_ END,
            id_, topic_, coalesce(tenure.key_hash(key), id_) % slots_, octet_length(text_), true, leader_token, key, type, text_);
    RETURN id_;
END
$$;

COMMENT ON FUNCTION tenure.publish IS
'Publishes an event to a topic, in the caller''s own transaction: it is there if that commits. Returns the event''s number; with an
idempotency key that is known already, that of the first event with this key.

    SELECT tenure.publish(''orders'', ''{"order": 7, "amount": 99.5}'', key => ''order-7'', type => ''order.paid'');

topic: must be there (`tenure events topics create orders`); another is refused with SQLSTATE TN013. key: events with the same key are
delivered in the order of their commits. type: what happened. headers: an object of texts. idempotency_key: makes publishing again
harmless, for as long as the first event is kept. leader_token: the token under which its publisher leads, for whoever reads it. What one
transaction publishes to one slot is delivered together, in the order of the calls. What makes no sense is refused with SQLSTATE TN010.
No lock is taken before the commit, so a long transaction holds up nobody.';

CREATE FUNCTION tenure.publish_bytes(
    topic text,
    body bytea,
    key text DEFAULT NULL,
    type text DEFAULT '',
    headers jsonb DEFAULT NULL,
    idempotency_key text DEFAULT NULL,
    namespace text DEFAULT 'default',
    leader_token bigint DEFAULT NULL
) RETURNS bigint LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT tenure.publish_with_care(namespace, topic, NULL, coalesce(body, ''), key, type, headers, idempotency_key, leader_token)
$$;

COMMENT ON FUNCTION tenure.publish_bytes IS
'Publishes an event whose payload is bytes rather than JSON. See tenure.publish.';

CREATE FUNCTION tenure.publish_many(topic text, events jsonb, namespace text DEFAULT 'default')
RETURNS TABLE (n integer, id bigint, slot integer, new boolean) LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    given record;
    refused record;
BEGIN
    IF jsonb_typeof(events) IS DISTINCT FROM 'array' THEN
        RAISE EXCEPTION 'the events are no list' USING ERRCODE = 'TN010',
            HINT = 'Give a list of objects with payload, key, type, headers, idempotency_key and leader_token. Nothing was published.';
    ELSIF jsonb_array_length(events) > 10000 THEN
        RAISE EXCEPTION 'there are % events; at most 10000 are published together', jsonb_array_length(events)
            USING ERRCODE = 'TN010', HINT = 'Split them. Nothing was published.';
    END IF;
    SELECT (e.n - 1)::integer AS place, CASE WHEN jsonb_typeof(e.event) <> 'object' THEN 'is no object'
               ELSE format('has a field %s that is not known',
                           (SELECT quote_literal(left(k, 40)) FROM jsonb_object_keys(CASE WHEN jsonb_typeof(e.event) = 'object'
                                THEN e.event ELSE '{}' END) k
                            WHERE k NOT IN ('payload', 'key', 'type', 'headers', 'idempotency_key', 'leader_token') LIMIT 1)) END AS problem
    INTO refused FROM jsonb_array_elements(events) WITH ORDINALITY AS e (event, n)
    WHERE jsonb_typeof(e.event) <> 'object'
       OR NOT e.event - ARRAY['payload', 'key', 'type', 'headers', 'idempotency_key', 'leader_token'] = '{}' ORDER BY e.n LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'event % %', refused.place, refused.problem USING ERRCODE = 'TN010',
            HINT = 'Give a list of objects with payload, key, type, headers, idempotency_key and leader_token. Nothing was published.';
    END IF;
    PERFORM tenure.check_event((e.n - 1)::integer, e.event ->> 'key', coalesce(e.event ->> 'type', ''),
                               nullif(e.event -> 'headers', 'null'), e.event ->> 'idempotency_key', e.event ->> 'leader_token')
    FROM jsonb_array_elements(events) WITH ORDINALITY AS e (event, n);
    SELECT array_agg(tenure.key_hash(e.event ->> 'key') ORDER BY e.n) AS hashes,
           array_agg(coalesce(e.event ->> 'type', '') ORDER BY e.n) AS kinds, array_agg(e.event ->> 'key' ORDER BY e.n) AS keys,
           array_agg(coalesce(e.event -> 'payload', '{}')::text ORDER BY e.n) AS payloads,
           array_agg(nullif(e.event -> 'headers', 'null')::text ORDER BY e.n) AS headers,
           CASE WHEN bool_or(e.event ->> 'idempotency_key' IS NOT NULL)
                THEN array_agg(e.event ->> 'idempotency_key' ORDER BY e.n) END AS idempotency_keys,
           array_agg((e.event ->> 'leader_token')::bigint ORDER BY e.n) AS tokens,
           min(e.n) FILTER (WHERE octet_length((e.event -> 'payload')::text) > 1048576) AS large
    INTO given FROM jsonb_array_elements(events) WITH ORDINALITY AS e (event, n);
    IF given.large IS NOT NULL THEN
        PERFORM tenure.too_large((given.large - 1)::integer, octet_length(given.payloads[given.large]), 1048576);
    END IF;
    FOR n, id, slot, new, given.large IN
        SELECT p.n, p.id, p.slot, p.new, p.most FROM tenure.publish_all(
            publish_many.namespace, publish_many.topic, coalesce(given.hashes, '{}'), coalesce(given.kinds, '{}'), given.keys,
            given.payloads, NULL, given.headers, given.idempotency_keys, given.tokens, false) p
    LOOP
        IF given.large IS NOT NULL THEN
            PERFORM tenure.too_large(n, octet_length(given.payloads[n + 1]), given.large);
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;

COMMENT ON FUNCTION tenure.publish_many IS
'Publishes up to 10,000 events to a topic, all or nothing, in the caller''s own transaction. See tenure.publish.

    SELECT * FROM tenure.publish_many(''orders'', ''[{"key": "order-7", "type": "order.paid", "payload": {"amount": 99.5}}, {"key": "order-8"}]'');

events: a list of objects with payload, key, type, headers, idempotency_key and leader_token, of which each may be missing. One row for
each, in their order: its place, its number, the slot it lies in, and whether it is new.';

-- What the library calls in its user's transaction. As tenure.publish_all without `hashes` and `own`; but whoever calls it is not
-- trusted to have checked anything, and so it is checked here.
CREATE FUNCTION tenure.publish_in(
    namespace text, topic text, kinds text[], keys text[], payloads text[], bodies bytea[], headers text[], idempotency_keys text[],
    tokens bigint[]
) RETURNS TABLE (n integer, id bigint, slot integer, new boolean, most bigint) LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    count_ CONSTANT integer := cardinality(kinds);
    wrong record;
BEGIN
    IF count_ > 10000 OR count_ <> ANY (ARRAY(SELECT coalesce(c, count_) FROM unnest(ARRAY[cardinality(keys), cardinality(payloads),
        cardinality(bodies), cardinality(headers), cardinality(idempotency_keys), cardinality(tokens)]) c)) THEN
        RAISE EXCEPTION 'there are % events, or not as many of each of their parts; at most 10000 are published together', count_
            USING ERRCODE = 'TN010', HINT = 'Split them. Nothing was published.';
    END IF;
    -- Most have nothing to find fault with. A payload that is not JSON fails here, with SQLSTATE 22P02.
    SELECT (e.n - 1)::integer AS place, e.* INTO wrong
    FROM unnest(kinds, keys, payloads, bodies, idempotency_keys, tokens)
         WITH ORDINALITY AS e (kind, key, payload, body, idem, token, n)
    WHERE (e.payload IS NULL) = (e.body IS NULL) OR e.payload::json IS NULL AND e.body IS NULL
       OR coalesce(octet_length(e.payload), octet_length(e.body)) > 1048576
       OR e.kind IS NULL OR e.key = '' OR e.idem = '' OR e.token < 0
       OR greatest(octet_length(e.kind), octet_length(e.key), octet_length(e.idem)) > 512
       OR concat(e.kind, e.key, e.idem) ~ '[\u0001-\u001f\u007f-\u009f]'
    ORDER BY e.n LIMIT 1;
    IF FOUND THEN
        PERFORM tenure.check_event(wrong.place, wrong.key, wrong.kind, NULL, wrong.idem, wrong.token::text);
        IF coalesce(octet_length(wrong.payload), octet_length(wrong.body)) > 1048576 THEN
            PERFORM tenure.too_large(wrong.place, coalesce(octet_length(wrong.payload), octet_length(wrong.body)), 1048576);
        END IF;
        RAISE EXCEPTION 'event %: it must have either a payload or a body', wrong.place USING ERRCODE = 'TN010',
            HINT = 'Nothing was published.';
    END IF;
    IF headers IS NOT NULL THEN
        SELECT (h.n - 1)::integer AS place INTO wrong
        FROM unnest(headers) WITH ORDINALITY AS h (headers, n) CROSS JOIN LATERAL (
            SELECT count(*) > 64 OR coalesce(sum(octet_length(j.key) + octet_length(j.value::text)), 0) > 131072
                   OR bool_or(json_typeof(j.value) <> 'string' OR j.key = '' OR octet_length(j.key) > 512
                              OR j.key ~ '[\u0001-\u001f\u007f-\u009f]') AS wrong
            FROM json_each(h.headers::json) j) j
        WHERE j.wrong ORDER BY h.n LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'event %: its headers are not an object of at most 64 texts', wrong.place USING ERRCODE = 'TN010',
                HINT = 'Give headers as an object of texts. Nothing was published.';
        END IF;
    END IF;
    RETURN QUERY SELECT p.n, p.id, p.slot, p.new, p.most FROM tenure.publish_all(
        publish_in.namespace, publish_in.topic,
        ARRAY(SELECT tenure.key_hash(k.key) FROM unnest(coalesce(keys, array_fill(NULL::text, ARRAY[count_]))) WITH ORDINALITY
              AS k (key, n) ORDER BY k.n),
        kinds, keys, payloads, bodies, headers, idempotency_keys, tokens, false) p ORDER BY p.n;
END
$$;

-- Whoever may call these publishes with the rights of the owner: see roles.sql for who may.
REVOKE ALL ON FUNCTION tenure.publish, tenure.publish_bytes, tenure.publish_many, tenure.publish_in FROM PUBLIC;

CREATE FUNCTION tenure.slot_of(key text, slots integer) RETURNS integer LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT (tenure.key_hash(key) % greatest(slots, 1))::integer
$$;

COMMENT ON FUNCTION tenure.slot_of IS
'The slot of a key in a topic with so many slots: 32-bit FNV-1a over its bytes in UTF-8, both halves folded, modulo the slots. The same in
every store.';
