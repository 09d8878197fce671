//! Writes that only the holder of a lease may make.

use std::time::Duration;

use async_trait::async_trait;
use tenure_core::{ElectionKey, SessionId, Token};

use crate::{FenceError, GuardError};

/// Which lease a transaction is made under.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The election.
    pub election: ElectionKey,
    /// The slot.
    pub slot: u32,
    /// The token.
    pub token: Token,
    /// The session that holds it.
    pub session: SessionId,
    /// The session's lease: a guarded transaction that stands still for longer is ended by the database.
    pub lease: Duration,
}

/// A transaction that can be tied to a lease. Implemented for the connections and transactions of each SQL backend.
///
/// The guard *locks* the lease's row, so that a take-over waits for the commit. Merely looking at the row would let a
/// take-over slip in between the look and the commit.
#[async_trait]
pub trait Guarded: Send {
    /// Locks the lease until the transaction ends, or refuses.
    async fn guard(&mut self, claim: &Claim) -> Result<(), GuardError>;
}

/// A transaction that can refuse old tokens, on any database, whoever elected the leader.
#[async_trait]
pub trait Fenced: Send {
    /// Remembers the highest token seen for `name` and refuses a lower one.
    async fn fence(&mut self, name: &str, token: Token) -> Result<(), FenceError>;
}

/// Remembers the highest `token` seen for `name` in this transaction's database, and refuses a lower one.
///
/// This fences a database against leaders that were elected somewhere else.
pub async fn fence(tx: &mut impl Fenced, name: &str, token: Token) -> Result<(), FenceError> {
    tx.fence(name, token).await
}
