//! Where a group begins, and where it is put.

use super::{Ledger, Slot};
use crate::event::{check_begin, no_such_group, no_such_slot};
use crate::ledger::Witness;
use crate::port::{Begin, GroupKey, Moved, Position, StoreError};

impl Ledger {
    /// See [`Bureau::reset_group`](crate::port::Bureau::reset_group).
    pub fn reset_group(
        &mut self,
        key: &GroupKey,
        to: Begin,
        slot: Option<u32>,
        dry_run: bool,
        witness: &dyn Witness,
    ) -> Result<Vec<Moved>, StoreError> {
        check_begin(&to)?;
        let topic = self.outbox.topics.get_mut(&key.topic).ok_or_else(|| no_such_group(key))?;
        let slots = topic.settings.slots;
        let group = topic.groups.get_mut(&key.name).ok_or_else(|| no_such_group(key))?;
        if let Some(slot) = slot.filter(|slot| *slot >= slots) {
            return Err(no_such_slot(&key.topic, slot, slots));
        }
        let mut moved = Vec::new();
        for (n, share) in (0..).zip(&mut group.shares) {
            if slot.is_some_and(|slot| slot != n) {
                continue;
            }
            let to = topic.slots[n as usize].place_of(to);
            moved.push(Moved { slot: n, from: share.position, to });
            if dry_run {
                continue;
            }
            // Whoever has it finds out with its next commit.
            share.token = share.token.next(witness.epoch());
            share.holder = None;
            share.position = to;
            share.done.clear();
            group.asides.retain(|(its, position, _), _| *its != n || *position <= to);
        }
        if !dry_run {
            self.wake_group(key);
        }
        Ok(moved)
    }
}

impl Slot {
    /// The position after which to read. Never after what is there, so that nothing to come is passed over.
    pub(super) fn place_of(&self, begin: Begin) -> Position {
        match begin {
            Begin::Earliest => self.floor,
            Begin::Latest => self.latest(),
            Begin::Position(position) => position.clamp(self.floor, self.latest()),
            Begin::Time(at_ms) => {
                let mut before = self.floor;
                for (position, unit) in &self.units {
                    if unit.first().is_some_and(|stored| stored.event.at_ms >= at_ms) {
                        return before;
                    }
                    before = *position;
                }
                before
            }
        }
    }
}
