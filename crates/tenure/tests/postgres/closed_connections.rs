//! Idle connections closed by the server.

use std::time::Duration;

use tenure::store::postgres::{PostgresOptions, PostgresStore};
use tenure_core::port::{
    AccessStore, ElectionAdmin, ElectionStore, EventAdmin, EventStore, HeartbeatResponse, NewEvent,
    ObserveScope, ReleaseLeaseRequest, ScheduleAdmin, ScheduleFilter, StartReason, TaskAdmin, TaskStore,
    TopicSettings,
};
use tenure_testkit::rig::{PgCluster, PgStandby, free_port};

use crate::claims::{claim_request, claimed, completed, submission, tasks};
use crate::events::topic;
use crate::support::*;

/// One call of each kind, and so on each connection pool. None may fail.
async fn every_kind(store: &PostgresStore, session: &str, round: u32) {
    assert!(matches!(store.heartbeat(&id(session)).await.unwrap(), HeartbeatResponse::Live { .. }));
    store.observe(&id(session), &ObserveScope::Own).await.unwrap();
    let key = election(&format!("e{round}"));
    assert_eq!(
        store.join_election(&candidacy(session, &key)).await.unwrap(),
        tenure_core::port::JoinElectionResponse::Joined
    );
    let token = store.election(&key).await.unwrap().unwrap().leases[0].token;
    let token = store.take_lease(&free_take(session, &key, token)).await.unwrap().unwrap();
    let release = ReleaseLeaseRequest {
        session: id(session),
        election: key,
        slot: 0,
        token,
        successor: None,
        start_reason: StartReason::Release,
        leave: true,
    };
    store.release_lease(&release).await.unwrap();
    store.submit(&submission("q", tasks(1))).await.unwrap();
    let task = claimed(store, "q", claim_request(session, 1)).await.remove(0);
    store.settle(&[completed(&task)]).await.unwrap();
    store.publish(&topic("t"), &[NewEvent::new("test")]).await.unwrap();
    store.queues(None).await.unwrap();
    store.topic_names(None).await.unwrap();
    store.credentials().await.unwrap();
    store.schedules(&ScheduleFilter::default()).await.unwrap();
}

