//! Handlers in transactions of the user's own database: their effects there happen exactly once, whatever
//! fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::port::*;
use tenure::{HandlerError, Outbox, Tenure};

use crate::support::{books, event, number, orders};

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..3_000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

async fn open(url: &str) -> Tenure {
    let tenure = Tenure::builder().url(url).name("a").lease(Duration::from_secs(2)).open().await.unwrap();
    tenure
        .store()
        .set_topic(&orders(), &TopicSettings { partitions: 4, ..TopicSettings::default() })
        .await
        .unwrap();
    tenure
}

fn settings() -> GroupSettings {
    GroupSettings { max_attempts: 3, backoff: Backoff { initial_ms: 20, max_ms: 50 } }
}

async fn parked(tenure: &Tenure) -> Vec<ParkedEvent> {
    let filter = ParkedEventFilter {
        group: books(),
        dead: false,
        partition: None,
        key: None,
        after: None,
        limit: 100,
    };
    tenure.store().parked_events(&filter).await.unwrap()
}

macro_rules! transactional_on {
    ($dialect:ident, $database:ty) => {
        mod $dialect {
            use super::*;

            type Tx = tenure::Tx<$database>;

            async fn record_effect(conn: &mut Tx, event: &Event) -> Result<(), sqlx::Error> {
                let sql = "INSERT INTO effects (event, n) VALUES ($1, $2)";
                let query = sqlx::query(sql).bind(event.id.0 as i64).bind(number(event) as i64);
                query.execute(&mut **conn).await.map(drop)
            }

            async fn effects(pool: &sqlx::Pool<$database>) -> Vec<i64> {
                sqlx::query_scalar("SELECT n FROM effects ORDER BY n").fetch_all(pool).await.unwrap()
            }

            async fn tables(pool: &sqlx::Pool<$database>) {
                for table in
                    ["CREATE TABLE effects (event BIGINT, n BIGINT)", "CREATE TABLE once (n BIGINT UNIQUE)"]
                {
                    sqlx::query(table).execute(pool).await.unwrap();
                }
            }

            /// The effects of a failed handler are rolled back; the failed event waits, and is handled once in
            /// the end.
            pub(super) async fn effects_of_a_failed_handler_are_rolled_back(
                url: &str,
                pool: &sqlx::Pool<$database>,
            ) {
                tables(pool).await;
                let tenure = open(url).await;
                let publisher = tenure.publisher("orders").unwrap();
                let tries = Arc::new(AtomicUsize::new(0));
                let count = tries.clone();
                let handler = move |batch: tenure::EventBatch, mut tx: Tx| {
                    let count = count.clone();
                    async move {
                        for event in &batch {
                            record_effect(&mut tx, event).await?;
                            if number(event) == 3 && count.fetch_add(1, Ordering::SeqCst) < 3 {
                                return Err(HandlerError::fail("not yet"));
                            }
                        }
                        Ok(())
                    }
                };
                let events: Vec<_> = (0..10).map(|n| event(&format!("key-{}", n % 4), n)).collect();
                for event in events {
                    publisher.publish(event).await.unwrap();
                }
                let builder = tenure.consumer("orders", "books").settings(settings());
                let consumer = builder.transactional(pool, handler).start().await.unwrap();
                until("all events are handled", async || effects(pool).await.len() >= 10).await;
                until("no event is parked", async || parked(&tenure).await.is_empty()).await;
                assert_eq!(effects(pool).await, (0..10).collect::<Vec<_>>());
                assert!(tries.load(Ordering::SeqCst) > 3);
                consumer.drain().await.unwrap();
                tenure.close().await.unwrap();
            }

            /// A handler publishes in its own transaction: each event produces exactly one other, however often
            /// it is retried.
            pub(super) async fn a_handler_publishes_once_per_event(url: &str, pool: &sqlx::Pool<$database>) {
                tables(pool).await;
                let tenure = open(url).await;
                let publisher = tenure.publisher("orders").unwrap();
                let echo: TopicKey = tenure.topic("echo").unwrap();
                tenure
                    .store()
                    .set_topic(&echo, &TopicSettings { partitions: 1, ..TopicSettings::default() })
                    .await
                    .unwrap();
                let (tries, to) = (Arc::new(AtomicUsize::new(0)), echo.clone());
                let handler = move |batch: tenure::EventBatch, mut tx: Tx| {
                    let (tries, to) = (tries.clone(), to.clone());
                    async move {
                        for event in &batch {
                            let again = NewEvent { payload: event.payload.clone(), ..NewEvent::new("echo") };
                            tx.publish(&to, &[again]).await?;
                        }
                        match tries.fetch_add(1, Ordering::SeqCst) {
                            0 => Err(HandlerError::transient("the first attempt fails transiently")),
                            1 => panic!("deliberate panic"),
                            _ => Ok(()),
                        }
                    }
                };
                publisher.publish_all(&(0..5).map(|n| event("a", n)).collect::<Vec<_>>()).await.unwrap();
                let builder = tenure.consumer("orders", "books").settings(settings());
                let consumer = builder.transactional(pool, handler).start().await.unwrap();
                let request = ReadEventsRequest { topic: echo, after: vec![(0, 0)], limit: 100 };
                let echoes = async || tenure.store().read_events(&request).await.unwrap();
                until("all events are echoed", async || echoes().await.len() >= 5).await;
                consumer.drain().await.unwrap();
                assert_eq!(echoes().await.iter().map(number).collect::<Vec<_>>(), (0..5).collect::<Vec<_>>());
                tenure.close().await.unwrap();
            }

            /// A violated constraint is a failure of the event, which becomes a dead letter; its effects are
            /// rolled back. A handler that keeps its transaction has failed, too.
            pub(super) async fn an_event_rejected_by_the_database_is_parked(
                url: &str,
                pool: &sqlx::Pool<$database>,
            ) {
                tables(pool).await;
                let tenure = open(url).await;
                let publisher = tenure.publisher("orders").unwrap();
                let kept = Arc::new(std::sync::Mutex::new(Vec::new()));
                let keep = kept.clone();
                let handler = move |batch: tenure::EventBatch, mut tx: Tx| {
                    let keep = keep.clone();
                    async move {
                        for event in &batch {
                            record_effect(&mut tx, event).await?;
                            let n = (number(event) % 4) as i64;
                            sqlx::query("INSERT INTO once (n) VALUES ($1)").bind(n).execute(&mut *tx).await?;
                        }
                        if batch.iter().any(|event| number(event) == 2) {
                            keep.lock().unwrap().push(tx);
                        }
                        Ok::<_, HandlerError>(())
                    }
                };
                // Event 4 violates a unique constraint with event 0. The handler of event 2 keeps its transaction.
                for n in [0, 4, 2, 3] {
                    publisher.publish(event(&format!("key-{n}"), n)).await.unwrap();
                }
                let builder = tenure.consumer("orders", "books").settings(settings());
                let consumer = builder.transactional(pool, handler).start().await.unwrap();
                let dead = async || {
                    kept.lock().unwrap().clear();
                    parked(&tenure).await.into_iter().filter(|view| view.dead).collect::<Vec<_>>()
                };
                until("two events are dead letters", async || dead().await.len() >= 2).await;
                let mut dead: Vec<_> =
                    dead().await.into_iter().map(|it| (number(&it.event), it.last_error)).collect();
                dead.sort();
                assert_eq!((dead[0].0, dead[1].0), (2, 4));
                assert!(dead[0].1.contains("without dropping its transaction"), "{}", dead[0].1);
                assert!(dead[1].1.to_lowercase().contains("unique"), "{}", dead[1].1);
                until("the others are handled", async || effects(pool).await == [0, 3]).await;
                consumer.drain().await.unwrap();
                tenure.close().await.unwrap();
            }
        }
    };
}

