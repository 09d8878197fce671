//! The days that an expression selects, month by month.

use super::super::civil::{Month, longest, weekday};

/// The two day fields. Bit n of a set stands for n; days of a month count from 1, Sunday is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Days {
    /// Days of the month; `None` means any.
    pub(super) of_month: Option<DayOfMonthField>,
    /// Days of the week; `None` means any.
    pub(super) of_week: Option<DayOfWeekField>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct DayOfMonthField {
    /// Explicit days.
    pub(super) days: u64,
    /// Days counted back from the last day of the month; bit 0 is the last day.
    pub(super) before_last: u64,
    /// Days whose nearest weekday is selected.
    pub(super) nearest: u64,
    /// Whether the last weekday is selected.
    pub(super) last_weekday: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct DayOfWeekField {
    /// Weekdays selected in every week.
    pub(super) all: u64,
    /// Weekdays whose last occurrence in the month is selected.
    pub(super) last: u64,
    /// Weekdays whose first, second, … occurrence in the month is selected.
    pub(super) nth: [u64; 5],
}

impl Days {
    /// The selected days of a month, as bits.
    pub(super) fn of(&self, month: Month) -> u64 {
        let every = ((1 << month.days()) - 1) << 1;
        match (&self.of_month, &self.of_week) {
            (None, None) => every,
            (Some(of_month), None) => every & of_month.of(month),
            (None, Some(of_week)) => every & of_week.of(month),
            (Some(of_month), Some(of_week)) => every & (of_month.of(month) | of_week.of(month)),
        }
    }

    /// Whether any of these months can contain a selected day. With a day-of-week field it always can: every month has each
    /// weekday at least four times, and in some years five times.
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

impl DayOfMonthField {
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

/// The weekday (Monday to Friday) nearest to a day, in the same month.
fn nearest_weekday(first: i64, day: u32, last: u32) -> u32 {
    match weekday(first + i64::from(day) - 1) {
        6 if day == 1 => 3,
        6 => day - 1,
        0 if day == last => day - 2,
        0 => day + 1,
        _ => day,
    }
}

impl DayOfWeekField {
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
