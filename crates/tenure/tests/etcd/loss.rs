//! Loss of members, of the majority, and of etcd leases.

use std::sync::Arc;
use std::time::Duration;

use tenure::port::{ElectionAdmin, ElectionStore, HeartbeatResponse};
use tenure_testkit::conformance::{TestSession, election};
use tenure_testkit::rig::EtcdCluster;

use crate::{actor, client, leader, retry};

#[tokio::test(flavor = "multi_thread")]
async fn any_single_member_may_fail_and_return() {
    let mut cluster = EtcdCluster::of(3).unwrap();
    let store = Arc::new(client(&cluster.url()).await);
    let a = TestSession::open(store.clone(), "a").await;
    let key = election("e");
    a.join(&key).await;
    let mut last = tenure::Token::ZERO;
    for member in 0..3 {
        cluster.kill9(member).unwrap();
        // The killed member may have been the etcd leader, so the first calls may fail without a leader.
        let beat = retry(|| store.heartbeat(&a.id)).await;
        assert!(
            matches!(beat, HeartbeatResponse::Live { epoch: 0, .. }),
            "the loss of a member is not a restore"
        );
        let token = a.take(&key, 0).await;
        assert!(token > last);
        last = token;
        cluster.start_again(member).unwrap();
        a.release(&key, 0, token).await;
    }
    let terms = store.term_history(&key, 10).await.unwrap();
    assert_eq!(terms.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn there_is_no_leader_without_a_majority_and_one_with_it() {
    let mut cluster = EtcdCluster::of(3).unwrap();
    let (tenure, elector, leadership) = leader(&cluster.url(), "a").await;
    let bystander = actor(&cluster.url(), "bystander").await;
    cluster.kill9(0).unwrap();
    cluster.kill9(1).unwrap();
    leadership.lost().await;
    assert!(!leadership.is_leader());
    let response =
        tokio::time::timeout(Duration::from_secs(1), bystander.store.heartbeat(&bystander.id)).await;
    assert!(!matches!(response, Ok(Ok(_))), "the minority accepts no heartbeats: {response:?}");
    cluster.start_all_again().unwrap();
    let token = leadership.token();
    drop(leadership);
    let next = elector.elected().await.unwrap();
    assert!(next.is_leader() && next.token() > token);
    drop((next, elector));
    tenure.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_etcd_lease_expired_has_ended_and_its_leases_are_free() {
    let cluster = EtcdCluster::start().unwrap();
    let [a, b] = [actor(&cluster.url(), "a").await, actor(&cluster.url(), "b").await];
    let key = election("e");
    a.join(&key).await;
    b.join(&key).await;
    let token = a.take(&key, 0).await;
    // etcd does the same when a lease is not kept alive.
    let at = format!("/tenure/sessions/{}", a.id.as_str());
    let output = cluster.etcdctl(&["get", &at, "-w", "fields"]).unwrap();
    let lease = output.lines().find_map(|line| line.strip_prefix("\"Lease\" : ")).unwrap();
    let lease: i64 = lease.parse().unwrap();
    cluster.etcdctl(&["lease", "revoke", &format!("{lease:x}")]).unwrap();
    assert!(!a.is_live().await, "an ended session never reappears");
    let next = b.take(&key, 0).await;
    assert!(next > token);
    assert_eq!(b.view(&key).await.candidates.len(), 1);
    let left = cluster.etcdctl(&["get", "--prefix", "--keys-only", "/tenure/"]).unwrap();
    assert!(!left.contains(a.id.as_str()), "keys of the session remain: {left}");
}
