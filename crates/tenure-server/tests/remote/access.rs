//! What the machine's protocol lets whom do, beyond what the gate checks.

use std::sync::Arc;

use axum::body::Body;
use http::Request;
use tenure::backend::{self, ServerAccess, StoreOptions};
use tenure::port::{
    Ask, AskKind, Authority, Backend, Candidacy, ClaimAnswer, ClaimAsk, Credential, Expire, NewSession,
    NewTask, Order, Profile, Proof, Pulse, QueueKey, Scope, Seat, StoreError, Submission, Take, Takeover,
    Trouble, Wake,
};
use tenure::runtime::{random, wall_ms};
use tenure::{ElectionKey, SessionId, Token};
use tenure_server::access::token;
use tenure_testkit::conformance::{Actor, candidacy, new_id, new_session};
use tower::ServiceExt as _;

use super::support::{Kept, Replica, memory};

/// A guarded server, and clients of it under different names.
pub(super) struct House {
    replica: Replica,
    store: Kept,
}

impl House {
    pub(super) async fn new() -> House {
        let store = memory();
        House { replica: Replica::guarded(store.backend()).await, store }
    }

    /// The store itself.
    pub(super) fn backend(&self) -> Arc<dyn Backend> {
        self.store.backend()
    }

    /// A client of somebody who may do this.
    pub(super) async fn client(&self, name: &str, grants: &[&str]) -> Arc<dyn Backend> {
        let made = token::Token::generate(random);
        let credential = Credential {
            id: made.id,
            name: name.into(),
            proof: Proof::Token { digest: made.digest },
            grants: grants.iter().map(|grant| grant.parse().expect("a grant")).collect(),
            created_at_ms: wall_ms(),
            created_by: "the test".into(),
            expires_at_ms: None,
            revoked_at_ms: None,
        };
        self.store.backend().put_credential(&credential).await.expect("kept");
        let access = ServerAccess { token: Some(made.text), ..ServerAccess::default() };
        let options = StoreOptions { url: self.replica.url(), access, ..StoreOptions::default() };
        backend::open(&options).await.expect("a server that knows the token")
    }

    pub(super) async fn actor(&self, name: &str, grants: &[&str]) -> Actor {
        Actor::open(self.client(name, grants).await, name).await
    }
}

fn key(namespace: &str) -> ElectionKey {
    ElectionKey::new(namespace.parse().unwrap(), "e".parse().unwrap())
}

