//! A store in one SQLite file, for the processes of one machine. The default: it needs no server.
//!
//! # The model
//!
//! The truth is in the file: sessions, leases and tokens, changed only in `BEGIN IMMEDIATE` transactions, of which SQLite
//! runs one at a time, and each by compare-and-swap on what its caller saw. Beside the file lies a folder,
//! `<file>.tenure/`, with nothing in it that is true on its own:
//!
//! | in the folder | what it is | without it |
//! |---|---|---|
//! | `<session>.lock` | locked by the kernel for as long as the session's process exists | a crash is noticed after a lease |
//! | `<client>.wake` | a FIFO that brings hints from other processes | changes are noticed by polling |
//! | `epoch` | how far the file has counted, to notice that an older copy was restored over it (`epoch.rs`) | that is not noticed |
//!
//! A session is expired by the first of two: its beat stood still for its lease, as on every store; or its lock can be
//! had, which means that its process is dead. The second is verified against the kernel right before the transaction
//! that acts on it: who is dead stays dead. A process that is stopped keeps its lock and is waited out. [`Takeover`] makes no difference
//! here: the lock is as fast as a connection and as sure as a lease.
//!
//! # When things go wrong
//!
//! | what | then |
//! |---|---|
//! | the process is killed | its leases are free within a millisecond or so |
//! | the machine loses power | every grant that was answered is on the disk: a token never repeats |
//! | the disk is full, or read-only | calls fail, trust runs out; when it has passed, the store goes on by itself |
//! | somebody writes for too long | calls fail after [`SqliteOptions::busy_timeout`]; trust may run out |
//! | the file is moved, deleted or replaced | every call fails: what this process knew is no longer the truth |
//! | the file is restored from a copy, or copied elsewhere | a new epoch begins: no token or event number repeats (`epoch.rs`) |
//! | the file is on a network file system | it is refused (`filesystem.rs`) |
//!
//! Deleting the file deletes its tokens. Should you have to, end every process that uses it first, and leave the folder beside it.
//!
//! The file, the files beside it and the folder are created for their owner only (0600, 0700), whatever the umask is: they
//! hold payloads and secrets, and a process that may write to them may lead. Wider modes of files that exist are left
//! alone, and logged as a warning.
//!
//! [`Takeover`]: tenure_core::port::Takeover

mod call;
mod change;
mod claims;
mod connection;
mod directory;
mod epoch;
mod error;
mod events;
mod filesystem;
mod guard;
mod lock;
mod migrate;
mod office;
mod row;
mod rows;
mod schedules;
mod script;
mod store;
mod sys;
mod wake;
mod wiring;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnection, SqlitePool};
use tenure_core::port::{Committed, ShareCommit, StoreError, Trouble};
use tenure_core::{ElectionKey, SessionId, Token};
use tokio::sync::broadcast;

use crate::GuardError;
use crate::backend::migrations::Schema;
use crate::backend::private;
use crate::backend::queries::Queries;
use connection::{Explain, Pools};
use lock::{Folder, Held, Watchers};

pub use claims::submit;
pub use directory::PROMISES;
pub use events::{commit_share, publish};
pub use guard::{fence, guard};
pub(crate) use migrate::script;
pub(crate) use wiring::{migrator_for_url, open_url};

/// All statements, by table.
const QUERIES: &[&str] = &[
    include_str!("queries/sessions.sql"),
    include_str!("queries/epoch.sql"),
    include_str!("queries/elections.sql"),
    include_str!("queries/leases.sql"),
    include_str!("queries/candidates.sql"),
    include_str!("queries/requests.sql"),
    include_str!("queries/terms.sql"),
    include_str!("queries/fences.sql"),
    include_str!("queries/migrations.sql"),
    include_str!("queries/office.sql"),
    include_str!("queries/tasks.sql"),
    include_str!("queries/queues.sql"),
    include_str!("queries/workers.sql"),
    include_str!("queries/pools.sql"),
    include_str!("queries/topics.sql"),
    include_str!("queries/events.sql"),
    include_str!("queries/groups.sql"),
    include_str!("queries/shares.sql"),
    include_str!("queries/schedules.sql"),
    include_str!("queries/ticks.sql"),
];

/// Why modes beyond 0600 and 0700 are a risk.
const EXPOSED: &str = "other users may use the database's files, which hold payloads and secrets; remove their rights with chmod";

