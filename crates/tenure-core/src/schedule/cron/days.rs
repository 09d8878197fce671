//! The days that an expression means, month by month.

use super::super::civil::{Month, longest, weekday};

/// What the two fields for days say. Bit n of a set stands for n; days of a month count from 1, Sunday is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Days {
    /// Of the month; `None` if any will do.
    pub(super) of_month: Option<OfMonth>,
    /// Of the week; `None` if any will do.
    pub(super) of_week: Option<OfWeek>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct OfMonth {
    /// These.
    pub(super) days: u64,
    /// So many before the last one.
    pub(super) before_last: u64,
    /// The weekdays nearest to these.
    pub(super) nearest: u64,
    /// The last weekday.
    pub(super) last_weekday: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct OfWeek {
    /// All of these.
    pub(super) all: u64,
    /// The last of these in the month.
    pub(super) last: u64,
    /// The first, second, … of these in the month.
    pub(super) nth: [u64; 5],
}

impl Days {
    /// The days of a month, as bits.
    pub(super) fn of(&self, month: Month) -> u64 {
        let every = ((1 << month.days()) - 1) << 1;
        match (&self.of_month, &self.of_week) {
            (None, None) => every,
            (Some(of_month), None) => every & of_month.of(month),
            (None, Some(of_week)) => every & of_week.of(month),
            (Some(of_month), Some(of_week)) => every & (of_month.of(month) | of_week.of(month)),
        }
    }

    /// Whether any of these months ever has such a day. Every month has every weekday, and every month at times a fifth one.
    pub(super) fn possible(&self, months: u64) -> bool {
        let of_month = match (&self.of_month, &self.of_week) {
            (Some(of_month), None) => of_month,
            _ => return true,
        };
        (1..=12).filter(|month| months >> month & 1 == 1).any(|month| {
            let days = longest(month);
            let numbered = (of_month.days | of_month.nearest) & ((1 << days) - 1) << 1;
            numbered != 0 || of_month.before_last & ((1 << days) - 1) != 0 || of_month.last_weekday
        })
    }
}

impl OfMonth {
    fn of(&self, month: Month) -> u64 {
        let (first, last) = (month.first_day(), month.days());
        let mut days = self.days;
        let chosen = |set: u64, most: u32| (0..=most).filter(move |n| set >> n & 1 == 1);
        for before in chosen(self.before_last, last - 1) {
            days |= 1 << (last - before);
        }
        for near in chosen(self.nearest, last) {
            days |= 1 << nearest_weekday(first, near, last);
        }
        if self.last_weekday {
            days |= 1 << nearest_weekday(first, last, last);
        }
        days
    }
}

/// Monday to Friday, nearest to a day, in the same month.
fn nearest_weekday(first: i64, day: u32, last: u32) -> u32 {
    match weekday(first + i64::from(day) - 1) {
        6 if day == 1 => 3,
        6 => day - 1,
        0 if day == last => day - 2,
        0 => day + 1,
        _ => day,
    }
}

impl OfWeek {
    fn of(&self, month: Month) -> u64 {
        let (first, last) = (weekday(month.first_day()), month.days());
        let mut days = 0;
        for day in 0..7 {
            let is_in = |set: u64| set >> day & 1 == 1;
            let earliest = 1 + (day + 7 - first) % 7;
            let times = (last - earliest) / 7 + 1;
            for time in 0..times {
                if is_in(self.all)
                    || is_in(self.nth[time as usize])
                    || (time + 1 == times && is_in(self.last))
                {
                    days |= 1 << (earliest + 7 * time);
                }
            }
        }
        days
    }
}
