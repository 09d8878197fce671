//! Something outside of the store that a leader writes to under its token: it remembers the highest token seen and refuses
//! a lower one.

use tenure_core::{SessionId, Token};

/// A grant as it was made, in the order in which they were made.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    pub(super) place: Place,
    pub(super) token: Token,
    pub(super) session: SessionId,
}

/// One slot of one election, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) election: usize,
    pub(super) slot: u32,
}

impl Place {
    /// An index into small arrays.
    pub(super) fn index(self) -> usize {
        self.election * 4 + self.slot as usize
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Resource {
    highest: [Token; 8],
}

impl Resource {
    /// Whether the write was accepted.
    pub(super) fn write(&mut self, place: Place, token: Token) -> bool {
        let highest = &mut self.highest[place.index()];
        let accepted = token >= *highest;
        *highest = token.max(*highest);
        accepted
    }
}
