//! What is due, and what becomes of it.

use serde::{Deserialize, Serialize};

use super::ScheduleKey;
use crate::port::{EventId, Json, NewEvent, NewTask, QueueKey, TaskId, TopicKey};
use crate::schedule::{Definition, Load, Progress, Skipped};
use crate::{SessionId, Token};

/// The most schedules of one look, and the most firings of one call.
pub const DUE_MAX: u32 = 10_000;

/// What is due.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DueLook {
    /// The schedules that are due, the longest due first.
    pub schedules: Vec<DueSchedule>,
    /// There are more.
    pub more: bool,
    /// The store's wall clock, in milliseconds since 1970.
    pub store_ms: i64,
    /// When the first of the others falls due, by that clock.
    pub next_due_ms: Option<i64>,
}

/// A schedule that is due.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DueSchedule {
    /// Which.
    #[serde(flatten)]
    pub key: ScheduleKey,
    /// Its version.
    pub version: u64,
    /// What it is.
    pub definition: Definition,
    /// How far it is.
    pub progress: Progress,
    /// Its runs that are not over; nothing if runs may overlap anyhow.
    #[serde(default)]
    pub load: Load,
    /// How often in a row it could not fire.
    #[serde(default)]
    pub strikes: u32,
}

/// A leader's wish to fire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Fire {
    /// Its session.
    pub session: SessionId,
    /// Its token. Nothing happens if it does not lead.
    pub token: Token,
    /// What fires: at most [`DUE_MAX`], no schedule twice.
    pub firings: Vec<Firing>,
}

/// What becomes of a schedule that was due. All of it, or nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Firing {
    /// Which schedule.
    #[serde(flatten)]
    pub key: ScheduleKey,
    /// The version that was seen. Stale if it is another by now ...
    pub version: u64,
    /// ... or if this is not the next tick any more.
    pub next_at_ms: i64,
    /// The ticks that fire, oldest first.
    pub ticks: Vec<FiringTick>,
    /// Those before them that do not.
    pub skipped: Option<Skipped>,
    /// How far the schedule is then. `None`: no tick is left.
    pub progress: Option<Progress>,
    /// When it is due next.
    pub due_ms: Option<i64>,
    /// Why it could not fire. Nothing else is changed then but when it is tried again (`due_ms`).
    pub trouble: Option<String>,
}

/// A tick that fires.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct FiringTick {
    /// The tick.
    pub at_ms: i64,
    /// When it was due: later by its jitter. What its lateness is counted from.
    pub due_ms: i64,
    /// What it does. `None`: nothing, as an earlier run is under way.
    pub effect: Option<Effect>,
    /// Whether its run counts as under way until its task is finished: unless runs may overlap.
    pub tracked: bool,
}

/// What a tick does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Effect {
    /// It publishes an event.
    Event {
        /// To which topic.
        topic: TopicKey,
        /// The event.
        event: Box<NewEvent>,
    },
    /// It submits a task.
    Task {
        /// To which queue.
        queue: QueueKey,
        /// The task.
        task: Box<NewTask>,
    },
}

/// What came of a [`Firing`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Fired {
    /// It counts.
    Yes,
    /// The schedule has changed since it was seen, or is gone or paused: nothing of it was done.
    Stale,
    /// Its target can not be: nothing of it was done.
    Refused(String),
}

/// Why a tick fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    /// It was due.
    Clock,
    /// Somebody wanted that past tick after all.
    Backfill,
    /// Somebody wanted one now. Such a tick is none of the timetable's: one at the same instant is another.
    Trigger,
}

impl Cause {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::Clock => "clock",
            Cause::Backfill => "backfill",
            Cause::Trigger => "trigger",
        }
    }
}

/// What somebody wants to fire by hand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Hand {
    /// Which schedule.
    #[serde(flatten)]
    pub key: ScheduleKey,
    /// Which past ticks of its timetable, oldest first, at most [`DUE_MAX`]; a tick that has fired, may have, or is yet to come
    /// does not fire. `None`: one now, by the store's clock.
    pub ticks: Option<Vec<i64>>,
    /// Instead of the schedule's payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Json>,
    /// Who wants it.
    pub by: String,
    /// Only say what would be.
    #[serde(default)]
    pub dry_run: bool,
}

/// What came of a tick that was to fire by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct HandFired {
    /// The tick.
    pub at_ms: i64,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: HandOutcome,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase", tag = "outcome")]
pub enum HandOutcome {
    /// It fired, or would.
    Fired {
        /// The event that was published.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        event: Option<EventId>,
        /// The task that was submitted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task: Option<TaskId>,
    },
    /// It has fired before.
    Already,
    /// It is yet to come, and fires by itself.
    Ahead,
    /// It lies so far back ([`TICKS_KEPT_MS`](super::TICKS_KEPT_MS)) that nobody knows any more whether it has fired: it does not.
    Forgotten,
    /// It is none of the schedule's ticks.
    NoTick,
}
