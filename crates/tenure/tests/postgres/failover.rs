//! Standbys: promotion, read-only servers, synchronous replication.

use std::time::Duration;

use tenure::store::postgres::{PostgresOptions, PostgresStore};
use tenure_core::Token;
use tenure_core::port::{
    CommitResult, ElectionStore, ErrorKind, EventAdmin, EventStore, ExpireSessionRequest, HeartbeatResponse,
    ReleaseLeaseRequest, StartReason, TakeLeaseRequest, TopicSettings,
};
use tenure_testkit::rig::{PgCluster, PgStandby};

use crate::events::*;
use crate::support::*;

async fn epoch(store: &PostgresStore, session: &str) -> u32 {
    match store.heartbeat(&id(session)).await.unwrap() {
        HeartbeatResponse::Live { epoch, .. } => epoch,
        HeartbeatResponse::SessionEnded => panic!("{session} has ended"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_increase_after_a_promotion_that_lost_grants() {
    let primary = PgCluster::start().unwrap();
    let before = migrated(&primary.url()).await;
    let key = election("e");
    let first = leading(&before, "a", &key).await;
    assert_eq!((epoch(&before, "a").await, first.to_string().as_str()), (1, "1.1"));
    let standby = PgStandby::of(&primary).unwrap();
    standby.wait_caught_up().unwrap();
    // A standby is read-only and refused.
    let refused = PostgresStore::connect(PostgresOptions::new(standby.url())).await.err().unwrap();
    assert_eq!(refused.kind, ErrorKind::Misconfigured, "{refused}");
    standby.disconnect().unwrap();
    // Tokens that the standby does not receive.
    let mut lost = first;
    for _ in 0..3 {
        let release = ReleaseLeaseRequest {
            session: id("a"),
            election: key.clone(),
            slot: 0,
            token: lost,
            successor: None,
            start_reason: StartReason::Release,
            leave: false,
        };
        before.release_lease(&release).await.unwrap();
        lost = before.take_lease(&free_take("a", &key, lost)).await.unwrap().unwrap();
    }
    assert_eq!(lost.to_string(), "1.4");
    standby.promote().unwrap();
    let after = PostgresStore::connect(PostgresOptions::new(standby.url())).await.unwrap();
    let promoted = epoch(&after, "a").await;
    assert!(promoted > 1);
    joined(&after, "b", &key).await;
    // Observations of the old epoch, missing heartbeats included, are not valid in the new one.
    let stale = takeover("b", &key, first, "a", 2);
    assert_eq!(after.take_lease(&stale).await.unwrap(), None);
    assert_eq!(epoch(&after, "a").await, promoted, "the session was not expired");
    let take = takeover("b", &key, first, "a", 3);
    let expire = take.expire.map(|expire| ExpireSessionRequest { epoch: promoted, ..expire });
    let taken =
        after.take_lease(&TakeLeaseRequest { epoch: promoted, expire, ..take }).await.unwrap().unwrap();
    assert!(taken > lost);
    assert_eq!(taken, Token::first(promoted).next(promoted));
}

#[tokio::test(flavor = "multi_thread")]
async fn with_sync_replication_unreplicated_writes_do_not_succeed() {
    let primary = PgCluster::start().unwrap();
    migrated(&primary.url()).await;
    let mut options = PostgresOptions::new(primary.url());
    options.sync_replication = true;
    let refused = PostgresStore::connect(options.clone()).await.err().unwrap();
    assert_eq!(refused.kind, ErrorKind::Unavailable, "{refused}");
    let standby = PgStandby::synchronous_of(&primary).unwrap();
    let store = PostgresStore::connect(options).await.unwrap();
    let key = election("e");
    let token = leading(&store, "a", &key).await;
    standby.disconnect().unwrap();
    let session = id("a");
    let heartbeat = tokio::time::timeout(Duration::from_millis(800), store.heartbeat(&session)).await;
    assert!(heartbeat.is_err(), "{heartbeat:?}");
    standby.reconnect().unwrap();
    let response = loop {
        if let Ok(response) = store.heartbeat(&session).await {
            break response;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(matches!(response, HeartbeatResponse::Live { .. }));
    primary.psql("postgres", "ALTER SYSTEM SET synchronous_standby_names = ''").unwrap();
    primary.psql("postgres", "SELECT pg_reload_conf()").unwrap();
    let refused = loop {
        if let Err(refused) = store.heartbeat(&session).await {
            break refused;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(refused.kind, ErrorKind::Unavailable);
    assert!(token > Token::ZERO);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_promotion_lost_events_are_not_committed_and_their_ids_not_reused() {
    let primary = PgCluster::start().unwrap();
    let before = migrated(&primary.url()).await;
    before
        .set_topic(&topic("t"), &TopicSettings { partitions: 1, ..TopicSettings::default() })
        .await
        .unwrap();
    let lease = member(&before, "a", &[0]).await.remove(0);
    before.publish(&topic("t"), &[keyed("k", 1)]).await.unwrap();
    let standby = PgStandby::of(&primary).unwrap();
    standby.wait_caught_up().unwrap();
    standby.disconnect().unwrap();
    // Events that the standby does not receive and a member has read.
    let lost = before.publish(&topic("t"), &[keyed("k", 2), keyed("k", 3)]).await.unwrap();
    let last = all(&before, 1).await.last().unwrap().offset;
    standby.promote().unwrap();
    let after = PostgresStore::connect(PostgresOptions::new(standby.url())).await.unwrap();
    let results = after.commit_partitions(&[commit(0, lease.token, last)]).await.unwrap();
    assert_eq!(results, [CommitResult::LeaseLost], "read in another epoch");
    let next = after.publish(&topic("t"), &[keyed("k", 4)]).await.unwrap();
    assert!(next[0].id > lost[1].id, "{next:?} after {lost:?}");
    assert_eq!(payloads(&all(&after, 1).await), [1, 4]);
    let assignment = after.group_assignment(&group("t", "g")).await.unwrap().unwrap();
    assert_eq!(
        (assignment.partition_leases[0].committed_offset, assignment.partition_leases[0].token),
        (0, lease.token),
        "nothing was changed"
    );
}
