//! Bad days: of the API server, and of people with `kubectl`.

use std::time::Duration;

use serde_json::{Value, json};
use tenure::port::{AskKind, Expire, Scope, Take, Trouble, Verdict, Wake, Wakes};
use tenure_testkit::conformance::{Actor, ask, election};
use tenure_testkit::rig::{KubeApi, KubeFault};

use super::{NAMESPACE, actor, api, client, lease};

/// A candidate that leads and one that follows.
async fn led(api: &KubeApi) -> (Actor, Actor, tenure::ElectionKey, tenure::Token) {
    let (a, b, key) = (actor(api, "a").await, actor(api, "b").await, election("e"));
    a.stand(&key).await;
    b.stand(&key).await;
    let token = a.take(&key, 0).await;
    // So that both have seen it.
    assert!(b.lives().await);
    b.view(&key).await;
    assert!(b.lives().await);
    (a, b, key, token)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_deleted_by_hand_ends_its_term_and_is_made_anew_above_its_tokens() {
    let api = api();
    let (a, b, key, token) = led(&api).await;
    a.release(&key, 0, token).await;
    let token = a.take(&key, 0).await;
    assert_eq!(token.as_u64(), 2);
    b.view(&key).await;
    assert!(b.lives().await);
    assert!(api.delete(NAMESPACE, "e"));
    let seen = b.lease(&key, 0).await;
    assert!(!seen.is_free() && seen.token == token, "its holder may believe for a while: {seen:?}");
    assert_eq!(b.store.take(&b.bid(&key, 0).await).await, Ok(None), "and is waited out");
    assert!(!a.lives().await, "it learns with its next beat");
    b.stand(&key).await;
    let made = lease(&api, "e");
    assert_eq!(made["spec"]["holderIdentity"].as_str(), Some(""));
    let seen = b.lease(&key, 0).await;
    assert!(!seen.is_free() && seen.token == token, "also after it was made anew: {seen:?}");
    let bid = b.overbid(&key, 0).await;
    assert!(b.store.take(&bid).await.unwrap().expect("the beat stood still") > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_lease_that_client_go_made_anew_is_taken_over_above_its_tokens() {
    let api = api();
    let (a, b, key, token) = led(&api).await;
    a.release(&key, 0, token).await;
    let token = a.take(&key, 0).await;
    b.view(&key).await;
    assert!(b.lives().await && api.delete(NAMESPACE, "e"));
    let mut theirs =
        super::client_go::Elector::new(api.clone(), NAMESPACE, super::client_go::Config::of("go", "e", 15));
    assert!(theirs.try_acquire_or_renew(), "client-go knows of nobody");
    assert!(!a.lives().await);
    let bid = b.overbid(&key, 0).await;
    assert!(b.store.take(&bid).await.unwrap().expect("taken over") > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_cleared_by_hand_is_waited_out() {
    let api = api();
    let (a, b, key, token) = led(&api).await;
    assert_eq!(api.patch(NAMESPACE, "e", &json!({ "spec": { "holderIdentity": "" } })), 200);
    let seen = b.lease(&key, 0).await;
    assert!(!seen.is_free(), "nobody released it: {seen:?}");
    assert_eq!(b.store.take(&b.bid(&key, 0).await).await, Ok(None));
    assert!(!a.lives().await);
    let bid = b.overbid(&key, 0).await;
    assert!(b.store.take(&bid).await.unwrap().is_some_and(|next| next > token));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn notes_that_make_no_sense_are_written_anew() {
    let api = api();
    let (a, b, key, token) = led(&api).await;
    let nonsense = json!({ "metadata": { "annotations": { "tenure.dev/record": "{" } } });
    assert_eq!(api.patch(NAMESPACE, "e", &nonsense), 200);
    assert_eq!(
        b.lease(&key, 0).await.holder.map(|holder| holder.id),
        Some(a.id.clone()),
        "its identity says it"
    );
    assert_eq!(b.store.take(&b.bid(&key, 0).await).await, Ok(None));
    assert!(a.lives().await);
    assert_eq!(b.lease(&key, 0).await.token, token);
    let session = format!("tenure--session--{}", b.id);
    let nonsense = json!({ "metadata": { "annotations": { "tenure.dev/session": "[]" } } });
    assert_eq!(api.patch(NAMESPACE, &session, &nonsense), 200);
    assert!(!b.lives().await, "what is not to be read is over");
}

/// The expiry of a session and its grant of a lease are two objects: only one of the two may come of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_expired_while_it_takes_gives_back_what_it_got() {
    let api = api();
    let (a, b, key) = (actor(&api, "a").await, actor(&api, "b").await, election("e"));
    a.stand(&key).await;
    b.stand(&key).await;
    let bid = a.bid(&key, 0).await;
    let (world, store, id) = (tokio::runtime::Handle::current(), b.store.clone(), a.id.clone());
    api.before("update", "e", move || {
        let beat = world.block_on(store.sessions(Some(std::slice::from_ref(&id)))).unwrap()[0].beat;
        world.block_on(store.expire(&Expire { session: id, epoch: 0, beat: Some(beat) })).unwrap();
    });
    assert_eq!(a.store.take(&bid).await, Ok(None));
    assert!(!a.lives().await);
    assert!(b.lease(&key, 0).await.is_free());
    b.take(&key, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_renews_while_it_is_taken_over_keeps_its_lease() {
    let api = api();
    let (a, b, key, token) = led(&api).await;
    let bid = b.overbid(&key, 0).await;
    let (world, store, id) = (tokio::runtime::Handle::current(), a.store.clone(), a.id.clone());
    api.before("update", "e", move || {
        world.block_on(store.beat(&id)).unwrap();
    });
    assert_eq!(b.store.take(&bid).await, Ok(None), "what was seen is no longer so");
    assert!(a.lives().await);
    assert_eq!(b.lease(&key, 0).await.token, token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_while_a_second_slot_is_taken_is_kept() {
    let api = api();
    let (a, key) = (actor(&api, "a").await, election("e"));
    a.stand_for(&key, 2).await;
    let bid = a.bid(&key, 1).await;
    let (world, store, of) = (tokio::runtime::Handle::current(), client(&api).await, key.clone());
    let pause = tenure::port::Pause { by: "ops".into(), reason: String::new(), at_ms: 1 };
    api.before("create", "e--slot-1", move || {
        world.block_on(store.set_paused(&of, Some(&pause))).unwrap();
    });
    assert_eq!(a.store.take(&bid).await, Ok(None));
    assert!(a.lease(&key, 1).await.is_free() && a.lives().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_lost_is_no_grant_and_no_beat() {
    let api = api();
    let (a, key) = (actor(&api, "a").await, election("e"));
    a.stand(&key).await;
    api.fail("update", "e", KubeFault::Forget(500), 1);
    let refused = a.store.take(&a.bid(&key, 0).await).await.unwrap_err();
    assert_eq!(refused.kind, Trouble::Unavailable);
    let found = a.lease(&key, 0).await;
    assert_eq!(found.holder.map(|holder| holder.id), Some(a.id.clone()), "it had happened");
    a.release(&key, 0, found.token).await;
    assert!(a.take(&key, 0).await > found.token);
    for (verb, code) in [("update", 500), ("update", 503)] {
        api.fail(verb, "e", KubeFault::Refuse(code), 1);
        assert_eq!(a.store.beat(&a.id).await.unwrap_err().kind, Trouble::Unavailable);
    }
    assert!(a.lives().await, "and then it goes on");
}

/// One of two could not be renewed: that is no beat.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_beat_counts_only_if_all_that_is_held_was_renewed() {
    let api = api();
    let a = actor(&api, "a").await;
    for name in ["one", "two"] {
        a.stand(&election(name)).await;
        a.take(&election(name), 0).await;
    }
    api.fail("update", "two", KubeFault::Refuse(500), 1);
    assert!(a.store.beat(&a.id).await.is_err());
    assert!(a.lives().await);
    assert_eq!(
        api.patch(NAMESPACE, "two", &json!({ "spec": { "holderIdentity": "x", "leaseTransitions": 9 } })),
        200
    );
    assert!(!a.lives().await, "one is lost: all is");
    assert!(!a.lives().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_has_too_much_to_do_is_left_alone_for_as_long_as_it_says() {
    let api = api();
    let a = actor(&api, "a").await;
    api.fail("update", "", KubeFault::RetryAfter(1), 1);
    let refused = a.store.beat(&a.id).await.unwrap_err();
    assert_eq!(refused.kind, Trouble::Unavailable);
    api.requests();
    let beat = a.store.beat(&a.id);
    tokio::pin!(beat);
    assert!(tokio::time::timeout(Duration::from_millis(100), &mut beat).await.is_err());
    assert!(api.requests().is_empty(), "nothing was sent");
    assert!(matches!(beat.await, Ok(tenure::port::Pulse::Alive { .. })));
}

/// The server sheds lists first: that must not cost anybody its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_told_to_look_later_beats_on() {
    let api = api();
    let (a, _b, key, _) = led(&api).await;
    api.fail("list", "", KubeFault::RetryAfter(30), 1);
    assert_eq!(a.store.election(&key).await.unwrap_err().kind, Trouble::Unavailable);
    assert!(tokio::time::timeout(Duration::from_secs(20), a.lives()).await.expect("it beats"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_verb_that_is_missing_is_named_with_the_remedy() {
    let api = api();
    let a = actor(&api, "a").await;
    api.deny("update", "leases");
    let refused = a.store.beat(&a.id).await.unwrap_err();
    assert_eq!(refused.kind, Trouble::Denied);
    for word in ["`update`", "leases", NAMESPACE, "rbac.yaml", "kubectl auth can-i"] {
        assert!(refused.message.contains(word), "{word}: {refused}");
    }
    let findings = a.store.examine().await.unwrap();
    let bad: Vec<_> = findings.iter().filter(|finding| finding.verdict == Verdict::Bad).collect();
    assert_eq!(bad.iter().map(|finding| finding.check.as_str()).collect::<Vec<_>>(), ["may update leases"]);
    api.heal();
    api.lock_out(true);
    let refused = a.store.beat(&a.id).await.unwrap_err();
    assert!(refused.kind == Trouble::Denied && refused.message.contains("service account"), "{refused}");
    api.lock_out(false);
    assert!(a.lives().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_that_is_not_there_is_named() {
    let api = api();
    let store = client(&api).await;
    api.only_namespaces(&["other"]);
    let session = tenure_testkit::conformance::new_session(&tenure_testkit::conformance::new_id(), "a");
    let refused = store.open(&session).await.unwrap_err();
    assert!(refused.message.contains("kubectl create namespace prod"), "{refused}");
}

/// Hints end, and begin again: nothing is lost for longer than that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_is_closed_or_forgotten_begins_again() {
    let api = api();
    let (a, b, key, token) = led(&api).await;
    let mut hints = b.store.wakes();
    until(&mut hints, &Wake::Resync).await;
    api.close_watches();
    a.store.ask(&ask(&key, token, AskKind::Resign)).await.unwrap();
    until(&mut hints, &Wake::Asked(a.id.clone())).await;
    // Its place is forgotten while it is closed.
    api.fail("watch", "", KubeFault::Refuse(410), 1);
    api.close_watches();
    until(&mut hints, &Wake::Resync).await;
    // And in the middle of it.
    api.compact();
    api.delete(NAMESPACE, "nobody");
    api.close_watches();
    b.stand(&key).await;
    until(&mut hints, &Wake::Changed(key.clone())).await;
    a.release(&key, 0, token).await;
    until(&mut hints, &Wake::Changed(key)).await;
}

async fn until(hints: &mut Wakes, expected: &Wake) {
    loop {
        match hints.next().await {
            Some(wake) if wake == *expected => return,
            Some(_) => {}
            None => panic!("the hints ended before {expected:?}"),
        }
    }
}

/// The strongest of the negative controls: what would be if who holds nothing else could beat on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_taken_over_by_client_go_is_told_so_by_its_next_beat() {
    let api = api();
    let (a, b, _, token) = led(&api).await;
    let mut theirs = lease(&api, "e");
    theirs["spec"]["holderIdentity"] = json!("go");
    theirs["spec"]["leaseTransitions"] = json!(token.as_u64());
    assert_eq!(api.update(NAMESPACE, "e", theirs).0, 200);
    assert!(!a.lives().await);
    let seen = b.store.observe(&b.id, &Scope::Standing).await.unwrap().elections.remove(0);
    assert_eq!(seen.leases[0].token.as_u64(), token.as_u64() + 1);
    assert!(seen.candidate(&a.id).is_none(), "it is over, and needs not be waited for");
}

/// `kubectl` shows what is going on: the annotation says which election it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_a_lease_is_not_its_election() {
    let api = api();
    let (_a, b, key, token) = led(&api).await;
    let mut copy: Value = lease(&api, "e");
    copy["metadata"]["name"] = json!("copy");
    copy["metadata"]["resourceVersion"] = Value::Null;
    copy["metadata"]["uid"] = Value::Null;
    copy["spec"]["leaseTransitions"] = json!(77);
    assert_eq!(api.create(NAMESPACE, copy).0, 201);
    assert_eq!(b.lease(&key, 0).await.token, token);
    let take = Take { election: election("copy"), ..b.bid(&key, 0).await };
    assert_eq!(b.store.take(&take).await, Ok(None));
}
