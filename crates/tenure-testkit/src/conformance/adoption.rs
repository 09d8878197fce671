//! Leases that another store granted.

use tenure_core::Token;
use tenure_core::port::{
    AdoptLeaseRequest, BrokerEndpoint, ExpireSessionRequest, HeartbeatResponse, LeaderRequest,
    LeaderRequestKind, TakeLeaseRequest, broker_election,
};

use super::{StoreUnderTest, TestSession, new_id};

/// A session that adopted a lease may do everything under its token that the broker may do.
pub async fn an_adopted_lease_is_held_under_its_token(subject: &StoreUnderTest) {
    let (a, b) = (subject.session("a").await, subject.session("b").await);
    assert!(!leads(&a, 7).await, "there is no leader yet");
    assert_eq!(a.store.adopt_lease(&granted(&a, 7, "one")).await, Ok(true));
    assert!(leads(&a, 7).await);
    assert!(!leads(&a, 6).await && !leads(&a, 8).await, "only under this token");
    assert!(!leads(&b, 7).await, "only by this session");
}

/// The store rejects a grant that is older than the last grant adopted from the same store, for example from a leader
/// that was suspended between its grant and its adoption.
pub async fn an_older_grant_of_the_same_store_is_rejected(subject: &StoreUnderTest) {
    let (a, b) = (subject.session("a").await, subject.session("b").await);
    assert_eq!(b.store.adopt_lease(&granted(&b, 9, "one")).await, Ok(true));
    assert_eq!(a.store.adopt_lease(&granted(&a, 8, "one")).await, Ok(false), "an older grant");
    assert_eq!(
        a.store.adopt_lease(&granted(&a, 9, "one")).await,
        Ok(false),
        "and not the same grant by another session"
    );
    assert!(leads(&b, 9).await && !leads(&a, 8).await);
    // A newer grant of the same store replaces a live holder, because the granting store has already decided.
    assert_eq!(a.store.adopt_lease(&granted(&a, 10, "one")).await, Ok(true));
    assert!(leads(&a, 10).await && !leads(&b, 9).await);
    // Older grants stay rejected after the lease is released or the session of its holder ends.
    a.release(&broker_election(), 0, Token::from_u64(10)).await;
    assert_eq!(b.store.adopt_lease(&granted(&b, 9, "one")).await, Ok(false));
    a.store.end_session(&a.id).await.unwrap();
    assert_eq!(b.store.adopt_lease(&granted(&b, 10, "one")).await, Ok(false));
    assert_eq!(b.store.adopt_lease(&granted(&b, 11, "one")).await, Ok(true));
}

/// The store rejects a grant of another store while the holder is live, because tokens of different stores cannot be
/// compared.
pub async fn another_store_waits_until_the_lease_is_free(subject: &StoreUnderTest) {
    let (a, b) = (subject.session("a").await, subject.session("b").await);
    assert_eq!(a.store.adopt_lease(&granted(&a, 900, "one")).await, Ok(true));
    for token in [5, 900, 901] {
        assert_eq!(b.store.adopt_lease(&granted(&b, token, "two")).await, Ok(false), "{token}");
    }
    assert!(leads(&a, 900).await);
    a.release(&broker_election(), 0, Token::from_u64(900)).await;
    assert_eq!(
        b.store.adopt_lease(&granted(&b, 5, "two")).await,
        Ok(true),
        "a smaller token of another store"
    );
    assert!(leads(&b, 5).await && !leads(&a, 900).await);
    // The store still remembers the tokens that it adopted from the first store.
    b.store.end_session(&b.id).await.unwrap();
    assert_eq!(a.store.adopt_lease(&granted(&a, 900, "one")).await, Ok(false));
    assert_eq!(a.store.adopt_lease(&granted(&a, 901, "one")).await, Ok(true));
}

/// An ended session cannot hold a lease.
pub async fn a_dead_session_adopts_nothing(subject: &StoreUnderTest) {
    let (a, b) = (subject.session("a").await, subject.session("b").await);
    a.store.end_session(&a.id).await.unwrap();
    assert_eq!(a.store.adopt_lease(&granted(&a, 7, "one")).await, Ok(false));
    let unknown = AdoptLeaseRequest { session: new_id(), ..granted(&b, 7, "one") };
    assert_eq!(b.store.adopt_lease(&unknown).await, Ok(false));
    assert_eq!(b.store.adopt_lease(&granted(&b, 7, "one")).await, Ok(true));
    // Its leases are released when it ends.
    b.store.end_session(&b.id).await.unwrap();
    let c = subject.session("c").await;
    assert_eq!(c.store.adopt_lease(&granted(&c, 1, "two")).await, Ok(true));
}

/// While its holder is live, a lease granted by this store cannot be adopted, and an adopted lease cannot be taken.
pub async fn own_and_adopted_leaders_exclude_each_other(subject: &StoreUnderTest) {
    let (a, b, key) = (subject.session("a").await, subject.session("b").await, broker_election());
    a.join(&key).await;
    b.join(&key).await;
    let token = a.take(&key, 0).await;
    let greater = token.as_u64() + 100;
    assert_eq!(b.store.adopt_lease(&granted(&b, greater, "one")).await, Ok(false));
    a.release(&key, 0, token).await;
    let observed = b.take_request(&key, 0).await;
    assert_eq!(b.store.adopt_lease(&granted(&b, greater, "one")).await, Ok(true));
    assert_eq!(
        a.store.take_lease(&TakeLeaseRequest { session: a.id.clone(), ..observed }).await,
        Ok(None),
        "the observed state is outdated"
    );
    assert_eq!(
        a.store.take_lease(&a.take_request(&key, 0).await).await,
        Ok(None),
        "a live holder is not replaced"
    );
    b.store.end_session(&b.id).await.unwrap();
    assert_eq!(
        a.take(&key, 0).await,
        token.next(a.epoch),
        "tokens granted by this store continue from its own"
    );
}

