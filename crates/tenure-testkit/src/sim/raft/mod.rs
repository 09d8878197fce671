//! Simulation of Raft clusters in one process.
//!
//! **Real.** All shipped code: members (openraft, the log and its segments, snapshots, state, membership), clients,
//! their drivers, electors and leaderships.
//!
//! **Simulated.** From one seed: time, and clocks of different rates; a network that delays, reorders, breaks
//! connections, duplicates requests and is cut in one or both directions; machines that are suspended, crash and
//! restart, also during a write; disks that keep only synced data; operators that add and remove members and transfer
//! leadership. All of it enters through [`env`](tenure::store::raft::env).
//!
//! **Checked.** At every instant at most one client trusts its lease. Its token is greater than all before, and no
//! write under an older token is confirmed after a write under a newer one. Values are linearizable. Members without a
//! majority do not respond. No two members apply different entries at the same index. No member's Raft stops by itself.
//! The cluster recovers once the faults have ended.
//!
//! **Failures.** A failure contains the last steps. A seed determines the plan: members, clocks, delays, faults and
//! the timeouts of openraft. A run is *not* identical to the last message, because tokio randomly chooses which of
//! several waiting tasks wakes first. A failed seed may therefore pass the next time; run it several times.
//!
//! ```
//! use tenure_testkit::sim::raft::{self, RaftScenario};
//!
//! let stats = raft::run(RaftScenario::Network, 7, None).unwrap();
//! assert!(stats.elected > 0 && stats.writes > 0);
//! ```

mod clients;
mod computer;
mod disk;
mod history;
mod member;
mod nemesis;
mod network;
mod oracle;
mod plan;
mod simulation;
mod stats;
mod time;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use plan::{RaftInjectedBug, RaftScenario};
pub use stats::RaftStats;

use oracle::Oracle;
use simulation::RaftSimulation;
use time::SimTime;

use super::invariants::Violation;

/// A run that violated an invariant.
#[derive(Clone, Debug)]
pub struct RaftFailure {
    /// Scenario of the run.
    pub scenario: RaftScenario,
    /// Seed of the run.
    pub seed: u64,
    /// Injected bug, if there was one.
    pub bug: Option<RaftInjectedBug>,
    /// Violated invariant.
    pub violation: Violation,
    /// Simulated time of the violation.
    pub at: Duration,
    /// Last steps before it.
    pub trace: Vec<String>,
}

impl fmt::Display for RaftFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RaftFailure { scenario, seed, violation, at, .. } = self;
        writeln!(f, "{} violated at {:.3}s: {}", violation.invariant, at.as_secs_f64(), violation.what)?;
        for line in &self.trace {
            writeln!(f, "  {line}")?;
        }
        write!(f, "tenure-sim raft --scenario {scenario} --seed {seed}")?;
        self.bug.map_or(Ok(()), |bug| write!(f, " --bug {bug}"))
    }
}

impl std::error::Error for RaftFailure {}

/// Runs one seed of a scenario.
pub fn run(
    scenario: RaftScenario,
    seed: u64,
    bug: Option<RaftInjectedBug>,
) -> Result<RaftStats, Box<RaftFailure>> {
    let time = SimTime::default();
    let oracle: Arc<OnceLock<Oracle>> = Arc::default();
    let (clock, watching) = (time.clone(), oracle.clone());
    // Use one thread, which runs one task at a time. Time advances when no task is ready.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .on_thread_park(move || {
            if let Some(oracle) = watching.get() {
                oracle.trusting_leaders();
            }
            clock.resume();
        })
        .build()
        .expect("a tokio runtime can be created");
    let oracle = runtime.block_on(async move {
        let simulation = RaftSimulation::new(scenario, seed, bug, &time);
        oracle.get_or_init(|| simulation.oracle().clone());
        // Spawn the run as a task, because a future that the thread itself awaits would be polled late.
        tokio::spawn(simulation.run()).await.expect("the run does not panic")
    });
    match oracle.verdict() {
        (None, stats, _) => Ok(stats),
        (Some((violation, at)), _, trace) => {
            Err(Box::new(RaftFailure { scenario, seed, bug, violation, at, trace }))
        }
    }
}
