-- Topics and their events, and the groups that read them.
--
-- As before: columns that end in _at are milliseconds since 1970 by the writer's wall clock.

CREATE TABLE tenure_topics (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace      TEXT    NOT NULL,
    name           TEXT    NOT NULL,
    -- Never changed: another number would move keys to other slots, past what is in them.
    slots          INTEGER NOT NULL CHECK (slots > 0),
    keep_ms        INTEGER NOT NULL,
    keep_unread_ms INTEGER,
    max_bytes      INTEGER NOT NULL,
    -- How many it has.
    events         INTEGER NOT NULL DEFAULT 0,
    created_at     INTEGER NOT NULL,
    UNIQUE (namespace, name)
) STRICT;

-- AUTOINCREMENT: a number is never given twice, even after the last event was forgotten. SQLite has one writer at a time, so the
-- order of numbers is the order of commits, and `position`, the number of the first event that was published together with it in
-- its slot, grows with every commit. The payload is TEXT if it is JSON, and a BLOB if it is bytes.
CREATE TABLE tenure_events (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    topic           INTEGER NOT NULL,
    slot            INTEGER NOT NULL,
    position        INTEGER NOT NULL,
    -- Of the payload.
    bytes           INTEGER NOT NULL,
    published_at    INTEGER NOT NULL,
    leader_token    INTEGER,
    key             TEXT,
    idempotency_key TEXT,
    kind            TEXT    NOT NULL,
    headers         TEXT    NOT NULL,
    payload         ANY     NOT NULL
) STRICT;
-- The order of reading. With it alone it is known what a reader would get, how much of it, and how old it is.
CREATE INDEX tenure_events_slot ON tenure_events (topic, slot, position, id, bytes, published_at);
CREATE UNIQUE INDEX tenure_events_idempotency ON tenure_events (topic, idempotency_key) WHERE idempotency_key IS NOT NULL;

-- Up to where a slot's events were forgotten. No row: none was.
CREATE TABLE tenure_event_floors (
    topic    INTEGER NOT NULL,
    slot     INTEGER NOT NULL,
    position INTEGER NOT NULL,
    PRIMARY KEY (topic, slot)
) STRICT, WITHOUT ROWID;

CREATE TABLE tenure_groups (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    topic            INTEGER NOT NULL,
    name             TEXT    NOT NULL,
    max_attempts     INTEGER NOT NULL,
    backoff_first_ms INTEGER NOT NULL,
    backoff_most_ms  INTEGER NOT NULL,
    paused_by        TEXT,
    paused_reason    TEXT,
    paused_at        INTEGER,
    -- Since when it has had members, without a break.
    gathered_at      INTEGER,
    -- How many slots went from one name to another, ever.
    moves            INTEGER NOT NULL DEFAULT 0,
    push_url         TEXT,
    push_secret      TEXT,
    push_timeout_ms  INTEGER,
    created_at       INTEGER NOT NULL,
    UNIQUE (topic, name)
) STRICT;

-- `session` has it, if it lives; `last` is the name of who has or had it. Everything up to `position` is read.
CREATE TABLE tenure_shares (
    of_group INTEGER NOT NULL,
    slot     INTEGER NOT NULL,
    token    INTEGER NOT NULL DEFAULT 0,
    session  TEXT,
    last     TEXT    NOT NULL DEFAULT '',
    position INTEGER NOT NULL,
    PRIMARY KEY (of_group, slot)
) STRICT, WITHOUT ROWID;

CREATE TABLE tenure_members (
    of_group  INTEGER NOT NULL,
    session   TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    joined_at INTEGER NOT NULL,
    PRIMARY KEY (of_group, session)
) STRICT, WITHOUT ROWID;

-- Events after a share's position that are done already.
CREATE TABLE tenure_event_done (
    of_group INTEGER NOT NULL,
    slot     INTEGER NOT NULL,
    position INTEGER NOT NULL,
    event    INTEGER NOT NULL,
    PRIMARY KEY (of_group, slot, position, event)
) STRICT, WITHOUT ROWID;

