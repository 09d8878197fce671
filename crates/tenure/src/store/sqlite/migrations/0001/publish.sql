-- The public view for publishing from any language, in the transaction of the caller:
--
--     INSERT INTO tenure_publish (topic, key, type, payload) VALUES ('orders', 'order-1', 'order.paid', '{"total":9}');
--
-- Only `topic` is required. A payload of type TEXT is JSON; a BLOB is bytes. headers is a JSON object of strings. If the topic has an
-- event with the same idempotency_key, the insert does nothing. A trigger cannot notify waiters, so consumers find the event when
-- they poll. The trigger uses no feature newer than SQLite 3.38, because the caller may use such an old version. RAISE takes only
-- literal messages there.
CREATE VIEW tenure_publish AS
SELECT t.namespace, t.name AS topic, e.key, e.type, e.payload, e.headers, e.idempotency_key, e.leader_token, e.id, e.partition,
       e.event_offset, e.published_at_ms
FROM tenure_events e JOIN tenure_topics t ON t.id = e.topic_id;

CREATE TRIGGER tenure_publish_insert INSTEAD OF INSERT ON tenure_publish
BEGIN
    -- The same checks as for an event from Rust. The first group finds invalid JSON, because the second group reads the JSON.
    SELECT CASE
        WHEN NEW.topic IS NULL
            THEN RAISE(ABORT, 'tenure: the topic is missing; name one: INSERT INTO tenure_publish (topic, type, payload) VALUES (''orders'', ''order.paid'', ''{}'')')
        WHEN NOT EXISTS (SELECT 1 FROM tenure_topics t WHERE t.namespace = coalesce(NEW.namespace, 'default') AND t.name = NEW.topic)
            THEN RAISE(ABORT, 'tenure: the topic does not exist in this namespace; create it first: tenure events topics create NAME, or PUT /v1/topics/NAME')
        WHEN typeof(NEW.payload) NOT IN ('null', 'text', 'blob') OR (typeof(NEW.payload) = 'text' AND json_valid(NEW.payload) = 0)
            THEN RAISE(ABORT, 'tenure: the payload is not valid JSON text; use ''{"total":9}'', json_object(''total'', 9) or a BLOB')
        WHEN length(CAST(NEW.payload AS BLOB)) > (SELECT t.max_payload_bytes FROM tenure_topics t
                                                  WHERE t.namespace = coalesce(NEW.namespace, 'default') AND t.name = NEW.topic)
            THEN RAISE(ABORT, 'tenure: the payload has more bytes than the topic allows; store it elsewhere and publish a reference')
        WHEN typeof(NEW.headers) NOT IN ('null', 'text') OR json_valid(coalesce(NEW.headers, '{}')) = 0
            THEN RAISE(ABORT, 'tenure: headers must be a JSON object of strings, for example ''{"trace":"7f3a"}''')
    END;
    SELECT CASE
        WHEN json_type(coalesce(NEW.headers, '{}')) <> 'object'
                OR EXISTS (SELECT 1 FROM json_each(coalesce(NEW.headers, '{}')) h WHERE h.type <> 'text')
            THEN RAISE(ABORT, 'tenure: headers must be a JSON object of strings, for example ''{"trace":"7f3a"}''')
        WHEN (SELECT count(*) FROM json_each(coalesce(NEW.headers, '{}'))) > 64
                OR (SELECT sum(length(CAST(h.key AS BLOB)) + length(CAST(h.value AS BLOB))) FROM json_each(coalesce(NEW.headers, '{}')) h) > 16384
                OR EXISTS (SELECT 1 FROM json_each(coalesce(NEW.headers, '{}')) h
                           WHERE length(CAST(h.key AS BLOB)) NOT BETWEEN 1 AND 512 OR h.key GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*' OR h.value GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*')
            THEN RAISE(ABORT, 'tenure: an event can have at most 64 headers of 16384 bytes in total; each name must have 1 to 512 bytes, and no header may contain control characters')
        WHEN NEW.type IS NOT NULL AND (typeof(NEW.type) <> 'text' OR length(CAST(NEW.type AS BLOB)) > 512
                OR NEW.type GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*')
            THEN RAISE(ABORT, 'tenure: the type must be a string of at most 512 bytes without control characters')
        WHEN NEW.key IS NOT NULL AND (typeof(NEW.key) <> 'text' OR length(CAST(NEW.key AS BLOB)) NOT BETWEEN 1 AND 512
                OR NEW.key GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*')
            THEN RAISE(ABORT, 'tenure: the key must be a string of 1 to 512 bytes without control characters; omit it, or use CAST(... AS TEXT)')
        WHEN NEW.idempotency_key IS NOT NULL AND (typeof(NEW.idempotency_key) <> 'text'
                OR length(CAST(NEW.idempotency_key AS BLOB)) NOT BETWEEN 1 AND 512 OR NEW.idempotency_key GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*')
            THEN RAISE(ABORT, 'tenure: the idempotency_key must be a string of 1 to 512 bytes without control characters; omit it, or use CAST(... AS TEXT)')
        WHEN NEW.leader_token IS NOT NULL AND (typeof(NEW.leader_token) <> 'integer' OR NEW.leader_token < 0)
            THEN RAISE(ABORT, 'tenure: leader_token must be a non-negative integer, such as the value of TENURE_TOKEN')
    END;

    -- The new id is the last id plus one. An INSERT of several rows updates sqlite_sequence only at its end, so the trigger also
    -- reads the last row. The partition is that of partition_for_key: 32-bit FNV-1a over the bytes of the key, with both
    -- halves folded. SQLite has no exclusive-or operator; a + b - 2 * (a & b) computes it.
    INSERT INTO tenure_events
        (id, topic_id, partition, event_offset, payload_bytes, published_at_ms, leader_token, key, idempotency_key, type, headers,
         payload)
    SELECT n.id, n.topic_id,
           CASE WHEN NEW.key IS NULL THEN n.id % n.partitions
                ELSE (WITH RECURSIVE fnv (hash, byte, rest) AS (
                          SELECT 2166136261, instr('123456789ABCDEF', substr(hex(NEW.key), 1, 1)) * 16
                                             + instr('123456789ABCDEF', substr(hex(NEW.key), 2, 1)), hex(NEW.key)
                          UNION ALL
                          SELECT ((hash + byte - 2 * (hash & byte)) * 16777619) & 4294967295,
                                 instr('123456789ABCDEF', substr(rest, 3, 1)) * 16 + instr('123456789ABCDEF', substr(rest, 4, 1)),
                                 substr(rest, 3)
                          FROM fnv WHERE rest <> '')
                      SELECT (hash + (hash >> 16) - 2 * (hash & (hash >> 16))) % n.partitions FROM fnv WHERE rest = '') END,
           n.id,
           length(CAST(coalesce(NEW.payload, '{}') AS BLOB)),
           CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER),
           NEW.leader_token, NEW.key, NEW.idempotency_key, coalesce(NEW.type, ''), coalesce(NEW.headers, '{}'), coalesce(NEW.payload, '{}')
    FROM (SELECT max(coalesce((SELECT max(id) FROM tenure_events), 0),
                     coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'tenure_events'), 0)) + 1 AS id,
                 t.id AS topic_id, t.partitions
          FROM tenure_topics t WHERE t.namespace = coalesce(NEW.namespace, 'default') AND t.name = NEW.topic) n
    WHERE NEW.idempotency_key IS NULL
       OR NOT EXISTS (SELECT 1 FROM tenure_events e WHERE e.topic_id = n.topic_id AND e.idempotency_key = NEW.idempotency_key);

    UPDATE tenure_topics SET event_count = event_count + changes()
    WHERE namespace = coalesce(NEW.namespace, 'default') AND name = NEW.topic;
END;
