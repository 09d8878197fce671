//! Taking and releasing leases.

use super::{StoreUnderTest, TestSession, candidacy, election, new_id};
use tenure_core::Token;
use tenure_core::port::{
    ExpireSessionRequest, ObserveScope, ReleaseLeaseRequest, StartReason, TakeLeaseRequest,
};

/// A candidate takes a free lease and becomes its holder.
pub async fn a_free_lease_is_taken(subject: &StoreUnderTest) {
    let (a, key) = (subject.session("a").await, election("e"));
    a.join(&key).await;
    let before = a.lease(&key, 0).await;
    assert_eq!((before.token, before.holder, before.granted_at_ms), (Token::first(a.epoch), None, None));
    let token = a.take(&key, 0).await;
    let lease = a.lease(&key, 0).await;
    assert!(token > Token::ZERO);
    assert_eq!((lease.token, lease.holder.map(|holder| holder.id)), (token, Some(a.id)));
    assert_eq!((lease.start_reason, lease.granted_at_ms.is_some()), (StartReason::Release, true));
}

/// A live holder is not replaced.
pub async fn a_held_lease_is_not_taken(subject: &StoreUnderTest) {
    let (a, b, key) = two(subject).await;
    let token = a.take(&key, 0).await;
    assert_eq!(b.store.take_lease(&b.take_request(&key, 0).await).await, Ok(None));
    let lease = b.lease(&key, 0).await;
    assert_eq!((lease.token, lease.holder.map(|holder| holder.id)), (token, Some(a.id)));
}

/// A take is rejected if the token or the holder differs from the observed one.
pub async fn a_take_compares_token_and_holder(subject: &StoreUnderTest) {
    let (a, b, key) = two(subject).await;
    let free = b.take_request(&key, 0).await;
    let token = a.take(&key, 0).await;
    let bid = b.takeover_request(&key, 0).await;
    let wrong = [
        free.clone(),
        TakeLeaseRequest { expire: bid.expire.clone(), ..free },
        TakeLeaseRequest { token: Token::from_u64(token.as_u64() + 1), ..bid.clone() },
        TakeLeaseRequest { token: Token::ZERO, ..bid.clone() },
        TakeLeaseRequest { epoch: bid.epoch + 1, ..bid.clone() },
        TakeLeaseRequest { holder: None, ..bid.clone() },
        TakeLeaseRequest { holder: Some(b.id.clone()), ..bid.clone() },
        TakeLeaseRequest { holder: Some(new_id()), ..bid.clone() },
        TakeLeaseRequest { slot: 1, ..bid.clone() },
        TakeLeaseRequest { election: election("another"), ..bid.clone() },
    ];
    for take in wrong {
        assert_eq!(b.store.take_lease(&take).await, Ok(None), "{take:?}");
        assert!(
            a.lease(&key, 0).await.holder.is_some_and(|holder| holder.id == a.id && holder.live),
            "{take:?}"
        );
    }
    assert_eq!(b.store.take_lease(&bid).await.map(|token| token.is_some()), Ok(true));
}

/// One call expires the silent holder and takes its lease, both by compare-and-swap.
pub async fn a_silent_holder_is_taken_over(subject: &StoreUnderTest) {
    let (a, b, key) = two(subject).await;
    let old = a.take(&key, 0).await;
    let bid = b.takeover_request(&key, 0).await;
    let new = b.store.take_lease(&bid).await.unwrap().expect("its heartbeat was unchanged");
    assert!(new > old);
    assert!(!a.is_live().await);
    let lease = b.lease(&key, 0).await;
    assert_eq!((lease.token, lease.start_reason), (new, StartReason::Takeover));
    assert_eq!(b.store.take_lease(&bid).await, Ok(None), "the same request succeeds once");
}

/// A single newer heartbeat of the holder is enough to reject the takeover.
pub async fn a_holder_with_a_newer_heartbeat_is_not_taken_over(subject: &StoreUnderTest) {
    let (a, b, key) = two(subject).await;
    let token = a.take(&key, 0).await;
    let bid = b.takeover_request(&key, 0).await;
    assert!(a.is_live().await);
    assert_eq!(b.store.take_lease(&bid).await, Ok(None));
    assert!(a.is_live().await);
    assert_eq!(a.lease(&key, 0).await.token, token);
}

