//! Takeover mode `connection`.

use std::time::Duration;

use tenure::store::postgres::{PostgresOptions, PostgresStore};
use tenure_core::Token;
use tenure_core::port::{
    BoxNotificationSource, ElectionStore, ErrorKind, ExpireSessionRequest, HeartbeatResponse,
    JoinElectionResponse, Notification, TakeoverMode,
};
use tenure_testkit::rig::{PgBouncer, PgCluster};

use crate::support::*;

/// Waits for a notification that must arrive.
async fn arrives(notifications: &mut BoxNotificationSource, wanted: &Notification) {
    let received = async { while notifications.next().await.as_ref() != Some(wanted) {} };
    tokio::time::timeout(HANG, received).await.expect("a notification");
}

/// Whether a notification arrives within 300 ms. For tests that expect none.
async fn arrives_soon(notifications: &mut BoxNotificationSource, wanted: &Notification) -> bool {
    let received = async { while notifications.next().await.as_ref() != Some(wanted) {} };
    tokio::time::timeout(Duration::from_millis(300), received).await.is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_connection_ends_the_session_at_once() {
    let (database, store) = fresh().await;
    let key = election("e");
    let holder = PostgresStore::connect(PostgresOptions::new(database.url())).await.unwrap();
    let mut own = holder.notifications();
    holder.open_session(&new_session("a", LEASE, TakeoverMode::Connection)).await.unwrap();
    holder.join_election(&candidacy("a", &key)).await.unwrap();
    let token = holder.take_lease(&free_take("a", &key, Token::first(1))).await.unwrap().unwrap();
    joined(&store, "b", &key).await;
    opened(&store, "c").await;
    let mut notifications = store.notifications();
    store.watch_sessions(&[id("a"), id("b"), id("c"), id("unknown")]);
    let expired = Notification::SessionExpired(id("a"));
    until_blocked(&database, 1).await;
    assert!(!arrives_soon(&mut notifications, &expired).await, "the session is live");
    // Terminate the connection of the session, as the end of its process would.
    let kill = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted \
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    assert_eq!(database.psql(kill).unwrap(), "t");
    arrives(&mut notifications, &expired).await;
    arrives(&mut own, &Notification::ConnectionLost(id("a"))).await;
    let mut take = takeover("b", &key, token, "a", 0);
    take.expire = Some(ExpireSessionRequest { session: id("a"), epoch: 1, heartbeat_count: None });
    assert!(store.take_lease(&take).await.unwrap().is_some());
    assert_eq!(holder.heartbeat(&id("a")).await.unwrap(), HeartbeatResponse::SessionEnded);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_regular_end_is_not_an_expiry() {
    let (database, store) = fresh().await;
    let mut notifications = store.notifications();
    store.open_session(&new_session("a", LEASE, TakeoverMode::Connection)).await.unwrap();
    store.watch_sessions(&[id("a")]);
    until_blocked(&database, 1).await;
    store.end_session(&id("a")).await.unwrap();
    assert!(!arrives_soon(&mut notifications, &Notification::SessionExpired(id("a"))).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_connection_of_the_watcher_has_no_effect() {
    let (database, store) = fresh().await;
    let mut notifications = store.notifications();
    store.open_session(&new_session("a", LEASE, TakeoverMode::Connection)).await.unwrap();
    store.watch_sessions(&[id("a")]);
    until_blocked(&database, 1).await;
    let kill = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    assert_eq!(database.psql(kill).unwrap(), "t");
    // It watches again.
    until_blocked(&database, 1).await;
    assert!(!arrives_soon(&mut notifications, &Notification::SessionExpired(id("a"))).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_pooler_the_mode_needs_a_direct_url() {
    let cluster = PgCluster::start().unwrap();
    migrated(&cluster.url()).await;
    let pooler = PgBouncer::in_front_of(&cluster).unwrap();
    let mut options = PostgresOptions::new(pooler.url("postgres"));
    let store = PostgresStore::connect(options.clone()).await.unwrap();
    let refused = store.open_session(&new_session("a", LEASE, TakeoverMode::Connection)).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Misconfigured, "{refused}");
    options.direct_url = Some(cluster.url());
    let store = PostgresStore::connect(options).await.unwrap();
    store.open_session(&new_session("b", LEASE, TakeoverMode::Connection)).await.unwrap();
    assert_eq!(
        store.join_election(&candidacy("b", &election("e"))).await.unwrap(),
        JoinElectionResponse::Joined
    );
}

/// A dropped call to open a session must not leave a connection that holds its lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_open_call_releases_the_lock() {
    let (database, store) = fresh().await;
    let mut lock = store.pool().begin().await.unwrap();
    sqlx::raw_sql("LOCK TABLE tenure.sessions").execute(&mut *lock).await.unwrap();
    let session = new_session("a", LEASE, TakeoverMode::Connection);
    assert!(tokio::time::timeout(Duration::from_millis(500), store.open_session(&session)).await.is_err());
    lock.rollback().await.unwrap();
    let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' \
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    // If the lock is never released, the timeout of the test run ends this loop.
    while database.psql(held).unwrap() != "0" {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
