//! Requests to take, release and adopt a lease.

use serde::{Deserialize, Serialize};

use super::{ExpireSessionRequest, StartReason};
use crate::{ElectionKey, SessionId, Token};

/// A request to take a lease, by compare-and-swap on the observed token and holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TakeLeaseRequest {
    /// Session that takes the lease. Rejected if it is not live.
    pub session: SessionId,
    /// Epoch of the observation. Rejected in another epoch, because the observed state may have been undone.
    pub epoch: u32,
    /// Election of the lease.
    pub election: ElectionKey,
    /// Slot number.
    pub slot: u32,
    /// Observed token. Rejected if the lease has another token.
    pub token: Token,
    /// Observed holder. Rejected if another session holds the lease, or if the holder is live and `expire` does not
    /// expire it.
    pub holder: Option<SessionId>,
    /// Session to expire first, in the same transaction.
    pub expire: Option<ExpireSessionRequest>,
}

/// A request to release a lease, by compare-and-swap on session and token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ReleaseLeaseRequest {
    /// Session that holds the lease.
    pub session: SessionId,
    /// Election of the lease.
    pub election: ElectionKey,
    /// Slot number.
    pub slot: u32,
    /// Token of the grant. The call does nothing if the lease has another token.
    pub token: Token,
    /// Session that gets the next term.
    pub successor: Option<SessionId>,
    /// Start reason of the next term.
    pub start_reason: StartReason,
    /// Whether the candidate also leaves the election.
    pub leave: bool,
}

/// A request to hold a lease that another store granted, under the same token. See
/// [`ElectionStore::adopt_lease`](super::ElectionStore::adopt_lease).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdoptLeaseRequest {
    /// Session that holds the lease. Rejected if it is not live in this store.
    pub session: SessionId,
    /// Election of the lease.
    pub election: ElectionKey,
    /// Slot number.
    pub slot: u32,
    /// Token of the grant. Rejected unless it is greater than every token adopted from the same granting store.
    pub token: Token,
    /// [Identity](super::ElectionAdmin::identity) of the store that granted the lease. Tokens of different stores
    /// cannot be compared, so a lease adopted from another store must be free first.
    pub granted_by: String,
}