/// A session that was expired while its take was on the way gets nothing.
pub async fn a_dead_session_takes_nothing(subject: &StoreUnderTest) {
    let (a, b, key) = two(subject).await;
    let bid = a.take_request(&key, 0).await;
    b.expire(&a, &key).await;
    assert_eq!(a.store.take_lease(&bid).await, Ok(None));
    assert_eq!(a.store.take_lease(&TakeLeaseRequest { session: new_id(), ..bid }).await, Ok(None));
    assert!(b.lease(&key, 0).await.is_free());
}

/// A session that is not, or no longer, a candidate cannot take the lease.
pub async fn a_session_without_a_candidate_takes_nothing(subject: &StoreUnderTest) {
    let (a, b, key) = two(subject).await;
    let bid = a.take_request(&key, 0).await;
    a.store.leave_election(&a.id, &key).await.unwrap();
    assert_eq!(a.store.take_lease(&bid).await, Ok(None));
    // The rejected take still expires the silent session that it observed.
    let c = subject.session("c").await;
    let token = b.take(&key, 0).await;
    let expire =
        Some(ExpireSessionRequest { session: b.id.clone(), epoch: b.epoch, heartbeat_count: Some(0) });
    let bid = TakeLeaseRequest {
        session: c.id.clone(),
        epoch: c.epoch,
        election: key.clone(),
        slot: 0,
        token,
        holder: Some(b.id.clone()),
        expire,
    };
    assert_eq!(c.store.take_lease(&bid).await, Ok(None));
    assert!(!b.is_live().await && c.lease(&key, 0).await.is_free());
}

/// Several sessions take the same lease at the same time with the same observation, and one gets it.
pub async fn of_concurrent_takes_one_wins(subject: &StoreUnderTest) {
    let key = election("e");
    let mut actors = Vec::new();
    for n in 0..6 {
        let session = subject.session(&format!("a{n}")).await;
        session.join(&key).await;
        actors.push(std::sync::Arc::new(session));
    }
    let mut last = Token::ZERO;
    for _ in 0..8 {
        let mut bids = Vec::new();
        for session in &actors {
            bids.push((session.clone(), session.take_request(&key, 0).await));
        }
        let (winner, token) = one_winner(bids).await;
        assert!(token > last);
        last = token;
        actors[winner].release(&key, 0, token).await;
    }
}

/// Several sessions take over from the same silent holder at the same time, and one gets the lease.
pub async fn of_concurrent_takeovers_one_wins(subject: &StoreUnderTest) {
    let key = election("e");
    for round in 0..4 {
        let dead = subject.session("dead").await;
        dead.join(&key).await;
        let old = dead.take(&key, 0).await;
        let mut bids = Vec::new();
        for n in 0..6 {
            let session = subject.session(&format!("a{round}-{n}")).await;
            session.join(&key).await;
            let bid = session.takeover_request(&key, 0).await;
            bids.push((std::sync::Arc::new(session), bid));
        }
        let actors: Vec<_> = bids.iter().map(|(session, _)| session.clone()).collect();
        let (_, token) = one_winner(bids).await;
        assert!(token > old);
        for session in actors {
            session.store.end_session(&session.id).await.unwrap();
        }
    }
}

async fn one_winner(bids: Vec<(std::sync::Arc<TestSession>, TakeLeaseRequest)>) -> (usize, Token) {
    let takes: Vec<_> = bids
        .into_iter()
        .map(|(session, bid)| {
            tokio::spawn(async move { session.store.take_lease(&bid).await.expect("take") })
        })
        .collect();
    let mut winners = Vec::new();
    for (n, take) in takes.into_iter().enumerate() {
        winners.extend(take.await.expect("no panic").map(|token| (n, token)));
    }
    assert_eq!(winners.len(), 1, "exactly one wins: {winners:?}");
    winners[0]
}

