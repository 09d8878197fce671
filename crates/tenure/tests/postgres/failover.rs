//! Standbys: promotion, reading only, strict mode.

use std::time::Duration;

use tenure::backend::postgres::{Postgres, PostgresOptions};
use tenure_core::Token;
use tenure_core::port::{Pulse, Release, Scope, Store, Trouble, Via};
use tenure_testkit::rig::{PgCluster, PgStandby};

use crate::support::*;

async fn timeline(store: &Postgres, session: &str) -> u32 {
    match store.beat(&id(session)).await.unwrap() {
        Pulse::Alive { timeline, .. } => timeline,
        Pulse::Gone => panic!("{session} is gone"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_grow_over_a_promotion_that_lost_grants() {
    let primary = PgCluster::start().unwrap();
    let before = migrated(&primary.url()).await;
    let key = election("e");
    let first = leading(&before, "a", &key).await;
    assert_eq!((timeline(&before, "a").await, first.to_string().as_str()), (1, "1.1"));
    let standby = PgStandby::of(&primary).unwrap();
    standby.wait_caught_up().unwrap();
    // It only reads, and says so.
    let unfit = Postgres::connect(PostgresOptions::new(standby.url())).await.err().unwrap();
    assert_eq!(unfit.kind, Trouble::Unfit, "{unfit}");
    standby.disconnect().unwrap();
    // Grants that the standby never hears of.
    let mut lost = first;
    for _ in 0..3 {
        let release = Release {
            session: id("a"),
            election: key.clone(),
            slot: 0,
            token: lost,
            successor: None,
            via: Via::Release,
            leave: false,
        };
        before.release(&release).await.unwrap();
        lost = before.take(&free_take("a", &key, lost)).await.unwrap().unwrap();
    }
    assert_eq!(lost.to_string(), "1.4");
    standby.promote().unwrap();
    let after = Postgres::connect(PostgresOptions::new(standby.url())).await.unwrap();
    assert_eq!(timeline(&after, "a").await, 2);
    standing(&after, "b", &key).await;
    let taken = after.take(&take_over("b", &key, first, "a", 2)).await.unwrap().unwrap();
    assert!(taken > lost);
    assert_eq!(taken.to_string(), "2.1");
}

/// Chaos found it: a worker looked before it beat, was shown the lease that it had given back on the primary, took that
/// for a grant whose answer was lost, and led under a token lower than the last.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_promotion_nobody_is_shown_what_it_held_before() {
    let primary = PgCluster::start().unwrap();
    let key = election("e");
    let before = migrated(&primary.url()).await;
    leading(&before, "a", &key).await;
    standing(&before, "b", &key).await;
    let holder = async |store: &Postgres, asker: &str| {
        let seen = store.observe(&id(asker), &Scope::Standing).await.unwrap();
        seen.elections[0].leases[0].holder.as_ref().map(|holder| holder.id.clone())
    };
    assert_eq!(holder(&before, "a").await, Some(id("a")));
    let standby = PgStandby::of(&primary).unwrap();
    standby.wait_caught_up().unwrap();
    standby.promote().unwrap();
    let after = Postgres::connect(PostgresOptions::new(standby.url())).await.unwrap();
    assert_eq!(holder(&after, "a").await, None);
    // The others must still wait for it to fall silent.
    assert_eq!(holder(&after, "b").await, Some(id("a")));
}

#[tokio::test(flavor = "multi_thread")]
async fn in_strict_mode_what_is_not_replicated_is_not_granted() {
    let primary = PgCluster::start().unwrap();
    migrated(&primary.url()).await;
    let mut options = PostgresOptions::new(primary.url());
    options.strict = true;
    let refused = Postgres::connect(options.clone()).await.err().unwrap();
    assert_eq!(refused.kind, Trouble::Unavailable, "{refused}");
    let standby = PgStandby::synchronous_of(&primary).unwrap();
    let store = Postgres::connect(options).await.unwrap();
    let key = election("e");
    let token = leading(&store, "a", &key).await;
    standby.disconnect().unwrap();
    let session = id("a");
    let beat = tokio::time::timeout(Duration::from_millis(800), store.beat(&session)).await;
    assert!(beat.is_err(), "{beat:?}");
    standby.reconnect().unwrap();
    let mut beats = store.beat(&session).await;
    for _ in 0..50 {
        if beats.is_ok() {
            break;
        }
        beats = store.beat(&session).await;
    }
    assert!(matches!(beats.unwrap(), Pulse::Alive { .. }));
    primary.psql("postgres", "ALTER SYSTEM SET synchronous_standby_names = ''").unwrap();
    primary.psql("postgres", "SELECT pg_reload_conf()").unwrap();
    let mut refused = Ok(Pulse::Gone);
    for _ in 0..50 {
        refused = store.beat(&session).await;
        if refused.is_err() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(refused.unwrap_err().kind, Trouble::Unavailable);
    assert!(token > Token::ZERO);
}
