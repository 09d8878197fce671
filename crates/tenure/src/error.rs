//! Errors of the library, and the effect of each on the state.

use std::time::Duration;

use tenure_core::port::{StoreError, TaskId};
use tenure_core::{ElectionKey, Name, NameError, TimingError, Token};

/// An operation of the library failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store failed. It is unknown whether the call took effect; it does not extend leadership.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The name is invalid. Nothing was changed.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The lease and the heartbeat interval do not fit together. Nothing was changed.
    #[error(transparent)]
    Timing(#[from] TimingError),
    /// The election has a different number of slots and live candidates that rely on it. This candidate does
    /// not join.
    #[error(
        "election {election} has {slots} slots; stop its candidates first, or use {slots} instead of {requested}"
    )]
    Slots {
        /// The election.
        election: ElectionKey,
        /// Number of slots of the election.
        slots: u32,
        /// Number of slots that the candidate requested.
        requested: u32,
    },
    /// The number of slots is out of range. Nothing was changed.
    #[error("{0} slots are out of range; use a number between 1 and 1000")]
    SlotCount(u32),
    /// This process is already a candidate of that election. The existing candidate is not affected.
    #[error("this process is already a candidate of election {0}; use its elector, or open a second session")]
    AlreadyCandidate(ElectionKey),
    /// Work continues, or the store does not respond. Leases are released when the work ends and the store
    /// responds, or expire.
    #[error("session not closed within {0:?}: work is still running, or the store does not respond")]
    NotClosed(Duration),
    /// The task is no longer claimed under this token: it was cancelled, or the claim was recovered. Nothing
    /// was changed.
    #[error("claim on task {0} lost: the task was cancelled or the claim timed out; stop working on it")]
    ClaimLost(TaskId),
    /// The resource is no longer held under this token. Nothing was changed.
    #[error("lease on resource {0} lost: it timed out or was cancelled; stop using the resource")]
    ResourceLeaseLost(Name),
    /// The settings of a worker are invalid. Nothing was changed.
    #[error("worker cannot start: {0}")]
    Worker(String),
    /// The settings of a consumer are invalid. Nothing was changed.
    #[error("consumer cannot start: {0}")]
    Consumer(String),
    /// A schedule is invalid. Nothing was changed.
    #[error("schedule {name:?} is invalid: {problem}")]
    Schedule {
        /// Name of the schedule.
        name: String,
        /// What is wrong, and which values are valid.
        problem: String,
    },
    /// The settings of a scheduler are invalid. Nothing was changed.
    #[error("scheduler cannot start: {0}")]
    Scheduler(String),
    /// A handler cannot be stopped, or the store does not confirm. Claims return to their queues when the
    /// session ends.
    #[error(
        "{0} is not drained: a handler blocks its thread, or the store does not respond; close the session"
    )]
    NotDrained(String),
    /// The client is closed. Nothing was changed.
    #[error("the session is closed")]
    Closed,
    /// The store did not confirm in time that the candidate left. A lease that it holds expires by itself.
    #[error(
        "the store did not confirm within {0:?} that this candidate left {1}; its lease expires by itself"
    )]
    LeaveUnconfirmed(Duration, ElectionKey),
    /// The store did not confirm in time the new options of a candidate. They take effect as soon as the store
    /// responds.
    #[error(
        "the store did not confirm within {0:?} the candidate options in {1}; they apply when the store responds"
    )]
    OptionsUnconfirmed(Duration, ElectionKey),
}

/// A guarded transaction must not continue. Roll it back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GuardError {
    /// Trust ended on the clock of this process. The store was not queried.
    #[error("leadership of {0} is no longer trusted; roll back")]
    Untrusted(ElectionKey),
    /// Another session holds the lease, or the lease is free.
    #[error("{election} slot {slot} is no longer held under token {token}; roll back and stop leading")]
    NotHeld {
        /// The election.
        election: ElectionKey,
        /// The slot.
        slot: u32,
        /// Token of the guarding leadership.
        token: Token,
    },
    /// The connection is not in a transaction: the lock would end before the next statement. Nothing was
    /// written.
    #[error("a transaction is required; begin one and pass it")]
    NotInTransaction,
    /// The store failed. The outcome of the transaction is unknown: roll back.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A fenced write was rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// A newer leader has already written. Nothing was recorded; roll back.
    #[error("token {token} for {name} is stale: token {highest} was seen before; roll back")]
    Stale {
        /// Name of the fence.
        name: String,
        /// The highest token seen.
        highest: Token,
        /// The rejected token.
        token: Token,
    },
    /// The connection is not in a transaction: the lock would end before the next statement. Nothing was
    /// written.
    #[error("a transaction is required; begin one and pass it")]
    NotInTransaction,
    /// The store failed. Roll back.
    #[error(transparent)]
    Store(#[from] StoreError),
}