-- Events that a group has set aside, each a copy: retention does not matter. Within a slot the order of numbers is the order of
-- positions. The first of a key is tried when it is due (null: at once); the others wait behind it.
CREATE TABLE tenure_event_asides (
    of_group     INTEGER NOT NULL,
    event        INTEGER NOT NULL,
    slot         INTEGER NOT NULL,
    position     INTEGER NOT NULL,
    dead         INTEGER NOT NULL CHECK (dead IN (0, 1)),
    attempts     INTEGER NOT NULL,
    due_at       INTEGER,
    failed_at    INTEGER NOT NULL,
    error        TEXT    NOT NULL,
    published_at INTEGER NOT NULL,
    leader_token INTEGER,
    key          TEXT,
    kind         TEXT    NOT NULL,
    headers      TEXT    NOT NULL,
    payload      ANY     NOT NULL,
    PRIMARY KEY (of_group, event)
) STRICT;
CREATE INDEX tenure_event_asides_key  ON tenure_event_asides (of_group, slot, key, event);
CREATE INDEX tenure_event_asides_dead ON tenure_event_asides (of_group, event) WHERE dead = 1;

-- Who sleeps until a topic has events. By name: the topic need not be there yet.
CREATE TABLE tenure_event_dozers (
    namespace TEXT    NOT NULL,
    topic     TEXT    NOT NULL,
    session   TEXT    NOT NULL,
    dozed_at  INTEGER NOT NULL,
    PRIMARY KEY (namespace, topic, session)
) STRICT, WITHOUT ROWID;

-- Publishing from any language, in the caller's own transaction:
--
--     INSERT INTO tenure_publish (topic, key, type, payload) VALUES ('orders', 'order-1', 'order.paid', '{"total":9}');
--
-- `topic` is needed; every other column may be left out. A payload that is text is JSON; a blob is bytes. headers is a JSON object
-- of texts. Under an `idempotency_key` that the topic remembers, nothing is inserted. A trigger can not ring for who sleeps:
-- readers find the event by polling, in a moment. It uses nothing that SQLite 3.38 does not know, for the caller's may be that
-- old; so its messages are literal.
CREATE VIEW tenure_publish AS
SELECT t.namespace, t.name AS topic, e.key, e.kind AS type, e.payload, e.headers, e.idempotency_key, e.leader_token, e.id, e.slot,
       e.position, e.published_at AS at_ms
FROM tenure_events e JOIN tenure_topics t ON t.id = e.topic;

