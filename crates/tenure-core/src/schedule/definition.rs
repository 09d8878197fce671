//! A schedule as people define it, and what makes no sense in it.
//!
//! What can be seen from one field is refused when it is read ([`When`], [`Zone`], [`Misfire`], [`Name`]); what takes
//! several fields is refused by [`Definition::check`]. A definition that is checked has ticks: one that could never fire is
//! refused. The store keeps it as it is; nothing is worked out beforehand but the next tick.

use serde::{Deserialize, Serialize};

use super::dst::Dst;
use super::misfire::{Misfire, MisfireError};
use super::overlap::Overlap;
use super::target::Target;
use super::timetable::{JITTER_MAX_MS, LAST_MS, Rule, Timetable};
use super::when::When;
use super::zone::Zone;
use crate::Name;
use crate::claim::{SubmissionError, TextError};
use crate::port::{Json, NewTask, PAYLOAD_MAX, StoreError, Trouble};

/// How much longer than its payload a call is at most.
const ENVELOPE: usize = 8 << 10;

/// A schedule.
///
/// ```
/// use tenure_core::schedule::Definition;
///
/// let definition: Definition = serde_json::from_str(
///     r#"{
///         "name": "nightly-report",
///         "when": "30 2 * * MON-FRI",
///         "zone": "Europe/Berlin",
///         "misfire": "within(2h)",
///         "target": {"task": {"queue": "reports", "task": {"kind": "nightly"}}}
///     }"#,
/// )
/// .unwrap();
/// assert_eq!(definition.check(), Ok(()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// What it is called in its namespace.
    pub name: Name,
    /// When: a cron expression, or `every 90s`.
    #[cfg_attr(feature = "schema", schema(value_type = String, example = "30 2 * * MON-FRI"))]
    pub when: When,
    /// On which wall clock. Unless said, UTC.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = String, example = "Europe/Berlin"))]
    pub zone: Zone,
    /// No tick before this, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_ms: Option<i64>,
    /// No tick from this on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_ms: Option<i64>,
    /// Each tick is due later by up to this, always the same for the same tick.
    #[serde(default)]
    pub jitter_ms: u64,
    /// What a jump of the wall clock means.
    #[serde(default, skip_serializing_if = "Dst::is_usual")]
    pub dst: Dst,
    /// What becomes of ticks that were missed.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = String, example = "fire_all(100)"))]
    pub misfire: Misfire,
    /// What becomes of a tick while an earlier one's run is under way.
    #[serde(default)]
    pub overlap: Overlap,
    /// What a tick does.
    pub target: Target,
    /// What it does it with.
    #[serde(default)]
    pub payload: Json,
}

/// Why a definition was refused. Nothing was done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DefinitionError {
    /// A number is out of range.
    #[error("`{field}` is {value}; it must be between {least} and {most}")]
    Range {
        /// Which field.
        field: &'static str,
        /// The number.
        value: i128,
        /// At least.
        least: i128,
        /// At most.
        most: i128,
    },
    /// The end is not after the start.
    #[error(
        "`end_ms` is {end_ms}, which is not after `start_ms`, {start_ms}; exchange them, or leave one out"
    )]
    Ends {
        /// The start.
        start_ms: i64,
        /// The end.
        end_ms: i64,
    },
    /// An interval is counted from a start that is not given.
    #[error(
        "`when` is {when:?}, but there is no `start_ms` to count from; give one, or say {}",
        from_epoch(when)
    )]
    NoStart {
        /// When.
        when: String,
    },
    /// No tick would ever come.
    #[error(
        "`when` is {when:?}, which never comes from `start_ms` until `end_ms` ({from} until {to}); move one of them"
    )]
    Never {
        /// When.
        when: String,
        /// From.
        from: String,
        /// Until.
        to: String,
    },
    /// The policy for missed ticks makes no sense.
    #[error("`misfire`: {0}")]
    Misfire(#[from] MisfireError),
    /// The payload is too long.
    #[error(
        "`payload` has {0} bytes; at most {PAYLOAD_MAX} are carried: keep the data elsewhere and give its address"
    )]
    TooLarge(usize),
    /// The key of an event can not be used.
    #[error("`target.event.key` is {:?}; it {problem}", shown(key))]
    Key {
        /// The key.
        key: String,
        /// What is wrong with it.
        problem: TextError,
    },
    /// The task makes no sense.
    #[error("`target.task.task`: {0}")]
    Task(SubmissionError),
    /// Something is given that each tick decides.
    #[error("`{field}` can not be given: {remedy}")]
    Fixed {
        /// Which field.
        field: &'static str,
        /// What to do instead.
        remedy: &'static str,
    },
    /// An address can not be called.
    #[error("`target.call.url` {url:?} {problem}")]
    Url {
        /// The address.
        url: String,
        /// What is wrong with it, and what would do.
        problem: &'static str,
    },
}

fn from_epoch(when: &str) -> String {
    when.replace(" from start", "")
}

fn shown(key: &str) -> String {
    key.chars().take(40).collect()
}

