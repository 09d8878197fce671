//! Days in the life of processes that share nothing but gossip.
//!
//! **What is real.** The rules of [`tenure_core::soft`]: who is alive, who stands, is ready, leads.
//!
//! **What is simulated.** From one seed: clocks of different rates; rounds in which each process tells a few others all that it has
//! heard; a network that delays and loses, is cut in two, or in one direction only; processes that stop, crash, come back and leave.
//!
//! **What is checked.** Two leaders at once are not denied where nobody promises otherwise: they are measured. Held to, at every
//! step, is what *is* promised:
//!
//! - while the network holds, never two believe, whoever comes, leaves, crashes or is stopped;
//! - while it is cut, each side comes to have one leader;
//! - after it heals, there is one leader again within [`HEALING`] rounds, and the time with two is counted.
//!
//! ```
//! use tenure_testkit::sim::soft::{self, SoftScenario};
//!
//! let stats = soft::run(SoftScenario::Netsplit, 7, None).unwrap();
//! assert!(stats.splits > 0);
//! ```

mod node;
mod plan;
mod stats;
mod world;

use std::fmt;
use std::time::Duration;

pub use plan::{SoftMistake, SoftScenario};
pub use stats::SoftStats;

use world::World;

/// How many rounds after a netsplit has healed, at most, two still believe that they lead.
pub const HEALING: u32 = 40;

/// A day on which something was not as promised.
#[derive(Clone, Debug)]
pub struct SoftFailure {
    /// Which kind of day.
    pub scenario: SoftScenario,
    /// Which day.
    pub seed: u64,
    /// What was put in wrong, if anything.
    pub mistake: Option<SoftMistake>,
    /// What was promised.
    pub promise: &'static str,
    /// What happened.
    pub what: String,
    /// When.
    pub at: Duration,
    /// The last steps before it.
    pub trace: Vec<String>,
}

impl fmt::Display for SoftFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SoftFailure { scenario, seed, promise, what, at, .. } = self;
        writeln!(f, "{promise} is broken at {:.3}s: {what}", at.as_secs_f64())?;
        for line in &self.trace {
            writeln!(f, "  {line}")?;
        }
        write!(f, "tenure-sim soft --scenario {scenario} --from {seed} --seeds 1")?;
        self.mistake.map_or(Ok(()), |mistake| write!(f, " --mistake {mistake}"))
    }
}

impl std::error::Error for SoftFailure {}

/// Lives one day. A seed is always the same day; when it fails, it is lived again with its diary on.
pub fn run(
    scenario: SoftScenario,
    seed: u64,
    mistake: Option<SoftMistake>,
) -> Result<SoftStats, Box<SoftFailure>> {
    World::new(scenario, seed, mistake, false)
        .live()
        .or_else(|_| World::new(scenario, seed, mistake, true).live())
}
