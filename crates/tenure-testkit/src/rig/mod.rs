//! The fault rig: real servers, networks, clocks and disks that belong to one test, and the ways to break them.
//!
//! **What it owns.** Each piece owns a temporary folder, the processes that work in that folder, and (for
//! [`Namespace`] and [`SmallDisk`]) one kernel object. Nothing is shared with the machine: a PostgreSQL that Debian
//! started by itself is never touched, ports are found free, names are unique, so tests run in parallel.
//!
//! **Who owns the truth.** The kernel and the server. The rig keeps a child's handle and a port, and asks for the
//! rest each time: a backend that died under a fault is found dead, not remembered alive.
//!
//! **What happens on drop.** Every piece has a *guard*: a small `sh` in a process group of its own that waits at the
//! end of a pipe which only the test process holds. Drop closes the pipe and waits for the guard; a panic, an abort, a
//! `SIGKILL` or a cluster in a `static` closes it as well. The guard then ends each process whose working directory
//! lies in the folder, stopped ones included, and removes the folder, network or mount. A parent-death signal would not
//! do: the kernel ties it to the *thread* that spawned the child, and test harnesses end threads all the time.
//!
//! **As root.** PostgreSQL and PgBouncer refuse to run as root, so their processes run as the user `postgres`, which
//! Debian's package creates, and own their folder. Everybody else runs them as themselves. Namespaces and small disks
//! need root: ask their `available()` first, and print what it answers when a test skips.
//!
//! All calls block. From async tests use a multi-threaded runtime, or `spawn_blocking`.
//!
//! ```no_run
//! use tenure_testkit::rig::{PgCluster, fresh_database};
//!
//! // For most tests: a database of their own on a cluster that many share.
//! let database = fresh_database()?;
//! assert_eq!(database.psql("SELECT 1")?, "1");
//!
//! // To break a server, own one.
//! let cluster = PgCluster::start()?;
//! cluster.kill9()?;
//! cluster.start_again()?;
//! # Ok::<(), tenure_testkit::rig::Error>(())
//! ```

mod builder;
pub mod clock;
pub mod database;
pub mod disk;
pub mod etcd;
mod guard;
pub mod kube;
pub mod netns;
pub mod pgbouncer;
mod pgtools;
mod port;
pub mod postgres;
mod process;
pub mod standby;
pub mod switch;
mod tls;

pub use builder::PgClusterBuilder;
pub use clock::{FakeClock, SettableClock, true_boottime_ns};
pub use database::{FreshDatabase, SHARED_CLUSTER_VARIABLE, fresh_database, prepared_database};
pub use disk::SmallDisk;
pub use etcd::EtcdCluster;
pub use kube::{KubeApi, KubeFault, real_kubernetes};
pub use netns::Namespace;
pub use pgbouncer::PgBouncer;
pub use port::free as free_port;
pub use postgres::PgCluster;
pub use standby::PgStandby;
pub use switch::Switch;

/// What the rig could not do, on what, and what the tool it used said about it.
///
/// `Debug` prints the message itself, so that `unwrap` in a test reads well.
#[derive(thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

/// The result of what the rig does.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Puts what was being done in front of an error's text.
pub(crate) trait Context<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: std::fmt::Display> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Error(format!("{}: {error}", what())))
    }
}
