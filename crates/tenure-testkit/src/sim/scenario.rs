//! Scenarios, and the parameters that one seed gives them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tenure_core::{SplitMix, Timing};

use super::network::{NetworkFaultRates, RandomExt as _};

/// A scenario: the kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scenario {
    /// No faults: candidates of different priority start one after the other.
    Calm,
    /// A slow, lossy, reordering network; processes are cut off.
    Network,
    /// Processes are suspended, crash and restart.
    Processes,
    /// The store becomes unavailable and returns.
    Store,
    /// Operators resign, transfer, pause and resume.
    Operators,
    /// Candidates leave, rejoin at once or later, and change their priority; processes shut down gracefully.
    Churn,
    /// All of the above.
    Everything,
    /// An older copy of the store is promoted, so the last grants are lost. The old store no longer runs.
    Promotion,
}

impl Scenario {
    /// All scenarios.
    pub const ALL: [Scenario; 8] = [
        Scenario::Calm,
        Scenario::Network,
        Scenario::Processes,
        Scenario::Store,
        Scenario::Operators,
        Scenario::Churn,
        Scenario::Everything,
        Scenario::Promotion,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Scenario::Calm => "calm",
            Scenario::Network => "network",
            Scenario::Processes => "processes",
            Scenario::Store => "store",
            Scenario::Operators => "operators",
            Scenario::Churn => "churn",
            Scenario::Everything => "everything",
            Scenario::Promotion => "promotion",
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Scenario {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        let known = || Self::ALL.map(Self::as_str).join(", ");
        Self::ALL
            .into_iter()
            .find(|scenario| scenario.as_str() == s)
            .ok_or_else(|| format!("unknown scenario {s:?}; use one of {}, or all", known()))
    }
}

/// The parameters that one seed gives a scenario.
#[derive(Clone, Debug)]
pub(super) struct SimPlan {
    pub(super) scenario: Scenario,
    pub(super) nodes: usize,
    pub(super) elections: usize,
    pub(super) timing: Timing,
    /// The lease in nanoseconds, the unit of all other times.
    pub(super) lease: u64,
    /// Duration of the faults.
    pub(super) chaos: u64,
    /// Mean time between two faults.
    pub(super) fault_every: u64,
    pub(super) weather: NetworkFaultRates,
    /// Whether the store detects dead processes.
    pub(super) certain_death: bool,
}

impl SimPlan {
    pub(super) fn draw(scenario: Scenario, rng: &mut SplitMix) -> SimPlan {
        let lease_ms = [1000, 1500, 3000][rng.below(3) as usize];
        let lease = Duration::from_millis(lease_ms);
        let timing = Timing::new(lease, Some(lease / [5, 5, 4, 3][rng.below(4) as usize])).expect("in range");
        let lease = lease.as_nanos() as u64;
        let rough = matches!(scenario, Scenario::Network | Scenario::Everything | Scenario::Promotion);
        let chaos = if scenario == Scenario::Calm { 2 } else { 4 + rng.below(5) };
        SimPlan {
            scenario,
            nodes: 2 + (rng.below(5) * rng.below(5) / 4) as usize,
            elections: 1 + usize::from(rng.chance(250)),
            timing,
            lease,
            chaos: chaos * lease,
            fault_every: lease / (1 + rng.below(4)),
            weather: if rough { NetworkFaultRates::rough(rng) } else { NetworkFaultRates::fair(rng) },
            certain_death: rng.chance(300),
        }
    }

    pub(super) fn has(&self, kind: Scenario) -> bool {
        let everything = matches!(self.scenario, Scenario::Everything | Scenario::Promotion);
        self.scenario == kind || (everything && kind != Scenario::Promotion)
    }
}
