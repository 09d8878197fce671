//! Cron expressions and the local times they select.
//!
//! An expression has five fields (minute, hour, day of month, month, day of week) or six (seconds first). Each field
//! is a set of numbers, stored as bits. The days are computed month by month, because `L`, `W` and `#` select other
//! days in each. An expression has no time zone; it selects times of a wall clock. An expression that no day can
//! satisfy is rejected.

mod days;
mod field;
mod parse;
mod reader;
mod search;

#[cfg(test)]
mod parse_tests;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use self::days::Days;

/// A cron expression.
///
/// | field | values | besides `*`, `,`, `-` and `/` |
/// |---|---|---|
/// | second (only if there are six) | 0–59 | |
/// | minute | 0–59 | |
/// | hour | 0–23 | |
/// | day of month | 1–31 | `L` the last day, `L-3` three days before it, `15W` the weekday nearest to the 15th within the month, `LW` the last weekday, `?` any |
/// | month | 1–12, `JAN`–`DEC` | |
/// | day of week | 0–7, `SUN`–`SAT`; 0 and 7 are Sunday | `FRIL` the last Friday, `FRI#2` the second one, `?` any |
///
/// If both day fields are restricted (not `*` or `?`), a day that matches *either* is selected, as in every cron
/// since 1987. `a/n` selects every n-th value from a. `@yearly`, `@annually`, `@monthly`, `@weekly`, `@daily`,
/// `@midnight` and `@hourly` are supported.
///
/// ```
/// use tenure_core::rules::schedule::Cron;
///
/// assert!("30 2 L * ?".parse::<Cron>().is_ok());
/// let error = "0 25 * * *".parse::<Cron>().unwrap_err();
/// assert_eq!(error.position, 3);
/// assert_eq!(error.problem, "the hour 25 is out of range; hours are 0 to 23");
/// assert!("0 0 31 2 *".parse::<Cron>().is_err());
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cron {
    text: String,
    seconds: u64,
    minutes: u64,
    hours: u64,
    months: u64,
    days: Days,
}

/// Where and why a cron expression is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cron expression {expression:?}, at position {position}: {problem}")]
pub struct CronError {
    /// The expression, shortened if it is very long.
    pub expression: String,
    /// Position in characters, from 1.
    pub position: usize,
    /// Problem, with a remedy.
    pub problem: String,
}

impl CronError {
    /// The expression with a marker below the error.
    pub fn pointed(&self) -> String {
        format!("{}\n{}^", self.expression, " ".repeat(self.position - 1))
    }
}

impl Cron {
    /// The expression as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it selects times in every hour of the day.
    pub(super) fn is_every_hour(&self) -> bool {
        self.hours.count_ones() == 24
    }
}

impl FromStr for Cron {
    type Err = CronError;
    fn from_str(text: &str) -> Result<Self, CronError> {
        parse::parse(text)
    }
}

impl TryFrom<String> for Cron {
    type Error = CronError;
    fn try_from(text: String) -> Result<Self, CronError> {
        text.parse()
    }
}

impl From<Cron> for String {
    fn from(cron: Cron) -> String {
        cron.text
    }
}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cron({:?})", self.text)
    }
}
