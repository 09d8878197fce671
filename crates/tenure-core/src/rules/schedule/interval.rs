//! Intervals: `every 90s`, `every 2d from start`.
//!
//! Hours and shorter units are elapsed time: `every 24h` has the same length all year. Days are calendar days in the
//! schedule's time zone: `every 1d` occurs at the same local time, whether the day has 23, 24 or 25 hours. An
//! interval counts from 1970, so its ticks do not depend on its creation (`every 15m` is every quarter of an hour in
//! UTC, `every 2d` is midnight of every other day in the time zone), or from the schedule's start.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Maximum interval: 100 years.
const MOST_MS: u64 = 3_155_760_000_000;
const MOST_DAYS: u64 = 36_525;
const DAY_MS: u64 = 86_400_000;

/// Units of elapsed time, longest first.
const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// An interval.
///
/// ```
/// use tenure_core::rules::schedule::Interval;
///
/// let interval: Interval = "every 1h30m from start".parse().unwrap();
/// assert_eq!(interval, Interval::ms(5_400_000).unwrap().counted_from_start());
/// assert_eq!("0s".parse::<Interval>().unwrap_err().position, 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Interval {
    length: Length,
    is_from_start: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Length {
    /// Elapsed time.
    Ms(u64),
    /// Calendar days.
    Days(u64),
}

/// Where and why an interval is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interval {input:?}, at position {position}: {problem}")]
pub struct IntervalError {
    /// The text.
    pub input: String,
    /// Position in characters, from 1.
    pub position: usize,
    /// Problem, with a remedy.
    pub problem: String,
}

impl Interval {
    /// An interval of elapsed milliseconds.
    pub fn ms(ms: u64) -> Result<Interval, IntervalError> {
        Interval::checked(Length::Ms(ms), &format!("{ms}ms"), 0)
    }

    /// An interval of calendar days.
    pub fn days(days: u64) -> Result<Interval, IntervalError> {
        Interval::checked(Length::Days(days), &format!("{days}d"), 0)
    }

    /// Counts from the schedule's start and not from 1970.
    pub fn counted_from_start(self) -> Interval {
        Interval { is_from_start: true, ..self }
    }

    /// Whether it counts from the schedule's start.
    pub fn is_from_start(self) -> bool {
        self.is_from_start
    }

    pub(super) fn length(self) -> Length {
        self.length
    }

    /// Distance between ticks, assuming days of 24 hours.
    pub(super) fn step_ms(self) -> i64 {
        match self.length {
            Length::Ms(ms) => ms as i64,
            Length::Days(days) => (days * DAY_MS) as i64,
        }
    }

    fn checked(length: Length, input: &str, at: usize) -> Result<Interval, IntervalError> {
        let problem = match length {
            Length::Ms(0) | Length::Days(0) => "an interval of zero never advances; use 1ms or more",
            Length::Ms(ms) if ms > MOST_MS => "more than 100 years; use less",
            Length::Days(days) if days > MOST_DAYS => "more than 100 years; use less",
            _ => return Ok(Interval { length, is_from_start: false }),
        };
        Err(wrong(input, at, problem))
    }
}

impl FromStr for Interval {
    type Err = IntervalError;
    /// Parses `[every] LENGTH [from start | from epoch]`. The length is in `d`, or in `h`, `m`, `s` and `ms` one
    /// after the other.
    fn from_str(input: &str) -> Result<Self, IntervalError> {
        let mut words = words(input).into_iter().peekable();
        words.next_if(|(_, word)| word.trim_start_matches('@').eq_ignore_ascii_case("every"));
        let Some((at, word)) = words.next() else {
            return Err(wrong(
                input,
                input.chars().count(),
                "the length is missing; use for example every 90s",
            ));
        };
        let every = Interval::checked(length(input, at, word)?, input, at)?;
        let Some((at, word)) = words.next() else { return Ok(every) };
        if !word.eq_ignore_ascii_case("from") {
            return Err(wrong(
                input,
                at,
                "only from start or from epoch may follow; write the length as in 1h30m",
            ));
        }
        let from_start = match words.next() {
            Some((_, word)) if word.eq_ignore_ascii_case("start") => true,
            Some((_, word)) if word.eq_ignore_ascii_case("epoch") => false,
            Some((at, _)) => {
                return Err(wrong(input, at, "use from start, or from epoch (1970, the default)"));
            }
            None => return Err(wrong(input, input.chars().count(), "use from start, or from epoch")),
        };
        match words.next() {
            Some((at, _)) => Err(wrong(input, at, "nothing may follow here; remove it")),
            None => Ok(if from_start { every.counted_from_start() } else { every }),
        }
    }
}