/// Which file, and how to treat it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SqliteOptions {
    /// The database file.
    pub path: PathBuf,
    /// How long a call waits while another process writes. Keep it below the time that a request may take
    /// ([`Timing::request_timeout`](tenure_core::Timing::request_timeout)): after that nobody waits for the answer.
    pub busy_timeout: Duration,
    /// Whether to make the folders above the file. Off for a path that somebody typed: a typo should not.
    pub create_folders: bool,
    /// Whether to create the file if it does not exist. If not, a missing file is an error.
    pub create: bool,
    /// Whether to create the tables, or migrate them if programs of the version found can still run afterwards. If not,
    /// the tables are not looked at, and calls on a file without tables fail.
    pub migrate: bool,
    /// For tests: act as a program that was built for another schema.
    #[doc(hidden)]
    pub schema: Schema,
}

impl SqliteOptions {
    /// This file, with the usual options.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        SqliteOptions {
            path: path.into(),
            busy_timeout: Duration::from_secs(1),
            create_folders: false,
            create: true,
            migrate: true,
            schema: migrate::SCHEMA,
        }
    }

    /// The file of this user: `$XDG_STATE_HOME/tenure/tenure.db`, or `~/.local/state/tenure/tenure.db`. Its folders
    /// are made.
    pub fn default_location() -> Result<Self, StoreError> {
        let var = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let state = var("XDG_STATE_HOME").or_else(|| var("HOME").map(|home| home.join(".local/state")));
        let state = state.ok_or_else(|| {
            let message = "neither XDG_STATE_HOME nor HOME is set; name a file with --store sqlite:PATH";
            StoreError::new(Trouble::Address, message)
        })?;
        Ok(SqliteOptions { create_folders: true, ..SqliteOptions::new(state.join("tenure/tenure.db")) })
    }

    /// Waits this long while another process writes.
    #[must_use]
    pub fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.busy_timeout = timeout;
        self
    }

    /// Makes the folders above the file, or not.
    #[must_use]
    pub fn create_folders(mut self, yes: bool) -> Self {
        self.create_folders = yes;
        self
    }

    /// Creates the file if it does not exist, or not.
    #[must_use]
    pub fn create(mut self, yes: bool) -> Self {
        self.create = yes;
        self
    }

    /// Creates and migrates the tables, or not.
    #[must_use]
    pub fn migrate(mut self, yes: bool) -> Self {
        self.migrate = yes;
        self
    }
}

/// A store in a SQLite file. Clones share its connections and locks.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use tenure::backend::sqlite::{Sqlite, SqliteOptions};
/// use tenure_core::port::Directory;
///
/// let folder = tempfile::tempdir().unwrap();
/// let store = Sqlite::open(SqliteOptions::new(folder.path().join("tenure.db"))).await?;
/// assert!(store.elections(None).await?.is_empty());
/// # Ok::<(), tenure_core::port::StoreError>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Sqlite {
    inner: Arc<Inner>,
    queries: Arc<Queries>,
}

struct Inner {
    path: PathBuf,
    /// Device and inode: the file itself, whatever its path leads to later.
    identity: (u64, u64),
    /// The schema that this program was built for.
    schema: Schema,
    pools: Pools,
    folder: Folder,
    /// The folder that this program created for the file; `None` if the user named the file.
    state_folder: Option<PathBuf>,
    held: Held,
    watchers: Watchers,
    epochs: epoch::Epochs,
}

impl Sqlite {
    /// Opens the file, and creates and migrates it as far as the options allow. Safe when many processes do it at once.
    pub async fn open(options: SqliteOptions) -> Result<Sqlite, StoreError> {
        let path = place(&options)?;
        let folder = Folder::of(&path);
        if options.create {
            folder.make().map_err(|error| error::io(folder.path(), "making the folder for locks", &error))?;
            private::create_empty(&path).map_err(|error| error::io(&path, "creating it", &error))?;
        } else if !path.exists() {
            return Err(error::no_file(&path));
        }
        let pools = Pools::new(&path, options.busy_timeout);
        drop(pools.writes.acquire().await.explain(&path, "opening it")?);
        let inner = Inner {
            identity: identity(&path).map_err(|error| error::io(&path, "opening it", &error))?,
            schema: options.schema,
            state_folder: options.create_folders.then(|| path.parent().map(Path::to_owned)).flatten(),
            pools,
            held: Held::default(),
            epochs: epoch::Epochs::default(),
            watchers: Watchers::new(folder.clone(), broadcast::channel(1024).0),
            folder,
            path,
        };
        let store = Sqlite { inner: Arc::new(inner), queries: Arc::new(Queries::parse(QUERIES)) };
        for (path, mode) in store.exposed() {
            tracing::warn!(path = %path.display(), mode = %format!("{mode:03o}"), "{EXPOSED}");
        }
        if options.migrate {
            store.prepare().await?;
        }
        Ok(store)
    }

