//! Pruning of ticks.

use super::{TickHistoryEntry, Work};
use crate::model::work::LeaseObservation;
use crate::port::{ScheduleKey, TICK_RETENTION_MS};
use crate::{SessionId, Token};

impl Work {
    /// See [`ScheduleStore::prune_ticks`](crate::port::ScheduleStore::prune_ticks).
    pub fn prune_ticks(
        &mut self,
        session: &SessionId,
        token: Token,
        limit: u32,
        observation: &dyn LeaseObservation,
        now_ms: i64,
    ) -> (u64, bool) {
        if observation.scheduler(session, token).is_none() {
            return (0, false);
        }
        let limit = limit.max(1) as usize;
        let old =
            self.schedules_state.decided.iter().take_while(|(at_ms, ..)| *at_ms < now_ms - TICK_RETENTION_MS);
        // Ticks with unfinished runs are kept.
        let over = old.filter(|(_, key, entry)| !self.is_entry_unfinished(key, *entry));
        let gone: Vec<(i64, ScheduleKey, TickHistoryEntry)> = over.take(limit).cloned().collect();
        for (_, key, entry) in &gone {
            let Some(schedule) = self.schedules_state.schedules.get_mut(key) else { continue };
            match *entry {
                TickHistoryEntry::Tick(at_ms, manual) => {
                    schedule.ticks.remove(&(at_ms, manual));
                    if !manual {
                        schedule.pruned_until_ms = schedule.pruned_until_ms.max(Some(at_ms));
                    }
                }
                TickHistoryEntry::Skip(last_ms) => {
                    schedule.skips.remove(&last_ms);
                }
            }
        }
        for gone in &gone {
            self.schedules_state.decided.remove(gone);
        }
        (gone.len() as u64, gone.len() == limit)
    }

    fn is_entry_unfinished(&self, key: &ScheduleKey, entry: TickHistoryEntry) -> bool {
        let TickHistoryEntry::Tick(at_ms, manual) = entry else { return false };
        let tick = self.schedules_state.schedules.get(key).and_then(|it| it.ticks.get(&(at_ms, manual)));
        tick.filter(|tick| tick.tracked)
            .and_then(|tick| tick.task)
            .is_some_and(|task| self.is_unfinished(task))
    }
}
