//! Partition leases: a member that lost a partition changes nothing, in this process or in another one.

use std::sync::Arc;
use std::time::Duration;

use sqlx::{Executor, Row};
use tenure::store::sqlite::{SqliteOptions, SqliteStore, commit_partition};
use tenure_core::SessionId;
use tenure_core::port::*;
use tenure_core::rules::event::plan_rebalance;
use tenure_testkit::conformance::TestSession;

use super::child::{Child, print_line};
use super::events::{TestConsumer, all_events, fresh, group, keyed, topic};

/// A member that reads, and another one that takes its partitions before it commits.
struct TakeoverScenario {
    store: SqliteStore,
    old: TestConsumer,
    read: Vec<Event>,
    _dir: tempfile::TempDir,
}

impl TakeoverScenario {
    async fn new() -> TakeoverScenario {
        let (store, dir) = fresh(1).await;
        store.pool().execute("CREATE TABLE effects (event INTEGER, member TEXT)").await.unwrap();
        store.publish(&topic(), &[keyed("a", 1), keyed("a", 2)]).await.unwrap();
        let old = TestConsumer::join(&store, "old").await;
        let read = old.read(10).await;
        TakeoverScenario { store, old, read, _dir: dir }
    }

    async fn take_over(&self) -> TestConsumer {
        let expire =
            ExpireSessionRequest { session: self.old.session().clone(), epoch: 0, heartbeat_count: Some(0) };
        self.store.expire_session(&expire).await.unwrap();
        let successor = TestConsumer::join(&self.store, "new").await;
        assert_eq!(successor.leases.len(), 1);
        successor
    }

    /// Process the events in the transaction of the commit.
    async fn handle(&self, consumer: &TestConsumer) -> Result<CommitResult, StoreError> {
        let mut transaction = self.store.pool().begin().await.unwrap();
        for event in &self.read {
            let put = sqlx::query("INSERT INTO effects VALUES (?1, ?2)").bind(event.id.0.cast_signed());
            put.bind(consumer.session().as_str()).execute(&mut *transaction).await.unwrap();
        }
        let commit = consumer.commits(&self.read).remove(0);
        let committed = self.store.commit_partition(&mut transaction, &commit).await?;
        match committed {
            CommitResult::Committed => transaction.commit().await.unwrap(),
            CommitResult::LeaseLost => transaction.rollback().await.unwrap(),
        }
        Ok(committed)
    }

    async fn effects(&self) -> Vec<(i64, String)> {
        sqlx::query_as("SELECT event, member FROM effects ORDER BY rowid")
            .fetch_all(self.store.pool())
            .await
            .unwrap()
    }

    /// Whether each event has one effect although two members processed it.
    async fn effects_are_single(&self) -> bool {
        let new = self.take_over().await;
        let new_first = [self.handle(&new).await, self.handle(&self.old).await];
        assert_eq!(new_first[0], Ok(CommitResult::Committed));
        self.effects().await.len() == 2 && new_first[1] == Ok(CommitResult::LeaseLost)
    }
}

#[tokio::test]
async fn a_member_that_lost_a_partition_changes_nothing() {
    let scenario = TakeoverScenario::new().await;
    assert!(scenario.effects_are_single().await);
    // The same without a transaction of the handler.
    let commit = scenario.old.commits(&scenario.read).remove(0);
    let committed = scenario.store.commit_partitions(std::slice::from_ref(&commit)).await.unwrap();
    assert_eq!(committed, [CommitResult::LeaseLost]);
    let mut transaction = scenario.store.pool().begin().await.unwrap();
    assert_eq!(commit_partition(&mut transaction, &commit).await, Ok(CommitResult::LeaseLost));
}

/// Negative control: a commit that ignores the token duplicates effects.
#[tokio::test]
async fn a_commit_that_ignores_the_token_is_detected() {
    let mut scenario = TakeoverScenario::new().await;
    scenario.store.inject_bug("partition_lease_guard", "AND token = ?5 ", "");
    scenario.store.inject_bug("partition_lease_get", "AND h.token = j.value ->> 4 ", "");
    assert!(!scenario.effects_are_single().await);
}

