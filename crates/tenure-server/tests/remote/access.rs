//! Access checks of internal operations beyond those of the middleware.

use std::sync::Arc;

use axum::body::Body;
use http::Request;
use tenure::port::{
    Candidacy, ClaimAuthority, ClaimBatchRequest, ClaimBatchResponse, ClaimRequest, Credential,
    CredentialVerifier, ErrorKind, ExpireSessionRequest, HeartbeatResponse, LeaderRequest, LeaderRequestKind,
    NewTask, Notification, ObserveScope, OpenSessionRequest, QueueKey, Store, StoreError, Submission,
    TakeLeaseRequest, TakeoverMode, TaskAction, WorkerProfile,
};
use tenure::runtime::{random, wall_ms};
use tenure::store::{self, ClientAuth, StoreOptions};
use tenure::{ElectionKey, SessionId, Token};
use tenure_server::access::access_token;
use tenure_testkit::conformance::{TestSession, candidacy, new_id, new_session};
use tower::ServiceExt as _;

use super::support::{Kept, Replica, memory};

/// Server that requires credentials, and clients with different principals.
pub(super) struct TestServer {
    replica: Replica,
    store: Kept,
}

impl TestServer {
    pub(super) async fn new() -> TestServer {
        let store = memory();
        TestServer { replica: Replica::guarded(store.backend()).await, store }
    }

    /// The store behind the server.
    pub(super) fn backend(&self) -> Arc<dyn Store> {
        self.store.backend()
    }

    /// Client of a principal with these grants.
    pub(super) async fn client(&self, name: &str, grants: &[&str]) -> Arc<dyn Store> {
        let created = access_token::AccessToken::generate(random);
        let credential = Credential {
            id: created.id,
            name: name.into(),
            verifier: CredentialVerifier::AccessToken { digest: created.digest },
            grants: grants.iter().map(|grant| grant.parse().expect("a grant")).collect(),
            created_at_ms: wall_ms(),
            created_by: "the test".into(),
            expires_at_ms: None,
            revoked_at_ms: None,
        };
        self.store.backend().put_credential(&credential).await.expect("kept");
        let access = ClientAuth { access_token: Some(created.text), ..ClientAuth::default() };
        let options = StoreOptions { url: self.replica.url(), access, ..StoreOptions::default() };
        store::open(&options).await.expect("a server that knows the token")
    }

    pub(super) async fn actor(&self, name: &str, grants: &[&str]) -> TestSession {
        TestSession::open(self.client(name, grants).await, name).await
    }
}

fn key(namespace: &str) -> ElectionKey {
    ElectionKey::new(namespace.parse().unwrap(), "e".parse().unwrap())
}

