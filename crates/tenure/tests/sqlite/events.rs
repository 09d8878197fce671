//! Events in SQLite: tests beyond the conformance suite.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, Executor, SqliteConnection};
use tenure::store::sqlite::{SqliteStore, publish};
use tenure_core::port::*;
use tenure_core::{Name, SessionId, Token};
use tenure_testkit::conformance::TestSession;

use super::child::open;

pub(crate) fn topic() -> TopicKey {
    TopicKey::new(Name::default_namespace(), "t".parse().unwrap())
}

pub(crate) fn group() -> GroupKey {
    GroupKey::new(topic(), "g".parse().unwrap())
}

/// A store with a topic that has this many partitions.
pub(crate) async fn fresh(partitions: u32) -> (SqliteStore, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("t.db")).await;
    assert!(
        store.set_topic(&topic(), &TopicSettings { partitions, ..TopicSettings::default() }).await.unwrap()
    );
    (store, dir)
}

/// A connection of another program.
pub(crate) async fn plain(path: &Path) -> SqliteConnection {
    SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(path)).await.unwrap()
}

pub(crate) fn keyed(key: &str, n: u64) -> NewEvent {
    NewEvent { key: Some(key.into()), payload: Payload::Json(RawJson::of(&n).unwrap()), ..NewEvent::new("k") }
}

/// All events of a topic, by partition.
pub(crate) async fn all_events(store: &SqliteStore, partitions: u32) -> Vec<Event> {
    let after = (0..partitions).map(|partition| (partition, 0)).collect();
    store.read_events(&ReadEventsRequest { topic: topic(), after, limit: 10_000 }).await.unwrap()
}

/// A member of the group with its partition leases.
pub(crate) struct TestConsumer {
    pub(crate) actor: TestSession,
    name: String,
    pub(crate) leases: BTreeMap<u32, TakenPartition>,
}

impl TestConsumer {
    /// A consumer that has not joined yet.
    pub(crate) async fn new(store: &SqliteStore, name: &str) -> TestConsumer {
        let actor = TestSession::open(Arc::new(store.clone()), name).await;
        TestConsumer { actor, name: name.into(), leases: BTreeMap::new() }
    }

    /// Join and take all free partitions.
    pub(crate) async fn join(store: &SqliteStore, name: &str) -> TestConsumer {
        let mut consumer = TestConsumer::new(store, name).await;
        consumer.take_free().await;
        consumer
    }

    pub(crate) fn session(&self) -> &SessionId {
        &self.actor.id
    }

    /// Join the group and return its assignment.
    pub(crate) async fn assignment(&self) -> GroupAssignment {
        let (session, member) = (self.actor.id.clone(), self.name.clone());
        let join = JoinGroupRequest { group: group(), session, member, from: StartOffset::Earliest };
        self.actor.store.join_group(&join).await.unwrap()
    }

    pub(crate) async fn take_free(&mut self) {
        let free =
            self.assignment().await.partition_leases.into_iter().filter(|lease| lease.holder.is_none());
        self.take(free.map(|lease| (lease.partition, lease.token)).collect()).await;
    }

    pub(crate) async fn take(&mut self, partitions: Vec<(u32, Token)>) {
        let take = TakePartitionsRequest { group: group(), session: self.actor.id.clone(), partitions };
        let taken = self.actor.store.take_partitions(&take).await.unwrap();
        self.leases.extend(taken.into_iter().map(|taken| (taken.partition, taken)));
    }

    pub(crate) async fn release(&mut self, leases: &[(u32, Token)]) {
        self.actor.store.release_partitions(&group(), leases).await.unwrap();
        self.leases.retain(|partition, _| leases.iter().all(|(released, _)| released != partition));
    }

    pub(crate) async fn read(&self, limit: u32) -> Vec<Event> {
        let after = self.leases.values().map(|lease| (lease.partition, lease.offset)).collect();
        self.actor.store.read_events(&ReadEventsRequest { topic: topic(), after, limit }).await.unwrap()
    }

    /// The commits after these events are processed, one for each partition.
    pub(crate) fn commits(&self, events: &[Event]) -> Vec<PartitionCommit> {
        let last: BTreeMap<u32, Offset> =
            events.iter().map(|event| (event.partition, event.offset)).collect();
        last.into_iter().map(|(partition, offset)| self.commit(partition, Some(offset))).collect()
    }

