-- Topics and their events, consumer groups and their offsets.
--
-- A publication inserts the rows of its events, without offsets. When the transaction commits, its events of one partition become
-- a commit batch, under the lock of that partition: one row with the offset by which the partition is read (publish.sql explains
-- why readers never skip an event). Readers go from the commit batches to their events.

CREATE TABLE tenure.topics (
    id                  integer GENERATED ALWAYS AS IDENTITY (MAXVALUE 2097151) PRIMARY KEY,
    namespace           text COLLATE "C" NOT NULL,
    name                text COLLATE "C" NOT NULL,
    partitions          integer     NOT NULL CHECK (partitions BETWEEN 1 AND 1024),
    retention_ms        bigint      NOT NULL,
    unread_retention_ms bigint,
    max_payload_bytes   bigint      NOT NULL,
    created_at          timestamptz NOT NULL DEFAULT now(),
    UNIQUE (namespace, name)
);
COMMENT ON TABLE tenure.topics IS 'Topics with their settings.';
COMMENT ON COLUMN tenure.topics.partitions IS 'Number of partitions. It never changes.';
COMMENT ON COLUMN tenure.topics.retention_ms IS 'How long events are kept that every group has read.';
COMMENT ON COLUMN tenure.topics.unread_retention_ms IS 'How long events are kept that a group has not read; null for ever.';

-- Row locks and not advisory locks: any role that may connect can take an advisory lock and would block all publishers.
CREATE TABLE tenure.topic_partitions (
    topic_id  integer,
    partition integer,
    PRIMARY KEY (topic_id, partition)
);
COMMENT ON TABLE tenure.topic_partitions IS
'One row for each partition of a topic. It is locked while offsets are assigned, and never changed.';

CREATE FUNCTION tenure.create_partitions() RETURNS trigger LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO tenure.topic_partitions (topic_id, partition) SELECT NEW.id, p FROM generate_series(0, NEW.partitions - 1) p
    -- A restore with triggers enabled has inserted these rows before.
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;
CREATE TRIGGER topics_create_partitions AFTER INSERT ON tenure.topics FOR EACH ROW EXECUTE FUNCTION tenure.create_partitions();

