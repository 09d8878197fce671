//! A fired tick as its handler sees it.

use std::fmt;

use serde::Deserialize;
use tenure_core::Token;
use tenure_core::port::ScheduleKey;
use tenure_core::rules::schedule::{tick_of, to_rfc3339};

use crate::worker::{TaskContext, TaskError};

/// A fired tick whose handler runs. Clones refer to the same tick.
///
/// The tick is a claimed task; [`task`](Self::task) returns it.
#[derive(Clone)]
pub struct TickContext {
    schedule: ScheduleKey,
    at_ms: i64,
    task: TaskContext,
}

impl TickContext {
    /// Returns the tick of this task. Fails permanently if no schedule submitted the task.
    pub(super) fn of(task: TaskContext) -> Result<TickContext, TaskError> {
        let key = task.task().idempotency_key.as_deref();
        match key.and_then(tick_of) {
            Some((schedule, at_ms)) => Ok(TickContext { schedule, at_ms, task }),
            None => Err(TaskError::permanent(format!(
                "not a task of a schedule (idempotency key {key:?}); submit such tasks to another queue"
            ))),
        }
    }

    /// The schedule.
    pub fn schedule(&self) -> &ScheduleKey {
        &self.schedule
    }

    /// The scheduled instant in milliseconds since 1970. The handler may run later.
    pub fn at_ms(&self) -> i64 {
        self.at_ms
    }

    /// The scheduled instant as RFC 3339 in UTC, for example `2026-11-15T02:00:00Z`.
    pub fn at(&self) -> String {
        to_rfc3339(self.at_ms)
    }

    /// The fencing token of the leader that fired the tick; `None` for a manual fire.
    pub fn token(&self) -> Option<Token> {
        self.task.task().leader_token
    }

    /// Number of this attempt, counted from 1.
    pub fn attempt(&self) -> u32 {
        self.task.attempt()
    }

    /// Deserializes the payload of the schedule.
    pub fn payload<'a, T: Deserialize<'a>>(&'a self) -> Result<T, serde_json::Error> {
        self.task.payload()
    }

    /// The claimed task.
    pub fn task(&self) -> &TaskContext {
        &self.task
    }
}

impl fmt::Debug for TickContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TickContext")
            .field("schedule", &self.schedule.to_string())
            .field("at", &self.at())
            .field("attempt", &self.attempt())
            .finish_non_exhaustive()
    }
}
