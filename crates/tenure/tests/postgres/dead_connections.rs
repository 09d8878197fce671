//! Connections that the server closed while nobody used them.

use std::time::Duration;

use tenure::backend::postgres::{Postgres, PostgresOptions};
use tenure_core::port::{
    Bureau, Calendar, Desk, Directory, Events, NewEvent, Office, Pulse, Release, ScheduleFilter, Scope,
    Store, Tasks, TopicSettings, Via,
};
use tenure_testkit::rig::{PgCluster, PgStandby, free_port};

use crate::claims::{claimed, completed, seat, submission, tasks};
use crate::events::topic;
use crate::support::*;

/// One call of each kind, so on each kind of connection. None may fail.
async fn every_kind(store: &Postgres, session: &str, round: u32) {
    assert!(matches!(store.beat(&id(session)).await.unwrap(), Pulse::Alive { .. }));
    store.observe(&id(session), &Scope::Standing).await.unwrap();
    let key = election(&format!("e{round}"));
    assert_eq!(store.join(&candidacy(session, &key)).await.unwrap(), tenure_core::port::Joined::Standing);
    let token = store.election(&key).await.unwrap().unwrap().leases[0].token;
    let token = store.take(&free_take(session, &key, token)).await.unwrap().unwrap();
    let release = Release {
        session: id(session),
        election: key,
        slot: 0,
        token,
        successor: None,
        via: Via::Release,
        leave: true,
    };
    store.release(&release).await.unwrap();
    store.submit(&submission("q", tasks(1))).await.unwrap();
    let task = claimed(store, "q", seat(session, 1)).await.remove(0);
    store.settle(&[completed(&task)]).await.unwrap();
    store.publish(&topic("t"), &[NewEvent::new("test")]).await.unwrap();
    store.queues(None).await.unwrap();
    store.topic_names(None).await.unwrap();
    store.credentials().await.unwrap();
    store.schedules(&ScheduleFilter::default()).await.unwrap();
}

/// After a restart of the server, or when `idle_session_timeout` had closed them, the first calls on pooled connections failed.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_were_closed_while_idle_are_replaced() {
    let cluster = PgCluster::start().unwrap();
    let store = migrated(&cluster.url()).await;
    store.set_topic(&topic("t"), &TopicSettings { slots: 1, ..TopicSettings::default() }).await.unwrap();
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
    // From another database: the rig's own connections are to live.
    cluster.psql("template1", "ALTER DATABASE postgres SET idle_session_timeout = 1000").unwrap();
    cluster.terminate_backends("postgres").unwrap();
    every_kind(&store, "s", 6).await;
    for round in 7..9 {
        // Until all are gone: each has been idle for long enough then.
        let left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tenure'";
        while cluster.psql("template1", left).unwrap() != "0" {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        every_kind(&store, "s", round).await;
    }
}

/// The server ends connections at any moment. A call that fails then must not have happened, or its outcome is not known; a call
/// that is made once more must not happen twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_repeated_happens_once() {
    let cluster = PgCluster::start().unwrap();
    let store = migrated(&cluster.url()).await;
    let kill =
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'tenure'";
    let done = std::sync::atomic::AtomicBool::new(false);
    let calls = async {
        let (mut sure, mut unknown) = (0, 0);
        for _ in 0..300 {
            match store.submit(&submission("q", tasks(1))).await {
                Ok(_) => sure += 1,
                Err(_) => unknown += 1,
            }
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        (sure, unknown)
    };
    let kills = async {
        while !done.load(std::sync::atomic::Ordering::Relaxed) {
            tokio::task::block_in_place(|| cluster.psql("template1", kill)).unwrap();
            tokio::task::yield_now().await;
        }
    };
    let ((sure, unknown), ()) = tokio::join!(calls, kills);
    let there: u32 = cluster.psql("postgres", "SELECT count(*) FROM tenure.tasks").unwrap().parse().unwrap();
    println!("{sure} done, {unknown} not known, {there} there");
    assert!((sure..=sure + unknown).contains(&there), "{sure} done, {unknown} not known, {there} there");
}

/// The statements that a connection keeps prepared may be gone, or may not fit the tables any more.
#[tokio::test(flavor = "multi_thread")]
async fn statements_that_are_stale_are_prepared_anew() {
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

/// Several hosts: one is dead, one is a standby, one is the primary.
#[tokio::test(flavor = "multi_thread")]
async fn hosts_are_tried_in_turn_until_one_is_of_the_kind_that_was_asked_for() {
    let primary = PgCluster::start().unwrap();
    migrated(&primary.url()).await;
    let standby = PgStandby::of(&primary).unwrap();
    let dead = free_port().unwrap();
    let hosts =
        format!("127.0.0.1:{dead},127.0.0.1:{},127.0.0.1:{}", standby.cluster().port(), primary.port());
    let url = |attrs: &str| format!("postgres://postgres@{hosts}/postgres?target_session_attrs={attrs}");
    for attrs in ["read-write", "primary"] {
        let store = Postgres::connect(PostgresOptions::new(url(attrs))).await.unwrap();
        opened(&store, attrs).await;
        // The user's pool goes where the store goes.
        let row = sqlx::raw_sql("SELECT inet_server_port()").fetch_one(store.pool()).await.unwrap();
        assert_eq!(sqlx::Row::get::<i32, _>(&row, 0), i32::from(primary.port()));
    }
    for attrs in ["any", "read-only", "standby", "prefer-standby"] {
        let error = Postgres::connect(PostgresOptions::new(url(attrs))).await.err().expect("it only reads");
        assert!(error.message.contains("standby"), "{error}");
    }
    standby.cluster().stop().unwrap();
    let store = Postgres::connect(PostgresOptions::new(url("prefer-standby"))).await.unwrap();
    opened(&store, "preferred").await;
    let error = Postgres::connect(PostgresOptions::new(url("standby"))).await.err().expect("there is none");
    assert!(error.message.contains("target_session_attrs=standby"), "{error}");
    // Keywords, and addresses that are not looked up.
    let words = format!(
        "host=one.invalid,two.invalid hostaddr=127.0.0.1,127.0.0.1 port={dead},{} user=postgres dbname=postgres \
         sslmode=disable connect_timeout=2",
        primary.port()
    );
    let store = Postgres::connect(PostgresOptions::new(words)).await.unwrap();
    opened(&store, "by address").await;
}
