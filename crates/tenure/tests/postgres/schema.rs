//! Migrations, and the views that people read.

use tenure::store::migrations::SchemaMigrator;
use tenure::store::postgres::{PostgresOptions, PostgresStore};
use tenure_core::port::{ElectionAdmin, ElectionStore, ErrorKind, HeartbeatResponse};
use tenure_testkit::rig::fresh_database;

use crate::migrating::{current, next};
use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn ten_replicas_migrate_concurrently() {
    let database = fresh_database().unwrap();
    let options = PostgresOptions::new(database.url());
    let missing = PostgresStore::connect(options.clone()).await.err().unwrap();
    assert_eq!(missing.kind, ErrorKind::SchemaMissing);
    assert!(missing.message.contains("tenure migrate up"), "{missing}");
    let migrations = (0..10).map(|_| async {
        PostgresStore::connect_unchecked(options.clone()).await.unwrap().migrate().await.unwrap()
    });
    let applied = futures_util::future::join_all(migrations).await;
    assert_eq!(applied.iter().filter(|applied| !applied.is_empty()).count(), 1);
    let store = PostgresStore::connect(options).await.unwrap();
    let status = store.schema_status().await.unwrap();
    assert_eq!((status.found, status.pending.len()), (Some(status.wanted), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_of_a_newer_program_is_refused() {
    let (database, store) = fresh().await;
    database.psql("INSERT INTO tenure.migrations VALUES (999, 'later', 999)").unwrap();
    let error = PostgresStore::connect(PostgresOptions::new(database.url())).await.err().unwrap();
    assert_eq!(error.kind, ErrorKind::SchemaVersion);
    assert_eq!(store.migrate().await.unwrap_err(), error);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_printed_script_creates_the_same_tables() {
    let database = fresh_database().unwrap();
    database.psql(&tenure::store::migration_sql("postgres:").unwrap()).unwrap();
    PostgresStore::connect(PostgresOptions::new(database.url())).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn candidate_status_shows_the_leader() {
    let (database, store) = fresh().await;
    let key = election("e");
    joined(&store, "b", &key).await;
    let status =
        || database.psql("SELECT name, role, token FROM tenure.candidate_status ORDER BY name").unwrap();
    assert_eq!(status(), "b|candidate|0");
    let token = leading(&store, "a", &key).await.as_u64();
    opened(&store, "o").await;
    let mut observer = candidacy("o", &key);
    observer.observer = true;
    store.join_election(&observer).await.unwrap();
    assert_eq!(status(), format!("a|leader|{token}\nb|follower|{token}\no|observer|{token}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_ended_long_ago_are_deleted() {
    let (database, store) = fresh().await;
    for name in ["old", "young", "alive"] {
        opened(&store, name).await;
    }
    store.end_session(&id("old")).await.unwrap();
    store.end_session(&id("young")).await.unwrap();
    database
        .psql("UPDATE tenure.sessions SET ended_at = now() - interval '2 days' WHERE id = 'old'")
        .unwrap();
    opened(&store, "new").await;
    assert_eq!(database.psql("SELECT id FROM tenure.sessions ORDER BY id").unwrap(), "alive\nnew\nyoung");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_updates_no_index() {
    let (database, store) = fresh().await;
    opened(&store, "a").await;
    for _ in 0..200 {
        assert!(matches!(store.heartbeat(&id("a")).await.unwrap(), HeartbeatResponse::Live { .. }));
    }
    // A backend reports its statistics when it ends; this call returns when it has ended.
    let end = "SELECT count(pg_terminate_backend(pid, 60000)) FROM pg_stat_activity
               WHERE datname = current_database() AND pid <> pg_backend_pid()";
    database.psql(end).unwrap();
    let counts = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'sessions'";
    let counted = database.psql(counts).unwrap();
    // A few updates are not HOT because their page could not be pruned at that moment.
    let hot: u32 = counted.strip_prefix("200|").and_then(|hot| hot.parse().ok()).unwrap_or(0);
    assert!(hot >= 190, "{counted}");
}

/// The protocol works if transactions are serializable by default.
#[tokio::test(flavor = "multi_thread")]
async fn another_default_isolation_level_changes_nothing() {
    let (database, _) = fresh().await;
    let sql =
        format!("ALTER DATABASE {} SET default_transaction_isolation = 'serializable'", database.name());
    database.psql(&sql).unwrap();
    let store = PostgresStore::connect(PostgresOptions::new(database.url())).await.unwrap();
    let key = election("e");
    let token = leading(&store, "a", &key).await;
    joined(&store, "b", &key).await;
    assert!(store.take_lease(&takeover("b", &key, token, "a", 0)).await.unwrap().is_some());
    assert_eq!(store.election(&key).await.unwrap().unwrap().candidates.len(), 1);
}

/// A schema that is too old for a program is refused until it is migrated; its rows stay.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_schema_is_migrated_in_place() {
    let (database, old) = fresh().await;
    opened(&old, "s").await;
    assert!(matches!(old.heartbeat(&id("s")).await.unwrap(), HeartbeatResponse::Live { .. }));
    let next_version = current() + 1;
    let options = next(database.url(), next_version, next_version);
    let error = PostgresStore::connect(options.clone()).await.err().unwrap();
    assert_eq!(error.kind, ErrorKind::SchemaVersion);
    assert!(error.message.contains("tenure migrate up"), "{error}");
    let migrated = PostgresStore::connect_unchecked(options.clone()).await.unwrap().migrate().await.unwrap();
    assert_eq!(migrated, [(next_version, "next")]);
    let store = PostgresStore::connect(options).await.unwrap();
    let session = store.sessions(None).await.unwrap().remove(0);
    assert_eq!((session.id, session.heartbeat_count), (id("s"), 1));
}
