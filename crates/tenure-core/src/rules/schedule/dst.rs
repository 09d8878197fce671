//! Policies for DST gaps and overlaps.

use serde::{Deserialize, Serialize};

use super::expression::ScheduleExpression;

/// What happens to a local time in a DST gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DstGapPolicy {
    /// It occurs later by the length of the gap: 02:30 becomes 03:30.
    Shift,
    /// It does not occur on that day.
    Skip,
}

/// What happens to a local time in a DST overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DstOverlapPolicy {
    /// It occurs the first time only.
    First,
    /// It occurs both times.
    Both,
}

/// The policies for DST gaps and overlaps. The defaults depend on the schedule ([`DstPolicy::resolve`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct DstPolicy {
    /// Policy for a time in a gap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gap: Option<DstGapPolicy>,
    /// Policy for a time in an overlap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlap: Option<DstOverlapPolicy>,
}

impl DstPolicy {
    /// The policies with defaults: `skip` and `both` for a cron expression with times in every hour of the day,
    /// `shift` and `first` for any other schedule.
    pub fn resolve(self, expression: &ScheduleExpression) -> (DstGapPolicy, DstOverlapPolicy) {
        let (gap, fold) = match expression {
            ScheduleExpression::Cron(cron) if cron.is_every_hour() => {
                (DstGapPolicy::Skip, DstOverlapPolicy::Both)
            }
            _ => (DstGapPolicy::Shift, DstOverlapPolicy::First),
        };
        (self.gap.unwrap_or(gap), self.overlap.unwrap_or(fold))
    }

    /// Whether both policies have their defaults.
    pub fn is_usual(&self) -> bool {
        *self == DstPolicy::default()
    }
}
