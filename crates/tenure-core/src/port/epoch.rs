//! The epoch of a store.

use serde::{Deserialize, Serialize};

use super::{StoreError, Trouble};
use crate::{EPOCH_MAX, Token, next_epoch};

/// The epoch of a store: the high bits of its tokens and event numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EpochView {
    /// The epoch.
    pub epoch: u32,
    /// When it began, in milliseconds since 1970.
    pub changed_at_ms: i64,
    /// Why it began: `installed`, `promotion`, `other server`, `other file`, or what an operator said.
    pub reason: String,
    /// What the store compares to find that it was restored, copied or promoted.
    pub identity: String,
}

impl EpochView {
    /// An epoch.
    pub fn new(epoch: u32, changed_at_ms: i64, reason: String, identity: String) -> Self {
        EpochView { epoch, changed_at_ms, reason, identity }
    }
}

/// An order to begin a new epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EpochBump {
    /// The least epoch to begin.
    pub at_least: u32,
    /// A token that every later one must exceed.
    pub above: Option<Token>,
    /// Why, for people.
    pub reason: String,
}

impl EpochBump {
    /// The epoch that this order begins on a store that is in `stored`. An error if there is none left.
    pub fn after(&self, stored: u32, wall_ms: i64) -> Result<u32, StoreError> {
        let above = self.above.map_or(0, |token| token.epoch().saturating_add(1));
        let epoch = next_epoch(stored, wall_ms).max(self.at_least).max(above);
        if epoch <= EPOCH_MAX {
            return Ok(epoch);
        }
        let message = format!("epoch {epoch} is beyond the last one, {EPOCH_MAX}");
        Err(StoreError::new(Trouble::Request, message))
    }
}
