//! Within one process: `flock` belongs to the open file description, so two descriptors of ours do exclude each other.

use super::*;

fn folder() -> (tempfile::TempDir, Folder) {
    let dir = tempfile::tempdir().unwrap();
    let folder = Folder::of(&dir.path().join("t.db"));
    (dir, folder)
}

fn id(name: &str) -> SessionId {
    SessionId::from_stored(name)
}

#[tokio::test]
async fn a_held_lock_means_life_and_a_given_up_one_leaves_nothing() {
    let (_dir, folder) = folder();
    let lock = folder.lock(&id("a")).await.unwrap().unwrap();
    assert_eq!(folder.life(&id("a")), Life::Held);
    drop(lock);
    assert_eq!(folder.life(&id("a")), Life::Unknown);
    assert!(folder.sessions().is_empty());
}

#[tokio::test]
async fn a_lock_that_a_crash_left_free_means_death() {
    let (_dir, folder) = folder();
    let mut lock = folder.lock(&id("a")).await.unwrap().unwrap();
    // What the kernel does at a crash: the descriptor closes and the file stays.
    lock.path = folder.path().join("elsewhere");
    drop(lock);
    assert_eq!(folder.life(&id("a")), Life::Dead);
}

#[tokio::test]
async fn a_duplicate_keeps_the_lock() {
    let (_dir, folder) = folder();
    let held = Held::default();
    held.keep(&id("a"), folder.lock(&id("a")).await.unwrap().unwrap());
    let duplicate = held.duplicate(&id("a")).unwrap();
    // A crash of the first owner, which removes nothing.
    held.locks().get_mut(&id("a")).unwrap().path = folder.path().join("elsewhere");
    held.give_up(&id("a"));
    assert_eq!(folder.life(&id("a")), Life::Held);
    drop(duplicate);
    assert_eq!(folder.life(&id("a")), Life::Dead);
}

#[tokio::test]
async fn a_missing_folder_and_a_copied_one_prove_nothing() {
    let (_dir, folder) = folder();
    let lock = folder.lock(&id("a")).await.unwrap().unwrap();
    let copy = std::fs::read(&lock.path).unwrap();
    std::fs::remove_dir_all(folder.path()).unwrap();
    assert_eq!(folder.life(&id("a")), Life::Unknown);
    // The holder lives, and nobody holds the copy: it must not look like a death.
    folder.make().unwrap();
    let _other = std::fs::write(folder.path().join("other"), "so that the inode is not used again at once");
    std::fs::write(folder.path().join("a.lock"), copy).unwrap();
    assert_eq!(folder.life(&id("a")), Life::Unknown);
}

#[tokio::test]
async fn dropping_the_store_is_no_death() {
    let (_dir, folder) = folder();
    let held = Held::default();
    held.keep(&id("a"), folder.lock(&id("a")).await.unwrap().unwrap());
    drop(held);
    assert_eq!(folder.life(&id("a")), Life::Held);
}

#[tokio::test]
async fn only_abandoned_files_are_cleared_away() {
    let (_dir, folder) = folder();
    let _held = folder.lock(&id("held")).await.unwrap().unwrap();
    std::fs::write(folder.path().join("left.lock"), "").unwrap();
    folder.remove_if_abandoned(&id("held"));
    folder.remove_if_abandoned(&id("left"));
    assert_eq!(folder.sessions(), [id("held")]);
}

#[test]
fn openers_and_cleaners_never_agree_that_a_live_session_is_dead() {
    let (_dir, folder) = folder();
    folder.make().unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    folder.sessions().iter().for_each(|session| folder.remove_if_abandoned(session));
                }
            });
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        for n in 0..500 {
            let session = id(&format!("s{n}"));
            let lock = runtime.block_on(folder.lock(&session)).unwrap().expect("nobody else has this id");
            // It has its lock, so it stands where others look for it, until it is dropped.
            assert!(leads_to(&lock.path, &lock.file), "the lock of {session} has lost its name");
            assert_eq!(folder.life(&session), Life::Held);
            drop(lock);
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn an_id_that_is_a_path_is_refused() {
    let (_dir, folder) = folder();
    for bad in ["", "..", "../a", "a/b", "a b"] {
        assert!(folder.lock_path(&id(bad)).is_err(), "{bad:?}");
        assert_eq!(folder.life(&id(bad)), Life::Unknown);
    }
}

#[tokio::test]
async fn a_watcher_tells_a_death_from_an_end() {
    let (_dir, folder) = folder();
    let (deaths, mut heard) = broadcast::channel(8);
    let watchers = Watchers::new(folder.clone(), deaths);
    let ended = folder.lock(&id("ended")).await.unwrap().unwrap();
    let mut died = folder.lock(&id("died")).await.unwrap().unwrap();
    watchers.watch(&[id("ended"), id("died")]);
    watchers.watch(&[id("ended"), id("died")]);
    assert_eq!(
        watchers.watched.lock().unwrap().len(),
        2,
        "one thread for each, however often it is asked for"
    );
    drop(ended);
    died.path = folder.path().join("elsewhere");
    drop(died);
    assert_eq!(heard.recv().await, Ok(Wake::Died(id("died"))));
    while !watchers.watched.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    assert!(heard.try_recv().is_err(), "a session that ended did not die");
}