    /// The file, with every symbolic link resolved.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Files and folders of this store that users other than their owner may use, each with its mode.
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
                .chain([self.inner.folder.path().to_owned()])
                .chain(self.inner.state_folder.clone()),
        )
    }

    /// Connections to the same file, for transactions of your own; Tenure uses others itself. A transaction that writes
    /// keeps every other writer waiting, beats included: keep it well below the lease.
    pub fn pool(&self) -> &SqlitePool {
        &self.inner.pools.users
    }

    /// A duplicate of the descriptor by which a session of this client is locked. Whatever process has one keeps the
    /// session from being known dead: `tenure run` gives it to its watchdog. It is closed on `exec`, unless told
    /// otherwise. Only ever close it: `flock(LOCK_UN)` on a duplicate would unlock the session for everybody.
    pub fn lock_fd(&self, session: &SessionId) -> Option<OwnedFd> {
        self.inner.held.duplicate(session)
    }

    /// [`guard`], with this store's statements.
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

    /// [`commit_share`], with this store's statements.
    #[doc(hidden)]
    pub async fn commit_share(
        &self,
        conn: &mut SqliteConnection,
        commit: &ShareCommit,
    ) -> Result<Committed, StoreError> {
        events::commit_with(&self.queries, conn, commit).await
    }

    /// Puts a known mistake back into a statement, for the negative controls.
    #[doc(hidden)]
    pub fn sabotage(&mut self, name: &str, from: &str, to: &str) {
        Arc::make_mut(&mut self.queries).sabotage(name, from, to);
    }

    /// Refuses to go on when the path leads to another file than the one that is open: whoever opens it now sees other
    /// leases, and tokens that begin anew.
    fn in_place(&self) -> Result<(), StoreError> {
        if identity(&self.inner.path).is_ok_and(|there| there == self.inner.identity) {
            return Ok(());
        }
        let message = format!(
            "{} was moved, deleted or replaced while in use, and what this process holds is not in the file that is there \
             now; put the file back, or end every process that uses it and start again",
            self.inner.path.display()
        );
        Err(StoreError::new(Trouble::Unavailable, message))
    }
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqlite").field("path", &self.inner.path).finish_non_exhaustive()
    }
}

/// Finds the file's real path, so that all who reach it through links find the same folder beside it, and whether it can
/// be used. It is *not* opened here: closing any descriptor of it would cancel the POSIX locks by which SQLite, in this
/// process, holds the file (<https://sqlite.org/howtocorrupt.html>, 2.2).
fn place(options: &SqliteOptions) -> Result<PathBuf, StoreError> {
    let path = &options.path;
    let explain = |doing: &'static str| move |error: io::Error| error::io(path, doing, &error);
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    if options.create_folders && options.create {
        private::create_folder(folder).map_err(explain("making its folder"))?;
    }
    let real = match std::fs::canonicalize(path) {
        // A link that leads nowhere is nobody's wish.
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => {
            let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput));
            name.and_then(|name| Ok(std::fs::canonicalize(folder)?.join(name)))
        }
        other => other,
    };
    let real = real.map_err(explain("finding it"))?;
    let folder = real.parent().unwrap_or(&real);
    filesystem::check(folder)?;
    sys::may_write(folder).map_err(explain("writing to its folder"))?;
    match std::fs::metadata(&real) {
        Ok(found) if found.is_file() => sys::may_write(&real).map_err(explain("writing to it"))?,
        Ok(_) => {
            return Err(StoreError::new(
                Trouble::Address,
                format!("{} is not a file; name one", path.display()),
            ));
        }
        Err(_) => {}
    }
    Ok(real)
}

/// Device and inode of a file.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::metadata(path).map(|found| (found.dev(), found.ino()))
}
