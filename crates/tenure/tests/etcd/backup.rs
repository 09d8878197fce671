//! Restore of an etcd cluster from a backup.
//!
//! A cluster that is restored under the same names and addresses keeps its cluster id, so the id alone does not reveal
//! a restore.

use std::sync::Arc;

use tenure::port::HeartbeatResponse;
use tenure_testkit::conformance::{TestSession, election};
use tenure_testkit::rig::EtcdCluster;

use crate::{actor, client, leader};

async fn epoch(actor: &TestSession) -> u32 {
    match actor.store.heartbeat(&actor.id).await.unwrap() {
        HeartbeatResponse::Live { epoch, .. } => epoch,
        HeartbeatResponse::SessionEnded => panic!("the session is part of the backup"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_starts_a_new_epoch_and_no_token_is_granted_twice() {
    let mut cluster = EtcdCluster::start().unwrap();
    let [mut a, b] = [actor(&cluster.url(), "a").await, actor(&cluster.url(), "b").await];
    let key = election("e");
    a.join(&key).await;
    b.join(&key).await;
    let backup = cluster.backup().unwrap();
    let lost = b.take(&key, 0).await;
    for _ in 0..40 {
        assert!(a.is_live().await && b.is_live().await);
    }
    let stale = a.take_request(&key, 0).await;
    cluster.restore(&backup).unwrap();
    assert_eq!((epoch(&a).await, epoch(&b).await), (1, 1));
    assert_eq!(
        a.store.take_lease(&stale).await,
        Ok(None),
        "an observation from before the restore is rejected"
    );
    a.epoch = 1;
    let token = a.take(&key, 0).await;
    assert!(token > lost, "{token} was granted after {lost}");
    // A process that connects only after the restore gets a greater token, too.
    a.release(&key, 0, token).await;
    let c = TestSession::open(Arc::new(client(&cluster.url()).await), "c").await;
    c.join(&key).await;
    assert!(c.take(&key, 0).await > token);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_stops_after_a_restore_and_its_successor_has_a_greater_token() {
    let mut cluster = EtcdCluster::start().unwrap();
    let bystander = actor(&cluster.url(), "bystander").await;
    let backup = cluster.backup().unwrap();
    let (tenure, elector, leadership) = leader(&cluster.url(), "a").await;
    for _ in 0..20 {
        bystander.is_live().await;
    }
    cluster.restore(&backup).unwrap();
    leadership.lost().await;
    assert!(!leadership.is_leader());
    let token = leadership.token();
    drop(leadership);
    let next = elector.elected().await.unwrap();
    assert!(next.token() > token, "{} was granted after {token}", next.token());
    drop((next, elector));
    tenure.close().await.unwrap();
}
