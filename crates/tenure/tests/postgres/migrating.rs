//! Migrations while programs run: locks, adjacent versions, missing tables.

use std::sync::Mutex;
use std::time::Duration;

use tenure::Tenure;
use tenure::store::migrations::{Blocked, Compatibility, MigrateOptions, Migration, Schema, SchemaMigrator};
use tenure::store::postgres::{PostgresOptions, PostgresStore};
use tenure_core::port::{ElectionAdmin, ElectionStore, ErrorKind, HeartbeatResponse};

use crate::support::*;

/// A migration that needs an exclusive lock of the sessions.
const ALTER_SESSIONS: &str = "ALTER TABLE tenure.sessions ADD COLUMN later text;";

/// Options of a program of the next version, with one more migration.
pub(crate) fn next(url: &str, oldest_compatible: i64, oldest_schema: i64) -> PostgresOptions {
    let mut options = PostgresOptions::new(url);
    let mut migrations = options.schema.migrations.to_vec();
    let version = options.schema.version() + 1;
    migrations.push(Migration { version, name: "next", sql: ALTER_SESSIONS, oldest_compatible });
    options.schema = Schema { migrations: migrations.leak(), oldest_schema };
    options
}

/// The schema version of this program.
pub(crate) fn current() -> i64 {
    PostgresOptions::new("").schema.version()
}

/// Regression test: a migration waited for its exclusive lock without limit, heartbeats queued behind it, and one open
/// `pg_dump` ended all leaderships.
#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_waits_for_a_reader_does_not_end_leaderships() {
    let (database, store) = fresh().await;
    let lease = Duration::from_secs(4);
    let leader = Tenure::builder().url(database.url()).lease(lease).open().await.unwrap();
    let elector = leader.elector("nightly").start().await.unwrap();
    let leadership = elector.elected().await.unwrap();

    // As pg_dump: it reads, and its transaction stays open.
    let mut reader = store.pool().begin().await.unwrap();
    let pid: i32 =
        sqlx::query_scalar("SELECT pg_backend_pid() FROM (SELECT count(*) FROM tenure.sessions) s")
            .fetch_one(&mut *reader)
            .await
            .unwrap();

    let program = PostgresStore::connect_unchecked(next(database.url(), current(), current())).await.unwrap();
    let seen = Mutex::new(Vec::new());
    let progress = |blocked: &Blocked| seen.lock().unwrap().push(blocked.clone());
    let error = tokio::select! {
        _ = leadership.lost() => panic!("the leadership ended"),
        migrated = program.migrate_with(MigrateOptions { timeout: 2 * lease, progress: &progress }) => migrated.unwrap_err(),
    };
    assert_eq!(error.kind, ErrorKind::Timeout);
    for part in
        ["0002 next", "tenure.sessions", &format!("process {pid}"), "Nothing was changed", "migrate up"]
    {
        assert!(error.message.contains(part), "{part:?} is missing in: {error}");
    }
    let seen = seen.into_inner().unwrap();
    assert!(seen.len() > 1, "several attempts: {seen:?}");
    let holder = &seen.last().unwrap().holders[0];
    assert_eq!((holder.pid, holder.application.as_str()), (Some(pid), "tenure"));
    assert!(holder.open_for.is_some(), "{holder:?}");
    assert_eq!(store.schema_status().await.unwrap().found, Some(current()), "the old schema still works");

    reader.rollback().await.unwrap();
    assert_eq!(program.migrate().await.unwrap(), [(current() + 1, "next")]);
    assert!(leadership.is_leader());
    drop((leadership, elector));
    leader.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_continues_when_the_reader_ends() {
    let (database, store) = fresh().await;
    let mut reader = store.pool().begin().await.unwrap();
    sqlx::query("SELECT FROM tenure.sessions").execute(&mut *reader).await.unwrap();
    let program = PostgresStore::connect_unchecked(next(database.url(), current(), current())).await.unwrap();
    let blocked = tokio::sync::Notify::new();
    let progress = |_: &Blocked| blocked.notify_one();
    let end = async {
        blocked.notified().await;
        reader.rollback().await.unwrap();
    };
    let migrate = program.migrate_with(MigrateOptions { timeout: HANG, progress: &progress });
    let (applied, ()) = tokio::join!(migrate, end);
    assert_eq!(applied.unwrap(), [(current() + 1, "next")]);
}

