//! One queue for everything that must happen later.

use std::collections::{BTreeMap, BTreeSet};

use crate::{ElectionKey, Moment};

/// What a timer is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// Trust runs out.
    Doubt,
    /// The next try to open a session.
    Open,
    /// The next beat is due.
    Beat,
    /// The next look at contested elections.
    Look,
    /// The next look at all elections, those led included.
    Tend,
    /// The next try to end the session.
    End,
    /// Something is due in one election: a turn to take, a retry of a join or release.
    Election(ElectionKey),
}

/// Timers by kind and by time.
#[derive(Clone, Debug, Default)]
pub(super) struct Timers {
    at: BTreeMap<Timer, Moment>,
    queue: BTreeSet<(Moment, Timer)>,
}

impl Timers {
    /// Sets a timer, in place of an earlier setting.
    pub(super) fn set(&mut self, timer: Timer, at: Moment) {
        self.cancel(&timer);
        self.queue.insert((at, timer.clone()));
        self.at.insert(timer, at);
    }

    /// Sets a timer unless it is already due earlier.
    pub(super) fn no_later_than(&mut self, timer: Timer, at: Moment) {
        if self.at.get(&timer).is_none_or(|&old| old > at) {
            self.set(timer, at);
        }
    }

    pub(super) fn cancel(&mut self, timer: &Timer) {
        if let Some(at) = self.at.remove(timer) {
            self.queue.remove(&(at, timer.clone()));
        }
    }

    pub(super) fn clear(&mut self) {
        self.at.clear();
        self.queue.clear();
    }

    pub(super) fn pop_due(&mut self, now: Moment) -> Option<Timer> {
        let (at, _) = self.queue.first()?;
        if *at > now {
            return None;
        }
        let (_, timer) = self.queue.pop_first()?;
        self.at.remove(&timer);
        Some(timer)
    }

    pub(super) fn next(&self) -> Option<Moment> {
        self.queue.first().map(|(at, _)| *at)
    }
}
