//! The kernel lock: how others know at once, and for certain, that a process is dead.
//!
//! Beside the database lies a folder, `<file>.tenure/`. In it each session has a file `<session>.lock`, locked by
//! `flock` before the session's row appears and until the process is gone. The kernel gives the lock up when the last
//! descriptor of it closes, which no crash can prevent: so *a lock that can be had is a process that is dead*.
//!
//! | what is found | what it means | what follows |
//! |---|---|---|
//! | the lock is held | the process runs, or is stopped | only silence for a lease expires it |
//! | the lock is free | the process is dead | it may be expired at once |
//! | no file, or a copied one | nothing | only silence for a lease expires it |
//!
//! A missing file proves nothing: somebody may have removed the folder, restored it from a backup, or mounted the
//! database without it, while the holder lives. So each file says which inode it is, and one that lies about that
//! was copied, and its holder, if there is one, has another file locked.
//!
//! A session that a server opened on somebody's behalf has no file. It belongs to a client elsewhere, which goes on through
//! another server when this one is gone; so nothing but its silence speaks of its death.
//!
//! Who may remove a file:
//! - anybody, once the session's row says that it is over. Its id is never used again, so the name is nobody's;
//! - anybody who has it locked *exclusively* and finds that its path still leads to it. A new session that had
//!   opened the file but not yet locked it finds, after it has, that its path leads elsewhere, and starts again.
//!
//! A file is always removed *before* its lock is given up. A watcher that then gets the lock sees that the file has no
//! name any more, and does not cry death over a session that ended well. And a lock is never given up while its
//! session may still be trusted: dropping the store does not, only ending the session does, or the process.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::SessionId;
use tenure_core::port::Wake;
use tokio::sync::broadcast;

use super::sys::{Flock, flock};
use crate::backend::private;

/// The most sessions that one client watches by a thread each. Those beyond are waited out by their lease.
const WATCHED_MAX: usize = 1024;

/// How often a new session tries for its own lock, a millisecond apart: another's look at it lasts microseconds.
const LOCK_TRIES: u32 = 100;

/// What the kernel knows of a session's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// It runs, or is stopped.
    Held,
    /// It is dead.
    Dead,
    /// Nothing can be said.
    Unknown,
}

