//! Leader requests and pauses.

use super::{StoreUnderTest, TestSession, election, leader_request};
use tenure_core::port::{ErrorKind, LeaderRequest, LeaderRequestKind, Pause};
use tenure_core::{ElectionKey, Token};

/// Every heartbeat of the leader returns the request until its term ends.
pub async fn a_leader_request_is_returned_until_the_release(subject: &StoreUnderTest) {
    let (a, b, key, token) = led(subject).await;
    let request = leader_request(&key, token, LeaderRequestKind::Resign);
    assert_eq!(b.store.request_leader(&request).await, Ok(true));
    assert!(b.leader_requests().await.is_empty(), "only the holder receives it");
    assert_eq!(a.leader_requests().await, std::slice::from_ref(&request));
    assert_eq!(a.leader_requests().await, [request]);
    a.release(&key, 0, token).await;
    assert!(a.leader_requests().await.is_empty());
}

/// A request never reaches a later leader.
pub async fn a_leader_request_for_a_former_term_is_dropped(subject: &StoreUnderTest) {
    let (a, b, key, old) = led(subject).await;
    assert_eq!(b.store.request_leader(&leader_request(&key, old, LeaderRequestKind::Resign)).await, Ok(true));
    a.release(&key, 0, old).await;
    assert_eq!(
        b.store.request_leader(&leader_request(&key, old, LeaderRequestKind::Resign)).await,
        Ok(false),
        "no session holds it"
    );
    let token = a.take(&key, 0).await;
    for stale in [old, Token::ZERO, Token::from_u64(token.as_u64() + 1)] {
        assert_eq!(
            b.store.request_leader(&leader_request(&key, stale, LeaderRequestKind::Resign)).await,
            Ok(false)
        );
    }
    let beyond = LeaderRequest { slot: 7, ..leader_request(&key, token, LeaderRequestKind::Resign) };
    assert_eq!(b.store.request_leader(&beyond).await, Ok(false));
    assert_eq!(
        b.store.request_leader(&leader_request(&election("none"), token, LeaderRequestKind::Resign)).await,
        Ok(false)
    );
    assert!(a.leader_requests().await.is_empty());
}

/// An operator's request replaces a candidate's request; a candidate's request never replaces an operator's.
pub async fn an_operators_request_replaces_a_candidates_request(subject: &StoreUnderTest) {
    let (a, b, key, token) = led(subject).await;
    let preempt = leader_request(&key, token, LeaderRequestKind::Preempt(b.id.clone()));
    let transfer = leader_request(&key, token, LeaderRequestKind::Transfer(b.id.clone()));
    let resign = leader_request(&key, token, LeaderRequestKind::Resign);
    assert_eq!(b.store.request_leader(&preempt).await, Ok(true));
    assert_eq!(a.leader_requests().await, std::slice::from_ref(&preempt));
    assert_eq!(b.store.request_leader(&transfer).await, Ok(true));
    assert_eq!(b.store.request_leader(&preempt).await, Ok(true), "accepted without effect");
    assert_eq!(a.leader_requests().await, [transfer]);
    assert_eq!(b.store.request_leader(&resign).await, Ok(true));
    assert_eq!(a.leader_requests().await, [resign], "the last operator's request counts");
}

/// A request keeps its kind, its successor and its requester.
pub async fn every_kind_of_leader_request_keeps_all_fields(subject: &StoreUnderTest) {
    let (a, b, key, token) = led(subject).await;
    let kinds = [
        LeaderRequestKind::Preempt(b.id.clone()),
        LeaderRequestKind::Transfer(b.id.clone()),
        LeaderRequestKind::Resign,
        LeaderRequestKind::Pause,
    ];
    for kind in kinds {
        let request =
            LeaderRequest { requested_by: "o'br\"ien\\\n日本".into(), ..leader_request(&key, token, kind) };
        assert_eq!(b.store.request_leader(&request).await, Ok(true));
        assert_eq!(a.leader_requests().await, [request]);
    }
}

