//! Concurrent calls: exactly one succeeds.

use tenure_core::Token;
use tenure_core::port::{
    ElectionAdmin, ElectionStore, ExpireSessionRequest, HeartbeatResponse, ReleaseLeaseRequest, StartReason,
};

use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn of_concurrent_takes_exactly_one_succeeds() {
    let (_database, store) = fresh().await;
    let key = election("e");
    let names = ["a", "b", "c"];
    for name in names {
        joined(&store, name, &key).await;
    }
    let mut token = Token::first(1);
    for round in 0..60 {
        let takes = names.map(|name| free_take(name, &key, token));
        let (a, b, c) = tokio::join!(
            store.take_lease(&takes[0]),
            store.take_lease(&takes[1]),
            store.take_lease(&takes[2])
        );
        let won: Vec<_> =
            names.into_iter().zip([a, b, c]).filter_map(|(name, t)| Some((name, t.unwrap()?))).collect();
        let [(winner, granted)] = won[..] else { panic!("round {round}: {won:?}") };
        assert!(granted > token);
        token = granted;
        let release = ReleaseLeaseRequest {
            session: id(winner),
            election: key.clone(),
            slot: 0,
            token,
            successor: None,
            start_reason: StartReason::Release,
            leave: false,
        };
        store.release_lease(&release).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_concurrent_takeovers_exactly_one_succeeds() {
    let (_database, store) = fresh().await;
    for round in 0..40 {
        let key = election(&format!("e{round}"));
        let [dead, a, b] = ["dead", "a", "b"].map(|name| format!("{name}{round}"));
        let token = leading(&store, &dead, &key).await;
        joined(&store, &a, &key).await;
        joined(&store, &b, &key).await;
        let takes = [&a, &b].map(|name| takeover(name, &key, token, &dead, 0));
        let (a, b) = tokio::join!(store.take_lease(&takes[0]), store.take_lease(&takes[1]));
        let won = [a.unwrap(), b.unwrap()].into_iter().flatten().count();
        assert_eq!(won, 1, "round {round}");
    }
}

/// Several sessions concurrently take over the leases of one dead session, and each expires it.
#[tokio::test(flavor = "multi_thread")]
async fn takeovers_from_one_dead_session_do_not_deadlock() {
    let (_database, store) = fresh().await;
    for round in 0..10 {
        let dead = format!("dead{round}");
        let keys: Vec<_> = (0..4).map(|n| election(&format!("e{round}.{n}"))).collect();
        opened(&store, &dead).await;
        let mut takes = Vec::new();
        for (n, key) in keys.iter().enumerate() {
            store.join_election(&candidacy(&dead, key)).await.unwrap();
            let token = store.take_lease(&free_take(&dead, key, Token::first(1))).await.unwrap().unwrap();
            let taker = format!("taker{round}.{n}");
            joined(&store, &taker, key).await;
            takes.push(takeover(&taker, key, token, &dead, 0));
        }
        let takes = futures_util::future::join_all(takes.iter().map(|take| store.take_lease(take))).await;
        let won = takes.into_iter().filter(|take| take.as_ref().unwrap().is_some()).count();
        assert!(won >= 1, "round {round}");
        for key in &keys {
            let lease = store.election(key).await.unwrap().unwrap().leases.remove(0);
            assert!(lease.holder.is_none_or(|holder| holder.id != id(&dead)));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_concurrent_heartbeat_and_expiry_agree() {
    let (_database, store) = fresh().await;
    let (mut lived, mut died) = (0, 0);
    for round in 0..60 {
        let name = format!("s{round}");
        opened(&store, &name).await;
        let expire = ExpireSessionRequest { session: id(&name), epoch: 1, heartbeat_count: Some(0) };
        let session = id(&name);
        let (heartbeat, expired) = tokio::join!(store.heartbeat(&session), store.expire_session(&expire));
        expired.unwrap();
        let heartbeat_counted = heartbeat.unwrap() != HeartbeatResponse::SessionEnded;
        // Either the heartbeat was first and the expiry changed nothing, or the expiry was first and the heartbeat failed.
        let lives = store.heartbeat(&session).await.unwrap() != HeartbeatResponse::SessionEnded;
        assert_eq!(heartbeat_counted, lives, "round {round}");
        *(if lives { &mut lived } else { &mut died }) += 1;
    }
    println!("{lived} lived, {died} died");
}

/// A session that takes a lease and ends concurrently holds no lease afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn a_concurrent_take_and_session_end_leave_no_lease_held() {
    let (_database, store) = fresh().await;
    let key = election("e");
    for round in 0..60 {
        let name = format!("s{round}");
        joined(&store, &name, &key).await;
        let token = store.election(&key).await.unwrap().unwrap().leases[0].token;
        let (take, session) = (free_take(&name, &key, token), id(&name));
        let (taken, ended) = tokio::join!(store.take_lease(&take), store.end_session(&session));
        taken.and(ended).unwrap();
        let view = store.election(&key).await.unwrap().unwrap();
        assert_eq!(view.leases[0].holder, None, "round {round}");
        assert_eq!(view.candidates, []);
    }
}

/// Either the pause finds the leader and sends it a request, or there is no leader.
#[tokio::test(flavor = "multi_thread")]
async fn a_concurrent_take_and_pause_never_miss_the_leader() {
    let (_database, store) = fresh().await;
    let pause = tenure_core::port::Pause { paused_by: "op".into(), reason: String::new(), paused_at_ms: 5 };
    for round in 0..60 {
        let (key, name) = (election(&format!("e{round}")), format!("s{round}"));
        joined(&store, &name, &key).await;
        let take = free_take(&name, &key, Token::first(1));
        let (taken, paused) =
            tokio::join!(store.take_lease(&take), store.set_election_paused(&key, Some(&pause)));
        assert!(paused.unwrap());
        let requests = match store.heartbeat(&id(&name)).await.unwrap() {
            HeartbeatResponse::Live { leader_requests, .. } => leader_requests.len(),
            HeartbeatResponse::SessionEnded => panic!("session ended"),
        };
        assert_eq!(usize::from(taken.unwrap().is_some()), requests, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_continue_while_all_other_connections_wait() {
    let (database, store) = fresh().await;
    let key = election("e");
    let token = leading(&store, "a", &key).await;
    joined(&store, "b", &key).await;
    let mut lock =
        sqlx::postgres::PgPoolOptions::new().connect(database.url()).await.unwrap().begin().await.unwrap();
    sqlx::query("SELECT FROM tenure.leases FOR SHARE").execute(&mut *lock).await.unwrap();
    let take = takeover("b", &key, token, "none", 0);
    let take = tenure_core::port::TakeLeaseRequest { holder: Some(id("a")), ..take };
    let takes: Vec<_> = (0..8).map(|_| (store.clone(), take.clone())).collect();
    let takes: Vec<_> = takes
        .into_iter()
        .map(|(store, take)| tokio::spawn(async move { store.take_lease(&take).await }))
        .collect();
    until_blocked(&database, 4).await;
    let heartbeat = store.heartbeat(&id("b")).await;
    assert!(matches!(heartbeat, Ok(HeartbeatResponse::Live { .. })), "{heartbeat:?}");
    assert!(blocked(&database) > 0, "the takes still wait");
    for take in takes {
        take.abort();
    }
}
