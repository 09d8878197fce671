//! Due schedules, and the firing of their ticks.

use serde::{Deserialize, Serialize};

use super::ScheduleKey;
use crate::port::{EventId, NewEvent, NewTask, QueueKey, RawJson, TaskId, TopicKey};
use crate::rules::schedule::{ScheduleDefinition, ScheduleTickState, SkippedTicks, UnfinishedRuns};
use crate::{SessionId, Token};

/// Maximum number of schedules that one call returns or fires.
pub const DUE_MAX: u32 = 10_000;

/// The due schedules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DueResponse {
    /// Due schedules, the longest overdue first.
    pub schedules: Vec<DueSchedule>,
    /// Whether more schedules are due.
    pub has_more: bool,
    /// The store's wall clock, in milliseconds since 1970.
    pub store_now_at_ms: i64,
    /// When the next other schedule becomes due, by that clock.
    pub next_due_at_ms: Option<i64>,
}

/// A due schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DueSchedule {
    /// Namespace and name.
    #[serde(flatten)]
    pub key: ScheduleKey,
    /// Version of the definition.
    pub version: u64,
    /// Definition of the schedule.
    pub definition: ScheduleDefinition,
    /// Next and last decided tick.
    pub tick_state: ScheduleTickState,
    /// Unfinished runs; zero if the overlap policy allows overlapping runs.
    #[serde(default)]
    pub unfinished_runs: UnfinishedRuns,
    /// Number of consecutive failed firings.
    #[serde(default)]
    pub consecutive_failures: u32,
}

/// A request of the scheduler to fire due ticks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct FireRequest {
    /// Session of the scheduler's leader.
    pub session: SessionId,
    /// Token of the leader. Nothing is changed if the session does not lead.
    pub token: Token,
    /// Firings, at most [`DUE_MAX`], each schedule at most once.
    pub firings: Vec<ScheduleFiring>,
}

/// The decision about one due schedule, applied as a whole or not at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ScheduleFiring {
    /// Namespace and name of the schedule.
    #[serde(flatten)]
    pub key: ScheduleKey,
    /// Version that was read. The firing is stale if the schedule has another version.
    pub version: u64,
    /// Next tick that was read. The firing is stale if the next tick differs.
    pub next_tick_at_ms: i64,
    /// Ticks that fire, oldest first.
    pub ticks: Vec<FiringTick>,
    /// Earlier ticks that are skipped.
    pub skipped: Option<SkippedTicks>,
    /// Tick state after the firing. `None` if no tick is left.
    pub tick_state: Option<ScheduleTickState>,
    /// When the schedule is due next.
    pub due_at_ms: Option<i64>,
    /// Why firing failed. If set, only the due time and this error are stored.
    pub error: Option<String>,
}

/// A tick that fires.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct FiringTick {
    /// Instant of the tick.
    pub tick_at_ms: i64,
    /// Due time: the instant plus its jitter. Lateness is measured from here.
    pub due_at_ms: i64,
    /// Effect of the tick. `None` if it is overlapped because an earlier run is unfinished.
    pub effect: Option<TickEffect>,
    /// Whether the run counts as unfinished until its task finishes. False if runs may overlap.
    pub tracked: bool,
}

/// The effect of a tick.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum TickEffect {
    /// Publish an event.
    Event {
        /// Topic of the event.
        topic: TopicKey,
        /// Event to publish.
        event: Box<NewEvent>,
    },
    /// Submit a task.
    Task {
        /// Queue of the task.
        queue: QueueKey,
        /// Task to submit.
        task: Box<NewTask>,
    },
}

/// The result of a [`ScheduleFiring`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum FireOutcome {
    /// The firing was applied.
    Fired,
    /// The schedule changed since it was read, or was deleted or paused. Nothing was changed.
    Stale,
    /// The target rejects the tick, for this reason. Nothing was changed.
    Rejected(String),
}

/// Why a tick fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TickCause {
    /// It was due.
    Schedule,
    /// An operator requested this past tick.
    Backfill,
    /// An operator requested a tick now. It is not a tick of the timetable, even at the same instant.
    Trigger,
}

impl TickCause {
    /// Name of the variant.
    pub fn as_str(self) -> &'static str {
        match self {
            TickCause::Schedule => "schedule",
            TickCause::Backfill => "backfill",
            TickCause::Trigger => "trigger",
        }
    }
}

/// An operator's request to fire ticks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ManualFire {
    /// Namespace and name of the schedule.
    #[serde(flatten)]
    pub key: ScheduleKey,
    /// Past ticks of the timetable to fire, oldest first, at most [`DUE_MAX`]. Ticks that have fired, may have fired
    /// or are in the future do not fire. `None` fires one tick now, by the store's clock.
    pub ticks: Option<Vec<i64>>,
    /// Payload to use instead of the schedule's payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<RawJson>,
    /// Principal that requests the ticks.
    pub requested_by: String,
    /// Whether to return the outcome without firing.
    #[serde(default)]
    pub dry_run: bool,
}

/// The result of one manually fired tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ManualFireResult {
    /// Instant of the tick.
    pub tick_at_ms: i64,
    /// Outcome.
    #[serde(flatten)]
    pub outcome: ManualFireOutcome,
}

/// The outcome of a manually fired tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum ManualFireOutcome {
    /// It fired, or would fire in a dry run.
    Fired {
        /// Published event.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        event_id: Option<EventId>,
        /// Submitted task.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task_id: Option<TaskId>,
    },
    /// It had already fired.
    AlreadyFired,
    /// It is in the future and fires by itself.
    InFuture,
    /// It is older than the tick history ([`TICK_RETENTION_MS`](super::TICK_RETENTION_MS)). It does not fire, because it may
    /// have fired before.
    Pruned,
    /// It is not a tick of the schedule.
    NotATick,
}
