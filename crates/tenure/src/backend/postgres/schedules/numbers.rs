//! The numbers of schedules that are due, from the look to the firing: so that the database need not find ten thousand names twice.
//!
//! Nothing depends on it. A number is one schedule's for ever, and that has one name for ever; what is stale here is a schedule that is
//! gone, and then its firing is stale, too.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tenure_core::port::{Firing, ScheduleKey};

/// By name: the version that was seen, and the number.
#[derive(Default)]
pub(in super::super) struct Numbers(Mutex<HashMap<ScheduleKey, (u64, i64)>>);

impl Numbers {
    /// These were seen just now, and no others count any more.
    pub(super) fn saw(&self, seen: HashMap<ScheduleKey, (u64, i64)>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = seen;
    }

    /// The numbers of these, as far as they are known; of another version, under the same name, it may be another schedule.
    pub(super) fn of(&self, firings: &[&Firing]) -> Vec<Option<i64>> {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = |firing: &&Firing| match seen.get(&firing.key) {
            Some((version, number)) if *version == firing.version => Some(*number),
            _ => None,
        };
        firings.iter().map(number).collect()
    }
}
