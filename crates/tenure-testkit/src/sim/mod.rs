//! Days in the life of a few processes and one store, thousands of them a second.
//!
//! **What is real.** The rules: every process runs the [`Machine`](tenure_core::lease::Machine) that ships, and the store
//! is the [`Book`](tenure_core::book::Book) that every backend must agree with.
//!
//! **What is simulated.** Everything else, from one seed: clocks of different rates, a network that delays, loses and
//! reorders, hints that are lost or doubled, processes that stop, crash and restart, a store that goes away or is promoted
//! from an older copy, operators who ask for things, and leaders who write through the guard and under a fence.
//!
//! **What is checked.** The [`invariants`], one per file, at every step; and, once the faults have ended, that the right
//! candidates lead and nothing is left behind.
//!
//! **When it fails.** The day is lived again with its diary on: the same seed is always the same day.
//!
//! ```
//! use tenure_testkit::sim::{self, Scenario};
//!
//! let stats = sim::run(Scenario::Everything, 7).unwrap();
//! assert!(stats.elected > 0);
//! ```

mod brief;
mod clock;
mod failure;
mod faults;
pub mod invariants;
mod mistakes;
mod network;
mod node;
mod office;
mod processes;
#[cfg(feature = "raft")]
pub mod raft;
mod resource;
mod scenario;
pub mod soft;
mod stats;
mod store;
mod tail;
mod wire;
mod world;

pub use failure::Failure;
pub use mistakes::Mistake;
pub use scenario::Scenario;
pub use stats::Stats;

use world::World;

/// Lives one day.
pub fn run(scenario: Scenario, seed: u64) -> Result<Stats, Box<Failure>> {
    run_with(scenario, seed, None)
}

/// Lives one day with a mistake put back in.
pub fn run_with(scenario: Scenario, seed: u64, mistake: Option<Mistake>) -> Result<Stats, Box<Failure>> {
    match World::new(scenario, seed, mistake, false).live() {
        (Ok(stats), _) => Ok(stats),
        (Err(_), _) => Err(replay_with(scenario, seed, mistake).expect_err("a seed is always the same day")),
    }
}

/// Lives one day with its diary on; the failure, if any, tells the last steps.
pub fn replay(scenario: Scenario, seed: u64) -> Result<Stats, Box<Failure>> {
    replay_with(scenario, seed, None)
}

fn replay_with(scenario: Scenario, seed: u64, mistake: Option<Mistake>) -> Result<Stats, Box<Failure>> {
    match World::new(scenario, seed, mistake, true).live() {
        (Ok(stats), _) => Ok(stats),
        (Err((violation, at)), diary) => {
            Err(Box::new(Failure { scenario, seed, mistake, violation, at, trace: diary.into_lines() }))
        }
    }
}
