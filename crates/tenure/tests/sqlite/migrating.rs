//! Migrations: when a file is migrated, and which programs can use it.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tenure::store::migrations::{Compatibility, Migration, Schema, SchemaMigrator};
use tenure::store::sqlite::{SqliteOptions, SqliteStore};
use tenure::store::{StoreOptions, migrator, open};
use tenure_core::port::{
    ElectionAdmin, ErrorKind, EventAdmin, EventStore, FindingStatus, ScheduleAdmin, TaskAdmin, TaskFilter,
    TopicSettings,
};
use tenure_core::{SessionId, Token};
use tenure_testkit::conformance::{TestSession, election};

use super::events::{keyed, topic};
use super::schedules::{TASK, hourly, key, set_request};

const ADD: &str = "ALTER TABLE tenure_sessions ADD COLUMN later TEXT;";

fn current() -> i64 {
    SqliteOptions::new("").schema.version()
}

/// A program of the next version, which adds one migration.
fn next(path: &Path, oldest_compatible: i64, oldest_schema: i64) -> SqliteOptions {
    let mut options = SqliteOptions::new(path);
    let mut migrations = options.schema.migrations.to_vec();
    migrations.push(Migration { version: current() + 1, name: "next", sql: ADD, oldest_compatible });
    options.schema = Schema { migrations: migrations.leak(), oldest_schema };
    options
}

fn to_read(path: &Path) -> StoreOptions {
    let url = format!("sqlite:{}", path.display());
    StoreOptions { url, existing_only: true, ..StoreOptions::default() }
}

async fn version(path: &Path) -> Option<i64> {
    migrator(&to_read(path)).await.unwrap().schema_status().await.unwrap().found
}

#[tokio::test]
async fn commands_that_only_read_create_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    assert_eq!(open(&to_read(&path)).await.unwrap().elections(None).await.unwrap(), []);
    assert_eq!(version(&path).await, None);
    let error = migrator(&to_read(&path)).await.unwrap().migrate().await.unwrap_err();
    assert!(error.message.contains("does not exist"), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "no file was created");
    let error = open(&to_read(&dir.path().join("no/such/t.db"))).await.err().unwrap();
    assert_eq!(error.kind, ErrorKind::Address, "a missing directory is an error");
}

/// Regression test: every program that opened the file migrated it. Even a read command of a newer version did, which
/// excluded older services.
#[tokio::test]
async fn a_file_is_not_migrated_if_that_excludes_older_programs() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let older = SqliteStore::open(SqliteOptions::new(&path)).await.unwrap();
    let running = TestSession::open(std::sync::Arc::new(older), "older").await;
    let newer = || next(&path, current() + 1, current() + 1);
    let error = SqliteStore::open(newer()).await.err().unwrap();
    assert_eq!(error.kind, ErrorKind::SchemaVersion);
    assert!(error.message.contains("tenure migrate up"), "{error}");
    let reader = SqliteStore::open(newer().create(false).migrate(false)).await.unwrap();
    assert_eq!(reader.schema_status().await.unwrap().compatibility(), Compatibility::TooOld);
    assert_eq!(version(&path).await, Some(current()), "no migration was applied");
    assert!(running.is_live().await);
    assert!(SqliteStore::open(SqliteOptions::new(&path)).await.is_ok(), "the older program starts again");

    assert_eq!(reader.migrate().await.unwrap().len(), 1, "an explicit migration is applied");
    assert!(SqliteStore::open(newer()).await.is_ok());
    let error = SqliteStore::open(SqliteOptions::new(&path)).await.err().unwrap();
    assert_eq!(error.kind, ErrorKind::SchemaVersion, "the older program cannot run any more");
}

