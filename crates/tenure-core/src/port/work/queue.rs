//! Queues, workers and wait reasons.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{QueueKey, TaskId, TaskState};
use crate::port::Pause;
use crate::{Name, SessionId};

/// How the tasks of a queue, or the resources of a pool, are assigned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum AssignmentMode {
    /// Every process claims directly. The order is approximate.
    #[default]
    Distributed,
    /// Only the broker assigns, in strict order.
    Exclusive,
}

impl AssignmentMode {
    /// Name of the mode.
    pub fn as_str(self) -> &'static str {
        match self {
            AssignmentMode::Distributed => "distributed",
            AssignmentMode::Exclusive => "exclusive",
        }
    }
}

/// What a process does in exclusive mode while it cannot reach the broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum BrokerFallback {
    /// It waits. The strict order is kept.
    #[default]
    None,
    /// It claims directly. Work continues, and the order is approximate meanwhile.
    Distributed,
}

impl BrokerFallback {
    /// Name of the fallback.
    pub fn as_str(self) -> &'static str {
        match self {
            BrokerFallback::None => "none",
            BrokerFallback::Distributed => "distributed",
        }
    }
}

/// A rate limit: on average at most `count` claims per `per_ms`, with bursts of up to `count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RateLimit {
    /// Number of claims.
    pub count: u32,
    /// Period in milliseconds.
    pub per_ms: u64,
}

/// Settings of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct QueueSettings {
    /// How tasks are assigned.
    pub mode: AssignmentMode,
    /// What happens in exclusive mode while the broker cannot be reached.
    pub fallback: BrokerFallback,
    /// Whether a worker needs approval to claim tasks.
    pub require_approval: bool,
    /// Rate limit of claims.
    pub rate: Option<RateLimit>,
    /// Maximum number of claimed tasks at a time.
    pub max_claimed: Option<u32>,
    /// How long a task with preferred tags is offered only to workers that have one of them.
    pub preference_window_ms: u64,
    /// Retention of completed and cancelled tasks.
    pub retention_ms: u64,
    /// Retention of dead tasks.
    pub dead_retention_ms: u64,
}

impl Default for QueueSettings {
    fn default() -> Self {
        const DAY_MS: u64 = 86_400_000;
        QueueSettings {
            mode: AssignmentMode::Distributed,
            fallback: BrokerFallback::None,
            require_approval: false,
            rate: None,
            max_claimed: None,
            preference_window_ms: 5_000,
            retention_ms: DAY_MS,
            dead_retention_ms: 30 * DAY_MS,
        }
    }
}

/// A queue as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct QueueView {
    /// Namespace and name.
    #[serde(flatten)]
    pub key: QueueKey,
    /// Settings.
    pub settings: QueueSettings,
    /// Set while the queue or its namespace is paused.
    pub paused: Option<Pause>,
    /// Number of tasks per state, including finished tasks that are still kept. States without tasks may be missing.
    pub counts: BTreeMap<TaskState, u64>,
    /// Age of the oldest ready task, in milliseconds.
    pub oldest_ready_age_ms: Option<u64>,
}

impl QueueView {
    /// Number of tasks in this state.
    pub fn count(&self, state: TaskState) -> u64 {
        self.counts.get(&state).copied().unwrap_or(0)
    }
}

/// The registration of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewWorker {
    /// Name. A later registration with the same name replaces this one; claims belong to sessions, not to names.
    pub name: String,
    /// Description, for display.
    #[serde(default)]
    pub description: String,
    /// Tags of the worker.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Task kinds that the worker can run. Empty means every kind.
    #[serde(default)]
    pub task_kinds: Vec<String>,
    /// Queues that the worker claims from.
    #[serde(default)]
    pub queues: Vec<Name>,
    /// Location, for display.
    #[serde(default)]
    pub location: String,
    /// Number of tasks that it runs at a time.
    #[serde(default)]
    pub capacity: u32,
    /// Session of the worker, if it has one.
    #[serde(default)]
    pub session: Option<SessionId>,
}

/// A worker as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WorkerView {
    /// Namespace.
    pub namespace: Name,
    /// Registration.
    #[serde(flatten)]
    pub worker: NewWorker,
    /// Principal that approved the worker.
    pub approved_by: Option<String>,
    /// Whether its session is live; without a session, whether it was seen in the last minute.
    pub online: bool,
    /// Last heartbeat of its session or last claim, by the store's wall clock, in milliseconds since 1970.
    pub last_seen_at_ms: i64,
    /// Number of tasks that it has claimed now.
    pub claimed_count: u64,
}

