//! The definition of a schedule and its validation.
//!
//! Deserialization validates single fields ([`ScheduleExpression`], [`Zone`], [`MisfirePolicy`], [`Name`]);
//! [`ScheduleDefinition::check`] validates combinations. A valid definition has at least one tick. The store keeps
//! the definition as it is; only the next tick is computed in advance.

use serde::{Deserialize, Serialize};

use super::dst::DstPolicy;
use super::expression::ScheduleExpression;
use super::misfire::{MisfirePolicy, MisfirePolicyError};
use super::overlap::OverlapPolicy;
use super::target::ScheduleTarget;
use super::timetable::{JITTER_MAX_MS, LAST_MS, RecurrenceRule, Timetable};
use super::zone::Zone;
use crate::Name;
use crate::port::{ErrorKind, NewTask, PAYLOAD_MAX, RawJson, StoreError};
use crate::rules::work::{SubmissionError, TextError};

/// Maximum number of bytes that the envelope of a webhook call adds to its payload.
const ENVELOPE: usize = 8 << 10;

/// The definition of a schedule.
///
/// ```
/// use tenure_core::rules::schedule::ScheduleDefinition;
///
/// let definition: ScheduleDefinition = serde_json::from_str(
///     r#"{
///         "name": "nightly-report",
///         "expression": "30 2 * * MON-FRI",
///         "time_zone": "Europe/Berlin",
///         "misfire_policy": "within(2h)",
///         "target": {"task": {"queue": "reports", "task": {"kind": "nightly"}}}
///     }"#,
/// )
/// .unwrap();
/// assert_eq!(definition.check(), Ok(()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ScheduleDefinition {
    /// Name in its namespace.
    pub name: Name,
    /// A cron expression, or an interval such as `every 90s`.
    #[cfg_attr(feature = "schema", schema(value_type = String, example = "30 2 * * MON-FRI"))]
    pub expression: ScheduleExpression,
    /// Time zone; UTC by default.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = String, example = "Europe/Berlin"))]
    pub time_zone: Zone,
    /// No tick before this instant, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_at_ms: Option<i64>,
    /// No tick at or after this instant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_at_ms: Option<i64>,
    /// Maximum jitter: each tick is due later by up to this, always by the same amount for the same tick.
    #[serde(default)]
    pub jitter_ms: u64,
    /// Policy for DST gaps and overlaps.
    #[serde(default, skip_serializing_if = "DstPolicy::is_usual")]
    pub dst: DstPolicy,
    /// Policy for missed ticks.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = String, example = "fire_all(100)"))]
    pub misfire_policy: MisfirePolicy,
    /// Policy for a tick while an earlier run is unfinished.
    #[serde(default)]
    pub overlap_policy: OverlapPolicy,
    /// Effect of a tick.
    pub target: ScheduleTarget,
    /// Payload of the event, task or webhook.
    #[serde(default)]
    pub payload: RawJson,
}