/// Leases, tasks, events and schedules survive the migration of a file, and tokens continue.
#[tokio::test]
async fn a_migration_keeps_the_rows_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let older = SqliteStore::open(SqliteOptions::new(&path)).await.unwrap();
    let rows = "INSERT INTO tenure_elections (namespace, name, slots, created_at_ms) VALUES ('default', 'e', 1, 0);
        INSERT INTO tenure_leases (namespace, election, slot, token) VALUES ('default', 'e', 0, 41);
        INSERT INTO tenure_sessions (id, name, heartbeat_count, lease_ms, state, takeover, started_at_ms, heartbeat_at_ms)
        VALUES ('s', 'old', 3, 1000, 'live', 'lease', 0, 0);
        INSERT INTO tenure_submit (queue, payload) VALUES ('q', '[1]')";
    sqlx::raw_sql(rows).execute(older.pool()).await.unwrap();
    older.set_topic(&topic(), &TopicSettings::default()).await.unwrap();
    older.publish(&topic(), &[keyed("a", 1)]).await.unwrap();
    older.set_schedule(&set_request(&hourly("a", TASK))).await.unwrap();
    drop(older);
    let newer = || next(&path, current() + 1, current() + 1);
    let migrator = SqliteStore::open(newer().migrate(false)).await.unwrap();
    assert_eq!(migrator.migrate().await.unwrap(), [(current() + 1, "next")]);
    let store = SqliteStore::open(newer()).await.unwrap();
    let status = store.schema_status().await.unwrap();
    assert_eq!((status.found, status.pending), (Some(current() + 1), vec![]));
    let ids = [SessionId::from_stored("s")];
    let session = store.sessions(Some(&ids)).await.unwrap().remove(0);
    assert_eq!((session.name.as_str(), session.heartbeat_count, session.owner), ("old", 3, None));
    let actor = TestSession::open(std::sync::Arc::new(store.clone()), "a").await;
    actor.join(&election("e")).await;
    assert_eq!(actor.take(&election("e"), 0).await, Token::from_u64(42));
    assert_eq!(store.tasks(&TaskFilter { limit: 9, ..TaskFilter::default() }).await.unwrap().len(), 1);
    assert_eq!(store.publish(&topic(), &[keyed("a", 2)]).await.unwrap()[0].id.0, 2, "ids continue");
    assert!(store.schedule(&key("a")).await.unwrap().is_some());
}

#[tokio::test]
async fn programs_of_adjacent_versions_share_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let old = SqliteStore::open(SqliteOptions::new(&path)).await.unwrap();
    let old = TestSession::open(std::sync::Arc::new(old), "old").await;

    // The migration excludes older programs, so it is not applied; the program runs on the older schema.
    let careful = SqliteStore::open(next(&path, current() + 1, current())).await.unwrap();
    assert_eq!(careful.schema_status().await.unwrap().compatibility(), Compatibility::OlderCompatible);
    assert!(TestSession::open(std::sync::Arc::new(careful), "careful").await.is_live().await);
    assert_eq!(version(&path).await, Some(current()));

    // Upgrade: this migration excludes no program and is applied automatically.
    let new = SqliteStore::open(next(&path, current(), current())).await.unwrap();
    let new = TestSession::open(std::sync::Arc::new(new), "new").await;
    assert_eq!(version(&path).await, Some(current() + 1));
    assert!(old.is_live().await && new.is_live().await);

    // Downgrade: the older program starts on the newer schema.
    let again = SqliteStore::open(SqliteOptions::new(&path)).await.unwrap();
    assert_eq!(again.schema_status().await.unwrap().compatibility(), Compatibility::NewerCompatible);
    assert_eq!(again.migrate().await, Ok(Vec::new()));
    assert!(TestSession::open(std::sync::Arc::new(again), "again").await.is_live().await);
    assert!(open(&to_read(&path)).await.is_ok());
}

#[tokio::test]
async fn missing_tables_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(SqliteOptions::new(dir.path().join("t.db"))).await.unwrap();
    assert_eq!(store.schema_status().await.unwrap().missing, Vec::<String>::new(), "no object is missing");
    sqlx::raw_sql("DROP TABLE tenure_leader_requests").execute(store.pool()).await.unwrap();
    let error = store.migrate().await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::SchemaMissing);
    assert!(error.message.contains("table tenure_leader_requests"), "{error}");
    let findings = store.diagnose().await.unwrap();
    assert!(
        findings.iter().any(|finding| finding.status == FindingStatus::Error && finding.check == "schema"),
        "{findings:?}"
    );
}

#[tokio::test]
async fn wide_file_modes_are_reported_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let store = SqliteStore::open(SqliteOptions::new(&path)).await.unwrap();
    let modes = async || {
        let findings = store.diagnose().await.unwrap();
        findings.into_iter().filter(|finding| finding.check == "file modes").collect::<Vec<_>>()
    };
    assert_eq!(modes().await[0].status, FindingStatus::Ok);
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    let found = modes().await;
    assert_eq!((found.len(), found[0].status), (1, FindingStatus::Warning));
    assert!(found[0].value.contains("644") && found[0].advice.contains("chmod"), "{found:?}");
}
