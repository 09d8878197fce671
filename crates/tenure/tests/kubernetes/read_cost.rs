//! Cost of reads, watches and records.

use std::time::Duration;

use serde_json::json;
use tenure::port::{Candidacy, ErrorKind, Notification, ObserveScope, OpenSessionRequest};
use tenure_testkit::conformance::{TestSession, candidacy, election, new_id, new_session};
use tenure_testkit::rig::KubeApi;

use super::{NAMESPACE, actor, api, client, lease};

/// Number of unrelated sessions, each with an election of its own.
const OTHERS: usize = 12;

async fn unrelated_sessions(api: &KubeApi) -> Vec<TestSession> {
    let store = client(api).await;
    let mut others = Vec::new();
    for n in 0..OTHERS {
        let other = TestSession::open(store.clone(), "other").await;
        other.join(&election(&format!("other{n}"))).await;
        other.take(&election(&format!("other{n}")), 0).await;
        others.push(other);
    }
    others
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_lists_only_its_election() {
    let api = api();
    let _others = unrelated_sessions(&api).await;
    let (a, b, key) = (actor(&api, "a").await, actor(&api, "b").await, election("e"));
    a.join(&key).await;
    b.join(&key).await;
    let token = a.take(&key, 0).await;
    api.listed_count();
    api.requests();
    for scope in [ObserveScope::Contested, ObserveScope::Own, ObserveScope::Listed(vec![key.clone()])] {
        let seen = b.store.observe(&b.id, &scope).await.unwrap();
        assert_eq!(seen.elections[0].leases[0].token, token);
        assert_eq!((api.requests().len(), api.listed_count()), (1, 3), "its Lease and two candidates");
    }
    a.release(&key, 0, token).await;
    b.take(&key, 0).await;
    assert!(api.listed_count() <= 3 * 3, "a change needs at most three more reads");
}

/// The heartbeat of a leader is only in the Leases that it holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_of_another_election_is_seen_as_live() {
    let api = api();
    let (a, b) = (actor(&api, "a").await, actor(&api, "b").await);
    let (held, common) = (election("held"), election("common"));
    for key in [&held, &common] {
        a.join(key).await;
    }
    b.join(&common).await;
    a.take(&held, 0).await;
    let heartbeat = || async {
        let seen = b.store.observe(&b.id, &ObserveScope::Own).await.unwrap();
        assert_eq!(seen.elections.len(), 1);
        seen.elections[0].candidate(&a.id).expect("a candidate").session.heartbeat_count
    };
    let before = heartbeat().await;
    assert!(a.is_live().await);
    let after = heartbeat().await;
    assert!(after > before, "{after} after {before}");
    // A candidate of both elections sees it with one read.
    b.join(&held).await;
    for _ in 0..20 {
        observe_both(&b).await;
    }
    api.requests();
    observe_both(&b).await;
    assert_eq!(api.requests().len(), 1);
}

async fn observe_both(b: &TestSession) {
    assert_eq!(b.store.observe(&b.id, &ObserveScope::Own).await.unwrap().elections.len(), 2);
}