/// Regression test: after a restart of the server or an `idle_session_timeout`, the first calls on pooled connections failed.
#[tokio::test(flavor = "multi_thread")]
async fn closed_idle_connections_are_replaced() {
    let cluster = PgCluster::start().unwrap();
    let store = migrated(&cluster.url()).await;
    store.set_topic(&topic("t"), &TopicSettings { partitions: 1, ..TopicSettings::default() }).await.unwrap();
    opened(&store, "s").await;
    every_kind(&store, "s", 0).await;
    for round in 1..4 {
        assert!(cluster.terminate_backends("postgres").unwrap() > 0);
        every_kind(&store, "s", round).await;
    }
    cluster.restart().unwrap();
    every_kind(&store, "s", 4).await;
    cluster.kill9().unwrap();
    cluster.start_again().unwrap();
    every_kind(&store, "s", 5).await;
    // Connect to another database, so that the timeout does not close the connections of the test itself.
    cluster.psql("template1", "ALTER DATABASE postgres SET idle_session_timeout = 1000").unwrap();
    cluster.terminate_backends("postgres").unwrap();
    every_kind(&store, "s", 6).await;
    for round in 7..9 {
        // Wait until the server has closed all connections of the store.
        let left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tenure'";
        while cluster.psql("template1", left).unwrap() != "0" {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        every_kind(&store, "s", round).await;
    }
}

/// The server closes connections at any time. The outcome of a failed call is unknown, and a call that the store repeats must
/// not be executed twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_call_is_executed_once() {
    let cluster = PgCluster::start().unwrap();
    let store = migrated(&cluster.url()).await;
    let kill =
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'tenure'";
    let done = std::sync::atomic::AtomicBool::new(false);
    let calls = async {
        let (mut succeeded, mut unknown) = (0, 0);
        for _ in 0..300 {
            match store.submit(&submission("q", tasks(1))).await {
                Ok(_) => succeeded += 1,
                Err(_) => unknown += 1,
            }
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        (succeeded, unknown)
    };
    let kills = async {
        while !done.load(std::sync::atomic::Ordering::Relaxed) {
            tokio::task::block_in_place(|| cluster.psql("template1", kill)).unwrap();
            tokio::task::yield_now().await;
        }
    };
    let ((succeeded, unknown), ()) = tokio::join!(calls, kills);
    let stored: u32 = cluster.psql("postgres", "SELECT count(*) FROM tenure.tasks").unwrap().parse().unwrap();
    println!("{succeeded} succeeded, {unknown} unknown, {stored} stored");
    assert!(
        (succeeded..=succeeded + unknown).contains(&stored),
        "{succeeded} succeeded, {unknown} unknown, {stored} stored"
    );
}

/// Prepared statements of a connection may be lost, or may no longer match the tables.
#[tokio::test(flavor = "multi_thread")]
async fn stale_prepared_statements_are_prepared_again() {
    let cluster = PgCluster::start().unwrap();
    let store = migrated(&cluster.url()).await;
    store.set_topic(&topic("t"), &TopicSettings::default()).await.unwrap();
    for kind in ["text", "varchar", "text"] {
        // The result of a statement changes its type.
        cluster
            .psql("postgres", &format!("ALTER TABLE tenure.topics ALTER COLUMN name TYPE {kind}"))
            .unwrap();
        for _ in 0..3 {
            assert_eq!(store.topic_names(None).await.unwrap(), [topic("t")]);
        }
    }
}

/// Several hosts: one is down, one is a standby, one is the primary.
#[tokio::test(flavor = "multi_thread")]
async fn hosts_are_tried_until_one_has_the_requested_role() {
    let primary = PgCluster::start().unwrap();
    migrated(&primary.url()).await;
    let standby = PgStandby::of(&primary).unwrap();
    let dead = free_port().unwrap();
    let hosts =
        format!("127.0.0.1:{dead},127.0.0.1:{},127.0.0.1:{}", standby.cluster().port(), primary.port());
    let url = |attrs: &str| format!("postgres://postgres@{hosts}/postgres?target_session_attrs={attrs}");
    for attrs in ["read-write", "primary"] {
        let store = PostgresStore::connect(PostgresOptions::new(url(attrs))).await.unwrap();
        opened(&store, attrs).await;
        // The user's pool connects to the same host as the store.
        let row = sqlx::raw_sql("SELECT inet_server_port()").fetch_one(store.pool()).await.unwrap();
        assert_eq!(sqlx::Row::get::<i32, _>(&row, 0), i32::from(primary.port()));
    }
    for attrs in ["any", "read-only", "standby", "prefer-standby"] {
        let error = PostgresStore::connect(PostgresOptions::new(url(attrs)))
            .await
            .err()
            .expect("a standby is read-only");
        assert!(error.message.contains("standby"), "{error}");
    }
    standby.cluster().stop().unwrap();
    let store = PostgresStore::connect(PostgresOptions::new(url("prefer-standby"))).await.unwrap();
    opened(&store, "preferred").await;
    let error = PostgresStore::connect(PostgresOptions::new(url("standby")))
        .await
        .err()
        .expect("the standby is stopped");
    assert!(error.message.contains("target_session_attrs=standby"), "{error}");
    // Keywords, and addresses without name resolution.
    let words = format!(
        "host=one.invalid,two.invalid hostaddr=127.0.0.1,127.0.0.1 port={dead},{} user=postgres dbname=postgres \
         sslmode=disable connect_timeout=2",
        primary.port()
    );
    let store = PostgresStore::connect(PostgresOptions::new(words)).await.unwrap();
    opened(&store, "by address").await;
}
