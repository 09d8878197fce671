//! Migrations, and what people see of the tables.

use tenure::backend::migrations::Migrate;
use tenure::backend::postgres::{Postgres, PostgresOptions};
use tenure_core::port::{Directory, Pulse, Store, Trouble};
use tenure_testkit::rig::fresh_database;

use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn ten_replicas_migrate_at_once() {
    let database = fresh_database().unwrap();
    let options = PostgresOptions::new(database.url());
    let missing = Postgres::connect(options.clone()).await.err().unwrap();
    assert_eq!(missing.kind, Trouble::SchemaMissing);
    assert!(missing.message.contains("tenure migrate up"), "{missing}");
    let migrations = (0..10).map(|_| async {
        Postgres::connect_unchecked(options.clone()).await.unwrap().migrate().await.unwrap()
    });
    let applied = futures_util::future::join_all(migrations).await;
    assert_eq!(applied.iter().filter(|applied| !applied.is_empty()).count(), 1);
    let store = Postgres::connect(options).await.unwrap();
    let status = store.schema_status().await.unwrap();
    assert_eq!((status.found, status.pending.len()), (Some(status.wanted), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_of_a_newer_program_are_refused() {
    let (database, store) = fresh().await;
    database.psql("INSERT INTO tenure.migrations VALUES (999, 'later', 999)").unwrap();
    let error = Postgres::connect(PostgresOptions::new(database.url())).await.err().unwrap();
    assert_eq!(error.kind, Trouble::SchemaVersion);
    assert_eq!(store.migrate().await.unwrap_err(), error);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_printed_script_makes_the_same_tables() {
    let by_hand = fresh_database().unwrap();
    by_hand.psql(&tenure::backend::migration_sql("postgres:").unwrap()).unwrap();
    Postgres::connect(PostgresOptions::new(by_hand.url())).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn node_records_show_who_leads() {
    let (database, store) = fresh().await;
    let key = election("e");
    standing(&store, "b", &key).await;
    let status = || database.psql("SELECT id, status, term FROM tenure.node_records ORDER BY id").unwrap();
    assert_eq!(status(), "b|candidate|0");
    let token = leading(&store, "a", &key).await.as_u64();
    opened(&store, "o").await;
    let mut observer = candidacy("o", &key);
    observer.observer = true;
    store.join(&observer).await.unwrap();
    assert_eq!(status(), format!("a|leader|{token}\nb|follower|{token}\no|observer|{token}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_ended_long_ago_are_cleared_away() {
    let (database, store) = fresh().await;
    for name in ["old", "young", "alive"] {
        opened(&store, name).await;
    }
    store.end(&id("old")).await.unwrap();
    store.end(&id("young")).await.unwrap();
    database
        .psql("UPDATE tenure.sessions SET ended_at = now() - interval '2 days' WHERE id = 'old'")
        .unwrap();
    opened(&store, "new").await;
    assert_eq!(database.psql("SELECT id FROM tenure.sessions ORDER BY id").unwrap(), "alive\nnew\nyoung");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_beat_touches_no_index() {
    let (database, store) = fresh().await;
    opened(&store, "a").await;
    for _ in 0..200 {
        assert!(matches!(store.beat(&id("a")).await.unwrap(), Pulse::Alive { .. }));
    }
    // The backend that beat reports its counts when it ends, and is gone when this is answered.
    let end = "SELECT count(pg_terminate_backend(pid, 60000)) FROM pg_stat_activity
               WHERE datname = current_database() AND pid <> pg_backend_pid()";
    database.psql(end).unwrap();
    let counts = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'sessions'";
    let counted = database.psql(counts).unwrap();
    // All but the few that met a page that could not be tidied at that moment.
    let hot: u32 = counted.strip_prefix("200|").and_then(|hot| hot.parse().ok()).unwrap_or(0);
    assert!(hot >= 190, "{counted}");
}

/// A role whose transactions are serializable by default gets the same protocol.
#[tokio::test(flavor = "multi_thread")]
async fn another_default_isolation_changes_nothing() {
    let (database, _) = fresh().await;
    let sql =
        format!("ALTER DATABASE {} SET default_transaction_isolation = 'serializable'", database.name());
    database.psql(&sql).unwrap();
    let store = Postgres::connect(PostgresOptions::new(database.url())).await.unwrap();
    let key = election("e");
    let token = leading(&store, "a", &key).await;
    standing(&store, "b", &key).await;
    assert!(store.take(&take_over("b", &key, token, "a", 0)).await.unwrap().is_some());
    assert_eq!(store.election(&key).await.unwrap().unwrap().candidates.len(), 1);
}

/// Tables of the first version are refused until they are brought up to date; what is in them stays.
#[tokio::test(flavor = "multi_thread")]
async fn old_tables_are_upgraded_where_they_are() {
    let database = fresh_database().unwrap();
    let first = include_str!("../../src/backend/postgres/migrations/0001_elections.sql");
    let create = "CREATE SCHEMA tenure; CREATE TABLE tenure.migrations (
                      version bigint PRIMARY KEY, name text NOT NULL, oldest_compatible bigint NOT NULL,
                      applied_at timestamptz NOT NULL DEFAULT now());";
    let rows = "INSERT INTO tenure.migrations VALUES (1, 'elections', 1);
                INSERT INTO tenure.sessions (id, name, beat, lease_ms) VALUES ('s', 'old', 3, 1000);";
    for sql in [create, first, rows] {
        database.psql(sql).unwrap();
    }
    let options = PostgresOptions::new(database.url());
    let error = Postgres::connect(options.clone()).await.err().unwrap();
    assert_eq!(error.kind, Trouble::SchemaVersion);
    assert!(error.message.contains("tenure migrate up"), "{error}");
    let store = migrated(database.url()).await;
    let session = store.sessions(None).await.unwrap().remove(0);
    assert_eq!((session.name.as_str(), session.beat, session.owner), ("old", 3, None));
}
