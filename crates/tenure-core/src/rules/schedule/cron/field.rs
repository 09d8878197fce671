//! The fields of a cron expression: names, ranges and value names.

use super::super::civil::{MONTHS, WEEKDAYS};

/// A field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Second,
    Minute,
    Hour,
    DayOfMonth,
    Month,
    DayOfWeek,
}

impl Field {
    pub(super) const ALL: [Field; 6] =
        [Field::Second, Field::Minute, Field::Hour, Field::DayOfMonth, Field::Month, Field::DayOfWeek];

    /// Name of the field.
    pub(super) fn name(self) -> &'static str {
        match self {
            Field::Second => "second",
            Field::Minute => "minute",
            Field::Hour => "hour",
            Field::DayOfMonth => "day of month",
            Field::Month => "month",
            Field::DayOfWeek => "day of week",
        }
    }

    /// Allowed values, for messages.
    pub(super) fn values(self) -> &'static str {
        match self {
            Field::Second => "seconds are 0 to 59",
            Field::Minute => "minutes are 0 to 59",
            Field::Hour => "hours are 0 to 23",
            Field::DayOfMonth => "days of a month are 1 to 31",
            Field::Month => "months are 1 to 12, or JAN to DEC",
            Field::DayOfWeek => "days of a week are 0 to 7, both Sunday, or SUN to SAT",
        }
    }

    /// The smallest value.
    pub(super) fn least(self) -> u32 {
        u32::from(matches!(self, Field::DayOfMonth | Field::Month))
    }

    /// The largest value that may be written.
    pub(super) fn most(self) -> u32 {
        match self {
            Field::Second | Field::Minute => 59,
            Field::Hour => 23,
            Field::DayOfMonth => 31,
            Field::Month => 12,
            Field::DayOfWeek => 7,
        }
    }

    /// The largest value of `*` and `a/n`, so that Sunday is not counted twice.
    pub(super) fn last(self) -> u32 {
        if self == Field::DayOfWeek { 6 } else { self.most() }
    }

    /// The value of a name.
    pub(super) fn named(self, name: &str) -> Option<u32> {
        let names = self.names();
        names.iter().position(|it| it.eq_ignore_ascii_case(name)).map(|i| i as u32 + self.least())
    }

    /// Value names, from the smallest value.
    pub(super) fn names(self) -> &'static [&'static str] {
        match self {
            Field::Month => &MONTHS,
            Field::DayOfWeek => &WEEKDAYS,
            _ => &[],
        }
    }
}
