//! The SQLite store: one file, shared by the processes of one machine. It is the default, because it needs no server.
//!
//! # Model
//!
//! The file holds all state. The store changes it only in `BEGIN IMMEDIATE` transactions. SQLite runs one of them at a time, and
//! each compares the rows with what its caller observed. The lock directory `<file>.tenure/` beside the file speeds up detection:
//!
//! | file in the directory | purpose | effect if it is missing |
//! |---|---|---|
//! | `<session>.lock` | the kernel locks it while the process of the session exists | a crash is detected after one lease |
//! | `<client>.notify` | a FIFO that carries notifications from other processes | changes are detected by polling |
//! | `epoch` | repeats the write counter of the file, to detect a restored older copy (`epoch.rs`) | such a copy is not detected |
//!
//! A session expires for one of two reasons: it sent no heartbeat for its lease, as on every store, or its lock is free, which
//! means that its process is dead. The store asks the kernel about the lock directly before the transaction that expires the
//! session; a dead process stays dead. A stopped process keeps its lock and expires after its lease. [`TakeoverMode`] makes no
//! difference here: the lock is as fast as a connection and as safe as a lease.
//!
//! # Failures
//!
//! | failure | effect |
//! |---|---|
//! | the process is killed | its leases are free within about a millisecond |
//! | the machine loses power | every acknowledged grant is on the disk, so no token repeats |
//! | the disk is full or read-only | calls fail and leaders stop at the end of their lease; the store recovers without a restart |
//! | another transaction writes for too long | calls fail after [`SqliteOptions::busy_timeout`] |
//! | the file is moved, deleted or replaced | every call fails, because the state of this process is not in the new file |
//! | the file is restored from a copy, or copied | a new epoch starts, so no token or event id repeats (`epoch.rs`) |
//! | the file is on a network file system | the store refuses to open it (`filesystem.rs`) |
//!
//! Deleting the file deletes its tokens. If it must be deleted, first stop every process that uses it, and keep the lock directory.
//!
//! The store creates the file, its log files and the directory for their owner only (0600, 0700), regardless of the umask: they hold
//! payloads and secrets, and a process that can write to them can become leader. The store logs a warning about wider modes of
//! existing files and does not change them.
//!
//! [`TakeoverMode`]: tenure_core::port::TakeoverMode

mod access;
mod bulk;
mod call_error;
mod columns;
mod connection;
mod election_admin;
mod epoch;
mod error;
mod events;
mod fifo;
mod filesystem;
mod guard;
mod lock;
mod migrate;
mod open;
mod schedules;
mod script;
mod store;
mod sys;
mod work;
mod write_transaction;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnection, SqlitePool};
use tenure_core::port::{CommitResult, ErrorKind, PartitionCommit, StoreError};
use tenure_core::{ElectionKey, SessionId, Token};
use tokio::sync::broadcast;

use crate::GuardError;
use crate::store::migrations::Schema;
use crate::store::private;
use crate::store::queries::Queries;
use connection::{ConnectionPools, Explain};
use lock::{LockDirectory, LockWatchers, SessionLocks};

pub use election_admin::GUARANTEES;
pub use events::{commit_partition, publish};
pub use guard::{fence, guard};
pub(crate) use migrate::script;
pub(crate) use open::{migrator_for_url, open_url};
pub use work::submit;

/// All statements.
const QUERIES: &[&str] = &[
    include_str!("queries/migrations.sql"),
    include_str!("queries/sessions.sql"),
    include_str!("queries/epoch.sql"),
    include_str!("queries/elections.sql"),
    include_str!("queries/leases.sql"),
    include_str!("queries/candidates.sql"),
    include_str!("queries/leader_requests.sql"),
    include_str!("queries/terms.sql"),
    include_str!("queries/fences.sql"),
    include_str!("queries/access.sql"),
    include_str!("queries/queues.sql"),
    include_str!("queries/claims.sql"),
    include_str!("queries/tasks.sql"),
    include_str!("queries/maintenance.sql"),
    include_str!("queries/workers.sql"),
    include_str!("queries/pools.sql"),
    include_str!("queries/topics.sql"),
    include_str!("queries/events.sql"),
    include_str!("queries/groups.sql"),
    include_str!("queries/partition_leases.sql"),
    include_str!("queries/parked_events.sql"),
    include_str!("queries/schedules.sql"),
    include_str!("queries/ticks.sql"),
];

/// The warning about modes wider than 0600 and 0700.
const EXPOSED: &str = "other users can access the database files, which hold payloads and secrets; remove their access with chmod";

