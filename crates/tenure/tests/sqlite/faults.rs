//! Full and read-only disks, and files that are not databases.

use std::path::{Path, PathBuf};
use std::process::Command;

use tenure::store::migrations::SchemaMigrator;
use tenure::store::sqlite::{SqliteOptions, SqliteStore};
use tenure_core::port::{ElectionAdmin, ElectionStore, ErrorKind, HeartbeatResponse};
use tenure_testkit::conformance::{TestSession, election};

use super::child::open;

/// A small file system that is unmounted when dropped.
struct Disk(PathBuf, #[allow(dead_code)] tempfile::TempDir);

impl Disk {
    /// `None` if the tests may not mount.
    fn mount(size: &str) -> Option<Disk> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        std::fs::create_dir(&path).unwrap();
        let options = format!("size={size}");
        let mounted = run("mount", &["-t", "tmpfs", "-o", &options, "tmpfs", path.to_str().unwrap()]);
        if !mounted {
            println!("skipped: mounting a tmpfs needs root");
        }
        mounted.then_some(Disk(path, directory))
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

async fn open_error(path: &Path) -> tenure_core::port::StoreError {
    let error = SqliteStore::open(SqliteOptions::new(path)).await.expect_err("opening must fail");
    assert!(error.message.contains(path.to_str().unwrap()), "the message does not name the file: {error}");
    error
}

#[tokio::test]
async fn the_store_recovers_from_a_full_disk() {
    let Some(disk) = Disk::mount("4m") else { return };
    let store = open(&disk.0.join("t.db")).await;
    let (a, key) = (TestSession::open(std::sync::Arc::new(store.clone()), "a").await, election("e"));
    a.join(&key).await;
    let token = a.take(&key, 0).await;
    // Fill the disk completely.
    let filler = disk.0.join("filler");
    let _ = Command::new("dd").args(["if=/dev/zero", "bs=512", &format!("of={}", filler.display())]).output();
    let mut refused = None;
    for _ in 0..2_000 {
        // The log can still use pages that it allocated before.
        let (heartbeat, join) =
            (store.heartbeat(&a.id).await, store.leave_election(&a.id, &election("other")).await);
        let take = store.take_lease(&a.take_request(&key, 0).await).await.map(|_| ());
        refused = [heartbeat.map(|_| ()), join, take, grow_database(&store).await]
            .into_iter()
            .find_map(Result::err);
        if refused.is_some() {
            break;
        }
    }
    let refused = refused.expect("an error on a full disk");
    assert_eq!(refused.kind, ErrorKind::Unavailable, "{refused}");
    assert!(refused.message.contains("full"), "{refused}");
    std::fs::remove_file(filler).unwrap();
    assert!(a.is_live().await, "the store recovers after space is freed");
    a.release(&key, 0, token).await;
    assert!(a.take(&key, 0).await > token);
}

/// Grow the database with sessions that have long names.
async fn grow_database(store: &SqliteStore) -> Result<(), tenure_core::port::StoreError> {
    let session =
        tenure_testkit::conformance::new_session(&tenure_testkit::conformance::new_id(), &"x".repeat(9_000));
    store.open_session(&session).await.map(|_| ())
}

#[tokio::test]
async fn a_read_only_disk_is_rejected() {
    let Some(disk) = Disk::mount("4m") else { return };
    let path = disk.0.join("t.db");
    {
        let store = open(&path).await;
        let a = TestSession::open(std::sync::Arc::new(store.clone()), "a").await;
        a.store.end_session(&a.id).await.unwrap();
        store.pool().close().await;
    }
    // Linux does not remount while files are open for writing, so a new client opens the read-only disk.
    let mut refused = None;
    for _ in 0..200 {
        if run("mount", &["-o", "remount,ro", disk.0.to_str().unwrap()]) {
            refused = Some(open_error(&path).await);
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let refused = refused.expect("the disk can be remounted");
    assert_eq!(refused.kind, ErrorKind::Unavailable, "{refused}");
    assert!(refused.message.contains("read-only"), "{refused}");
    disk.remount("rw");
    assert!(open(&path).await.elections(None).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_moved_file_makes_every_call_fail() {
    let dir = tempfile::tempdir().unwrap();
    let (path, away) = (dir.path().join("t.db"), dir.path().join("away.db"));
    let store = open(&path).await;
    let a = TestSession::open(std::sync::Arc::new(store.clone()), "a").await;
    std::fs::rename(&path, &away).unwrap();
    assert_eq!(store.heartbeat(&a.id).await.unwrap_err().kind, ErrorKind::Unavailable);
    std::fs::write(&path, "").unwrap();
    let error = store.heartbeat(&a.id).await.unwrap_err();
    assert!(error.message.contains("replaced") && error.message.contains("t.db"), "{error}");
    std::fs::rename(&away, &path).unwrap();
    assert!(matches!(store.heartbeat(&a.id).await, Ok(HeartbeatResponse::Live { .. })));
}

#[tokio::test]
async fn an_invalid_path_is_rejected_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("notes.txt");
    std::fs::write(&text, "this text is not a database and longer than its header. ".repeat(40)).unwrap();
    assert_eq!(open_error(&text).await.kind, ErrorKind::Misconfigured);
    let missing = open_error(&dir.path().join("no/such/t.db")).await;
    assert_eq!(missing.kind, ErrorKind::Address);
    assert!(missing.message.contains("mkdir -p"));
    assert_eq!(open_error(dir.path()).await.kind, ErrorKind::Address);
    let created = SqliteOptions::new(dir.path().join("made/for/me/t.db")).create_directories(true);
    assert!(SqliteStore::open(created).await.is_ok());
}

#[tokio::test]
async fn a_newer_schema_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let store = open(&path).await;
    assert_eq!(store.migrate().await, Ok(Vec::new()), "no migration is pending");
    sqlx::query("INSERT INTO tenure_migrations VALUES (999, 'future', 999, 0)")
        .execute(store.pool())
        .await
        .unwrap();
    let error = open_error(&path).await;
    assert_eq!(error.kind, ErrorKind::SchemaVersion);
    assert!(error.message.contains("999") && error.message.contains("Upgrade"), "{error}");
}

#[tokio::test]
async fn without_tables_every_call_names_the_migration_command() {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(SqliteOptions::new(dir.path().join("t.db")).migrate(false)).await.unwrap();
    let status = store.schema_status().await.unwrap();
    let versions: Vec<i64> = status.pending.iter().map(|(version, _)| *version).collect();
    assert_eq!((status.found, versions), (None, (1..=status.wanted).collect()));
    let error = store.elections(None).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::SchemaMissing);
    assert!(error.message.contains("tenure migrate up"));
    assert_eq!(store.migrate().await, Ok(status.pending));
    assert_eq!(store.elections(None).await, Ok(Vec::new()));
}

#[tokio::test]
async fn a_long_write_transaction_causes_a_timeout() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let store =
        SqliteStore::open(SqliteOptions::new(&path).busy_timeout(std::time::Duration::from_millis(20)))
            .await
            .unwrap();
    let a = TestSession::open(std::sync::Arc::new(store.clone()), "a").await;
    let other = open(&path).await;
    let long = other.pool().begin_with("BEGIN IMMEDIATE").await.unwrap();
    assert_eq!(store.heartbeat(&a.id).await.unwrap_err().kind, ErrorKind::Timeout);
    assert_eq!(store.end_session(&a.id).await.unwrap_err().kind, ErrorKind::Timeout);
    assert!(store.elections(None).await.is_ok(), "reads continue");
    long.rollback().await.unwrap();
    assert!(a.is_live().await);
}

/// SQLite uses POSIX locks, which end when the process closes *any* descriptor of the file. A store that opened and closed the file to
/// check it would release the locks of every other store in the process.
#[tokio::test]
async fn opening_a_second_client_keeps_the_locks_of_the_first() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let inode = |path: &Path| std::fs::metadata(path).unwrap().ino();
    let locked = |path: &Path| {
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(|lock| lock.contains("POSIX") && lock.contains(&format!(":{} ", inode(path))))
    };
    let first = open(&path).await;
    assert!(first.elections(None).await.is_ok() && locked(&path), "an open log locks the file");
    let second = open(&path).await;
    assert!(second.elections(None).await.is_ok() && locked(&path));
    drop(std::fs::File::open(&path).unwrap());
    assert!(!locked(&path), "the control: closing a descriptor releases the lock");
}
