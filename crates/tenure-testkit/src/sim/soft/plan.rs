//! Kinds of days, and what one seed makes of them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tenure_core::SplitMix;
use tenure_core::soft::Pace;

use crate::sim::network::Draw as _;

/// A kind of day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SoftScenario {
    /// Processes come, leave and crash.
    Churn,
    /// They are stopped for a while besides.
    Stopped,
    /// The network is cut in two, and heals.
    Netsplit,
    /// It is cut between some in one direction only, and heals.
    OneWay,
    /// All of it.
    Everything,
}

impl SoftScenario {
    /// All kinds of days.
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
    pub(super) fn holds(self) -> bool {
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
            format!("there is no scenario {s:?}; choose one of {}", Self::ALL.map(Self::as_str).join(", "))
        })
    }
}

/// A mistake, put in to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoftMistake {
    /// Whoever led believes so until it looks again, however late.
    TrustKeptAsAFlag,
    /// Who comes leads at once if it has heard of nobody.
    NoHoldDown,
    /// Who is ready leads before the others can have heard so.
    NoSettling,
    /// A beat that is heard of for the first time passes for life.
    AnyBeatIsLife,
}

impl SoftMistake {
    /// All of them.
    pub const ALL: [SoftMistake; 4] = [
        SoftMistake::TrustKeptAsAFlag,
        SoftMistake::NoHoldDown,
        SoftMistake::NoSettling,
        SoftMistake::AnyBeatIsLife,
    ];

    fn as_str(self) -> &'static str {
        match self {
            SoftMistake::TrustKeptAsAFlag => "trust-kept-as-a-flag",
            SoftMistake::NoHoldDown => "no-hold-down",
            SoftMistake::NoSettling => "no-settling",
            SoftMistake::AnyBeatIsLife => "any-beat-is-life",
        }
    }
}

impl fmt::Display for SoftMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for SoftMistake {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|mistake| mistake.as_str() == s);
        found.ok_or_else(|| {
            format!("there is no mistake {s:?}; choose one of {}", Self::ALL.map(Self::as_str).join(", "))
        })
    }
}

/// What one seed makes of a scenario.
pub(super) struct Plan {
    pub(super) nodes: usize,
    pub(super) pace: Pace,
    /// The pace as the candidates have it: not the true one, if that is the mistake.
    pub(super) believed: Pace,
    /// A round, in nanoseconds: the unit of everything.
    pub(super) round: u64,
    /// How many faults.
    pub(super) faults: u64,
    /// Of a thousand messages, so many are lost.
    pub(super) lost: u64,
}

impl Plan {
    pub(super) fn draw(mistake: Option<SoftMistake>, rng: &mut SplitMix) -> Plan {
        let round = Duration::from_millis([50, 100, 200][rng.below(3) as usize]);
        let patience = round * (8 + rng.below(8) as u32);
        let hold_down = round * (8 + rng.below(8) as u32);
        let tiny = Duration::from_millis(10);
        let pace = Pace::new(round, patience, hold_down).expect("in range");
        let believed = match mistake {
            Some(SoftMistake::NoHoldDown) => Pace::new(tiny, patience, tiny * 5).expect("in range"),
            Some(SoftMistake::NoSettling) => Pace::new(tiny, patience, hold_down).expect("in range"),
            _ => pace,
        };
        Plan {
            nodes: 2 + rng.below(6) as usize,
            pace,
            believed,
            round: round.as_nanos() as u64,
            faults: 2 + rng.below(4),
            lost: rng.below(30),
        }
    }
}
