//! Deterministic simulation of several processes and one store.
//!
//! **Real.** The rules. Every process runs the shipped [`LeaseMachine`](tenure_core::rules::lease::LeaseMachine), and
//! the store is the [`Elections`](tenure_core::model::Elections) model that every store must match.
//!
//! **Simulated.** Everything else, from one seed: clocks of different rates; a network that delays, loses and reorders
//! messages; lost or duplicated notifications; processes that are suspended, crash and restart; a store that is
//! unavailable or promoted from an older copy; operators that send requests; leaders that write through the guard and
//! under a fence.
//!
//! **Checked.** The [`invariants`], one per file, at every step. Once the faults have ended, the right candidates must
//! lead, and no unused lease or candidate may remain.
//!
//! **Failures.** A failed run is replayed with a trace. The same seed always gives the same run.
//!
//! ```
//! use tenure_testkit::sim::{self, Scenario};
//!
//! let stats = sim::run(Scenario::Everything, 7).unwrap();
//! assert!(stats.elected > 0);
//! ```

mod clock;
mod convergence;
mod delivery;
mod failure;
mod faults;
mod injected_bugs;
pub mod invariants;
mod leader_work;
mod network;
mod node;
mod processes;
#[cfg(feature = "raft")]
pub mod raft;
mod resource;
mod scenario;
mod simulation;
pub mod soft;
mod stats;
mod store;
mod trace_format;

pub use failure::SimFailure;
pub use injected_bugs::InjectedBug;
pub use scenario::Scenario;
pub use stats::Stats;

use simulation::ElectionSimulation;

/// Runs one seed of a scenario.
pub fn run(scenario: Scenario, seed: u64) -> Result<Stats, Box<SimFailure>> {
    run_with(scenario, seed, None)
}

/// Runs one seed with an injected bug.
pub fn run_with(scenario: Scenario, seed: u64, bug: Option<InjectedBug>) -> Result<Stats, Box<SimFailure>> {
    match ElectionSimulation::new(scenario, seed, bug, false).run() {
        (Ok(stats), _) => Ok(stats),
        (Err(_), _) => Err(replay_with(scenario, seed, bug).expect_err("the same seed gives the same run")),
    }
}

/// Runs one seed with a trace; a failure contains the last steps.
pub fn replay(scenario: Scenario, seed: u64) -> Result<Stats, Box<SimFailure>> {
    replay_with(scenario, seed, None)
}

fn replay_with(scenario: Scenario, seed: u64, bug: Option<InjectedBug>) -> Result<Stats, Box<SimFailure>> {
    match ElectionSimulation::new(scenario, seed, bug, true).run() {
        (Ok(stats), _) => Ok(stats),
        (Err((violation, at)), trace_log) => {
            Err(Box::new(SimFailure { scenario, seed, bug, violation, at, trace: trace_log.into_lines() }))
        }
    }
}
