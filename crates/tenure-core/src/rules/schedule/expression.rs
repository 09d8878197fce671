//! Schedule expressions: a cron expression or an interval.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::cron::{Cron, CronError};
use super::interval::{Interval, IntervalError};

/// A cron expression or an interval. A text that starts with `every` or `@every` is an interval.
///
/// ```
/// use tenure_core::rules::schedule::ScheduleExpression;
///
/// assert!(matches!("every 90s".parse(), Ok(ScheduleExpression::Interval(_))));
/// assert!(matches!("0 2 * * *".parse(), Ok(ScheduleExpression::Cron(_))));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ScheduleExpression {
    /// A cron expression, which selects local times.
    Cron(Box<Cron>),
    /// An interval, with equal distances between ticks.
    Interval(Interval),
}

/// Where and why an expression is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleExpressionError {
    /// The text was parsed as a cron expression.
    #[error(transparent)]
    Cron(#[from] CronError),
    /// The text was parsed as an interval.
    #[error(transparent)]
    Interval(#[from] IntervalError),
}

impl ScheduleExpressionError {
    /// Position in characters, from 1.
    pub fn position(&self) -> usize {
        match self {
            ScheduleExpressionError::Cron(error) => error.position,
            ScheduleExpressionError::Interval(error) => error.position,
        }
    }
}

impl FromStr for ScheduleExpression {
    type Err = ScheduleExpressionError;
    fn from_str(text: &str) -> Result<Self, ScheduleExpressionError> {
        let first = text.split_whitespace().next().unwrap_or_default();
        if first.trim_start_matches('@').eq_ignore_ascii_case("every") {
            return Ok(ScheduleExpression::Interval(text.parse()?));
        }
        Ok(ScheduleExpression::Cron(Box::new(text.parse()?)))
    }
}

impl TryFrom<String> for ScheduleExpression {
    type Error = ScheduleExpressionError;
    fn try_from(text: String) -> Result<Self, ScheduleExpressionError> {
        text.parse()
    }
}

impl From<ScheduleExpression> for String {
    fn from(expression: ScheduleExpression) -> String {
        expression.to_string()
    }
}

impl From<Cron> for ScheduleExpression {
    fn from(cron: Cron) -> ScheduleExpression {
        ScheduleExpression::Cron(Box::new(cron))
    }
}

impl From<Interval> for ScheduleExpression {
    fn from(every: Interval) -> ScheduleExpression {
        ScheduleExpression::Interval(every)
    }
}

impl fmt::Display for ScheduleExpression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScheduleExpression::Cron(cron) => cron.fmt(f),
            ScheduleExpression::Interval(every) => every.fmt(f),
        }
    }
}
