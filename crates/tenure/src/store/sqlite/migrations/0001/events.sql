-- Topics, events and consumer groups.

-- Topics and their settings.
CREATE TABLE tenure_topics (
    id                  INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace           TEXT    NOT NULL,
    name                TEXT    NOT NULL,
    -- Never changes: another number would move keys to other partitions and break the order of their events.
    partitions          INTEGER NOT NULL CHECK (partitions > 0),
    retention_ms        INTEGER NOT NULL,
    -- Also prune events that a group has not read after this time; null: never.
    unread_retention_ms INTEGER,
    max_payload_bytes   INTEGER NOT NULL,
    -- How many events the topic holds.
    event_count         INTEGER NOT NULL DEFAULT 0,
    created_at_ms       INTEGER NOT NULL,
    UNIQUE (namespace, name)
) STRICT;

-- Events. SQLite has one writer at a time, so the order of ids is the order of commits. AUTOINCREMENT: pruning must not lead to a
-- reused id.
CREATE TABLE tenure_events (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    topic_id        INTEGER NOT NULL,
    partition       INTEGER NOT NULL,
    -- The offset of the commit batch: the id of the first event that the same transaction published to this partition.
    event_offset    INTEGER NOT NULL,
    -- The size of the payload.
    payload_bytes   INTEGER NOT NULL,
    published_at_ms INTEGER NOT NULL,
    -- The token of the leader that published the event.
    leader_token    INTEGER,
    key             TEXT,
    idempotency_key TEXT,
    type            TEXT    NOT NULL,
    -- JSON object of strings.
    headers         TEXT    NOT NULL,
    -- TEXT holds JSON; a BLOB holds bytes.
    payload         ANY     NOT NULL
) STRICT;
-- The order of reading. The index covers the planning of a read: offsets, sizes and ages.
CREATE INDEX tenure_events_partition ON tenure_events (topic_id, partition, event_offset, id, payload_bytes, published_at_ms);
CREATE UNIQUE INDEX tenure_events_idempotency_key ON tenure_events (topic_id, idempotency_key) WHERE idempotency_key IS NOT NULL;

-- The offset up to which the events of a partition were pruned. No row: no event was pruned.
CREATE TABLE tenure_partition_start_offsets (
    topic_id     INTEGER NOT NULL,
    partition    INTEGER NOT NULL,
    start_offset INTEGER NOT NULL,
    PRIMARY KEY (topic_id, partition)
) STRICT, WITHOUT ROWID;

-- Consumer groups and their settings.
CREATE TABLE tenure_consumer_groups (
    id                         INTEGER PRIMARY KEY AUTOINCREMENT,
    topic_id                   INTEGER NOT NULL,
    name                       TEXT    NOT NULL,
    max_attempts               INTEGER NOT NULL,
    initial_backoff_ms         INTEGER NOT NULL,
    max_backoff_ms             INTEGER NOT NULL,
    paused_by                  TEXT,
    paused_reason              TEXT,
    paused_at_ms               INTEGER,
    -- The start of the current period with live members.
    active_since_at_ms         INTEGER,
    -- How many partitions rebalances have moved from one member name to another.
    rebalanced_partition_count INTEGER NOT NULL DEFAULT 0,
    created_at_ms              INTEGER NOT NULL,
    UNIQUE (topic_id, name)
) STRICT;

-- Webhooks to which the servers send the events of a group.
CREATE TABLE tenure_group_webhooks (
    group_id   INTEGER PRIMARY KEY,
    url        TEXT    NOT NULL,
    -- The key that signs the calls.
    secret     TEXT    NOT NULL,
    timeout_ms INTEGER NOT NULL
) STRICT;

-- Sessions that read for a group.
CREATE TABLE tenure_group_members (
    group_id     INTEGER NOT NULL,
    session      TEXT    NOT NULL,
    name         TEXT    NOT NULL,
    joined_at_ms INTEGER NOT NULL,
    PRIMARY KEY (group_id, session)
) STRICT, WITHOUT ROWID;

-- The lease of each partition of a group, with its committed offset.
CREATE TABLE tenure_partition_leases (
    group_id         INTEGER NOT NULL,
    partition        INTEGER NOT NULL,
    token            INTEGER NOT NULL DEFAULT 0,
    -- The holder, if the session is live.
    session          TEXT,
    -- The name of the current or last holder.
    last_member      TEXT    NOT NULL DEFAULT '',
    -- Every event up to this offset is processed or parked.
    committed_offset INTEGER NOT NULL,
    PRIMARY KEY (group_id, partition)
) STRICT, WITHOUT ROWID;

-- Processed events beyond the committed offset of their partition.
CREATE TABLE tenure_processed_events (
    group_id     INTEGER NOT NULL,
    partition    INTEGER NOT NULL,
    event_offset INTEGER NOT NULL,
    event_id     INTEGER NOT NULL,
    PRIMARY KEY (group_id, partition, event_offset, event_id)
) STRICT, WITHOUT ROWID;

-- Parked events of a group. Each row is a copy, so retention of the topic does not affect it. Within a partition, the order of ids
-- is the order of offsets. The first event of a key is retried at retry_at_ms (null: at once); later events of the key wait.
CREATE TABLE tenure_parked_events (
    group_id          INTEGER NOT NULL,
    event_id          INTEGER NOT NULL,
    partition         INTEGER NOT NULL,
    event_offset      INTEGER NOT NULL,
    -- 1: a dead letter, which has used all its attempts.
    dead              INTEGER NOT NULL CHECK (dead IN (0, 1)),
    attempts          INTEGER NOT NULL,
    retry_at_ms       INTEGER,
    last_failed_at_ms INTEGER NOT NULL,
    last_error        TEXT    NOT NULL,
    published_at_ms   INTEGER NOT NULL,
    leader_token      INTEGER,
    key               TEXT,
    type              TEXT    NOT NULL,
    headers           TEXT    NOT NULL,
    payload           ANY     NOT NULL,
    PRIMARY KEY (group_id, event_id)
) STRICT;
CREATE INDEX tenure_parked_events_key  ON tenure_parked_events (group_id, partition, key, event_id);
CREATE INDEX tenure_parked_events_dead ON tenure_parked_events (group_id, event_id) WHERE dead = 1;

-- Sessions that are notified when a topic has new events. The topic is a name, because it need not exist yet.
CREATE TABLE tenure_topic_waiters (
    namespace        TEXT    NOT NULL,
    topic            TEXT    NOT NULL,
    session          TEXT    NOT NULL,
    registered_at_ms INTEGER NOT NULL,
    PRIMARY KEY (namespace, topic, session)
) STRICT, WITHOUT ROWID;
