//! Negative controls: each known bug, injected into the SQL, makes its test fail.

use tenure::store::postgres::PostgresStore;
use tenure_core::Token;
use tenure_core::port::{ElectionAdmin, ElectionStore, HeartbeatResponse};
use tenure_testkit::rig::FreshDatabase;

use crate::support::*;

/// Whether a takeover succeeds before a guarded transaction of the old leader commits.
async fn stale_write_accepted(database: &FreshDatabase, store: &PostgresStore) -> bool {
    let key = election("e");
    let token = leading(store, "a", &key).await;
    joined(store, "b", &key).await;
    let mut tx = store.pool().begin().await.unwrap();
    store.guard(&mut tx, &key, 0, token, &id("a"), LEASE).await.unwrap();
    let take = takeover("b", &key, token, "a", 0);
    // Either the takeover succeeds, or it waits for the guard (and may time out). The test does not depend on timing.
    let taken_before_the_commit = tokio::select! {
        taken = store.take_lease(&take) => matches!(taken, Ok(Some(_))),
        () = until_blocked(database, 1) => false,
    };
    tx.commit().await.unwrap();
    taken_before_the_commit
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_without_a_lock_accepts_a_stale_write() {
    let (database, store) = fresh().await;
    assert!(!stale_write_accepted(&database, &store).await);
    for weak in ["", "FOR KEY SHARE"] {
        let (database, mut store) = fresh().await;
        store.inject_bug("lease_guard", "FOR SHARE", weak);
        assert!(stale_write_accepted(&database, &store).await, "{weak:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_take_without_compare_and_swap_has_two_winners() {
    let (_database, mut store) = fresh().await;
    store.inject_bug(
        "lease_take",
        "AND l.token = $5 AND l.session IS NOT DISTINCT FROM $6",
        "AND ($5::bigint IS NULL OR $6::text IS NULL OR true)",
    );
    let holder_is_dead =
        "AND NOT EXISTS (SELECT FROM tenure.sessions h WHERE h.id = l.session AND h.state = 'live')";
    store.inject_bug("lease_take", holder_is_dead, "");
    let key = election("e");
    joined(&store, "a", &key).await;
    joined(&store, "b", &key).await;
    let takes = ["a", "b"].map(|name| free_take(name, &key, Token::first(1)));
    let (a, b) = tokio::join!(store.take_lease(&takes[0]), store.take_lease(&takes[1]));
    assert!(a.unwrap().is_some() && b.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expiry_without_compare_and_swap_ends_a_live_session() {
    let (_database, store) = fresh().await;
    for (broken, expected) in [(false, true), (true, false)] {
        let mut store = store.clone();
        let name = format!("s{broken}");
        if broken {
            store.inject_bug(
                "session_expire",
                "s.heartbeat_count = coalesce($2::bigint, s.heartbeat_count)",
                "($2::bigint IS NULL OR true)",
            );
        }
        opened(&store, &name).await;
        store.heartbeat(&id(&name)).await.unwrap();
        store
            .expire_session(&tenure_core::port::ExpireSessionRequest {
                session: id(&name),
                epoch: 1,
                heartbeat_count: Some(0),
            })
            .await
            .unwrap();
        let is_live = matches!(store.heartbeat(&id(&name)).await.unwrap(), HeartbeatResponse::Live { .. });
        assert_eq!(is_live, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_without_its_condition_revives_an_expired_session() {
    let (_database, store) = fresh().await;
    let mut buggy = store.clone();
    buggy.inject_bug("session_heartbeat", " AND state = 'live'", "");
    opened(&store, "a").await;
    store
        .expire_session(&tenure_core::port::ExpireSessionRequest {
            session: id("a"),
            epoch: 1,
            heartbeat_count: Some(0),
        })
        .await
        .unwrap();
    assert_eq!(store.heartbeat(&id("a")).await.unwrap(), HeartbeatResponse::SessionEnded);
    assert!(matches!(buggy.heartbeat(&id("a")).await.unwrap(), HeartbeatResponse::Live { .. }));
}

/// Without the lock, the statement that ends a session misses a lease that is being granted to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_take_without_a_lock_on_its_session_grants_to_an_ended_session() {
    let (database, mut store) = fresh().await;
    store.inject_bug("lease_lock", "FOR KEY SHARE OF s", "");
    // A take that stops between the read of its session and its commit, until this lock is released.
    store.inject_bug(
        "lease_take",
        "pg_notify('tenure_notify', $7)",
        "pg_notify('tenure_notify', $7), pg_advisory_xact_lock(1)",
    );
    let mut blocker = store.pool().begin().await.unwrap();
    sqlx::raw_sql("SELECT pg_advisory_xact_lock(1)").execute(&mut *blocker).await.unwrap();
    let key = election("e");
    // With a lease long enough that the take does not time out.
    opened_for(&store, "a", 10 * HANG).await;
    store.join_election(&candidacy("a", &key)).await.unwrap();
    let (take, session) = (free_take("a", &key, Token::first(1)), id("a"));
    let end = async {
        until_blocked(&database, 1).await;
        let ended = store.end_session(&session).await;
        blocker.commit().await.unwrap();
        ended
    };
    let (taken, ended) = tokio::join!(store.take_lease(&take), end);
    taken.and(ended).unwrap();
    let holder = store.election(&key).await.unwrap().unwrap().leases[0].holder.clone();
    assert!(holder.is_some_and(|holder| !holder.live));
}
