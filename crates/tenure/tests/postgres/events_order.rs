//! Nothing that is committed is skipped, whatever transactions do.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure::backend::postgres::{Postgres, PostgresOptions, publish};
use tenure_core::event::slot_of;
use tenure_core::port::{Bureau, Event, Events, ReadAsk, Store, TopicSettings, Wake};
use tenure_testkit::rig::{FreshDatabase, PgCluster};

use crate::claims_plans::sabotage_function;
use crate::events::*;
use crate::support::*;
use crate::wakes::{hearing, until};

type Tx = sqlx::Transaction<'static, sqlx::Postgres>;

async fn run(tx: &mut Tx, sql: &'static str) {
    sqlx::raw_sql(sql).execute(&mut **tx).await.unwrap();
}

/// Publishes an event in a transaction that waits for as long as it takes, as a user's does.
async fn patiently(store: Postgres, number: u64) {
    let mut tx = store.pool().begin().await.unwrap();
    publish(&mut tx, &topic("t"), &[keyed("k", number)]).await.unwrap();
    tx.commit().await.unwrap();
}

/// A reader with a cursor.
struct Reader {
    store: Postgres,
    after: Vec<(u32, u64)>,
    seen: Vec<Event>,
}

impl Reader {
    fn of(store: &Postgres, slots: u32) -> Reader {
        Reader { store: store.clone(), after: (0..slots).map(|slot| (slot, 0)).collect(), seen: vec![] }
    }

    /// Reads what there is after the cursor; how much that was.
    async fn read(&mut self) -> usize {
        let read = ReadAsk { topic: topic("t"), after: self.after.clone(), limit: 100 };
        let events = self.store.read_events(&read).await.unwrap();
        for event in &events {
            assert!(event.position >= self.after[event.slot as usize].1);
            self.after[event.slot as usize].1 = event.position;
        }
        self.seen.extend(events.iter().cloned());
        events.len()
    }
}

/// Takes the lock of a slot out of everything that publishes.
fn without_locks(database: &FreshDatabase) {
    for function in ["tenure.place_batch", "tenure.place_units", "tenure.publish_one"] {
        sabotage_function(database, function, &[(" FOR UPDATE;", ";")]);
    }
}

/// One draws its position and takes its time to commit; another commits meanwhile, and a reader reads. What the reader has seen when
/// all is over; and whether the other had to wait.
async fn overtaking(database: &FreshDatabase, store: &Postgres) -> (Vec<u64>, bool) {
    let mut slow = store.pool().begin().await.unwrap();
    publish(&mut slow, &topic("t"), &[keyed("k", 1)]).await.unwrap();
    run(&mut slow, "SET CONSTRAINTS ALL IMMEDIATE").await;
    let fast = tokio::spawn(patiently(store.clone(), 2));
    while !fast.is_finished() && blocked(database) == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let waited = !fast.is_finished();
    let mut reader = Reader::of(store, 1);
    reader.read().await;
    slow.commit().await.unwrap();
    fast.await.unwrap();
    while reader.read().await > 0 {}
    (payloads(&reader.seen), waited)
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_read_up_to_a_position_has_missed_nothing_before_it() {
    let (database, store) = with_topic(1).await;
    assert_eq!(overtaking(&database, &store).await, (vec![1, 2], true));
}

/// The known mistake: positions from a sequence, and no lock.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_lock_an_event_is_lost() {
    let (database, store) = with_topic(1).await;
    without_locks(&database);
    assert_eq!(
        overtaking(&database, &store).await,
        (vec![2], false),
        "the control no longer controls anything"
    );
}

/// Many write to few slots, in transactions of their own and others'; a reader reads all the while. How many of all that was
/// committed it never sees.
async fn lost_among_many(store: &Postgres) -> usize {
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
    let mut reader = Reader::of(store, 2);
    while writers.iter().any(|writer| !writer.is_finished()) {
        reader.read().await;
    }
    for writer in writers {
        writer.await.unwrap();
    }
    while reader.read().await > 0 {}
    let numbers = payloads(&reader.seen);
    let seen: BTreeSet<u64> = numbers.iter().copied().collect();
    assert_eq!(seen.len(), numbers.len(), "some were read twice");
    // Each writer's own events of a key are in its order.
    for writer in 0..WRITERS {
        for key in 0..7 {
            let own = numbers.iter().filter(|n| **n / EACH == writer && **n % 7 == key);
            assert!(own.is_sorted());
        }
    }
    (WRITERS * EACH) as usize - seen.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_among_writers_sees_everything_once_and_in_order() {
    let (_database, store) = with_topic(2).await;
    assert_eq!(lost_among_many(&store).await, 0);
}

/// As above, with writers that dawdle between the position and the commit.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_lock_a_reader_among_writers_loses_events() {
    let (database, store) = with_topic(2).await;
    without_locks(&database);
    let dawdle = "PERFORM pg_sleep(random() * 0.02); IF rings THEN";
    for function in ["tenure.place_batch", "tenure.publish_one"] {
        sabotage_function(&database, function, &[("IF rings THEN", dawdle)]);
    }
    assert!(lost_among_many(&store).await > 0, "the control no longer controls anything");
}

