//! What people write to say when: a cron expression or an interval.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::cron::{Cron, CronError};
use super::every::{Every, EveryError};

/// A cron expression or an interval: what begins with `every` or `@every` is an interval.
///
/// ```
/// use tenure_core::schedule::When;
///
/// assert!(matches!("every 90s".parse(), Ok(When::Every(_))));
/// assert!(matches!("0 2 * * *".parse(), Ok(When::Cron(_))));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum When {
    /// By the wall clock.
    Cron(Box<Cron>),
    /// At equal distances.
    Every(Every),
}

/// Where it makes no sense. Nothing was done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WhenError {
    /// It is read as a cron expression.
    #[error(transparent)]
    Cron(#[from] CronError),
    /// It is read as an interval.
    #[error(transparent)]
    Every(#[from] EveryError),
}

impl WhenError {
    /// Where, in characters, counted from 1.
    pub fn position(&self) -> usize {
        match self {
            WhenError::Cron(error) => error.position,
            WhenError::Every(error) => error.position,
        }
    }
}

impl FromStr for When {
    type Err = WhenError;
    fn from_str(text: &str) -> Result<Self, WhenError> {
        let first = text.split_whitespace().next().unwrap_or_default();
        if first.trim_start_matches('@').eq_ignore_ascii_case("every") {
            return Ok(When::Every(text.parse()?));
        }
        Ok(When::Cron(Box::new(text.parse()?)))
    }
}

impl TryFrom<String> for When {
    type Error = WhenError;
    fn try_from(text: String) -> Result<Self, WhenError> {
        text.parse()
    }
}

impl From<When> for String {
    fn from(when: When) -> String {
        when.to_string()
    }
}

impl From<Cron> for When {
    fn from(cron: Cron) -> When {
        When::Cron(Box::new(cron))
    }
}

impl From<Every> for When {
    fn from(every: Every) -> When {
        When::Every(every)
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            When::Cron(cron) => cron.fmt(f),
            When::Every(every) => every.fmt(f),
        }
    }
}
