//! Claims, as they are asked for and acknowledged.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ClaimedTask, Json, Mode, QueueKey, TaskId, TaskState};
use crate::{Name, SessionId, Token};

/// The most tasks that one call hands out.
pub const CLAIM_MAX: u32 = 1_000;

/// The most bytes of payloads and inputs that one call hands out, unless its first task alone has more.
pub const CLAIM_BYTES: usize = 16 << 20;

/// What a worker is, as far as matching goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Its name: what tasks call it, and what approval is given to.
    pub name: String,
    /// The kinds of tasks that it knows. Empty: every kind.
    #[serde(default)]
    pub kinds: Vec<String>,
    /// What it has.
    #[serde(default)]
    pub tags: Vec<String>,
}

/// One worker's wish for tasks. A claim lives on the beat of `session`, or for `hold` at a time, or both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Seat {
    /// Who.
    pub worker: Profile,
    /// How many, at most [`CLAIM_MAX`] of all seats together.
    pub limit: u32,
    /// The session on whose beat the claims live. Refused if it is not live.
    #[serde(default)]
    pub session: Option<SessionId>,
    /// How long the claims last unless they are extended. Needed without a session.
    #[serde(default)]
    pub hold_ms: Option<u64>,
}

/// In whose name tasks are handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authority {
    /// Anybody's, as a distributed queue allows.
    Direct,
    /// The leader's of the election [`claims_election`](super::claims_election): checked against the lease, and the lease is
    /// held still, in the same transaction.
    Leader {
        /// Its session.
        session: SessionId,
        /// Its token.
        token: Token,
    },
    /// Anybody's, because the leader can not be reached: as an exclusive queue allows whose fallback is `distributed`.
    Fallback,
}

/// A request for tasks of one queue, for one or many workers, served in their order, in one transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimAsk {
    /// Which queue.
    pub queue: QueueKey,
    /// In whose name.
    pub authority: Authority,
    /// For whom.
    pub seats: Vec<Seat>,
}

/// What came of a [`ClaimAsk`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimAnswer {
    /// What each seat got, in the order of the seats; each a list in the order of the queue, possibly empty.
    Served {
        /// The tasks.
        tasks: Vec<Vec<ClaimedTask>>,
        /// If a seat got less than it wanted: in how long there may be more without anything new being submitted, as far as the
        /// store knows (the next `run_at`, the end of a preference or of a rate limit's pause).
        next_in: Option<Duration>,
    },
    /// Nothing was handed out, and why.
    Refused(ClaimRefusal),
}

/// Why nothing is handed out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClaimRefusal {
    /// The queue's mode is another than the asker believes. Ask again in this one.
    Mode(Mode),
    /// The asker does not lead.
    NotLeader,
    /// An operator has paused the queue or its namespace.
    Paused,
    /// The worker is not approved yet.
    NotApproved(String),
    /// The session of a seat is not live.
    Gone(SessionId),
}

/// What a worker says about a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// Of which namespace. A task of another is not found.
    pub namespace: Name,
    /// Which task.
    pub task: TaskId,
    /// Under which token.
    pub token: Token,
    /// What it says.
    pub outcome: Outcome,
}

/// What may be said about a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done, and this came of it.
    Complete(Option<Json>),
    /// It failed.
    Fail {
        /// Why.
        error: String,
        /// Whether it is worth another attempt, should there be one left.
        retry: bool,
        /// In how long: what [`backoff`](crate::claim::backoff) says of the task's backoff and this attempt, or what the worker
        /// wishes. The caller has drawn the jitter.
        after: Duration,
    },
    /// It was not begun, or should be begun by somebody else: the attempt does not count.
    Release,
    /// It goes on.
    Progress {
        /// How far, for people.
        note: Option<String>,
        /// The claim shall last this long from now, but not beyond its longest run.
        hold: Option<Duration>,
    },
}

/// What came of a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Settled {
    /// It counts, and the task stands here now. Saying the same completion again counts again.
    Now(TaskState),
    /// The task is not claimed under this token: the claim was lost. Nothing was changed.
    Lost,
}

/// What the keeper asks the store to do. The keeper is whoever leads [`claims_election`](super::claims_election).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tend {
    /// Its session.
    pub session: SessionId,
    /// Its token. Nothing happens if it does not lead.
    pub token: Token,
    /// What the store's wall clock shows at least, by the keeper's own reckoning (see [`SteadyClock`](crate::claim::SteadyClock)).
    /// Deadlines and longest waits are compared with the lesser of this and the store's clock, so that a step of that clock
    /// expires nothing, not even the first time after it. `None`: the keeper has just begun, and has no
    /// reckoning: nothing is over then that goes by the clock.
    pub clock_ms: Option<i64>,
    /// How many of each at most.
    pub limit: u32,
}

/// What the keeper found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tended {
    /// Whether the asker leads; if not, nothing was done.
    pub leads: bool,
    /// Claims that were returned to their queues, or whose tasks are dead for want of attempts.
    pub returned: u64,
    /// Tasks that waited too long, or shared a parent's fate.
    pub dead: u64,
    /// Scheduled tasks that became ready.
    pub due: u64,
    /// Tasks that were forgotten.
    pub forgotten: u64,
    /// Resources that went back to their pools.
    pub freed: u64,
    /// There is more to do.
    pub more: bool,
    /// The store's wall clock, in milliseconds since 1970.
    pub store_ms: i64,
    /// In how long something falls due, as far as the store knows.
    pub next_in: Option<Duration>,
}
