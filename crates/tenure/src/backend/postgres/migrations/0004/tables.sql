-- Topics and their events, groups and how far they have read.
--
-- An event's row is written when it is published, without a position. When the transaction commits, what it published to one slot
-- becomes a unit, under that slot's lock: one row, with the position that the slot is read by (publish.sql says why nothing is
-- ever skipped). Whoever reads goes from the units to their events.

CREATE TABLE tenure.topics (
    id             integer GENERATED ALWAYS AS IDENTITY (MAXVALUE 2097151) PRIMARY KEY,
    namespace      text COLLATE "C" NOT NULL,
    name           text COLLATE "C" NOT NULL,
    slots          integer     NOT NULL CHECK (slots BETWEEN 1 AND 1024),
    keep_ms        bigint      NOT NULL,
    keep_unread_ms bigint,
    max_bytes      bigint      NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT now(),
    UNIQUE (namespace, name)
);

-- A row for each slot of a topic, to be locked by who places events in it, and never changed. Not an advisory lock: anybody who may
-- connect can take one of those, and would hold up everybody who publishes.
CREATE TABLE tenure.event_slots (
    topic integer,
    slot  integer,
    PRIMARY KEY (topic, slot)
);

CREATE FUNCTION tenure.make_slots() RETURNS trigger LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO tenure.event_slots (topic, slot) SELECT NEW.id, s FROM generate_series(0, NEW.slots - 1) s
    -- Where rows are restored with the triggers on, these came before.
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;
CREATE TRIGGER topics_slots AFTER INSERT ON tenure.topics FOR EACH ROW EXECUTE FUNCTION tenure.make_slots();

