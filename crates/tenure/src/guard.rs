//! Guards and fences: writes that only the holder of a lease may commit.

use std::time::Duration;

use async_trait::async_trait;
use tenure_core::{ElectionKey, SessionId, Token};

use crate::{FenceError, GuardError};

/// The lease that a guarded transaction depends on.
#[derive(Clone, Debug)]
pub struct GuardedLease {
    /// The election.
    pub election: ElectionKey,
    /// The slot.
    pub slot: u32,
    /// The token.
    pub token: Token,
    /// The session that holds the lease.
    pub session: SessionId,
    /// Lease duration of the session: the database ends a guarded transaction that is idle for longer.
    pub lease: Duration,
}

/// A transaction that can be tied to a lease. Implemented for the connections and transactions of each SQL
/// store.
///
/// The guard *locks* the row of the lease, so that a takeover waits for the commit. Reading the row without a
/// lock would allow a takeover between the read and the commit.
#[async_trait]
pub trait Guardable: Send {
    /// Locks the lease until the transaction ends. Fails if the lease is not held under this token.
    async fn guard(&mut self, claim: &GuardedLease) -> Result<(), GuardError>;
}

/// A transaction that can reject old tokens, on any database, independent of the store that holds the election.
#[async_trait]
pub trait Fenceable: Send {
    /// Records the highest token seen for `name` and rejects a lower one.
    async fn fence(&mut self, name: &str, token: Token) -> Result<(), FenceError>;
}

/// Records the highest `token` seen for `name` in the database of this transaction, and rejects a lower one.
///
/// Use it to protect a database against former leaders of an election in another store.
pub async fn fence(tx: &mut impl Fenceable, name: &str, token: Token) -> Result<(), FenceError> {
    tx.fence(name, token).await
}
