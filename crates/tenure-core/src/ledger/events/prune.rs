//! What the keeper does: it forgets what is old and read.

use super::{Ledger, Position, Stored, Topic};
use crate::ledger::Witness;
use crate::port::Tend;

impl Ledger {
    /// See [`Events::prune_events`](crate::port::Events::prune_events).
    pub fn prune_events(&mut self, tend: &Tend, witness: &dyn Witness, now_ms: i64) -> (u64, bool) {
        if !witness.leads(&tend.session, tend.token) {
            return (0, false);
        }
        self.outbox.dozers.retain(|_, sessions| {
            sessions.retain(|session| witness.is_live(session));
            !sessions.is_empty()
        });
        // As with tasks: a step of our clock ends nothing, and without a reckoning of it nothing is over.
        let Some(clock_ms) = tend.clock_ms.map(|clock| clock.min(now_ms)) else { return (0, false) };
        let (mut forgotten, mut more) = (0, false);
        for topic in self.outbox.topics.values_mut() {
            let mut left = tend.limit as usize;
            for slot in 0..topic.slots.len() {
                while let Some(position) = topic.oldest_over(slot, clock_ms) {
                    if left == 0 {
                        more = true;
                        break;
                    }
                    left -= 1;
                    forgotten += topic.forget(slot, position);
                }
            }
        }
        (forgotten, more)
    }
}

impl Topic {
    /// The first unit of a slot, if its time is over.
    fn oldest_over(&self, slot: usize, clock_ms: i64) -> Option<Position> {
        let (position, unit) = self.slots[slot].units.first_key_value()?;
        let at = unit.first()?.event.at_ms;
        let over = |keep_ms: u64| at.saturating_add_unsigned(keep_ms) < clock_ms;
        let read = self.groups.values().all(|group| group.shares[slot].position >= *position);
        let gone = (read && over(self.settings.keep_ms)) || self.settings.keep_unread_ms.is_some_and(over);
        gone.then_some(*position)
    }

    /// Forgets a unit; how many events it had.
    fn forget(&mut self, slot: usize, position: Position) -> u64 {
        let unit: Vec<Stored> = self.slots[slot].units.remove(&position).unwrap_or_default();
        self.slots[slot].floor = position;
        for stored in &unit {
            self.places.remove(&stored.event.id);
            if let Some(key) = &stored.idempotency_key {
                self.keys.remove(key);
            }
        }
        for group in self.groups.values_mut() {
            group.shares[slot].done.retain(|(its, _)| *its > position);
        }
        unit.len() as u64
    }
}
