//! What the leader forgets.

use super::{Entry, Ledger};
use crate::ledger::Witness;
use crate::port::{ScheduleKey, TICKS_KEPT_MS};
use crate::{SessionId, Token};

impl Ledger {
    /// See [`Scheduling::prune_ticks`](crate::port::Scheduling::prune_ticks).
    pub fn prune_ticks(
        &mut self,
        session: &SessionId,
        token: Token,
        limit: u32,
        witness: &dyn Witness,
        now_ms: i64,
    ) -> (u64, bool) {
        if witness.scheduler(session, token).is_none() {
            return (0, false);
        }
        let limit = limit.max(1) as usize;
        let old = self.agenda.decided.iter().take_while(|(at_ms, ..)| *at_ms < now_ms - TICKS_KEPT_MS);
        // What counts as under way is remembered for as long as it does.
        let over = old.filter(|(_, key, entry)| !self.is_entry_under_way(key, *entry));
        let gone: Vec<(i64, ScheduleKey, Entry)> = over.take(limit).cloned().collect();
        for (_, key, entry) in &gone {
            let Some(schedule) = self.agenda.schedules.get_mut(key) else { continue };
            match *entry {
                Entry::Tick(at_ms, by_hand) => {
                    schedule.ticks.remove(&(at_ms, by_hand));
                    if !by_hand {
                        schedule.forgotten_ms = schedule.forgotten_ms.max(Some(at_ms));
                    }
                }
                Entry::Skip(last_ms) => {
                    schedule.skips.remove(&last_ms);
                }
            }
        }
        for gone in &gone {
            self.agenda.decided.remove(gone);
        }
        (gone.len() as u64, gone.len() == limit)
    }

    fn is_entry_under_way(&self, key: &ScheduleKey, entry: Entry) -> bool {
        let Entry::Tick(at_ms, by_hand) = entry else { return false };
        let tick = self.agenda.schedules.get(key).and_then(|it| it.ticks.get(&(at_ms, by_hand)));
        tick.filter(|tick| tick.tracked)
            .and_then(|tick| tick.task)
            .is_some_and(|task| self.is_under_way(task))
    }
}