transactional_on!(sqlite, sqlx::Sqlite);
transactional_on!(postgres, sqlx::Postgres);

macro_rules! on_both {
    ($($name:ident),*) => {
        mod on_sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let folder = tempfile::tempdir().unwrap();
                let url = format!("sqlite:{}", folder.path().join("shop.db").display());
                tenure::Tenure::open(&url).await.unwrap().close().await.unwrap();
                let pool = sqlx::SqlitePool::connect(&url).await.unwrap();
                super::sqlite::$name(&url, &pool).await;
            })*
        }

        mod on_postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let database = crate::support::migrated().await;
                let pool = sqlx::PgPool::connect(database.url()).await.unwrap();
                super::postgres::$name(database.url(), &pool).await;
            })*
        }
    };
}

on_both!(
    effects_of_a_failed_handler_are_rolled_back,
    a_handler_publishes_once_per_event,
    an_event_rejected_by_the_database_is_parked
);

/// A lost partition in one transaction with others: everything is rolled back, and the remaining partitions are
/// handled again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_lost_during_a_batch_rolls_back_all_and_each_event_is_handled_once() {
    let database = crate::support::migrated().await;
    let pool = sqlx::PgPool::connect(database.url()).await.unwrap();
    sqlx::query("CREATE TABLE effects (n BIGINT)").execute(&pool).await.unwrap();
    let tenure = open(database.url()).await;
    let publisher = tenure.publisher("orders").unwrap();
    for n in 0..8 {
        publisher.publish(event(&format!("key-{n}"), n)).await.unwrap();
    }
    let (store, lost) = (tenure.store().clone(), Arc::new(AtomicUsize::new(0)));
    let (calls, partitions) = (Arc::new(AtomicUsize::new(0)), lost.clone());
    let handler = move |batch: tenure::EventBatch, mut tx: tenure::Tx<sqlx::Postgres>| {
        let (store, calls, partitions) = (store.clone(), calls.clone(), partitions.clone());
        async move {
            for event in &batch {
                let n = number(event) as i64;
                sqlx::query("INSERT INTO effects VALUES ($1)").bind(n).execute(&mut *tx).await?;
            }
            let mut of: Vec<u32> = batch.iter().map(|event| event.partition).collect();
            of.dedup();
            if of.len() > 1 && calls.fetch_add(1, Ordering::SeqCst) == 0 {
                partitions.store(of.len(), Ordering::SeqCst);
                store.reset_group(&books(), StartOffset::Earliest, Some(of[0]), false).await?;
            }
            Ok::<_, HandlerError>(())
        }
    };
    let builder = tenure.consumer("orders", "books").settings(settings());
    let consumer = builder.transactional(&pool, handler).start().await.unwrap();
    let all = "SELECT n FROM effects ORDER BY n";
    let effects = async || sqlx::query_scalar::<_, i64>(all).fetch_all(&pool).await.unwrap();
    let read = async || tenure.store().group(&books()).await.unwrap().unwrap().lag() == (0, true);
    until("a partition is lost", async || lost.load(Ordering::SeqCst) > 1).await;
    until("all events are handled", async || effects().await.len() >= 8 && read().await).await;
    consumer.drain().await.unwrap();
    assert_eq!(effects().await, (0..8).collect::<Vec<_>>());
    tenure.close().await.unwrap();
}

