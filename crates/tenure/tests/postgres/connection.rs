//! Take-over mode `connection`.

use std::time::Duration;

use tenure::backend::postgres::{Postgres, PostgresOptions};
use tenure_core::Token;
use tenure_core::port::{Expire, Joined, Pulse, Store, Takeover, Trouble, Wake, Wakes};
use tenure_testkit::rig::{PgBouncer, PgCluster};

use crate::support::*;

/// Waits for a hint that must come.
async fn comes(wakes: &mut Wakes, wanted: &Wake) {
    let heard = async { while wakes.next().await.as_ref() != Some(wanted) {} };
    tokio::time::timeout(HANG, heard).await.expect("a hint");
}

/// Whether it comes soon, though it should not.
async fn comes_after_all(wakes: &mut Wakes, wanted: &Wake) -> bool {
    let heard = async { while wakes.next().await.as_ref() != Some(wanted) {} };
    tokio::time::timeout(Duration::from_millis(300), heard).await.is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connections_end_tells_of_the_death_at_once() {
    let (database, store) = fresh().await;
    let key = election("e");
    let holder = Postgres::connect(PostgresOptions::new(database.url())).await.unwrap();
    let mut own = holder.wakes();
    holder.open(&new_session("a", LEASE, Takeover::Connection)).await.unwrap();
    holder.join(&candidacy("a", &key)).await.unwrap();
    let token = holder.take(&free_take("a", &key, Token::first(1))).await.unwrap().unwrap();
    standing(&store, "b", &key).await;
    opened(&store, "c").await;
    let mut wakes = store.wakes();
    store.watch(&[id("a"), id("b"), id("c"), id("unknown")]);
    let died = Wake::Died(id("a"));
    until_blocked(&database, 1).await;
    assert!(!comes_after_all(&mut wakes, &died).await, "it lives");
    // As the kernel would at the process's end.
    let kill = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted \
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    assert_eq!(database.psql(kill).unwrap(), "t");
    comes(&mut wakes, &died).await;
    comes(&mut own, &Wake::Severed(id("a"))).await;
    let mut take = take_over("b", &key, token, "a", 0);
    take.expire = Some(Expire { session: id("a"), epoch: 1, beat: None });
    assert!(store.take(&take).await.unwrap().is_some());
    assert_eq!(holder.beat(&id("a")).await.unwrap(), Pulse::Gone);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_in_good_order_is_no_death() {
    let (database, store) = fresh().await;
    let mut wakes = store.wakes();
    store.open(&new_session("a", LEASE, Takeover::Connection)).await.unwrap();
    store.watch(&[id("a")]);
    until_blocked(&database, 1).await;
    store.end(&id("a")).await.unwrap();
    assert!(!comes_after_all(&mut wakes, &Wake::Died(id("a"))).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watchers_own_broken_connection_says_nothing() {
    let (database, store) = fresh().await;
    let mut wakes = store.wakes();
    store.open(&new_session("a", LEASE, Takeover::Connection)).await.unwrap();
    store.watch(&[id("a")]);
    until_blocked(&database, 1).await;
    let kill = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    assert_eq!(database.psql(kill).unwrap(), "t");
    // It watches anew, and has concluded nothing.
    until_blocked(&database, 1).await;
    assert!(!comes_after_all(&mut wakes, &Wake::Died(id("a"))).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_pooler_the_mode_is_refused_unless_there_is_a_direct_address() {
    let cluster = PgCluster::start().unwrap();
    migrated(&cluster.url()).await;
    let pooler = PgBouncer::in_front_of(&cluster).unwrap();
    let mut options = PostgresOptions::new(pooler.url("postgres"));
    let store = Postgres::connect(options.clone()).await.unwrap();
    let refused = store.open(&new_session("a", LEASE, Takeover::Connection)).await.unwrap_err();
    assert_eq!(refused.kind, Trouble::Unfit, "{refused}");
    options.direct_url = Some(cluster.url());
    let store = Postgres::connect(options).await.unwrap();
    store.open(&new_session("b", LEASE, Takeover::Connection)).await.unwrap();
    assert_eq!(store.join(&candidacy("b", &election("e"))).await.unwrap(), Joined::Standing);
}

/// A process that gives up on opening its session must not leave a connection behind that says it lives.
#[tokio::test(flavor = "multi_thread")]
async fn an_open_that_was_given_up_holds_nothing() {
    let (database, store) = fresh().await;
    let mut lock = store.pool().begin().await.unwrap();
    sqlx::raw_sql("LOCK TABLE tenure.sessions").execute(&mut *lock).await.unwrap();
    let session = new_session("a", LEASE, Takeover::Connection);
    assert!(tokio::time::timeout(Duration::from_millis(500), store.open(&session)).await.is_err());
    lock.rollback().await.unwrap();
    let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' \
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    // Only a hang makes this fail.
    while database.psql(held).unwrap() != "0" {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
