//! Claims about leases that were granted elsewhere and are held here.

use tenure_core::Token;
use tenure_core::port::{Adopt, Ask, AskKind, Expire, Post, Pulse, Take, claims_election};

use super::{Actor, Subject, new_id};

/// An adopted lease is held as if it had been taken: what the claims' leader alone may do, its session does under its token.
pub async fn an_adopted_lease_is_held_under_its_token(subject: &Subject) {
    let (a, b) = (subject.actor("a").await, subject.actor("b").await);
    assert!(!leads(&a, 7).await, "nobody leads yet");
    assert_eq!(a.store.adopt(&granted(&a, 7, "one")).await, Ok(true));
    assert!(leads(&a, 7).await);
    assert!(!leads(&a, 6).await && !leads(&a, 8).await, "under this token and no other");
    assert!(!leads(&b, 7).await, "by this session and no other");
}

/// A leader that was stopped between its grant and its adoption comes too late.
pub async fn an_older_grant_of_the_same_elector_is_refused(subject: &Subject) {
    let (a, b) = (subject.actor("a").await, subject.actor("b").await);
    assert_eq!(b.store.adopt(&granted(&b, 9, "one")).await, Ok(true));
    assert_eq!(a.store.adopt(&granted(&a, 8, "one")).await, Ok(false), "an older one");
    assert_eq!(a.store.adopt(&granted(&a, 9, "one")).await, Ok(false), "nor the same one by another");
    assert!(leads(&b, 9).await && !leads(&a, 8).await);
    // The next one need not wait for the last: the elector says that it leads.
    assert_eq!(a.store.adopt(&granted(&a, 10, "one")).await, Ok(true));
    assert!(leads(&a, 10).await && !leads(&b, 9).await);
    // Not even after it was given back, or its holder has ended.
    a.release(&claims_election(), 0, Token::from_u64(10)).await;
    assert_eq!(b.store.adopt(&granted(&b, 9, "one")).await, Ok(false));
    a.store.end(&a.id).await.unwrap();
    assert_eq!(b.store.adopt(&granted(&b, 10, "one")).await, Ok(false));
    assert_eq!(b.store.adopt(&granted(&b, 11, "one")).await, Ok(true));
}

/// Tokens of different electors do not compare: who was elected by another one must be gone.
pub async fn another_elector_waits_until_the_lease_is_free(subject: &Subject) {
    let (a, b) = (subject.actor("a").await, subject.actor("b").await);
    assert_eq!(a.store.adopt(&granted(&a, 900, "one")).await, Ok(true));
    for token in [5, 900, 901] {
        assert_eq!(b.store.adopt(&granted(&b, token, "two")).await, Ok(false), "{token}");
    }
    assert!(leads(&a, 900).await);
    a.release(&claims_election(), 0, Token::from_u64(900)).await;
    assert_eq!(b.store.adopt(&granted(&b, 5, "two")).await, Ok(true), "a smaller token of another");
    assert!(leads(&b, 5).await && !leads(&a, 900).await);
    // What the first one granted is remembered, however long ago that was.
    b.store.end(&b.id).await.unwrap();
    assert_eq!(a.store.adopt(&granted(&a, 900, "one")).await, Ok(false));
    assert_eq!(a.store.adopt(&granted(&a, 901, "one")).await, Ok(true));
}

/// A session that is over here holds nothing here.
pub async fn a_dead_session_adopts_nothing(subject: &Subject) {
    let (a, b) = (subject.actor("a").await, subject.actor("b").await);
    a.store.end(&a.id).await.unwrap();
    assert_eq!(a.store.adopt(&granted(&a, 7, "one")).await, Ok(false));
    let unknown = Adopt { session: new_id(), ..granted(&b, 7, "one") };
    assert_eq!(b.store.adopt(&unknown).await, Ok(false));
    assert_eq!(b.store.adopt(&granted(&b, 7, "one")).await, Ok(true));
    // And what it held is free when it ends.
    b.store.end(&b.id).await.unwrap();
    let c = subject.actor("c").await;
    assert_eq!(c.store.adopt(&granted(&c, 1, "two")).await, Ok(true));
}

/// Who was elected here is not put out of office by who was elected elsewhere, nor the other way round.
pub async fn electing_here_and_elsewhere_exclude_each_other(subject: &Subject) {
    let (a, b, key) = (subject.actor("a").await, subject.actor("b").await, claims_election());
    a.stand(&key).await;
    b.stand(&key).await;
    let token = a.take(&key, 0).await;
    let greater = token.as_u64() + 100;
    assert_eq!(b.store.adopt(&granted(&b, greater, "one")).await, Ok(false));
    a.release(&key, 0, token).await;
    let seen = b.bid(&key, 0).await;
    assert_eq!(b.store.adopt(&granted(&b, greater, "one")).await, Ok(true));
    assert_eq!(
        a.store.take(&Take { session: a.id.clone(), ..seen }).await,
        Ok(None),
        "what was seen is no more"
    );
    assert_eq!(
        a.store.take(&a.bid(&key, 0).await).await,
        Ok(None),
        "a live holder is not taken over by asking"
    );
    b.store.end(&b.id).await.unwrap();
    assert_eq!(
        a.take(&key, 0).await,
        token.next(a.epoch),
        "tokens granted here go on from those granted here"
    );
}