/// A transaction that has read before a takeover has an old snapshot, so SQLite rejects its commit of the partition.
#[tokio::test]
async fn a_transaction_with_an_old_snapshot_cannot_commit_a_partition() {
    let scenario = TakeoverScenario::new().await;
    let mut early = scenario.store.pool().begin().await.unwrap();
    sqlx::query("SELECT * FROM effects").fetch_all(&mut *early).await.unwrap();
    let new = scenario.take_over().await;
    let commit = scenario.old.commits(&scenario.read).remove(0);
    let error = commit_partition(&mut early, &commit).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Timeout, "{error}: retry");
    early.rollback().await.unwrap();
    assert_eq!(scenario.handle(&scenario.old).await, Ok(CommitResult::LeaseLost));
    assert_eq!(scenario.handle(&new).await, Ok(CommitResult::Committed));
}

/// No member can take a partition between its commit call and the commit of the transaction.
#[tokio::test]
async fn a_commit_blocks_a_takeover_of_the_partition() {
    let scenario = TakeoverScenario::new().await;
    let short_timeout = SqliteOptions::new(scenario.store.path()).busy_timeout(Duration::from_millis(50));
    let rival = SqliteStore::open(short_timeout).await.unwrap();
    let actor = TestSession::open(Arc::new(rival.clone()), "rival").await;
    let join = JoinGroupRequest {
        group: group(),
        session: actor.id.clone(),
        member: "rival".into(),
        from: StartOffset::Earliest,
    };
    let assignment = rival.join_group(&join).await.unwrap();
    let expire =
        ExpireSessionRequest { session: scenario.old.session().clone(), epoch: 0, heartbeat_count: Some(0) };
    rival.expire_session(&expire).await.unwrap();
    let partitions = assignment.partition_leases.iter().map(|lease| (lease.partition, lease.token)).collect();
    let take = TakePartitionsRequest { group: group(), session: actor.id.clone(), partitions };
    let mut transaction = scenario.store.pool().begin().await.unwrap();
    let commit = scenario.old.commits(&scenario.read).remove(0);
    assert_eq!(commit_partition(&mut transaction, &commit).await, Ok(CommitResult::Committed));
    assert_eq!(rival.take_partitions(&take).await.unwrap_err().kind, ErrorKind::Timeout);
    transaction.commit().await.unwrap();
    let taken = rival.take_partitions(&take).await.unwrap();
    assert_eq!(
        (taken.len(), taken[0].offset),
        (1, scenario.read[0].offset),
        "it continues at the committed offset"
    );
}

/// Processed and parked events commit with the transaction. Processed events are forgotten when the committed offset passes them.
#[tokio::test]
async fn processed_events_are_kept_until_the_committed_offset_passes_them() {
    let (store, _dir) = fresh(1).await;
    for n in 0..3 {
        store.publish(&topic(), &[keyed(&format!("k{n}"), n)]).await.unwrap();
    }
    let old = TestConsumer::join(&store, "old").await;
    let failed = ParkedEventState::Retry { attempts: 1, retry_in_ms: 60_000, error: "no".into() };
    let parked = vec![ParkEventRequest { event_id: EventId(2), offset: 2, state: failed }];
    let commit = PartitionCommit { processed: vec![(EventId(3), 3)], parked, ..old.commit(0, None) };
    for keep in [false, true] {
        let mut transaction = store.pool().begin().await.unwrap();
        assert_eq!(commit_partition(&mut transaction, &commit).await, Ok(CommitResult::Committed));
        if keep {
            transaction.commit().await.unwrap()
        } else {
            transaction.rollback().await.unwrap()
        }
        assert_eq!(store.parked_keys(&group(), 0).await.unwrap().len(), usize::from(keep));
    }
    let nowhere = ParkEventRequest { offset: 1, ..commit.parked[0].clone() };
    let wrong = PartitionCommit { parked: vec![nowhere], ..commit.clone() };
    let mut transaction = store.pool().begin().await.unwrap();
    assert_eq!(commit_partition(&mut transaction, &wrong).await.unwrap_err().kind, ErrorKind::Request);
    transaction.rollback().await.unwrap();
    store.release_partitions(&group(), &[(0, commit.token)]).await.unwrap();
    let mut new = TestConsumer::join(&store, "new").await;
    assert_eq!((new.leases[&0].offset, &new.leases[&0].processed_event_ids), (0, &vec![EventId(3)]));
    assert_eq!(new.leases[&0].parked_keys[0].event_id, EventId(2));
    for offset in [2, 3] {
        let mut transaction = store.pool().begin().await.unwrap();
        let commit = new.commit(0, Some(offset));
        assert_eq!(commit_partition(&mut transaction, &commit).await, Ok(CommitResult::Committed));
        transaction.commit().await.unwrap();
        let rows = store.pool().fetch_one("SELECT count(*) FROM tenure_processed_events").await.unwrap();
        assert_eq!(rows.get::<i64, _>(0), i64::from(offset < 3));
    }
    new.release(&[(0, new.leases[&0].token)]).await;
    assert_eq!(
        store.group_assignment(&group()).await.unwrap().unwrap().partition_leases[0].committed_offset,
        3
    );
}

