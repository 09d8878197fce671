//! Test your leader code: real electors on a store in memory, and a clock that moves when you say so.
//!
//! ```
//! # tenure_testkit::block_on(async {
//! use std::time::Duration;
//! use tenure_testkit::Cluster;
//!
//! // Only one leader exists.
//! let cluster = Cluster::of("nightly", ["a", "b", "c"]).await;
//! assert_eq!(cluster.leaders(), ["a"]);
//!
//! // A new leader is elected on failure.
//! cluster.cut_off("a");
//! cluster.advance(Duration::from_secs(30)).await;
//! assert_eq!(cluster.leaders(), ["b"]);
//! # });
//! ```
//!
//! | module | what it is for |
//! |---|---|
//! | [`Cluster`], [`Clock`] | your own tests of what a leader does |
//! | [`conformance`] | a store of your own, held to what every store must do |
//! | [`sim`] | the rules themselves under seeded faults, with clocks of different rates |
//! | [`rig`] | real PostgreSQL servers, networks, clocks and disks, and the faults to put them through |

mod clock;
mod cluster;
pub mod conformance;
pub mod rig;
pub mod sim;

pub use clock::Clock;
pub use cluster::{Cluster, Cuttable};

/// Runs a test on a single thread, so that it is the same every time.
pub fn block_on<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a tokio runtime can be made")
        .block_on(test)
}
