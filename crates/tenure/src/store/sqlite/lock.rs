//! Kernel locks: other processes detect the death of a process at once and with certainty.
//!
//! The lock directory `<file>.tenure/` beside the database holds a file `<session>.lock` for each session. The process locks it with
//! `flock` before the row of the session appears, and until it exits. The kernel releases the lock when its last descriptor closes,
//! which no crash can prevent. So *a free lock means that the process is dead*.
//!
//! | observation | meaning | consequence |
//! |---|---|---|
//! | the lock is held | the process runs or is stopped | the session expires only after a silent lease |
//! | the lock is free | the process is dead | the session may expire at once |
//! | the file is missing or a copy | unknown | the session expires only after a silent lease |
//!
//! A missing file proves nothing: the directory may have been removed, restored from a backup, or not mounted, while the process
//! runs. Therefore each file stores its inode. A file with another inode is a copy, and the process locks the original.
//!
//! A session that a server opened for a client has no file. The client continues through another server when this one stops, so only
//! missing heartbeats show its death.
//!
//! A process may remove a lock file in two cases:
//! - The row of the session has ended. Session ids are never reused.
//! - The process holds the lock *exclusively*, and the path still leads to the file. A new session that has opened the file but not
//!   locked it yet finds afterwards that the path leads elsewhere, and starts again.
//!
//! A file is always removed *before* its lock is released. A watcher that then gets the lock sees a file without a name, and does not
//! report a death. A lock is never released while its session may still be trusted: only the end of the session or of the process
//! releases it, not dropping the store.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::SessionId;
use tenure_core::port::Notification;
use tokio::sync::broadcast;

use super::sys::{Flock, flock};
use crate::store::private;

/// Maximum number of sessions that one client watches, each with a thread. Other sessions expire after their lease.
const WATCHED_MAX: usize = 1024;

/// Attempts of a new session to lock its file, one per millisecond. A check by another process holds the lock for microseconds.
const LOCK_TRIES: u32 = 100;

/// What the lock tells about the process of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockState {
    /// The process runs or is stopped.
    Held,
    /// The process is dead.
    Dead,
    /// The file is missing or a copy.
    Unknown,
}

/// The lock directory beside the database.
#[derive(Clone, Debug)]
pub(super) struct LockDirectory(PathBuf);

