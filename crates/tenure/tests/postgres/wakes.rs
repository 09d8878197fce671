//! Hints, over `LISTEN` and `NOTIFY`.

use std::time::Duration;

use tenure::backend::postgres::{ListenState, Postgres, PostgresOptions};
use tenure_core::Token;
use tenure_core::port::{Ask, AskKind, Directory, Expire, Pause, Pulse, Release, Store, Via, Wake, Wakes};
use tenure_testkit::rig::PgCluster;

use crate::support::*;

async fn next(wakes: &mut Wakes) -> Wake {
    tokio::time::timeout(Duration::from_secs(20), wakes.next()).await.expect("a hint").expect("no end")
}

pub(crate) async fn until(wakes: &mut Wakes, wanted: &Wake) {
    while next(wakes).await != *wanted {}
}

pub(crate) async fn hearing(store: &Postgres) -> Wakes {
    let mut wakes = store.wakes();
    until(&mut wakes, &Wake::Resync).await;
    hears(store).await;
    wakes
}

async fn hears(store: &Postgres) {
    for _ in 0..200 {
        if store.listening() == ListenState::Hearing {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{:?}", store.listening());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_change_wakes_the_others() {
    let (database, store) = fresh().await;
    let other = Postgres::connect(PostgresOptions::new(database.url())).await.unwrap();
    let mut wakes = hearing(&other).await;
    let key = election("e");
    let changed = Wake::Changed(key.clone());
    standing(&store, "a", &key).await;
    until(&mut wakes, &changed).await;
    let token = store.take(&free_take("a", &key, Token::first(1))).await.unwrap().unwrap();
    until(&mut wakes, &changed).await;
    let ask = Ask { election: key.clone(), slot: 0, token, kind: AskKind::Resign, by: "op".into() };
    assert!(store.ask(&ask).await.unwrap());
    until(&mut wakes, &Wake::Asked(id("a"))).await;
    let pulse = store.beat(&id("a")).await.unwrap();
    assert!(matches!(pulse, Pulse::Alive { asks, .. } if asks == [ask]));
    let release = Release {
        session: id("a"),
        election: key.clone(),
        slot: 0,
        token,
        successor: Some(id("b")),
        via: Via::Resign,
        leave: false,
    };
    store.release(&release).await.unwrap();
    let (slot, by, successor, via) = (0, id("a"), Some(id("b")), Via::Resign);
    until(&mut wakes, &Wake::Released { election: key.clone(), slot, token, by, successor, via }).await;
    let token = store.take(&free_take("a", &key, token)).await.unwrap().unwrap();
    until(&mut wakes, &changed).await;
    let pause = Pause { by: "op".into(), reason: "r".into(), at_ms: 1 };
    assert!(store.set_paused(&key, Some(&pause)).await.unwrap());
    until(&mut wakes, &Wake::Asked(id("a"))).await;
    until(&mut wakes, &changed).await;
    assert!(!store.set_paused(&key, Some(&pause)).await.unwrap());
    assert_eq!(store.take(&take_over("a", &key, token, "a", 1)).await.unwrap(), None);
    opened(&store, "z").await;
    store.end(&id("z")).await.unwrap();
    until(&mut wakes, &Wake::Ended(id("z"))).await;
    standing(&store, "d", &key).await;
    store.expire(&Expire { session: id("d"), epoch: 1, beat: Some(0) }).await.unwrap();
    until(&mut wakes, &changed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_connection_is_made_again_and_says_so() {
    let cluster = PgCluster::start().unwrap();
    let store = migrated(&cluster.url()).await;
    let mut wakes = hearing(&store).await;
    cluster.restart().unwrap();
    until(&mut wakes, &Wake::Resync).await;
    hears(&store).await;
    let key = election("e");
    opened(&store, "a").await;
    store.join(&candidacy("a", &key)).await.unwrap();
    until(&mut wakes, &Wake::Changed(key)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_only_a_process_may_tell_itself_is_not_believed_from_others() {
    let (database, store) = fresh().await;
    let mut wakes = hearing(&store).await;
    for lie in [r#"{"died":"a"}"#, r#"{"severed":"a"}"#, r#""resync""#, "nonsense"] {
        database.psql(&format!("SELECT pg_notify('tenure_wake', '{lie}')")).unwrap();
    }
    database.psql(r#"SELECT pg_notify('tenure_wake', '{"asked":"a"}')"#).unwrap();
    assert_eq!(next(&mut wakes).await, Wake::Asked(id("a")));
}
