//! Timers of the lease machine.

use std::collections::{BTreeMap, BTreeSet};

use crate::{BootInstant, ElectionKey};

/// Purpose of a timer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// Trust expires.
    TrustExpiry,
    /// Next attempt to open a session.
    Open,
    /// Next heartbeat.
    Heartbeat,
    /// Next read of contested elections.
    Read,
    /// Next read of all elections, including those led.
    LeaderPoll,
    /// Next attempt to end the session.
    End,
    /// Something is due in one election: a take, or a retry of a join or release.
    Election(ElectionKey),
}

/// Timers by purpose and by time.
#[derive(Clone, Debug, Default)]
pub(super) struct Timers {
    at: BTreeMap<Timer, BootInstant>,
    queue: BTreeSet<(BootInstant, Timer)>,
}

impl Timers {
    /// Sets a timer, replacing an earlier setting.
    pub(super) fn set(&mut self, timer: Timer, at: BootInstant) {
        self.cancel(&timer);
        self.queue.insert((at, timer.clone()));
        self.at.insert(timer, at);
    }

    /// Sets a timer unless it is already due earlier.
    pub(super) fn no_later_than(&mut self, timer: Timer, at: BootInstant) {
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

    pub(super) fn pop_due(&mut self, now: BootInstant) -> Option<Timer> {
        let (at, _) = self.queue.first()?;
        if *at > now {
            return None;
        }
        let (_, timer) = self.queue.pop_first()?;
        self.at.remove(&timer);
        Some(timer)
    }

    pub(super) fn next(&self) -> Option<BootInstant> {
        self.queue.first().map(|(at, _)| *at)
    }
}