/// The folder beside the database.
#[derive(Clone, Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    /// The folder of this database.
    pub(super) fn of(database: &Path) -> Folder {
        let mut name = database.as_os_str().to_owned();
        name.push(".tenure");
        Folder(name.into())
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Creates the folder, for its owner only, unless it exists.
    pub(super) fn make(&self) -> io::Result<()> {
        private::create_folder(&self.0)
    }

    fn lock_path(&self, session: &SessionId) -> io::Result<PathBuf> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let id = session.as_str();
        if id.is_empty() || id.len() > 128 || !id.chars().all(plain) {
            let message = format!("the session id {id:?} cannot name a file");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        Ok(self.0.join(format!("{id}.lock")))
    }

    /// Locks a new session's file. `None` if somebody else has it: the id is taken.
    pub(super) async fn lock(&self, session: &SessionId) -> io::Result<Option<SessionLock>> {
        let path = self.lock_path(session)?;
        for _ in 0..LOCK_TRIES {
            self.make()?;
            match SessionLock::try_new(&path) {
                Ok(Some(lock)) => return Ok(Some(lock)),
                Ok(None) => {}
                // The folder went away under our feet.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(None)
    }

    /// What the kernel knows of this session's process, right now.
    pub(super) fn life(&self, session: &SessionId) -> Life {
        let Ok(file) = self.lock_path(session).and_then(|path| open(&path)) else { return Life::Unknown };
        match flock(&file, Flock::TryShared) {
            Ok(()) if is_original(&file) => Life::Dead,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Life::Held,
            _ => Life::Unknown,
        }
    }

    /// Removes the file of a session whose row says that it is over.
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

    /// Removes the file of a session that has no live row, if nobody has it locked. A session that is just being
    /// opened has a lock and no row yet, so the lock decides.
    pub(super) fn remove_if_abandoned(&self, session: &SessionId) {
        let Ok(path) = self.lock_path(session) else { return };
        let Ok(file) = open(&path) else { return };
        if flock(&file, Flock::TryExclusive).is_ok() && leads_to(&path, &file) {
            let _ = std::fs::remove_file(&path);
        }
    }
}

/// A session's lock, held. Dropped, it is given up, and its file removed before that.
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
        // Somebody may have taken it for abandoned, and removed it, before we had it locked.
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
        // In this order: whoever gets the lock next must find the file gone.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The locks of the sessions of one client.
#[derive(Debug, Default)]
pub(super) struct Held(Mutex<HashMap<SessionId, SessionLock>>);

impl Held {
    fn locks(&self) -> MutexGuard<'_, HashMap<SessionId, SessionLock>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn contains(&self, session: &SessionId) -> bool {
        self.locks().contains_key(session)
    }

    pub(super) fn keep(&self, session: &SessionId, lock: SessionLock) {
        self.locks().insert(session.clone(), lock);
    }

    /// Gives a lock up. The session is over: its row says so.
    pub(super) fn give_up(&self, session: &SessionId) {
        self.locks().remove(session);
    }

    /// Another descriptor of a lock: it is held until the last one is closed.
    pub(super) fn duplicate(&self, session: &SessionId) -> Option<OwnedFd> {
        self.locks().get(session).and_then(|lock| lock.file.try_clone().ok()).map(OwnedFd::from)
    }
}

impl Drop for Held {
    /// Whoever drops a store may still believe in what it granted, so these sessions are not dead before the process is.
    fn drop(&mut self) {
        for (_, lock) in self.locks().drain() {
            std::mem::forget(lock);
        }
    }
}

/// Threads that wait for the deaths of others.
#[derive(Clone, Debug)]
pub(super) struct Watchers {
    folder: Folder,
    watched: Arc<Mutex<HashSet<SessionId>>>,
    deaths: broadcast::Sender<Wake>,
}

impl Watchers {
    pub(super) fn new(folder: Folder, deaths: broadcast::Sender<Wake>) -> Watchers {
        Watchers { folder, watched: Arc::default(), deaths }
    }

    /// Hears the deaths from now on.
    pub(super) fn deaths(&self) -> broadcast::Receiver<Wake> {
        self.deaths.subscribe()
    }

    /// Watches these sessions, each by a thread that ends with the session it watches.
    pub(super) fn watch(&self, sessions: &[SessionId]) {
        for session in sessions {
            let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
            if watched.len() >= WATCHED_MAX || watched.contains(session) {
                continue;
            }
            // Without a file there is nothing to wait for: this session is waited out by its lease.
            let Ok(file) = self.folder.lock_path(session).and_then(|path| open(&path)) else { continue };
            let (watchers, id) = (self.clone(), session.clone());
            let thread = std::thread::Builder::new().name("tenure-watch".into()).stack_size(64 * 1024);
            // No thread to be had: likewise.
            if thread.spawn(move || watchers.wait_for(&id, &file)).is_ok() {
                watched.insert(session.clone());
            }
        }
    }

    fn wait_for(&self, session: &SessionId, file: &File) {
        let died = died(file);
        self.watched.lock().unwrap_or_else(PoisonError::into_inner).remove(session);
        if died {
            // Nobody listening is no trouble.
            let _ = self.deaths.send(Wake::Died(session.clone()));
        }
    }
}

/// Blocks until the lock can be had. Shared, so that all who wait for it wake at once.
fn died(file: &File) -> bool {
    flock(file, Flock::Shared).is_ok() && is_original(file)
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

/// Whether the file has a name still and is the one that its session locked, not a copy.
fn is_original(file: &File) -> bool {
    let Ok(metadata) = file.metadata() else { return false };
    let mut text = String::new();
    let read = file.take(256).read_to_string(&mut text).is_ok();
    let inode = text.lines().find_map(|line| line.strip_prefix("inode ")?.parse::<u64>().ok());
    read && metadata.nlink() > 0 && inode == Some(metadata.ino())
}

/// Whether this path leads to this file.
fn leads_to(path: &Path, file: &File) -> bool {
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    let there = std::fs::symlink_metadata(path).map(identity);
    let ours = file.metadata().map(identity);
    matches!((there, ours), (Ok(there), Ok(ours)) if there == ours)
}

#[cfg(test)]
#[path = "lock_tests.rs"]
mod tests;
