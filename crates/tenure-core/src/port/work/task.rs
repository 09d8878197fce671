//! Tasks: submission, state and view.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{RawJson, WorkerProfile};
use crate::{Name, SessionId, Token};

/// Maximum size of a payload or result, in bytes.
pub const PAYLOAD_MAX: usize = 1 << 20;

/// Maximum nesting depth of arrays and objects in a payload or result. Many programs cannot read deeper values, and
/// not every store keeps them.
pub const DEPTH_MAX: usize = 500;

/// Maximum number of tasks in one submission.
pub const SUBMIT_MAX: usize = 10_000;

/// Maximum number of tags, allowed workers or parents of one task.
pub const LIST_MAX: usize = 64;

/// Milliseconds by which one point of priority moves a task forward in its queue. A task with one point more
/// overtakes tasks submitted up to a minute before it.
pub const PRIORITY_STEP_MS: i64 = 60_000;

/// Maximum absolute value of a priority.
pub const PRIORITY_MAX: i32 = 1_000_000;

/// Identity of a queue: a name in a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct QueueKey {
    /// Namespace.
    pub namespace: Name,
    /// Name of the queue.
    pub name: Name,
}

impl QueueKey {
    /// The queue `name` of `namespace`.
    pub fn new(namespace: Name, name: Name) -> Self {
        QueueKey { namespace, name }
    }
}

impl fmt::Display for QueueKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "default" => write!(f, "{}", self.name),
            namespace => write!(f, "{namespace}/{}", self.name),
        }
    }
}

/// Id of a task, unique in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(value_type = u64, example = 42))]
pub struct TaskId(pub u64);

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A task to submit. `NewTask::new("kind")` has default options.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct NewTask {
    /// Kind: tells the worker how to run the task. Empty means that every worker of the queue can run it.
    pub kind: String,
    /// Payload.
    pub payload: RawJson,
    /// Priority; higher goes first. Each point equals one minute of waiting ([`PRIORITY_STEP_MS`]).
    pub priority: i32,
    /// Tags that a worker must have.
    pub required_tags: Vec<String>,
    /// Preferred tags: during the queue's preference window only workers with one of them can claim the task.
    pub preferred_tags: Vec<String>,
    /// Names of the workers that may claim the task. Empty or `*` means all.
    pub allowed_workers: Vec<String>,
    /// Earliest start, in milliseconds since 1970 by the store's clock. `None` means at once.
    pub run_at_ms: Option<i64>,
    /// Maximum wait: the task is dead if no worker claims it for this long after it became claimable.
    pub max_wait_ms: Option<u64>,
    /// Maximum run time: an attempt that takes longer loses its claim.
    pub max_run_ms: Option<u64>,
    /// Maximum number of attempts.
    pub max_attempts: u32,
    /// Backoff between attempts.
    pub backoff: Backoff,
    /// Tasks that must complete first; the worker receives their results. If a parent dies or is cancelled, the task
    /// ends in the same state.
    pub parents: Vec<ParentRef>,
    /// Idempotency key. A second submission with the same key to the same queue returns the first task, as long as
    /// that one is kept.
    pub idempotency_key: Option<String>,
    /// Concurrency key, shared by tasks of the namespace.
    pub concurrency_key: Option<String>,
    /// Maximum number of tasks with this concurrency key that are claimed at a time.
    pub concurrency_limit: u32,
    /// Token of the leader that submitted the task, for display and fencing.
    pub leader_token: Option<Token>,
}

impl Default for NewTask {
    fn default() -> Self {
        NewTask {
            kind: String::new(),
            payload: RawJson::default(),
            priority: 0,
            required_tags: Vec::new(),
            preferred_tags: Vec::new(),
            allowed_workers: Vec::new(),
            run_at_ms: None,
            max_wait_ms: None,
            max_run_ms: None,
            max_attempts: 20,
            backoff: Backoff::default(),
            parents: Vec::new(),
            idempotency_key: None,
            concurrency_key: None,
            concurrency_limit: 1,
            leader_token: None,
        }
    }
}

