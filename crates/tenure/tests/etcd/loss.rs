//! Members, majorities and leases that are lost.

use std::sync::Arc;
use std::time::Duration;

use tenure::port::{Directory, Pulse, Store};
use tenure_testkit::conformance::{Actor, election};
use tenure_testkit::rig::EtcdCluster;

use crate::{actor, client, leader, patiently};

#[tokio::test(flavor = "multi_thread")]
async fn any_one_member_may_be_lost_and_return() {
    let mut cluster = EtcdCluster::of(3).unwrap();
    let store = Arc::new(client(&cluster.url()).await);
    let a = Actor::open(store.clone(), "a").await;
    let key = election("e");
    a.stand(&key).await;
    let mut last = tenure::Token::ZERO;
    for member in 0..3 {
        cluster.kill9(member).unwrap();
        // The one that is gone may have led, so its first answers may be that nobody does.
        let beat = patiently(|| store.beat(&a.id)).await;
        assert!(matches!(beat, Pulse::Alive { epoch: 0, .. }), "a member's end is no restore");
        let token = a.take(&key, 0).await;
        assert!(token > last);
        last = token;
        cluster.start_again(member).unwrap();
        a.release(&key, 0, token).await;
    }
    let terms = store.history(&key, 10).await.unwrap();
    assert_eq!(terms.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_majority_nobody_leads_and_with_it_somebody_does_again() {
    let mut cluster = EtcdCluster::of(3).unwrap();
    let (tenure, elector, leadership) = leader(&cluster.url(), "a").await;
    let bystander = actor(&cluster.url(), "bystander").await;
    cluster.kill9(0).unwrap();
    cluster.kill9(1).unwrap();
    leadership.lost().await;
    assert!(!leadership.is_leader());
    let asked = tokio::time::timeout(Duration::from_secs(1), bystander.store.beat(&bystander.id)).await;
    assert!(!matches!(asked, Ok(Ok(_))), "the minority counts no beats: {asked:?}");
    cluster.start_all_again().unwrap();
    let token = leadership.token();
    drop(leadership);
    let next = elector.elected().await.unwrap();
    assert!(next.is_leader() && next.token() > token);
    drop((next, elector));
    tenure.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_etcd_lease_ran_out_is_over_and_what_it_held_is_free() {
    let cluster = EtcdCluster::start().unwrap();
    let [a, b] = [actor(&cluster.url(), "a").await, actor(&cluster.url(), "b").await];
    let key = election("e");
    a.stand(&key).await;
    b.stand(&key).await;
    let token = a.take(&key, 0).await;
    // As etcd itself does it when nobody keeps the lease.
    let at = format!("/tenure/sessions/{}", a.id.as_str());
    let told = cluster.etcdctl(&["get", &at, "-w", "fields"]).unwrap();
    let lease = told.lines().find_map(|line| line.strip_prefix("\"Lease\" : ")).unwrap();
    let lease: i64 = lease.parse().unwrap();
    cluster.etcdctl(&["lease", "revoke", &format!("{lease:x}")]).unwrap();
    assert!(!a.lives().await, "it never comes back");
    let next = b.take(&key, 0).await;
    assert!(next > token);
    assert_eq!(b.view(&key).await.candidates.len(), 1);
    let left = cluster.etcdctl(&["get", "--prefix", "--keys-only", "/tenure/"]).unwrap();
    assert!(!left.contains(a.id.as_str()), "nothing of it is left: {left}");
}