impl LockDirectory {
    /// The lock directory of a database.
    pub(super) fn of(database: &Path) -> LockDirectory {
        let mut name = database.as_os_str().to_owned();
        name.push(".tenure");
        LockDirectory(name.into())
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Create the directory for its owner only, unless it exists.
    pub(super) fn make(&self) -> io::Result<()> {
        private::create_directory(&self.0)
    }

    fn lock_path(&self, session: &SessionId) -> io::Result<PathBuf> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let id = session.as_str();
        if id.is_empty() || id.len() > 128 || !id.chars().all(plain) {
            let message = format!("the session id {id:?} is not a valid file name");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        Ok(self.0.join(format!("{id}.lock")))
    }

    /// Create and lock the file of a new session. `None` if another process holds the lock.
    pub(super) async fn lock(&self, session: &SessionId) -> io::Result<Option<SessionLock>> {
        let path = self.lock_path(session)?;
        for _ in 0..LOCK_TRIES {
            self.make()?;
            match SessionLock::try_new(&path) {
                Ok(Some(lock)) => return Ok(Some(lock)),
                Ok(None) => {}
                // The directory was removed in the meantime.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(None)
    }

    /// The current state of the lock of a session.
    pub(super) fn lock_state(&self, session: &SessionId) -> LockState {
        let Ok(file) = self.lock_path(session).and_then(|path| open(&path)) else {
            return LockState::Unknown;
        };
        match flock(&file, Flock::TryShared) {
            Ok(()) if is_original(&file) => LockState::Dead,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => LockState::Held,
            _ => LockState::Unknown,
        }
    }

    /// Remove the file of an ended session.
    pub(super) fn remove(&self, session: &SessionId) {
        if let Ok(path) = self.lock_path(session) {
            let _ = std::fs::remove_file(path);
        }
    }

    /// The sessions that have a file.
    pub(super) fn sessions(&self) -> Vec<SessionId> {
        let Ok(entries) = std::fs::read_dir(&self.0) else { return Vec::new() };
        let id = |name: &str| name.strip_suffix(".lock").map(SessionId::from_stored);
        entries.flatten().filter_map(|entry| entry.file_name().to_str().and_then(id)).collect()
    }

    /// Remove the file of a session without a live row, if no process holds its lock. A session that is being opened has a lock before
    /// its row, so the lock decides.
    pub(super) fn remove_if_abandoned(&self, session: &SessionId) {
        let Ok(path) = self.lock_path(session) else { return };
        let Ok(file) = open(&path) else { return };
        if flock(&file, Flock::TryExclusive).is_ok() && leads_to(&path, &file) {
            let _ = std::fs::remove_file(&path);
        }
    }
}

/// The held lock of a session. Dropping it removes the file, then releases the lock.
#[derive(Debug)]
pub(super) struct SessionLock {
    file: File,
    path: PathBuf,
}

impl SessionLock {
    fn try_new(path: &Path) -> io::Result<Option<SessionLock>> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = private::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(flags)
            .open(path)?;
        match flock(&file, Flock::TryExclusive) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        }
        // Another process may have removed the file as abandoned before this one locked it.
        if !leads_to(path, &file) {
            return Ok(None);
        }
        let mut lock = SessionLock { file, path: path.into() };
        let inode = lock.file.metadata()?.ino();
        lock.file.set_len(0)?;
        lock.file.write_all(format!("inode {inode}\npid {}\n", std::process::id()).as_bytes())?;
        Ok(Some(lock))
    }
}

impl Drop for SessionLock {
    fn drop(&mut self) {
        // Remove the file before the lock is released: the next holder must find it removed.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The locks of the sessions of one client.
#[derive(Debug, Default)]
pub(super) struct SessionLocks(Mutex<HashMap<SessionId, SessionLock>>);

impl SessionLocks {
    fn locks(&self) -> MutexGuard<'_, HashMap<SessionId, SessionLock>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn contains(&self, session: &SessionId) -> bool {
        self.locks().contains_key(session)
    }

    pub(super) fn keep(&self, session: &SessionId, lock: SessionLock) {
        self.locks().insert(session.clone(), lock);
    }

    /// Release the lock of an ended session.
    pub(super) fn give_up(&self, session: &SessionId) {
        self.locks().remove(session);
    }

    /// Another descriptor of a lock. The lock is held until the last descriptor is closed.
    pub(super) fn duplicate(&self, session: &SessionId) -> Option<OwnedFd> {
        self.locks().get(session).and_then(|lock| lock.file.try_clone().ok()).map(OwnedFd::from)
    }
}

impl Drop for SessionLocks {
    /// Keep the locks until the process exits: a part of the process may still rely on a lease after the store is dropped.
    fn drop(&mut self) {
        for (_, lock) in self.locks().drain() {
            std::mem::forget(lock);
        }
    }
}

/// Threads that wait for the death of other processes.
#[derive(Clone, Debug)]
pub(super) struct LockWatchers {
    directory: LockDirectory,
    watched: Arc<Mutex<HashSet<SessionId>>>,
    deaths: broadcast::Sender<Notification>,
}

impl LockWatchers {
    pub(super) fn new(directory: LockDirectory, deaths: broadcast::Sender<Notification>) -> LockWatchers {
        LockWatchers { directory, watched: Arc::default(), deaths }
    }

    /// Subscribe to deaths.
    pub(super) fn deaths(&self) -> broadcast::Receiver<Notification> {
        self.deaths.subscribe()
    }

    /// Watch these sessions, each with a thread that ends when the lock is free.
    pub(super) fn watch(&self, sessions: &[SessionId]) {
        for session in sessions {
            let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
            if watched.len() >= WATCHED_MAX || watched.contains(session) {
                continue;
            }
            // A session without a file expires after its lease.
            let Ok(file) = self.directory.lock_path(session).and_then(|path| open(&path)) else { continue };
            let (watchers, id) = (self.clone(), session.clone());
            let thread = std::thread::Builder::new().name("tenure-watch".into()).stack_size(64 * 1024);
            // So does a session for which no thread can be started.
            if thread.spawn(move || watchers.wait_for(&id, &file)).is_ok() {
                watched.insert(session.clone());
            }
        }
    }

    fn wait_for(&self, session: &SessionId, file: &File) {
        let died = wait_for_death(file);
        self.watched.lock().unwrap_or_else(PoisonError::into_inner).remove(session);
        if died {
            // An error means that no client listens.
            let _ = self.deaths.send(Notification::SessionExpired(session.clone()));
        }
    }
}

/// Block until the lock is free; whether the process died. A shared lock lets all watchers continue at once.
fn wait_for_death(file: &File) -> bool {
    flock(file, Flock::Shared).is_ok() && is_original(file)
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

/// Whether the file still has a name and is the original, not a copy.
fn is_original(file: &File) -> bool {
    let Ok(metadata) = file.metadata() else { return false };
    let mut text = String::new();
    let read = file.take(256).read_to_string(&mut text).is_ok();
    let inode = text.lines().find_map(|line| line.strip_prefix("inode ")?.parse::<u64>().ok());
    read && metadata.nlink() > 0 && inode == Some(metadata.ino())
}

/// Whether the path leads to the file.
fn leads_to(path: &Path, file: &File) -> bool {
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    let there = std::fs::symlink_metadata(path).map(identity);
    let ours = file.metadata().map(identity);
    matches!((there, ours), (Ok(there), Ok(ours)) if there == ours)
}

#[cfg(test)]
#[path = "lock_tests.rs"]
mod tests;