impl NewTask {
    /// A task of this kind with default options.
    pub fn new(kind: impl Into<String>) -> NewTask {
        NewTask { kind: kind.into(), ..NewTask::default() }
    }
}

/// Reference to a task that another one depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ParentRef {
    /// A stored task.
    Task(TaskId),
    /// A task of the same submission, by its index from 0. It may come later in the submission.
    Index(u32),
}

/// Delay after a failed attempt: `initial · 2^(attempt − 1)`, at most `max`, with a jitter of up to 20 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Backoff {
    /// Delay after the first attempt.
    pub initial_ms: u64,
    /// Maximum delay.
    pub max_ms: u64,
}

impl Default for Backoff {
    fn default() -> Self {
        Backoff { initial_ms: 1_000, max_ms: 3_600_000 }
    }
}

/// Tasks that are submitted together, all or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// Queue of the tasks. It is created with default settings if it does not exist.
    pub queue: QueueKey,
    /// Tasks. The caller validates them with [`validate_submission`](crate::rules::work::validate_submission).
    pub tasks: Vec<NewTask>,
}

/// The result of submitting a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SubmitReceipt {
    /// Task id.
    pub id: TaskId,
    /// Whether the task was created; otherwise a task with the same idempotency key existed.
    pub created: bool,
}

/// State of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// Waits for its parents.
    Waiting,
    /// Waits for a time: `run_at` or the next attempt.
    Scheduled,
    /// Can be claimed.
    Ready,
    /// The limit of its concurrency key is reached.
    Blocked,
    /// Claimed by a worker.
    Claimed,
    /// Completed successfully.
    Completed,
    /// No attempts left, failed permanently, waited too long, or a parent died.
    Dead,
    /// Cancelled.
    Cancelled,
}

impl TaskState {
    /// All states, in the order of the life cycle.
    pub const ALL: [TaskState; 8] = [
        TaskState::Waiting,
        TaskState::Scheduled,
        TaskState::Ready,
        TaskState::Blocked,
        TaskState::Claimed,
        TaskState::Completed,
        TaskState::Dead,
        TaskState::Cancelled,
    ];

    /// Name of the state, as stored and displayed.
    pub fn as_str(self) -> &'static str {
        match self {
            TaskState::Waiting => "waiting",
            TaskState::Scheduled => "scheduled",
            TaskState::Ready => "ready",
            TaskState::Blocked => "blocked",
            TaskState::Claimed => "claimed",
            TaskState::Completed => "completed",
            TaskState::Dead => "dead",
            TaskState::Cancelled => "cancelled",
        }
    }

    /// Parses a name from [`as_str`](Self::as_str).
    pub fn from_name(word: &str) -> Option<TaskState> {
        TaskState::ALL.into_iter().find(|state| state.as_str() == word)
    }

    /// Whether the state is final.
    pub fn is_final(self) -> bool {
        matches!(self, TaskState::Completed | TaskState::Dead | TaskState::Cancelled)
    }
}

