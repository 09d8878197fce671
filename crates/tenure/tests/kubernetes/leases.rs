//! The Lease objects that the store writes, and the number of requests it needs.

use serde_json::json;
use tenure::port::ObserveScope;
use tenure_testkit::conformance::{TestSession, election, new_id, new_session};

use super::{NAMESPACE, actor, api, client, lease};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_has_the_fields_of_client_go_and_preserves_others() {
    let api = api();
    let theirs = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "e", "labels": { "team": "a" }, "annotations": { "note": "b" } },
        "spec": { "strategy": "OldestEmulationVersion", "preferredHolder": "x" },
    });
    assert_eq!(api.create(NAMESPACE, theirs).0, 201);
    let (a, key) = (actor(&api, "a").await, election("e"));
    a.join(&key).await;
    let token = a.take(&key, 0).await;
    let held = lease(&api, "e");
    let spec = &held["spec"];
    let identity = spec["holderIdentity"].as_str().unwrap();
    assert!(identity.ends_with(&format!("_{}", a.id)), "{identity}");
    assert_eq!((spec["leaseDurationSeconds"].as_u64(), token.as_u64()), (Some(3600), 1));
    assert_eq!(spec["leaseTransitions"].as_u64(), Some(0), "client-go starts at 0");
    assert_eq!(spec["acquireTime"], spec["renewTime"]);
    assert!(a.is_live().await);
    let renewed = lease(&api, "e");
    assert!(
        renewed["spec"]["renewTime"].as_str() > spec["renewTime"].as_str(),
        "a heartbeat renews the Lease"
    );
    for field in ["holderIdentity", "acquireTime", "leaseTransitions", "leaseDurationSeconds"] {
        assert_eq!(renewed["spec"][field], spec[field]);
    }
    a.release(&key, 0, token).await;
    let free = lease(&api, "e");
    assert_eq!(
        (free["spec"]["holderIdentity"].as_str(), free["spec"]["leaseDurationSeconds"].as_u64()),
        (Some(""), Some(1))
    );
    assert_eq!(free["spec"]["leaseTransitions"].as_u64(), Some(0), "transitions are unchanged");
    assert_eq!(free["spec"]["renewTime"], free["spec"]["acquireTime"]);
    for object in [&held, &renewed, &free] {
        assert_eq!(
            (&object["spec"]["strategy"], &object["spec"]["preferredHolder"]),
            (&json!("OldestEmulationVersion"), &json!("x"))
        );
        assert_eq!(
            (&object["metadata"]["labels"]["team"], &object["metadata"]["annotations"]["note"]),
            (&json!("a"), &json!("b"))
        );
    }
    assert_eq!(a.take(&key, 0).await.as_u64(), 2);
    assert_eq!(lease(&api, "e")["spec"]["leaseTransitions"].as_u64(), Some(1));
}

/// The same cost as client-go: one request per held Lease, otherwise one per process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_costs_one_request_per_held_lease() {
    let api = api();
    let a = actor(&api, "a").await;
    let session = format!("tenure--session--{}", a.id);
    api.requests();
    assert!(a.is_live().await);
    assert_eq!(api.requests(), [("update".to_owned(), session)]);
    for name in ["one", "two"] {
        a.join(&election(name)).await;
        a.take(&election(name), 0).await;
    }
    api.requests();
    assert!(a.is_live().await);
    let mut requests = api.requests();
    requests.sort();
    assert_eq!(requests, [("update".to_owned(), "one".to_owned()), ("update".to_owned(), "two".to_owned())]);
}

/// The verb `delete` is not needed, and objects do not accumulate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_object_of_an_ended_session_is_reused() {
    let api = api();
    api.deny("delete", "leases");
    let a = actor(&api, "a").await;
    a.store.end_session(&a.id).await.unwrap();
    let b = actor(&api, "b").await;
    assert_eq!(api.leases(NAMESPACE).len(), 2, "the id of an ended session is kept for a while");
    let name = format!("tenure--session--{}", a.id);
    let mut record: serde_json::Value = serde_json::from_str(
        lease(&api, &name)["metadata"]["annotations"]["tenure.dev/session"].as_str().unwrap(),
    )
    .unwrap();
    record["ended_at_ms"] = json!(1);
    let patch = json!({ "metadata": { "annotations": { "tenure.dev/session": record.to_string() } } });
    assert_eq!(api.patch(NAMESPACE, &name, &patch), 200);
    let c = actor(&api, "c").await;
    assert_eq!(api.leases(NAMESPACE).len(), 2, "the object is reused");
    assert!(b.is_live().await && c.is_live().await && !a.is_live().await);
    assert!(api.requests().iter().all(|(verb, _)| verb != "delete"));
}

/// More objects than fit in one response, and a continuation that has expired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_list_is_read_in_chunks_and_again_when_it_expires() {
    let api = api();
    for n in 0..1100 {
        let object = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": format!("e{n}"), "labels": { "tenure.dev/kind": "election" } }, "spec": {},
        });
        assert_eq!(api.create(NAMESPACE, object).0, 201);
    }
    let store = client(&api).await;
    assert_eq!(store.elections(None).await.unwrap().len(), 1100);
    api.requests();
    api.fail("list", "", tenure_testkit::rig::KubeFault::Reject(410), 1);
    assert_eq!(store.elections(None).await.unwrap().len(), 1100);
    assert_eq!(api.requests().len(), 4, "one rejected request and three chunks");
}