/// Why a definition is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleDefinitionError {
    /// A number is out of range.
    #[error("`{field}` is {value}; it must be between {least} and {most}")]
    Range {
        /// Name of the field.
        field: &'static str,
        /// The number.
        value: i128,
        /// Minimum.
        least: i128,
        /// Maximum.
        most: i128,
    },
    /// The end is not after the start.
    #[error("`end_at_ms` is {end_ms}, which is not after `start_at_ms`, {start_ms}; swap them, or omit one")]
    Ends {
        /// The start.
        start_ms: i64,
        /// The end.
        end_ms: i64,
    },
    /// An interval counts from a start that is missing.
    #[error(
        "`expression` is {expression:?}, but `start_at_ms` is missing; give it, or use {}",
        from_epoch(expression)
    )]
    NoStart {
        /// The expression.
        expression: String,
    },
    /// The schedule has no tick.
    #[error(
        "`expression` is {expression:?}, which has no tick between `start_at_ms` and `end_at_ms` ({from} until \
         {to}); move one of them"
    )]
    Never {
        /// The expression.
        expression: String,
        /// Start of the range.
        from: String,
        /// End of the range.
        to: String,
    },
    /// The misfire policy is invalid.
    #[error("`misfire_policy`: {0}")]
    Misfire(#[from] MisfirePolicyError),
    /// The payload is too large.
    #[error(
        "`payload` has {0} bytes, more than the maximum of {PAYLOAD_MAX}; store the data elsewhere and use a \
         reference"
    )]
    TooLarge(usize),
    /// The key of an event is invalid.
    #[error("`target.event.key` is {:?}; it {problem}", shown(key))]
    Key {
        /// The key.
        key: String,
        /// Problem with the key.
        problem: TextError,
    },
    /// The task is invalid.
    #[error("`target.task.task`: {0}")]
    Task(SubmissionError),
    /// The definition sets a field that each tick sets itself.
    #[error("`{field}` cannot be given: {remedy}")]
    Fixed {
        /// Name of the field.
        field: &'static str,
        /// What to do instead.
        remedy: &'static str,
    },
    /// The URL of a webhook is invalid.
    #[error("`target.webhook.url` {url:?} {problem}")]
    Url {
        /// The URL.
        url: String,
        /// Problem, with a remedy.
        problem: &'static str,
    },
}

fn from_epoch(expression: &str) -> String {
    expression.replace(" from start", "")
}

fn shown(key: &str) -> String {
    key.chars().take(40).collect()
}

impl ScheduleDefinitionError {
    /// Name of the invalid field.
    pub fn field(&self) -> &'static str {
        match self {
            ScheduleDefinitionError::Range { field, .. } | ScheduleDefinitionError::Fixed { field, .. } => {
                field
            }
            ScheduleDefinitionError::Ends { .. } => "end_at_ms",
            ScheduleDefinitionError::NoStart { .. } => "start_at_ms",
            ScheduleDefinitionError::Never { .. } => "expression",
            ScheduleDefinitionError::Misfire(_) => "misfire_policy",
            ScheduleDefinitionError::TooLarge(_) => "payload",
            ScheduleDefinitionError::Key { .. } => "target.event.key",
            ScheduleDefinitionError::Task(_) => "target.task.task",
            ScheduleDefinitionError::Url { .. } => "target.webhook.url",
        }
    }
}

impl From<ScheduleDefinitionError> for StoreError {
    fn from(error: ScheduleDefinitionError) -> StoreError {
        StoreError::new(ErrorKind::Request, error.to_string())
    }
}

impl ScheduleDefinition {
    /// A definition in UTC with default options.
    pub fn new(
        name: Name,
        expression: impl Into<ScheduleExpression>,
        target: ScheduleTarget,
    ) -> ScheduleDefinition {
        ScheduleDefinition {
            name,
            expression: expression.into(),
            time_zone: Zone::utc(),
            start_at_ms: None,
            end_at_ms: None,
            jitter_ms: 0,
            dst: DstPolicy::default(),
            misfire_policy: MisfirePolicy::default(),
            overlap_policy: OverlapPolicy::default(),
            target,
            payload: RawJson::default(),
        }
    }

    /// Sets the start to `now_ms`, the time of creation by the store's clock, if an interval counts from a start that
    /// is missing.
    pub fn started(self, now_ms: i64) -> ScheduleDefinition {
        let needs_start =
            matches!(self.expression, ScheduleExpression::Interval(every) if every.is_from_start());
        let start_ms = self.start_at_ms.or(needs_start.then_some(now_ms));
        ScheduleDefinition { start_at_ms: start_ms, ..self }
    }

    /// The fields that determine the ticks.
    pub fn rule(&self) -> RecurrenceRule {
        RecurrenceRule {
            expression: self.expression.clone(),
            time_zone: self.time_zone.clone(),
            start_ms: self.start_at_ms,
            end_ms: self.end_at_ms,
            jitter_ms: self.jitter_ms,
            dst: self.dst,
        }
    }