-- transaction_id leads the primary key, so that the index grows at its end, and an event is found by its id a little after the
-- transaction of that id.
CREATE TABLE tenure.events (
    transaction_id  bigint  NOT NULL,
    id              bigint  NOT NULL,
    topic_id        integer NOT NULL,
    partition       integer NOT NULL,
    payload_bytes   integer NOT NULL,
    assigns_offsets boolean NOT NULL,
    leader_token    bigint,
    key             text COLLATE "C",
    type            text COLLATE "C" NOT NULL,
    idempotency_key text COLLATE "C",
    headers         json,
    payload         text,
    binary_payload  bytea,
    PRIMARY KEY (transaction_id, topic_id, partition, id)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.1,
        autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE UNIQUE INDEX events_idempotency_key ON tenure.events (topic_id, idempotency_key) WHERE idempotency_key IS NOT NULL;
COMMENT ON TABLE tenure.events IS 'Published events. Rows are never updated.';
COMMENT ON COLUMN tenure.events.transaction_id IS
'Id of the first event of the publishing transaction; the same for all events of the transaction.';
COMMENT ON COLUMN tenure.events.payload_bytes IS 'Size of the payload.';
COMMENT ON COLUMN tenure.events.assigns_offsets IS
'Whether the deferred trigger of this row assigns the offsets of its transaction.';
COMMENT ON COLUMN tenure.events.leader_token IS 'Token under which the publisher led.';
COMMENT ON COLUMN tenure.events.key IS 'Events with the same key are in the same partition and are processed in commit order.';
COMMENT ON COLUMN tenure.events.idempotency_key IS 'A second publication with the same key returns this event.';
COMMENT ON COLUMN tenure.events.payload IS
'JSON payload; null if the payload is binary. Of type text: the publisher has validated it, and a second validation would '
'cost as much as the row.';
COMMENT ON COLUMN tenure.events.binary_payload IS 'Binary payload; null if the payload is JSON.';

-- Ids and offsets come from one sequence, so that the offset of an event is always greater than its id, and not by much. The
-- sequence must not be cached: offsets would no longer grow from one connection to the next.
CREATE SEQUENCE tenure.event_sequence CACHE 1 OWNED BY tenure.events.id;
COMMENT ON SEQUENCE tenure.event_sequence IS 'Source of event ids and offsets.';

CREATE TABLE tenure.commit_batches (
    event_offset   bigint      NOT NULL,
    transaction_id bigint      NOT NULL,
    first_event_id bigint      NOT NULL,
    last_event_id  bigint      NOT NULL,
    published_at   timestamptz NOT NULL,
    topic_id       integer     NOT NULL,
    partition      integer     NOT NULL,
    event_count    integer     NOT NULL,
    payload_bytes  integer     NOT NULL,
    PRIMARY KEY (topic_id, partition, event_offset)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.1,
        autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE tenure.commit_batches IS
'Events that one transaction published to one partition. They share an offset and are read together.';
COMMENT ON COLUMN tenure.commit_batches.event_offset IS 'Offset of the batch in its partition.';
COMMENT ON COLUMN tenure.commit_batches.transaction_id IS 'events.transaction_id of the events.';
COMMENT ON COLUMN tenure.commit_batches.first_event_id IS 'Smallest event id of the batch.';
COMMENT ON COLUMN tenure.commit_batches.last_event_id IS 'Greatest event id of the batch.';
COMMENT ON COLUMN tenure.commit_batches.published_at IS 'Time of the commit.';

CREATE TABLE tenure.partition_start_offsets (
    topic_id     integer,
    partition    integer,
    start_offset bigint NOT NULL,
    PRIMARY KEY (topic_id, partition)
) WITH (fillfactor = 50);
COMMENT ON TABLE tenure.partition_start_offsets IS 'Offset up to which a partition has been pruned. No row: nothing was pruned.';

CREATE TABLE tenure.topic_waiters (
    topic_id integer NOT NULL,
    seq      bigint  NOT NULL,
    notified boolean NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX topic_waiters_last ON tenure.topic_waiters (topic_id, seq, notified);
COMMENT ON TABLE tenure.topic_waiters IS 'Topics that consumers wait for; works like queue_waiters.';

-- The last registration of a waiter, in ms since 1970, of the topics whose id modulo 16 is the number in the name. Sequences and
-- not rows of a table: a transaction with one snapshot (repeatable read) sees the current value of a sequence.
DO $$
BEGIN
    FOR n IN 0..15 LOOP
        EXECUTE format('CREATE SEQUENCE tenure.topic_wait_times_%s OWNED BY tenure.topic_waiters.topic_id', n);
    END LOOP;
END
$$;

CREATE TABLE tenure.consumer_groups (
    id                         integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic_id                   integer     NOT NULL,
    name                       text COLLATE "C" NOT NULL,
    max_attempts               integer     NOT NULL,
    initial_backoff_ms         bigint      NOT NULL,
    max_backoff_ms             bigint      NOT NULL,
    paused_by                  text,
    paused_reason              text,
    paused_at                  timestamptz,
    active_since_at            timestamptz NOT NULL DEFAULT now(),
    rebalanced_partition_count bigint      NOT NULL DEFAULT 0,
    created_at                 timestamptz NOT NULL DEFAULT now(),
    UNIQUE (topic_id, name)
);
COMMENT ON TABLE tenure.consumer_groups IS 'Consumer groups of topics.';
COMMENT ON COLUMN tenure.consumer_groups.max_attempts IS 'Attempts to process an event before it becomes a dead letter.';
COMMENT ON COLUMN tenure.consumer_groups.initial_backoff_ms IS 'First delay before a parked event is retried.';
COMMENT ON COLUMN tenure.consumer_groups.max_backoff_ms IS 'Longest delay before a parked event is retried.';
COMMENT ON COLUMN tenure.consumer_groups.paused_at IS 'Time of the pause; null if the group is not paused.';
COMMENT ON COLUMN tenure.consumer_groups.active_since_at IS 'Start of the current period with live members.';
COMMENT ON COLUMN tenure.consumer_groups.rebalanced_partition_count IS 'How often a partition moved from one member to another.';

CREATE TABLE tenure.group_webhooks (
    group_id   integer PRIMARY KEY,
    url        text    NOT NULL,
    secret     text    NOT NULL,
    timeout_ms bigint  NOT NULL
);
COMMENT ON TABLE tenure.group_webhooks IS 'URLs to which the servers send the events of a group.';
COMMENT ON COLUMN tenure.group_webhooks.secret IS 'Secret that signs the webhooks.';
COMMENT ON COLUMN tenure.group_webhooks.timeout_ms IS 'How long the servers wait for a response.';

CREATE TABLE tenure.group_members (
    group_id  integer,
    session   text COLLATE "C",
    name      text COLLATE "C" NOT NULL,
    joined_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (group_id, session)
);
COMMENT ON TABLE tenure.group_members IS 'Sessions that read for a group.';

-- A commit locks the row of its partition and changes nothing in it.
CREATE TABLE tenure.partition_leases (
    group_id    integer,
    partition   integer,
    token       bigint NOT NULL DEFAULT 0,
    session     text COLLATE "C",
    last_member text   NOT NULL DEFAULT '',
    PRIMARY KEY (group_id, partition)
) WITH (fillfactor = 50);
COMMENT ON TABLE tenure.partition_leases IS 'Leases of the members of a group on the partitions of its topic.';
COMMENT ON COLUMN tenure.partition_leases.token IS 'Fencing token of the last grant. Commits under another token are rejected.';
COMMENT ON COLUMN tenure.partition_leases.session IS
'Session that holds the lease. The lease is free if this is null or the session has ended.';
COMMENT ON COLUMN tenure.partition_leases.last_member IS 'Name of the current or last member; empty if there was none.';

-- The row with the greatest generation counts. It changes only under the lock of the partition's row in partition_leases. The offset
-- is in no index, so that a commit is a HOT update. But an old snapshot retains all versions of a row, and a lookup of the last
-- version walks over them. So after some updates a row of the next generation replaces it (tenure.set_committed_offsets).
CREATE TABLE tenure.committed_offsets (
    group_id         integer,
    partition        integer,
    generation       integer DEFAULT 0,
    update_count     integer NOT NULL DEFAULT 0,
    committed_offset bigint  NOT NULL,
    PRIMARY KEY (group_id, partition, generation)
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE tenure.committed_offsets IS 'Committed offset of a group in each partition: it has processed everything up to it.';
COMMENT ON COLUMN tenure.committed_offsets.generation IS 'The row with the greatest generation counts.';
COMMENT ON COLUMN tenure.committed_offsets.update_count IS 'Number of updates of this row.';

CREATE TABLE tenure.processed_events (
    group_id     integer,
    partition    integer,
    event_offset bigint,
    event_id     bigint,
    PRIMARY KEY (group_id, partition, event_offset, event_id)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE tenure.processed_events IS 'Events beyond the committed offset that a group has processed.';

CREATE TABLE tenure.parked_events (
    group_id       integer,
    event_id       bigint,
    partition      integer     NOT NULL,
    event_offset   bigint      NOT NULL,
    dead           boolean     NOT NULL,
    attempts       integer     NOT NULL,
    retry_at       timestamptz NOT NULL,
    last_failed_at timestamptz NOT NULL,
    published_at   timestamptz NOT NULL,
    leader_token   bigint,
    key            text COLLATE "C",
    type           text COLLATE "C" NOT NULL,
    last_error     text        NOT NULL,
    headers        json,
    payload        text,
    binary_payload bytea,
    PRIMARY KEY (group_id, event_id)
);
CREATE INDEX parked_events_key ON tenure.parked_events (group_id, partition, key, event_offset, event_id);
COMMENT ON TABLE tenure.parked_events IS
'Events that a group failed to process, and later events with the same key. They are copies, which stay when the events are '
'pruned. Only the first event of a key is retried.';
COMMENT ON COLUMN tenure.parked_events.dead IS 'Whether the event is a dead letter: it used all its attempts.';
COMMENT ON COLUMN tenure.parked_events.attempts IS 'Failed attempts; 0 if the event waits behind another one.';
COMMENT ON COLUMN tenure.parked_events.retry_at IS 'Time of the next attempt, if attempts is not 0.';