/// The location of the database file, and how to open it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SqliteOptions {
    /// The database file.
    pub path: PathBuf,
    /// How long a call waits while another process writes. Keep it below the request timeout
    /// ([`Timing::request_timeout`](tenure_core::Timing::request_timeout)).
    pub busy_timeout: Duration,
    /// Whether to create the parent directories of the file. Off by default, so that a typing error in a path is an error.
    pub create_directories: bool,
    /// Whether to create the file if it does not exist. If not, a missing file is an error.
    pub create: bool,
    /// Whether to create the tables, or to migrate them if programs of the version found can still run afterwards. If not, the
    /// tables are not checked, and calls on a file without tables fail.
    pub migrate: bool,
    /// For tests: the schema of a program of another version.
    #[doc(hidden)]
    pub schema: Schema,
}

impl SqliteOptions {
    /// Options for this file with default values.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        SqliteOptions {
            path: path.into(),
            busy_timeout: Duration::from_secs(1),
            create_directories: false,
            create: true,
            migrate: true,
            schema: migrate::SCHEMA,
        }
    }

    /// Options for the default file of the user, `$XDG_STATE_HOME/tenure/tenure.db` or `~/.local/state/tenure/tenure.db`. Missing
    /// directories are created. Fails if neither variable is set.
    pub fn default_location() -> Result<Self, StoreError> {
        let var = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let state = var("XDG_STATE_HOME").or_else(|| var("HOME").map(|home| home.join(".local/state")));
        let state = state.ok_or_else(|| {
            let message =
                "neither XDG_STATE_HOME nor HOME is set; set one, or name a file with --store sqlite:PATH";
            StoreError::new(ErrorKind::Address, message)
        })?;
        Ok(SqliteOptions { create_directories: true, ..SqliteOptions::new(state.join("tenure/tenure.db")) })
    }

    /// Set how long a call waits while another process writes.
    #[must_use]
    pub fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.busy_timeout = timeout;
        self
    }

    /// Set whether to create the parent directories of the file.
    #[must_use]
    pub fn create_directories(mut self, yes: bool) -> Self {
        self.create_directories = yes;
        self
    }

    /// Set whether to create a missing file.
    #[must_use]
    pub fn create(mut self, yes: bool) -> Self {
        self.create = yes;
        self
    }

    /// Set whether to create and migrate the tables.
    #[must_use]
    pub fn migrate(mut self, yes: bool) -> Self {
        self.migrate = yes;
        self
    }
}

/// The SQLite store. Clones share connections and locks.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use tenure::store::sqlite::{SqliteOptions, SqliteStore};
/// use tenure_core::port::ElectionAdmin;
///
/// let directory = tempfile::tempdir().unwrap();
/// let store = SqliteStore::open(SqliteOptions::new(directory.path().join("tenure.db"))).await?;
/// assert!(store.elections(None).await?.is_empty());
/// # Ok::<(), tenure_core::port::StoreError>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct SqliteStore {
    inner: Arc<Inner>,
    queries: Arc<Queries>,
}

struct Inner {
    path: PathBuf,
    /// Device and inode of the open file. The path may lead to another file later.
    identity: (u64, u64),
    /// The schema of this program.
    schema: Schema,
    pools: ConnectionPools,
    directory: LockDirectory,
    /// The directory that this program created for the file; `None` if the user named the file.
    state_directory: Option<PathBuf>,
    session_locks: SessionLocks,
    watchers: LockWatchers,
    epochs: epoch::Epochs,
}

impl SqliteStore {
    /// Open the file, and create and migrate it as far as the options allow. Several processes may do this at the same time.
    pub async fn open(options: SqliteOptions) -> Result<SqliteStore, StoreError> {
        let path = resolve_path(&options)?;
        let directory = LockDirectory::of(&path);
        if options.create {
            directory
                .make()
                .map_err(|error| error::io(directory.path(), "creating the lock directory", &error))?;
            private::create_empty(&path).map_err(|error| error::io(&path, "creating the file", &error))?;
        } else if !path.exists() {
            return Err(error::no_file(&path));
        }
        let pools = ConnectionPools::new(&path, options.busy_timeout);
        drop(pools.writes.acquire().await.explain(&path, "opening the file")?);
        let inner = Inner {
            identity: identity(&path).map_err(|error| error::io(&path, "opening the file", &error))?,
            schema: options.schema,
            state_directory: options.create_directories.then(|| path.parent().map(Path::to_owned)).flatten(),
            pools,
            session_locks: SessionLocks::default(),
            epochs: epoch::Epochs::default(),
            watchers: LockWatchers::new(directory.clone(), broadcast::channel(1024).0),
            directory,
            path,
        };
        let store = SqliteStore { inner: Arc::new(inner), queries: Arc::new(Queries::parse(QUERIES)) };
        for (path, mode) in store.exposed() {
            tracing::warn!(path = %path.display(), mode = %format!("{mode:03o}"), "{EXPOSED}");
        }
        if options.migrate {
            store.prepare().await?;
        }
        Ok(store)
    }

