//! Migrations beside running programs: locks, adjacent versions, lost tables.

use std::sync::Mutex;
use std::time::Duration;

use tenure::Tenure;
use tenure::backend::migrations::{Blocked, Compatibility, Migrate, MigrateOptions, Migration, Schema};
use tenure::backend::postgres::{Postgres, PostgresOptions};
use tenure_core::port::{Directory, Pulse, Store, Trouble};

use crate::support::*;

/// A migration that needs every reader and writer of the sessions to stand aside.
const ALTER_SESSIONS: &str = "ALTER TABLE tenure.sessions ADD COLUMN later text;";

/// A program of the next version, which adds one migration.
fn next(url: &str, oldest_compatible: i64, oldest_schema: i64) -> PostgresOptions {
    let mut options = PostgresOptions::new(url);
    let mut migrations = options.schema.migrations.to_vec();
    let version = options.schema.version() + 1;
    migrations.push(Migration { version, name: "next", sql: ALTER_SESSIONS, oldest_compatible });
    options.schema = Schema { migrations: migrations.leak(), oldest_schema };
    options
}

fn current() -> i64 {
    PostgresOptions::new("").schema.version()
}

/// A migration waited for its exclusive lock without limit, every heartbeat queued behind it, and one open `pg_dump` ended
/// every leadership.
#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_waits_for_a_reader_ends_no_leadership() {
    let (database, store) = fresh().await;
    let lease = Duration::from_secs(4);
    let leader = Tenure::builder().url(database.url()).lease(lease).open().await.unwrap();
    let elector = leader.elector("nightly").start().await.unwrap();
    let leadership = elector.elected().await.unwrap();

    // As pg_dump does: it reads, and its transaction stays open.
    let mut reader = store.pool().begin().await.unwrap();
    let pid: i32 =
        sqlx::query_scalar("SELECT pg_backend_pid() FROM (SELECT count(*) FROM tenure.sessions) s")
            .fetch_one(&mut *reader)
            .await
            .unwrap();

    let program = Postgres::connect_unchecked(next(database.url(), current(), current())).await.unwrap();
    let seen = Mutex::new(Vec::new());
    let progress = |blocked: &Blocked| seen.lock().unwrap().push(blocked.clone());
    let error = tokio::select! {
        _ = leadership.lost() => panic!("the leadership ended"),
        migrated = program.migrate_with(MigrateOptions { timeout: 2 * lease, progress: &progress }) => migrated.unwrap_err(),
    };
    assert_eq!(error.kind, Trouble::Timeout);
    for part in
        ["0006 next", "tenure.sessions", &format!("process {pid}"), "Nothing was changed", "migrate up"]
    {
        assert!(error.message.contains(part), "{part:?} is missing in: {error}");
    }
    let seen = seen.into_inner().unwrap();
    assert!(seen.len() > 1, "it tries more than once: {seen:?}");
    let holder = &seen.last().unwrap().holders[0];
    assert_eq!((holder.pid, holder.application.as_str()), (Some(pid), "tenure"));
    assert!(holder.open_for.is_some(), "{holder:?}");
    assert_eq!(store.schema_status().await.unwrap().found, Some(current()), "the old state works");

    reader.rollback().await.unwrap();
    assert_eq!(program.migrate().await.unwrap(), [(current() + 1, "next")]);
    assert!(leadership.is_leader());
    drop((leadership, elector));
    leader.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_goes_on_when_the_reader_ends() {
    let (database, store) = fresh().await;
    let mut reader = store.pool().begin().await.unwrap();
    sqlx::query("SELECT FROM tenure.sessions").execute(&mut *reader).await.unwrap();
    let program = Postgres::connect_unchecked(next(database.url(), current(), current())).await.unwrap();
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

/// The version had to match exactly: after one additive migration, every old replica that restarted was refused.
#[tokio::test(flavor = "multi_thread")]
async fn programs_of_adjacent_versions_share_a_database() {
    let (database, old) = fresh().await;
    let key = election("e");
    // The newer program comes first, and says that it runs on the older schema.
    let new = Postgres::connect(next(database.url(), current(), current())).await.unwrap();
    assert_eq!(new.schema_status().await.unwrap().compatibility(), Compatibility::OlderCompatible);
    let token = leading(&old, "old", &key).await;
    standing(&new, "new", &key).await;
    assert!(matches!(new.beat(&id("old")).await.unwrap(), Pulse::Alive { .. }));
    // One that does not say so is told what to do.
    let error = Postgres::connect(next(database.url(), current(), current() + 1)).await.err().unwrap();
    assert_eq!(error.kind, Trouble::SchemaVersion);
    assert!(error.message.contains("tenure migrate up"), "{error}");

    // Up: the old program runs on, and restarts, on the newer schema.
    assert_eq!(new.migrate().await.unwrap().len(), 1);
    assert!(matches!(old.beat(&id("old")).await.unwrap(), Pulse::Alive { .. }));
    let restarted = Postgres::connect(PostgresOptions::new(database.url())).await.unwrap();
    assert_eq!(restarted.schema_status().await.unwrap().compatibility(), Compatibility::NewerCompatible);
    assert!(restarted.migrate().await.unwrap().is_empty(), "it has nothing to add");
    let taken = new.take(&take_over("new", &key, token, "old", 2)).await.unwrap().unwrap();
    assert!(taken > token);
    // Down: the newer program is gone, and the old one takes over on the newer schema.
    standing(&restarted, "older", &key).await;
    assert!(restarted.take(&take_over("older", &key, taken, "new", 0)).await.unwrap().is_some());
    assert_eq!(restarted.election(&key).await.unwrap().unwrap().candidates.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_needs_newer_programs_refuses_older_ones() {
    let (database, old) = fresh().await;
    let new = Postgres::connect_unchecked(next(database.url(), current() + 1, current() + 1)).await.unwrap();
    new.migrate().await.unwrap();
    let error = Postgres::connect(PostgresOptions::new(database.url())).await.err().unwrap();
    assert_eq!(error.kind, Trouble::SchemaVersion);
    assert!(error.message.contains("Upgrade this program"), "{error}");
    assert_eq!(old.migrate().await.unwrap_err(), error, "the older program does not say that all is well");
}

/// `migrate up` said "up to date" when a table was missing.
#[tokio::test(flavor = "multi_thread")]
async fn lost_tables_and_functions_are_named() {
    let (database, store) = fresh().await;
    assert_eq!(store.schema_status().await.unwrap().missing, Vec::<String>::new(), "everything is found");
    database
        .psql("DROP TABLE tenure.requests; DROP FUNCTION tenure.strict; DROP INDEX tenure.leases_session")
        .unwrap();
    let status = store.schema_status().await.unwrap();
    let lost = ["function strict", "index leases_session", "index requests_session", "table requests"];
    assert_eq!(status.missing, lost);
    let error = store.migrate().await.unwrap_err();
    assert_eq!(error.kind, Trouble::SchemaMissing);
    for part in lost.iter().chain(&["backup"]) {
        assert!(error.message.contains(part), "{part:?} is missing in: {error}");
    }
}

/// An older program revoked all grants and gave back only those of the tables that it knows.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_program_leaves_the_grants_of_newer_tables_alone() {
    let database = crate::roles::owned().await;
    let owner = database.url_as("tenure_owner");
    Postgres::connect_unchecked(next(&owner, current(), current())).await.unwrap().migrate().await.unwrap();
    database
        .psql_as(
            "tenure_owner",
            "CREATE TABLE tenure.newer (n integer); GRANT SELECT ON tenure.newer TO tenure_runtime",
        )
        .unwrap();
    let older = Postgres::connect_unchecked(PostgresOptions::new(&owner)).await.unwrap();
    assert!(older.migrate().await.unwrap().is_empty());
    database.psql_as("tenure_runtime", "SELECT FROM tenure.newer").unwrap();
}
