//! What a jump of the wall clock means: the policies for gaps and overlaps.

use serde::{Deserialize, Serialize};

use super::when::When;

/// What happens to a time that the clock jumps over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Gap {
    /// It comes later, by as much as the clock jumped: 02:30 is at 03:30.
    Shift,
    /// It does not come that day.
    Skip,
}

/// What happens to a time that the clock shows twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Fold {
    /// It counts when it is shown first.
    First,
    /// It counts both times.
    Both,
}

/// The policies for gaps and overlaps. What is not said is chosen by what the schedule is ([`Dst::over`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Dst {
    /// For a time that the clock jumps over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gap: Option<Gap>,
    /// For a time that the clock shows twice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlap: Option<Fold>,
}

impl Dst {
    /// What holds for such a schedule: `skip` and `both` for a cron expression with times in every hour of the day, `shift`
    /// and `first` for any other schedule, unless said otherwise.
    pub fn over(self, when: &When) -> (Gap, Fold) {
        let (gap, fold) = match when {
            When::Cron(cron) if cron.is_every_hour() => (Gap::Skip, Fold::Both),
            _ => (Gap::Shift, Fold::First),
        };
        (self.gap.unwrap_or(gap), self.overlap.unwrap_or(fold))
    }

    /// Whether nothing is said.
    pub fn is_usual(&self) -> bool {
        *self == Dst::default()
    }
}