/// The response of a grant was lost, and the candidacy was withdrawn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_with_a_lost_response_is_found_by_its_session() {
    let api = api();
    let (a, key) = (actor(&api, "a").await, election("e"));
    // Makes the read scope non-empty.
    a.join(&election("another")).await;
    a.join(&key).await;
    api.fail("update", "e", tenure_testkit::rig::KubeFault::LoseResponse(500), 1);
    assert!(a.store.take_lease(&a.take_request(&key, 0).await).await.is_err());
    a.store.leave_election(&a.id, &key).await.unwrap();
    let seen = a.store.observe(&a.id, &ObserveScope::Own).await.unwrap();
    assert_eq!(seen.orphaned_leases.len(), 1, "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_receives_only_elections_of_its_process() {
    let api = api();
    let others = unrelated_sessions(&api).await;
    let (b, key) = (actor(&api, "b").await, election("e"));
    b.join(&key).await;
    let mut notifications = b.store.notifications();
    while notifications.next().await != Some(Notification::Resync) {}
    // Wait until the watch is active.
    let mut received = None;
    while received.is_none() {
        b.join(&key).await;
        received = tokio::time::timeout(Duration::from_millis(50), notifications.next()).await.ok();
    }
    api.watch_event_count();
    for other in &others {
        assert!(other.is_live().await);
    }
    b.join(&key).await;
    while notifications.next().await != Some(Notification::ElectionChanged(key.clone())) {}
    let events = api.watch_event_count();
    assert!(events < OTHERS as u64, "{events} events for {OTHERS} unrelated heartbeats");
    // A process that lists all elections receives all notifications.
    let mut all = others[0].store.notifications();
    others[0].store.elections(None).await.unwrap();
    while all.next().await != Some(Notification::Resync) {}
    let changed = Notification::ElectionChanged(key.clone());
    let mut received = false;
    while !received {
        b.join(&key).await;
        let next = tokio::time::timeout(Duration::from_millis(50), all.next()).await;
        received = next.is_ok_and(|notification| notification == Some(changed.clone()));
    }
}

/// Annotations are limited to 256 KiB. A candidacy beyond the limit is rejected before data is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_candidacy_beyond_the_record_size_is_rejected() {
    let api = api();
    let a = actor(&api, "a").await;
    let mut joined = 0;
    let refused = loop {
        let key = election(&format!("e{joined}"));
        let candidacy = Candidacy { slots: 400, ..candidacy(&a.id, &key) };
        match a.store.join_election(&candidacy).await {
            Ok(_) => joined += 1,
            Err(refused) => break refused,
        }
    };
    assert!(refused.kind == ErrorKind::Request && refused.message.contains("another store"), "{refused}");
    assert!(joined > 1, "{joined}");
    for n in 0..joined {
        a.take(&election(&format!("e{n}")), 399).await;
    }
    assert!(a.is_live().await, "all accepted candidacies fit into the record");
}

/// client-go observes only the Lease. A heartbeat sent during the grant is trusted but did not renew the Lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_grant_is_renewed_before_it_is_returned() {
    let api = api();
    let (store, key, id) = (client(&api).await, election("e"), new_id());
    let session = OpenSessionRequest { lease: Duration::from_secs(1), ..new_session(&id, "a") };
    store.open_session(&session).await.unwrap();
    let a = TestSession { store, id, epoch: 0 };
    a.join(&key).await;
    a.take(&key, 0).await;
    a.release(&key, 0, a.lease(&key, 0).await.token).await;
    let bid = a.take_request(&key, 0).await;
    let name = format!("tenure--session--{}", a.id);
    api.before("update", &name, || std::thread::sleep(Duration::from_millis(50)));
    api.requests();
    assert!(a.store.take_lease(&bid).await.unwrap().is_some());
    let updates: Vec<_> = api.requests().into_iter().filter(|(verb, _)| verb == "update").collect();
    let names: Vec<&str> = updates.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(names, ["e", &name, "e"]);
    let made = lease(&api, "e");
    assert!(made["spec"]["renewTime"].as_str() > made["spec"]["acquireTime"].as_str());
}

/// Objects in a list lack `apiVersion` and `kind`, and `managedFields` names the writer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn written_objects_are_complete_and_name_their_writer() {
    let api = api();
    let (a, key) = (actor(&api, "a").await, election("e"));
    a.join(&key).await;
    a.take(&key, 0).await;
    for object in api.leases(NAMESPACE) {
        assert_eq!(
            (&object["kind"], &object["apiVersion"]),
            (&json!("Lease"), &json!("coordination.k8s.io/v1"))
        );
        assert_eq!(object["metadata"]["managedFields"][0]["manager"], "tenure");
    }
}
