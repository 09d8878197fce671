//! A tick, as the closure of its schedule has it.

use std::fmt;

use serde::Deserialize;
use tenure_core::Token;
use tenure_core::port::ScheduleKey;
use tenure_core::schedule::{in_utc, tick_of};

use crate::worker::{TaskContext, TaskError};

/// A tick that has fired, and whose closure runs. Clones are the same tick.
///
/// It is a task, and a claim on it: [`task`](Self::task) is all of that.
#[derive(Clone)]
pub struct Tick {
    schedule: ScheduleKey,
    at_ms: i64,
    task: TaskContext,
}

impl Tick {
    /// The tick that this task is for.
    pub(super) fn of(task: TaskContext) -> Result<Tick, TaskError> {
        let key = task.task().key.as_deref();
        match key.and_then(tick_of) {
            Some((schedule, at_ms)) => Ok(Tick { schedule, at_ms, task }),
            None => Err(TaskError::fail_for_good(format!(
                "no schedule has made this task (its key is {key:?}); submit such tasks to another queue"
            ))),
        }
    }

    /// Which schedule.
    pub fn schedule(&self) -> &ScheduleKey {
        &self.schedule
    }

    /// The instant that it is for, in milliseconds since 1970: not when it runs, which may be later.
    pub fn at_ms(&self) -> i64 {
        self.at_ms
    }

    /// That instant in UTC: `2026-11-15T02:00:00Z`.
    pub fn at(&self) -> String {
        in_utc(self.at_ms)
    }

    /// The fencing token of the leader that fired it. `None`: it was fired by hand.
    pub fn token(&self) -> Option<Token> {
        self.task.task().leader_token
    }

    /// Which attempt this is, counted from 1.
    pub fn attempt(&self) -> u32 {
        self.task.attempt()
    }

    /// What it is to be done with: the schedule's payload.
    pub fn payload<'a, T: Deserialize<'a>>(&'a self) -> Result<T, serde_json::Error> {
        self.task.payload()
    }

    /// The task that it is.
    pub fn task(&self) -> &TaskContext {
        &self.task
    }
}

impl fmt::Debug for Tick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tick")
            .field("schedule", &self.schedule.to_string())
            .field("at", &self.at())
            .field("attempt", &self.attempt())
            .finish_non_exhaustive()
    }
}