impl DefinitionError {
    /// Which field it is about.
    pub fn field(&self) -> &'static str {
        match self {
            DefinitionError::Range { field, .. } | DefinitionError::Fixed { field, .. } => field,
            DefinitionError::Ends { .. } => "end_ms",
            DefinitionError::NoStart { .. } => "start_ms",
            DefinitionError::Never { .. } => "when",
            DefinitionError::Misfire(_) => "misfire",
            DefinitionError::TooLarge(_) => "payload",
            DefinitionError::Key { .. } => "target.event.key",
            DefinitionError::Task(_) => "target.task.task",
            DefinitionError::Url { .. } => "target.call.url",
        }
    }
}

impl From<DefinitionError> for StoreError {
    fn from(error: DefinitionError) -> StoreError {
        StoreError::new(Trouble::Request, error.to_string())
    }
}

impl Definition {
    /// These times in UTC, for ever, and otherwise as usual.
    pub fn new(name: Name, when: impl Into<When>, target: Target) -> Definition {
        Definition {
            name,
            when: when.into(),
            zone: Zone::utc(),
            start_ms: None,
            end_ms: None,
            jitter_ms: 0,
            dst: Dst::default(),
            misfire: Misfire::default(),
            overlap: Overlap::default(),
            target,
            payload: Json::default(),
        }
    }

    /// With a start, if it is counted from one and has none: the moment of its creation, by the store's clock.
    pub fn started(self, now_ms: i64) -> Definition {
        let needs_start = matches!(self.when, When::Every(every) if every.is_from_start());
        let start_ms = self.start_ms.or(needs_start.then_some(now_ms));
        Definition { start_ms, ..self }
    }

    /// What decides when it happens.
    pub fn rule(&self) -> Rule {
        Rule {
            when: self.when.clone(),
            zone: self.zone.clone(),
            start_ms: self.start_ms,
            end_ms: self.end_ms,
            jitter_ms: self.jitter_ms,
            dst: self.dst,
        }
    }

    /// Whether the other one happens at the same times, but for how late they fall due and until when there are any.
    pub(super) fn has_times_of(&self, other: &Definition) -> bool {
        let apart = |rule: Rule| Rule { end_ms: None, jitter_ms: 0, ..rule };
        apart(self.rule()) == apart(other.rule())
    }

    /// Its ticks. In each namespace their jitter is another.
    pub fn timetable(&self, namespace: &Name) -> Timetable {
        Timetable::new(&self.rule(), &format!("{namespace}/{}", self.name))
    }

    /// Refuses what makes no sense.
    pub fn check(&self) -> Result<(), DefinitionError> {
        self.check_times()?;
        range("jitter_ms", self.jitter_ms.into(), JITTER_MAX_MS.into())?;
        self.misfire.check()?;
        let bytes = self.payload.as_str().len();
        if bytes > PAYLOAD_MAX {
            return Err(DefinitionError::TooLarge(bytes));
        }
        self.target.check()?;
        match self.target {
            Target::Event { .. } if self.overlap != Overlap::Allow => Err(DefinitionError::Fixed {
                field: "overlap",
                remedy: "an event has no end to wait for; make the target a task, or leave `overlap` out",
            }),
            Target::Task { ref task, .. } if self.overlap == Overlap::Queue && !is_one_by_one(task) => {
                Err(DefinitionError::Fixed {
                    field: "overlap",
                    remedy: "its task has a concurrency key with a limit above 1, which lets runs overlap; make the limit 1, or \
                             leave the key or `overlap` out",
                })
            }
            // It is carried in an envelope.
            Target::Call { .. } if bytes > PAYLOAD_MAX - ENVELOPE => Err(DefinitionError::TooLarge(bytes)),
            _ => Ok(()),
        }
    }

    fn check_times(&self) -> Result<(), DefinitionError> {
        for (field, at) in [("start_ms", self.start_ms), ("end_ms", self.end_ms)] {
            range(field, at.unwrap_or(0).into(), LAST_MS.into())?;
        }
        if let (Some(start_ms), Some(end_ms)) = (self.start_ms, self.end_ms)
            && end_ms <= start_ms
        {
            return Err(DefinitionError::Ends { start_ms, end_ms });
        }
        match self.when {
            When::Every(every) if every.is_from_start() && self.start_ms.is_none() => {
                return Err(DefinitionError::NoStart { when: every.to_string() });
            }
            _ => {}
        }
        let timetable = Timetable::new(&self.rule(), "");
        match timetable.first_from(0) {
            Some(_) => Ok(()),
            None => Err(DefinitionError::Never {
                when: self.when.to_string(),
                from: self.zone.shown(self.start_ms.unwrap_or(0)),
                to: self.zone.shown(self.end_ms.unwrap_or(LAST_MS)),
            }),
        }
    }
}

/// Whether no two such tasks run at once, as soon as they have a concurrency key.
fn is_one_by_one(task: &NewTask) -> bool {
    task.concurrency_key.is_none() || task.concurrency_limit == 1
}

fn range(field: &'static str, value: i128, most: i128) -> Result<(), DefinitionError> {
    if (0..=most).contains(&value) {
        Ok(())
    } else {
        Err(DefinitionError::Range { field, value, least: 0, most })
    }
}
