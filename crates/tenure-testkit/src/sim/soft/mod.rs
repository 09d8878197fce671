//! Simulation of soft elections.
//!
//! **Real.** The rules of [`tenure_core::rules::soft`]: liveness, candidacy, readiness, leadership.
//!
//! **Simulated.** From one seed: clocks of different rates; gossip rounds in which each process sends all it knows to
//! a few others; a network that delays and loses messages and is cut in one or both directions; processes that are
//! suspended, crash, restart and leave.
//!
//! **Checked.** Where a soft election gives no guarantee, two leaders at the same time are possible, and the simulation
//! measures for how long. It checks the guarantees at every step:
//!
//! - while the network is intact, at most one process trusts its leadership, also while processes crash, leave
//!   or are suspended;
//! - while it is cut, each side gets one leader;
//! - after it heals, there is one leader again within [`HEALING`] rounds, and the time with two is measured.
//!
//! ```
//! use tenure_testkit::sim::soft::{self, SoftScenario};
//!
//! let stats = soft::run(SoftScenario::Netsplit, 7, None).unwrap();
//! assert!(stats.splits > 0);
//! ```

mod node;
mod plan;
mod simulation;
mod stats;

use std::fmt;
use std::time::Duration;

pub use plan::{SoftInjectedBug, SoftScenario};
pub use stats::SoftStats;

use simulation::SoftSimulation;

/// Maximum number of gossip rounds, counted from the end of a network split, during which two processes may trust their
/// leadership.
pub const HEALING: u32 = 40;

/// A run that violated a guarantee.
#[derive(Clone, Debug)]
pub struct SoftFailure {
    /// Scenario of the run.
    pub scenario: SoftScenario,
    /// Seed of the run.
    pub seed: u64,
    /// Injected bug, if there was one.
    pub bug: Option<SoftInjectedBug>,
    /// Violated guarantee.
    pub guarantee: &'static str,
    /// Observed violation.
    pub what: String,
    /// Simulated time of the violation.
    pub at: Duration,
    /// Last steps before it.
    pub trace: Vec<String>,
}

impl fmt::Display for SoftFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SoftFailure { scenario, seed, guarantee, what, at, .. } = self;
        writeln!(f, "{guarantee} violated at {:.3}s: {what}", at.as_secs_f64())?;
        for line in &self.trace {
            writeln!(f, "  {line}")?;
        }
        write!(f, "tenure-sim soft --scenario {scenario} --from {seed} --seeds 1")?;
        self.bug.map_or(Ok(()), |bug| write!(f, " --bug {bug}"))
    }
}

impl std::error::Error for SoftFailure {}

/// Runs one seed of a scenario. The same seed always gives the same run; a failed run is replayed with a trace.
pub fn run(
    scenario: SoftScenario,
    seed: u64,
    bug: Option<SoftInjectedBug>,
) -> Result<SoftStats, Box<SoftFailure>> {
    SoftSimulation::new(scenario, seed, bug, false)
        .run()
        .or_else(|_| SoftSimulation::new(scenario, seed, bug, true).run())
}
