//! What is written, and how often.

use serde_json::json;
use tenure::port::Scope;
use tenure_testkit::conformance::{Actor, election, new_id, new_session};

use super::{NAMESPACE, actor, api, client, lease};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_says_what_client_go_says_and_keeps_what_others_said() {
    let api = api();
    let theirs = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "e", "labels": { "team": "a" }, "annotations": { "note": "b" } },
        "spec": { "strategy": "OldestEmulationVersion", "preferredHolder": "x" },
    });
    assert_eq!(api.create(NAMESPACE, theirs).0, 201);
    let (a, key) = (actor(&api, "a").await, election("e"));
    a.stand(&key).await;
    let token = a.take(&key, 0).await;
    let held = lease(&api, "e");
    let spec = &held["spec"];
    let identity = spec["holderIdentity"].as_str().unwrap();
    assert!(identity.ends_with(&format!("_{}", a.id)), "{identity}");
    assert_eq!((spec["leaseDurationSeconds"].as_u64(), token.as_u64()), (Some(3600), 1));
    assert_eq!(spec["leaseTransitions"].as_u64(), Some(0), "as client-go begins to count");
    assert_eq!(spec["acquireTime"], spec["renewTime"]);
    assert!(a.lives().await);
    let renewed = lease(&api, "e");
    assert!(renewed["spec"]["renewTime"].as_str() > spec["renewTime"].as_str(), "a beat renews it");
    for field in ["holderIdentity", "acquireTime", "leaseTransitions", "leaseDurationSeconds"] {
        assert_eq!(renewed["spec"][field], spec[field]);
    }
    a.release(&key, 0, token).await;
    let free = lease(&api, "e");
    assert_eq!(
        (free["spec"]["holderIdentity"].as_str(), free["spec"]["leaseDurationSeconds"].as_u64()),
        (Some(""), Some(1))
    );
    assert_eq!(free["spec"]["leaseTransitions"].as_u64(), Some(0), "counted as before");
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

/// At the pace of client-go, and never more: one request for each Lease that is held, and else one for the process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_beat_costs_one_request_for_each_lease_that_is_held() {
    let api = api();
    let a = actor(&api, "a").await;
    let session = format!("tenure--session--{}", a.id);
    api.requests();
    assert!(a.lives().await);
    assert_eq!(api.requests(), [("update".to_owned(), session)]);
    for name in ["one", "two"] {
        a.stand(&election(name)).await;
        a.take(&election(name), 0).await;
    }
    api.requests();
    assert!(a.lives().await);
    let mut requests = api.requests();
    requests.sort();
    assert_eq!(requests, [("update".to_owned(), "one".to_owned()), ("update".to_owned(), "two".to_owned())]);
}

/// The verb `delete` is not needed, and objects do not pile up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_object_of_a_session_that_is_over_is_used_again() {
    let api = api();
    api.deny("delete", "leases");
    let a = actor(&api, "a").await;
    a.store.end(&a.id).await.unwrap();
    let b = actor(&api, "b").await;
    assert_eq!(api.leases(NAMESPACE).len(), 2, "its id is remembered for a while");
    let name = format!("tenure--session--{}", a.id);
    let mut record: serde_json::Value = serde_json::from_str(
        lease(&api, &name)["metadata"]["annotations"]["tenure.dev/session"].as_str().unwrap(),
    )
    .unwrap();
    record["over_at_ms"] = json!(1);
    let patch = json!({ "metadata": { "annotations": { "tenure.dev/session": record.to_string() } } });
    assert_eq!(api.patch(NAMESPACE, &name, &patch), 200);
    let c = actor(&api, "c").await;
    assert_eq!(api.leases(NAMESPACE).len(), 2, "it is used again");
    assert!(b.lives().await && c.lives().await && !a.lives().await);
    assert!(api.requests().iter().all(|(verb, _)| verb != "delete"));
}

/// More than comes in one answer, and an answer whose rest is forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_list_is_read_in_parts_and_anew_when_its_rest_is_forgotten() {
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
    api.fail("list", "", tenure_testkit::rig::KubeFault::Refuse(410), 1);
    assert_eq!(store.elections(None).await.unwrap().len(), 1100);
    assert_eq!(api.requests().len(), 4, "one that was refused, and three parts");
}

