//! Disks that are full or read-only, and files that are not what they should be.

use std::path::{Path, PathBuf};
use std::process::Command;

use tenure::backend::migrations::Migrate;
use tenure::backend::sqlite::{Sqlite, SqliteOptions};
use tenure_core::port::{Directory, Pulse, Store, Trouble};
use tenure_testkit::conformance::{Actor, election};

use super::child::open;

/// A small file system of its own, unmounted when dropped.
struct Disk(PathBuf, #[allow(dead_code)] tempfile::TempDir);

impl Disk {
    /// `None`, with the reason said, where the tests may not mount.
    fn mount(size: &str) -> Option<Disk> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        std::fs::create_dir(&path).unwrap();
        let options = format!("size={size}");
        let mounted = run("mount", &["-t", "tmpfs", "-o", &options, "tmpfs", path.to_str().unwrap()]);
        if !mounted {
            println!("skipped: mounting a tmpfs needs root");
        }
        mounted.then_some(Disk(path, folder))
    }

    fn remount(&self, option: &str) {
        assert!(run("mount", &["-o", &format!("remount,{option}"), self.0.to_str().unwrap()]));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        run("umount", &["-l", self.0.to_str().unwrap()]);
    }
}

fn run(command: &str, arguments: &[&str]) -> bool {
    Command::new(command).args(arguments).output().is_ok_and(|output| output.status.success())
}

async fn refusal(path: &Path) -> tenure_core::port::StoreError {
    let error = Sqlite::open(SqliteOptions::new(path)).await.expect_err("it must not open");
    assert!(error.message.contains(path.to_str().unwrap()), "the file is not named in: {error}");
    error
}

#[tokio::test]
async fn a_full_disk_passes_without_reopening() {
    let Some(disk) = Disk::mount("4m") else { return };
    let store = open(&disk.0.join("t.db")).await;
    let (a, key) = (Actor::open(std::sync::Arc::new(store.clone()), "a").await, election("e"));
    a.stand(&key).await;
    let token = a.take(&key, 0).await;
    // Everything that is left, to the last byte.
    let filler = disk.0.join("filler");
    let _ = Command::new("dd").args(["if=/dev/zero", "bs=512", &format!("of={}", filler.display())]).output();
    let mut refused = None;
    for _ in 0..2_000 {
        // The log has some pages left that it made before; they are soon used.
        let (beat, join) = (store.beat(&a.id).await, store.leave(&a.id, &election("other")).await);
        let take = store.take(&a.bid(&key, 0).await).await.map(|_| ());
        refused = [beat.map(|_| ()), join, take, put_some(&store).await].into_iter().find_map(Result::err);
        if refused.is_some() {
            break;
        }
    }
    let refused = refused.expect("a full disk is noticed");
    assert_eq!(refused.kind, Trouble::Unavailable, "{refused}");
    assert!(refused.message.contains("full"), "{refused}");
    std::fs::remove_file(filler).unwrap();
    assert!(a.lives().await, "with space again, it goes on");
    a.release(&key, 0, token).await;
    assert!(a.take(&key, 0).await > token);
}

/// Grows the database, by candidates with long names.
async fn put_some(store: &Sqlite) -> Result<(), tenure_core::port::StoreError> {
    let session =
        tenure_testkit::conformance::new_session(&tenure_testkit::conformance::new_id(), &"x".repeat(9_000));
    store.open(&session).await.map(|_| ())
}

