//! Order of events: a reader never skips a committed event, whatever transactions run concurrently.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure::store::postgres::{PostgresOptions, PostgresStore, publish};
use tenure_core::port::{
    ElectionStore, Event, EventAdmin, EventStore, Notification, ReadEventsRequest, TopicSettings,
};
use tenure_core::rules::event::partition_for_key;
use tenure_testkit::rig::{FreshDatabase, PgCluster};

use crate::claims_plans::inject_function_bug;
use crate::events::*;
use crate::notifications::{listening, wait_for};
use crate::support::*;

type Tx = sqlx::Transaction<'static, sqlx::Postgres>;

async fn run(tx: &mut Tx, sql: &'static str) {
    sqlx::raw_sql(sql).execute(&mut **tx).await.unwrap();
}

/// Publishes an event in a user's transaction, which has no lock timeout.
async fn publish_in_transaction(store: PostgresStore, number: u64) {
    let mut tx = store.pool().begin().await.unwrap();
    publish(&mut tx, &topic("t"), &[keyed("k", number)]).await.unwrap();
    tx.commit().await.unwrap();
}

/// A reader that remembers its offset in each partition.
struct Reader {
    store: PostgresStore,
    after: Vec<(u32, u64)>,
    seen: Vec<Event>,
}

impl Reader {
    fn new(store: &PostgresStore, partitions: u32) -> Reader {
        let after = (0..partitions).map(|partition| (partition, 0)).collect();
        Reader { store: store.clone(), after, seen: vec![] }
    }

    /// Reads the next events and returns their number.
    async fn read(&mut self) -> usize {
        let read = ReadEventsRequest { topic: topic("t"), after: self.after.clone(), limit: 100 };
        let events = self.store.read_events(&read).await.unwrap();
        for event in &events {
            assert!(event.offset >= self.after[event.partition as usize].1);
            self.after[event.partition as usize].1 = event.offset;
        }
        self.seen.extend(events.iter().cloned());
        events.len()
    }
}

/// Removes the partition lock from all functions that publish.
fn without_locks(database: &FreshDatabase) {
    for function in ["tenure.assign_offsets_on_commit", "tenure.write_commit_batches", "tenure.publish_event"]
    {
        inject_function_bug(database, function, &[(" FOR UPDATE;", ";")]);
    }
}

/// One transaction gets its offset and commits late; another transaction commits in between, and a reader reads. Returns what
/// the reader has read at the end, and whether the second transaction had to wait.
async fn commits_out_of_order(database: &FreshDatabase, store: &PostgresStore) -> (Vec<u64>, bool) {
    let mut slow = store.pool().begin().await.unwrap();
    publish(&mut slow, &topic("t"), &[keyed("k", 1)]).await.unwrap();
    run(&mut slow, "SET CONSTRAINTS ALL IMMEDIATE").await;
    let fast = tokio::spawn(publish_in_transaction(store.clone(), 2));
    while !fast.is_finished() && blocked(database) == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let waited = !fast.is_finished();
    let mut reader = Reader::new(store, 1);
    reader.read().await;
    slow.commit().await.unwrap();
    fast.await.unwrap();
    while reader.read().await > 0 {}
    (payloads(&reader.seen), waited)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_at_an_offset_has_missed_no_earlier_event() {
    let (database, store) = with_topic(1).await;
    assert_eq!(commits_out_of_order(&database, &store).await, (vec![1, 2], true));
}

/// Negative control: offsets from a sequence without the lock.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_lock_an_event_is_lost() {
    let (database, store) = with_topic(1).await;
    without_locks(&database);
    assert_eq!(commits_out_of_order(&database, &store).await, (vec![2], false), "the control has no effect");
}

