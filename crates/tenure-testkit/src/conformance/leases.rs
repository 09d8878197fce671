//! Claims about taking and releasing leases.

use super::{Actor, Subject, candidacy, election, new_id};
use tenure_core::Token;
use tenure_core::port::{Expire, Release, Scope, Take, Via};

/// The ordinary beginning.
pub async fn a_free_lease_is_taken(subject: &Subject) {
    let (a, key) = (subject.actor("a").await, election("e"));
    a.stand(&key).await;
    let before = a.lease(&key, 0).await;
    assert_eq!((before.token, before.holder, before.granted_at_ms), (Token::first(a.epoch), None, None));
    let token = a.take(&key, 0).await;
    let lease = a.lease(&key, 0).await;
    assert!(token > Token::ZERO);
    assert_eq!((lease.token, lease.holder.map(|holder| holder.id)), (token, Some(a.id)));
    assert_eq!((lease.via, lease.granted_at_ms.is_some()), (Via::Release, true));
}

/// A live holder is not taken over by asking.
pub async fn a_held_lease_is_not_taken(subject: &Subject) {
    let (a, b, key) = two(subject).await;
    let token = a.take(&key, 0).await;
    assert_eq!(b.store.take(&b.bid(&key, 0).await).await, Ok(None));
    let lease = b.lease(&key, 0).await;
    assert_eq!((lease.token, lease.holder.map(|holder| holder.id)), (token, Some(a.id)));
}

/// Each part of what was seen is compared.
pub async fn what_was_seen_must_still_be_so(subject: &Subject) {
    let (a, b, key) = two(subject).await;
    let free = b.bid(&key, 0).await;
    let token = a.take(&key, 0).await;
    let bid = b.overbid(&key, 0).await;
    let wrong = [
        free.clone(),
        Take { expire: bid.expire.clone(), ..free },
        Take { token: Token::from_u64(token.as_u64() + 1), ..bid.clone() },
        Take { token: Token::ZERO, ..bid.clone() },
        Take { epoch: bid.epoch + 1, ..bid.clone() },
        Take { holder: None, ..bid.clone() },
        Take { holder: Some(b.id.clone()), ..bid.clone() },
        Take { holder: Some(new_id()), ..bid.clone() },
        Take { slot: 1, ..bid.clone() },
        Take { election: election("another"), ..bid.clone() },
    ];
    for take in wrong {
        assert_eq!(b.store.take(&take).await, Ok(None), "{take:?}");
        assert!(
            a.lease(&key, 0).await.holder.is_some_and(|holder| holder.id == a.id && holder.live),
            "{take:?}"
        );
    }
    assert_eq!(b.store.take(&bid).await.map(|token| token.is_some()), Ok(true));
}

/// Expire by compare-and-swap, take by compare-and-swap, in one.
pub async fn a_silent_holder_is_taken_over(subject: &Subject) {
    let (a, b, key) = two(subject).await;
    let old = a.take(&key, 0).await;
    let bid = b.overbid(&key, 0).await;
    let new = b.store.take(&bid).await.unwrap().expect("its beat stood still");
    assert!(new > old);
    assert!(!a.lives().await);
    let lease = b.lease(&key, 0).await;
    assert_eq!((lease.token, lease.via), (new, Via::Takeover));
    assert_eq!(b.store.take(&bid).await, Ok(None), "the same bid wins once");
}

/// One beat is enough to keep it.
pub async fn a_holder_that_beat_since_is_not_taken_over(subject: &Subject) {
    let (a, b, key) = two(subject).await;
    let token = a.take(&key, 0).await;
    let bid = b.overbid(&key, 0).await;
    assert!(a.lives().await);
    assert_eq!(b.store.take(&bid).await, Ok(None));
    assert!(a.lives().await);
    assert_eq!(a.lease(&key, 0).await.token, token);
}

/// A session that was expired while its take was on the way gets nothing.
pub async fn a_dead_session_takes_nothing(subject: &Subject) {
    let (a, b, key) = two(subject).await;
    let bid = a.bid(&key, 0).await;
    b.expire(&a, &key).await;
    assert_eq!(a.store.take(&bid).await, Ok(None));
    assert_eq!(a.store.take(&Take { session: new_id(), ..bid }).await, Ok(None));
    assert!(b.lease(&key, 0).await.is_free());
}

/// Nor does one that has left.
pub async fn who_does_not_stand_takes_nothing(subject: &Subject) {
    let (a, b, key) = two(subject).await;
    let bid = a.bid(&key, 0).await;
    a.store.leave(&a.id, &key).await.unwrap();
    assert_eq!(a.store.take(&bid).await, Ok(None));
    // And a session that it found silent is expired all the same.
    let c = subject.actor("c").await;
    let token = b.take(&key, 0).await;
    let expire = Some(Expire { session: b.id.clone(), epoch: b.epoch, beat: Some(0) });
    let bid = Take {
        session: c.id.clone(),
        epoch: c.epoch,
        election: key.clone(),
        slot: 0,
        token,
        holder: Some(b.id.clone()),
        expire,
    };
    assert_eq!(c.store.take(&bid).await, Ok(None));
    assert!(!b.lives().await && c.lease(&key, 0).await.is_free());
}

/// Many try, with the same sight of things.
pub async fn of_concurrent_takers_one_wins(subject: &Subject) {
    let key = election("e");
    let mut actors = Vec::new();
    for n in 0..6 {
        let actor = subject.actor(&format!("a{n}")).await;
        actor.stand(&key).await;
        actors.push(std::sync::Arc::new(actor));
    }
    let mut last = Token::ZERO;
    for _ in 0..8 {
        let mut bids = Vec::new();
        for actor in &actors {
            bids.push((actor.clone(), actor.bid(&key, 0).await));
        }
        let (winner, token) = one_winner(bids).await;
        assert!(token > last);
        last = token;
        actors[winner].release(&key, 0, token).await;
    }
}

