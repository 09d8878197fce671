//! Kinds of days, and what one seed makes of them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tenure_core::SplitMix;

use super::wire::Weather;
use crate::sim::network::Draw as _;

const MS: u64 = 1_000_000;

/// A kind of day of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RaftScenario {
    /// The network is slow, breaks connections, says things twice, and is cut, both ways and one way.
    Network,
    /// Machines crash, alone, all at once and in the middle of a write, and come back.
    Crashes,
    /// Machines stand still for a while.
    Pauses,
    /// Members are admitted, dismissed and lose their disks; leadership is transferred.
    Members,
    /// All of it; but disks are lost, and not put back as they were: of that a member hears only from others that run, and here they are restarted.
    Everything,
}

impl RaftScenario {
    /// All kinds of days.
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

/// A mistake, put in to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RaftMistake {
    /// Disks say that entries are synced, and they are not.
    NothingIsSynced,
    /// Clients' clocks do not count the time in which their machine stands still.
    ClockStopsInSuspend,
    /// Clients' clocks run at rates that are further apart than is promised.
    ClocksOfAnyRate,
    /// Clients take what they once heard for an answer.
    AnswersFromMemory,
}

impl RaftMistake {
    /// All of them.
    pub const ALL: [RaftMistake; 4] = [
        RaftMistake::NothingIsSynced,
        RaftMistake::ClockStopsInSuspend,
        RaftMistake::ClocksOfAnyRate,
        RaftMistake::AnswersFromMemory,
    ];

    fn as_str(self) -> &'static str {
        match self {
            RaftMistake::NothingIsSynced => "nothing-is-synced",
            RaftMistake::ClockStopsInSuspend => "clock-stops-in-suspend",
            RaftMistake::ClocksOfAnyRate => "clocks-of-any-rate",
            RaftMistake::AnswersFromMemory => "answers-from-memory",
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
                    format!("there is no {} {s:?}; choose one of {all}", $what)
                })
            }
        }
    };
}

named!(RaftScenario, "scenario");
named!(RaftMistake, "mistake");

/// What one seed makes of a scenario.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) scenario: RaftScenario,
    pub(super) mistake: Option<RaftMistake>,
    /// How many members at first: 3 or 5.
    pub(super) members: u64,
    /// How many clients stand for elections.
    pub(super) users: usize,
    pub(super) elections: usize,
    pub(super) lease: Duration,
    /// After how many entries members write their state down.
    pub(super) snapshot: u64,
    pub(super) weather: Weather,
    /// Of a thousand writes to a disk, in so many the power fails.
    pub(super) fatal: u64,
    /// How long things go wrong.
    pub(super) chaos: u64,
    /// The time between two faults, about.
    pub(super) fault_every: u64,
}

impl Plan {
    pub(super) fn draw(scenario: RaftScenario, mistake: Option<RaftMistake>, rng: &mut SplitMix) -> Plan {
        let rough = scenario.has(RaftScenario::Network);
        let weather = Weather {
            slow: rng.below(if rough { 100 } else { 10 }),
            broken: rng.below(if rough { 60 } else { 5 }),
            doubled: rng.below(if rough { 60 } else { 5 }),
        };
        let crashes = scenario.has(RaftScenario::Crashes);
        Plan {
            scenario,
            mistake,
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

    /// The rate of a client's clock, in millionths: any two are within 1.2 of each other, unless that is the mistake.
    pub(super) fn rate(&self, rng: &mut SplitMix) -> u64 {
        match self.mistake {
            Some(RaftMistake::ClocksOfAnyRate) => [500_000, 2_000_000][rng.below(2) as usize],
            _ => rng.between(920_000, 1_090_000),
        }
    }
}