    pub(crate) fn commit(&self, partition: u32, offset: Option<Offset>) -> PartitionCommit {
        let token = self.leases[&partition].token;
        PartitionCommit {
            group: group(),
            partition,
            token,
            offset,
            processed: Vec::new(),
            parked: Vec::new(),
            parked_results: Vec::new(),
        }
    }

    /// Commit these events as processed.
    pub(crate) async fn complete(&mut self, events: &[Event]) -> Vec<CommitResult> {
        let commits = self.commits(events);
        let committed = self.actor.store.commit_partitions(&commits).await.unwrap();
        for (commit, committed) in commits.iter().zip(&committed) {
            if *committed == CommitResult::Committed {
                self.leases.get_mut(&commit.partition).unwrap().offset = commit.offset.unwrap();
            }
        }
        committed
    }
}

pub(crate) fn ids(events: &[Event]) -> Vec<u64> {
    events.iter().map(|event| event.id.0).collect()
}

#[tokio::test]
async fn a_member_reads_each_event_once() {
    let (store, _dir) = fresh(4).await;
    let events: Vec<_> = (0..20).map(|n| keyed(&format!("k{}", n % 5), n)).collect();
    let published = store.publish(&topic(), &events).await.unwrap();
    assert!(published.iter().zip(1..).all(|(it, id)| it.created && it.id.0 == id));
    let mut consumer = TestConsumer::join(&store, "a").await;
    let mut read = consumer.read(100).await;
    assert_eq!(consumer.complete(&read).await, vec![CommitResult::Committed; consumer.commits(&read).len()]);
    assert!(consumer.read(100).await.is_empty());
    assert!(read.is_sorted_by_key(|event| (event.partition, event.offset, event.id)));
    read.sort_by_key(|event| event.id);
    let contents: Vec<_> = read.iter().map(|event| (event.key.clone(), event.payload.clone())).collect();
    assert_eq!(contents, events.into_iter().map(|event| (event.key, event.payload)).collect::<Vec<_>>());
    store.publish(&topic(), &[keyed("k1", 99)]).await.unwrap();
    assert_eq!(ids(&consumer.read(100).await), [21]);
}

/// The events of one call in one partition have one offset and are read together, up to the maximum batch size.
#[tokio::test]
async fn a_commit_batch_is_never_split() {
    let (store, _dir) = fresh(2).await;
    let of = |key: &str, n: usize| (0..n as u64).map(|n| keyed(key, n)).collect::<Vec<_>>();
    let (one, other) =
        ("a", ["b", "c", "d", "e"].into_iter().find(|key| partition(key, 2) != partition("a", 2)).unwrap());
    store.publish(&topic(), &of(one, 2_500)).await.unwrap();
    store.publish(&topic(), &of(other, 7)).await.unwrap();
    let batch = |limit| ReadEventsRequest {
        topic: topic(),
        after: vec![(partition(one, 2), 0), (partition(other, 2), 0)],
        limit,
    };
    // One batch of each partition, then more of the first.
    let read = store.read_events(&batch(1_001)).await.unwrap();
    let batches: Vec<_> = tenure_core::rules::event::commit_batches(&read)
        .map(|batch| (batch[0].offset, batch.len()))
        .collect();
    assert_eq!(batches, [(1, 1_000), (2_501, 7)]);
    let read = store.read_events(&batch(1)).await.unwrap();
    assert_eq!(read.len(), 1_000, "a batch is never split");
    let read = store.read_events(&batch(10_000)).await.unwrap();
    let batches: Vec<_> = tenure_core::rules::event::commit_batches(&read)
        .map(|batch| (batch[0].offset, batch.len()))
        .collect();
    assert_eq!(batches, [(1, 1_000), (1_001, 1_000), (2_001, 500), (2_501, 7)]);
    assert!(read.iter().all(|event| event.id.0 >= event.offset));
}

fn partition(key: &str, partitions: u32) -> u32 {
    tenure_core::rules::event::partition_for_key(key, partitions)
}