    /// The path of the file, with symbolic links resolved.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Files and directories of this store that other users can access, each with its mode.
    fn exposed(&self) -> Vec<(PathBuf, u32)> {
        let beside = |ending: &str| {
            let mut name = self.inner.path.as_os_str().to_owned();
            name.push(ending);
            PathBuf::from(name)
        };
        let files = ["", "-wal", "-shm"].map(beside);
        private::exposed(
            files
                .into_iter()
                .chain([self.inner.directory.path().to_owned()])
                .chain(self.inner.state_directory.clone()),
        )
    }

    /// Connections to the same file, for transactions of the application. Tenure itself uses other connections. A transaction that
    /// writes blocks every other writer, including heartbeats: keep it much shorter than the lease.
    pub fn pool(&self) -> &SqlitePool {
        &self.inner.pools.application
    }

    /// A duplicate of the descriptor that locks a session of this client. While any process holds a duplicate, the session does not
    /// count as dead; `tenure run` passes one to its watchdog. The descriptor is closed on `exec` by default. Only close it:
    /// `flock(LOCK_UN)` on a duplicate unlocks the session for all processes.
    pub fn lock_fd(&self, session: &SessionId) -> Option<OwnedFd> {
        self.inner.session_locks.duplicate(session)
    }

    /// [`guard`] with the statements of this store.
    #[doc(hidden)]
    pub async fn guard(
        &self,
        conn: &mut SqliteConnection,
        election: &ElectionKey,
        slot: u32,
        token: Token,
        session: &SessionId,
    ) -> Result<(), GuardError> {
        guard::guard_with(&self.queries, conn, election, slot, token, session).await
    }

    /// [`commit_partition`] with the statements of this store.
    #[doc(hidden)]
    pub async fn commit_partition(
        &self,
        conn: &mut SqliteConnection,
        commit: &PartitionCommit,
    ) -> Result<CommitResult, StoreError> {
        events::commit_with(&self.queries, conn, commit).await
    }

    /// Replace a part of a statement by a known mistake, for negative controls.
    #[doc(hidden)]
    pub fn inject_bug(&mut self, name: &str, from: &str, to: &str) {
        Arc::make_mut(&mut self.queries).inject_bug(name, from, to);
    }

    /// Check that the path still leads to the open file. A process that opens another file at this path sees other leases and tokens.
    fn check_file(&self) -> Result<(), StoreError> {
        if identity(&self.inner.path).is_ok_and(|there| there == self.inner.identity) {
            return Ok(());
        }
        let message = format!(
            "{} was moved, deleted or replaced while in use, so the leases of this process are not in the current file; \
             restore the original file, or stop every process that uses it and start again",
            self.inner.path.display()
        );
        Err(StoreError::new(ErrorKind::Unavailable, message))
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqlite").field("path", &self.inner.path).finish_non_exhaustive()
    }
}

/// Resolve the path of the file, so that processes that use different links share one lock directory, and check that the file can be
/// used. The function must not open the file: closing any descriptor would cancel the POSIX locks that SQLite holds in this process
/// (<https://sqlite.org/howtocorrupt.html>, 2.2).
fn resolve_path(options: &SqliteOptions) -> Result<PathBuf, StoreError> {
    let path = &options.path;
    let explain = |doing: &'static str| move |error: io::Error| error::io(path, doing, &error);
    let directory = match path.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory,
        _ => Path::new("."),
    };
    if options.create_directories && options.create {
        private::create_directory(directory).map_err(explain("creating its directory"))?;
    }
    let real = match std::fs::canonicalize(path) {
        // A dangling symbolic link is an error, not a new file.
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => {
            let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput));
            name.and_then(|name| Ok(std::fs::canonicalize(directory)?.join(name)))
        }
        other => other,
    };
    let real = real.map_err(explain("resolving the path"))?;
    let directory = real.parent().unwrap_or(&real);
    filesystem::check(directory)?;
    sys::may_write(directory).map_err(explain("writing to its directory"))?;
    match std::fs::metadata(&real) {
        Ok(found) if found.is_file() => sys::may_write(&real).map_err(explain("writing to the file"))?,
        Ok(_) => {
            return Err(StoreError::new(
                ErrorKind::Address,
                format!("{} is not a regular file; name another path", path.display()),
            ));
        }
        Err(_) => {}
    }
    Ok(real)
}

/// The device and inode of a file.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::metadata(path).map(|found| (found.dev(), found.ino()))
}
