//! What can go wrong, and what it did to the state.

use std::time::Duration;

use tenure_core::port::{StoreError, TaskId};
use tenure_core::{ElectionKey, Name, NameError, TimingError, Token};

/// Why something could not be done.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store failed. Whether the call happened is unknown; leadership is not extended by it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The name is not allowed. Nothing was done.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The lease and beat do not fit together. Nothing was done.
    #[error(transparent)]
    Timing(#[from] TimingError),
    /// The election has another number of slots, and live candidates that count on it. This candidate does not stand.
    #[error(
        "election {election} has {slots} slots; stop its candidates first or ask for {slots}, not {asked}"
    )]
    Slots {
        /// Which election.
        election: ElectionKey,
        /// How many it has.
        slots: u32,
        /// How many were asked for.
        asked: u32,
    },
    /// The number of slots makes no sense. Nothing was done.
    #[error("{0} slots are not possible; choose between 1 and 1000")]
    SlotCount(u32),
    /// This process already stands in that election. Doesn't affect the standing candidate.
    #[error("this process already stands in election {0}; use its elector, or open a second Tenure")]
    AlreadyStanding(ElectionKey),
    /// Work goes on, or the store does not answer. What is held is given back when they do, or runs out by itself.
    #[error("not closed within {0:?}: work goes on, or the store does not answer")]
    NotClosed(Duration),
    /// The task is not claimed under our token any more: it was called off, or somebody else has it. Nothing was changed.
    #[error("the claim on task {0} was lost: it was called off, or its time was over; stop working on it")]
    ClaimLost(TaskId),
    /// The resource is not ours under our token any more. Nothing was changed.
    #[error("resource {0} is not ours any more: its time was over, or it was called off; stop using it")]
    GrantLost(Name),
    /// A worker can not be as it was described. Nothing was done.
    #[error("this worker can not start: {0}")]
    Worker(String),
    /// A consumer can not be as it was described. Nothing was done.
    #[error("this consumer can not start: {0}")]
    Consumer(String),
    /// A schedule can not be as it was described. Nothing was done.
    #[error("schedule {name:?} can not be: {problem}")]
    Schedule {
        /// Which.
        name: String,
        /// What is wrong with it, and what would do.
        problem: String,
    },
    /// A scheduler can not be as it was described. Nothing was done.
    #[error("this scheduler can not start: {0}")]
    Scheduler(String),
    /// Handlers go on that can not be stopped, or the store does not acknowledge. What is claimed goes back with the session.
    #[error(
        "{0} is not drained: a handler blocks its thread, or the store does not answer; close the session"
    )]
    NotDrained(String),
    /// The client was closed. Nothing was done.
    #[error("this Tenure was closed")]
    Closed,
    /// The store did not confirm in time that the candidate left. Its lease, if any, runs out by itself.
    #[error("the store did not confirm within {0:?} that {1} was left; the lease runs out by itself")]
    Unconfirmed(Duration, ElectionKey),
    /// The store did not confirm in time what a candidate says of itself. It is said as soon as the store answers.
    #[error(
        "the store did not confirm within {0:?} what is said in {1}; it will be said when the store answers"
    )]
    Unsaid(Duration, ElectionKey),
}

/// Why a guarded transaction must not go on. It has to be rolled back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GuardError {
    /// Trust has run out on this process's own clock. The store was not asked.
    #[error("leadership of {0} is no longer trusted; roll back")]
    Untrusted(ElectionKey),
    /// The store says that somebody else holds the lease, or nobody.
    #[error("{election} slot {slot} is not held under token {token} any more; roll back and stop leading")]
    NotHeld {
        /// Which election.
        election: ElectionKey,
        /// Which slot.
        slot: u32,
        /// The token of the leadership that asked.
        token: Token,
    },
    /// There is no transaction: the lock would be gone before the next statement. Nothing was written.
    #[error("this needs a transaction; begin one and pass it")]
    NotInTransaction,
    /// The store failed. The transaction is in doubt: roll back.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a fenced write was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// A newer leader has written already. Nothing was recorded; roll back.
    #[error("{name} has seen token {seen}; token {given} is stale; roll back")]
    Stale {
        /// What is fenced.
        name: String,
        /// The highest token seen.
        seen: Token,
        /// The token given.
        given: Token,
    },
    /// There is no transaction: the lock would be gone before the next statement. Nothing was written.
    #[error("this needs a transaction; begin one and pass it")]
    NotInTransaction,
    /// The store failed. Roll back.
    #[error(transparent)]
    Store(#[from] StoreError),
}