/// A read of mostly empty partitions still returns as many events as requested.
#[tokio::test]
async fn one_full_partition_among_many_is_read_up_to_the_limit() {
    let (store, _dir) = fresh(64).await;
    for n in 0..300 {
        store.publish(&topic(), &[keyed("a", n)]).await.unwrap();
    }
    store.publish(&topic(), &[keyed("b", 0), keyed("c", 0)]).await.unwrap();
    let after = (0..64).map(|partition| (partition, 0)).collect();
    let read = store.read_events(&ReadEventsRequest { topic: topic(), after, limit: 250 }).await.unwrap();
    assert_eq!(read.len(), 250);
    assert_eq!(read.iter().filter(|event| event.key.as_deref() == Some("a")).count(), 248);
}

#[tokio::test]
async fn a_read_is_limited_by_size() {
    let (store, _dir) = fresh(1).await;
    let long = NewEvent { payload: Payload::Bytes(vec![7; EVENT_BYTES_MAX]), ..NewEvent::new("k") };
    for _ in 0..20 {
        store.publish(&topic(), std::slice::from_ref(&long)).await.unwrap();
    }
    let read = all_events(&store, 1).await;
    assert_eq!(read.len(), READ_BYTES / EVENT_BYTES_MAX);
    assert_eq!(read[0].payload, long.payload);
    let rest =
        ReadEventsRequest { topic: topic(), after: vec![(0, read.last().unwrap().offset)], limit: 100 };
    assert_eq!(store.read_events(&rest).await.unwrap().len(), 20 - read.len());
}