/// A server opened it for somebody, who may ask any server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_with_an_owner_is_beaten_through_any_client() {
    let api = api();
    let (one, two, key) = (client(&api).await, client(&api).await, election("e"));
    let id = new_id();
    let session = tenure::port::NewSession { owner: Some("ci".into()), ..new_session(&id, "remote") };
    one.open(&session).await.unwrap();
    let through = |store: &std::sync::Arc<dyn tenure::port::Backend>| Actor {
        store: store.clone(),
        id: id.clone(),
        epoch: 0,
    };
    let (first, second) = (through(&one), through(&two));
    assert!(first.lives().await);
    second.stand(&key).await;
    second.take(&key, 0).await;
    let before = lease(&api, "e")["spec"]["renewTime"].clone();
    assert!(first.lives().await);
    assert_ne!(
        lease(&api, "e")["spec"]["renewTime"],
        before,
        "what it holds is renewed by whoever beats for it"
    );
    // And whoever beats for it notices that it is lost.
    assert_eq!(
        api.patch(NAMESPACE, "e", &json!({ "spec": { "holderIdentity": "x", "leaseTransitions": 7 } })),
        200
    );
    assert!(!first.lives().await && !second.lives().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_only_others_use_is_shown() {
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
    a.stand(&key).await;
    let look = || async {
        a.store.observe(&a.id, &Scope::Standing).await.unwrap().elections[0].leases[0]
            .holder
            .clone()
            .unwrap()
            .beat
    };
    let before = look().await;
    assert_eq!(look().await, before, "its beat stands still while its record does");
    assert_eq!(a.store.take(&a.bid(&key, 0).await).await, Ok(None), "it lives");
    assert_eq!(
        api.patch(NAMESPACE, "go", &json!({ "spec": { "renewTime": "2026-01-01T00:00:02.000000Z" } })),
        200
    );
    let stale = tenure::port::Take {
        expire: Some(tenure::port::Expire { session: holder.id.clone(), epoch: 0, beat: Some(before) }),
        ..a.bid(&key, 0).await
    };
    assert_eq!(a.store.take(&stale).await, Ok(None), "it was renewed since");
    let bid = a.overbid(&key, 0).await;
    assert_eq!(a.store.take(&bid).await.unwrap().map(|token| token.as_u64()), Some(6));
    assert_eq!(lease(&api, "go")["spec"]["leaseTransitions"].as_u64(), Some(5));
    let terms: Vec<_> = a
        .store
        .history(&key, 9)
        .await
        .unwrap()
        .into_iter()
        .map(|term| (term.token.as_u64(), term.id))
        .collect();
    assert_eq!(terms, [(6, "candidate".to_owned()), (5, "go-1".to_owned())]);
}

/// For services that select by it; the truth is the Lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pod_of_the_leader_is_labelled_if_that_is_wanted() {
    let api = api();
    let pod = tenure::runtime::host_name();
    api.add_pod(NAMESPACE, &pod);
    let url = format!("{}&label_leader=acme.io/leads", api.url(NAMESPACE));
    let options = tenure::backend::StoreOptions { url, ..Default::default() };
    let store = tenure::backend::open(&options).await.unwrap();
    let (a, key) = (Actor::open(store, "a").await, election("nightly"));
    a.stand(&key).await;
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

/// Where elections and data live apart, tokens compare only with those of the same namespace of the same cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_knows_itself() {
    let (api, other) = (api(), super::api());
    let identity = client(&api).await.identity().await.unwrap();
    assert_eq!(client(&api).await.identity().await.unwrap(), identity);
    assert_ne!(client(&other).await.identity().await.unwrap(), identity);
}

/// As kubeconfigs of clouds have it: a token in a file that is written anew, or a command that prints one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_come_from_files_and_from_commands() {
    let api = api();
    let file = api.let_in("token", &json!({})).unwrap();
    std::fs::write(&file, api.token()).unwrap();
    let printed = json!({
        "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
        "status": { "token": api.token(), "expirationTimestamp": "2999-01-01T00:00:00Z" },
    });
    let command = json!({
        "apiVersion": "client.authentication.k8s.io/v1", "command": "echo", "args": [printed.to_string()], "interactiveMode": "Never",
    });
    for (name, user) in [("file", json!({ "tokenFile": file })), ("exec", json!({ "exec": command }))] {
        let config = api.let_in(name, &user).unwrap();
        let url = format!("k8s:{NAMESPACE}?kubeconfig={}", config.display());
        let options = tenure::backend::StoreOptions { url, ..Default::default() };
        let store = tenure::backend::open(&options).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(Actor::open(store, name).await.lives().await);
    }
}