    /// Whether the other definition has the same ticks, apart from jitter and end.
    pub(super) fn has_times_of(&self, other: &ScheduleDefinition) -> bool {
        let apart = |rule: RecurrenceRule| RecurrenceRule { end_ms: None, jitter_ms: 0, ..rule };
        apart(self.rule()) == apart(other.rule())
    }

    /// The ticks. The jitter also depends on the namespace.
    pub fn timetable(&self, namespace: &Name) -> Timetable {
        Timetable::new(&self.rule(), &format!("{namespace}/{}", self.name))
    }

    /// Validates the definition.
    pub fn check(&self) -> Result<(), ScheduleDefinitionError> {
        self.check_times()?;
        range("jitter_ms", self.jitter_ms.into(), JITTER_MAX_MS.into())?;
        self.misfire_policy.check()?;
        let bytes = self.payload.as_str().len();
        if bytes > PAYLOAD_MAX {
            return Err(ScheduleDefinitionError::TooLarge(bytes));
        }
        self.target.check()?;
        match self.target {
            ScheduleTarget::Event { .. } if self.overlap_policy != OverlapPolicy::Allow => {
                Err(ScheduleDefinitionError::Fixed {
                    field: "overlap_policy",
                    remedy: "a published event has no end to wait for; use a task as the target, or omit \
                     `overlap_policy`",
                })
            }
            ScheduleTarget::Task { ref task, .. }
                if self.overlap_policy == OverlapPolicy::Queue && !is_one_by_one(task) =>
            {
                Err(ScheduleDefinitionError::Fixed {
                    field: "overlap_policy",
                    remedy: "the task has a concurrency key with a limit above 1, so runs could overlap; set \
                         the limit to 1, or omit the key or `overlap_policy`",
                })
            }
            // The envelope of a webhook call is part of the task's payload.
            ScheduleTarget::Webhook { .. } if bytes > PAYLOAD_MAX - ENVELOPE => {
                Err(ScheduleDefinitionError::TooLarge(bytes))
            }
            _ => Ok(()),
        }
    }

    fn check_times(&self) -> Result<(), ScheduleDefinitionError> {
        for (field, at) in [("start_at_ms", self.start_at_ms), ("end_at_ms", self.end_at_ms)] {
            range(field, at.unwrap_or(0).into(), LAST_MS.into())?;
        }
        if let (Some(start_ms), Some(end_ms)) = (self.start_at_ms, self.end_at_ms)
            && end_ms <= start_ms
        {
            return Err(ScheduleDefinitionError::Ends { start_ms, end_ms });
        }
        match self.expression {
            ScheduleExpression::Interval(every) if every.is_from_start() && self.start_at_ms.is_none() => {
                return Err(ScheduleDefinitionError::NoStart { expression: every.to_string() });
            }
            _ => {}
        }
        let timetable = Timetable::new(&self.rule(), "");
        match timetable.first_from(0) {
            Some(_) => Ok(()),
            None => Err(ScheduleDefinitionError::Never {
                expression: self.expression.to_string(),
                from: self.time_zone.format_local(self.start_at_ms.unwrap_or(0)),
                to: self.time_zone.format_local(self.end_at_ms.unwrap_or(LAST_MS)),
            }),
        }
    }
}

/// Whether tasks like this one never run in parallel once they have a concurrency key.
fn is_one_by_one(task: &NewTask) -> bool {
    task.concurrency_key.is_none() || task.concurrency_limit == 1
}

fn range(field: &'static str, value: i128, most: i128) -> Result<(), ScheduleDefinitionError> {
    if (0..=most).contains(&value) {
        Ok(())
    } else {
        Err(ScheduleDefinitionError::Range { field, value, least: 0, most })
    }
}