-- `batch` is the number of the first event of the transaction, the same for all that it published: so the index grows at its end,
-- and an event is found by its number a little after the batch of that number. Exactly one of payload and body is there. A payload is
-- JSON, and of type text: whoever writes it has made sure of that, and to look again would cost as much as the row. `leads`: see
-- publish.sql. Nothing here is ever updated.
CREATE TABLE tenure.events (
    batch           bigint  NOT NULL,
    id              bigint  NOT NULL,
    topic           integer NOT NULL,
    slot            integer NOT NULL,
    bytes           integer NOT NULL,
    leads           boolean NOT NULL,
    leader_token    bigint,
    key             text COLLATE "C",
    kind            text COLLATE "C" NOT NULL,
    idempotency_key text COLLATE "C",
    headers         json,
    payload         text,
    body            bytea,
    PRIMARY KEY (batch, topic, slot, id)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.1,
        autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE UNIQUE INDEX events_idempotency_key ON tenure.events (topic, idempotency_key) WHERE idempotency_key IS NOT NULL;

-- Numbers of events, and positions: from one sequence, so that the position of an event is always greater than its number, and
-- not by much. It must not be cached: positions would no longer grow from one connection to the next.
CREATE SEQUENCE tenure.event_numbers CACHE 1 OWNED BY tenure.events.id;

-- What a transaction published to a slot: these events of that batch.
CREATE TABLE tenure.event_units (
    position bigint      NOT NULL,
    batch    bigint      NOT NULL,
    first_id bigint      NOT NULL,
    last_id  bigint      NOT NULL,
    at       timestamptz NOT NULL,
    topic    integer     NOT NULL,
    slot     integer     NOT NULL,
    events   integer     NOT NULL,
    bytes    integer     NOT NULL,
    PRIMARY KEY (topic, slot, position)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.1,
        autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Up to where a slot has been forgotten. No row: nothing has.
CREATE TABLE tenure.event_floors (
    topic    integer,
    slot     integer,
    position bigint NOT NULL,
    PRIMARY KEY (topic, slot)
) WITH (fillfactor = 50);

-- Which topics somebody waits for. As tenure.waiters.
CREATE TABLE tenure.event_waiters (
    topic integer NOT NULL,
    n     bigint  NOT NULL,
    woken boolean NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX event_waiters_last ON tenure.event_waiters (topic, n, woken);

-- When somebody began to wait for one of the topics whose number has the remainder in the name, in ms since 1970. Not in a table: a
-- transaction with one snapshot for all of it sees it as well.
DO $$
BEGIN
    FOR n IN 0..15 LOOP
        EXECUTE format('CREATE SEQUENCE tenure.event_waits_%s OWNED BY tenure.event_waiters.topic', n);
    END LOOP;
END
$$;

-- `gathered_at`: since when it has had live members without a break. `moves`: how often a slot went from one name to another.
CREATE TABLE tenure.event_groups (
    id               integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic            integer     NOT NULL,
    name             text COLLATE "C" NOT NULL,
    max_attempts     integer     NOT NULL,
    backoff_first_ms bigint      NOT NULL,
    backoff_most_ms  bigint      NOT NULL,
    paused_by        text,
    paused_reason    text,
    paused_at        timestamptz,
    gathered_at      timestamptz NOT NULL DEFAULT now(),
    moves            bigint      NOT NULL DEFAULT 0,
    created_at       timestamptz NOT NULL DEFAULT now(),
    UNIQUE (topic, name)
);

-- Where servers push a group's events to. The secret is not for people.
CREATE TABLE tenure.event_pushes (
    group_id   integer PRIMARY KEY,
    url        text    NOT NULL,
    secret     text    NOT NULL,
    timeout_ms bigint  NOT NULL
);

CREATE TABLE tenure.event_members (
    group_id  integer,
    session   text COLLATE "C",
    name      text COLLATE "C" NOT NULL,
    joined_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (group_id, session)
);

-- The slots of a group: leases. `session` is who has it; it is free if that is null, or does not live any more. `last` is the name of
-- who has it or had it last. Whoever commits under it locks the row, and changes nothing in it.
CREATE TABLE tenure.event_shares (
    group_id integer,
    slot     integer,
    token    bigint NOT NULL DEFAULT 0,
    session  text COLLATE "C",
    last     text   NOT NULL DEFAULT '',
    PRIMARY KEY (group_id, slot)
) WITH (fillfactor = 50);

-- How far the slots of a group are read: the row with the greatest generation. It is changed under the lock of the slot's row in
-- event_shares alone. Its position is in no index, so that a commit is a HOT update; but an old snapshot keeps all versions of a row, and
-- whoever looks for the last one walks over them. So after some updates another row, of the next generation, takes its place
-- (tenure.set_offset).
CREATE TABLE tenure.event_offsets (
    group_id   integer,
    slot       integer,
    generation integer DEFAULT 0,
    updates    integer NOT NULL DEFAULT 0,
    position   bigint  NOT NULL,
    PRIMARY KEY (group_id, slot, generation)
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Events after a share's position that are done.
CREATE TABLE tenure.event_done (
    group_id integer,
    slot     integer,
    position bigint,
    event    bigint,
    PRIMARY KEY (group_id, slot, position, event)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);

-- Events that failed, and those of their keys behind them: copies, which stay when the events are forgotten. The first of a key is
-- the one that is tried; it is due at `due_at`, or at once if it was never tried.
CREATE TABLE tenure.event_asides (
    group_id     integer,
    event        bigint,
    slot         integer     NOT NULL,
    position     bigint      NOT NULL,
    dead         boolean     NOT NULL,
    attempts     integer     NOT NULL,
    due_at       timestamptz NOT NULL,
    failed_at    timestamptz NOT NULL,
    at           timestamptz NOT NULL,
    leader_token bigint,
    key          text COLLATE "C",
    kind         text COLLATE "C" NOT NULL,
    error        text        NOT NULL,
    headers      json,
    payload      text,
    body         bytea,
    PRIMARY KEY (group_id, event)
);
CREATE INDEX event_asides_key ON tenure.event_asides (group_id, slot, key, position, event);
