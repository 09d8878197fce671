//! Sessions.

use super::{StoreUnderTest, TestSession, election, new_id, new_session};
use tenure_core::port::{
    ErrorKind, ExpireSessionRequest, HeartbeatResponse, ObserveScope, OpenSessionRequest, StartReason,
    TakeoverMode,
};

/// Opening a session is its first heartbeat, and every further one counts.
pub async fn a_new_session_is_live_and_counts_heartbeats(subject: &StoreUnderTest) {
    let (a, key) = (subject.session("alpha").await, election("e"));
    a.join(&key).await;
    let session = |view: tenure_core::port::ElectionView| view.candidates[0].session.clone();
    let before = session(a.view(&key).await);
    assert_eq!(
        (before.id, before.name.as_str(), before.heartbeat_count, before.live),
        (a.id.clone(), "alpha", 0, true)
    );
    assert_eq!(before.lease_ms, 3_600_000);
    assert!(a.is_live().await && a.is_live().await);
    assert_eq!(session(a.view(&key).await).heartbeat_count, 2);
}

/// The store rejects a second session with the same id, because it would share the leases of the first.
pub async fn a_session_id_is_used_once(subject: &StoreUnderTest) {
    let a = subject.session("a").await;
    let other = subject.client().await;
    assert_eq!(other.open_session(&new_session(&a.id, "b")).await, Ok(HeartbeatResponse::SessionEnded));
    assert!(a.is_live().await, "the first one continues");
    a.store.end_session(&a.id).await.unwrap();
    assert_eq!(other.open_session(&new_session(&a.id, "b")).await, Ok(HeartbeatResponse::SessionEnded));
}

/// A heartbeat of a session that was never opened returns that the session has ended.
pub async fn an_unknown_session_counts_as_ended(subject: &StoreUnderTest) {
    let store = subject.client().await;
    let id = new_id();
    assert_eq!(store.heartbeat(&id).await, Ok(HeartbeatResponse::SessionEnded));
    assert_eq!(store.end_session(&id).await, Ok(()));
    assert_eq!(
        store.expire_session(&ExpireSessionRequest { session: id, epoch: 0, heartbeat_count: Some(0) }).await,
        Ok(())
    );
}

/// No call revives an ended session.
pub async fn an_ended_session_stays_ended(subject: &StoreUnderTest) {
    let a = subject.session("a").await;
    a.store.end_session(&a.id).await.unwrap();
    assert!(!a.is_live().await);
    a.store.end_session(&a.id).await.unwrap();
    assert!(!a.is_live().await);
}

/// A heartbeat does not revive an expired session, which is a known bug of other systems.
pub async fn an_expired_session_stays_ended(subject: &StoreUnderTest) {
    let (a, b, key) = (subject.session("a").await, subject.session("b").await, election("e"));
    a.join(&key).await;
    b.join(&key).await;
    let token = a.take(&key, 0).await;
    b.expire(&a, &key).await;
    for _ in 0..3 {
        assert!(!a.is_live().await);
    }
    assert!(a.view(&key).await.candidate(&a.id).is_none());
    assert!(a.lease(&key, 0).await.is_free());
    assert!(b.take(&key, 0).await > token);
}

/// An expiry is rejected if the session has sent a heartbeat since it was observed.
pub async fn a_session_with_a_newer_heartbeat_is_not_expired(subject: &StoreUnderTest) {
    let (a, b) = (subject.session("a").await, subject.session("b").await);
    assert!(a.is_live().await);
    b.store
        .expire_session(&ExpireSessionRequest {
            session: a.id.clone(),
            epoch: b.epoch,
            heartbeat_count: Some(0),
        })
        .await
        .unwrap();
    assert!(a.is_live().await);
}

/// A graceful end releases everything at once.
pub async fn an_end_releases_everything_and_removes_the_candidates(subject: &StoreUnderTest) {
    let (a, b) = holding_three(subject).await;
    a.store.end_session(&a.id).await.unwrap();
    all_is_free(&a, &b, StartReason::Release, "ended").await;
}

/// The first process that expires a dead session releases everything it held.
pub async fn an_expiry_releases_everything_and_removes_the_candidates(subject: &StoreUnderTest) {
    let (a, b) = holding_three(subject).await;
    b.expire(&a, &election("e0")).await;
    all_is_free(&a, &b, StartReason::Takeover, "expired").await;
}

/// An expiry releases nothing that another session holds.
pub async fn an_expiry_affects_only_its_session(subject: &StoreUnderTest) {
    let (a, b) = holding_three(subject).await;
    let c = subject.session("c").await;
    let key = election("other");
    c.join(&key).await;
    let token = c.take(&key, 0).await;
    b.expire(&a, &election("e0")).await;
    assert!(c.is_live().await && b.is_live().await);
    let lease = c.lease(&key, 0).await;
    assert_eq!((lease.token, lease.holder.map(|holder| holder.id)), (token, Some(c.id.clone())));
}

