//! Errors of connections and calls.

use std::time::Duration;

use tenure::store::postgres::{PostgresOptions, PostgresStore};
use tenure_core::port::{ElectionStore, ErrorKind, StoreError};
use tenure_testkit::rig::{PgCluster, SmallDisk, fresh_database};

use crate::support::*;

const PASSWORD: &str = "s3cret'/@%";

async fn refused(url: &str) -> StoreError {
    let mut options = PostgresOptions::new(url);
    options.connect_timeout = Duration::from_secs(2);
    let error = PostgresStore::connect(options).await.err().expect("no connection");
    for secret in [PASSWORD, "s3cret"] {
        assert!(!error.message.contains(secret), "{error}");
    }
    println!("{:?}: {error}", error.kind);
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_errors_do_not_contain_the_password() {
    let cluster =
        PgCluster::builder().password(PASSWORD).settings(&[("max_connections", "5")]).start().unwrap();
    let url = cluster.url();
    assert_eq!(refused(&url).await.kind, ErrorKind::SchemaMissing);
    let port = cluster.port();
    let denied = refused(&format!("postgres://postgres:s3cret-wrong@127.0.0.1:{port}/postgres")).await;
    assert_eq!(denied.kind, ErrorKind::Denied);
    assert!(denied.message.contains(&format!("postgres@127.0.0.1:{port}/postgres")), "{denied}");
    assert_eq!(refused(&cluster.url_for_db("nowhere")).await.kind, ErrorKind::Address);
    assert_eq!(refused("postgres://u:s3cret@127.0.0.1:1/d").await.kind, ErrorKind::Unreachable);
    assert_eq!(refused("postgres://u:s3cret@no-such-host.invalid/d").await.kind, ErrorKind::Unreachable);
    assert_eq!(refused("mysql://u:s3cret@h/d").await.kind, ErrorKind::Address);
    // The keyword form of libpq.
    let quoted = PASSWORD.replace('\\', "\\\\").replace('\'', "\\'");
    let words = format!(
        "host=127.0.0.1 port={port} user=postgres password='{quoted}' dbname=postgres sslmode=disable"
    );
    assert_eq!(refused(&words).await.kind, ErrorKind::SchemaMissing);
    // Use all connections: the test is a superuser and may use the three reserved ones too.
    let mut all = Vec::new();
    let options: sqlx::postgres::PgConnectOptions = url.parse().unwrap();
    while let Ok(connection) = <sqlx::PgConnection as sqlx::Connection>::connect_with(&options).await {
        all.push(connection);
    }
    assert_eq!(refused(&url).await.kind, ErrorKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn connecting_to_a_server_that_does_not_respond_times_out() {
    let cluster = PgCluster::start().unwrap();
    cluster.freeze().unwrap();
    let error = tokio::time::timeout(HANG, refused(&cluster.url())).await;
    assert_eq!(error.expect("connecting ends").kind, ErrorKind::Timeout);
    cluster.thaw().unwrap();
}

/// Cancelled calls do not occupy connections: the store works as soon as the server responds again.
#[tokio::test(flavor = "multi_thread")]
async fn cancelled_calls_do_not_use_up_the_connections() {
    let cluster = PgCluster::start().unwrap();
    let store = migrated(&cluster.url()).await;
    opened(&store, "a").await;
    let session = id("a");
    store.heartbeat(&session).await.unwrap();
    cluster.freeze().unwrap();
    for _ in 0..10 {
        assert!(tokio::time::timeout(Duration::from_millis(50), store.heartbeat(&session)).await.is_err());
    }
    cluster.thaw().unwrap();
    let heartbeat = tokio::time::timeout(HANG, store.heartbeat(&session)).await;
    assert!(heartbeat.is_ok_and(|heartbeat| heartbeat.is_ok()));
}

/// The server does not notice that a client disconnects while it waits for a lock, so the wait needs a timeout.
#[tokio::test(flavor = "multi_thread")]
async fn cancelled_calls_do_not_accumulate_in_the_server() {
    let (database, store) = fresh().await;
    opened(&store, "a").await;
    let mut lock = store.pool().begin().await.unwrap();
    sqlx::raw_sql("SELECT FROM tenure.sessions FOR UPDATE").execute(&mut *lock).await.unwrap();
    let session = id("a");
    let waiting = || {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        database.psql(sql).unwrap()
    };
    // Cancel each call once the server waits for the lock. On a slow machine the call may fail first.
    let mut waited = false;
    for _ in 0..10 {
        let heartbeat = store.heartbeat(&session);
        tokio::pin!(heartbeat);
        loop {
            tokio::select! {
                biased;
                done = &mut heartbeat => break assert!(done.is_err(), "the row is locked"),
                () = tokio::time::sleep(Duration::from_millis(1)) => {}
            }
            if waiting() != "0" {
                waited = true;
                break;
            }
        }
    }
    assert!(waited, "no call waited");
    // Each wait ends although the lock is still held.
    let start = tenure::runtime::now();
    while waiting() != "0" {
        assert!(tenure::runtime::now().since(start) < Duration::from_secs(60));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    lock.rollback().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_certificates_are_verified() {
    let cluster = PgCluster::builder().tls().start().unwrap();
    let store = migrated(&cluster.url()).await;
    opened(&store, "a").await;
    // A CA that did not sign the certificate.
    let other = PgCluster::builder().tls().start().unwrap();
    let (ours, theirs) = (cluster.ca_path().unwrap(), other.ca_path().unwrap());
    let url = cluster.url().replace(ours.to_str().unwrap(), theirs.to_str().unwrap());
    assert_eq!(refused(&url).await.kind, ErrorKind::Misconfigured);
    let plain = PgCluster::start().unwrap();
    assert_eq!(refused(&format!("{}?sslmode=require", plain.url())).await.kind, ErrorKind::Misconfigured);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_and_a_read_only_server_have_different_errors() {
    let (database, store) = fresh().await;
    opened(&store, "a").await;
    database
        .psql(&format!("ALTER DATABASE {} SET default_transaction_read_only = on", database.name()))
        .unwrap();
    let error = refused(database.url()).await;
    assert_eq!(error.kind, ErrorKind::Misconfigured, "{error}");
    if let Err(why) = SmallDisk::available() {
        println!("skipped: {why}");
        return;
    }
    let disk = SmallDisk::new(96 << 20).unwrap();
    let cluster = PgCluster::builder().inside(disk.path()).start().unwrap();
    let store = migrated(&cluster.url()).await;
    disk.fill().unwrap();
    // Rows that need new pages, until the disk is full.
    let mut metadata = std::collections::BTreeMap::new();
    metadata.insert("x".to_owned(), (0..4000).map(|n| format!("{n:x}")).collect::<String>());
    let mut failed = None;
    for n in 0..400 {
        let mut candidacy = candidacy("a", &election(&format!("e{n}")));
        candidacy.metadata = metadata.clone();
        let opened = store.open_session(&new_session(&format!("a{n}"), LEASE, Default::default())).await;
        candidacy.session = id(&format!("a{n}"));
        if let Err(error) = opened.map(drop).and(store.join_election(&candidacy).await.map(drop)) {
            failed = Some(error);
            break;
        }
    }
    let error = failed.expect("the disk is full");
    println!("{:?}: {error}", error.kind);
    // If the WAL cannot be written the server panics and restarts: then it is unreachable.
    assert!(matches!(error.kind, ErrorKind::Unavailable | ErrorKind::Unreachable), "{error}");
    disk.free().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_values_are_refused() {
    let (_database, store) = fresh().await;
    opened(&store, "a").await;
    let mut candidate = candidacy("a", &election("e"));
    candidate.name = "a\0b".into();
    assert_eq!(store.join_election(&candidate).await.unwrap_err().kind, ErrorKind::Request);
    candidate.name = "a".into();
    candidate.metadata.insert("k".into(), "\0".into());
    assert_eq!(store.join_election(&candidate).await.unwrap_err().kind, ErrorKind::Request);
    candidate.metadata.clear();
    candidate.slots = u32::MAX;
    assert_eq!(store.join_election(&candidate).await.unwrap_err().kind, ErrorKind::Request);
    let database = fresh_database().unwrap();
    let unchecked = PostgresStore::connect_unchecked(PostgresOptions::new(database.url())).await.unwrap();
    assert_eq!(unchecked.heartbeat(&id("a")).await.unwrap_err().kind, ErrorKind::SchemaMissing);
}
