//! Each known mistake, put back into the real SQL, must be seen by the test that is there for it.

use tenure::backend::postgres::Postgres;
use tenure_core::Token;
use tenure_core::port::{Directory, Pulse, Store};
use tenure_testkit::rig::FreshDatabase;

use crate::support::*;

/// Whether a transaction under a guard, held open over a take-over, was committed by a leader of the past.
async fn stale_write_accepted(database: &FreshDatabase, store: &Postgres) -> bool {
    let key = election("e");
    let token = leading(store, "a", &key).await;
    standing(store, "b", &key).await;
    let mut tx = store.pool().begin().await.unwrap();
    store.guard(&mut tx, &key, 0, token, &id("a"), LEASE).await.unwrap();
    let take = take_over("b", &key, token, "a", 0);
    // It takes, or it waits for the guard, which may end its patience: whichever comes first, however slow this machine is.
    let taken_before_the_commit = tokio::select! {
        taken = store.take(&take) => matches!(taken, Ok(Some(_))),
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
        store.sabotage("lease_guard", "FOR SHARE", weak);
        assert!(stale_write_accepted(&database, &store).await, "{weak:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_take_without_compare_and_swap_has_two_winners() {
    let (_database, mut store) = fresh().await;
    store.sabotage(
        "lease_take",
        "AND l.token = $5 AND l.session IS NOT DISTINCT FROM $6",
        "AND ($5::bigint IS NULL OR $6::text IS NULL OR true)",
    );
    let holder_is_dead =
        "AND NOT EXISTS (SELECT FROM tenure.sessions h WHERE h.id = l.session AND h.state = 'live')";
    store.sabotage("lease_take", holder_is_dead, "");
    let key = election("e");
    standing(&store, "a", &key).await;
    standing(&store, "b", &key).await;
    let takes = ["a", "b"].map(|name| free_take(name, &key, Token::first(1)));
    let (a, b) = tokio::join!(store.take(&takes[0]), store.take(&takes[1]));
    assert!(a.unwrap().is_some() && b.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expiry_without_compare_and_swap_kills_the_living() {
    let (_database, store) = fresh().await;
    for (broken, expected) in [(false, true), (true, false)] {
        let mut store = store.clone();
        let name = format!("s{broken}");
        if broken {
            store.sabotage(
                "session_expire",
                "s.beat = coalesce($2::bigint, s.beat)",
                "($2::bigint IS NULL OR true)",
            );
        }
        opened(&store, &name).await;
        store.beat(&id(&name)).await.unwrap();
        store
            .expire(&tenure_core::port::Expire { session: id(&name), epoch: 1, beat: Some(0) })
            .await
            .unwrap();
        let lives = matches!(store.beat(&id(&name)).await.unwrap(), Pulse::Alive { .. });
        assert_eq!(lives, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_beat_without_its_condition_revives_the_dead() {
    let (_database, store) = fresh().await;
    let mut sabotaged = store.clone();
    sabotaged.sabotage("session_beat", " AND state = 'live'", "");
    opened(&store, "a").await;
    store.expire(&tenure_core::port::Expire { session: id("a"), epoch: 1, beat: Some(0) }).await.unwrap();
    assert_eq!(store.beat(&id("a")).await.unwrap(), Pulse::Gone);
    assert!(matches!(sabotaged.beat(&id("a")).await.unwrap(), Pulse::Alive { .. }));
}

/// Without the lock before it, the statement that closes a session misses the lease that it is being granted.
#[tokio::test(flavor = "multi_thread")]
async fn a_take_that_does_not_hold_its_session_leaves_leases_to_the_dead() {
    let (database, mut store) = fresh().await;
    store.sabotage("lease_lock", "FOR KEY SHARE OF s", "");
    // A take that dawdles between the look at its session and its commit: until this lets it go on.
    store.sabotage(
        "lease_take",
        "pg_notify('tenure_wake', $7)",
        "pg_notify('tenure_wake', $7), pg_advisory_xact_lock(1)",
    );
    let mut dawdling = store.pool().begin().await.unwrap();
    sqlx::raw_sql("SELECT pg_advisory_xact_lock(1)").execute(&mut *dawdling).await.unwrap();
    let key = election("e");
    // With a lease that is long enough for a take to be patient.
    opened_for(&store, "a", 10 * HANG).await;
    store.join(&candidacy("a", &key)).await.unwrap();
    let (take, session) = (free_take("a", &key, Token::first(1)), id("a"));
    let end = async {
        until_blocked(&database, 1).await;
        let ended = store.end(&session).await;
        dawdling.commit().await.unwrap();
        ended
    };
    let (taken, ended) = tokio::join!(store.take(&take), end);
    taken.and(ended).unwrap();
    let holder = store.election(&key).await.unwrap().unwrap().leases[0].holder.clone();
    assert!(holder.is_some_and(|holder| !holder.live));
}
