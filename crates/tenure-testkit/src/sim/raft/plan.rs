//! Scenarios, and the parameters that one seed gives them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tenure_core::SplitMix;

use super::network::RaftNetworkFaultRates;
use crate::sim::network::RandomExt as _;

const MS: u64 = 1_000_000;

/// A scenario of the Raft simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RaftScenario {
    /// The network is slow, breaks connections, duplicates requests, and is cut in one or both directions.
    Network,
    /// Machines crash, alone, all at once and during a write, and restart.
    Crashes,
    /// Machines are suspended for a while.
    Pauses,
    /// Members are added, removed and lose their disks; leadership is transferred.
    Members,
    /// All faults, except that a disk is never reset to an old copy: other members detect such a reset only while they
    /// run, and here they restart.
    Everything,
}

impl RaftScenario {
    /// All scenarios.
    pub const ALL: [RaftScenario; 5] = [
        RaftScenario::Network,
        RaftScenario::Crashes,
        RaftScenario::Pauses,
        RaftScenario::Members,
        RaftScenario::Everything,
    ];

    fn as_str(self) -> &'static str {
        match self {
            RaftScenario::Network => "network",
            RaftScenario::Crashes => "crashes",
            RaftScenario::Pauses => "pauses",
            RaftScenario::Members => "members",
            RaftScenario::Everything => "everything",
        }
    }

    pub(super) fn has(self, kind: RaftScenario) -> bool {
        self == kind || self == RaftScenario::Everything
    }
}

/// A deliberate bug that the simulation must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RaftInjectedBug {
    /// Disks report entries as synced that are not synced.
    NothingIsSynced,
    /// Clients' clocks do not count the time while their machine is suspended.
    ClockStopsInSuspend,
    /// The rates of clients' clocks differ by more than allowed.
    ClocksOfAnyRate,
    /// Clients treat an old response as a new one.
    ResponsesFromMemory,
}

impl RaftInjectedBug {
    /// All bugs.
    pub const ALL: [RaftInjectedBug; 4] = [
        RaftInjectedBug::NothingIsSynced,
        RaftInjectedBug::ClockStopsInSuspend,
        RaftInjectedBug::ClocksOfAnyRate,
        RaftInjectedBug::ResponsesFromMemory,
    ];

    fn as_str(self) -> &'static str {
        match self {
            RaftInjectedBug::NothingIsSynced => "nothing-is-synced",
            RaftInjectedBug::ClockStopsInSuspend => "clock-stops-in-suspend",
            RaftInjectedBug::ClocksOfAnyRate => "clocks-of-any-rate",
            RaftInjectedBug::ResponsesFromMemory => "answers-from-memory",
        }
    }
}

macro_rules! named {
    ($type:ident, $what:literal) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $type {
            type Err = String;
            fn from_str(s: &str) -> Result<Self, String> {
                let found = Self::ALL.into_iter().find(|it| it.as_str() == s);
                found.ok_or_else(|| {
                    let all = Self::ALL.map(Self::as_str).join(", ");
                    format!("unknown {} {s:?}; use one of {all}", $what)
                })
            }
        }
    };
}

named!(RaftScenario, "scenario");
named!(RaftInjectedBug, "bug");

/// The parameters that one seed gives a scenario.
#[derive(Clone, Debug)]
pub(super) struct RaftSimPlan {
    pub(super) scenario: RaftScenario,
    pub(super) bug: Option<RaftInjectedBug>,
    /// Initial number of members: 3 or 5.
    pub(super) members: u64,
    /// Number of clients that campaign.
    pub(super) users: usize,
    pub(super) elections: usize,
    pub(super) lease: Duration,
    /// Number of entries between snapshots.
    pub(super) snapshot: u64,
    pub(super) weather: RaftNetworkFaultRates,
    /// Number of disk writes in a thousand during which the power fails.
    pub(super) fatal: u64,
    /// Duration of the faults.
    pub(super) chaos: u64,
    /// Mean time between two faults.
    pub(super) fault_every: u64,
}

impl RaftSimPlan {
    pub(super) fn draw(
        scenario: RaftScenario,
        bug: Option<RaftInjectedBug>,
        rng: &mut SplitMix,
    ) -> RaftSimPlan {
        let rough = scenario.has(RaftScenario::Network);
        let weather = RaftNetworkFaultRates {
            slow: rng.below(if rough { 100 } else { 10 }),
            broken: rng.below(if rough { 60 } else { 5 }),
            doubled: rng.below(if rough { 60 } else { 5 }),
        };
        let crashes = scenario.has(RaftScenario::Crashes);
        RaftSimPlan {
            scenario,
            bug,
            members: [3, 3, 5][rng.below(3) as usize],
            users: 2 + rng.below(3) as usize,
            elections: 1 + rng.below(2) as usize,
            lease: Duration::from_millis([2_000, 4_000, 8_000][rng.below(3) as usize]),
            snapshot: rng.between(10, 80),
            weather,
            fatal: if crashes { rng.below(4) } else { 0 },
            chaos: rng.between(20_000 * MS, 50_000 * MS),
            fault_every: rng.between(500 * MS, 5_000 * MS),
        }
    }

    /// The rate of a client's clock in millionths. Any two rates differ by a factor of less than 1.2, unless the
    /// injected bug is wrong rates.
    pub(super) fn rate(&self, rng: &mut SplitMix) -> u64 {
        match self.bug {
            Some(RaftInjectedBug::ClocksOfAnyRate) => [500_000, 2_000_000][rng.below(2) as usize],
            _ => rng.between(920_000, 1_090_000),
        }
    }
}