/// Regression: the transaction of the handler blocked the heartbeats of the process. The session was lost
/// before the time limit of the handler, the batch started again under the next session, and so on forever,
/// without a counted failure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_outlasts_trust_fails_and_its_event_is_parked_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("shop.db").display());
    let tenure = open(&url).await;
    let pool = sqlx::SqlitePool::connect(&url).await.unwrap();
    let publisher = tenure.publisher("orders").unwrap();
    let done = Arc::new(std::sync::Mutex::new(Vec::new()));
    let did = done.clone();
    let handler = move |batch: tenure::EventBatch, tx: tenure::Tx<sqlx::Sqlite>| {
        let did = did.clone();
        async move {
            if batch.iter().any(|event| number(event) == 1) {
                std::future::pending::<()>().await;
            }
            did.lock().unwrap().extend(batch.iter().map(number));
            drop(tx);
            Ok::<_, HandlerError>(())
        }
    };
    for (key, n) in [("slow", 1), ("quick", 2), ("slow", 3), ("quick", 4)] {
        publisher.publish(event(key, n)).await.unwrap();
    }
    let session = tenure.session();
    let builder = tenure.consumer("orders", "books").settings(settings()).timeout(Duration::from_secs(30));
    let consumer = builder.transactional(&pool, handler).start().await.unwrap();
    until("it is a dead letter", async || parked(&tenure).await.iter().any(|it| it.dead)).await;
    let dead = parked(&tenure).await;
    assert_eq!((number(&dead[0].event), dead[0].attempts), (1, 3));
    assert!(dead[0].last_error.contains("set a longer lease"), "{}", dead[0].last_error);
    until("the others are handled", async || *done.lock().unwrap() == [2, 4]).await;
    assert_eq!(tenure.session(), session, "the session was never lost");
    consumer.drain().await.unwrap();
    tenure.close().await.unwrap();
}
