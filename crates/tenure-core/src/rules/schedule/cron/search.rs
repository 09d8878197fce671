//! The next time, the last time and the number of times of an expression in a range of local milliseconds.
//!
//! The search does not step through single times. It finds the next time field by field and counts days by months, so
//! a search over decades takes one step per month.

use super::super::civil::{DAY, Month, month_of};
use super::Cron;

impl Cron {
    /// The first time in `from..to`.
    pub(in super::super) fn next_in(&self, from: i64, to: i64) -> Option<i64> {
        let (from, to) = (seconds(from), seconds(to));
        if from >= to {
            return None;
        }
        let (day, time) = (from.div_euclid(DAY), from.rem_euclid(DAY));
        let today = self.time_from(time).filter(|_| self.has_day(day));
        let next = match today {
            Some(time) => day * DAY + time,
            None => self.day_from(day + 1, (to - 1).div_euclid(DAY))? * DAY + self.time_from(0)?,
        };
        (next < to).then_some(next * 1_000)
    }

    /// The last time in `from..to`.
    pub(in super::super) fn last_in(&self, from: i64, to: i64) -> Option<i64> {
        let (from, to) = (seconds(from), seconds(to));
        if from >= to {
            return None;
        }
        let (day, time) = ((to - 1).div_euclid(DAY), (to - 1).rem_euclid(DAY));
        let today = self.time_until(time).filter(|_| self.has_day(day));
        let last = match today {
            Some(time) => day * DAY + time,
            None => self.day_until(day - 1, from.div_euclid(DAY))? * DAY + self.time_until(DAY - 1)?,
        };
        (last >= from).then_some(last * 1_000)
    }

    /// The number of times in `from..to`.
    pub(in super::super) fn count_in(&self, from: i64, to: i64) -> u64 {
        let (from, to) = (seconds(from), seconds(to));
        if from >= to {
            return 0;
        }
        let (first, last) = (from.div_euclid(DAY), to.div_euclid(DAY));
        let until = |second: i64| match self.has_day(second.div_euclid(DAY)) {
            true => self.times_before(second.rem_euclid(DAY)),
            false => 0,
        };
        self.count_days(first, last) * self.times_before(DAY) + until(to) - until(from)
    }

    fn has_day(&self, day: i64) -> bool {
        let (month, of_month) = month_of(day);
        self.days_of(month) >> of_month & 1 == 1
    }

    fn days_of(&self, month: Month) -> u64 {
        if self.months >> month.month & 1 == 1 { self.days.of(month) } else { 0 }
    }

    fn day_from(&self, day: i64, most: i64) -> Option<i64> {
        let (mut month, mut of_month) = month_of(day);
        loop {
            let first = month.first_day();
            if first > most {
                return None;
            }
            if let Some(found) = next_bit(self.days_of(month), of_month) {
                return Some(first + i64::from(found) - 1);
            }
            (month, of_month) = (month.next(), 1);
        }
    }

    fn day_until(&self, day: i64, least: i64) -> Option<i64> {
        let (mut month, mut of_month) = month_of(day);
        loop {
            let first = month.first_day();
            if first + 31 < least {
                return None;
            }
            if let Some(found) = last_bit(self.days_of(month), of_month) {
                return Some(first + i64::from(found) - 1);
            }
            (month, of_month) = (month.previous(), 31);
        }
    }

    /// The number of selected days in `from..to`.
    fn count_days(&self, from: i64, to: i64) -> u64 {
        let (mut month, of_month) = month_of(from);
        let mut days = self.days_of(month) >> of_month << of_month;
        let mut count = 0;
        loop {
            let first = month.first_day();
            let next = first + i64::from(month.days());
            if next >= to {
                // Bit n stands for day n of the month; the bits below that of `to` are the days before it.
                return count + (days & ((1 << (to - first + 1)) - 1)).count_ones() as u64;
            }
            count += u64::from(days.count_ones());
            month = month.next();
            days = self.days_of(month);
        }
    }

    /// The first time of day at or after `time`, in seconds.
    fn time_from(&self, time: i64) -> Option<i64> {
        let (hour, minute, second) = time_parts(time);
        if self.hours >> hour & 1 == 1 {
            if self.minutes >> minute & 1 == 1
                && let Some(second) = next_bit(self.seconds, second)
            {
                return Some(second_of_day(hour, minute, second));
            }
            if let Some(minute) = next_bit(self.minutes, minute + 1) {
                return Some(second_of_day(hour, minute, next_bit(self.seconds, 0)?));
            }
        }
        let hour = next_bit(self.hours, hour + 1)?;
        Some(second_of_day(hour, next_bit(self.minutes, 0)?, next_bit(self.seconds, 0)?))
    }

    /// The last time of day at or before `time`, in seconds.
    fn time_until(&self, time: i64) -> Option<i64> {
        let (hour, minute, second) = time_parts(time);
        if self.hours >> hour & 1 == 1 {
            if self.minutes >> minute & 1 == 1
                && let Some(second) = last_bit(self.seconds, second)
            {
                return Some(second_of_day(hour, minute, second));
            }
            if let Some(minute) = minute.checked_sub(1).and_then(|it| last_bit(self.minutes, it)) {
                return Some(second_of_day(hour, minute, last_bit(self.seconds, 59)?));
            }
        }
        let hour = hour.checked_sub(1).and_then(|it| last_bit(self.hours, it))?;
        Some(second_of_day(hour, last_bit(self.minutes, 59)?, last_bit(self.seconds, 59)?))
    }

    /// The number of times of day before `time`.
    fn times_before(&self, time: i64) -> u64 {
        let (hour, minute, second) = time_parts(time);
        let below = |set: u64, n: u32| u64::from((set & ((1 << n) - 1)).count_ones());
        let a_minute = u64::from(self.seconds.count_ones());
        let an_hour = u64::from(self.minutes.count_ones()) * a_minute;
        let mut count = below(self.hours, hour) * an_hour;
        if self.hours >> hour & 1 == 1 {
            count += below(self.minutes, minute) * a_minute;
            if self.minutes >> minute & 1 == 1 {
                count += below(self.seconds, second);
            }
        }
        count
    }
}

/// Converts milliseconds to seconds, rounding up, so that a comparison with an exclusive bound stays valid.
fn seconds(ms: i64) -> i64 {
    -(-ms).div_euclid(1_000)
}

fn time_parts(time: i64) -> (u32, u32, u32) {
    ((time / 3_600) as u32, (time / 60 % 60) as u32, (time % 60) as u32)
}

fn second_of_day(hour: u32, minute: u32, second: u32) -> i64 {
    i64::from(hour) * 3_600 + i64::from(minute) * 60 + i64::from(second)
}

/// The lowest bit of a set at or above `from`.
fn next_bit(set: u64, from: u32) -> Option<u32> {
    let rest = set.checked_shr(from)?;
    (rest != 0).then(|| from + rest.trailing_zeros())
}

/// The highest bit of a set at or below `until`.
fn last_bit(set: u64, until: u32) -> Option<u32> {
    let rest = set << (63 - until);
    (rest != 0).then(|| until - rest.leading_zeros())
}
