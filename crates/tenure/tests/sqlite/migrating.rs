//! Which opening migrates the file, and which programs run on it.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tenure::backend::migrations::{Compatibility, Migrate, Migration, Schema};
use tenure::backend::sqlite::{Sqlite, SqliteOptions};
use tenure::backend::{StoreOptions, migrator, open};
use tenure_core::port::{Directory, Trouble, Verdict};
use tenure_testkit::conformance::Actor;

const ADD: &str = "ALTER TABLE tenure_sessions ADD COLUMN later TEXT;";

fn current() -> i64 {
    SqliteOptions::new("").schema.version()
}

/// A program of an earlier version.
fn before(path: &Path) -> SqliteOptions {
    let mut options = SqliteOptions::new(path);
    let all = options.schema.migrations;
    options.schema = Schema { migrations: &all[..all.len() - 1], oldest_schema: current() - 1 };
    options
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
async fn what_only_reads_creates_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    assert_eq!(open(&to_read(&path)).await.unwrap().elections(None).await.unwrap(), []);
    assert_eq!(version(&path).await, None);
    let error = migrator(&to_read(&path)).await.unwrap().migrate().await.unwrap_err();
    assert!(error.message.contains("does not exist"), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing was created");
    let error = open(&to_read(&dir.path().join("no/such/t.db"))).await.err().unwrap();
    assert_eq!(error.kind, Trouble::Address, "a folder that is not there is a mistake");
}

/// SQLite was migrated whenever anything opened the file, even by a read command of a newer binary, which locked older
/// services out.
#[tokio::test]
async fn a_file_is_not_migrated_where_that_locks_older_programs_out() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let older = Sqlite::open(before(&path)).await.unwrap();
    let running = Actor::open(std::sync::Arc::new(older), "older").await;
    let read = open(&to_read(&path)).await.err().unwrap();
    let write = Sqlite::open(SqliteOptions::new(&path)).await.err().unwrap();
    for error in [read, write] {
        assert_eq!(error.kind, Trouble::SchemaVersion);
        assert!(error.message.contains("tenure migrate up"), "{error}");
    }
    assert_eq!(version(&path).await, Some(current() - 1), "nothing was migrated");
    assert!(running.lives().await);
    assert!(Sqlite::open(before(&path)).await.is_ok(), "and the older program starts again");

    let store = Sqlite::open(SqliteOptions::new(&path).migrate(false)).await.unwrap();
    assert_eq!(store.migrate().await.unwrap().len(), 1, "who asks for it gets it");
    assert!(Sqlite::open(SqliteOptions::new(&path)).await.is_ok());
}

#[tokio::test]
async fn programs_of_adjacent_versions_share_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let old = Sqlite::open(SqliteOptions::new(&path)).await.unwrap();
    let old = Actor::open(std::sync::Arc::new(old), "old").await;

    // It breaks older programs, so nothing is migrated; and it runs on the older schema.
    let careful = Sqlite::open(next(&path, current() + 1, current())).await.unwrap();
    assert_eq!(careful.schema_status().await.unwrap().compatibility(), Compatibility::OlderCompatible);
    assert!(Actor::open(std::sync::Arc::new(careful), "careful").await.lives().await);
    assert_eq!(version(&path).await, Some(current()));

    // Up: this one locks nobody out, and migrates by itself.
    let new = Sqlite::open(next(&path, current(), current())).await.unwrap();
    let new = Actor::open(std::sync::Arc::new(new), "new").await;
    assert_eq!(version(&path).await, Some(current() + 1));
    assert!(old.lives().await && new.lives().await);

    // Down: the old program starts again on the newer schema.
    let again = Sqlite::open(SqliteOptions::new(&path)).await.unwrap();
    assert_eq!(again.schema_status().await.unwrap().compatibility(), Compatibility::NewerCompatible);
    assert_eq!(again.migrate().await, Ok(Vec::new()));
    assert!(Actor::open(std::sync::Arc::new(again), "again").await.lives().await);
    assert!(open(&to_read(&path)).await.is_ok());
}

#[tokio::test]
async fn lost_tables_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let store = Sqlite::open(SqliteOptions::new(dir.path().join("t.db"))).await.unwrap();
    assert_eq!(store.schema_status().await.unwrap().missing, Vec::<String>::new(), "everything is found");
    sqlx::raw_sql("DROP TABLE tenure_requests").execute(store.pool()).await.unwrap();
    let error = store.migrate().await.unwrap_err();
    assert_eq!(error.kind, Trouble::SchemaMissing);
    assert!(error.message.contains("table tenure_requests"), "{error}");
    let findings = store.examine().await.unwrap();
    assert!(
        findings.iter().any(|finding| finding.verdict == Verdict::Bad && finding.check == "schema"),
        "{findings:?}"
    );
}

#[tokio::test]
async fn wide_modes_are_found_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let store = Sqlite::open(SqliteOptions::new(&path)).await.unwrap();
    let modes = async || {
        let findings = store.examine().await.unwrap();
        findings.into_iter().filter(|finding| finding.check == "file modes").collect::<Vec<_>>()
    };
    assert_eq!(modes().await[0].verdict, Verdict::Good);
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    let found = modes().await;
    assert_eq!((found.len(), found[0].verdict), (1, Verdict::Fair));
    assert!(found[0].value.contains("644") && found[0].advice.contains("chmod"), "{found:?}");
}
