//! The guard and the fence in a user's transaction.

use std::time::Duration;

use sqlx::Connection;
use tenure::store::postgres::{PostgresStore, fence, guard};
use tenure::{FenceError, GuardError};
use tenure_core::Token;
use tenure_core::port::{ElectionStore, ErrorKind, HeartbeatResponse};

use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_blocks_a_takeover_until_the_commit() {
    let (database, store) = fresh().await;
    let key = election("e");
    let token = leading(&store, "a", &key).await;
    joined(&store, "b", &key).await;
    let mut tx = store.pool().begin().await.unwrap();
    guard(&mut tx, &key, 0, token, &id("a"), LEASE).await.unwrap();
    // Another transaction of the same leader does not wait.
    let mut second = store.pool().begin().await.unwrap();
    guard(&mut second, &key, 0, token, &id("a"), LEASE).await.unwrap();
    second.rollback().await.unwrap();
    let taker = store.clone();
    let take = takeover("b", &key, token, "a", 0);
    let again = take.clone();
    let waiting = tokio::spawn(async move { taker.take_lease(&take).await });
    until_blocked(&database, 1).await;
    assert!(!waiting.is_finished());
    tx.commit().await.unwrap();
    let taken = waiting.await.unwrap().unwrap();
    assert!(taken.is_some_and(|new| new > token));
    // The next transaction of the old leader is refused.
    let mut tx = store.pool().begin().await.unwrap();
    let late = guard(&mut tx, &key, 0, token, &id("a"), LEASE).await;
    assert_eq!(late, Err(GuardError::NotHeld { election: key.clone(), slot: 0, token }));
    assert_eq!(store.take_lease(&again).await.unwrap(), None);
    assert_eq!(store.heartbeat(&id("a")).await.unwrap(), HeartbeatResponse::SessionEnded);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_take_that_waits_for_a_guard_times_out_before_the_client() {
    let (_database, store) = fresh().await;
    let key = election("e");
    let token = leading(&store, "a", &key).await;
    let lease = Duration::from_secs(12);
    opened_for(&store, "b", lease).await;
    store.join_election(&candidacy("b", &key)).await.unwrap();
    let mut tx = store.pool().begin().await.unwrap();
    guard(&mut tx, &key, 0, token, &id("a"), LEASE).await.unwrap();
    let take = takeover("b", &key, token, "a", 0);
    let taken =
        tokio::time::timeout(lease / 5, store.take_lease(&take)).await.expect("within a heartbeat interval");
    assert_eq!(taken.unwrap_err().kind, ErrorKind::Timeout);
    // Nothing was changed: the holder is alive.
    assert!(matches!(store.heartbeat(&id("a")).await.unwrap(), HeartbeatResponse::Live { .. }));
    tx.rollback().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_suspended_in_a_transaction_blocks_no_longer_than_its_lease() {
    let (_database, store) = fresh().await;
    let key = election("e");
    let token = leading(&store, "a", &key).await;
    joined(&store, "b", &key).await;
    let lease = Duration::from_millis(600);
    let mut stopped = store.pool().begin().await.unwrap();
    let start = tenure::runtime::now();
    guard(&mut stopped, &key, 0, token, &id("a"), lease).await.unwrap();
    let take = takeover("b", &key, token, "a", 0);
    let mut taken = store.take_lease(&take).await;
    while taken.as_ref().is_err_and(|error| error.kind == ErrorKind::Timeout) {
        taken = store.take_lease(&take).await;
    }
    // The suspended transaction never ended by itself. The takeover succeeded after the server aborted it at the end
    // of the lease.
    assert!(taken.unwrap().is_some());
    let waited = tenure::runtime::now().since(start);
    assert!(waited >= Duration::from_millis(400), "{waited:?}");
    assert!(stopped.commit().await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn timeouts_are_lowered_and_never_raised() {
    let (_database, store) = fresh().await;
    let key = election("e");
    let token = leading(&store, "a", &key).await;
    let mut tx = store.pool().begin().await.unwrap();
    let run = async |tx: &mut sqlx::PgConnection, sql: &'static str| -> String {
        sqlx::query_scalar(sql).fetch_one(tx).await.unwrap()
    };
    run(&mut tx, "SELECT set_config('statement_timeout', '2s', true)").await;
    run(&mut tx, "SELECT set_config('idle_in_transaction_session_timeout', '1h', true)").await;
    guard(&mut tx, &key, 0, token, &id("a"), LEASE).await.unwrap();
    assert_eq!(run(&mut tx, "SHOW statement_timeout").await, "2s");
    assert_eq!(run(&mut tx, "SHOW idle_in_transaction_session_timeout").await, "10s");
    tx.commit().await.unwrap();
    let mut connection = store.pool().acquire().await.unwrap();
    assert_eq!(run(&mut connection, "SHOW idle_in_transaction_session_timeout").await, "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_outside_a_transaction_is_refused() {
    let (_database, store) = fresh().await;
    let key = election("e");
    let token = leading(&store, "a", &key).await;
    let mut connection = store.pool().acquire().await.unwrap();
    let guarded = guard(&mut connection, &key, 0, token, &id("a"), LEASE).await;
    assert_eq!(guarded, Err(GuardError::NotInTransaction));
    // A transaction started with BEGIN is accepted.
    sqlx::raw_sql("BEGIN").execute(&mut *connection).await.unwrap();
    guard(&mut connection, &key, 0, token, &id("a"), LEASE).await.unwrap();
    sqlx::raw_sql("COMMIT").execute(&mut *connection).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guard_can_be_called_in_sql() {
    let (database, store) = fresh().await;
    let key = election("e");
    let token = leading(&store, "a", &key).await.as_u64();
    let guarded =
        |token: u64| database.psql(&format!("SELECT tenure.guard('default', 'e', 0, {token}, 'a')"));
    guarded(token).unwrap();
    let refused = guarded(token + 1).unwrap_err().to_string();
    assert!(refused.contains("does not hold default/e slot 0 under token 1."), "{refused}");
}

async fn fenced(store: &PostgresStore, name: &str, token: u64) -> Result<(), FenceError> {
    let mut tx = store.pool().begin().await.unwrap();
    let fenced = fence(&mut tx, name, Token::from_u64(token)).await;
    tx.commit().await.unwrap();
    fenced
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_refuses_a_token_below_the_highest_one() {
    let (_database, store) = fresh().await;
    assert_eq!(fenced(&store, "it's", 5).await, Ok(()));
    assert_eq!(fenced(&store, "it's", 5).await, Ok(()));
    assert_eq!(fenced(&store, "it's", 7).await, Ok(()));
    let stale =
        FenceError::Stale { name: "it's".into(), highest: Token::from_u64(7), token: Token::from_u64(6) };
    assert_eq!(fenced(&store, "it's", 6).await, Err(stale));
    assert_eq!(fenced(&store, "another", 1).await, Ok(()));
    assert!(matches!(fenced(&store, "x", u64::MAX).await, Err(FenceError::Store(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_higher_token_waits_for_the_transaction_of_a_lower_one() {
    let (database, store) = fresh().await;
    fenced(&store, "f", 5).await.unwrap();
    let mut old = store.pool().begin().await.unwrap();
    fence(&mut old, "f", Token::from_u64(5)).await.unwrap();
    let newer = store.clone();
    let waiting = tokio::spawn(async move { fenced(&newer, "f", 6).await });
    until_blocked(&database, 1).await;
    assert!(!waiting.is_finished());
    old.commit().await.unwrap();
    waiting.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_fences_do_not_deadlock_and_keep_the_highest_token() {
    let (database, store) = fresh().await;
    let mut connections = Vec::new();
    for _ in 0..8 {
        connections.push(sqlx::PgConnection::connect(database.url()).await.unwrap());
    }
    let _ = store;
    let work = connections.into_iter().enumerate().map(|(n, mut connection)| async move {
        for round in 0..30_u64 {
            let mut tx = connection.begin().await.unwrap();
            let token = Token::from_u64(round * 4 + n as u64 % 4 + 1);
            match fence(&mut tx, "f", token).await {
                Ok(()) => tx.commit().await.unwrap(),
                Err(FenceError::Stale { highest, token, .. }) => {
                    assert!(highest > token);
                    tx.rollback().await.unwrap();
                }
                Err(error) => panic!("{error}"),
            }
        }
    });
    futures_util::future::join_all(work).await;
    assert_eq!(database.psql("SELECT max_token FROM tenure.fences").unwrap(), "120");
}