/// Two transactions publish to the same slots, the one this way round and the other that way round; how they end.
async fn head_on(store: &Postgres, database: &FreshDatabase) -> Vec<bool> {
    let slow = (" FOR UPDATE;", " FOR UPDATE; PERFORM pg_sleep(0.3);");
    sabotage_function(database, "tenure.place_units", &[slow]);
    let one = async |keys: [&str; 2], name: &'static str| {
        let mut tx = store.pool().begin().await.unwrap();
        run(&mut tx, name).await;
        for key in keys {
            publish(&mut tx, &topic("t"), &[keyed(key, 1)]).await.unwrap();
        }
        tx.commit().await.is_ok()
    };
    let there = one(["a", "b"], "SET LOCAL application_name = 'there'");
    let back = one(["b", "a"], "SET LOCAL application_name = 'back'");
    let (there, back) = tokio::join!(there, back);
    vec![there, back]
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_that_meet_in_several_slots_wait_for_each_other_in_one_order() {
    assert_ne!(slot_of("a", 64), slot_of("b", 64));
    let (database, store) = with_topic(64).await;
    assert_eq!(head_on(&store, &database).await, [true, true]);
    assert_eq!(all(&store, 64).await.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_order_they_deadlock() {
    let (database, store) = with_topic(64).await;
    let backwards = "FOR m IN 1..cardinality(topics) LOOP
            n := CASE current_setting('application_name') WHEN 'back' THEN cardinality(topics) + 1 - m ELSE m END;";
    let changes =
        [("FOR n IN 1..cardinality(topics) LOOP", backwards), ("\nBEGIN\n", "\nDECLARE n integer;\nBEGIN\n")];
    sabotage_function(&database, "tenure.place_units", &changes);
    let ended = head_on(&store, &database).await;
    assert_eq!(ended.iter().filter(|well| **well).count(), 1, "the control no longer controls anything");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_rolled_back_to_a_savepoint_was_never_published() {
    let (database, store) = with_topic(1).await;
    let mut tx = store.pool().begin().await.unwrap();
    // The first of the transaction goes, and with it the batch.
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
    // And one of which nothing else is left.
    let mut tx = store.pool().begin().await.unwrap();
    publish(&mut tx, &topic("t"), &[keyed("k", 5)]).await.unwrap();
    run(&mut tx, "SAVEPOINT d").await;
    publish(&mut tx, &topic("t"), &[keyed("k", 99)]).await.unwrap();
    run(&mut tx, "ROLLBACK TO d").await;
    tx.commit().await.unwrap();
    let read = all(&store, 1).await;
    assert_eq!(payloads(&read), [1, 2, 3, 4, 5]);
    assert!(read[0].position == read[3].position && read[3].position < read[4].position);
    assert_eq!(database.psql("SELECT count(*) FROM tenure.event_units").unwrap(), "2");
}

/// After `SET CONSTRAINTS … IMMEDIATE`, and from a deferred trigger of the user's own: another batch, which is placed as well.
#[tokio::test(flavor = "multi_thread")]
async fn who_publishes_while_the_transaction_ends_is_heard_too() {
    let (database, store) = with_topic(1).await;
    database
        .psql(
            "CREATE TABLE paid (n integer);
             CREATE FUNCTION told() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN PERFORM tenure.publish('t', to_jsonb(NEW.n), key => 'k'); RETURN NULL; END $$;
             CREATE CONSTRAINT TRIGGER z_told AFTER INSERT ON paid DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION told()",
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
        assert!(read[0].id > read[1].id, "{level}: in the order of commits, not of numbers");
    }
}

/// A transaction with one snapshot can not know who went to sleep after it began, and rings to be sure.
#[tokio::test(flavor = "multi_thread")]
async fn a_sleeper_is_woken_by_a_transaction_that_began_before_it_slept() {
    for level in ["READ COMMITTED", "REPEATABLE READ"] {
        let (_database, store) = with_topic(1).await;
        opened(&store, "s").await;
        let mut wakes = hearing(&store).await;
        let mut early = store.pool().begin().await.unwrap();
        let begin = format!("SET TRANSACTION ISOLATION LEVEL {level}; SELECT 1 FROM tenure.topics");
        sqlx::raw_sql(sqlx::AssertSqlSafe(begin)).execute(&mut *early).await.unwrap();
        publish(&mut early, &topic("t"), &[keyed("k", 1)]).await.unwrap();
        store.doze_topic(&id("s"), &topic("t")).await.unwrap();
        early.commit().await.unwrap();
        until(&mut wakes, &Wake::Events(topic("t"))).await;
    }
}

/// Whoever publishes has looked for sleepers before it commits. Who goes to sleep in between is not rung for, and must find the event
/// when it looks for the last time.
#[tokio::test(flavor = "multi_thread")]
async fn who_goes_to_sleep_while_somebody_commits_finds_the_event() {
    let (_database, store) = with_topic(1).await;
    opened(&store, "s").await;
    let mut committing = store.pool().begin().await.unwrap();
    publish(&mut committing, &topic("t"), &[keyed("k", 1)]).await.unwrap();
    run(&mut committing, "SET CONSTRAINTS ALL IMMEDIATE").await;
    let sleeper = store.clone();
    let sleeping = tokio::spawn(async move { sleeper.doze_topic(&id("s"), &topic("t")).await });
    tokio::time::sleep(Duration::from_millis(20)).await;
    let waits = !sleeping.is_finished();
    committing.commit().await.unwrap();
    sleeping.await.unwrap().unwrap();
    assert!(waits, "for who commits");
    assert_eq!(payloads(&all(&store, 1).await), [1]);
}

/// Publishers at REPEATABLE READ sent a NOTIFY with every commit, which takes a lock of the whole database server.
#[tokio::test(flavor = "multi_thread")]
async fn who_publishes_with_one_snapshot_notifies_nobody_if_nobody_waits() {
    let (database, store) = with_topic(1).await;
    opened(&store, "s").await;
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        store.doze_topic(&id("s"), &topic("t")).await.unwrap();
        store.publish(&topic("t"), &[keyed("k", 1)]).await.unwrap();
        // As if that had been a while ago.
        database.psql("SELECT setval('tenure.event_waits_1', 1)").unwrap();
        let publish = "SELECT tenure.publish('t', key => 'k')";
        let script = format!(
            "LISTEN tenure_wake; BEGIN ISOLATION LEVEL {level}; {publish}; COMMIT; BEGIN ISOLATION LEVEL {level}; {publish}; {publish}; \
             COMMIT; NOTIFY tenure_wake, 'the end'; SELECT 1"
        );
        let heard = database.psql(&script).unwrap();
        let heard: Vec<_> = heard.lines().filter(|line| line.contains("Asynchronous notification")).collect();
        assert_eq!(heard.len(), 1, "{level}: {heard:?}");
        assert!(heard[0].contains("the end"), "{level}: {heard:?}");
    }
}

/// Whoever finds nothing again and again leaves no trail; and who notifies leaves a word of it, at every isolation level.
#[tokio::test(flavor = "multi_thread")]
async fn who_sleeps_again_is_not_counted_twice() {
    let (database, store) = with_topic(1).await;
    opened(&store, "s").await;
    let awaited = || database.psql("SELECT count(*), bool_or(NOT woken) FROM tenure.event_waiters").unwrap();
    for _ in 0..3 {
        store.doze_topic(&id("s"), &topic("t")).await.unwrap();
    }
    assert_eq!(awaited(), "1|t");
    // Somebody is about to wake it, and takes its time: who goes to sleep meanwhile does not wait for that, and is woken by it.
    let mut wakes = hearing(&store).await;
    let mut slow = store.pool().begin().await.unwrap();
    publish(&mut slow, &topic("t"), &[keyed("k", 1)]).await.unwrap();
    run(&mut slow, "SET CONSTRAINTS ALL IMMEDIATE").await;
    store.doze_topic(&id("s"), &topic("t")).await.unwrap();
    slow.commit().await.unwrap();
    until(&mut wakes, &Wake::Events(topic("t"))).await;
    assert_eq!(awaited(), "1|f");
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        store.doze_topic(&id("s"), &topic("t")).await.unwrap();
        let mut tx = store.pool().begin().await.unwrap();
        let begin = format!("SET TRANSACTION ISOLATION LEVEL {level}; SELECT 1 FROM tenure.topics");
        sqlx::raw_sql(sqlx::AssertSqlSafe(begin)).execute(&mut *tx).await.unwrap();
        publish(&mut tx, &topic("t"), &[keyed("k", 2)]).await.unwrap();
        tx.commit().await.unwrap();
        until(&mut wakes, &Wake::Events(topic("t"))).await;
        let last = "SELECT woken FROM tenure.event_waiters ORDER BY n DESC, woken DESC LIMIT 1";
        assert_eq!(database.psql(last).unwrap(), "t", "{level}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_holds_a_slot_up_is_known_by_name() {
    let (database, store) = with_topic(4).await;
    let slot = slot_of("k", 4);
    let mut slow = store.pool().begin().await.unwrap();
    run(&mut slow, "SET application_name = 'slow writer'").await;
    publish(&mut slow, &topic("t"), &[keyed("k", 1)]).await.unwrap();
    let blockers = async || store.topic(&topic("t")).await.unwrap().unwrap().blockers;
    assert_eq!(blockers().await, [], "a transaction that lasts holds up nobody");
    let free = store.publish(&topic("t"), &[keyed("k", 2)]).await;
    assert!(free.is_ok());
    run(&mut slow, "SET CONSTRAINTS ALL IMMEDIATE").await;
    let waiting = tokio::spawn(patiently(store.clone(), 3));
    until_blocked(&database, 1).await;
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *slow).await.unwrap();
    let found = blockers().await;
    assert_eq!(found.len(), 1, "{found:?}");
    let blocker = &found[0];
    assert_eq!((blocker.slot, blocker.pid, blocker.waiting), (slot, pid.into(), 1));
    assert!(blocker.who.contains("slow writer") && blocker.who.contains("postgres"), "{blocker:?}");
    assert_eq!(blocker.doing, "idle in transaction");
    // Other slots flow.
    let others = ["a", "b", "c", "d", "e"].into_iter().find(|key| slot_of(key, 4) != slot).unwrap();
    store.publish(&topic("t"), &[keyed(others, 4)]).await.unwrap();
    slow.rollback().await.unwrap();
    waiting.await.unwrap();
    assert_eq!(blockers().await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_transaction_keeps_its_place_until_it_is_committed() {
    let cluster = PgCluster::builder().settings(&[("max_prepared_transactions", "5")]).start().unwrap();
    let store = migrated(&cluster.url()).await;
    store.set_topic(&topic("t"), &TopicSettings { slots: 1, ..TopicSettings::default() }).await.unwrap();
    opened(&store, "s").await;
    // One who notifies can not be prepared.
    store.doze_topic(&id("s"), &topic("t")).await.unwrap();
    let sql = "BEGIN; SELECT tenure.publish('t', '1', key => 'k'); SELECT tenure.publish('t', '2', key => 'k'); \
               PREPARE TRANSACTION 'an order';";
    let mut connection = store.pool().acquire().await.unwrap();
    for statement in sql.split_inclusive(';') {
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&mut *connection).await.unwrap();
    }
    let view = store.topic(&topic("t")).await.unwrap().unwrap();
    assert_eq!(view.blockers.len(), 1, "{view:?}");
    assert!(view.blockers[0].who.contains("'an order'"), "{view:?}");
    let error = store.publish(&topic("t"), &[keyed("k", 3)]).await.unwrap_err();
    assert_eq!(error.kind, tenure_core::port::Trouble::Timeout, "{error}");
    assert_eq!(all(&store, 1).await, []);
    cluster.psql("postgres", "COMMIT PREPARED 'an order'").unwrap();
    store.publish(&topic("t"), &[keyed("k", 4)]).await.unwrap();
    assert_eq!(payloads(&all(&store, 1).await), [1, 2, 4]);
    // And its own connection goes on as if nothing had been.
    let other = Postgres::connect(PostgresOptions::new(cluster.url())).await.unwrap();
    assert!(other.beat(&id("s")).await.is_ok());
    sqlx::raw_sql("SELECT tenure.publish('t', '5', key => 'k')").execute(&mut *connection).await.unwrap();
    assert_eq!(payloads(&all(&store, 1).await), [1, 2, 4, 5]);
}
