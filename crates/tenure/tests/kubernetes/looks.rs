//! What a look reads, what a watch is told, and what is noted: what is needed, and no more.

use std::time::Duration;

use serde_json::json;
use tenure::port::{Candidacy, NewSession, Scope, Trouble, Wake};
use tenure_testkit::conformance::{Actor, candidacy, election, new_id, new_session};
use tenure_testkit::rig::KubeApi;

use super::{NAMESPACE, actor, api, client, lease};

/// So many others, each with an election of its own.
const OTHERS: usize = 12;

async fn crowd(api: &KubeApi) -> Vec<Actor> {
    let store = client(api).await;
    let mut others = Vec::new();
    for n in 0..OTHERS {
        let other = Actor::open(store.clone(), "other").await;
        other.stand(&election(&format!("other{n}"))).await;
        other.take(&election(&format!("other{n}")), 0).await;
        others.push(other);
    }
    others
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_reads_what_is_about_its_election_alone() {
    let api = api();
    let _others = crowd(&api).await;
    let (a, b, key) = (actor(&api, "a").await, actor(&api, "b").await, election("e"));
    a.stand(&key).await;
    b.stand(&key).await;
    let token = a.take(&key, 0).await;
    api.listed();
    api.requests();
    for scope in [Scope::Contested, Scope::Standing, Scope::Only(vec![key.clone()])] {
        let seen = b.store.observe(&b.id, &scope).await.unwrap();
        assert_eq!(seen.elections[0].leases[0].token, token);
        assert_eq!((api.requests().len(), api.listed()), (1, 3), "its Lease, and two who stand for it");
    }
    a.release(&key, 0, token).await;
    b.take(&key, 0).await;
    assert!(api.listed() <= 3 * 3, "three more looks: a change reads no more");
}

/// It says so in what it holds, and nowhere else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_holds_something_else_is_seen_to_live() {
    let api = api();
    let (a, b) = (actor(&api, "a").await, actor(&api, "b").await);
    let (held, common) = (election("held"), election("common"));
    for key in [&held, &common] {
        a.stand(key).await;
    }
    b.stand(&common).await;
    a.take(&held, 0).await;
    let beat = || async {
        let seen = b.store.observe(&b.id, &Scope::Standing).await.unwrap();
        assert_eq!(seen.elections.len(), 1);
        seen.elections[0].candidate(&a.id).expect("it stands").session.beat
    };
    let before = beat().await;
    assert!(a.lives().await);
    let after = beat().await;
    assert!(after > before, "{after} after {before}");
    // And who watches both sees it at once.
    b.stand(&held).await;
    for _ in 0..20 {
        beat_of_both(&b).await;
    }
    api.requests();
    beat_of_both(&b).await;
    assert_eq!(api.requests().len(), 1);
}

async fn beat_of_both(b: &Actor) {
    assert_eq!(b.store.observe(&b.id, &Scope::Standing).await.unwrap().elections.len(), 2);
}

/// What was granted, and is not known to be: the answer was lost, and its candidacy is withdrawn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_granted_unheard_is_found_by_whoever_it_was_granted_to() {
    let api = api();
    let (a, key) = (actor(&api, "a").await, election("e"));
    // So that a look has something to be about.
    a.stand(&election("another")).await;
    a.stand(&key).await;
    api.fail("update", "e", tenure_testkit::rig::KubeFault::Forget(500), 1);
    assert!(a.store.take(&a.bid(&key, 0).await).await.is_err());
    a.store.leave(&a.id, &key).await.unwrap();
    let seen = a.store.observe(&a.id, &Scope::Standing).await.unwrap();
    assert_eq!(seen.strays.len(), 1, "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_is_told_what_its_process_has_to_do_with_alone() {
    let api = api();
    let others = crowd(&api).await;
    let (b, key) = (actor(&api, "b").await, election("e"));
    b.stand(&key).await;
    let mut hints = b.store.wakes();
    while hints.next().await != Some(Wake::Resync) {}
    // It listens as soon as it is heard.
    let mut heard = None;
    while heard.is_none() {
        b.stand(&key).await;
        heard = tokio::time::timeout(Duration::from_millis(50), hints.next()).await.ok();
    }
    api.told();
    for other in &others {
        assert!(other.lives().await);
    }
    b.stand(&key).await;
    while hints.next().await != Some(Wake::Changed(key.clone())) {}
    let told = api.told();
    assert!(told < OTHERS as u64, "{told} for {OTHERS} beats of others");
    // Whoever asks about everything hears everything.
    let mut all = others[0].store.wakes();
    others[0].store.elections(None).await.unwrap();
    while all.next().await != Some(Wake::Resync) {}
    let changed = Wake::Changed(key.clone());
    let mut heard = false;
    while !heard {
        b.stand(&key).await;
        let next = tokio::time::timeout(Duration::from_millis(50), all.next()).await;
        heard = next.is_ok_and(|wake| wake == Some(changed.clone()));
    }
}

/// Annotations have 256 KiB. Who stands for more is refused before anything is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_stands_for_more_than_can_be_noted_is_refused_and_goes_on() {
    let api = api();
    let a = actor(&api, "a").await;
    let mut stood = 0;
    let refused = loop {
        let key = election(&format!("e{stood}"));
        let candidacy = Candidacy { slots: 400, ..candidacy(&a.id, &key) };
        match a.store.join(&candidacy).await {
            Ok(_) => stood += 1,
            Err(refused) => break refused,
        }
    };
    assert!(refused.kind == Trouble::Request && refused.message.contains("another store"), "{refused}");
    assert!(stood > 1, "{stood}");
    for n in 0..stood {
        a.take(&election(&format!("e{n}")), 399).await;
    }
    assert!(a.lives().await, "and all that it stood for can be noted");
}

/// client-go watches the Lease alone. A beat that was sent between the grant and its end renewed nothing, and is trusted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_took_long_is_renewed_before_it_counts() {
    let api = api();
    let (store, key, id) = (client(&api).await, election("e"), new_id());
    let session = NewSession { lease: Duration::from_secs(1), ..new_session(&id, "a") };
    store.open(&session).await.unwrap();
    let a = Actor { store, id, epoch: 0 };
    a.stand(&key).await;
    a.take(&key, 0).await;
    a.release(&key, 0, a.lease(&key, 0).await.token).await;
    let bid = a.bid(&key, 0).await;
    let name = format!("tenure--session--{}", a.id);
    api.before("update", &name, || std::thread::sleep(Duration::from_millis(50)));
    api.requests();
    assert!(a.store.take(&bid).await.unwrap().is_some());
    let updates: Vec<_> = api.requests().into_iter().filter(|(verb, _)| verb == "update").collect();
    let names: Vec<&str> = updates.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(names, ["e", &name, "e"]);
    let made = lease(&api, "e");
    assert!(made["spec"]["renewTime"].as_str() > made["spec"]["acquireTime"].as_str());
}

/// Objects of a list do not say what they are, and who wrote one is noted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_is_whole_and_says_who_wrote_it() {
    let api = api();
    let (a, key) = (actor(&api, "a").await, election("e"));
    a.stand(&key).await;
    a.take(&key, 0).await;
    for object in api.leases(NAMESPACE) {
        assert_eq!(
            (&object["kind"], &object["apiVersion"]),
            (&json!("Lease"), &json!("coordination.k8s.io/v1"))
        );
        assert_eq!(object["metadata"]["managedFields"][0]["manager"], "tenure");
    }
}
