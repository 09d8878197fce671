//! Scenarios, and the parameters that one seed gives them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tenure_core::SplitMix;
use tenure_core::rules::soft::GossipTiming;

use crate::sim::network::RandomExt as _;

/// A scenario of the soft simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SoftScenario {
    /// Processes start, leave and crash.
    Churn,
    /// Processes are also suspended for a while.
    Stopped,
    /// The network is cut in two and heals.
    Netsplit,
    /// The network is cut in one direction between some processes and heals.
    OneWay,
    /// All faults.
    Everything,
}

impl SoftScenario {
    /// All scenarios.
    pub const ALL: [SoftScenario; 5] = [
        SoftScenario::Churn,
        SoftScenario::Stopped,
        SoftScenario::Netsplit,
        SoftScenario::OneWay,
        SoftScenario::Everything,
    ];

    fn as_str(self) -> &'static str {
        match self {
            SoftScenario::Churn => "churn",
            SoftScenario::Stopped => "stopped",
            SoftScenario::Netsplit => "netsplit",
            SoftScenario::OneWay => "one-way",
            SoftScenario::Everything => "everything",
        }
    }

    pub(super) fn has(self, kind: SoftScenario) -> bool {
        self == kind || self == SoftScenario::Everything
    }

    /// Whether the network is never cut.
    pub(super) fn is_network_intact(self) -> bool {
        matches!(self, SoftScenario::Churn | SoftScenario::Stopped)
    }
}

impl fmt::Display for SoftScenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for SoftScenario {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|scenario| scenario.as_str() == s);
        found.ok_or_else(|| {
            format!("unknown scenario {s:?}; use one of {}", Self::ALL.map(Self::as_str).join(", "))
        })
    }
}

/// A deliberate bug that the simulation must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoftInjectedBug {
    /// A leader trusts its leadership until its next observation, however late.
    TrustWithoutDeadline,
    /// A new process leads at once if it knows no other.
    NoHoldDown,
    /// A ready process leads before the others can know that it is ready.
    NoSettling,
    /// A heartbeat observed for the first time counts as a sign of life.
    FirstHeartbeatCountsAsLive,
}

impl SoftInjectedBug {
    /// All bugs.
    pub const ALL: [SoftInjectedBug; 4] = [
        SoftInjectedBug::TrustWithoutDeadline,
        SoftInjectedBug::NoHoldDown,
        SoftInjectedBug::NoSettling,
        SoftInjectedBug::FirstHeartbeatCountsAsLive,
    ];

    fn as_str(self) -> &'static str {
        match self {
            SoftInjectedBug::TrustWithoutDeadline => "trust-without-deadline",
            SoftInjectedBug::NoHoldDown => "no-hold-down",
            SoftInjectedBug::NoSettling => "no-settling",
            SoftInjectedBug::FirstHeartbeatCountsAsLive => "first-heartbeat-counts-as-live",
        }
    }
}

impl fmt::Display for SoftInjectedBug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for SoftInjectedBug {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|bug| bug.as_str() == s);
        found.ok_or_else(|| {
            format!("unknown bug {s:?}; use one of {}", Self::ALL.map(Self::as_str).join(", "))
        })
    }
}

/// The parameters that one seed gives a scenario.
pub(super) struct SoftSimPlan {
    pub(super) nodes: usize,
    pub(super) timing: GossipTiming,
    /// The timing that the candidates use. It is wrong if the injected bug is a wrong timing.
    pub(super) candidate_timing: GossipTiming,
    /// A gossip round in nanoseconds, the unit of all other times.
    pub(super) round: u64,
    /// Number of faults.
    pub(super) faults: u64,
    /// Number of messages lost in a thousand.
    pub(super) lost_per_mille: u64,
}

impl SoftSimPlan {
    pub(super) fn draw(bug: Option<SoftInjectedBug>, rng: &mut SplitMix) -> SoftSimPlan {
        let round = Duration::from_millis([50, 100, 200][rng.below(3) as usize]);
        let silence_limit = round * (8 + rng.below(8) as u32);
        let hold_down = round * (8 + rng.below(8) as u32);
        let tiny = Duration::from_millis(10);
        let timing = GossipTiming::new(round, silence_limit, hold_down).expect("in range");
        let candidate_timing = match bug {
            Some(SoftInjectedBug::NoHoldDown) => {
                GossipTiming::new(tiny, silence_limit, tiny * 5).expect("in range")
            }
            Some(SoftInjectedBug::NoSettling) => {
                GossipTiming::new(tiny, silence_limit, hold_down).expect("in range")
            }
            _ => timing,
        };
        SoftSimPlan {
            nodes: 3 + rng.below(5) as usize,
            timing,
            candidate_timing,
            round: round.as_nanos() as u64,
            faults: 2 + rng.below(4),
            lost_per_mille: rng.below(30),
        }
    }
}
