//! Claiming and settling tasks, and maintenance.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{AssignmentMode, ClaimedTask, QueueKey, RawJson, TaskId, TaskState};
use crate::{Name, SessionId, Token};

/// Maximum number of tasks that one call claims.
pub const CLAIM_MAX: u32 = 1_000;

/// Maximum bytes of payloads and parent results that one call returns, unless the first task alone exceeds it.
pub const CLAIM_BYTES: usize = 16 << 20;

/// Properties of a worker that tasks are matched against.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct WorkerProfile {
    /// Name of the worker. Tasks can be restricted to it, and approval is given to it.
    pub name: String,
    /// Task kinds that the worker can run. Empty means every kind.
    #[serde(default)]
    pub task_kinds: Vec<String>,
    /// Tags of the worker.
    #[serde(default)]
    pub tags: Vec<String>,
}

/// A request for tasks by one worker. With a session, a claim lasts while the session sends heartbeats; with a claim
/// timeout, it lasts for that time. With both, it ends when the first of them ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ClaimRequest {
    /// Worker that claims.
    pub worker: WorkerProfile,
    /// Maximum number of tasks; at most [`CLAIM_MAX`] for all requests of a batch together.
    pub limit: u32,
    /// Session whose heartbeats keep the claims. Rejected if it is not live.
    #[serde(default)]
    pub session: Option<SessionId>,
    /// Claim timeout: how long the claims last without a heartbeat of the claim. Required without a session.
    #[serde(default)]
    pub claim_timeout_ms: Option<u64>,
}

/// The authority under which a caller assigns tasks or resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimAuthority {
    /// Any process, as a distributed queue allows.
    Direct,
    /// The broker: the leader of [`broker_election`](super::broker_election). The store checks the lease in the same
    /// transaction and locks it until the transaction ends.
    Leader {
        /// Session of the broker.
        session: SessionId,
        /// Token of the broker.
        token: Token,
    },
    /// Any process, because the broker cannot be reached. Allowed by an exclusive queue whose fallback is
    /// `distributed`.
    Fallback,
}

/// Claim requests of one or more workers of one queue, served in order in one transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimBatchRequest {
    /// Queue to claim from.
    pub queue: QueueKey,
    /// Authority of the caller.
    pub authority: ClaimAuthority,
    /// Claim requests.
    pub requests: Vec<ClaimRequest>,
}

/// The result of a [`ClaimBatchRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimBatchResponse {
    /// The requests were served.
    Served {
        /// Tasks claimed by each request, in the order of the requests; each list is in queue order and may be empty.
        tasks: Vec<Vec<ClaimedTask>>,
        /// If a request got fewer tasks than its limit: the time until more tasks may become claimable without a new
        /// submission, as far as the store knows. This is the next `run_at`, or the end of a preference window or rate
        /// limit.
        next_in: Option<Duration>,
    },
    /// Nothing was claimed.
    Refused(ClaimRefusal),
}

/// Why nothing was claimed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimRefusal {
    /// The queue has this mode, which differs from the mode the caller assumed. Retry with this mode.
    Mode(AssignmentMode),
    /// The caller is not the broker.
    NotLeader,
    /// The queue or its namespace is paused.
    Paused,
    /// This worker is not approved.
    NotApproved(String),
    /// The session of a claim request is not live.
    SessionEnded(SessionId),
}

/// A worker's report about a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// Namespace of the task. A task of another namespace is not found.
    pub namespace: Name,
    /// Task id.
    pub task: TaskId,
    /// Token of the claim.
    pub token: Token,
    /// Reported outcome.
    pub outcome: ClaimOutcome,
}

/// The outcome that a worker reports about a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// The task is completed, with an optional result.
    Complete(Option<RawJson>),
    /// The attempt failed.
    Fail {
        /// Error message.
        error: String,
        /// Whether to retry, if attempts are left.
        retry: bool,
        /// Delay before the next attempt: the [`backoff`](crate::rules::work::backoff) of the task for this attempt,
        /// or a delay chosen by the worker. The caller has already applied the jitter.
        retry_in: Duration,
    },
    /// The task was not started, or another worker should run it. The attempt does not count.
    Release,
    /// A heartbeat: the worker is still running the task.
    Heartbeat {
        /// Progress text, for display.
        progress: Option<String>,
        /// New claim timeout, counted from now. It never extends the claim beyond the maximum run time.
        claim_timeout: Option<Duration>,
    },
}

/// The result of a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum SettleResult {
    /// The settlement was applied; the task is in this state. Repeating a completion succeeds again.
    Applied(TaskState),
    /// The task is not claimed under this token: the claim was lost. Nothing was changed.
    ClaimLost,
}

/// A maintenance request of the leader of [`broker_election`](super::broker_election).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaintenanceRequest {
    /// Session of the leader.
    pub session: SessionId,
    /// Token of the leader. Nothing is changed if the session does not lead.
    pub token: Token,
    /// Lower bound of the store's wall clock, estimated by the leader (see
    /// [`StoreClockEstimate`](crate::rules::work::StoreClockEstimate)). Claim timeouts and maximum waits are compared
    /// with the lesser of this value and the store's clock, so that a forward step of that clock expires nothing.
    /// `None` if the leader has no estimate yet; then nothing expires by the clock.
    pub clock_ms: Option<i64>,
    /// Maximum number of objects of each sort to change.
    pub limit: u32,
}

/// The result of a maintenance pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaintenanceResponse {
    /// Whether the caller leads; if not, nothing was changed.
    pub is_leader: bool,
    /// Number of recovered claims: their tasks are ready again, or dead if no attempts are left.
    pub recovered: u64,
    /// Number of tasks that died because they waited too long or because a parent died.
    pub dead: u64,
    /// Number of scheduled tasks that became ready.
    pub promoted: u64,
    /// Number of pruned tasks.
    pub pruned: u64,
    /// Number of resources released to their pools.
    pub released: u64,
    /// Whether more work remains.
    pub has_more: bool,
    /// The store's wall clock, in milliseconds since 1970.
    pub store_now_at_ms: i64,
    /// Time until something becomes due, as far as the store knows.
    pub next_in: Option<Duration>,
}