#[tokio::test]
async fn bytes_json_and_headers_are_read_unchanged() {
    let (store, _dir) = fresh(3).await;
    let payloads = [
        Payload::Bytes((0..=255).collect()),
        Payload::Bytes(Vec::new()),
        Payload::Json(r#"{"a" : [1, 2.50, "\u0000 \ud83d\ude00 ß"],  "b":1e3}"#.parse().unwrap()),
        Payload::Json("null".parse().unwrap()),
    ];
    let event = |payload: Payload| NewEvent {
        payload,
        headers: [("trace".into(), "\"7f\", {ß}".into()), ("x".into(), String::new())].into(),
        key: Some("кл\"юч".into()),
        leader_token: Some(Token::from_u64(1 << 41)),
        ..NewEvent::new("a.b")
    };
    let events: Vec<_> = payloads.iter().cloned().map(event).collect();
    let published = store.publish(&topic(), &events).await.unwrap();
    let read = all_events(&store, 3).await;
    for (n, (event, it)) in read.iter().zip(&events).enumerate() {
        assert_eq!(event.payload, it.payload);
        assert_eq!((&event.headers, &event.key, event.leader_token), (&it.headers, &it.key, it.leader_token));
        assert_eq!(
            (event.id, event.partition, event.event_type.as_str()),
            (published[n].id, published[n].partition, "a.b")
        );
        assert_eq!(store.event(&topic(), event.id).await.unwrap().as_ref(), Some(event));
    }
    assert_eq!(read.len(), 4);
}

#[tokio::test]
async fn an_idempotency_key_counts_once_within_and_across_calls() {
    let (store, _dir) = fresh(8).await;
    let once = |key: &str| NewEvent { idempotency_key: Some(key.into()), ..NewEvent::new("k") };
    let first = store.publish(&topic(), &[once("a"), once("b"), once("a")]).await.unwrap();
    assert_eq!(
        first.iter().map(|it| (it.id.0, it.created)).collect::<Vec<_>>(),
        [(1, true), (2, true), (1, false)]
    );
    let second = store.publish(&topic(), &[once("b"), NewEvent::new("k"), once("c")]).await.unwrap();
    assert_eq!(
        second.iter().map(|it| (it.id.0, it.created)).collect::<Vec<_>>(),
        [(2, false), (3, true), (4, true)]
    );
    assert_eq!(second[0].partition, first[1].partition);
    assert_eq!(store.topic(&topic()).await.unwrap().unwrap().event_count, 4);
}

#[tokio::test]
async fn events_commit_with_the_transaction_of_the_caller() {
    let (store, _dir) = fresh(4).await;
    store.pool().execute("CREATE TABLE orders (id INTEGER)").await.unwrap();
    let mut conn = store.pool().acquire().await.unwrap();
    let error = publish(&mut conn, &topic(), &[keyed("a", 1)]).await.unwrap_err();
    assert!(error.kind == ErrorKind::Request && error.message.contains("begin one first"), "{error}");
    drop(conn);
    let mut transaction = store.pool().begin().await.unwrap();
    transaction.execute("INSERT INTO orders VALUES (1)").await.unwrap();
    assert_eq!(publish(&mut transaction, &topic(), &[keyed("a", 1), keyed("b", 2)]).await.unwrap().len(), 2);
    transaction.rollback().await.unwrap();
    assert!(all_events(&store, 4).await.is_empty());
    assert_eq!(store.topic(&topic()).await.unwrap().unwrap().event_count, 0);
    let mut transaction = store.pool().begin().await.unwrap();
    transaction.execute("INSERT INTO orders VALUES (1)").await.unwrap();
    publish(&mut transaction, &topic(), &[keyed("a", 1), keyed("b", 2)]).await.unwrap();
    assert!(all_events(&store, 4).await.is_empty(), "invisible before the commit");
    transaction.commit().await.unwrap();
    assert_eq!(all_events(&store, 4).await.len(), 2);
    // A rejected publish leaves nothing, even if the transaction commits.
    let other = TopicKey::new(Name::default_namespace(), "other".parse().unwrap());
    let small = TopicSettings { max_payload_bytes: 1, ..TopicSettings::default() };
    store.set_topic(&other, &small).await.unwrap();
    let mut transaction = store.pool().begin().await.unwrap();
    let refused = publish(&mut transaction, &other, &[keyed("a", 1), keyed("a", 10)]).await.unwrap_err();
    assert!(refused.kind == ErrorKind::Request && refused.message.contains("at most 1."), "{refused}");
    transaction.commit().await.unwrap();
    assert_eq!(store.topic(&other).await.unwrap().unwrap().event_count, 0);
}

/// The next notification about events or groups.
async fn next_event_notification(notifications: &mut BoxNotificationSource) -> Notification {
    loop {
        let notification = notifications.next().await.expect("notifications");
        if matches!(notification, Notification::TopicPublished(_) | Notification::GroupChanged(_)) {
            return notification;
        }
    }
}

#[tokio::test]
async fn only_registered_waiters_are_notified_and_only_once() {
    let (store, _dir) = fresh(4).await;
    let actor = TestSession::open(Arc::new(store.clone()), "a").await;
    let later = TopicKey::new(Name::default_namespace(), "later".parse().unwrap());
    let mut notifications = store.notifications();
    store.publish(&topic(), &[keyed("a", 1)]).await.unwrap();
    store.register_topic_waiter(&actor.id, &topic()).await.unwrap();
    store.register_topic_waiter(&actor.id, &later).await.unwrap();
    store.publish(&topic(), &[keyed("a", 2)]).await.unwrap();
    store.publish(&topic(), &[keyed("a", 3)]).await.unwrap();
    store.set_topic(&later, &TopicSettings::default()).await.unwrap();
    store.publish(&later, &[keyed("a", 1)]).await.unwrap();
    assert_eq!(next_event_notification(&mut notifications).await, Notification::TopicPublished(topic()));
    assert_eq!(next_event_notification(&mut notifications).await, Notification::TopicPublished(later));
    // Existing events and transactions of the caller do not notify.
    store.register_topic_waiter(&actor.id, &topic()).await.unwrap();
    let once = NewEvent { idempotency_key: Some("a".into()), ..NewEvent::new("k") };
    let mut transaction = store.pool().begin().await.unwrap();
    publish(&mut transaction, &topic(), std::slice::from_ref(&once)).await.unwrap();
    transaction.commit().await.unwrap();
    store.publish(&topic(), &[once]).await.unwrap();
    let consumer = TestConsumer::join(&store, "b").await;
    assert_eq!(next_event_notification(&mut notifications).await, Notification::GroupChanged(group()));
    consumer.assignment().await;
    store.publish(&topic(), &[keyed("a", 4)]).await.unwrap();
    assert_eq!(next_event_notification(&mut notifications).await, Notification::TopicPublished(topic()));
}

/// The broker and its maintenance request.
async fn broker(store: &SqliteStore) -> (TestSession, MaintenanceRequest) {
    let broker = TestSession::open(Arc::new(store.clone()), "broker").await;
    broker.join(&broker_election()).await;
    let token = broker.take(&broker_election(), 0).await;
    let maintenance =
        MaintenanceRequest { session: broker.id.clone(), token, clock_ms: Some(i64::MAX), limit: 2 };
    (broker, maintenance)
}

/// Deleting a topic deletes its events. Maintenance deletes the events that a crashed process left.
#[tokio::test]
async fn a_deleted_topic_leaves_no_events() {
    let (store, _dir) = fresh(4).await;
    let count = async || -> (i64,) {
        sqlx::query_as("SELECT count(*) FROM tenure_events").fetch_one(store.pool()).await.unwrap()
    };
    let events: Vec<_> = (0..5).map(|n| keyed(&format!("k{n}"), n)).collect();
    store.publish(&topic(), &events).await.unwrap();
    assert!(store.delete_topic(&topic()).await.unwrap());
    assert_eq!(count().await, (0,));
    store.set_topic(&topic(), &TopicSettings { partitions: 4, ..TopicSettings::default() }).await.unwrap();
    assert_eq!(store.publish(&topic(), &events).await.unwrap()[0].id.0, 6, "ids continue");
    store.pool().execute("UPDATE tenure_events SET topic_id = 99 WHERE id > 6").await.unwrap();
    let (_broker, maintenance) = broker(&store).await;
    while store.prune_events(&maintenance).await.unwrap().1 {}
    assert_eq!(count().await, (1,));
    assert_eq!(ids(&all_events(&store, 4).await), [6]);
}

/// Old read events are pruned from the start of a partition, and their ids are never reused.
#[tokio::test]
async fn pruning_keeps_offsets() {
    let (store, _dir) = fresh(1).await;
    let (_broker, maintenance) = broker(&store).await;
    let mut consumer = TestConsumer::join(&store, "a").await;
    for n in 0..5 {
        store.publish(&topic(), &[keyed("a", n), keyed("a", n)]).await.unwrap();
    }
    assert_eq!(store.prune_events(&maintenance).await.unwrap(), (0, false), "the events are recent");
    store
        .pool()
        .execute("UPDATE tenure_events SET published_at_ms = published_at_ms - 700000000")
        .await
        .unwrap();
    assert_eq!(store.prune_events(&maintenance).await.unwrap(), (0, false), "the events are unread");
    let read = consumer.read(100).await;
    consumer.complete(&read[..6]).await;
    let wrong_token = MaintenanceRequest { token: Token::from_u64(99), ..maintenance.clone() };
    assert_eq!(store.prune_events(&wrong_token).await.unwrap(), (0, false), "the token is wrong");
    let untrusted_clock = MaintenanceRequest { clock_ms: None, ..maintenance.clone() };
    assert_eq!(store.prune_events(&untrusted_clock).await.unwrap(), (0, false), "the clock is not trusted");
    assert_eq!(store.prune_events(&maintenance).await.unwrap(), (4, true));
    assert_eq!(store.prune_events(&maintenance).await.unwrap(), (2, false));
    let ends = store.partition_offsets(&topic()).await.unwrap().unwrap();
    assert_eq!((ends[0].start_offset, ends[0].end_offset), (5, 9));
    assert_eq!(ids(&all_events(&store, 1).await), [7, 8, 9, 10]);
    // Prune everything.
    let rest = consumer.read(100).await;
    consumer.complete(&rest).await;
    assert_eq!(store.prune_events(&maintenance).await.unwrap(), (4, false));
    let ends = store.partition_offsets(&topic()).await.unwrap().unwrap();
    assert_eq!((ends[0].start_offset, ends[0].end_offset), (9, 9));
    assert_eq!(store.topic(&topic()).await.unwrap().unwrap().event_count, 0);
    assert_eq!(store.publish(&topic(), &[keyed("a", 9)]).await.unwrap()[0].id.0, 11);
    assert_eq!(ids(&consumer.read(9).await), [11]);
}
