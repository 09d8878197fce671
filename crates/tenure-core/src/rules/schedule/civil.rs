//! The Gregorian calendar without time zones: days since 1970-01-01, months and weekdays.

/// Seconds per day.
pub(super) const DAY: i64 = 86_400;

/// Names of the weekdays; Sunday is 0.
pub(super) const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// Names of the months; January is 0.
pub(super) const MONTHS: [&str; 12] =
    ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];

/// A month of a year.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Month {
    pub(super) year: i64,
    /// 1 to 12.
    pub(super) month: u32,
}

impl Month {
    pub(super) fn next(self) -> Month {
        match self.month {
            12 => Month { year: self.year + 1, month: 1 },
            month => Month { month: month + 1, ..self },
        }
    }

    pub(super) fn previous(self) -> Month {
        match self.month {
            1 => Month { year: self.year - 1, month: 12 },
            month => Month { month: month - 1, ..self },
        }
    }

    /// Number of days.
    pub(super) fn days(self) -> u32 {
        match self.month {
            2 if is_leap(self.year) => 29,
            month => longest(month) - u32::from(month == 2),
        }
    }

    /// Day number of its first day. The calculation counts years from March, so that the leap day is the last day of
    /// its year.
    pub(super) fn first_day(self) -> i64 {
        let year = if self.month <= 2 { self.year - 1 } else { self.year };
        let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
        let from_march = i64::from((self.month + 9) % 12);
        let day_of_year = (153 * from_march + 2) / 5;
        era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + day_of_year - 719_468
    }
}

/// The month of a day, and the day of the month from 1.
pub(super) fn month_of(day: i64) -> (Month, u32) {
    let z = day + 719_468;
    let (era, of_era) = (z.div_euclid(146_097), z.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    (Month { year, month: month as u32 }, day_of_month as u32)
}

/// Weekday of a day; Sunday is 0.
pub(super) fn weekday(day: i64) -> u32 {
    (day + 4).rem_euclid(7) as u32
}

/// Maximum number of days of a month.
pub(super) fn longest(month: u32) -> u32 {
    match month {
        2 => 29,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_day_of_eight_centuries_round_trips() {
        let mut month = Month { year: 1969, month: 12 };
        let (mut of_month, mut name) = (31, 3);
        for day in -1..300_000 {
            assert_eq!(month_of(day), (month, of_month));
            assert_eq!(weekday(day), name, "{day}");
            assert_eq!(month.first_day(), day - i64::from(of_month) + 1);
            name = (name + 1) % 7;
            of_month += 1;
            if of_month > month.days() {
                (month, of_month) = (month.next(), 1);
                assert_eq!(month.previous().next(), month);
            }
        }
    }

    #[test]
    fn leap_years_are_those_of_the_gregorian_calendar() {
        let february = |year| Month { year, month: 2 }.days();
        assert_eq!([2000, 2024, 2100, 2023].map(february), [29, 29, 28, 28]);
    }
}
