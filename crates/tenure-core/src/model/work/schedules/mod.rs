//! Schedules and the outcomes of their ticks.
//!
//! A schedule has a *next* tick and a due time at which the scheduler must handle it. The index `due` lists schedules
//! by due time, so the cost of reading due schedules depends only on their number. A decided tick is stored by its
//! instant, and a triggered tick separately from a tick of the timetable at the same instant. Skipped ticks are stored
//! as ranges.
//!
//! A firing is compared with the stored state (version, next tick, no pause) and applied as a whole. It is applied once
//! or not at all, however late it arrives. A decided tick never fires again, even if the next tick is set back.
//!
//! If the overlap policy does not allow overlapping runs, a run is *unfinished* until its task is finished. Every
//! access checks this.

mod admin;
mod effects;
mod fire;
mod manual_fire;
mod prune;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::Work;
use crate::Token;
use crate::port::{EventId, Pause, ScheduleKey, TaskId, TickCause, TickOutcome};
use crate::rules::schedule::{ScheduleDefinition, ScheduleTickState, SkippedTicks};

/// All schedules and ticks.
#[derive(Clone, Debug, Default)]
pub(super) struct SchedulesState {
    schedules: BTreeMap<ScheduleKey, ScheduleRecord>,
    /// Schedules with a due time, ordered by it.
    due: BTreeSet<(i64, ScheduleKey)>,
    /// All recorded ticks, ordered by the time of the decision.
    decided: BTreeSet<(i64, ScheduleKey, TickHistoryEntry)>,
    /// The greatest version of any deleted schedule. A new schedule starts above it, so that a decision about a
    /// deleted schedule never applies to a new one with the same name.
    max_deleted_version: u64,
}

/// A schedule.
#[derive(Clone, Debug)]
struct ScheduleRecord {
    version: u64,
    definition: ScheduleDefinition,
    progress: Option<ScheduleTickState>,
    due_ms: Option<i64>,
    paused: Option<Pause>,
    last_error: Option<String>,
    consecutive_failures: u32,
    fired: u64,
    skipped: u64,
    overlapped: u64,
    last_fired_ms: Option<i64>,
    source: Option<String>,
    secret: Option<RedactedSecret>,
    created_ms: i64,
    updated_ms: i64,
    updated_by: String,
    /// Ticks by instant, and whether each was triggered.
    ticks: BTreeMap<(i64, bool), TickRecord>,
    /// Ranges of skipped ticks, by their last tick.
    skips: BTreeMap<i64, SkippedTicksRecord>,
    /// The newest pruned tick of the timetable. For an unrecorded tick up to this instant it is unknown whether it
    /// fired.
    pruned_until_ms: Option<i64>,
    /// Tasks of non-overlapping runs that may be unfinished.
    unfinished: BTreeSet<TaskId>,
}

/// Key of a recorded tick or range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum TickHistoryEntry {
    /// A tick, by its instant and whether it was triggered.
    Tick(i64, bool),
    /// A range, by its last tick.
    Skip(i64),
}

/// A decided tick.
#[derive(Clone, Debug)]
struct TickRecord {
    state: TickOutcome,
    cause: TickCause,
    due_ms: i64,
    decided_ms: i64,
    token: Option<Token>,
    by: String,
    event: Option<EventId>,
    task: Option<TaskId>,
    tracked: bool,
}

/// A range of skipped ticks.
#[derive(Clone, Debug)]
struct SkippedTicksRecord {
    range: SkippedTicks,
    decided_ms: i64,
    token: Token,
    by: String,
}

/// A secret whose `Debug` output is hidden.
#[derive(Clone, PartialEq, Eq)]
struct RedactedSecret(String);

impl fmt::Debug for RedactedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a secret")
    }
}

impl SchedulesState {
    /// Sets the due time of a schedule in the index.
    fn put_due(&mut self, key: &ScheduleKey, due_ms: Option<i64>) {
        let Some(schedule) = self.schedules.get_mut(key) else { return };
        if let Some(before) = std::mem::replace(&mut schedule.due_ms, due_ms) {
            self.due.remove(&(before, key.clone()));
        }
        if let Some(due_ms) = due_ms {
            self.due.insert((due_ms, key.clone()));
        }
    }

    fn put_tick(&mut self, key: &ScheduleKey, at_ms: i64, tick: TickRecord) {
        let Some(schedule) = self.schedules.get_mut(key) else { return };
        if tick.tracked {
            schedule.unfinished.extend(tick.task);
        }
        let manual = tick.cause == TickCause::Trigger;
        self.decided.insert((tick.decided_ms, key.clone(), TickHistoryEntry::Tick(at_ms, manual)));
        schedule.ticks.insert((at_ms, manual), tick);
    }

    /// Records a range of skipped ticks, replacing a range with the same last tick.
    fn put_skip(&mut self, key: &ScheduleKey, skip: SkippedTicksRecord) {
        let Some(schedule) = self.schedules.get_mut(key) else { return };
        let (last_ms, decided_ms) = (skip.range.last_tick_at_ms, skip.decided_ms);
        if let std::collections::btree_map::Entry::Vacant(place) = schedule.skips.entry(last_ms) {
            place.insert(skip);
            self.decided.insert((decided_ms, key.clone(), TickHistoryEntry::Skip(last_ms)));
        }
    }
}

impl ScheduleRecord {
    /// Whether this tick of the timetable was decided.
    fn knows(&self, at_ms: i64) -> bool {
        self.ticks.contains_key(&(at_ms, false))
    }

    /// Whether this tick may have been decided and pruned.
    fn may_be_pruned(&self, at_ms: i64) -> bool {
        self.pruned_until_ms.is_some_and(|newest| at_ms <= newest)
    }
}

impl Work {
    /// Whether a task is unfinished. A task that does not exist was finished and pruned.
    pub(super) fn is_unfinished(&self, task: TaskId) -> bool {
        self.tasks.get(&task).is_some_and(|task| !task.state.is_final())
    }
}