#[tokio::test]
async fn a_read_only_disk_is_refused_and_a_writable_one_is_not() {
    let Some(disk) = Disk::mount("4m") else { return };
    let path = disk.0.join("t.db");
    {
        let store = open(&path).await;
        let a = Actor::open(std::sync::Arc::new(store.clone()), "a").await;
        a.store.end(&a.id).await.unwrap();
        store.pool().close().await;
    }
    // Linux refuses to remount while files are open for writing, so a new client meets the read-only disk.
    let mut refused = None;
    for _ in 0..200 {
        if run("mount", &["-o", "remount,ro", disk.0.to_str().unwrap()]) {
            refused = Some(refusal(&path).await);
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let refused = refused.expect("the last client has gone");
    assert_eq!(refused.kind, Trouble::Unavailable, "{refused}");
    assert!(refused.message.contains("read-only"), "{refused}");
    disk.remount("rw");
    assert!(open(&path).await.elections(None).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_file_that_is_moved_away_is_not_the_truth_any_more() {
    let dir = tempfile::tempdir().unwrap();
    let (path, away) = (dir.path().join("t.db"), dir.path().join("away.db"));
    let store = open(&path).await;
    let a = Actor::open(std::sync::Arc::new(store.clone()), "a").await;
    std::fs::rename(&path, &away).unwrap();
    assert_eq!(store.beat(&a.id).await.unwrap_err().kind, Trouble::Unavailable);
    std::fs::write(&path, "").unwrap();
    let error = store.beat(&a.id).await.unwrap_err();
    assert!(error.message.contains("replaced") && error.message.contains("t.db"), "{error}");
    std::fs::rename(&away, &path).unwrap();
    assert!(matches!(store.beat(&a.id).await, Ok(Pulse::Alive { .. })));
}

#[tokio::test]
async fn what_is_not_a_store_is_refused_with_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("notes.txt");
    std::fs::write(&text, "this is no database, and long enough to be sure of that. ".repeat(40)).unwrap();
    assert_eq!(refusal(&text).await.kind, Trouble::Unfit);
    let missing = refusal(&dir.path().join("no/such/t.db")).await;
    assert_eq!(missing.kind, Trouble::Address);
    assert!(missing.message.contains("mkdir -p"));
    assert_eq!(refusal(dir.path()).await.kind, Trouble::Address);
    let made = SqliteOptions::new(dir.path().join("made/for/me/t.db")).create_folders(true);
    assert!(Sqlite::open(made).await.is_ok());
}

#[tokio::test]
async fn a_newer_schema_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let store = open(&path).await;
    assert_eq!(store.migrate().await, Ok(Vec::new()), "nothing is pending");
    sqlx::query("INSERT INTO tenure_migrations VALUES (999, 'from the future', 999, 0)")
        .execute(store.pool())
        .await
        .unwrap();
    let error = refusal(&path).await;
    assert_eq!(error.kind, Trouble::SchemaVersion);
    assert!(error.message.contains("999") && error.message.contains("Upgrade"), "{error}");
}

#[tokio::test]
async fn without_tables_every_call_says_how_to_make_them() {
    let dir = tempfile::tempdir().unwrap();
    let store = Sqlite::open(SqliteOptions::new(dir.path().join("t.db")).migrate(false)).await.unwrap();
    let status = store.schema_status().await.unwrap();
    let versions: Vec<i64> = status.pending.iter().map(|(version, _)| *version).collect();
    assert_eq!((status.found, versions), (None, (1..=status.wanted).collect()));
    let error = store.elections(None).await.unwrap_err();
    assert_eq!(error.kind, Trouble::SchemaMissing);
    assert!(error.message.contains("tenure migrate up"));
    assert_eq!(store.migrate().await, Ok(status.pending));
    assert_eq!(store.elections(None).await, Ok(Vec::new()));
}

#[tokio::test]
async fn a_writer_that_takes_too_long_is_trouble_that_passes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let store = Sqlite::open(SqliteOptions::new(&path).busy_timeout(std::time::Duration::from_millis(20)))
        .await
        .unwrap();
    let a = Actor::open(std::sync::Arc::new(store.clone()), "a").await;
    let other = open(&path).await;
    let long = other.pool().begin_with("BEGIN IMMEDIATE").await.unwrap();
    assert_eq!(store.beat(&a.id).await.unwrap_err().kind, Trouble::Timeout);
    assert_eq!(store.end(&a.id).await.unwrap_err().kind, Trouble::Timeout);
    assert!(store.elections(None).await.is_ok(), "reading goes on");
    long.rollback().await.unwrap();
    assert!(a.lives().await);
}

/// SQLite holds the file by POSIX locks, which end when *any* descriptor of it in the process is closed. A store that
/// opened the file to look at it would take them from every other store in the process, and the log with them.
#[tokio::test]
async fn opening_a_second_client_leaves_the_locks_of_the_first() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let inode = |path: &Path| std::fs::metadata(path).unwrap().ino();
    let locked = |path: &Path| {
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(|lock| lock.contains("POSIX") && lock.contains(&format!(":{} ", inode(path))))
    };
    let first = open(&path).await;
    assert!(
        first.elections(None).await.is_ok() && locked(&path),
        "an open log is held by a lock on the file"
    );
    let second = open(&path).await;
    assert!(second.elections(None).await.is_ok() && locked(&path));
    drop(std::fs::File::open(&path).unwrap());
    assert!(!locked(&path), "the control: this is how the lock is lost");
}

/// A file of the first version is migrated when somebody asks for it, and what is in it stays.
#[tokio::test]
async fn an_old_file_is_upgraded_where_it_lies() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let old = Sqlite::open(SqliteOptions::new(&path).migrate(false)).await.unwrap();
    let first = include_str!("../../src/backend/sqlite/migrations/0001_elections.sql");
    let rows = "INSERT INTO tenure_migrations VALUES (1, 'elections', 1, 0);
                INSERT INTO tenure_sessions VALUES ('s', 'old', 3, 1000, 'live', 'lease', 0, 0, NULL);";
    for sql in [first, rows] {
        sqlx::raw_sql(sql).execute(old.pool()).await.unwrap();
    }
    assert_eq!(old.schema_status().await.unwrap().found, Some(1));
    assert_eq!(refusal(&path).await.kind, Trouble::SchemaVersion);
    old.migrate().await.unwrap();
    let store = open(&path).await;
    let status = store.schema_status().await.unwrap();
    assert_eq!((status.found, status.pending), (Some(status.wanted), vec![]));
    let session = store.sessions(None).await.unwrap().remove(0);
    assert_eq!((session.name.as_str(), session.beat, session.owner), ("old", 3, None));
}
