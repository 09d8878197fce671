//! Schedules and ticks, as people set and see them.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Cause;
use crate::port::{EventId, Pause, TaskId};
use crate::schedule::{Definition, Progress};
use crate::{Name, Token};

/// For how long ticks are remembered: thirty days.
pub const TICKS_KEPT_MS: i64 = 30 * 86_400_000;

/// How long the answer to a call may take.
pub const CALL_TIMEOUT_MS: u64 = 10_000;

/// Which schedule: a name within a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ScheduleKey {
    /// The tenant.
    pub namespace: Name,
    /// The schedule's name in it.
    pub name: Name,
}

impl ScheduleKey {
    /// The schedule `name` of `namespace`.
    pub fn new(namespace: Name, name: Name) -> Self {
        ScheduleKey { namespace, name }
    }
}

impl fmt::Display for ScheduleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "default" => write!(f, "{}", self.name),
            namespace => write!(f, "{namespace}/{}", self.name),
        }
    }
}

/// A wish to define a schedule.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetSchedule {
    /// In which namespace.
    pub namespace: Name,
    /// What it is to be.
    pub definition: Definition,
    /// What its calls are signed with. `None`: with what they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// What must be there for it to happen.
    #[serde(default)]
    pub expect: Expect,
    /// From which file or program it comes: who applies that file and prunes, deletes what came from it and is not in it any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Who wants it.
    pub by: String,
}

impl fmt::Debug for SetSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SetSchedule")
            .field("namespace", &self.namespace)
            .field("definition", &self.definition)
            .field("expect", &self.expect)
            .finish_non_exhaustive()
    }
}

/// What must be there for a change to happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Expect {
    /// Whatever.
    #[default]
    Any,
    /// Nothing.
    New,
    /// This version.
    Version(u64),
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum ScheduleSet {
    /// It is new, and of this version.
    Created(u64),
    /// It was changed, and is of this version now.
    Changed(u64),
    /// It was so already: nothing was changed.
    Same(u64),
    /// What was expected is not so. It is of this version; `None`: it is not there. Nothing was changed.
    Conflict(Option<u64>),
}

/// A schedule as people see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ScheduleView {
    /// The tenant.
    pub namespace: Name,
    /// Grows with every change of the definition. One that is deleted and made anew is of a greater version than it ever was.
    pub version: u64,
    /// What it is.
    pub definition: Definition,
    /// How far it is. `None`: no tick is left.
    pub progress: Option<Progress>,
    /// When it is looked at next, by the store's clock: when its next tick is due, or when a firing that failed is tried again.
    /// `None`: it is paused, or over.
    pub due_ms: Option<i64>,
    /// Set while it does not fire.
    pub paused: Option<Pause>,
    /// Why it could not fire, if it could not the last time.
    pub trouble: Option<String>,
    /// How many ticks have fired.
    pub fired: u64,
    /// How many were missed and did not fire.
    pub skipped: u64,
    /// How many did nothing, as an earlier run was under way.
    pub overlapped: u64,
    /// When one fired last, by the store's clock.
    pub last_fired_ms: Option<i64>,
    /// From which file or program it comes.
    pub source: Option<String>,
    /// Whether its calls are signed.
    #[serde(default)]
    pub signed: bool,
    /// When it was made.
    pub created_ms: i64,
    /// When it was changed last.
    pub updated_ms: i64,
    /// By whom.
    pub updated_by: String,
}

impl ScheduleView {
    /// Which.
    pub fn key(&self) -> ScheduleKey {
        ScheduleKey::new(self.namespace.clone(), self.definition.name.clone())
    }

    /// Its next ticks, as it stands; what was missed included.
    pub fn upcoming(&self, most: usize) -> Vec<i64> {
        let Some(progress) = self.progress else { return Vec::new() };
        let timetable = self.definition.timetable(&self.namespace);
        let from = timetable.settle(progress.next_at_ms, progress.last_at_ms);
        from.map(|from| timetable.ticks_from(from).take(most).collect()).unwrap_or_default()
    }
}

/// Which schedules to show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScheduleFilter {
    /// Only of this namespace.
    pub namespace: Option<Name>,
    /// Only those from this file or program.
    pub source: Option<String>,
    /// After this one, for the next page.
    pub after: Option<ScheduleKey>,
    /// How many at most; 0: all.
    pub limit: u32,
}

/// What became of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum TickState {
    /// It fired.
    Fired,
    /// It was missed, and did not fire. Such ticks are kept as a range.
    Skipped,
    /// It did nothing, as an earlier run was under way.
    Overlapped,
}

impl TickState {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            TickState::Fired => "fired",
            TickState::Skipped => "skipped",
            TickState::Overlapped => "overlapped",
        }
    }
}

/// A tick as people see it; or, of ticks that were missed, a range.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TickView {
    /// The tick; of a range, its last.
    pub at_ms: i64,
    /// What became of it.
    pub state: TickState,
    /// Why it fired.
    pub cause: Cause,
    /// Of how many ticks this is told; 1 unless it is a range.
    pub count: u64,
    /// The first of the range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_ms: Option<i64>,
    /// When it was decided, by the store's clock.
    pub decided_ms: i64,
    /// How much later it fired than it was due, in milliseconds.
    pub late_ms: i64,
    /// The token of the leader that fired it. `None`: by hand.
    pub token: Option<Token>,
    /// Who fired it: the leader's name, or a person's.
    pub by: String,
    /// The event that it published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<EventId>,
    /// The task that it submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskId>,
}

/// Which ticks to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TickFilter {
    /// Of which schedule.
    pub key: ScheduleKey,
    /// Before this one (its instant), for the next page.
    pub before_ms: Option<i64>,
    /// How many at most.
    pub limit: u32,
}

/// How it stands with the schedules of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ScheduleStats {
    /// Which namespace.
    pub namespace: Name,
    /// How many there are.
    pub schedules: u64,
    /// How many are paused.
    pub paused: u64,
    /// How many could not fire the last time.
    pub troubled: u64,
    /// How many are due by now, and have not fired yet.
    pub overdue: u64,
    /// For how long the longest of these has been due, in milliseconds.
    pub overdue_ms: u64,
    /// When any of them fired last, by the store's clock.
    pub last_fired_ms: Option<i64>,
}