/// The words with their positions in characters.
fn words(input: &str) -> Vec<(usize, &str)> {
    let place = |word: &str| input[..word.as_ptr() as usize - input.as_ptr() as usize].chars().count();
    input.split_whitespace().map(|word| (place(word), word)).collect()
}

/// Parses `1h30m`, `500ms`, `2d`: each unit once, the longest first, days alone.
pub(super) fn length(input: &str, at: usize, word: &str) -> Result<Length, IntervalError> {
    let (mut rest, mut place, mut sum, mut last) = (word, at, 0_u64, usize::MAX);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let unit = &tail[..tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len())];
        if number.is_empty() {
            return Err(wrong(input, place, "expected a whole number, as in 90s"));
        }
        let Ok(number) = number.parse::<u64>() else {
            return Err(wrong(input, place, "this number is too large; use a longer unit"));
        };
        let unit_place = place + digits;
        if unit == "d" && sum == 0 && last == usize::MAX && tail.len() == 1 {
            return Ok(Length::Days(number));
        }
        let Some(which) = UNITS.iter().position(|(name, _)| *name == unit) else {
            return Err(wrong(input, unit_place, unknown(unit)));
        };
        if last != usize::MAX && which <= last {
            return Err(wrong(input, place, "write units from long to short, each once, as in 1h30m"));
        }
        let Some(total) = number.checked_mul(UNITS[which].1).and_then(|ms| sum.checked_add(ms)) else {
            return Err(wrong(input, place, "more than 100 years; use less"));
        };
        (sum, last) = (total, which);
        (rest, place) = (&tail[unit.len()..], unit_place + unit.chars().count());
    }
    Ok(Length::Ms(sum))
}

fn unknown(unit: &str) -> &'static str {
    match unit {
        "" => "the unit is missing; use ms, s, m, h or d",
        "d" => {
            "days are calendar days and cannot be combined with other units; for elapsed time use for \
             example 36h"
        }
        "w" => "weeks are not supported; use 7d, or a cron expression such as 0 0 * * MON",
        "." | "," => "only whole numbers are supported; use a shorter unit, as in 1500ms",
        "S" | "M" | "H" | "D" | "MS" => "write units in lower case: ms, s, m, h, d",
        "sec" | "secs" | "second" | "seconds" => "the unit of seconds is s",
        "min" | "mins" | "minute" | "minutes" => "the unit of minutes is m",
        "hour" | "hours" | "hr" | "hrs" => "the unit of hours is h",
        "day" | "days" => "the unit of days is d",
        _ => "unknown unit; use ms, s, m, h or d",
    }
}

fn wrong(input: &str, at: usize, problem: &str) -> IntervalError {
    IntervalError { input: input.chars().take(100).collect(), position: at + 1, problem: problem.into() }
}

/// Elapsed time in the form `1h30m`.
pub(super) fn written(ms: u64) -> String {
    let mut rest = ms;
    let mut text = String::new();
    for (unit, length) in UNITS {
        if rest >= length {
            text += &format!("{}{unit}", rest / length);
            rest %= length;
        }
    }
    if text.is_empty() { "0ms".into() } else { text }
}

impl TryFrom<String> for Interval {
    type Error = IntervalError;
    fn try_from(text: String) -> Result<Self, IntervalError> {
        text.parse()
    }
}

impl From<Interval> for String {
    fn from(every: Interval) -> String {
        every.to_string()
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.length {
            Length::Ms(ms) => write!(f, "every {}", written(ms))?,
            Length::Days(days) => write!(f, "every {days}d")?,
        }
        f.write_str(if self.is_from_start { " from start" } else { "" })
    }
}
