//! Days in the life of Raft clusters, in one process.
//!
//! **What is real.** Everything that ships: members (openraft, the log and its segments, snapshots, the state, who takes part and who must not), clients, their
//! drivers, electors and leaderships.
//!
//! **What is simulated.** From one seed: time, and clocks of different rates; a network that delays, reorders, breaks connections, says questions twice, and is
//! cut, both ways and one way; machines that stand still, crash and come back, in the middle of a write too; disks that keep what was synced; people
//! who admit, dismiss and transfer. They enter through [`ground`](tenure::backend::raft::ground), and nowhere else.
//!
//! **What is checked.** At every moment at most one client may trust its lease, its token is greater than all before, and no write under an older one is
//! confirmed after one under a newer; values are written and read as if one after the other; members that can reach no majority answer nothing; what one
//! member has applied at an index, no other applies otherwise; no member's Raft stops by itself; and once the faults have ended, everything comes right.
//!
//! **When it fails.** It tells its last steps. A seed is always the same plan: the same members, clocks, delays to be drawn and faults to come, openraft's
//! time-outs among them. It is *not* always the same day to the last message: when several wait for one thing, tokio throws dice about who is woken first that can
//! not be handed to it. So a seed that failed may pass the next time; live it a few times.
//!
//! ```
//! use tenure_testkit::sim::raft::{self, RaftScenario};
//!
//! let stats = raft::run(RaftScenario::Network, 7, None).unwrap();
//! assert!(stats.elected > 0 && stats.writes > 0);
//! ```

mod computer;
mod disk;
mod history;
mod member;
mod nemesis;
mod oracle;
mod people;
mod plan;
mod stats;
mod time;
mod wire;
mod world;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use plan::{RaftMistake, RaftScenario};
pub use stats::RaftStats;

use oracle::Oracle;
use time::Time;
use world::World;

use super::invariants::Violation;

/// A day on which something was not as promised.
#[derive(Clone, Debug)]
pub struct RaftFailure {
    /// Which kind of day.
    pub scenario: RaftScenario,
    /// Which day.
    pub seed: u64,
    /// What was put in wrong, if anything.
    pub mistake: Option<RaftMistake>,
    /// What was broken.
    pub violation: Violation,
    /// When.
    pub at: Duration,
    /// The last steps before it.
    pub trace: Vec<String>,
}

impl fmt::Display for RaftFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RaftFailure { scenario, seed, violation, at, .. } = self;
        writeln!(f, "{} is broken at {:.3}s: {}", violation.invariant, at.as_secs_f64(), violation.what)?;
        for line in &self.trace {
            writeln!(f, "  {line}")?;
        }
        write!(f, "tenure-sim raft --scenario {scenario} --seed {seed}")?;
        self.mistake.map_or(Ok(()), |mistake| write!(f, " --mistake {mistake}"))
    }
}

impl std::error::Error for RaftFailure {}

/// Lives one day.
pub fn run(
    scenario: RaftScenario,
    seed: u64,
    mistake: Option<RaftMistake>,
) -> Result<RaftStats, Box<RaftFailure>> {
    let time = Time::default();
    let oracle: Arc<OnceLock<Oracle>> = Arc::default();
    let (clock, watching) = (time.clone(), oracle.clone());
    // One thread, one task at a time; when none has anything to do, time goes on.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .on_thread_park(move || {
            if let Some(oracle) = watching.get() {
                oracle.believers();
            }
            clock.go_on();
        })
        .build()
        .expect("a tokio runtime can be made");
    let lived = runtime.block_on(async move {
        let world = World::new(scenario, seed, mistake, &time);
        oracle.get_or_init(|| world.oracle().clone());
        // Not here: who is awaited by the thread itself would be late.
        tokio::spawn(world.live()).await.expect("the day does not panic")
    });
    match lived.verdict() {
        (None, stats, _) => Ok(stats),
        (Some((violation, at)), _, trace) => {
            Err(Box::new(RaftFailure { scenario, seed, mistake, violation, at, trace }))
        }
    }
}