/// A leader elected by another store held the lease under a smaller token, and this store then granted its own tokens a
/// second time. A store that identifies terms by token could then never grant the lease again.
pub async fn an_adoption_does_not_lower_the_stores_own_tokens(subject: &StoreUnderTest) {
    let (a, key) = (subject.session("a").await, broker_election());
    let mut own = vec![];
    for _ in 0..3 {
        a.join(&key).await;
        own.push(a.take(&key, 0).await);
        a.release(&key, 0, own[own.len() - 1]).await;
    }
    let terms = a.store.term_history(&key, 100).await.unwrap();
    // The lease is adopted and released under tokens smaller than, equal to and greater than the store's own tokens.
    for (elector, token) in [("small", 1), ("equal", own[1].as_u64()), ("great", own[2].as_u64() + 100)] {
        let b = subject.session("b").await;
        assert_eq!(b.store.adopt_lease(&granted(&b, token, elector)).await, Ok(true), "{elector}");
        assert!(leads(&b, token).await);
        assert!(
            !b.store.request_leader(&resign(&own[2])).await.unwrap(),
            "the term granted by this store is over"
        );
        b.release(&key, 0, Token::from_u64(token)).await;
        assert_eq!(a.store.term_history(&key, 100).await.unwrap(), terms, "{elector}: a term ends once");
    }
    // Two sessions adopt the lease one after the other, and `a` takes it over from the second one.
    let (b, c) = (subject.session("b").await, subject.session("c").await);
    assert_eq!(b.store.adopt_lease(&granted(&b, 2, "small")).await, Ok(true));
    assert_eq!(c.store.adopt_lease(&granted(&c, 3, "small")).await, Ok(true));
    let overbid = a.takeover_request(&key, 0).await;
    own.push(a.store.take_lease(&overbid).await.unwrap().expect("c is dead"));
    a.release(&key, 0, own[own.len() - 1]).await;
    // The session of the last holder ends, and `a` takes the free lease.
    assert_eq!(b.store.adopt_lease(&granted(&b, 4, "small")).await, Ok(true));
    b.store.end_session(&b.id).await.unwrap();
    own.push(a.take(&key, 0).await);
    assert!(own.is_sorted_by(|a, b| a < b), "{own:?}");
    // The leader can receive requests, independent of requests to earlier leaders.
    assert!(a.store.request_leader(&resign(&own[own.len() - 1])).await.unwrap());
    let Ok(HeartbeatResponse::Live { leader_requests: requests, .. }) = a.store.heartbeat(&a.id).await else {
        panic!("the session is live")
    };
    assert_eq!(requests.len(), 1);
}

fn resign(token: &Token) -> LeaderRequest {
    LeaderRequest {
        election: broker_election(),
        slot: 0,
        token: *token,
        kind: LeaderRequestKind::Resign,
        requested_by: "an operator".into(),
    }
}

/// If several sessions adopt a lease at the same time, the one with the greatest token holds it afterwards.
pub async fn of_concurrent_adoptions_the_greatest_token_wins(subject: &StoreUnderTest) {
    let mut actors = Vec::new();
    for token in 1..=8 {
        actors.push((subject.session("one of many").await, token));
    }
    let adoptions = actors.iter().map(|(session, token)| {
        let (store, adopt) = (session.store.clone(), granted(session, *token, "one"));
        tokio::spawn(async move { store.adopt_lease(&adopt).await })
    });
    let adoptions: Vec<_> = adoptions.collect();
    for adoption in adoptions {
        adoption.await.unwrap().unwrap();
    }
    for (session, token) in &actors {
        assert_eq!(leads(session, *token).await, *token == 8, "{token}");
    }
}

/// Expiring a session also releases the leases that it adopted.
pub async fn an_expiry_releases_adopted_leases(subject: &StoreUnderTest) {
    let (a, b) = (subject.session("a").await, subject.session("b").await);
    assert_eq!(a.store.adopt_lease(&granted(&a, 7, "one")).await, Ok(true));
    let beat = b.store.sessions(Some(std::slice::from_ref(&a.id))).await.unwrap()[0].heartbeat_count;
    let expire = ExpireSessionRequest { session: a.id.clone(), epoch: b.epoch, heartbeat_count: Some(beat) };
    b.store.expire_session(&expire).await.unwrap();
    assert!(!leads(&a, 7).await);
    assert_eq!(b.store.adopt_lease(&granted(&b, 1, "two")).await, Ok(true));
}

/// The lease of the broker election, granted to this session by another store.
fn granted(session: &TestSession, token: u64, by: &str) -> AdoptLeaseRequest {
    AdoptLeaseRequest {
        session: session.id.clone(),
        election: broker_election(),
        slot: 0,
        token: Token::from_u64(token),
        granted_by: by.into(),
    }
}

/// Whether this session may publish the broker endpoint, which only the leader may do.
async fn leads(session: &TestSession, token: u64) -> bool {
    let post = BrokerEndpoint {
        token: Token::from_u64(token),
        session: session.id.clone(),
        address: "127.0.0.1:1".into(),
        secret: vec![1; 32],
    };
    session.store.publish_broker_endpoint(&post).await.unwrap()
}
