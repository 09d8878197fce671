//! Cache of the row ids of due schedules, from the read to the firing, so that the database need not look up names twice.
//!
//! Correctness does not depend on the cache. An id is never reused, and a schedule never changes its name. A stale entry
//! therefore belongs to a deleted schedule, and the database rejects its firing.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tenure_core::port::{ScheduleFiring, ScheduleKey};

/// Version and row id, by name.
#[derive(Default)]
pub(in super::super) struct ScheduleIds(Mutex<HashMap<ScheduleKey, (u64, i64)>>);

impl ScheduleIds {
    /// Replace all entries.
    pub(super) fn replace(&self, ids: HashMap<ScheduleKey, (u64, i64)>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = ids;
    }

    /// The ids of the schedules of these firings, if known. An entry with another version is ignored, because it may belong to
    /// a deleted schedule of the same name.
    pub(super) fn of(&self, firings: &[&ScheduleFiring]) -> Vec<Option<i64>> {
        let ids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let id = |firing: &&ScheduleFiring| match ids.get(&firing.key) {
            Some((version, id)) if *version == firing.version => Some(*id),
            _ => None,
        };
        firings.iter().map(id).collect()
    }
}