#[tokio::test]
async fn a_long_write_transaction_causes_a_timeout() {
    let (store, _dir) = fresh(4).await;
    let consumer = TestConsumer::join(&store, "a").await;
    store.publish(&topic(), &[keyed("a", 1)]).await.unwrap();
    let read = consumer.read(10).await;
    let short_timeout = SqliteOptions::new(store.path()).busy_timeout(Duration::from_millis(20));
    let other = SqliteStore::open(short_timeout).await.unwrap();
    let long = store.pool().begin_with("BEGIN IMMEDIATE").await.unwrap();
    let commits = consumer.commits(&read);
    assert_eq!(other.publish(&topic(), &[keyed("a", 2)]).await.unwrap_err().kind, ErrorKind::Timeout);
    assert_eq!(other.commit_partitions(&commits).await.unwrap_err().kind, ErrorKind::Timeout);
    assert_eq!(all_events(&other, 4).await.len(), 1, "reads continue");
    long.rollback().await.unwrap();
    assert_eq!(other.publish(&topic(), &[keyed("a", 2)]).await.unwrap()[0].id.0, 2);
    assert_eq!(other.commit_partitions(&commits).await.unwrap(), [CommitResult::Committed]);
}

/// A member in its own process: it records the events in the transaction of the commit. When it has lost a partition, it reports this and
/// joins again with a new session.
pub(crate) async fn consume(store: SqliteStore) {
    let pool = store.pool().clone();
    loop {
        let mut consumer = TestConsumer::new(&store, "child").await;
        consumer.assignment().await;
        print_line(consumer.session().as_str());
        'member: loop {
            let assignment = store.group_assignment(&group()).await.unwrap().unwrap();
            let balance = plan_rebalance(&assignment, consumer.session());
            consumer.release(&balance.release).await;
            consumer.take(balance.take).await;
            let read = consumer.read(1_000).await;
            let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
            for event in &read {
                let Payload::Json(n) = &event.payload else { panic!("{event:?}") };
                let put =
                    sqlx::query("INSERT INTO effects VALUES (?1, ?2, ?3)").bind(event.id.0.cast_signed());
                let put = put.bind(&event.key).bind(n.parse::<i64>().unwrap());
                put.execute(&mut *transaction).await.unwrap();
            }
            for commit in consumer.commits(&read) {
                if commit_partition(&mut transaction, &commit).await.unwrap() == CommitResult::LeaseLost {
                    transaction.rollback().await.unwrap();
                    print_line("lease lost");
                    break 'member;
                }
                consumer.leases.get_mut(&commit.partition).unwrap().offset = commit.offset.unwrap();
            }
            transaction.commit().await.unwrap();
            // Give other writers a chance to get the lock.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// The number of keys of each process: enough for every partition.
const KEYS: u64 = 24;

/// A process that publishes to its own keys until it must stop, and prints the number of events.
pub(crate) async fn produce(store: SqliteStore, must_stop: impl Fn() -> bool) {
    let mut n = 0;
    while !must_stop() {
        let id = std::process::id();
        let events: Vec<_> = (0..KEYS).map(|key| keyed(&format!("{id}-{key}"), n)).collect();
        store.publish(&topic(), &events).await.unwrap();
        n += 1;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    print_line(&(KEYS * n).to_string());
}

/// Processes publish while consumers read and expire. Every event has one effect, in order.
#[tokio::test(flavor = "multi_thread")]
async fn many_processes_neither_lose_nor_duplicate_nor_reorder_events() {
    let (store, _dir) = fresh(8).await;
    store.pool().execute("CREATE TABLE effects (event INTEGER, key TEXT, n INTEGER)").await.unwrap();
    // The group has had no members yet, so the first ones take partitions at once.
    store.set_group(&group(), &GroupSettings::default(), StartOffset::Earliest).await.unwrap();
    let mut consumers: Vec<_> = (0..3).map(|_| Child::spawn("consumer", store.path())).collect();
    let mut producers: Vec<_> = (0..2).map(|_| Child::spawn("producer", store.path())).collect();
    let mut lost_leases = 0;
    for consumer in &mut consumers {
        let mut session = consumer.read_line();
        for _ in 0..2 {
            let id = SessionId::from_stored(&session);
            // Wait until the consumer holds a partition.
            while store
                .group_assignment(&group())
                .await
                .unwrap()
                .unwrap()
                .partition_leases
                .iter()
                .all(|it| it.holder.as_ref() != Some(&id))
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            store
                .expire_session(&ExpireSessionRequest { session: id, epoch: 0, heartbeat_count: Some(0) })
                .await
                .unwrap();
            assert_eq!(consumer.read_line(), "lease lost");
            lost_leases += 1;
            session = consumer.read_line();
        }
    }
    let mut total = 0;
    for producer in &mut producers {
        producer.write_line("stop");
        total += producer.read_line().parse::<i64>().unwrap();
    }
    while count(&store).await < total {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(consumers);
    assert_eq!((count(&store).await, lost_leases), (total, 6));
    let rows = store.pool().fetch_all("SELECT key, n FROM effects ORDER BY rowid").await.unwrap();
    let mut next = std::collections::BTreeMap::new();
    for row in rows {
        let (key, n): (String, i64) = (row.get(0), row.get(1));
        let expected = next.entry(key.clone()).or_insert(0);
        assert_eq!(n, *expected, "{key}");
        *expected += 1;
    }
    assert_eq!(next.len() as u64, 2 * KEYS);
}

async fn count(store: &SqliteStore) -> i64 {
    store.pool().fetch_one("SELECT count(*) FROM effects").await.unwrap().get(0)
}

/// The death of a killed member is detected at once, and its partitions are free.
#[tokio::test(flavor = "multi_thread")]
async fn the_partitions_of_a_killed_member_are_taken_at_once() {
    let (store, _dir) = fresh(8).await;
    store.pool().execute("CREATE TABLE effects (event INTEGER, key TEXT, n INTEGER)").await.unwrap();
    let mut child = Child::spawn("consumer", store.path());
    let session = SessionId::from_stored(&child.read_line());
    let held = async || {
        let assignment = store.group_assignment(&group()).await.unwrap();
        assignment.map_or(0, |assignment| {
            assignment.partition_leases.iter().filter(|lease| lease.holder.is_some()).count()
        })
    };
    while held().await < 8 {
        tokio::task::yield_now().await;
    }
    let before = store.group_assignment(&group()).await.unwrap().unwrap();
    let successor = TestConsumer::join(&store, "successor").await;
    assert!(successor.leases.is_empty(), "the member is alive");
    child.kill();
    store.expire_session(&ExpireSessionRequest { session, epoch: 0, heartbeat_count: None }).await.unwrap();
    let mut successor = successor;
    successor.take_free().await;
    assert_eq!(successor.leases.len(), 8);
    assert!(
        before.partition_leases.iter().all(|lease| successor.leases[&lease.partition].token > lease.token)
    );
    assert_eq!(store.group(&group()).await.unwrap().unwrap().rebalanced_partition_count, 8);
}