pub(super) fn denied<T: std::fmt::Debug>(answer: Result<T, StoreError>) {
    let error = answer.expect_err("denied");
    assert_eq!(error.kind, Trouble::Denied, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_used_by_nobody_but_its_owner() {
    let house = House::new().await;
    let alice = house.actor("alice", &["a:read,lead"]).await;
    let bob = house.client("bob", &["a:read,lead", "b:admin"]).await;
    alice.stand(&key("a")).await;
    let token = alice.take(&key("a"), 0).await;
    let beats = async || {
        let ids = std::slice::from_ref(&alice.id);
        house.store.backend().sessions(Some(ids)).await.unwrap()[0].beat
    };
    let before = beats().await;
    // To a machine, a session that is another's is none of its own.
    assert_eq!(bob.beat(&alice.id).await, Ok(Pulse::Gone));
    assert_eq!(beats().await, before);
    denied(bob.end(&alice.id).await);
    denied(bob.join(&candidacy(&alice.id, &key("a"))).await);
    denied(bob.leave(&alice.id, &key("a")).await);
    denied(bob.observe(&alice.id, &Scope::Standing).await);
    denied(bob.take(&alice.bid(&key("a"), 0).await).await);
    denied(bob.release(&alice.giving(&key("a"), 0, token)).await);
    assert!(alice.lives().await && alice.lease(&key("a"), 0).await.token == token);
    let view = house.store.backend().sessions(Some(std::slice::from_ref(&alice.id))).await.unwrap().remove(0);
    assert_eq!(view.owner.as_deref(), Some("alice"));
    let posing = NewSession { owner: Some("alice".into()), ..new_session(&new_id(), "bob") };
    assert_eq!(bob.open(&posing).await.unwrap_err().kind, Trouble::Request);
}

/// Clients show their tokens to every server that is listed.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_passes_for_a_server_who_came_through_one() {
    let house = House::new().await;
    let servers = ElectionKey::new("tenure".parse().unwrap(), "servers".parse().unwrap());
    let bob = house.actor("bob", &["tenure:read,lead"]).await;
    let admin = house.actor("admin", &["*:admin"]).await;
    let fake = |id: &SessionId| {
        let metadata = [("address".to_owned(), "https://evil.example".to_owned())].into();
        Candidacy { metadata, ..candidacy(id, &servers) }
    };
    for actor in [&bob, &admin] {
        denied(actor.store.join(&fake(&actor.id)).await);
        let take = Take {
            session: actor.id.clone(),
            epoch: actor.epoch,
            election: servers.clone(),
            slot: 0,
            token: Token::ZERO,
            holder: None,
            expire: None,
        };
        denied(actor.store.take(&take).await);
    }
    let preempt = AskKind::Preempt(bob.id.clone());
    let ask = Ask { election: servers.clone(), slot: 0, token: Token::ZERO, kind: preempt, by: "bob".into() };
    denied(bob.store.ask(&ask).await);
    // Should one stand there all the same, it is not listed.
    house.store.backend().join(&fake(&bob.id)).await.unwrap();
    let open = Replica::start(house.store.backend()).await;
    let listed = open.app.router().oneshot(Request::get("/v1/replicas").body(Body::empty()).unwrap());
    let body = axum::body::to_bytes(listed.await.unwrap().into_body(), 1 << 20).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&body), r#"{"replicas":[]}"#);
    let campaign = Request::post("/v1/elections/servers/campaign?namespace=tenure")
        .header("content-type", "application/json")
        .body(Body::from(r#"{"id":"x"}"#))
        .unwrap();
    assert_eq!(open.app.router().oneshot(campaign).await.unwrap().status(), 403);
}

/// An expiry frees what a session holds everywhere, whoever's it is.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_declared_dead_by_who_may_not_lead_all_that_they_hold() {
    let house = House::new().await;
    let victim = house.actor("victim", &["a:read,lead", "b:read,lead"]).await;
    let bob = house.actor("bob", &["a:read,lead"]).await;
    let carol = house.actor("carol", &["a:read,lead", "b:lead"]).await;
    for namespace in ["a", "b"] {
        victim.stand(&key(namespace)).await;
        victim.take(&key(namespace), 0).await;
    }
    // What it holds without standing there any more is no less its own.
    victim.store.leave(&victim.id, &key("b")).await.unwrap();
    bob.stand(&key("a")).await;
    let silent = Expire { session: victim.id.clone(), epoch: bob.epoch, beat: Some(0) };
    denied(bob.store.expire(&silent).await);
    denied(bob.store.take(&bob.overbid(&key("a"), 0).await).await);
    assert!(house.store.backend().sessions(Some(std::slice::from_ref(&victim.id))).await.unwrap()[0].live);
    let unseen = Expire { beat: None, ..silent.clone() };
    assert_eq!(carol.store.expire(&unseen).await.unwrap_err().kind, Trouble::Request);
    // Nor by who may, while it lives: no server has seen it silent.
    carol.stand(&key("a")).await;
    carol.store.expire(&silent).await.unwrap();
    assert_eq!(carol.store.take(&carol.overbid(&key("a"), 0).await).await, Ok(None));
    assert!(house.store.backend().sessions(Some(std::slice::from_ref(&victim.id))).await.unwrap()[0].live);
    let ops = house.client("ops", &["a:admin", "b:admin"]).await;
    ops.expire(&silent).await.unwrap();
    assert!(!victim.lives().await);
    let deed = house.store.backend().deeds(None, None, 1).await.unwrap().remove(0);
    assert_eq!((deed.action.as_str(), deed.principal.as_str()), ("expire", "ops"));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_was_silent_for_its_lease_is_followed_by_who_may_lead() {
    let house = House::new().await;
    let (victim, id) = (house.client("victim", &["a:lead"]).await, new_id());
    let lease = std::time::Duration::from_millis(300);
    victim.open(&NewSession { lease, ..new_session(&id, "victim") }).await.unwrap();
    victim.join(&candidacy(&id, &key("a"))).await.unwrap();
    let bob = house.actor("bob", &["a:read,lead"]).await;
    bob.stand(&key("a")).await;
    let mut bid = bob.bid(&key("a"), 0).await;
    bid.session = id.clone();
    victim.take(&bid).await.unwrap().expect("free");
    while bob.store.take(&bob.overbid(&key("a"), 0).await).await.unwrap().is_none() {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let deed = house.store.backend().deeds(None, None, 1).await.unwrap().remove(0);
    assert_eq!((deed.action.as_str(), deed.principal.as_str()), ("expire", "bob"));
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_requests_are_for_operators() {
    let house = House::new().await;
    let alice = house.actor("alice", &["a:read,lead"]).await;
    let bob = house.client("bob", &["a:read,lead"]).await;
    let ops = house.client("ops", &["a:admin"]).await;
    alice.stand(&key("a")).await;
    let token = alice.take(&key("a"), 0).await;
    let ask = |kind| Ask { election: key("a"), slot: 0, token, kind, by: "me".into() };
    // Only for one who stands before the leader.
    assert_eq!(bob.ask(&ask(AskKind::Preempt(new_id()))).await, Ok(false));
    let other = Actor::open(bob.clone(), "bob").await;
    for (priority, asked) in [(0, false), (1, true)] {
        bob.join(&Candidacy { priority, ..candidacy(&other.id, &key("a")) }).await.unwrap();
        assert_eq!(bob.ask(&ask(AskKind::Preempt(other.id.clone()))).await, Ok(asked));
    }
    for kind in [AskKind::Resign, AskKind::Pause, AskKind::Transfer(new_id())] {
        denied(bob.ask(&ask(kind)).await);
    }
    denied(bob.set_paused(&key("a"), None).await);
    assert_eq!(ops.ask(&ask(AskKind::Resign)).await, Ok(true));
    let asked = alice.asks().await.remove(0);
    assert_eq!(
        (asked.kind, asked.by.as_str()),
        (AskKind::Resign, "me (ops)"),
        "signed with what they are known as"
    );
    let deed = house.store.backend().deeds(None, None, 1).await.unwrap().remove(0);
    assert_eq!((deed.action.as_str(), deed.principal.as_str(), deed.target.as_str()), ("resign", "ops", "e"));
}

#[tokio::test(flavor = "multi_thread")]
async fn everybody_hears_and_sees_their_own_namespaces_only() {
    let house = House::new().await;
    let bob = house.client("bob", &["a:lead"]).await;
    let (here, there) = (house.actor("x", &["a:lead"]).await, house.actor("y", &["b:lead"]).await);
    let mut hints = bob.wakes();
    while hints.next().await != Some(Wake::Resync) {}
    // Over and over: the listener may need a moment. What is said of the other place always comes before.
    let speaker = tokio::spawn(async move {
        loop {
            there.stand(&key("b")).await;
            here.stand(&key("a")).await;
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    });
    let mut heard = 0;
    while heard < 3 {
        match hints.next().await.expect("hints go on") {
            Wake::Changed(changed) if changed == key("a") => heard += 1,
            Wake::Resync => {}
            other => panic!("{other:?} is none of bob's business"),
        }
    }
    speaker.abort();
    let mine = Actor::open(bob.clone(), "bob").await;
    let only = Scope::Only(vec![key("a"), key("b")]);
    let seen: Vec<_> =
        bob.observe(&mine.id, &only).await.unwrap().elections.into_iter().map(|e| e.key).collect();
    assert_eq!(seen, [key("a")]);
    let names: Vec<_> = bob.sessions(None).await.unwrap().into_iter().map(|session| session.name).collect();
    assert!(names.contains(&"bob".into()) && !names.contains(&"y".into()), "{names:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_called_off_is_told_to_who_has_it_alone() {
    let house = House::new().await;
    let bob = house.client("bob", &["a:claim"]).await;
    let (bobs, alices) = (Actor::open(bob.clone(), "bob").await, house.actor("x", &["a:claim"]).await);
    let (his, hers) = (bobs.id.clone(), alices.id.clone());
    let mut hints = bob.wakes();
    while hints.next().await != Some(Wake::Resync) {}
    let (store, queue) = (house.store.backend(), QueueKey::new("a".parse().unwrap(), "q".parse().unwrap()));
    // Over and over: the listener may need a moment. What is said of her always comes before.
    let sessions = [hers, his.clone()];
    let speaker = tokio::spawn(async move {
        loop {
            for session in &sessions {
                let tasks = vec![NewTask::default()];
                store.submit(&Submission { queue: queue.clone(), tasks }).await.unwrap();
                let worker = Profile { name: "w".into(), ..Profile::default() };
                let seats = vec![Seat { worker, limit: 1, session: Some(session.clone()), hold_ms: None }];
                let ask = ClaimAsk { queue: queue.clone(), authority: Authority::Direct, seats };
                let ClaimAnswer::Served { tasks, .. } = store.claim(&ask).await.unwrap() else { panic!() };
                store.order(&queue.namespace, &[tasks[0][0].id], Order::Cancel).await.unwrap();
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    });
    loop {
        match hints.next().await.expect("hints go on") {
            Wake::Recalled(session) => {
                assert_eq!(session, his);
                break;
            }
            _ => continue,
        }
    }
    speaker.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_ends_elsewhere_wakes_nobody_here() {
    let house = House::new().await;
    let bob = house.client("bob", &["a:lead"]).await;
    let (here, there) = (house.actor("x", &["a:read,lead"]).await, house.actor("y", &["b:read,lead"]).await);
    here.stand(&key("a")).await;
    there.stand(&key("b")).await;
    house.replica.app.board().look_at_all().await.unwrap();
    let mut hints = bob.wakes();
    while hints.next().await != Some(Wake::Resync) {}
    // Until the listener certainly hears.
    let speaker = house.actor("z", &["a:read,lead"]).await;
    let election = ElectionKey::new("a".parse().unwrap(), "other".parse().unwrap());
    let speaking = tokio::spawn(async move {
        loop {
            speaker.stand(&election).await;
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    });
    while !matches!(hints.next().await, Some(Wake::Changed(_))) {}
    speaking.abort();
    there.store.end(&there.id).await.unwrap();
    here.store.end(&here.id).await.unwrap();
    loop {
        match hints.next().await.expect("hints go on") {
            Wake::Ended(ended) => break assert_eq!(ended, here.id),
            Wake::Changed(changed) if changed.namespace.as_str() == "a" => {}
            other => panic!("{other:?} is none of bob's business"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_sense_is_refused_by_its_name() {
    let (store, id) = (memory(), new_id());
    let replica = Replica::start(store.backend()).await;
    let client = super::http(&replica.url()).await;
    let connection = NewSession { takeover: Takeover::Connection, ..new_session(&id, "a") };
    let error = client.open(&connection).await.unwrap_err();
    assert!(
        error.kind == Trouble::Request
            && error.message.contains("takeover")
            && error.message.contains("lease"),
        "{error}"
    );
    let short = NewSession { id: SessionId::from_stored("short"), ..new_session(&id, "a") };
    assert!(client.open(&short).await.unwrap_err().message.contains("hexadecimal"));
    let brief = NewSession { lease: std::time::Duration::from_millis(1), ..new_session(&id, "a") };
    assert!(client.open(&brief).await.unwrap_err().message.contains("lease_ms"));
    client.open(&new_session(&id, "a")).await.unwrap();
    let nobody = tenure::port::Candidacy { slots: 0, ..candidacy(&id, &key("a")) };
    assert!(client.join(&nobody).await.unwrap_err().message.contains("slots"));
    // The address and the body must mean the same.
    let take = Take {
        session: id.clone(),
        epoch: 0,
        election: key("a"),
        slot: 0,
        token: Token::ZERO,
        holder: None,
        expire: None,
    };
    let other = new_id();
    client.open(&new_session(&other, "b")).await.unwrap();
    for (session, election, namespace) in [(&other, "e", "a"), (&id, "f", "a"), (&id, "e", "b")] {
        let uri = format!("/v1/sessions/{session}/elections/{election}/take?namespace={namespace}");
        let body = Body::from(serde_json::to_vec(&take).unwrap());
        let request = Request::post(&uri).header("content-type", "application/json").body(body).unwrap();
        let answer = replica.app.router().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), 422, "{uri}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_stands_everywhere_or_lives_ten_thousand_lives() {
    let house = House::new().await;
    let bob = house.actor("bob", &["a:read,lead"]).await;
    let store = house.store.backend();
    let nth = |n: usize| ElectionKey::new("a".parse().unwrap(), format!("e{n}").parse().unwrap());
    for n in 0..1000 {
        store.join(&candidacy(&bob.id, &nth(n))).await.unwrap();
    }
    for _ in 1..10_000 {
        let owner = Some("bob".to_owned());
        store.open(&NewSession { owner, ..new_session(&new_id(), "bob") }).await.unwrap();
    }
    let board = house.replica.app.board();
    let mut changes = board.changes();
    while board.seen().owned.get("bob") != Some(&10_000) || board.seen().standing.get(&bob.id) != Some(&1000)
    {
        changes.changed().await.unwrap();
    }
    bob.store.join(&candidacy(&bob.id, &nth(7))).await.expect("it stands there already");
    let error = bob.store.join(&candidacy(&bob.id, &nth(1000))).await.unwrap_err();
    assert!(error.message.contains("leave elections"), "{error}");
    let error = bob.store.open(&new_session(&new_id(), "bob")).await.unwrap_err();
    assert!(error.message.contains("end sessions"), "{error}");
    house.actor("carol", &["a:read,lead"]).await;
}
