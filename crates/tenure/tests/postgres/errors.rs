//! What people read when it does not work.

use std::time::Duration;

use tenure::backend::postgres::{Postgres, PostgresOptions};
use tenure_core::port::{Store, StoreError, Trouble};
use tenure_testkit::rig::{PgCluster, SmallDisk, fresh_database};

use crate::support::*;

const PASSWORD: &str = "s3cret'/@%";

async fn refused(url: &str) -> StoreError {
    let mut options = PostgresOptions::new(url);
    options.connect_timeout = Duration::from_secs(2);
    let error = Postgres::connect(options).await.err().expect("no connection");
    for secret in [PASSWORD, "s3cret"] {
        assert!(!error.message.contains(secret), "{error}");
    }
    println!("{:?}: {error}", error.kind);
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn what_keeps_us_from_connecting_is_told_without_the_password() {
    let cluster =
        PgCluster::builder().password(PASSWORD).settings(&[("max_connections", "5")]).start().unwrap();
    let url = cluster.url();
    assert_eq!(refused(&url).await.kind, Trouble::SchemaMissing);
    let port = cluster.port();
    let denied = refused(&format!("postgres://postgres:s3cret-wrong@127.0.0.1:{port}/postgres")).await;
    assert_eq!(denied.kind, Trouble::Denied);
    assert!(denied.message.contains(&format!("postgres@127.0.0.1:{port}/postgres")), "{denied}");
    assert_eq!(refused(&cluster.url_for_db("nowhere")).await.kind, Trouble::Address);
    assert_eq!(refused("postgres://u:s3cret@127.0.0.1:1/d").await.kind, Trouble::Unreachable);
    assert_eq!(refused("postgres://u:s3cret@no-such-host.invalid/d").await.kind, Trouble::Unreachable);
    assert_eq!(refused("mysql://u:s3cret@h/d").await.kind, Trouble::Address);
    // The words of libpq work as well.
    let quoted = PASSWORD.replace('\\', "\\\\").replace('\'', "\\'");
    let words = format!(
        "host=127.0.0.1 port={port} user=postgres password='{quoted}' dbname=postgres sslmode=disable"
    );
    assert_eq!(refused(&words).await.kind, Trouble::SchemaMissing);
    // Fill it up: three of the five are the superuser's, who we are.
    let mut all = Vec::new();
    let options: sqlx::postgres::PgConnectOptions = url.parse().unwrap();
    while let Ok(connection) = <sqlx::PgConnection as sqlx::Connection>::connect_with(&options).await {
        all.push(connection);
    }
    assert_eq!(refused(&url).await.kind, Trouble::Unavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_swallows_packets_is_given_up_in_time() {
    let cluster = PgCluster::start().unwrap();
    cluster.freeze().unwrap();
    let refusal = tokio::time::timeout(HANG, refused(&cluster.url())).await;
    assert_eq!(refusal.expect("it is not waited for").kind, Trouble::Timeout);
    cluster.thaw().unwrap();
}

/// Calls that are given up leave no trace in the lanes: as soon as the server answers again, so does the store.
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_were_given_up_do_not_use_up_the_connections() {
    let cluster = PgCluster::start().unwrap();
    let store = migrated(&cluster.url()).await;
    opened(&store, "a").await;
    let session = id("a");
    store.beat(&session).await.unwrap();
    cluster.freeze().unwrap();
    for _ in 0..10 {
        assert!(tokio::time::timeout(Duration::from_millis(50), store.beat(&session)).await.is_err());
    }
    cluster.thaw().unwrap();
    let beat = tokio::time::timeout(HANG, store.beat(&session)).await;
    assert!(beat.is_ok_and(|beat| beat.is_ok()));
}

/// The server does not notice that a client which waits for a lock has gone, so the wait itself must end.
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_were_given_up_do_not_pile_up_in_the_server() {
    let (database, store) = fresh().await;
    opened(&store, "a").await;
    let mut lock = store.pool().begin().await.unwrap();
    sqlx::raw_sql("SELECT FROM tenure.sessions FOR UPDATE").execute(&mut *lock).await.unwrap();
    let session = id("a");
    let waiting = || {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        database.psql(sql).unwrap()
    };
    // Given up once the server waits for the lock, however slow the way there is; or answered, if this is slower than the server.
    let mut met = false;
    for _ in 0..10 {
        let beat = store.beat(&session);
        tokio::pin!(beat);
        loop {
            tokio::select! {
                biased;
                done = &mut beat => break assert!(done.is_err(), "the row is locked"),
                () = tokio::time::sleep(Duration::from_millis(1)) => {}
            }
            if waiting() != "0" {
                met = true;
                break;
            }
        }
    }
    assert!(met, "nobody was ever seen to wait");
    // While the lock is held: each wait ends by itself. Whoever waited for ever would wait here.
    let begun = tenure::runtime::now();
    while waiting() != "0" {
        assert!(tenure::runtime::now().since(begun) < Duration::from_secs(60));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    lock.rollback().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_verified_in_full() {
    let cluster = PgCluster::builder().tls().start().unwrap();
    let store = migrated(&cluster.url()).await;
    opened(&store, "a").await;
    // Another authority than the one that signed.
    let other = PgCluster::builder().tls().start().unwrap();
    let (ours, theirs) = (cluster.ca_path().unwrap(), other.ca_path().unwrap());
    let url = cluster.url().replace(ours.to_str().unwrap(), theirs.to_str().unwrap());
    assert_eq!(refused(&url).await.kind, Trouble::Unfit);
    let plain = PgCluster::start().unwrap();
    assert_eq!(refused(&format!("{}?sslmode=require", plain.url())).await.kind, Trouble::Unfit);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_and_a_reader_are_told_apart() {
    let (database, store) = fresh().await;
    opened(&store, "a").await;
    database
        .psql(&format!("ALTER DATABASE {} SET default_transaction_read_only = on", database.name()))
        .unwrap();
    let error = refused(database.url()).await;
    assert_eq!(error.kind, Trouble::Unfit, "{error}");
    if let Err(why) = SmallDisk::available() {
        println!("skipped: {why}");
        return;
    }
    let disk = SmallDisk::new(96 << 20).unwrap();
    let cluster = PgCluster::builder().inside(disk.path()).start().unwrap();
    let store = migrated(&cluster.url()).await;
    disk.fill().unwrap();
    // Rows that need new pages, until there are none.
    let mut metadata = std::collections::BTreeMap::new();
    metadata.insert("x".to_owned(), (0..4000).map(|n| format!("{n:x}")).collect::<String>());
    let mut failed = None;
    for n in 0..400 {
        let mut candidacy = candidacy("a", &election(&format!("e{n}")));
        candidacy.metadata = metadata.clone();
        let opened = store.open(&new_session(&format!("a{n}"), LEASE, Default::default())).await;
        candidacy.session = id(&format!("a{n}"));
        if let Err(error) = opened.map(drop).and(store.join(&candidacy).await.map(drop)) {
            failed = Some(error);
            break;
        }
    }
    let error = failed.expect("the disk is full");
    println!("{:?}: {error}", error.kind);
    // A full disk where the WAL is makes the server panic and start over: then nobody answers.
    assert!(matches!(error.kind, Trouble::Unavailable | Trouble::Unreachable), "{error}");
    disk.free().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_is_refused() {
    let (_database, store) = fresh().await;
    opened(&store, "a").await;
    let mut candidate = candidacy("a", &election("e"));
    candidate.id = "a\0b".into();
    assert_eq!(store.join(&candidate).await.unwrap_err().kind, Trouble::Request);
    candidate.id = "a".into();
    candidate.metadata.insert("k".into(), "\0".into());
    assert_eq!(store.join(&candidate).await.unwrap_err().kind, Trouble::Request);
    candidate.metadata.clear();
    candidate.slots = u32::MAX;
    assert_eq!(store.join(&candidate).await.unwrap_err().kind, Trouble::Request);
    let database = fresh_database().unwrap();
    let unchecked = Postgres::connect_unchecked(PostgresOptions::new(database.url())).await.unwrap();
    assert_eq!(unchecked.beat(&id("a")).await.unwrap_err().kind, Trouble::SchemaMissing);
}