pub(super) fn denied<T: std::fmt::Debug>(answer: Result<T, StoreError>) {
    let error = answer.expect_err("denied");
    assert_eq!(error.kind, ErrorKind::Denied, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_usable_only_by_its_owner() {
    let fixture = TestServer::new().await;
    let alice = fixture.actor("alice", &["a:read,lead"]).await;
    let bob = fixture.client("bob", &["a:read,lead", "b:admin"]).await;
    alice.join(&key("a")).await;
    let token = alice.take(&key("a"), 0).await;
    let beats = async || {
        let ids = std::slice::from_ref(&alice.id);
        fixture.store.backend().sessions(Some(ids)).await.unwrap()[0].heartbeat_count
    };
    let before = beats().await;
    // To the client, a session of another principal counts as ended.
    assert_eq!(bob.heartbeat(&alice.id).await, Ok(HeartbeatResponse::SessionEnded));
    assert_eq!(beats().await, before);
    denied(bob.end_session(&alice.id).await);
    denied(bob.join_election(&candidacy(&alice.id, &key("a"))).await);
    denied(bob.leave_election(&alice.id, &key("a")).await);
    denied(bob.observe(&alice.id, &ObserveScope::Own).await);
    denied(bob.take_lease(&alice.take_request(&key("a"), 0).await).await);
    denied(bob.release_lease(&alice.release_request(&key("a"), 0, token)).await);
    assert!(alice.is_live().await && alice.lease(&key("a"), 0).await.token == token);
    let view =
        fixture.store.backend().sessions(Some(std::slice::from_ref(&alice.id))).await.unwrap().remove(0);
    assert_eq!(view.owner.as_deref(), Some("alice"));
    let posing = OpenSessionRequest { owner: Some("alice".into()), ..new_session(&new_id(), "bob") };
    assert_eq!(bob.open_session(&posing).await.unwrap_err().kind, ErrorKind::Request);
}

/// Clients send their access tokens to every listed server, so a client must not get into that list.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_a_server_cannot_pass_for_a_server() {
    let fixture = TestServer::new().await;
    let servers = ElectionKey::new("tenure".parse().unwrap(), "coordinator".parse().unwrap());
    let bob = fixture.actor("bob", &["tenure:read,lead"]).await;
    let admin = fixture.actor("admin", &["*:admin"]).await;
    let fake = |id: &SessionId| {
        let metadata = [("address".to_owned(), "https://evil.example".to_owned())].into();
        Candidacy { metadata, ..candidacy(id, &servers) }
    };
    for actor in [&bob, &admin] {
        denied(actor.store.join_election(&fake(&actor.id)).await);
        let take = TakeLeaseRequest {
            session: actor.id.clone(),
            epoch: actor.epoch,
            election: servers.clone(),
            slot: 0,
            token: Token::ZERO,
            holder: None,
            expire: None,
        };
        denied(actor.store.take_lease(&take).await);
    }
    let preempt = LeaderRequestKind::Preempt(bob.id.clone());
    let ask = LeaderRequest {
        election: servers.clone(),
        slot: 0,
        token: Token::ZERO,
        kind: preempt,
        requested_by: "bob".into(),
    };
    denied(bob.store.request_leader(&ask).await);
    // A candidate that joined anyway is not listed.
    fixture.store.backend().join_election(&fake(&bob.id)).await.unwrap();
    let open = Replica::start(fixture.store.backend()).await;
    let listed = open.app.router().oneshot(Request::get("/v1/replicas").body(Body::empty()).unwrap());
    let body = axum::body::to_bytes(listed.await.unwrap().into_body(), 1 << 20).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&body), r#"{"replicas":[]}"#);
    let campaign = Request::post("/v1/elections/coordinator/campaign?namespace=tenure")
        .header("content-type", "application/json")
        .body(Body::from(r#"{"name":"x"}"#))
        .unwrap();
    assert_eq!(open.app.router().oneshot(campaign).await.unwrap().status(), 403);
}

/// An expiry releases the leases of a session in every namespace.
#[tokio::test(flavor = "multi_thread")]
async fn expiring_a_session_requires_lead_in_all_its_namespaces() {
    let fixture = TestServer::new().await;
    let victim = fixture.actor("victim", &["a:read,lead", "b:read,lead"]).await;
    let bob = fixture.actor("bob", &["a:read,lead"]).await;
    let carol = fixture.actor("carol", &["a:read,lead", "b:lead"]).await;
    for namespace in ["a", "b"] {
        victim.join(&key(namespace)).await;
        victim.take(&key(namespace), 0).await;
    }
    // A lease without candidacy counts too.
    victim.store.leave_election(&victim.id, &key("b")).await.unwrap();
    bob.join(&key("a")).await;
    let silent =
        ExpireSessionRequest { session: victim.id.clone(), epoch: bob.epoch, heartbeat_count: Some(0) };
    denied(bob.store.expire_session(&silent).await);
    denied(bob.store.take_lease(&bob.takeover_request(&key("a"), 0).await).await);
    assert!(fixture.store.backend().sessions(Some(std::slice::from_ref(&victim.id))).await.unwrap()[0].live);
    let unseen = ExpireSessionRequest { heartbeat_count: None, ..silent.clone() };
    assert_eq!(carol.store.expire_session(&unseen).await.unwrap_err().kind, ErrorKind::Request);
    // With the permission, a live session is still not expired: no server observed its silence.
    carol.join(&key("a")).await;
    carol.store.expire_session(&silent).await.unwrap();
    assert_eq!(carol.store.take_lease(&carol.takeover_request(&key("a"), 0).await).await, Ok(None));
    assert!(fixture.store.backend().sessions(Some(std::slice::from_ref(&victim.id))).await.unwrap()[0].live);
    let ops = fixture.client("ops", &["a:admin", "b:admin"]).await;
    ops.expire_session(&silent).await.unwrap();
    assert!(!victim.is_live().await);
    let entry = fixture.store.backend().audit_entries(None, None, 1).await.unwrap().remove(0);
    assert_eq!((entry.action.as_str(), entry.principal.as_str()), ("session.expire", "ops"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_silent_for_its_lease_is_replaced_by_another_candidate() {
    let fixture = TestServer::new().await;
    let (victim, id) = (fixture.client("victim", &["a:lead"]).await, new_id());
    let lease = std::time::Duration::from_millis(300);
    victim.open_session(&OpenSessionRequest { lease, ..new_session(&id, "victim") }).await.unwrap();
    victim.join_election(&candidacy(&id, &key("a"))).await.unwrap();
    let bob = fixture.actor("bob", &["a:read,lead"]).await;
    bob.join(&key("a")).await;
    let mut bid = bob.take_request(&key("a"), 0).await;
    bid.session = id.clone();
    victim.take_lease(&bid).await.unwrap().expect("free");
    while bob.store.take_lease(&bob.takeover_request(&key("a"), 0).await).await.unwrap().is_none() {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let entry = fixture.store.backend().audit_entries(None, None, 1).await.unwrap().remove(0);
    assert_eq!((entry.action.as_str(), entry.principal.as_str()), ("session.expire", "bob"));
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_requests_require_admin() {
    let fixture = TestServer::new().await;
    let alice = fixture.actor("alice", &["a:read,lead"]).await;
    let bob = fixture.client("bob", &["a:read,lead"]).await;
    let ops = fixture.client("ops", &["a:admin"]).await;
    alice.join(&key("a")).await;
    let token = alice.take(&key("a"), 0).await;
    let ask = |kind| LeaderRequest { election: key("a"), slot: 0, token, kind, requested_by: "me".into() };
    // Preemption requires a candidate that outranks the leader.
    assert_eq!(bob.request_leader(&ask(LeaderRequestKind::Preempt(new_id()))).await, Ok(false));
    let other = TestSession::open(bob.clone(), "bob").await;
    for (priority, asked) in [(0, false), (1, true)] {
        bob.join_election(&Candidacy { priority, ..candidacy(&other.id, &key("a")) }).await.unwrap();
        assert_eq!(bob.request_leader(&ask(LeaderRequestKind::Preempt(other.id.clone()))).await, Ok(asked));
    }
    for kind in [LeaderRequestKind::Resign, LeaderRequestKind::Pause, LeaderRequestKind::Transfer(new_id())] {
        denied(bob.request_leader(&ask(kind)).await);
    }
    denied(bob.set_election_paused(&key("a"), None).await);
    assert_eq!(ops.request_leader(&ask(LeaderRequestKind::Resign)).await, Ok(true));
    let asked = alice.leader_requests().await.remove(0);
    assert_eq!(
        (asked.kind, asked.requested_by.as_str()),
        (LeaderRequestKind::Resign, "me (ops)"),
        "with the name of the principal"
    );
    let entry = fixture.store.backend().audit_entries(None, None, 1).await.unwrap().remove(0);
    assert_eq!(
        (entry.action.as_str(), entry.principal.as_str(), entry.target.as_str()),
        ("election.resign", "ops", "e")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_see_only_their_own_namespaces() {
    let fixture = TestServer::new().await;
    let bob = fixture.client("bob", &["a:lead"]).await;
    let (here, there) = (fixture.actor("x", &["a:lead"]).await, fixture.actor("y", &["b:lead"]).await);
    let mut notifications = bob.notifications();
    while notifications.next().await != Some(Notification::Resync) {}
    // Repeat until the stream is open. The notification of the other namespace is always sent first.
    let speaker = tokio::spawn(async move {
        loop {
            there.join(&key("b")).await;
            here.join(&key("a")).await;
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    });
    let mut received = 0;
    while received < 3 {
        match notifications.next().await.expect("notifications continue") {
            Notification::ElectionChanged(changed) if changed == key("a") => received += 1,
            Notification::Resync => {}
            other => panic!("{other:?} must not reach bob"),
        }
    }
    speaker.abort();
    let mine = TestSession::open(bob.clone(), "bob").await;
    let only = ObserveScope::Listed(vec![key("a"), key("b")]);
    let seen: Vec<_> =
        bob.observe(&mine.id, &only).await.unwrap().elections.into_iter().map(|e| e.key).collect();
    assert_eq!(seen, [key("a")]);
    let names: Vec<_> = bob.sessions(None).await.unwrap().into_iter().map(|session| session.name).collect();
    assert!(names.contains(&"bob".into()) && !names.contains(&"y".into()), "{names:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_claim_is_notified_to_its_holder_only() {
    let fixture = TestServer::new().await;
    let bob = fixture.client("bob", &["a:claim"]).await;
    let (bobs, alices) =
        (TestSession::open(bob.clone(), "bob").await, fixture.actor("x", &["a:claim"]).await);
    let (his, hers) = (bobs.id.clone(), alices.id.clone());
    let mut notifications = bob.notifications();
    while notifications.next().await != Some(Notification::Resync) {}
    let (store, queue) = (fixture.store.backend(), QueueKey::new("a".parse().unwrap(), "q".parse().unwrap()));
    // Repeat until the stream is open. Her notification is always sent first.
    let sessions = [hers, his.clone()];
    let speaker = tokio::spawn(async move {
        loop {
            for session in &sessions {
                let tasks = vec![NewTask::default()];
                store.submit(&Submission { queue: queue.clone(), tasks }).await.unwrap();
                let worker = WorkerProfile { name: "w".into(), ..WorkerProfile::default() };
                let requests = vec![ClaimRequest {
                    worker,
                    limit: 1,
                    session: Some(session.clone()),
                    claim_timeout_ms: None,
                }];
                let ask =
                    ClaimBatchRequest { queue: queue.clone(), authority: ClaimAuthority::Direct, requests };
                let ClaimBatchResponse::Served { tasks, .. } = store.claim(&ask).await.unwrap() else {
                    panic!()
                };
                store
                    .apply_task_action(&queue.namespace, &[tasks[0][0].id], TaskAction::Cancel)
                    .await
                    .unwrap();
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    });
    loop {
        match notifications.next().await.expect("notifications continue") {
            Notification::ClaimCancelled(session) => {
                assert_eq!(session, his);
                break;
            }
            _ => continue,
        }
    }
    speaker.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_sessions_of_other_namespaces_are_not_notified() {
    let fixture = TestServer::new().await;
    let bob = fixture.client("bob", &["a:lead"]).await;
    let (here, there) =
        (fixture.actor("x", &["a:read,lead"]).await, fixture.actor("y", &["b:read,lead"]).await);
    here.join(&key("a")).await;
    there.join(&key("b")).await;
    fixture.replica.app.elections().refresh_all().await.unwrap();
    let mut notifications = bob.notifications();
    while notifications.next().await != Some(Notification::Resync) {}
    // Repeat until the stream is open.
    let speaker = fixture.actor("z", &["a:read,lead"]).await;
    let election = ElectionKey::new("a".parse().unwrap(), "other".parse().unwrap());
    let speaking = tokio::spawn(async move {
        loop {
            speaker.join(&election).await;
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    });
    while !matches!(notifications.next().await, Some(Notification::ElectionChanged(_))) {}
    speaking.abort();
    there.store.end_session(&there.id).await.unwrap();
    here.store.end_session(&here.id).await.unwrap();
    loop {
        match notifications.next().await.expect("notifications continue") {
            Notification::SessionEnded(ended) => break assert_eq!(ended, here.id),
            Notification::ElectionChanged(changed) if changed.namespace.as_str() == "a" => {}
            other => panic!("{other:?} must not reach bob"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_requests_name_the_field() {
    let (store, id) = (memory(), new_id());
    let replica = Replica::start(store.backend()).await;
    let client = super::http(&replica.url()).await;
    let connection = OpenSessionRequest { takeover: TakeoverMode::Connection, ..new_session(&id, "a") };
    let error = client.open_session(&connection).await.unwrap_err();
    assert!(
        error.kind == ErrorKind::Request
            && error.message.contains("takeover")
            && error.message.contains("lease"),
        "{error}"
    );
    let short = OpenSessionRequest { id: SessionId::from_stored("short"), ..new_session(&id, "a") };
    assert!(client.open_session(&short).await.unwrap_err().message.contains("hexadecimal"));
    let brief = OpenSessionRequest { lease: std::time::Duration::from_millis(1), ..new_session(&id, "a") };
    assert!(client.open_session(&brief).await.unwrap_err().message.contains("lease_ms"));
    client.open_session(&new_session(&id, "a")).await.unwrap();
    let invalid = tenure::port::Candidacy { slots: 0, ..candidacy(&id, &key("a")) };
    assert!(client.join_election(&invalid).await.unwrap_err().message.contains("slots"));
    // Path and body must match.
    let take = TakeLeaseRequest {
        session: id.clone(),
        epoch: 0,
        election: key("a"),
        slot: 0,
        token: Token::ZERO,
        holder: None,
        expire: None,
    };
    let other = new_id();
    client.open_session(&new_session(&other, "b")).await.unwrap();
    for (session, election, namespace) in [(&other, "e", "a"), (&id, "f", "a"), (&id, "e", "b")] {
        let uri =
            format!("/internal/v1/sessions/{session}/elections/{election}/take-lease?namespace={namespace}");
        let body = Body::from(serde_json::to_vec(&take).unwrap());
        let request = Request::post(&uri).header("content-type", "application/json").body(body).unwrap();
        let answer = replica.app.router().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), 422, "{uri}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_and_candidacies_are_limited_per_principal() {
    let fixture = TestServer::new().await;
    let bob = fixture.actor("bob", &["a:read,lead"]).await;
    let store = fixture.store.backend();
    let nth = |n: usize| ElectionKey::new("a".parse().unwrap(), format!("e{n}").parse().unwrap());
    for n in 0..1000 {
        store.join_election(&candidacy(&bob.id, &nth(n))).await.unwrap();
    }
    for _ in 1..10_000 {
        let owner = Some("bob".to_owned());
        store.open_session(&OpenSessionRequest { owner, ..new_session(&new_id(), "bob") }).await.unwrap();
    }
    let elections = fixture.replica.app.elections();
    let mut changes = elections.changes();
    while elections.snapshot().sessions_by_owner.get("bob") != Some(&10_000)
        || elections.snapshot().candidacies_by_session.get(&bob.id) != Some(&1000)
    {
        changes.changed().await.unwrap();
    }
    bob.store.join_election(&candidacy(&bob.id, &nth(7))).await.expect("an existing candidacy");
    let error = bob.store.join_election(&candidacy(&bob.id, &nth(1000))).await.unwrap_err();
    assert!(error.message.contains("leave elections"), "{error}");
    let error = bob.store.open_session(&new_session(&new_id(), "bob")).await.unwrap_err();
    assert!(error.message.contains("end unused sessions"), "{error}");
    fixture.actor("carol", &["a:read,lead"]).await;
}