/// A task as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TaskView {
    /// Task id.
    pub id: TaskId,
    /// Namespace.
    pub namespace: Name,
    /// Queue.
    pub queue: Name,
    /// Kind.
    pub kind: String,
    /// State.
    pub state: TaskState,
    /// Payload.
    pub payload: RawJson,
    /// Result of the task.
    pub result: Option<RawJson>,
    /// Priority.
    pub priority: i32,
    /// Tags that a worker must have.
    pub required_tags: Vec<String>,
    /// Tags that a worker should have.
    pub preferred_tags: Vec<String>,
    /// Workers that may claim it.
    pub allowed_workers: Vec<String>,
    /// Number of started attempts.
    pub attempt: u32,
    /// Maximum number of attempts.
    pub max_attempts: u32,
    /// Backoff between attempts.
    pub backoff: Backoff,
    /// Token of the latest claim.
    pub token: Token,
    /// Claim sequence of the latest claim in exclusive mode. It follows the strict order of the queue.
    pub claim_seq: Option<u64>,
    /// Worker that claimed it last.
    pub worker: Option<String>,
    /// Session whose heartbeats keep the claim.
    pub session: Option<SessionId>,
    /// Progress text of the worker.
    pub progress: Option<String>,
    /// Latest failed attempts, oldest first.
    pub failures: Vec<AttemptFailure>,
    /// Why it is dead or cancelled.
    pub end_reason: Option<String>,
    /// Parents.
    pub parents: Vec<TaskId>,
    /// Tasks that depend on it.
    pub children: Vec<TaskId>,
    /// Idempotency key.
    pub idempotency_key: Option<String>,
    /// Concurrency key.
    pub concurrency_key: Option<String>,
    /// Maximum number of claimed tasks with that key.
    pub concurrency_limit: u32,
    /// Token of the leader that submitted it.
    pub leader_token: Option<Token>,
    /// Maximum wait.
    pub max_wait_ms: Option<u64>,
    /// Maximum run time.
    pub max_run_ms: Option<u64>,
    /// Time of submission. This and the following times are by the store's wall clock, in milliseconds since 1970.
    pub submitted_at_ms: i64,
    /// Position in the queue: `submitted_at − priority · step`.
    pub effective_at_ms: i64,
    /// Earliest start.
    pub run_at_ms: Option<i64>,
    /// When it became ready in the current attempt.
    pub ready_at_ms: Option<i64>,
    /// When it was last claimed.
    pub claimed_at_ms: Option<i64>,
    /// When the claim ends without a heartbeat.
    pub claim_expires_at_ms: Option<i64>,
    /// When it completed, died or was cancelled.
    pub finished_at_ms: Option<i64>,
}

impl TaskView {
    /// Whether this worker may ever claim the task: it matches the kind, the required tags and the allowed workers.
    pub fn may_be_claimed_by(&self, worker: &WorkerProfile) -> bool {
        let knows =
            self.kind.is_empty() || worker.task_kinds.is_empty() || worker.task_kinds.contains(&self.kind);
        let has = self.required_tags.iter().all(|tag| worker.tags.contains(tag));
        let meant = self.allowed_workers.is_empty()
            || self.allowed_workers.iter().any(|name| name == "*" || *name == worker.name);
        knows && has && meant
    }
}

/// A failed attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AttemptFailure {
    /// Number of the attempt.
    pub attempt: u32,
    /// Time of the failure, by the store's wall clock.
    pub failed_at_ms: i64,
    /// Worker of the attempt.
    pub worker: String,
    /// Error reported by the worker, or how the claim was lost: `claim lost: session ended`, `claim lost: claim timeout
    /// exceeded` or `claim lost: max_run_ms exceeded`.
    pub error: String,
}

/// Maximum number of failed attempts kept per task.
pub const FAILURES_MAX: usize = 10;

/// A task as returned to the worker that claimed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ClaimedTask {
    /// Task id.
    pub id: TaskId,
    /// Token of the claim, required to settle it.
    pub token: Token,
    /// Queue.
    pub queue: Name,
    /// Kind.
    pub kind: String,
    /// Payload.
    pub payload: RawJson,
    /// Results of the parents, by parent id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parent_results: BTreeMap<TaskId, RawJson>,
    /// Number of this attempt, from 1.
    pub attempt: u32,
    /// Maximum number of attempts.
    pub max_attempts: u32,
    /// Backoff between attempts.
    #[serde(default)]
    pub backoff: Backoff,
    /// Priority.
    pub priority: i32,
    /// Maximum run time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_run_ms: Option<u64>,
    /// When the claim ends without a heartbeat, by the store's wall clock. For display only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_expires_at_ms: Option<i64>,
    /// Time of submission, by the store's wall clock. For display only.
    pub submitted_at_ms: i64,
    /// Claim sequence in exclusive mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_seq: Option<u64>,
    /// Token of the leader that submitted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_token: Option<Token>,
    /// Idempotency key. For the task of a schedule it identifies the tick
    /// ([`tick_of`](crate::rules::schedule::tick_of)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}