/// A take fails while the election is paused and succeeds after it is resumed.
pub async fn a_paused_election_grants_nothing(subject: &StoreUnderTest) {
    let (a, b, key, token) = led(subject).await;
    let pause = Pause { paused_by: "ops".into(), reason: "it's \"late\"".into(), paused_at_ms: 12_345 };
    assert_eq!(b.store.set_election_paused(&key, Some(&pause)).await, Ok(true));
    assert_eq!(b.view(&key).await.paused, Some(pause));
    assert!(a.is_live().await);
    assert_eq!(a.lease(&key, 0).await.token, token, "the holder keeps its lease until it releases");
    a.release(&key, 0, token).await;
    assert_eq!(b.store.take_lease(&b.take_request(&key, 0).await).await, Ok(None));
    assert_eq!(b.store.set_election_paused(&key, None).await, Ok(true));
    assert_eq!(b.view(&key).await.paused, None);
    assert!(b.take(&key, 0).await > token);
}

/// Pausing sends a request to every leader and replaces earlier requests; resuming removes it.
pub async fn pausing_sends_a_request_to_every_leader(subject: &StoreUnderTest) {
    let (a, b, key) = (subject.session("a").await, subject.session("b").await, election("e"));
    a.join_with_slots(&key, 2).await;
    b.join_with_slots(&key, 2).await;
    let tokens = [a.take(&key, 0).await, b.take(&key, 1).await];
    assert_eq!(
        b.store.request_leader(&leader_request(&key, tokens[0], LeaderRequestKind::Resign)).await,
        Ok(true)
    );
    let pause = Pause { paused_by: "ops".into(), reason: String::new(), paused_at_ms: 1 };
    assert_eq!(b.store.set_election_paused(&key, Some(&pause)).await, Ok(true));
    for (session, slot) in [(&a, 0), (&b, 1)] {
        let token = tokens[slot as usize];
        let expected = LeaderRequest {
            election: key.clone(),
            slot,
            token,
            kind: LeaderRequestKind::Pause,
            requested_by: "ops".into(),
        };
        assert_eq!(session.leader_requests().await, [expected]);
    }
    assert_eq!(b.store.set_election_paused(&key, None).await, Ok(true));
    assert!(a.leader_requests().await.is_empty() && b.leader_requests().await.is_empty());
}

/// Pausing a paused election returns `false`.
pub async fn pausing_twice_reports_no_change(subject: &StoreUnderTest) {
    let (_a, b, key, _) = led(subject).await;
    let first = Pause { paused_by: "first".into(), reason: String::new(), paused_at_ms: 1 };
    let second = Pause { paused_by: "second".into(), reason: String::new(), paused_at_ms: 2 };
    assert_eq!(b.store.set_election_paused(&key, None).await, Ok(false));
    assert_eq!(b.store.set_election_paused(&key, Some(&first)).await, Ok(true));
    assert_eq!(b.store.set_election_paused(&key, Some(&second)).await, Ok(false));
    assert_eq!(b.view(&key).await.paused, Some(first));
}

/// A misspelled name is an error and does not create an election.
pub async fn pausing_an_unknown_election_is_rejected(subject: &StoreUnderTest) {
    let (store, key) = (subject.client().await, election("none"));
    let pause = Pause { paused_by: "ops".into(), reason: String::new(), paused_at_ms: 1 };
    for pause in [Some(&pause), None] {
        assert_eq!(store.set_election_paused(&key, pause).await.unwrap_err().kind, ErrorKind::Request);
    }
    assert_eq!(store.election(&key).await, Ok(None));
}

async fn led(subject: &StoreUnderTest) -> (TestSession, TestSession, ElectionKey, Token) {
    let (a, b, key) = (subject.session("a").await, subject.session("b").await, election("e"));
    a.join(&key).await;
    b.join(&key).await;
    let token = a.take(&key, 0).await;
    (a, b, key, token)
}
