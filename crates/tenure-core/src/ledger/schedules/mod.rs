//! Schedules, and what became of their ticks.
//!
//! A schedule has a *next* tick, and is *due* when its leader must look at it: `due` lists those, the longest due first, so that a
//! look costs what it finds. A tick that was decided about is kept under its instant; what somebody fired by hand is kept apart from
//! the timetable's tick of the same instant. Ticks that were missed and did not fire are kept as ranges.
//!
//! A firing is compared with what is stored (its version, its next tick, no pause) and changes all of it at once. So whoever decided
//! it, and however long ago, it counts once or not at all; and a tick that has been decided about fires never again, even if
//! somebody puts the next tick back.
//!
//! A run that may not overlap with the next is *under way* until its task is over, which is asked each time.

mod effects;
mod fire;
mod hand;
mod people;
mod prune;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::Ledger;
use crate::Token;
use crate::port::{Cause, EventId, Pause, ScheduleKey, TaskId, TickState};
use crate::schedule::{Definition, Progress, Skipped};

/// All that there is of schedules.
#[derive(Clone, Debug, Default)]
pub(super) struct Agenda {
    schedules: BTreeMap<ScheduleKey, Schedule>,
    /// Those that are due some time, by when.
    due: BTreeSet<(i64, ScheduleKey)>,
    /// All that is kept of ticks, by when it was decided.
    decided: BTreeSet<(i64, ScheduleKey, Entry)>,
    /// The greatest version of any schedule that was deleted: a new one begins above it, so that what was decided from one that is
    /// gone never fits the next of its name.
    floor: u64,
}

/// A schedule.
#[derive(Clone, Debug)]
struct Schedule {
    version: u64,
    definition: Definition,
    progress: Option<Progress>,
    due_ms: Option<i64>,
    paused: Option<Pause>,
    trouble: Option<String>,
    strikes: u32,
    fired: u64,
    skipped: u64,
    overlapped: u64,
    last_fired_ms: Option<i64>,
    source: Option<String>,
    secret: Option<Sealed>,
    created_ms: i64,
    updated_ms: i64,
    updated_by: String,
    /// By instant, and whether somebody wanted it now.
    ticks: BTreeMap<(i64, bool), Tick>,
    /// By the last of each range.
    skips: BTreeMap<i64, Skip>,
    /// The newest tick of its timetable that was forgotten: of those up to it that are not here, nobody knows whether they fired.
    forgotten_ms: Option<i64>,
    /// Tasks that may not be over, of runs that may not overlap.
    under_way: BTreeSet<TaskId>,
}

/// What is kept of ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Entry {
    /// One, by its instant and whether somebody wanted it now.
    Tick(i64, bool),
    /// A range, by its last.
    Skip(i64),
}

/// A tick that was decided about.
#[derive(Clone, Debug)]
struct Tick {
    state: TickState,
    cause: Cause,
    due_ms: i64,
    decided_ms: i64,
    token: Option<Token>,
    by: String,
    event: Option<EventId>,
    task: Option<TaskId>,
    tracked: bool,
}

/// Ticks that were missed and did not fire.
#[derive(Clone, Debug)]
struct Skip {
    range: Skipped,
    decided_ms: i64,
    token: Token,
    by: String,
}

/// A secret that is shown to nobody.
#[derive(Clone, PartialEq, Eq)]
struct Sealed(String);

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a secret")
    }
}

impl Agenda {
    /// Lists a schedule as due then, and no longer as before.
    fn put_due(&mut self, key: &ScheduleKey, due_ms: Option<i64>) {
        let Some(schedule) = self.schedules.get_mut(key) else { return };
        if let Some(before) = std::mem::replace(&mut schedule.due_ms, due_ms) {
            self.due.remove(&(before, key.clone()));
        }
        if let Some(due_ms) = due_ms {
            self.due.insert((due_ms, key.clone()));
        }
    }

    fn put_tick(&mut self, key: &ScheduleKey, at_ms: i64, tick: Tick) {
        let Some(schedule) = self.schedules.get_mut(key) else { return };
        if tick.tracked {
            schedule.under_way.extend(tick.task);
        }
        let by_hand = tick.cause == Cause::Trigger;
        self.decided.insert((tick.decided_ms, key.clone(), Entry::Tick(at_ms, by_hand)));
        schedule.ticks.insert((at_ms, by_hand), tick);
    }

    /// A range that ends like one that is kept already is told by that.
    fn put_skip(&mut self, key: &ScheduleKey, skip: Skip) {
        let Some(schedule) = self.schedules.get_mut(key) else { return };
        let (last_ms, decided_ms) = (skip.range.last_ms, skip.decided_ms);
        if let std::collections::btree_map::Entry::Vacant(place) = schedule.skips.entry(last_ms) {
            place.insert(skip);
            self.decided.insert((decided_ms, key.clone(), Entry::Skip(last_ms)));
        }
    }
}

impl Schedule {
    /// Whether somebody has decided about this tick of its timetable.
    fn knows(&self, at_ms: i64) -> bool {
        self.ticks.contains_key(&(at_ms, false))
    }

    /// Whether somebody may have, and it was forgotten.
    fn has_forgotten(&self, at_ms: i64) -> bool {
        self.forgotten_ms.is_some_and(|newest| at_ms <= newest)
    }
}

impl Ledger {
    /// Whether a task is not over. One that is forgotten was.
    pub(super) fn is_under_way(&self, task: TaskId) -> bool {
        self.tasks.get(&task).is_some_and(|task| !task.state.is_final())
    }
}
