//! Tests in one process: `flock` belongs to the open file description, so two descriptors of one process exclude each other.

use super::*;

fn directory() -> (tempfile::TempDir, LockDirectory) {
    let dir = tempfile::tempdir().unwrap();
    let directory = LockDirectory::of(&dir.path().join("t.db"));
    (dir, directory)
}

fn id(name: &str) -> SessionId {
    SessionId::from_stored(name)
}

#[tokio::test]
async fn a_released_lock_removes_its_file() {
    let (_dir, directory) = directory();
    let lock = directory.lock(&id("a")).await.unwrap().unwrap();
    assert_eq!(directory.lock_state(&id("a")), LockState::Held);
    drop(lock);
    assert_eq!(directory.lock_state(&id("a")), LockState::Unknown);
    assert!(directory.sessions().is_empty());
}

#[tokio::test]
async fn a_free_lock_after_a_crash_means_death() {
    let (_dir, directory) = directory();
    let mut lock = directory.lock(&id("a")).await.unwrap().unwrap();
    // Like a crash: the descriptor closes and the file stays.
    lock.path = directory.path().join("elsewhere");
    drop(lock);
    assert_eq!(directory.lock_state(&id("a")), LockState::Dead);
}

#[tokio::test]
async fn a_duplicated_descriptor_keeps_the_lock() {
    let (_dir, directory) = directory();
    let held = SessionLocks::default();
    held.keep(&id("a"), directory.lock(&id("a")).await.unwrap().unwrap());
    let duplicate = held.duplicate(&id("a")).unwrap();
    // A crash of the first owner removes no file.
    held.locks().get_mut(&id("a")).unwrap().path = directory.path().join("elsewhere");
    held.give_up(&id("a"));
    assert_eq!(directory.lock_state(&id("a")), LockState::Held);
    drop(duplicate);
    assert_eq!(directory.lock_state(&id("a")), LockState::Dead);
}

#[tokio::test]
async fn a_missing_or_copied_directory_proves_nothing() {
    let (_dir, directory) = directory();
    let lock = directory.lock(&id("a")).await.unwrap().unwrap();
    let copy = std::fs::read(&lock.path).unwrap();
    std::fs::remove_dir_all(directory.path()).unwrap();
    assert_eq!(directory.lock_state(&id("a")), LockState::Unknown);
    // The holder runs and the copy is not locked: this must not look like a death.
    directory.make().unwrap();
    let _other = std::fs::write(directory.path().join("other"), "keeps the inode from being reused");
    std::fs::write(directory.path().join("a.lock"), copy).unwrap();
    assert_eq!(directory.lock_state(&id("a")), LockState::Unknown);
}

#[tokio::test]
async fn dropping_the_store_keeps_the_locks() {
    let (_dir, directory) = directory();
    let held = SessionLocks::default();
    held.keep(&id("a"), directory.lock(&id("a")).await.unwrap().unwrap());
    drop(held);
    assert_eq!(directory.lock_state(&id("a")), LockState::Held);
}

#[tokio::test]
async fn only_abandoned_files_are_removed() {
    let (_dir, directory) = directory();
    let _held = directory.lock(&id("held")).await.unwrap().unwrap();
    std::fs::write(directory.path().join("left.lock"), "").unwrap();
    directory.remove_if_abandoned(&id("held"));
    directory.remove_if_abandoned(&id("left"));
    assert_eq!(directory.sessions(), [id("held")]);
}

#[test]
fn removing_abandoned_files_never_affects_a_new_session() {
    let (_dir, directory) = directory();
    directory.make().unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    directory.sessions().iter().for_each(|session| directory.remove_if_abandoned(session));
                }
            });
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        for n in 0..500 {
            let session = id(&format!("s{n}"));
            let lock =
                runtime.block_on(directory.lock(&session)).unwrap().expect("no other session has this id");
            // While the lock is held, its path leads to its file.
            assert!(leads_to(&lock.path, &lock.file), "the file of {session} was removed");
            assert_eq!(directory.lock_state(&session), LockState::Held);
            drop(lock);
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn a_session_id_that_is_a_path_is_rejected() {
    let (_dir, directory) = directory();
    for bad in ["", "..", "../a", "a/b", "a b"] {
        assert!(directory.lock_path(&id(bad)).is_err(), "{bad:?}");
        assert_eq!(directory.lock_state(&id(bad)), LockState::Unknown);
    }
}

#[tokio::test]
async fn a_watcher_distinguishes_a_death_from_an_end() {
    let (_dir, directory) = directory();
    let (deaths, mut notifications) = broadcast::channel(8);
    let watchers = LockWatchers::new(directory.clone(), deaths);
    let ended = directory.lock(&id("ended")).await.unwrap().unwrap();
    let mut died = directory.lock(&id("died")).await.unwrap().unwrap();
    watchers.watch(&[id("ended"), id("died")]);
    watchers.watch(&[id("ended"), id("died")]);
    assert_eq!(watchers.watched.lock().unwrap().len(), 2, "one thread for each session");
    drop(ended);
    died.path = directory.path().join("elsewhere");
    drop(died);
    assert_eq!(notifications.recv().await, Ok(Notification::SessionExpired(id("died"))));
    while !watchers.watched.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    assert!(notifications.try_recv().is_err(), "an ended session is not reported as dead");
}
