//! Views of schedules and ticks, and requests to change them.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::TickCause;
use crate::port::{EventId, Pause, TaskId};
use crate::rules::schedule::{ScheduleDefinition, ScheduleTickState};
use crate::{Name, Token};

/// Retention of ticks: 30 days.
pub const TICK_RETENTION_MS: i64 = 30 * 86_400_000;

/// Timeout of a webhook call.
pub const WEBHOOK_TIMEOUT_MS: u64 = 10_000;

/// Identity of a schedule: a name in a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ScheduleKey {
    /// Namespace.
    pub namespace: Name,
    /// Name of the schedule.
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

/// A request to create or redefine a schedule.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetScheduleRequest {
    /// Namespace of the schedule.
    pub namespace: Name,
    /// New definition.
    pub definition: ScheduleDefinition,
    /// Secret that signs its webhooks. `None` keeps the stored secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Condition for the change.
    #[serde(default)]
    pub precondition: Precondition,
    /// File or program that defines the schedule. Applying the file with pruning deletes schedules with this source
    /// that the file no longer contains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Principal that makes the change.
    pub updated_by: String,
}

impl fmt::Debug for SetScheduleRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SetScheduleRequest")
            .field("namespace", &self.namespace)
            .field("definition", &self.definition)
            .field("precondition", &self.precondition)
            .finish_non_exhaustive()
    }
}

/// The state that a schedule must have for a change to apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precondition {
    /// Any state.
    #[default]
    Any,
    /// The schedule does not exist.
    New,
    /// The schedule has this version.
    Version(u64),
}

/// The result of creating or redefining a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum SetScheduleOutcome {
    /// The schedule was created with this version.
    Created(u64),
    /// The schedule was updated to this version.
    Updated(u64),
    /// The schedule already had this definition and keeps this version.
    Unchanged(u64),
    /// The precondition failed. The schedule has this version; `None` if it does not exist. Nothing was changed.
    Conflict(Option<u64>),
}

/// A schedule as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ScheduleView {
    /// Namespace.
    pub namespace: Name,
    /// Version of the definition; grows with every change. A schedule that is deleted and created again gets a
    /// version greater than all before.
    pub version: u64,
    /// Definition.
    pub definition: ScheduleDefinition,
    /// Next and last decided tick. `None` if no tick is left.
    pub tick_state: Option<ScheduleTickState>,
    /// When the scheduler handles it next, by the store's clock: the due time of the next tick, or the next retry of
    /// a failed firing. `None` if it is paused or has no tick left.
    pub due_at_ms: Option<i64>,
    /// Set while the schedule is paused.
    pub paused: Option<Pause>,
    /// Error of the last firing, if it failed.
    pub last_error: Option<String>,
    /// Number of ticks that fired.
    pub fired_count: u64,
    /// Number of missed ticks that did not fire.
    pub skipped_count: u64,
    /// Number of ticks without effect because an earlier run was unfinished.
    pub overlapped_count: u64,
    /// Time of the latest firing, by the store's clock.
    pub last_fired_at_ms: Option<i64>,
    /// File or program that defines the schedule.
    pub source: Option<String>,
    /// Whether its webhooks are signed.
    #[serde(default)]
    pub webhook_signed: bool,
    /// Time of creation.
    pub created_at_ms: i64,
    /// Time of the last change.
    pub updated_at_ms: i64,
    /// Principal that made the last change.
    pub updated_by: String,
}

impl ScheduleView {
    /// Namespace and name.
    pub fn key(&self) -> ScheduleKey {
        ScheduleKey::new(self.namespace.clone(), self.definition.name.clone())
    }

    /// Up to `most` upcoming ticks, including missed ones that are still undecided.
    pub fn upcoming(&self, most: usize) -> Vec<i64> {
        let Some(progress) = self.tick_state else { return Vec::new() };
        let timetable = self.definition.timetable(&self.namespace);
        let from = timetable.revalidate(progress.next_tick_at_ms, progress.last_tick_at_ms);
        from.map(|from| timetable.ticks_from(from).take(most).collect()).unwrap_or_default()
    }
}

/// Which schedules to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScheduleFilter {
    /// Only schedules of this namespace.
    pub namespace: Option<Name>,
    /// Only schedules from this file or program.
    pub source: Option<String>,
    /// Continue after this schedule.
    pub after: Option<ScheduleKey>,
    /// Maximum number of schedules; 0 means all.
    pub limit: u32,
}

/// The outcome of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TickOutcome {
    /// It fired.
    Fired,
    /// It was missed and did not fire. Stored as a range of ticks.
    Skipped,
    /// It had no effect because an earlier run was unfinished.
    Overlapped,
}

impl TickOutcome {
    /// Name of the variant.
    pub fn as_str(self) -> &'static str {
        match self {
            TickOutcome::Fired => "fired",
            TickOutcome::Skipped => "skipped",
            TickOutcome::Overlapped => "overlapped",
        }
    }
}

/// A tick, or a range of skipped ticks, as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TickView {
    /// Instant of the tick; the last one of a range.
    pub tick_at_ms: i64,
    /// Outcome.
    pub state: TickOutcome,
    /// Why it fired.
    pub cause: TickCause,
    /// Number of ticks; 1 unless it is a range.
    pub tick_count: u64,
    /// First tick of a range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_tick_at_ms: Option<i64>,
    /// When it was decided, by the store's clock.
    pub decided_at_ms: i64,
    /// Lateness: firing time minus due time, in milliseconds.
    pub lateness_ms: i64,
    /// Token of the leader that fired it. `None` if it was fired manually.
    pub token: Option<Token>,
    /// Name of the leader or principal that decided it.
    pub decided_by: String,
    /// Published event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<EventId>,
    /// Submitted task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
}

/// Which ticks to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TickFilter {
    /// Schedule of the ticks.
    pub key: ScheduleKey,
    /// Continue before this instant.
    pub before_ms: Option<i64>,
    /// Maximum number of ticks.
    pub limit: u32,
}

/// Statistics of the schedules of one namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ScheduleStats {
    /// Namespace.
    pub namespace: Name,
    /// Number of schedules.
    pub schedule_count: u64,
    /// Number of paused schedules.
    pub paused_count: u64,
    /// Number of schedules whose last firing failed.
    pub failing_count: u64,
    /// Number of schedules that are due and have not fired.
    pub overdue_count: u64,
    /// How long the longest overdue schedule has been due, in milliseconds.
    pub max_overdue_ms: u64,
    /// Time of the latest firing, by the store's clock.
    pub last_fired_at_ms: Option<i64>,
}
