//! Claims about sessions.

use super::{Actor, Subject, election, new_id, new_session};
use tenure_core::port::{Expire, NewSession, Pulse, Scope, Takeover, Trouble, Via};

/// Opening a session is its first beat, and every further one counts.
pub async fn a_new_session_lives_and_beats(subject: &Subject) {
    let (a, key) = (subject.actor("alpha").await, election("e"));
    a.stand(&key).await;
    let session = |view: tenure_core::port::ElectionView| view.candidates[0].session.clone();
    let before = session(a.view(&key).await);
    assert_eq!((before.id, before.name.as_str(), before.beat, before.live), (a.id.clone(), "alpha", 0, true));
    assert_eq!(before.lease_ms, 3_600_000);
    assert!(a.lives().await && a.lives().await);
    assert_eq!(session(a.view(&key).await).beat, 2);
}

/// A second session of the same id would share what the first one holds.
pub async fn an_id_is_used_once(subject: &Subject) {
    let a = subject.actor("a").await;
    let other = subject.client().await;
    assert_eq!(other.open(&new_session(&a.id, "b")).await, Ok(Pulse::Gone));
    assert!(a.lives().await, "the first one goes on");
    a.store.end(&a.id).await.unwrap();
    assert_eq!(other.open(&new_session(&a.id, "b")).await, Ok(Pulse::Gone));
}

/// What nobody opened does not beat.
pub async fn an_unknown_session_is_gone(subject: &Subject) {
    let store = subject.client().await;
    let id = new_id();
    assert_eq!(store.beat(&id).await, Ok(Pulse::Gone));
    assert_eq!(store.end(&id).await, Ok(()));
    assert_eq!(store.expire(&Expire { session: id, epoch: 0, beat: Some(0) }).await, Ok(()));
}

/// Ended is ended.
pub async fn an_ended_session_never_comes_back(subject: &Subject) {
    let a = subject.actor("a").await;
    a.store.end(&a.id).await.unwrap();
    assert!(!a.lives().await);
    a.store.end(&a.id).await.unwrap();
    assert!(!a.lives().await);
}

/// The mistake others shipped: a beat that revives what was expired.
pub async fn an_expired_session_never_comes_back(subject: &Subject) {
    let (a, b, key) = (subject.actor("a").await, subject.actor("b").await, election("e"));
    a.stand(&key).await;
    b.stand(&key).await;
    let token = a.take(&key, 0).await;
    b.expire(&a, &key).await;
    for _ in 0..3 {
        assert!(!a.lives().await);
    }
    assert!(a.view(&key).await.candidate(&a.id).is_none());
    assert!(a.lease(&key, 0).await.is_free());
    assert!(b.take(&key, 0).await > token);
}

/// The compare-and-swap on the beat.
pub async fn a_session_that_beat_since_is_not_expired(subject: &Subject) {
    let (a, b) = (subject.actor("a").await, subject.actor("b").await);
    assert!(a.lives().await);
    b.store.expire(&Expire { session: a.id.clone(), epoch: b.epoch, beat: Some(0) }).await.unwrap();
    assert!(a.lives().await);
}

/// A graceful end wakes nobody's patience: all is free at once.
pub async fn an_end_frees_everything_and_removes_the_candidates(subject: &Subject) {
    let (a, b) = holding_three(subject).await;
    a.store.end(&a.id).await.unwrap();
    all_is_free(&a, &b, Via::Release, "ended").await;
}

/// The first to expire a dead session frees all that it held.
pub async fn an_expiry_frees_everything_and_removes_the_candidates(subject: &Subject) {
    let (a, b) = holding_three(subject).await;
    b.expire(&a, &election("e0")).await;
    all_is_free(&a, &b, Via::Takeover, "expired").await;
}

/// And nothing else.
pub async fn an_expiry_leaves_the_others_alone(subject: &Subject) {
    let (a, b) = holding_three(subject).await;
    let c = subject.actor("c").await;
    let key = election("other");
    c.stand(&key).await;
    let token = c.take(&key, 0).await;
    b.expire(&a, &election("e0")).await;
    assert!(c.lives().await && b.lives().await);
    let lease = c.lease(&key, 0).await;
    assert_eq!((lease.token, lease.holder.map(|holder| holder.id)), (token, Some(c.id.clone())));
}