/// A server opened the session for a client, which may use any server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_with_an_owner_accepts_heartbeats_through_any_client() {
    let api = api();
    let (one, two, key) = (client(&api).await, client(&api).await, election("e"));
    let id = new_id();
    let session = tenure::port::OpenSessionRequest { owner: Some("ci".into()), ..new_session(&id, "remote") };
    one.open_session(&session).await.unwrap();
    let through = |store: &std::sync::Arc<dyn tenure::port::Store>| TestSession {
        store: store.clone(),
        id: id.clone(),
        epoch: 0,
    };
    let (first, second) = (through(&one), through(&two));
    assert!(first.is_live().await);
    second.join(&key).await;
    second.take(&key, 0).await;
    let before = lease(&api, "e")["spec"]["renewTime"].clone();
    assert!(first.is_live().await);
    assert_ne!(
        lease(&api, "e")["spec"]["renewTime"],
        before,
        "a heartbeat through any client renews the Lease"
    );
    // A heartbeat through any client detects the loss.
    assert_eq!(
        api.patch(NAMESPACE, "e", &json!({ "spec": { "holderIdentity": "x", "leaseTransitions": 7 } })),
        200
    );
    assert!(!first.is_live().await && !second.is_live().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_of_another_client_is_shown() {
    let api = api();
    let theirs = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": "go" },
        "spec": { "holderIdentity": "go-1", "leaseDurationSeconds": 15, "leaseTransitions": 4,
            "acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": "2026-01-01T00:00:00.000000Z" },
    });
    assert_eq!(api.create(NAMESPACE, theirs).0, 201);
    let (a, key) = (actor(&api, "a").await, election("go"));
    let view = a.view(&key).await;
    let (seen, holder) = (&view.leases[0], view.leases[0].holder.clone().unwrap());
    assert_eq!(
        (seen.token.as_u64(), holder.name.as_str(), holder.lease_ms, holder.live),
        (5, "go-1", 15_000, true)
    );
    a.join(&key).await;
    let read_heartbeat = || async {
        a.store.observe(&a.id, &ObserveScope::Own).await.unwrap().elections[0].leases[0]
            .holder
            .clone()
            .unwrap()
            .heartbeat_count
    };
    let before = read_heartbeat().await;
    assert_eq!(read_heartbeat().await, before, "the heartbeat is constant while the record is");
    assert_eq!(a.store.take_lease(&a.take_request(&key, 0).await).await, Ok(None), "the holder is live");
    assert_eq!(
        api.patch(NAMESPACE, "go", &json!({ "spec": { "renewTime": "2026-01-01T00:00:02.000000Z" } })),
        200
    );
    let stale = tenure::port::TakeLeaseRequest {
        expire: Some(tenure::port::ExpireSessionRequest {
            session: holder.id.clone(),
            epoch: 0,
            heartbeat_count: Some(before),
        }),
        ..a.take_request(&key, 0).await
    };
    assert_eq!(a.store.take_lease(&stale).await, Ok(None), "the Lease was renewed after the observation");
    let bid = a.takeover_request(&key, 0).await;
    assert_eq!(a.store.take_lease(&bid).await.unwrap().map(|token| token.as_u64()), Some(6));
    assert_eq!(lease(&api, "go")["spec"]["leaseTransitions"].as_u64(), Some(5));
    let terms: Vec<_> = a
        .store
        .term_history(&key, 9)
        .await
        .unwrap()
        .into_iter()
        .map(|term| (term.token.as_u64(), term.candidate_name))
        .collect();
    assert_eq!(terms, [(6, "candidate".to_owned()), (5, "go-1".to_owned())]);
}

/// The label is for services that select by it; the Lease is authoritative.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pod_of_the_leader_is_labelled_on_request() {
    let api = api();
    let pod = tenure::runtime::host_name();
    api.add_pod(NAMESPACE, &pod);
    let url = format!("{}&leader_label=acme.io/leads", api.url(NAMESPACE));
    let options = tenure::store::StoreOptions { url, ..Default::default() };
    let store = tenure::store::open(&options).await.unwrap();
    let (a, key) = (TestSession::open(store, "a").await, election("nightly"));
    a.join(&key).await;
    let token = a.take(&key, 0).await;
    let label = || api.pod_label(NAMESPACE, &pod, "acme.io/leads");
    while label().as_deref() != Some("nightly") {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    a.release(&key, 0, token).await;
    while label().is_some() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

/// With a separate election store, tokens are comparable only within the same namespace of the same cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_has_a_stable_identity() {
    let (api, other) = (api(), super::api());
    let identity = client(&api).await.identity().await.unwrap();
    assert_eq!(client(&api).await.identity().await.unwrap(), identity);
    assert_ne!(client(&other).await.identity().await.unwrap(), identity);
}

/// As in kubeconfigs of cloud providers: a token in a rotated file, or a command that prints one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn access_tokens_come_from_files_and_from_commands() {
    let api = api();
    let file = api.write_kubeconfig("token", &json!({})).unwrap();
    std::fs::write(&file, api.token()).unwrap();
    let printed = json!({
        "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
        "status": { "token": api.token(), "expirationTimestamp": "2999-01-01T00:00:00Z" },
    });
    let command = json!({
        "apiVersion": "client.authentication.k8s.io/v1", "command": "echo", "args": [printed.to_string()], "interactiveMode": "Never",
    });
    for (name, user) in [("file", json!({ "tokenFile": file })), ("exec", json!({ "exec": command }))] {
        let config = api.write_kubeconfig(name, &user).unwrap();
        let url = format!("k8s:{NAMESPACE}?kubeconfig={}", config.display());
        let options = tenure::store::StoreOptions { url, ..Default::default() };
        let store = tenure::store::open(&options).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(TestSession::open(store, name).await.is_live().await);
    }
}
