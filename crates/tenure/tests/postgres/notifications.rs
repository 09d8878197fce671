//! Notifications with `LISTEN` and `NOTIFY`.

use std::time::Duration;

use tenure::store::postgres::{ListenState, PostgresOptions, PostgresStore};
use tenure_core::Token;
use tenure_core::port::{
    BoxNotificationSource, ElectionAdmin, ElectionStore, ExpireSessionRequest, HeartbeatResponse,
    LeaderRequest, LeaderRequestKind, Notification, Pause, ReleaseLeaseRequest, StartReason,
};
use tenure_testkit::rig::PgCluster;

use crate::support::*;

async fn next(notifications: &mut BoxNotificationSource) -> Notification {
    tokio::time::timeout(Duration::from_secs(20), notifications.next())
        .await
        .expect("a notification")
        .expect("the source does not end")
}

pub(crate) async fn wait_for(notifications: &mut BoxNotificationSource, wanted: &Notification) {
    while next(notifications).await != *wanted {}
}

pub(crate) async fn listening(store: &PostgresStore) -> BoxNotificationSource {
    let mut notifications = store.notifications();
    wait_for(&mut notifications, &Notification::Resync).await;
    until_active(store).await;
    notifications
}

async fn until_active(store: &PostgresStore) {
    for _ in 0..200 {
        if store.listen_state() == ListenState::Active {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{:?}", store.listen_state());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_change_notifies_other_processes() {
    let (database, store) = fresh().await;
    let other = PostgresStore::connect(PostgresOptions::new(database.url())).await.unwrap();
    let mut notifications = listening(&other).await;
    let key = election("e");
    let changed = Notification::ElectionChanged(key.clone());
    joined(&store, "a", &key).await;
    wait_for(&mut notifications, &changed).await;
    let token = store.take_lease(&free_take("a", &key, Token::first(1))).await.unwrap().unwrap();
    wait_for(&mut notifications, &changed).await;
    let request = LeaderRequest {
        election: key.clone(),
        slot: 0,
        token,
        kind: LeaderRequestKind::Resign,
        requested_by: "op".into(),
    };
    assert!(store.request_leader(&request).await.unwrap());
    wait_for(&mut notifications, &Notification::LeaderRequested(id("a"))).await;
    let response = store.heartbeat(&id("a")).await.unwrap();
    assert!(
        matches!(response, HeartbeatResponse::Live { leader_requests, .. } if leader_requests == [request])
    );
    let release = ReleaseLeaseRequest {
        session: id("a"),
        election: key.clone(),
        slot: 0,
        token,
        successor: Some(id("b")),
        start_reason: StartReason::Resign,
        leave: false,
    };
    store.release_lease(&release).await.unwrap();
    let released = Notification::LeaseReleased {
        election: key.clone(),
        slot: 0,
        token,
        released_by: id("a"),
        successor: Some(id("b")),
        start_reason: StartReason::Resign,
    };
    wait_for(&mut notifications, &released).await;
    let token = store.take_lease(&free_take("a", &key, token)).await.unwrap().unwrap();
    wait_for(&mut notifications, &changed).await;
    let pause = Pause { paused_by: "op".into(), reason: "r".into(), paused_at_ms: 1 };
    assert!(store.set_election_paused(&key, Some(&pause)).await.unwrap());
    wait_for(&mut notifications, &Notification::LeaderRequested(id("a"))).await;
    wait_for(&mut notifications, &changed).await;
    assert!(!store.set_election_paused(&key, Some(&pause)).await.unwrap());
    assert_eq!(store.take_lease(&takeover("a", &key, token, "a", 1)).await.unwrap(), None);
    opened(&store, "z").await;
    store.end_session(&id("z")).await.unwrap();
    wait_for(&mut notifications, &Notification::SessionEnded(id("z"))).await;
    joined(&store, "d", &key).await;
    store
        .expire_session(&ExpireSessionRequest { session: id("d"), epoch: 1, heartbeat_count: Some(0) })
        .await
        .unwrap();
    wait_for(&mut notifications, &changed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_reconnect_the_source_reports_a_resync() {
    let cluster = PgCluster::start().unwrap();
    let store = migrated(&cluster.url()).await;
    let mut notifications = listening(&store).await;
    cluster.restart().unwrap();
    wait_for(&mut notifications, &Notification::Resync).await;
    until_active(&store).await;
    let key = election("e");
    opened(&store, "a").await;
    store.join_election(&candidacy("a", &key)).await.unwrap();
    wait_for(&mut notifications, &Notification::ElectionChanged(key)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn notifications_reserved_for_the_own_process_are_ignored_from_others() {
    let (database, store) = fresh().await;
    let mut notifications = listening(&store).await;
    for payload in [r#"{"session_expired":"a"}"#, r#"{"connection_lost":"a"}"#, r#""resync""#, "nonsense"] {
        database.psql(&format!("SELECT pg_notify('tenure_notify', '{payload}')")).unwrap();
    }
    database.psql(r#"SELECT pg_notify('tenure_notify', '{"leader_requested":"a"}')"#).unwrap();
    assert_eq!(next(&mut notifications).await, Notification::LeaderRequested(id("a")));
}
