//! Claims about asking and pausing.

use super::{Actor, Subject, ask, election};
use tenure_core::port::{Ask, AskKind, Pause, Trouble};
use tenure_core::{ElectionKey, Token};

/// It comes with every beat until the term is over.
pub async fn an_ask_reaches_its_holder_until_it_releases(subject: &Subject) {
    let (a, b, key, token) = led(subject).await;
    let ask = ask(&key, token, AskKind::Resign);
    assert_eq!(b.store.ask(&ask).await, Ok(true));
    assert!(b.asks().await.is_empty(), "only the holder is asked");
    assert_eq!(a.asks().await, std::slice::from_ref(&ask));
    assert_eq!(a.asks().await, [ask]);
    a.release(&key, 0, token).await;
    assert!(a.asks().await.is_empty());
}

/// A request never reaches a later holder.
pub async fn an_ask_of_a_former_term_reaches_nobody(subject: &Subject) {
    let (a, b, key, old) = led(subject).await;
    assert_eq!(b.store.ask(&ask(&key, old, AskKind::Resign)).await, Ok(true));
    a.release(&key, 0, old).await;
    assert_eq!(b.store.ask(&ask(&key, old, AskKind::Resign)).await, Ok(false), "nobody holds it");
    let token = a.take(&key, 0).await;
    for stale in [old, Token::ZERO, Token::from_u64(token.as_u64() + 1)] {
        assert_eq!(b.store.ask(&ask(&key, stale, AskKind::Resign)).await, Ok(false));
    }
    let beyond = Ask { slot: 7, ..ask(&key, token, AskKind::Resign) };
    assert_eq!(b.store.ask(&beyond).await, Ok(false));
    assert_eq!(b.store.ask(&ask(&election("none"), token, AskKind::Resign)).await, Ok(false));
    assert!(a.asks().await.is_empty());
}

/// Never the other way round.
pub async fn an_operators_ask_replaces_a_candidates(subject: &Subject) {
    let (a, b, key, token) = led(subject).await;
    let preempt = ask(&key, token, AskKind::Preempt(b.id.clone()));
    let transfer = ask(&key, token, AskKind::Transfer(b.id.clone()));
    let resign = ask(&key, token, AskKind::Resign);
    assert_eq!(b.store.ask(&preempt).await, Ok(true));
    assert_eq!(a.asks().await, std::slice::from_ref(&preempt));
    assert_eq!(b.store.ask(&transfer).await, Ok(true));
    assert_eq!(b.store.ask(&preempt).await, Ok(true), "heard, and of no effect");
    assert_eq!(a.asks().await, [transfer]);
    assert_eq!(b.store.ask(&resign).await, Ok(true));
    assert_eq!(a.asks().await, [resign], "the last operator's word counts");
}

/// Kind, successor, and who asks.
pub async fn every_kind_of_ask_arrives_whole(subject: &Subject) {
    let (a, b, key, token) = led(subject).await;
    let kinds =
        [AskKind::Preempt(b.id.clone()), AskKind::Transfer(b.id.clone()), AskKind::Resign, AskKind::Pause];
    for kind in kinds {
        let ask = Ask { by: "o'br\"ien\\\n日本".into(), ..ask(&key, token, kind) };
        assert_eq!(b.store.ask(&ask).await, Ok(true));
        assert_eq!(a.asks().await, [ask]);
    }
}

/// And after resuming it does again.
pub async fn a_paused_election_grants_nothing(subject: &Subject) {
    let (a, b, key, token) = led(subject).await;
    let pause = Pause { by: "ops".into(), reason: "it's \"late\"".into(), at_ms: 12_345 };
    assert_eq!(b.store.set_paused(&key, Some(&pause)).await, Ok(true));
    assert_eq!(b.view(&key).await.paused, Some(pause));
    assert!(a.lives().await);
    assert_eq!(a.lease(&key, 0).await.token, token, "the holder keeps its lease until it releases");
    a.release(&key, 0, token).await;
    assert_eq!(b.store.take(&b.bid(&key, 0).await).await, Ok(None));
    assert_eq!(b.store.set_paused(&key, None).await, Ok(true));
    assert_eq!(b.view(&key).await.paused, None);
    assert!(b.take(&key, 0).await > token);
}

/// Each of them, over whatever was asked before; and resuming takes it back.
pub async fn pausing_asks_every_holder(subject: &Subject) {
    let (a, b, key) = (subject.actor("a").await, subject.actor("b").await, election("e"));
    a.stand_for(&key, 2).await;
    b.stand_for(&key, 2).await;
    let tokens = [a.take(&key, 0).await, b.take(&key, 1).await];
    assert_eq!(b.store.ask(&ask(&key, tokens[0], AskKind::Resign)).await, Ok(true));
    let pause = Pause { by: "ops".into(), reason: String::new(), at_ms: 1 };
    assert_eq!(b.store.set_paused(&key, Some(&pause)).await, Ok(true));
    for (actor, slot) in [(&a, 0), (&b, 1)] {
        let token = tokens[slot as usize];
        let expected = Ask { election: key.clone(), slot, token, kind: AskKind::Pause, by: "ops".into() };
        assert_eq!(actor.asks().await, [expected]);
    }
    assert_eq!(b.store.set_paused(&key, None).await, Ok(true));
    assert!(a.asks().await.is_empty() && b.asks().await.is_empty());
}

/// What was so already is no change.
pub async fn pausing_twice_is_said(subject: &Subject) {
    let (_a, b, key, _) = led(subject).await;
    let first = Pause { by: "first".into(), reason: String::new(), at_ms: 1 };
    let second = Pause { by: "second".into(), reason: String::new(), at_ms: 2 };
    assert_eq!(b.store.set_paused(&key, None).await, Ok(false));
    assert_eq!(b.store.set_paused(&key, Some(&first)).await, Ok(true));
    assert_eq!(b.store.set_paused(&key, Some(&second)).await, Ok(false));
    assert_eq!(b.view(&key).await.paused, Some(first));
}

/// A typo is an error, not a new election.
pub async fn pausing_what_is_not_there_is_refused(subject: &Subject) {
    let (store, key) = (subject.client().await, election("none"));
    let pause = Pause { by: "ops".into(), reason: String::new(), at_ms: 1 };
    for pause in [Some(&pause), None] {
        assert_eq!(store.set_paused(&key, pause).await.unwrap_err().kind, Trouble::Request);
    }
    assert_eq!(store.election(&key).await, Ok(None));
}

async fn led(subject: &Subject) -> (Actor, Actor, ElectionKey, Token) {
    let (a, b, key) = (subject.actor("a").await, subject.actor("b").await, election("e"));
    a.stand(&key).await;
    b.stand(&key).await;
    let token = a.take(&key, 0).await;
    (a, b, key, token)
}
