//! Tools to test code that depends on leadership: real electors on an in-memory store with a manual clock.
//!
//! ```
//! # tenure_testkit::block_on(async {
//! use std::time::Duration;
//! use tenure_testkit::ElectionCluster;
//!
//! // Only one leader exists.
//! let cluster = ElectionCluster::of("nightly", ["a", "b", "c"]).await;
//! assert_eq!(cluster.leaders(), ["a"]);
//!
//! // A new leader is elected on failure.
//! cluster.cut_off("a");
//! cluster.advance(Duration::from_secs(30)).await;
//! assert_eq!(cluster.leaders(), ["b"]);
//! # });
//! ```
//!
//! | module | purpose |
//! |---|---|
//! | [`ElectionCluster`], [`ManualClock`] | tests of your own leader code |
//! | [`conformance`] | the behaviour that every store must have, for stores of your own |
//! | [`sim`] | simulation of the rules under seeded faults and different clock rates |
//! | [`rig`] | real PostgreSQL servers, networks, clocks and disks, with fault injection |

mod clock;
mod cluster;
pub mod conformance;
pub mod rig;
pub mod sim;

pub use clock::ManualClock;
pub use cluster::{ElectionCluster, PartitionableStore};

/// Runs a test on a single thread, so that it is deterministic.
pub fn block_on<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a tokio runtime can be created")
        .block_on(test)
}