/// Which tasks to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskFilter {
    /// Only tasks of this namespace; `None` means all.
    pub namespace: Option<Name>,
    /// Only tasks of this queue.
    pub queue: Option<Name>,
    /// Only tasks in these states; empty means any.
    pub states: Vec<TaskState>,
    /// Only tasks of this kind.
    pub kind: Option<String>,
    /// Only tasks of this worker.
    pub worker: Option<String>,
    /// Continue before this task id.
    pub before: Option<TaskId>,
    /// Maximum number of tasks.
    pub limit: u32,
}

/// An operator's action on tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TaskAction {
    /// Cancels the task and all tasks that depend on it. A worker that has claimed it is notified, and its later
    /// settlements are rejected.
    Cancel,
    /// Makes the task claimable again at once and resets its attempts. A dead or cancelled task returns, with the
    /// children that ended because of it; a scheduled task no longer waits for its time.
    Retry,
}

/// Wait and run times of the tasks of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct KindStats {
    /// Task kind.
    pub kind: String,
    /// Number of completed tasks in the sample.
    pub completed: u64,
    /// Number of dead tasks in the sample.
    pub dead: u64,
    /// Time from ready to claimed, in milliseconds.
    pub wait_ms: Percentiles,
    /// Time from claimed to finished, in milliseconds.
    pub run_ms: Percentiles,
}

/// Percentiles of durations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Percentiles {
    /// Median.
    pub p50: u64,
    /// 95th percentile.
    pub p95: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Maximum.
    pub max: u64,
}

/// A finished task, as a sample for [`KindStats`] and for throughput.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinishedTask {
    /// Task kind.
    pub kind: String,
    /// Whether it completed; otherwise it is dead.
    pub completed: bool,
    /// When it finished, by the store's wall clock, in milliseconds since 1970. Throughput is the number of tasks in
    /// a recent period.
    pub finished_at_ms: i64,
    /// Time from ready to claimed, in milliseconds.
    pub wait_ms: u64,
    /// Time from claimed to finished, in milliseconds.
    pub run_ms: u64,
}

/// A reason why a task is not claimed. See [`wait_reasons`](crate::rules::work::wait_reasons).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", tag = "reason")]
pub enum WaitReason {
    /// It can be claimed now; it waits for a free worker.
    Claimable {
        /// Number of online workers that match.
        matching_workers: u64,
        /// Number of tasks before it in the queue.
        tasks_ahead: u64,
    },
    /// It is not pending: it is claimed or finished.
    NotPending {
        /// Current state.
        state: TaskState,
    },
    /// The queue or its namespace is paused.
    Paused {
        /// The pause.
        pause: Pause,
    },
    /// Its `run_at` is in the future.
    NotDue {
        /// Earliest start, in milliseconds since 1970.
        run_at_ms: i64,
    },
    /// It waits for parents.
    PendingParents {
        /// Parents that are not completed.
        tasks: Vec<TaskId>,
    },
    /// The limit of its concurrency key is reached.
    ConcurrencyLimit {
        /// The concurrency key.
        #[serde(rename = "concurrency_key")]
        key: String,
        /// Maximum number of claimed tasks with this key.
        limit: u32,
    },
    /// The limit of claimed tasks of the queue is reached.
    QueueLimit {
        /// Maximum number of claimed tasks.
        limit: u32,
    },
    /// The rate limit of the queue is reached.
    RateLimit {
        /// Time until the next claim is allowed, in milliseconds.
        next_in_ms: u64,
    },
    /// No online worker claims from this queue.
    NoWorkers,
    /// No online worker has the required tags.
    NoWorkerWithTags {
        /// Required tags that no worker has. If every tag occurs but no worker has all of them, all required tags.
        tags: Vec<String>,
    },
    /// No online worker can run this kind.
    NoWorkerForKind {
        /// The kind.
        kind: String,
    },
    /// Only these workers may claim it, and none of them is online.
    AllowedWorkersOffline {
        /// Names of the allowed workers.
        #[serde(rename = "allowed_workers")]
        matching_workers: Vec<String>,
    },
    /// Workers match, but none of them is approved.
    NoApprovedWorker {
        /// Matching workers without approval.
        unapproved_workers: Vec<String>,
    },
    /// The queue is exclusive and there is no broker.
    NoBroker,
}