/// Many writers publish to few partitions, with single calls and in transactions, while a reader reads. Returns how many
/// committed events the reader missed.
async fn missed_events(store: &PostgresStore) -> usize {
    const WRITERS: u64 = 8;
    const EACH: u64 = 25;
    let writers = (0..WRITERS).map(|writer| {
        let store = store.clone();
        tokio::spawn(async move {
            for n in 0..EACH {
                let number = writer * EACH + n;
                let event = keyed(&format!("k{}", number % 7), number);
                if n % 3 == 0 {
                    store.publish(&topic("t"), &[event]).await.unwrap();
                    continue;
                }
                let mut tx = store.pool().begin().await.unwrap();
                publish(&mut tx, &topic("t"), &[event]).await.unwrap();
                tx.commit().await.unwrap();
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    let mut reader = Reader::new(store, 2);
    while writers.iter().any(|writer| !writer.is_finished()) {
        reader.read().await;
    }
    for writer in writers {
        writer.await.unwrap();
    }
    while reader.read().await > 0 {}
    let numbers = payloads(&reader.seen);
    let seen: BTreeSet<u64> = numbers.iter().copied().collect();
    assert_eq!(seen.len(), numbers.len(), "some events were read twice");
    // The events of a writer with the same key are in the order in which it published them.
    for writer in 0..WRITERS {
        for key in 0..7 {
            let own = numbers.iter().filter(|n| **n / EACH == writer && **n % 7 == key);
            assert!(own.is_sorted());
        }
    }
    (WRITERS * EACH) as usize - seen.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_sees_the_events_of_concurrent_writers_once_and_in_order() {
    let (_database, store) = with_topic(2).await;
    assert_eq!(missed_events(&store).await, 0);
}

/// Negative control: as above, with a delay between the offset and the commit.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_lock_a_reader_misses_events_of_concurrent_writers() {
    let (database, store) = with_topic(2).await;
    without_locks(&database);
    let delay = "PERFORM pg_sleep(random() * 0.02); IF has_waiter THEN";
    for function in ["tenure.assign_offsets_on_commit", "tenure.publish_event"] {
        inject_function_bug(&database, function, &[("IF has_waiter THEN", delay)]);
    }
    assert!(missed_events(&store).await > 0, "the control has no effect");
}

/// Two transactions publish to the same partitions in opposite order. Returns whether each of them committed.
async fn publish_in_opposite_order(store: &PostgresStore, database: &FreshDatabase) -> Vec<bool> {
    let slow = (" FOR UPDATE;", " FOR UPDATE; PERFORM pg_sleep(0.3);");
    inject_function_bug(database, "tenure.write_commit_batches", &[slow]);
    let one = async |keys: [&str; 2], name: &'static str| {
        let mut tx = store.pool().begin().await.unwrap();
        run(&mut tx, name).await;
        for key in keys {
            publish(&mut tx, &topic("t"), &[keyed(key, 1)]).await.unwrap();
        }
        tx.commit().await.is_ok()
    };
    let forward = one(["a", "b"], "SET LOCAL application_name = 'forward'");
    let backward = one(["b", "a"], "SET LOCAL application_name = 'backward'");
    let (forward, backward) = tokio::join!(forward, backward);
    vec![forward, backward]
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_lock_partitions_in_one_order() {
    assert_ne!(partition_for_key("a", 64), partition_for_key("b", 64));
    let (database, store) = with_topic(64).await;
    assert_eq!(publish_in_opposite_order(&store, &database).await, [true, true]);
    assert_eq!(all(&store, 64).await.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_that_order_transactions_deadlock() {
    let (database, store) = with_topic(64).await;
    let reversed = "FOR m IN 1..cardinality(topic_ids) LOOP
            n := CASE current_setting('application_name') WHEN 'backward' THEN cardinality(topic_ids) + 1 - m ELSE m END;";
    let changes = [
        ("FOR n IN 1..cardinality(topic_ids) LOOP", reversed),
        ("\nBEGIN\n", "\nDECLARE n integer;\nBEGIN\n"),
    ];
    inject_function_bug(&database, "tenure.write_commit_batches", &changes);
    let committed = publish_in_opposite_order(&store, &database).await;
    assert_eq!(committed.iter().filter(|committed| **committed).count(), 1, "the control has no effect");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_rolled_back_to_a_savepoint_are_not_published() {
    let (database, store) = with_topic(1).await;
    let mut tx = store.pool().begin().await.unwrap();
    // The rollback removes the first event, and with it the transaction_id that the later events would share.
    run(&mut tx, "SAVEPOINT a").await;
    publish(&mut tx, &topic("t"), &[keyed("k", 99)]).await.unwrap();
    run(&mut tx, "ROLLBACK TO a").await;
    publish(&mut tx, &topic("t"), &[keyed("k", 1)]).await.unwrap();
    run(&mut tx, "SAVEPOINT b").await;
    publish(&mut tx, &topic("t"), &[keyed("k", 99), keyed("k", 99)]).await.unwrap();
    run(&mut tx, "SET CONSTRAINTS ALL IMMEDIATE; ROLLBACK TO b").await;
    publish(&mut tx, &topic("t"), &[keyed("k", 2)]).await.unwrap();
    run(&mut tx, "SAVEPOINT c").await;
    publish(&mut tx, &topic("t"), &[keyed("k", 3)]).await.unwrap();
    run(&mut tx, "RELEASE c").await;
    run(
        &mut tx,
        "DO $$ BEGIN PERFORM tenure.publish('t', '99', key => 'k'); RAISE EXCEPTION 'no';
         EXCEPTION WHEN raise_exception THEN PERFORM tenure.publish('t', '4', key => 'k'); END $$",
    )
    .await;
    tx.commit().await.unwrap();
    // A transaction that ends right after a rollback to a savepoint.
    let mut tx = store.pool().begin().await.unwrap();
    publish(&mut tx, &topic("t"), &[keyed("k", 5)]).await.unwrap();
    run(&mut tx, "SAVEPOINT d").await;
    publish(&mut tx, &topic("t"), &[keyed("k", 99)]).await.unwrap();
    run(&mut tx, "ROLLBACK TO d").await;
    tx.commit().await.unwrap();
    let read = all(&store, 1).await;
    assert_eq!(payloads(&read), [1, 2, 3, 4, 5]);
    assert!(read[0].offset == read[3].offset && read[3].offset < read[4].offset);
    assert_eq!(database.psql("SELECT count(*) FROM tenure.commit_batches").unwrap(), "2");
}

/// After `SET CONSTRAINTS … IMMEDIATE`, and from a deferred trigger of the user: these events get their offsets separately.
#[tokio::test(flavor = "multi_thread")]
async fn events_published_while_the_transaction_commits_get_offsets() {
    let (database, store) = with_topic(1).await;
    database
        .psql(
            "CREATE TABLE paid (n integer);
             CREATE FUNCTION publish_paid() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN PERFORM tenure.publish('t', to_jsonb(NEW.n), key => 'k'); RETURN NULL; END $$;
             CREATE CONSTRAINT TRIGGER z_publish_paid AFTER INSERT ON paid DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION publish_paid()",
        )
        .unwrap();
    let mut tx = store.pool().begin().await.unwrap();
    publish(&mut tx, &topic("t"), &[keyed("k", 1)]).await.unwrap();
    run(&mut tx, "INSERT INTO paid VALUES (2), (3)").await;
    tx.commit().await.unwrap();
    let mut tx = store.pool().begin().await.unwrap();
    publish(&mut tx, &topic("t"), &[keyed("k", 4)]).await.unwrap();
    run(&mut tx, "SET CONSTRAINTS ALL IMMEDIATE").await;
    publish(&mut tx, &topic("t"), &[keyed("k", 5), keyed("k", 6)]).await.unwrap();
    run(&mut tx, "SET CONSTRAINTS ALL DEFERRED").await;
    publish(&mut tx, &topic("t"), &[keyed("k", 7)]).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(payloads(&all(&store, 1).await), [1, 2, 3, 4, 5, 6, 7]);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_isolation_level_keeps_the_order_of_commits() {
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        let (_database, store) = with_topic(1).await;
        let mut early = store.pool().begin().await.unwrap();
        let begin = format!("SET TRANSACTION ISOLATION LEVEL {level}; SELECT 1 FROM tenure.topics");
        sqlx::raw_sql(sqlx::AssertSqlSafe(begin)).execute(&mut *early).await.unwrap();
        publish(&mut early, &topic("t"), &[keyed("k", 2)]).await.unwrap();
        store.publish(&topic("t"), &[keyed("k", 1)]).await.unwrap();
        assert_eq!(payloads(&all(&store, 1).await), [1], "{level}");
        early.commit().await.unwrap();
        let read = all(&store, 1).await;
        assert_eq!(payloads(&read), [1, 2], "{level}");
        assert!(read[0].id > read[1].id, "{level}: in commit order, not in the order of event ids");
    }
}

/// A transaction with one snapshot cannot see waiters registered after its start, and notifies to be safe.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_is_notified_by_a_transaction_that_started_before_it_registered() {
    for level in ["READ COMMITTED", "REPEATABLE READ"] {
        let (_database, store) = with_topic(1).await;
        opened(&store, "s").await;
        let mut notifications = listening(&store).await;
        let mut early = store.pool().begin().await.unwrap();
        let begin = format!("SET TRANSACTION ISOLATION LEVEL {level}; SELECT 1 FROM tenure.topics");
        sqlx::raw_sql(sqlx::AssertSqlSafe(begin)).execute(&mut *early).await.unwrap();
        publish(&mut early, &topic("t"), &[keyed("k", 1)]).await.unwrap();
        store.register_topic_waiter(&id("s"), &topic("t")).await.unwrap();
        early.commit().await.unwrap();
        wait_for(&mut notifications, &Notification::TopicPublished(topic("t"))).await;
    }
}

/// A publisher checks for waiters before it commits, so it does not notify a waiter that registers after the check.
/// The read that follows the registration must find the event.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_registers_during_a_commit_finds_the_event() {
    let (_database, store) = with_topic(1).await;
    opened(&store, "s").await;
    let mut committing = store.pool().begin().await.unwrap();
    publish(&mut committing, &topic("t"), &[keyed("k", 1)]).await.unwrap();
    run(&mut committing, "SET CONSTRAINTS ALL IMMEDIATE").await;
    let other = store.clone();
    let registering = tokio::spawn(async move { other.register_topic_waiter(&id("s"), &topic("t")).await });
    tokio::time::sleep(Duration::from_millis(20)).await;
    let waits = !registering.is_finished();
    committing.commit().await.unwrap();
    registering.await.unwrap().unwrap();
    assert!(waits, "the registration waits for the commit");
    assert_eq!(payloads(&all(&store, 1).await), [1]);
}

/// Regression test: publishers at REPEATABLE READ sent a NOTIFY with every commit, which takes a lock of the whole server.
#[tokio::test(flavor = "multi_thread")]
async fn without_waiters_no_isolation_level_notifies() {
    let (database, store) = with_topic(1).await;
    opened(&store, "s").await;
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        store.register_topic_waiter(&id("s"), &topic("t")).await.unwrap();
        store.publish(&topic("t"), &[keyed("k", 1)]).await.unwrap();
        // Pretend that the last registration is old.
        database.psql("SELECT setval('tenure.topic_wait_times_1', 1)").unwrap();
        let publish = "SELECT tenure.publish('t', key => 'k')";
        let script = format!(
            "LISTEN tenure_notify; BEGIN ISOLATION LEVEL {level}; {publish}; COMMIT; BEGIN ISOLATION LEVEL {level}; {publish}; {publish}; \
             COMMIT; NOTIFY tenure_notify, 'the end'; SELECT 1"
        );
        let output = database.psql(&script).unwrap();
        let received: Vec<_> =
            output.lines().filter(|line| line.contains("Asynchronous notification")).collect();
        assert_eq!(received.len(), 1, "{level}: {received:?}");
        assert!(received[0].contains("the end"), "{level}: {received:?}");
    }
}

/// Repeated registrations add no rows, and a notification is recorded at every isolation level.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_registration_adds_no_row() {
    let (database, store) = with_topic(1).await;
    opened(&store, "s").await;
    let waiters =
        || database.psql("SELECT count(*), bool_or(NOT notified) FROM tenure.topic_waiters").unwrap();
    for _ in 0..3 {
        store.register_topic_waiter(&id("s"), &topic("t")).await.unwrap();
    }
    assert_eq!(waiters(), "1|t");
    // A publisher has recorded its notification and has not committed. A registration now does not wait for it, and
    // the commit notifies the waiter.
    let mut notifications = listening(&store).await;
    let mut slow = store.pool().begin().await.unwrap();
    publish(&mut slow, &topic("t"), &[keyed("k", 1)]).await.unwrap();
    run(&mut slow, "SET CONSTRAINTS ALL IMMEDIATE").await;
    store.register_topic_waiter(&id("s"), &topic("t")).await.unwrap();
    slow.commit().await.unwrap();
    wait_for(&mut notifications, &Notification::TopicPublished(topic("t"))).await;
    assert_eq!(waiters(), "1|f");
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        store.register_topic_waiter(&id("s"), &topic("t")).await.unwrap();
        let mut tx = store.pool().begin().await.unwrap();
        let begin = format!("SET TRANSACTION ISOLATION LEVEL {level}; SELECT 1 FROM tenure.topics");
        sqlx::raw_sql(sqlx::AssertSqlSafe(begin)).execute(&mut *tx).await.unwrap();
        publish(&mut tx, &topic("t"), &[keyed("k", 2)]).await.unwrap();
        tx.commit().await.unwrap();
        wait_for(&mut notifications, &Notification::TopicPublished(topic("t"))).await;
        let last = "SELECT notified FROM tenure.topic_waiters ORDER BY seq DESC, notified DESC LIMIT 1";
        assert_eq!(database.psql(last).unwrap(), "t", "{level}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_holder_of_a_partition_lock_is_reported() {
    let (database, store) = with_topic(4).await;
    let partition = partition_for_key("k", 4);
    let mut slow = store.pool().begin().await.unwrap();
    run(&mut slow, "SET application_name = 'slow writer'").await;
    publish(&mut slow, &topic("t"), &[keyed("k", 1)]).await.unwrap();
    let lock_holders = async || store.topic(&topic("t")).await.unwrap().unwrap().lock_holders;
    assert_eq!(lock_holders().await, [], "an open transaction blocks no publisher before its commit");
    store.publish(&topic("t"), &[keyed("k", 2)]).await.unwrap();
    run(&mut slow, "SET CONSTRAINTS ALL IMMEDIATE").await;
    let waiting = tokio::spawn(publish_in_transaction(store.clone(), 3));
    until_blocked(&database, 1).await;
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *slow).await.unwrap();
    let found = lock_holders().await;
    assert_eq!(found.len(), 1, "{found:?}");
    let holder = &found[0];
    assert_eq!((holder.partition, holder.pid, holder.waiting_transactions), (partition, pid.into(), 1));
    assert!(holder.client.contains("slow writer") && holder.client.contains("postgres"), "{holder:?}");
    assert_eq!(holder.activity, "idle in transaction");
    // Other partitions are not blocked.
    let others =
        ["a", "b", "c", "d", "e"].into_iter().find(|key| partition_for_key(key, 4) != partition).unwrap();
    store.publish(&topic("t"), &[keyed(others, 4)]).await.unwrap();
    slow.rollback().await.unwrap();
    waiting.await.unwrap();
    assert_eq!(lock_holders().await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_transaction_keeps_its_offset_until_it_is_committed() {
    let cluster = PgCluster::builder().settings(&[("max_prepared_transactions", "5")]).start().unwrap();
    let store = migrated(&cluster.url()).await;
    store.set_topic(&topic("t"), &TopicSettings { partitions: 1, ..TopicSettings::default() }).await.unwrap();
    opened(&store, "s").await;
    // A transaction that sends notifications cannot be prepared.
    store.register_topic_waiter(&id("s"), &topic("t")).await.unwrap();
    let sql = "BEGIN; SELECT tenure.publish('t', '1', key => 'k'); SELECT tenure.publish('t', '2', key => 'k'); \
               PREPARE TRANSACTION 'an order';";
    let mut connection = store.pool().acquire().await.unwrap();
    for statement in sql.split_inclusive(';') {
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&mut *connection).await.unwrap();
    }
    let view = store.topic(&topic("t")).await.unwrap().unwrap();
    assert_eq!(view.lock_holders.len(), 1, "{view:?}");
    assert!(view.lock_holders[0].client.contains("'an order'"), "{view:?}");
    let error = store.publish(&topic("t"), &[keyed("k", 3)]).await.unwrap_err();
    assert_eq!(error.kind, tenure_core::port::ErrorKind::Timeout, "{error}");
    assert_eq!(all(&store, 1).await, []);
    cluster.psql("postgres", "COMMIT PREPARED 'an order'").unwrap();
    store.publish(&topic("t"), &[keyed("k", 4)]).await.unwrap();
    assert_eq!(payloads(&all(&store, 1).await), [1, 2, 4]);
    // The connection that prepared it works as before.
    let other = PostgresStore::connect(PostgresOptions::new(cluster.url())).await.unwrap();
    assert!(other.heartbeat(&id("s")).await.is_ok());
    sqlx::raw_sql("SELECT tenure.publish('t', '5', key => 'k')").execute(&mut *connection).await.unwrap();
    assert_eq!(payloads(&all(&store, 1).await), [1, 2, 4, 5]);
}