/// Many see the same holder fall silent.
pub async fn of_concurrent_take_overs_one_wins(subject: &Subject) {
    let key = election("e");
    for round in 0..4 {
        let dead = subject.actor("dead").await;
        dead.stand(&key).await;
        let old = dead.take(&key, 0).await;
        let mut bids = Vec::new();
        for n in 0..6 {
            let actor = subject.actor(&format!("a{round}-{n}")).await;
            actor.stand(&key).await;
            let bid = actor.overbid(&key, 0).await;
            bids.push((std::sync::Arc::new(actor), bid));
        }
        let actors: Vec<_> = bids.iter().map(|(actor, _)| actor.clone()).collect();
        let (_, token) = one_winner(bids).await;
        assert!(token > old);
        for actor in actors {
            actor.store.end(&actor.id).await.unwrap();
        }
    }
}

async fn one_winner(bids: Vec<(std::sync::Arc<Actor>, Take)>) -> (usize, Token) {
    let takes: Vec<_> = bids
        .into_iter()
        .map(|(actor, bid)| tokio::spawn(async move { actor.store.take(&bid).await.expect("take") }))
        .collect();
    let mut winners = Vec::new();
    for (n, take) in takes.into_iter().enumerate() {
        winners.extend(take.await.expect("no panic").map(|token| (n, token)));
    }
    assert_eq!(winners.len(), 1, "exactly one wins: {winners:?}");
    winners[0]
}

/// Release, end, expiry, take-over: the token grows over each.
pub async fn tokens_grow_over_everything(subject: &Subject) {
    let (watcher, key) = (subject.actor("w").await, election("e"));
    watcher.stand(&key).await;
    let mut last = Token::ZERO;
    for n in 0..8 {
        let a = subject.actor("a").await;
        a.stand(&key).await;
        let token = a.take(&key, 0).await;
        assert!(token > last, "{token} after {last}");
        last = token;
        match n % 4 {
            0 => a.release(&key, 0, token).await,
            1 => a.store.end(&a.id).await.unwrap(),
            2 => watcher.expire(&a, &key).await,
            _ => {
                let bid = watcher.overbid(&key, 0).await;
                last = watcher.store.take(&bid).await.unwrap().expect("taken over");
                assert!(last > token);
                watcher.release(&key, 0, last).await;
            }
        }
    }
}

/// The truth is in the store, not in the client.
pub async fn tokens_grow_over_reopening(subject: &Subject) {
    let key = election("e");
    let mut last = Token::ZERO;
    for _ in 0..3 {
        let a = subject.actor("a").await;
        a.stand(&key).await;
        let token = a.take(&key, 0).await;
        assert!(token > last);
        last = token;
        a.store.end(&a.id).await.unwrap();
        drop(a);
    }
}

/// A late release of an old term must not free the new one.
pub async fn a_release_under_the_wrong_token_does_nothing(subject: &Subject) {
    let (a, b, key) = two(subject).await;
    let old = a.take(&key, 0).await;
    a.release(&key, 0, old).await;
    let token = a.take(&key, 0).await;
    for release in [a.giving(&key, 0, old), b.giving(&key, 0, token), a.giving(&election("x"), 0, token)] {
        a.store.release(&release).await.unwrap();
    }
    let lease = b.lease(&key, 0).await;
    assert_eq!((lease.token, lease.holder.map(|holder| holder.id)), (token, Some(a.id.clone())));
}

/// Who shall have it next, and how that will have come about.
pub async fn a_release_names_its_successor(subject: &Subject) {
    let (a, b, key) = two(subject).await;
    let token = a.take(&key, 0).await;
    let release = Release { successor: Some(b.id.clone()), via: Via::Transfer, ..a.giving(&key, 0, token) };
    a.store.release(&release).await.unwrap();
    let lease = b.lease(&key, 0).await;
    assert_eq!((lease.reserved, lease.via, lease.token), (Some(b.id.clone()), Via::Transfer, token));
    b.take(&key, 0).await;
    let lease = b.lease(&key, 0).await;
    assert_eq!((lease.reserved, lease.via), (None, Via::Transfer));
}

/// Releasing and leaving are one step.
pub async fn a_release_can_leave_too(subject: &Subject) {
    let (a, b, key) = two(subject).await;
    let token = a.take(&key, 0).await;
    a.store.release(&Release { leave: true, ..a.giving(&key, 0, token) }).await.unwrap();
    let view = b.view(&key).await;
    assert!(view.leases[0].is_free() && view.candidate(&a.id).is_none() && view.candidate(&b.id).is_some());
}

/// A lease that is held by who no longer stands is shown to it, to be released.
pub async fn strays_are_seen_by_their_holder(subject: &Subject) {
    let (a, b, key) = two(subject).await;
    let token = a.take(&key, 0).await;
    assert!(a.store.observe(&a.id, &Scope::Standing).await.unwrap().strays.is_empty());
    a.store.leave(&a.id, &key).await.unwrap();
    let seen = a.store.observe(&a.id, &Scope::Contested).await.unwrap();
    assert_eq!((seen.strays, seen.elections), (vec![(key.clone(), 0, token)], Vec::new()));
    assert!(b.store.observe(&b.id, &Scope::Contested).await.unwrap().strays.is_empty());
}

async fn two(subject: &Subject) -> (Actor, Actor, tenure_core::ElectionKey) {
    let (a, b, key) = (subject.actor("a").await, subject.actor("b").await, election("e"));
    for actor in [&a, &b] {
        actor.store.join(&candidacy(&actor.id, &key)).await.unwrap();
    }
    (a, b, key)
}