/// The list contains live sessions without a candidate; an ended session is returned when it is requested by id.
pub async fn sessions_are_listed_with_and_without_candidates(subject: &StoreUnderTest) {
    let (a, b) = (subject.session("a").await, subject.session("b").await);
    let client = subject.client().await;
    assert!(b.is_live().await);
    b.join_with_slots(&election("e"), 2).await;
    let mut expected = [(a.id.clone(), "a", 0), (b.id.clone(), "b", 1)];
    expected.sort();
    let live = client.sessions(None).await.unwrap();
    let shown: Vec<_> = live.iter().map(|s| (s.id.clone(), s.name.as_str(), s.heartbeat_count)).collect();
    assert_eq!(shown, expected);
    assert!(live.iter().all(|session| session.live && session.lease_ms == 3_600_000));
    a.store.end_session(&a.id).await.unwrap();
    let live: Vec<_> = client.sessions(None).await.unwrap().into_iter().map(|session| session.id).collect();
    assert_eq!(live, std::slice::from_ref(&b.id));
    let requested = client.sessions(Some(&[b.id.clone(), new_id(), a.id.clone()])).await.unwrap();
    let lives: Vec<_> = requested.into_iter().map(|session| (session.id, session.live)).collect();
    assert_eq!(lives, expected.map(|(id, ..)| (id.clone(), id == b.id)));
    assert_eq!(client.sessions(Some(&[])).await, Ok(Vec::new()));
}

/// A server stores the principal for which it opened a session, and all servers can read it.
pub async fn an_owner_is_kept_and_shown(subject: &StoreUnderTest) {
    let (a, key) = (subject.session("a").await, election("e"));
    let id = new_id();
    let session = OpenSessionRequest { owner: Some("o'wner \"x\" \\".into()), ..new_session(&id, "remote") };
    let Ok(HeartbeatResponse::Live { epoch, .. }) = a.store.open_session(&session).await else {
        panic!("the session is live")
    };
    let remote = TestSession { store: a.store.clone(), id: id.clone(), epoch };
    remote.join(&key).await;
    remote.take(&key, 0).await;
    a.join(&key).await;
    assert!(remote.is_live().await);
    let client = subject.client().await;
    let view = client.election(&key).await.unwrap().unwrap();
    let holder = view.leases[0].holder.clone().unwrap();
    assert_eq!(holder.owner, session.owner);
    assert_eq!(view.candidate(&id).unwrap().session, holder);
    assert_eq!(view.candidate(&a.id).unwrap().session.owner, None);
    assert_eq!(client.sessions(Some(std::slice::from_ref(&id))).await, Ok(vec![holder.clone()]));
    assert!(client.sessions(None).await.unwrap().contains(&holder));
    let observed = client.observe(&id, &ObserveScope::Own).await.unwrap().elections.remove(0);
    assert_eq!(observed.leases[0].holder.as_ref(), Some(&holder));
    assert_eq!(client.open_session(&session).await, Ok(HeartbeatResponse::SessionEnded), "its id is used");
}

/// A session with an owner cannot use takeover by connection, because the connection is the server's and says nothing
/// about the owner.
pub async fn a_session_with_an_owner_cannot_use_connection_takeover(subject: &StoreUnderTest) {
    let store = subject.client().await;
    let id = new_id();
    let session = OpenSessionRequest {
        owner: Some("ci".into()),
        takeover: TakeoverMode::Connection,
        ..new_session(&id, "remote")
    };
    let refused = store.open_session(&session).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Request);
    assert!(refused.message.contains("ci") && refused.message.contains("`lease`"), "{refused}");
    assert_eq!(store.sessions(Some(&[id])).await, Ok(Vec::new()));
}

async fn holding_three(subject: &StoreUnderTest) -> (TestSession, TestSession) {
    let (a, b) = (subject.session("a").await, subject.session("b").await);
    for n in 0..3 {
        let key = election(&format!("e{n}"));
        a.join(&key).await;
        b.join(&key).await;
        a.take(&key, 0).await;
    }
    (a, b)
}

async fn all_is_free(a: &TestSession, b: &TestSession, via: StartReason, how: &str) {
    for n in 0..3 {
        let key = election(&format!("e{n}"));
        let view = b.view(&key).await;
        assert!(view.leases[0].is_free() && view.leases[0].holder.is_none());
        assert_eq!((view.leases[0].start_reason, view.leases[0].reserved_for.clone()), (via, None));
        assert!(view.candidate(&a.id).is_none() && view.candidate(&b.id).is_some());
        let term = b.store.term_history(&key, 1).await.unwrap().remove(0);
        assert_eq!((term.session, term.end_reason.as_deref()), (a.id.clone(), Some(how)));
        assert!(term.ended_at_ms.is_some());
        assert_eq!(b.take(&key, 0).await.as_u64(), term.token.as_u64() + 1);
    }
}