/// Regression test: the version had to match exactly, so that old replicas could not restart after an additive migration.
#[tokio::test(flavor = "multi_thread")]
async fn programs_of_adjacent_versions_share_a_database() {
    let (database, old) = fresh().await;
    let key = election("e");
    // The newer program starts first and declares that it can run on the older schema.
    let new = PostgresStore::connect(next(database.url(), current(), current())).await.unwrap();
    assert_eq!(new.schema_status().await.unwrap().compatibility(), Compatibility::OlderCompatible);
    let token = leading(&old, "old", &key).await;
    joined(&new, "new", &key).await;
    assert!(matches!(new.heartbeat(&id("old")).await.unwrap(), HeartbeatResponse::Live { .. }));
    // A newer program without that declaration is refused.
    let error = PostgresStore::connect(next(database.url(), current(), current() + 1)).await.err().unwrap();
    assert_eq!(error.kind, ErrorKind::SchemaVersion);
    assert!(error.message.contains("tenure migrate up"), "{error}");

    // After the migration the old program continues, and restarts, on the newer schema.
    assert_eq!(new.migrate().await.unwrap().len(), 1);
    assert!(matches!(old.heartbeat(&id("old")).await.unwrap(), HeartbeatResponse::Live { .. }));
    let restarted = PostgresStore::connect(PostgresOptions::new(database.url())).await.unwrap();
    assert_eq!(restarted.schema_status().await.unwrap().compatibility(), Compatibility::NewerCompatible);
    assert!(restarted.migrate().await.unwrap().is_empty(), "no migration is pending");
    let taken = new.take_lease(&takeover("new", &key, token, "old", 2)).await.unwrap().unwrap();
    assert!(taken > token);
    // After a downgrade the old program takes over on the newer schema.
    joined(&restarted, "older", &key).await;
    assert!(restarted.take_lease(&takeover("older", &key, taken, "new", 0)).await.unwrap().is_some());
    assert_eq!(restarted.election(&key).await.unwrap().unwrap().candidates.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_needs_newer_programs_refuses_older_ones() {
    let (database, old) = fresh().await;
    let new =
        PostgresStore::connect_unchecked(next(database.url(), current() + 1, current() + 1)).await.unwrap();
    new.migrate().await.unwrap();
    let error = PostgresStore::connect(PostgresOptions::new(database.url())).await.err().unwrap();
    assert_eq!(error.kind, ErrorKind::SchemaVersion);
    assert!(error.message.contains("Upgrade this program"), "{error}");
    assert_eq!(old.migrate().await.unwrap_err(), error, "migrate of the older program fails too");
}

/// Regression test: `migrate up` printed "up to date" when a table was missing.
#[tokio::test(flavor = "multi_thread")]
async fn missing_tables_and_functions_are_named() {
    let (database, store) = fresh().await;
    assert_eq!(store.schema_status().await.unwrap().missing, Vec::<String>::new(), "nothing is missing");
    database
        .psql("DROP TABLE tenure.leader_requests; DROP FUNCTION tenure.require_sync_standby; DROP INDEX tenure.leases_session")
        .unwrap();
    let status = store.schema_status().await.unwrap();
    let missing = [
        "function require_sync_standby",
        "index leader_requests_session",
        "index leases_session",
        "table leader_requests",
    ];
    assert_eq!(status.missing, missing);
    let error = store.migrate().await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::SchemaMissing);
    for part in missing.iter().chain(&["backup"]) {
        assert!(error.message.contains(part), "{part:?} is missing in: {error}");
    }
}

/// Regression test: an older program revoked all grants and restored only those of the tables that it knows.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_program_keeps_the_grants_of_newer_tables() {
    let database = crate::roles::owned().await;
    let owner = database.url_as("tenure_owner");
    PostgresStore::connect_unchecked(next(&owner, current(), current()))
        .await
        .unwrap()
        .migrate()
        .await
        .unwrap();
    database
        .psql_as(
            "tenure_owner",
            "CREATE TABLE tenure.newer (n integer); GRANT SELECT ON tenure.newer TO tenure_runtime",
        )
        .unwrap();
    let older = PostgresStore::connect_unchecked(PostgresOptions::new(&owner)).await.unwrap();
    assert!(older.migrate().await.unwrap().is_empty());
    database.psql_as("tenure_runtime", "SELECT FROM tenure.newer").unwrap();
}
