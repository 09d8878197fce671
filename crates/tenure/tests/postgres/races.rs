//! Two at once: exactly one wins.

use tenure_core::Token;
use tenure_core::port::{Directory, Expire, Pulse, Release, Store, Via};

use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn of_two_takers_exactly_one_wins() {
    let (_database, store) = fresh().await;
    let key = election("e");
    let names = ["a", "b", "c"];
    for name in names {
        standing(&store, name, &key).await;
    }
    let mut token = Token::first(1);
    for round in 0..60 {
        let takes = names.map(|name| free_take(name, &key, token));
        let (a, b, c) = tokio::join!(store.take(&takes[0]), store.take(&takes[1]), store.take(&takes[2]));
        let won: Vec<_> =
            names.into_iter().zip([a, b, c]).filter_map(|(name, t)| Some((name, t.unwrap()?))).collect();
        let [(winner, granted)] = won[..] else { panic!("round {round}: {won:?}") };
        assert!(granted > token);
        token = granted;
        let release = Release {
            session: id(winner),
            election: key.clone(),
            slot: 0,
            token,
            successor: None,
            via: Via::Release,
            leave: false,
        };
        store.release(&release).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_who_take_over_from_the_dead_exactly_one_wins() {
    let (_database, store) = fresh().await;
    for round in 0..40 {
        let key = election(&format!("e{round}"));
        let [dead, a, b] = ["dead", "a", "b"].map(|name| format!("{name}{round}"));
        let token = leading(&store, &dead, &key).await;
        standing(&store, &a, &key).await;
        standing(&store, &b, &key).await;
        let takes = [&a, &b].map(|name| take_over(name, &key, token, &dead, 0));
        let (a, b) = tokio::join!(store.take(&takes[0]), store.take(&takes[1]));
        let won = [a.unwrap(), b.unwrap()].into_iter().flatten().count();
        assert_eq!(won, 1, "round {round}");
    }
}

/// One session held many leases and died; others take them over at the same time, each expiring it.
#[tokio::test(flavor = "multi_thread")]
async fn take_overs_of_one_dead_session_do_not_deadlock() {
    let (_database, store) = fresh().await;
    for round in 0..10 {
        let dead = format!("dead{round}");
        let keys: Vec<_> = (0..4).map(|n| election(&format!("e{round}.{n}"))).collect();
        opened(&store, &dead).await;
        let mut takes = Vec::new();
        for (n, key) in keys.iter().enumerate() {
            store.join(&candidacy(&dead, key)).await.unwrap();
            let token = store.take(&free_take(&dead, key, Token::first(1))).await.unwrap().unwrap();
            let taker = format!("taker{round}.{n}");
            standing(&store, &taker, key).await;
            takes.push(take_over(&taker, key, token, &dead, 0));
        }
        let takes = futures_util::future::join_all(takes.iter().map(|take| store.take(take))).await;
        let won = takes.into_iter().filter(|take| take.as_ref().unwrap().is_some()).count();
        assert!(won >= 1, "round {round}");
        for key in &keys {
            let lease = store.election(key).await.unwrap().unwrap().leases.remove(0);
            assert!(lease.holder.is_none_or(|holder| holder.id != id(&dead)));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_beat_and_its_expiry_at_once_agree() {
    let (_database, store) = fresh().await;
    let (mut lived, mut died) = (0, 0);
    for round in 0..60 {
        let name = format!("s{round}");
        opened(&store, &name).await;
        let expire = Expire { session: id(&name), epoch: 1, beat: Some(0) };
        let session = id(&name);
        let (beat, expired) = tokio::join!(store.beat(&session), store.expire(&expire));
        expired.unwrap();
        let beat_counted = beat.unwrap() != Pulse::Gone;
        // Either the beat came first and the compare-and-swap failed, or the expiry did and the beat found nothing.
        let lives = store.beat(&session).await.unwrap() != Pulse::Gone;
        assert_eq!(beat_counted, lives, "round {round}");
        *(if lives { &mut lived } else { &mut died }) += 1;
    }
    println!("{lived} lived, {died} died");
}

/// A take in the name of a session and that session's end: no lease is left to the dead.
#[tokio::test(flavor = "multi_thread")]
async fn a_take_and_its_sessions_end_at_once_leave_nothing_held() {
    let (_database, store) = fresh().await;
    let key = election("e");
    for round in 0..60 {
        let name = format!("s{round}");
        standing(&store, &name, &key).await;
        let token = store.election(&key).await.unwrap().unwrap().leases[0].token;
        let (take, session) = (free_take(&name, &key, token), id(&name));
        let (taken, ended) = tokio::join!(store.take(&take), store.end(&session));
        taken.and(ended).unwrap();
        let view = store.election(&key).await.unwrap().unwrap();
        assert_eq!(view.leases[0].holder, None, "round {round}");
        assert_eq!(view.candidates, []);
    }
}

/// A take and a pause: either the pause finds the leader and asks it, or there is no leader.
#[tokio::test(flavor = "multi_thread")]
async fn a_take_and_a_pause_at_once_never_leave_a_leader_unasked() {
    let (_database, store) = fresh().await;
    let pause = tenure_core::port::Pause { by: "op".into(), reason: String::new(), at_ms: 5 };
    for round in 0..60 {
        let (key, name) = (election(&format!("e{round}")), format!("s{round}"));
        standing(&store, &name, &key).await;
        let take = free_take(&name, &key, Token::first(1));
        let (taken, paused) = tokio::join!(store.take(&take), store.set_paused(&key, Some(&pause)));
        assert!(paused.unwrap());
        let asks = match store.beat(&id(&name)).await.unwrap() {
            Pulse::Alive { asks, .. } => asks.len(),
            Pulse::Gone => panic!("gone"),
        };
        assert_eq!(usize::from(taken.unwrap().is_some()), asks, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn beats_go_on_while_every_other_connection_waits() {
    let (database, store) = fresh().await;
    let key = election("e");
    let token = leading(&store, "a", &key).await;
    standing(&store, "b", &key).await;
    let mut lock =
        sqlx::postgres::PgPoolOptions::new().connect(database.url()).await.unwrap().begin().await.unwrap();
    sqlx::query("SELECT FROM tenure.leases FOR SHARE").execute(&mut *lock).await.unwrap();
    let take = take_over("b", &key, token, "nobody", 0);
    let take = tenure_core::port::Take { holder: Some(id("a")), ..take };
    let takes: Vec<_> = (0..8).map(|_| (store.clone(), take.clone())).collect();
    let takes: Vec<_> =
        takes.into_iter().map(|(store, take)| tokio::spawn(async move { store.take(&take).await })).collect();
    until_blocked(&database, 4).await;
    let beat = store.beat(&id("b")).await;
    assert!(matches!(beat, Ok(Pulse::Alive { .. })), "{beat:?}");
    assert!(blocked(&database) > 0, "the takes were still waiting");
    for take in takes {
        take.abort();
    }
}
