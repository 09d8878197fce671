//! Standbys: promotion, reading only, strict mode.

use std::time::Duration;

use tenure::backend::postgres::{Postgres, PostgresOptions};
use tenure_core::Token;
use tenure_core::port::{
    Bureau, Committed, Events, Expire, Pulse, Release, Store, Take, TopicSettings, Trouble, Via,
};
use tenure_testkit::rig::{PgCluster, PgStandby};

use crate::events::*;
use crate::support::*;

async fn epoch(store: &Postgres, session: &str) -> u32 {
    match store.beat(&id(session)).await.unwrap() {
        Pulse::Alive { epoch, .. } => epoch,
        Pulse::Gone => panic!("{session} is gone"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_grow_over_a_promotion_that_lost_grants() {
    let primary = PgCluster::start().unwrap();
    let before = migrated(&primary.url()).await;
    let key = election("e");
    let first = leading(&before, "a", &key).await;
    assert_eq!((epoch(&before, "a").await, first.to_string().as_str()), (1, "1.1"));
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
    let promoted = epoch(&after, "a").await;
    assert!(promoted > 1);
    standing(&after, "b", &key).await;
    // What was seen in the old epoch, the silence of a beat included, does not count on the new one.
    let stale = take_over("b", &key, first, "a", 2);
    assert_eq!(after.take(&stale).await.unwrap(), None);
    assert_eq!(epoch(&after, "a").await, promoted, "nor is anybody expired by it");
    let take = take_over("b", &key, first, "a", 3);
    let expire = take.expire.map(|expire| Expire { epoch: promoted, ..expire });
    let taken = after.take(&Take { epoch: promoted, expire, ..take }).await.unwrap().unwrap();
    assert!(taken > lost);
    assert_eq!(taken, Token::first(promoted).next(promoted));
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
    let counted = loop {
        if let Ok(counted) = store.beat(&session).await {
            break counted;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(matches!(counted, Pulse::Alive { .. }));
    primary.psql("postgres", "ALTER SYSTEM SET synchronous_standby_names = ''").unwrap();
    primary.psql("postgres", "SELECT pg_reload_conf()").unwrap();
    let refused = loop {
        if let Err(refused) = store.beat(&session).await {
            break refused;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(refused.kind, Trouble::Unavailable);
    assert!(token > Token::ZERO);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_a_promotion_lost_are_not_read_past_nor_are_their_numbers_given_again() {
    let primary = PgCluster::start().unwrap();
    let before = migrated(&primary.url()).await;
    before.set_topic(&topic("t"), &TopicSettings { slots: 1, ..TopicSettings::default() }).await.unwrap();
    let share = member(&before, "a", &[0]).await.remove(0);
    before.publish(&topic("t"), &[keyed("k", 1)]).await.unwrap();
    let standby = PgStandby::of(&primary).unwrap();
    standby.wait_caught_up().unwrap();
    standby.disconnect().unwrap();
    // Events that the standby never hears of, and that a member has in hand.
    let lost = before.publish(&topic("t"), &[keyed("k", 2), keyed("k", 3)]).await.unwrap();
    let far = all(&before, 1).await.last().unwrap().position;
    standby.promote().unwrap();
    let after = Postgres::connect(PostgresOptions::new(standby.url())).await.unwrap();
    let said = after.commit_shares(&[commit(0, share.token, far)]).await.unwrap();
    assert_eq!(said, [Committed::Stale], "it was read in another epoch");
    let next = after.publish(&topic("t"), &[keyed("k", 4)]).await.unwrap();
    assert!(next[0].id > lost[1].id, "{next:?} after {lost:?}");
    assert_eq!(payloads(&all(&after, 1).await), [1, 4]);
    let look = after.look_group(&group("t", "g")).await.unwrap().unwrap();
    assert_eq!((look.shares[0].position, look.shares[0].token), (0, share.token), "and nothing was changed");
}