CREATE TRIGGER tenure_publish_insert INSTEAD OF INSERT ON tenure_publish
BEGIN
    -- What event::check refuses of an event from Rust. First what is no JSON: the rest looks into it.
    SELECT CASE
        WHEN NEW.topic IS NULL
            THEN RAISE(ABORT, 'tenure: name a topic: INSERT INTO tenure_publish (topic, type, payload) VALUES (''orders'', ''order.paid'', ''{}'')')
        WHEN NOT EXISTS (SELECT 1 FROM tenure_topics t WHERE t.namespace = coalesce(NEW.namespace, 'default') AND t.name = NEW.topic)
            THEN RAISE(ABORT, 'tenure: there is no such topic in this namespace; make it first: tenure events topics create NAME, or PUT /v1/topics/NAME')
        WHEN typeof(NEW.payload) NOT IN ('null', 'text', 'blob') OR (typeof(NEW.payload) = 'text' AND json_valid(NEW.payload) = 0)
            THEN RAISE(ABORT, 'tenure: the payload is not JSON text; quote it as JSON, as in ''{"total":9}'' or json_object(''total'', 9), or give a blob')
        WHEN length(CAST(NEW.payload AS BLOB)) > (SELECT t.max_bytes FROM tenure_topics t
                                                  WHERE t.namespace = coalesce(NEW.namespace, 'default') AND t.name = NEW.topic)
            THEN RAISE(ABORT, 'tenure: the payload has more bytes than the topic allows; keep it elsewhere, and publish where it is')
        WHEN typeof(NEW.headers) NOT IN ('null', 'text') OR json_valid(coalesce(NEW.headers, '{}')) = 0
            THEN RAISE(ABORT, 'tenure: headers is a JSON object of texts, as in ''{"trace":"7f3a"}''')
    END;
    SELECT CASE
        WHEN json_type(coalesce(NEW.headers, '{}')) <> 'object'
                OR EXISTS (SELECT 1 FROM json_each(coalesce(NEW.headers, '{}')) h WHERE h.type <> 'text')
            THEN RAISE(ABORT, 'tenure: headers is a JSON object of texts, as in ''{"trace":"7f3a"}''')
        WHEN (SELECT count(*) FROM json_each(coalesce(NEW.headers, '{}'))) > 64
                OR (SELECT sum(length(CAST(h.key AS BLOB)) + length(CAST(h.value AS BLOB))) FROM json_each(coalesce(NEW.headers, '{}')) h) > 16384
                OR EXISTS (SELECT 1 FROM json_each(coalesce(NEW.headers, '{}')) h
                           WHERE length(CAST(h.key AS BLOB)) NOT BETWEEN 1 AND 512 OR h.key GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*' OR h.value GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*')
            THEN RAISE(ABORT, 'tenure: an event has at most 64 headers of 16384 bytes together, each with a name of 1 to 512 bytes, without control characters')
        WHEN NEW.type IS NOT NULL AND (typeof(NEW.type) <> 'text' OR length(CAST(NEW.type AS BLOB)) > 512
                OR NEW.type GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*')
            THEN RAISE(ABORT, 'tenure: the type has more than 512 bytes, or a control character; give a shorter, plainer one')
        WHEN NEW.key IS NOT NULL AND (typeof(NEW.key) <> 'text' OR length(CAST(NEW.key AS BLOB)) NOT BETWEEN 1 AND 512
                OR NEW.key GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*')
            THEN RAISE(ABORT, 'tenure: a key is a text of 1 to 512 bytes without control characters; leave it out, or CAST(... AS TEXT)')
        WHEN NEW.idempotency_key IS NOT NULL AND (typeof(NEW.idempotency_key) <> 'text'
                OR length(CAST(NEW.idempotency_key AS BLOB)) NOT BETWEEN 1 AND 512 OR NEW.idempotency_key GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*')
            THEN RAISE(ABORT, 'tenure: an idempotency_key is a text of 1 to 512 bytes without control characters; leave it out, or CAST(... AS TEXT)')
        WHEN NEW.leader_token IS NOT NULL AND (typeof(NEW.leader_token) <> 'integer' OR NEW.leader_token < 0)
            THEN RAISE(ABORT, 'tenure: leader_token is a whole number, as TENURE_TOKEN is')
    END;

    -- The event gets the number after the last one. Of several rows in one INSERT, sqlite_sequence learns at the end only.
    -- Its slot is event::slot_of: 32-bit FNV-1a over the key's bytes, both halves folded. SQLite has no exclusive or, but
    -- a + b - 2 * (a & b) is one.
    INSERT INTO tenure_events
        (id, topic, slot, position, bytes, published_at, leader_token, key, idempotency_key, kind, headers, payload)
    SELECT n.id, n.topic,
           CASE WHEN NEW.key IS NULL THEN n.id % n.slots
                ELSE (WITH RECURSIVE fnv (hash, byte, rest) AS (
                          SELECT 2166136261, instr('123456789ABCDEF', substr(hex(NEW.key), 1, 1)) * 16
                                             + instr('123456789ABCDEF', substr(hex(NEW.key), 2, 1)), hex(NEW.key)
                          UNION ALL
                          SELECT ((hash + byte - 2 * (hash & byte)) * 16777619) & 4294967295,
                                 instr('123456789ABCDEF', substr(rest, 3, 1)) * 16 + instr('123456789ABCDEF', substr(rest, 4, 1)),
                                 substr(rest, 3)
                          FROM fnv WHERE rest <> '')
                      SELECT (hash + (hash >> 16) - 2 * (hash & (hash >> 16))) % n.slots FROM fnv WHERE rest = '') END,
           n.id,
           length(CAST(coalesce(NEW.payload, '{}') AS BLOB)),
           CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER),
           NEW.leader_token, NEW.key, NEW.idempotency_key, coalesce(NEW.type, ''), coalesce(NEW.headers, '{}'), coalesce(NEW.payload, '{}')
    FROM (SELECT max(coalesce((SELECT max(id) FROM tenure_events), 0),
                     coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'tenure_events'), 0)) + 1 AS id,
                 t.id AS topic, t.slots
          FROM tenure_topics t WHERE t.namespace = coalesce(NEW.namespace, 'default') AND t.name = NEW.topic) n
    WHERE NEW.idempotency_key IS NULL
       OR NOT EXISTS (SELECT 1 FROM tenure_events e WHERE e.topic = n.topic AND e.idempotency_key = NEW.idempotency_key);

    UPDATE tenure_topics SET events = events + changes()
    WHERE namespace = coalesce(NEW.namespace, 'default') AND name = NEW.topic;
END;
