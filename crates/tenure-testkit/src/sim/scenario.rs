//! Kinds of days, and what one seed makes of them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tenure_core::{SplitMix, Timing};

use super::network::{Draw as _, Weather};

/// A kind of day: which faults there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scenario {
    /// No faults: candidates of different priority come up one after the other.
    Calm,
    /// Slow, lossy, reordering network; processes are cut off.
    Network,
    /// Processes stop, are suspended, crash and restart.
    Processes,
    /// The store goes away and comes back.
    Store,
    /// Operators resign, transfer, pause and resume.
    Operators,
    /// Candidates withdraw, come back at once or later, change their priority; processes end in order.
    Churn,
    /// All of the above.
    Everything,
    /// An older copy of the store is promoted, and the last grants with it lost; the old one is gone.
    Promotion,
}

impl Scenario {
    /// All kinds of days.
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
            .ok_or_else(|| format!("there is no scenario {s:?}; choose one of {}, or all", known()))
    }
}

/// What one seed makes of a scenario.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) scenario: Scenario,
    pub(super) nodes: usize,
    pub(super) elections: usize,
    pub(super) timing: Timing,
    /// The lease, in nanoseconds: the unit of everything.
    pub(super) lease: u64,
    /// How long the faults go on.
    pub(super) chaos: u64,
    /// Mean time between two faults.
    pub(super) fault_every: u64,
    pub(super) weather: Weather,
    /// Whether the store knows a dead process when it sees one.
    pub(super) certain_death: bool,
}

impl Plan {
    pub(super) fn draw(scenario: Scenario, rng: &mut SplitMix) -> Plan {
        let lease_ms = [1000, 1500, 3000][rng.below(3) as usize];
        let lease = Duration::from_millis(lease_ms);
        let timing = Timing::new(lease, Some(lease / [5, 5, 4, 3][rng.below(4) as usize])).expect("in range");
        let lease = lease.as_nanos() as u64;
        let rough = matches!(scenario, Scenario::Network | Scenario::Everything | Scenario::Promotion);
        let chaos = if scenario == Scenario::Calm { 2 } else { 4 + rng.below(5) };
        Plan {
            scenario,
            nodes: 2 + (rng.below(5) * rng.below(5) / 4) as usize,
            elections: 1 + usize::from(rng.chance(250)),
            timing,
            lease,
            chaos: chaos * lease,
            fault_every: lease / (1 + rng.below(4)),
            weather: if rough { Weather::rough(rng) } else { Weather::fair(rng) },
            certain_death: rng.chance(300),
        }
    }

    pub(super) fn has(&self, kind: Scenario) -> bool {
        let everything = matches!(self.scenario, Scenario::Everything | Scenario::Promotion);
        self.scenario == kind || (everything && kind != Scenario::Promotion)
    }
}
