//! Fault rig: real servers, networks, clocks and disks for a single test, with fault injection.
//!
//! **Ownership.** Each object owns a temporary directory, the processes that run in it, and (for [`NetworkNamespace`]
//! and [`SmallDisk`]) one kernel object. Nothing is shared with the machine: a PostgreSQL server started by Debian is
//! never touched, ports are free ones and names are unique, so tests run in parallel.
//!
//! **State.** The kernel and the server hold the state. The rig keeps a child handle and a port, and queries
//! everything else when needed, so a backend that died under a fault is seen as dead.
//!
//! **Cleanup.** Every object has a *guard*: a small `sh` in its own process group that blocks on a pipe whose other end
//! only the test process holds. Dropping the object closes the pipe and waits for the guard. A panic, an abort, a
//! `SIGKILL` or the end of a process with a `static` cluster closes the pipe as well. The guard then ends each process
//! whose working directory is in the object's directory, including stopped ones, and removes the directory, network or
//! mount. A parent-death signal would not work: the kernel ties it to the *thread* that spawned the child, and test
//! harnesses end threads all the time.
//!
//! **Root.** PostgreSQL and PgBouncer refuse to run as root. As root, the rig runs them as the user `postgres`, which
//! Debian's package creates; other users run them as themselves. Network namespaces and small disks need root: call
//! `available()` first and print its message when a test skips.
//!
//! All calls block. In async tests use a multi-threaded runtime or `spawn_blocking`.
//!
//! ```no_run
//! use tenure_testkit::rig::{PgCluster, fresh_database};
//!
//! // Most tests use their own database on a shared cluster.
//! let database = fresh_database()?;
//! assert_eq!(database.psql("SELECT 1")?, "1");
//!
//! // A test that breaks a server starts its own.
//! let cluster = PgCluster::start()?;
//! cluster.kill9()?;
//! cluster.start_again()?;
//! # Ok::<(), tenure_testkit::rig::RigError>(())
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
pub use netns::NetworkNamespace;
pub use pgbouncer::PgBouncer;
pub use port::free as free_port;
pub use postgres::PgCluster;
pub use standby::PgStandby;
pub use switch::NetworkSwitch;

/// An error of the rig: the failed operation, its object, and the message of the tool.
///
/// `Debug` prints the message itself, so that `unwrap` in a test is readable.
#[derive(thiserror::Error)]
#[error("{0}")]
pub struct RigError(String);

/// Result of a rig operation.
pub type Result<T> = std::result::Result<T, RigError>;

impl RigError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl std::fmt::Debug for RigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Adds context to an error.
pub(crate) trait Context<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: std::fmt::Display> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| RigError(format!("{}: {error}", what())))
    }
}