/// A leader that another elector elected held the lease under a smaller token, and the store then granted its own tokens a second
/// time; where each term is kept under its token, it could never grant one again.
pub async fn an_adoption_does_not_lower_the_stores_own_tokens(subject: &Subject) {
    let (a, key) = (subject.actor("a").await, claims_election());
    let mut own = vec![];
    for _ in 0..3 {
        a.stand(&key).await;
        own.push(a.take(&key, 0).await);
        a.release(&key, 0, own[own.len() - 1]).await;
    }
    let terms = a.store.history(&key, 100).await.unwrap();
    // Adopted and given back, under tokens smaller than, equal to and greater than the store's own.
    for (elector, token) in [("small", 1), ("equal", own[1].as_u64()), ("great", own[2].as_u64() + 100)] {
        let b = subject.actor("b").await;
        assert_eq!(b.store.adopt(&granted(&b, token, elector)).await, Ok(true), "{elector}");
        assert!(leads(&b, token).await);
        assert!(!b.store.ask(&resign(&own[2])).await.unwrap(), "what was granted here is over");
        b.release(&key, 0, Token::from_u64(token)).await;
        assert_eq!(a.store.history(&key, 100).await.unwrap(), terms, "{elector}: a term ends once");
    }
    // Of a holder that is dead, and of two that follow each other.
    let (b, c) = (subject.actor("b").await, subject.actor("c").await);
    assert_eq!(b.store.adopt(&granted(&b, 2, "small")).await, Ok(true));
    assert_eq!(c.store.adopt(&granted(&c, 3, "small")).await, Ok(true));
    let overbid = a.overbid(&key, 0).await;
    own.push(a.store.take(&overbid).await.unwrap().expect("c is dead"));
    a.release(&key, 0, own[own.len() - 1]).await;
    // Of one whose session ended.
    assert_eq!(b.store.adopt(&granted(&b, 4, "small")).await, Ok(true));
    b.store.end(&b.id).await.unwrap();
    own.push(a.take(&key, 0).await);
    assert!(own.is_sorted_by(|a, b| a < b), "{own:?}");
    // And the leader can be asked, whatever was asked of those before it.
    assert!(a.store.ask(&resign(&own[own.len() - 1])).await.unwrap());
    let Ok(Pulse::Alive { asks, .. }) = a.store.beat(&a.id).await else { panic!("it lives") };
    assert_eq!(asks.len(), 1);
}

fn resign(token: &Token) -> Ask {
    Ask { election: claims_election(), slot: 0, token: *token, kind: AskKind::Resign, by: "a person".into() }
}

/// Of concurrent adoptions the greatest token stays.
pub async fn of_concurrent_adoptions_the_last_grant_stays(subject: &Subject) {
    let mut actors = Vec::new();
    for token in 1..=8 {
        actors.push((subject.actor("one of many").await, token));
    }
    let adoptions = actors.iter().map(|(actor, token)| {
        let (store, adopt) = (actor.store.clone(), granted(actor, *token, "one"));
        tokio::spawn(async move { store.adopt(&adopt).await })
    });
    let adoptions: Vec<_> = adoptions.collect();
    for adoption in adoptions {
        adoption.await.unwrap().unwrap();
    }
    for (actor, token) in &actors {
        assert_eq!(leads(actor, *token).await, *token == 8, "{token}");
    }
}

/// An expiry frees what was adopted, as it frees everything.
pub async fn an_expiry_frees_what_was_adopted(subject: &Subject) {
    let (a, b) = (subject.actor("a").await, subject.actor("b").await);
    assert_eq!(a.store.adopt(&granted(&a, 7, "one")).await, Ok(true));
    let beat = b.store.sessions(Some(std::slice::from_ref(&a.id))).await.unwrap()[0].beat;
    let expire = Expire { session: a.id.clone(), epoch: b.epoch, beat: Some(beat) };
    b.store.expire(&expire).await.unwrap();
    assert!(!leads(&a, 7).await);
    assert_eq!(b.store.adopt(&granted(&b, 1, "two")).await, Ok(true));
}

/// The claims' election, granted to this session by an elector.
fn granted(actor: &Actor, token: u64, by: &str) -> Adopt {
    Adopt {
        session: actor.id.clone(),
        election: claims_election(),
        slot: 0,
        token: Token::from_u64(token),
        by: by.into(),
    }
}

/// Whether this session may say where the claims' leader is: only the leader may.
async fn leads(actor: &Actor, token: u64) -> bool {
    let post = Post {
        token: Token::from_u64(token),
        session: actor.id.clone(),
        address: "127.0.0.1:1".into(),
        secret: vec![1; 32],
    };
    actor.store.put_post(&post).await.unwrap()
}