/// The token grows with every grant, whether the previous term ended by release, session end, expiry or takeover.
pub async fn tokens_grow_over_everything(subject: &StoreUnderTest) {
    let (watcher, key) = (subject.session("w").await, election("e"));
    watcher.join(&key).await;
    let mut last = Token::ZERO;
    for n in 0..8 {
        let a = subject.session("a").await;
        a.join(&key).await;
        let token = a.take(&key, 0).await;
        assert!(token > last, "{token} after {last}");
        last = token;
        match n % 4 {
            0 => a.release(&key, 0, token).await,
            1 => a.store.end_session(&a.id).await.unwrap(),
            2 => watcher.expire(&a, &key).await,
            _ => {
                let bid = watcher.takeover_request(&key, 0).await;
                last = watcher.store.take_lease(&bid).await.unwrap().expect("taken over");
                assert!(last > token);
                watcher.release(&key, 0, last).await;
            }
        }
    }
}

/// Tokens keep growing when clients are closed and opened again, because the store keeps them.
pub async fn tokens_grow_over_reopening(subject: &StoreUnderTest) {
    let key = election("e");
    let mut last = Token::ZERO;
    for _ in 0..3 {
        let a = subject.session("a").await;
        a.join(&key).await;
        let token = a.take(&key, 0).await;
        assert!(token > last);
        last = token;
        a.store.end_session(&a.id).await.unwrap();
        drop(a);
    }
}

/// A late release of an earlier term does not release the current one.
pub async fn a_release_under_the_wrong_token_does_nothing(subject: &StoreUnderTest) {
    let (a, b, key) = two(subject).await;
    let old = a.take(&key, 0).await;
    a.release(&key, 0, old).await;
    let token = a.take(&key, 0).await;
    for release in [
        a.release_request(&key, 0, old),
        b.release_request(&key, 0, token),
        a.release_request(&election("x"), 0, token),
    ] {
        a.store.release_lease(&release).await.unwrap();
    }
    let lease = b.lease(&key, 0).await;
    assert_eq!((lease.token, lease.holder.map(|holder| holder.id)), (token, Some(a.id.clone())));
}

/// A release stores the successor and the start reason of the next term.
pub async fn a_release_names_its_successor(subject: &StoreUnderTest) {
    let (a, b, key) = two(subject).await;
    let token = a.take(&key, 0).await;
    let release = ReleaseLeaseRequest {
        successor: Some(b.id.clone()),
        start_reason: StartReason::Transfer,
        ..a.release_request(&key, 0, token)
    };
    a.store.release_lease(&release).await.unwrap();
    let lease = b.lease(&key, 0).await;
    assert_eq!(
        (lease.reserved_for, lease.start_reason, lease.token),
        (Some(b.id.clone()), StartReason::Transfer, token)
    );
    b.take(&key, 0).await;
    let lease = b.lease(&key, 0).await;
    assert_eq!((lease.reserved_for, lease.start_reason), (None, StartReason::Transfer));
}

/// One call releases the lease and removes the candidate.
pub async fn a_release_can_leave_the_election(subject: &StoreUnderTest) {
    let (a, b, key) = two(subject).await;
    let token = a.take(&key, 0).await;
    a.store
        .release_lease(&ReleaseLeaseRequest { leave: true, ..a.release_request(&key, 0, token) })
        .await
        .unwrap();
    let view = b.view(&key).await;
    assert!(view.leases[0].is_free() && view.candidate(&a.id).is_none() && view.candidate(&b.id).is_some());
}

/// A lease of a session that is no longer a candidate is reported to it, so that it can release it.
pub async fn orphaned_leases_are_reported_to_their_session(subject: &StoreUnderTest) {
    let (a, b, key) = two(subject).await;
    let token = a.take(&key, 0).await;
    assert!(a.store.observe(&a.id, &ObserveScope::Own).await.unwrap().orphaned_leases.is_empty());
    a.store.leave_election(&a.id, &key).await.unwrap();
    let observed = a.store.observe(&a.id, &ObserveScope::Contested).await.unwrap();
    assert_eq!((observed.orphaned_leases, observed.elections), (vec![(key.clone(), 0, token)], Vec::new()));
    assert!(b.store.observe(&b.id, &ObserveScope::Contested).await.unwrap().orphaned_leases.is_empty());
}

async fn two(subject: &StoreUnderTest) -> (TestSession, TestSession, tenure_core::ElectionKey) {
    let (a, b, key) = (subject.session("a").await, subject.session("b").await, election("e"));
    for session in [&a, &b] {
        session.store.join_election(&candidacy(&session.id, &key)).await.unwrap();
    }
    (a, b, key)
}
