//! Shares: taken by compare-and-swap, given back under their tokens.

use super::Ledger;
use crate::Token;
use crate::event::check_take;
use crate::ledger::Witness;
use crate::port::{GroupKey, StoreError, TakeShares, Taken};

impl Ledger {
    /// See [`Events::take_shares`](crate::port::Events::take_shares).
    pub fn take_shares(
        &mut self,
        take: &TakeShares,
        witness: &dyn Witness,
        now_ms: i64,
    ) -> Result<Vec<Taken>, StoreError> {
        check_take(take)?;
        let Some(group) = self.outbox.find_group_mut(&take.group) else { return Ok(Vec::new()) };
        let name = group.members.get(&take.session).filter(|_| witness.is_live(&take.session)).cloned();
        let Some(name) = name else { return Ok(Vec::new()) };
        let mut taken = Vec::new();
        for (slot, seen) in &take.slots {
            let Some(share) = group.shares.get_mut(*slot as usize) else { continue };
            if share.token != *seen || share.holder(witness).is_some() {
                continue;
            }
            share.token = share.token.next(witness.epoch());
            share.holder = Some(take.session.clone());
            group.moves += u64::from(!share.last.is_empty() && share.last != name);
            share.last.clone_from(&name);
            let (token, position) = (share.token, share.position);
            let done = share.done.iter().map(|(_, id)| *id).collect();
            taken.push(Taken { slot: *slot, token, position, done, aside: group.aside_keys(*slot, now_ms) });
        }
        Ok(taken)
    }

    /// See [`Events::free_shares`](crate::port::Events::free_shares).
    pub fn free_shares(&mut self, key: &GroupKey, shares: &[(u32, Token)]) {
        let Some(group) = self.outbox.find_group_mut(key) else { return };
        let mut freed = false;
        for (slot, token) in shares {
            let held = group.share_mut(*slot).filter(|share| share.token == *token);
            freed |= held.is_some_and(|share| share.holder.take().is_some());
        }
        if freed {
            self.wake_group(key);
        }
    }
}
