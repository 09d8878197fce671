//! Faults of the API server, and manual changes with `kubectl`.

use std::time::Duration;

use serde_json::{Value, json};
use tenure::port::{
    BoxNotificationSource, ErrorKind, ExpireSessionRequest, FindingStatus, LeaderRequestKind, Notification,
    ObserveScope, TakeLeaseRequest,
};
use tenure_testkit::conformance::{TestSession, election, leader_request};
use tenure_testkit::rig::{KubeApi, KubeFault};

use super::{NAMESPACE, actor, api, client, lease};

/// A leader and a follower.
async fn led(api: &KubeApi) -> (TestSession, TestSession, tenure::ElectionKey, tenure::Token) {
    let (a, b, key) = (actor(api, "a").await, actor(api, "b").await, election("e"));
    a.join(&key).await;
    b.join(&key).await;
    let token = a.take(&key, 0).await;
    // Both must have seen the grant.
    assert!(b.is_live().await);
    b.view(&key).await;
    assert!(b.is_live().await);
    (a, b, key, token)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manually_deleted_lease_ends_its_term_and_is_recreated_above_its_tokens() {
    let api = api();
    let (a, b, key, token) = led(&api).await;
    a.release(&key, 0, token).await;
    let token = a.take(&key, 0).await;
    assert_eq!(token.as_u64(), 2);
    b.view(&key).await;
    assert!(b.is_live().await);
    assert!(api.delete(NAMESPACE, "e"));
    let seen = b.lease(&key, 0).await;
    assert!(!seen.is_free() && seen.token == token, "its holder may still trust the lease: {seen:?}");
    assert_eq!(
        b.store.take_lease(&b.take_request(&key, 0).await).await,
        Ok(None),
        "the lease duration must pass first"
    );
    assert!(!a.is_live().await, "its next heartbeat fails");
    b.join(&key).await;
    let made = lease(&api, "e");
    assert_eq!(made["spec"]["holderIdentity"].as_str(), Some(""));
    let seen = b.lease(&key, 0).await;
    assert!(!seen.is_free() && seen.token == token, "also after the Lease was recreated: {seen:?}");
    let bid = b.takeover_request(&key, 0).await;
    assert!(b.store.take_lease(&bid).await.unwrap().expect("no heartbeat for a whole lease") > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_lease_recreated_by_client_go_is_taken_over_above_its_tokens() {
    let api = api();
    let (a, b, key, token) = led(&api).await;
    a.release(&key, 0, token).await;
    let token = a.take(&key, 0).await;
    b.view(&key).await;
    assert!(b.is_live().await && api.delete(NAMESPACE, "e"));
    let mut theirs =
        super::client_go::Elector::new(api.clone(), NAMESPACE, super::client_go::Config::of("go", "e", 15));
    assert!(theirs.try_acquire_or_renew(), "client-go finds no holder");
    assert!(!a.is_live().await);
    let bid = b.takeover_request(&key, 0).await;
    assert!(b.store.take_lease(&bid).await.unwrap().expect("taken over") > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manually_cleared_holder_keeps_its_lease_duration() {
    let api = api();
    let (a, b, key, token) = led(&api).await;
    assert_eq!(api.patch(NAMESPACE, "e", &json!({ "spec": { "holderIdentity": "" } })), 200);
    let seen = b.lease(&key, 0).await;
    assert!(!seen.is_free(), "the Lease was not released: {seen:?}");
    assert_eq!(b.store.take_lease(&b.take_request(&key, 0).await).await, Ok(None));
    assert!(!a.is_live().await);
    let bid = b.takeover_request(&key, 0).await;
    assert!(b.store.take_lease(&bid).await.unwrap().is_some_and(|next| next > token));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_annotations_are_rewritten() {
    let api = api();
    let (a, b, key, token) = led(&api).await;
    let nonsense = json!({ "metadata": { "annotations": { "tenure.dev/record": "{" } } });
    assert_eq!(api.patch(NAMESPACE, "e", &nonsense), 200);
    assert_eq!(
        b.lease(&key, 0).await.holder.map(|holder| holder.id),
        Some(a.id.clone()),
        "found by its identity"
    );
    assert_eq!(b.store.take_lease(&b.take_request(&key, 0).await).await, Ok(None));
    assert!(a.is_live().await);
    assert_eq!(b.lease(&key, 0).await.token, token);
    let session = format!("tenure--session--{}", b.id);
    let nonsense = json!({ "metadata": { "annotations": { "tenure.dev/session": "[]" } } });
    assert_eq!(api.patch(NAMESPACE, &session, &nonsense), 200);
    assert!(!b.is_live().await, "a session with an invalid record has ended");
}

/// Expiring a session and granting it a lease change two objects; only one of the two may succeed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_expires_during_a_grant_releases_it() {
    let api = api();
    let (a, b, key) = (actor(&api, "a").await, actor(&api, "b").await, election("e"));
    a.join(&key).await;
    b.join(&key).await;
    let bid = a.take_request(&key, 0).await;
    let (world, store, id) = (tokio::runtime::Handle::current(), b.store.clone(), a.id.clone());
    api.before("update", "e", move || {
        let beat =
            world.block_on(store.sessions(Some(std::slice::from_ref(&id)))).unwrap()[0].heartbeat_count;
        world
            .block_on(store.expire_session(&ExpireSessionRequest {
                session: id,
                epoch: 0,
                heartbeat_count: Some(beat),
            }))
            .unwrap();
    });
    assert_eq!(a.store.take_lease(&bid).await, Ok(None));
    assert!(!a.is_live().await);
    assert!(b.lease(&key, 0).await.is_free());
    b.take(&key, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_renews_during_a_takeover_keeps_its_lease() {
    let api = api();
    let (a, b, key, token) = led(&api).await;
    let bid = b.takeover_request(&key, 0).await;
    let (world, store, id) = (tokio::runtime::Handle::current(), a.store.clone(), a.id.clone());
    api.before("update", "e", move || {
        world.block_on(store.heartbeat(&id)).unwrap();
    });
    assert_eq!(b.store.take_lease(&bid).await, Ok(None), "the observation is outdated");
    assert!(a.is_live().await);
    assert_eq!(b.lease(&key, 0).await.token, token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_during_a_grant_of_a_second_slot_prevails() {
    let api = api();
    let (a, key) = (actor(&api, "a").await, election("e"));
    a.join_with_slots(&key, 2).await;
    let bid = a.take_request(&key, 1).await;
    let (world, store, of) = (tokio::runtime::Handle::current(), client(&api).await, key.clone());
    let pause = tenure::port::Pause { paused_by: "ops".into(), reason: String::new(), paused_at_ms: 1 };
    api.before("create", "e--slot-1", move || {
        world.block_on(store.set_election_paused(&of, Some(&pause))).unwrap();
    });
    assert_eq!(a.store.take_lease(&bid).await, Ok(None));
    assert!(a.lease(&key, 1).await.is_free() && a.is_live().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_response_is_neither_a_grant_nor_a_heartbeat() {
    let api = api();
    let (a, key) = (actor(&api, "a").await, election("e"));
    a.join(&key).await;
    api.fail("update", "e", KubeFault::LoseResponse(500), 1);
    let refused = a.store.take_lease(&a.take_request(&key, 0).await).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Unavailable);
    let found = a.lease(&key, 0).await;
    assert_eq!(found.holder.map(|holder| holder.id), Some(a.id.clone()), "the write had succeeded");
    a.release(&key, 0, found.token).await;
    assert!(a.take(&key, 0).await > found.token);
    for (verb, code) in [("update", 500), ("update", 503)] {
        api.fail(verb, "e", KubeFault::Reject(code), 1);
        assert_eq!(a.store.heartbeat(&a.id).await.unwrap_err().kind, ErrorKind::Unavailable);
    }
    assert!(a.is_live().await, "the session continues");
}

/// A heartbeat fails if one of two renewals fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_succeeds_only_if_all_leases_are_renewed() {
    let api = api();
    let a = actor(&api, "a").await;
    for name in ["one", "two"] {
        a.join(&election(name)).await;
        a.take(&election(name), 0).await;
    }
    api.fail("update", "two", KubeFault::Reject(500), 1);
    assert!(a.store.heartbeat(&a.id).await.is_err());
    assert!(a.is_live().await);
    assert_eq!(
        api.patch(NAMESPACE, "two", &json!({ "spec": { "holderIdentity": "x", "leaseTransitions": 9 } })),
        200
    );
    assert!(!a.is_live().await, "the loss of one Lease ends the session");
    assert!(!a.is_live().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_after_of_the_server_is_respected() {
    let api = api();
    let a = actor(&api, "a").await;
    api.fail("update", "", KubeFault::RetryAfter(1), 1);
    let refused = a.store.heartbeat(&a.id).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Unavailable);
    api.requests();
    let beat = a.store.heartbeat(&a.id);
    tokio::pin!(beat);
    assert!(tokio::time::timeout(Duration::from_millis(100), &mut beat).await.is_err());
    assert!(api.requests().is_empty(), "no request is sent");
    assert!(matches!(beat.await, Ok(tenure::port::HeartbeatResponse::Live { .. })));
}

/// The server throttles lists first, which must not cost a leader its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn throttled_reads_do_not_delay_heartbeats() {
    let api = api();
    let (a, _b, key, _) = led(&api).await;
    api.fail("list", "", KubeFault::RetryAfter(30), 1);
    assert_eq!(a.store.election(&key).await.unwrap_err().kind, ErrorKind::Unavailable);
    assert!(tokio::time::timeout(Duration::from_secs(20), a.is_live()).await.expect("the heartbeat is sent"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_verb_is_reported_with_the_remedy() {
    let api = api();
    let a = actor(&api, "a").await;
    api.deny("update", "leases");
    let refused = a.store.heartbeat(&a.id).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Denied);
    for expected in ["`update`", "leases", NAMESPACE, "rbac.yaml", "kubectl auth can-i"] {
        assert!(refused.message.contains(expected), "{expected}: {refused}");
    }
    let findings = a.store.diagnose().await.unwrap();
    let bad: Vec<_> = findings.iter().filter(|finding| finding.status == FindingStatus::Error).collect();
    assert_eq!(bad.iter().map(|finding| finding.check.as_str()).collect::<Vec<_>>(), ["may update leases"]);
    api.clear_faults();
    api.reject_credentials(true);
    let refused = a.store.heartbeat(&a.id).await.unwrap_err();
    assert!(refused.kind == ErrorKind::Denied && refused.message.contains("service account"), "{refused}");
    api.reject_credentials(false);
    assert!(a.is_live().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_namespace_is_reported() {
    let api = api();
    let store = client(&api).await;
    api.only_namespaces(&["other"]);
    let session = tenure_testkit::conformance::new_session(&tenure_testkit::conformance::new_id(), "a");
    let refused = store.open_session(&session).await.unwrap_err();
    assert!(refused.message.contains("kubectl create namespace prod"), "{refused}");
}

/// A broken watch is reopened, and no change is missed permanently.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_or_expired_watch_starts_again() {
    let api = api();
    let (a, b, key, token) = led(&api).await;
    let mut notifications = b.store.notifications();
    until(&mut notifications, &Notification::Resync).await;
    api.close_watches();
    a.store.request_leader(&leader_request(&key, token, LeaderRequestKind::Resign)).await.unwrap();
    until(&mut notifications, &Notification::LeaderRequested(a.id.clone())).await;
    // Its version expires while it is closed.
    api.fail("watch", "", KubeFault::Reject(410), 1);
    api.close_watches();
    until(&mut notifications, &Notification::Resync).await;
    // Its version expires while it is open.
    api.compact();
    api.delete(NAMESPACE, "missing");
    api.close_watches();
    b.join(&key).await;
    until(&mut notifications, &Notification::ElectionChanged(key.clone())).await;
    a.release(&key, 0, token).await;
    until(&mut notifications, &Notification::ElectionChanged(key)).await;
}

async fn until(notifications: &mut BoxNotificationSource, expected: &Notification) {
    loop {
        match notifications.next().await {
            Some(notification) if notification == *expected => return,
            Some(_) => {}
            None => panic!("the notifications ended before {expected:?}"),
        }
    }
}

/// A holder whose only Lease was taken over must not be able to continue with heartbeats.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_takeover_by_client_go_ends_the_session_at_its_next_heartbeat() {
    let api = api();
    let (a, b, _, token) = led(&api).await;
    let mut theirs = lease(&api, "e");
    theirs["spec"]["holderIdentity"] = json!("go");
    theirs["spec"]["leaseTransitions"] = json!(token.as_u64());
    assert_eq!(api.update(NAMESPACE, "e", theirs).0, 200);
    assert!(!a.is_live().await);
    let seen = b.store.observe(&b.id, &ObserveScope::Own).await.unwrap().elections.remove(0);
    assert_eq!(seen.leases[0].token.as_u64(), token.as_u64() + 1);
    assert!(seen.candidate(&a.id).is_none(), "its session has ended");
}

/// The annotation with the election's name is copied together with the Lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_a_lease_does_not_change_its_election() {
    let api = api();
    let (_a, b, key, token) = led(&api).await;
    let mut copy: Value = lease(&api, "e");
    copy["metadata"]["name"] = json!("copy");
    copy["metadata"]["resourceVersion"] = Value::Null;
    copy["metadata"]["uid"] = Value::Null;
    copy["spec"]["leaseTransitions"] = json!(77);
    assert_eq!(api.create(NAMESPACE, copy).0, 201);
    assert_eq!(b.lease(&key, 0).await.token, token);
    let take = TakeLeaseRequest { election: election("copy"), ..b.take_request(&key, 0).await };
    assert_eq!(b.store.take_lease(&take).await, Ok(None));
}
