//! A resource outside the store to which leaders write under their tokens. It remembers the highest token and rejects
//! lower ones.

use tenure_core::{SessionId, Token};

/// A grant, in the order of granting.
#[derive(Clone, Debug)]
pub(super) struct LeaseGrant {
    pub(super) place: SlotId,
    pub(super) token: Token,
    pub(super) session: SessionId,
}

/// One slot of one election, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotId {
    pub(super) election: usize,
    pub(super) slot: u32,
}

impl SlotId {
    /// Index into an array of all slots.
    pub(super) fn index(self) -> usize {
        self.election * 4 + self.slot as usize
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct FencedResource {
    highest: [Token; 8],
}

impl FencedResource {
    /// Writes under a token. Returns whether the write was accepted.
    pub(super) fn write(&mut self, place: SlotId, token: Token) -> bool {
        let highest = &mut self.highest[place.index()];
        let accepted = token >= *highest;
        *highest = token.max(*highest);
        accepted
    }
}
