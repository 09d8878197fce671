//! A cluster that was restored from a backup.
//!
//! It was believed once that its id would be another. It is the same, if it is restored under the same names and addresses.

use std::sync::Arc;

use tenure::port::Pulse;
use tenure_testkit::conformance::{Actor, election};
use tenure_testkit::rig::EtcdCluster;

use crate::{actor, client, leader};

async fn epoch(actor: &Actor) -> u32 {
    match actor.store.beat(&actor.id).await.unwrap() {
        Pulse::Alive { epoch, .. } => epoch,
        Pulse::Gone => panic!("it was there when the backup was made"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_is_another_time_and_no_token_is_granted_again() {
    let mut cluster = EtcdCluster::start().unwrap();
    let [mut a, b] = [actor(&cluster.url(), "a").await, actor(&cluster.url(), "b").await];
    let key = election("e");
    a.stand(&key).await;
    b.stand(&key).await;
    let backup = cluster.backup().unwrap();
    let lost = b.take(&key, 0).await;
    for _ in 0..40 {
        assert!(a.lives().await && b.lives().await);
    }
    let stale = a.bid(&key, 0).await;
    cluster.restore(&backup).unwrap();
    assert_eq!((epoch(&a).await, epoch(&b).await), (1, 1));
    assert_eq!(a.store.take(&stale).await, Ok(None), "what was seen before is not believed");
    a.epoch = 1;
    let token = a.take(&key, 0).await;
    assert!(token > lost, "{token} is granted after {lost} was");
    // Also by who was not there before.
    a.release(&key, 0, token).await;
    let c = Actor::open(Arc::new(client(&cluster.url()).await), "c").await;
    c.stand(&key).await;
    assert!(c.take(&key, 0).await > token);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_led_before_a_restore_stops_and_the_next_one_has_a_greater_token() {
    let mut cluster = EtcdCluster::start().unwrap();
    let bystander = actor(&cluster.url(), "bystander").await;
    let backup = cluster.backup().unwrap();
    let (tenure, elector, leadership) = leader(&cluster.url(), "a").await;
    for _ in 0..20 {
        bystander.lives().await;
    }
    cluster.restore(&backup).unwrap();
    leadership.lost().await;
    assert!(!leadership.is_leader());
    let token = leadership.token();
    drop(leadership);
    let next = elector.elected().await.unwrap();
    assert!(next.token() > token, "{} is granted after {token} was", next.token());
    drop((next, elector));
    tenure.close().await.unwrap();
}