/// One that stands for nothing is there all the same, and one that is over is remembered for who asks for it.
pub async fn sessions_are_shown_whether_they_stand_or_not(subject: &Subject) {
    let (a, b) = (subject.actor("a").await, subject.actor("b").await);
    let client = subject.client().await;
    assert!(b.lives().await);
    b.stand_for(&election("e"), 2).await;
    let mut expected = [(a.id.clone(), "a", 0), (b.id.clone(), "b", 1)];
    expected.sort();
    let live = client.sessions(None).await.unwrap();
    let shown: Vec<_> = live.iter().map(|s| (s.id.clone(), s.name.as_str(), s.beat)).collect();
    assert_eq!(shown, expected);
    assert!(live.iter().all(|session| session.live && session.lease_ms == 3_600_000));
    a.store.end(&a.id).await.unwrap();
    let live: Vec<_> = client.sessions(None).await.unwrap().into_iter().map(|session| session.id).collect();
    assert_eq!(live, std::slice::from_ref(&b.id));
    let asked = client.sessions(Some(&[b.id.clone(), new_id(), a.id.clone()])).await.unwrap();
    let lives: Vec<_> = asked.into_iter().map(|session| (session.id, session.live)).collect();
    assert_eq!(lives, expected.map(|(id, ..)| (id.clone(), id == b.id)));
    assert_eq!(client.sessions(Some(&[])).await, Ok(Vec::new()));
}

/// A server remembers in the store on whose behalf it opened a session, for all servers.
pub async fn an_owner_is_kept_and_shown(subject: &Subject) {
    let (a, key) = (subject.actor("a").await, election("e"));
    let id = new_id();
    let session = NewSession { owner: Some("o'wner \"x\" \\".into()), ..new_session(&id, "remote") };
    let Ok(Pulse::Alive { epoch, .. }) = a.store.open(&session).await else { panic!("it lives") };
    let remote = Actor { store: a.store.clone(), id: id.clone(), epoch };
    remote.stand(&key).await;
    remote.take(&key, 0).await;
    a.stand(&key).await;
    assert!(remote.lives().await);
    let client = subject.client().await;
    let view = client.election(&key).await.unwrap().unwrap();
    let holder = view.leases[0].holder.clone().unwrap();
    assert_eq!(holder.owner, session.owner);
    assert_eq!(view.candidate(&id).unwrap().session, holder);
    assert_eq!(view.candidate(&a.id).unwrap().session.owner, None);
    assert_eq!(client.sessions(Some(std::slice::from_ref(&id))).await, Ok(vec![holder.clone()]));
    assert!(client.sessions(None).await.unwrap().contains(&holder));
    let seen = client.observe(&id, &Scope::Standing).await.unwrap().elections.remove(0);
    assert_eq!(seen.leases[0].holder.as_ref(), Some(&holder));
    assert_eq!(client.open(&session).await, Ok(Pulse::Gone), "its id is used");
}

/// The connection would be the server's, and say nothing about the owner.
pub async fn an_owner_and_a_connection_do_not_go_together(subject: &Subject) {
    let store = subject.client().await;
    let id = new_id();
    let session =
        NewSession { owner: Some("ci".into()), takeover: Takeover::Connection, ..new_session(&id, "remote") };
    let refused = store.open(&session).await.unwrap_err();
    assert_eq!(refused.kind, Trouble::Request);
    assert!(refused.message.contains("ci") && refused.message.contains("`lease`"), "{refused}");
    assert_eq!(store.sessions(Some(&[id])).await, Ok(Vec::new()));
}

async fn holding_three(subject: &Subject) -> (Actor, Actor) {
    let (a, b) = (subject.actor("a").await, subject.actor("b").await);
    for n in 0..3 {
        let key = election(&format!("e{n}"));
        a.stand(&key).await;
        b.stand(&key).await;
        a.take(&key, 0).await;
    }
    (a, b)
}

async fn all_is_free(a: &Actor, b: &Actor, via: Via, how: &str) {
    for n in 0..3 {
        let key = election(&format!("e{n}"));
        let view = b.view(&key).await;
        assert!(view.leases[0].is_free() && view.leases[0].holder.is_none());
        assert_eq!((view.leases[0].via, view.leases[0].reserved.clone()), (via, None));
        assert!(view.candidate(&a.id).is_none() && view.candidate(&b.id).is_some());
        let term = b.store.history(&key, 1).await.unwrap().remove(0);
        assert_eq!((term.session, term.end.as_deref()), (a.id.clone(), Some(how)));
        assert!(term.ended_at_ms.is_some());
        assert_eq!(b.take(&key, 0).await.as_u64(), term.token.as_u64() + 1);
    }
}
