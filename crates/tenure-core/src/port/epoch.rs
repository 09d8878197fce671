//! The epoch of a store.

use serde::{Deserialize, Serialize};

use super::{ErrorKind, StoreError};
use crate::{EPOCH_MAX, Token, next_epoch};

/// The epoch of a store: the high bits of its tokens and event ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EpochView {
    /// The epoch.
    pub epoch: u32,
    /// Start of the epoch, in milliseconds since 1970.
    pub changed_at_ms: i64,
    /// Why the epoch started: `installed`, `promotion`, `other server`, `other file`, or the reason an operator gave.
    pub reason: String,
    /// Value that the store compares to detect that it was restored, copied or promoted.
    pub identity: String,
}

impl EpochView {
    /// Creates a view of an epoch.
    pub fn new(epoch: u32, changed_at_ms: i64, reason: String, identity: String) -> Self {
        EpochView { epoch, changed_at_ms, reason, identity }
    }
}

/// A request to start a new epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EpochBump {
    /// Lower bound of the new epoch.
    pub at_least: u32,
    /// A token that every later token must exceed.
    pub above: Option<Token>,
    /// Reason, for display.
    pub reason: String,
}

impl EpochBump {
    /// The epoch that this request starts on a store whose epoch is `stored`. Returns an error if it exceeds the
    /// maximum.
    pub fn after(&self, stored: u32, wall_ms: i64) -> Result<u32, StoreError> {
        let above = self.above.map_or(0, |token| token.epoch().saturating_add(1));
        let epoch = next_epoch(stored, wall_ms).max(self.at_least).max(above);
        if epoch <= EPOCH_MAX {
            return Ok(epoch);
        }
        let message = format!("epoch {epoch} exceeds the maximum, {EPOCH_MAX}");
        Err(StoreError::new(ErrorKind::Request, message))
    }
}
