//! A task: what is wanted, where it stands, and what became of it.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Json, Profile};
use crate::{Name, SessionId, Token};

/// The longest payload or output, in bytes.
pub const PAYLOAD_MAX: usize = 1 << 20;

/// How deep lists and objects may lie in each other in a payload or output: what is deeper, few programs can read, and not every
/// store keeps.
pub const DEPTH_MAX: usize = 500;

/// The most tasks in one submission.
pub const SUBMIT_MAX: usize = 10_000;

/// The most tags, named workers or parents of one task.
pub const LIST_MAX: usize = 64;

/// By how much one point of priority moves a task forward in its queue, in milliseconds: it overtakes whatever was
/// submitted up to a minute before it.
pub const PRIORITY_STEP_MS: i64 = 60_000;

/// The furthest a priority may go, either way.
pub const PRIORITY_MAX: i32 = 1_000_000;

/// Which queue: a name within a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct QueueKey {
    /// The tenant.
    pub namespace: Name,
    /// The queue's name in it.
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

/// A task's number, given by the store, unique in it.
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

/// A task to be submitted. `NewTask::new("kind")` is an ordinary one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct NewTask {
    /// What is to be done: the name under which workers know how to. Empty: any worker of the queue.
    pub kind: String,
    /// What it is to be done with.
    pub payload: Json,
    /// Higher goes first: each point is worth a minute of waiting ([`PRIORITY_STEP_MS`]).
    pub priority: i32,
    /// Tags that a worker must have, all of them.
    pub requires: Vec<String>,
    /// Tags that a worker had better have, any of them: for the queue's `prefer_ms`, only such a worker is offered it.
    pub prefers: Vec<String>,
    /// Workers that it is meant for, by name. Empty or `*`: any.
    pub workers: Vec<String>,
    /// Not before this, in milliseconds since 1970 by the store's clock. `None`: at once.
    pub run_at_ms: Option<i64>,
    /// Dead if nobody has claimed it for this long since it could first be claimed.
    pub max_wait_ms: Option<u64>,
    /// Returned to the queue if an attempt takes longer.
    pub max_run_ms: Option<u64>,
    /// How many attempts at most.
    pub max_attempts: u32,
    /// How long to wait before the next attempt.
    pub backoff: Backoff,
    /// Tasks whose outputs it needs. It waits until all are completed, and shares their fate if one is not.
    pub parents: Vec<Parent>,
    /// Submitted again under the same key (within the queue, for as long as the first is remembered): the first one.
    pub key: Option<String>,
    /// Of all tasks of the namespace with this concurrency key ...
    pub concurrency_key: Option<String>,
    /// ... at most this many are claimed at once.
    pub concurrency_limit: u32,
    /// Under which token it was submitted, if it was by a leader: for people, and for who fences by it.
    pub leader_token: Option<Token>,
}

impl Default for NewTask {
    fn default() -> Self {
        NewTask {
            kind: String::new(),
            payload: Json::default(),
            priority: 0,
            requires: Vec::new(),
            prefers: Vec::new(),
            workers: Vec::new(),
            run_at_ms: None,
            max_wait_ms: None,
            max_run_ms: None,
            max_attempts: 20,
            backoff: Backoff::default(),
            parents: Vec::new(),
            key: None,
            concurrency_key: None,
            concurrency_limit: 1,
            leader_token: None,
        }
    }
}

impl NewTask {
    /// An ordinary task of this kind.
    pub fn new(kind: impl Into<String>) -> NewTask {
        NewTask { kind: kind.into(), ..NewTask::default() }
    }
}

/// A task that another one depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Parent {
    /// One that is in the store already.
    Task(TaskId),
    /// One of the same submission, by its place in it, counted from 0. It may stand later in it.
    Index(u32),
}

/// How long to wait after a failed attempt: `first · 2^(attempt − 1)`, at most `most`, and up to a fifth more or less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Backoff {
    /// After the first attempt.
    pub first_ms: u64,
    /// At most.
    pub most_ms: u64,
}

impl Default for Backoff {
    fn default() -> Self {
        Backoff { first_ms: 1_000, most_ms: 3_600_000 }
    }
}

/// What is submitted together: all of it, or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// To which queue. A queue that is not there is made, with the usual settings.
    pub queue: QueueKey,
    /// The tasks. Checked by [`check`](crate::claim::check) before it comes here.
    pub tasks: Vec<NewTask>,
}

/// What came of a task's submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Submitted {
    /// The task's number.
    pub id: TaskId,
    /// Whether it is new; otherwise it was there already under the same key.
    pub new: bool,
}

/// Where a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum TaskState {
    /// Waits for its parents.
    Waiting,
    /// Waits for its time: `run_at`, or the next attempt.
    Scheduled,
    /// Waits for a worker.
    Ready,
    /// Waits for another with the same concurrency key.
    Held,
    /// A worker has it.
    Claimed,
    /// Done.
    Completed,
    /// Given up: out of attempts, failed for good, waited too long, or a parent's fate.
    Dead,
    /// Called off.
    Cancelled,
}

impl TaskState {
    /// All of them, in the order of a task's life.
    pub const ALL: [TaskState; 8] = [
        TaskState::Waiting,
        TaskState::Scheduled,
        TaskState::Ready,
        TaskState::Held,
        TaskState::Claimed,
        TaskState::Completed,
        TaskState::Dead,
        TaskState::Cancelled,
    ];

    /// The word for it, in stores and for people.
    pub fn as_str(self) -> &'static str {
        match self {
            TaskState::Waiting => "waiting",
            TaskState::Scheduled => "scheduled",
            TaskState::Ready => "ready",
            TaskState::Held => "held",
            TaskState::Claimed => "claimed",
            TaskState::Completed => "completed",
            TaskState::Dead => "dead",
            TaskState::Cancelled => "cancelled",
        }
    }

    /// The state for a word of [`as_str`](Self::as_str).
    pub fn from_word(word: &str) -> Option<TaskState> {
        TaskState::ALL.into_iter().find(|state| state.as_str() == word)
    }

    /// Whether nothing more will come of it by itself.
    pub fn is_final(self) -> bool {
        matches!(self, TaskState::Completed | TaskState::Dead | TaskState::Cancelled)
    }
}

/// A task as the store has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TaskView {
    /// Which.
    pub id: TaskId,
    /// Of which namespace.
    pub namespace: Name,
    /// In which queue.
    pub queue: Name,
    /// What is to be done.
    pub kind: String,
    /// Where it stands.
    pub state: TaskState,
    /// With what.
    pub payload: Json,
    /// What came of it.
    pub output: Option<Json>,
    /// Its priority.
    pub priority: i32,
    /// Tags that a worker must have.
    pub requires: Vec<String>,
    /// Tags that a worker had better have.
    pub prefers: Vec<String>,
    /// Workers that it is meant for.
    pub workers: Vec<String>,
    /// How many attempts were begun.
    pub attempt: u32,
    /// How many at most.
    pub max_attempts: u32,
    /// How long it waits after a failed one.
    pub backoff: Backoff,
    /// The token of the last claim.
    pub token: Token,
    /// Which claim of its queue that was, in exclusive mode: strict order is the order of turns.
    pub turn: Option<u64>,
    /// Who has it, or had it last.
    pub worker: Option<String>,
    /// On whose beat the claim lives.
    pub session: Option<SessionId>,
    /// How far the worker says it is.
    pub progress: Option<String>,
    /// What went wrong before, oldest first, the last ones only.
    pub failures: Vec<Failure>,
    /// Why it is dead or cancelled.
    pub reason: Option<String>,
    /// Its parents.
    pub parents: Vec<TaskId>,
    /// Tasks that wait for it, or did.
    pub children: Vec<TaskId>,
    /// Its idempotency key.
    pub key: Option<String>,
    /// Its concurrency key.
    pub concurrency_key: Option<String>,
    /// How many with that key may be claimed at once.
    pub concurrency_limit: u32,
    /// Under which token it was submitted, if it was by a leader.
    pub leader_token: Option<Token>,
    /// Its longest wait.
    pub max_wait_ms: Option<u64>,
    /// Its longest run.
    pub max_run_ms: Option<u64>,
    /// When it was submitted. This and all below: by the store's wall clock, in milliseconds since 1970.
    pub enqueued_at_ms: i64,
    /// Its place in the queue: `enqueued_at − priority · step`.
    pub effective_at_ms: i64,
    /// Not to be claimed before.
    pub run_at_ms: Option<i64>,
    /// When it could last be claimed for the first time in this attempt.
    pub ready_at_ms: Option<i64>,
    /// When it was last claimed.
    pub claimed_at_ms: Option<i64>,
    /// When the claim ends unless it is extended.
    pub deadline_ms: Option<i64>,
    /// When it was completed, given up or called off.
    pub finished_at_ms: Option<i64>,
}

impl TaskView {
    /// Whether this worker may ever claim the task: it knows the kind, has the tags, and is one of those it is meant for.
    pub fn suits(&self, worker: &Profile) -> bool {
        let knows = self.kind.is_empty() || worker.kinds.is_empty() || worker.kinds.contains(&self.kind);
        let has = self.requires.iter().all(|tag| worker.tags.contains(tag));
        let meant =
            self.workers.is_empty() || self.workers.iter().any(|name| name == "*" || *name == worker.name);
        knows && has && meant
    }
}

/// An attempt that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Failure {
    /// Which attempt.
    pub attempt: u32,
    /// When, by the store's wall clock.
    pub at_ms: i64,
    /// Whose.
    pub worker: String,
    /// What the worker said, or what became of it: `lost: its session ended`, `lost: its claim
    /// timed out`, `lost: run time is over`.
    pub error: String,
}

/// The most failures that are remembered of one task.
pub const FAILURES_KEPT: usize = 10;

/// A task as it is handed to a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ClaimedTask {
    /// Which.
    pub id: TaskId,
    /// The token to acknowledge it under.
    pub token: Token,
    /// Which queue.
    pub queue: Name,
    /// What is to be done.
    pub kind: String,
    /// With what.
    pub payload: Json,
    /// Its parents' outputs, by the parents' numbers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<TaskId, Json>,
    /// Which attempt this is, counted from 1.
    pub attempt: u32,
    /// How many at most.
    pub max_attempts: u32,
    /// How long to wait after a failed one.
    #[serde(default)]
    pub backoff: Backoff,
    /// Its priority.
    pub priority: i32,
    /// Its longest run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_run_ms: Option<u64>,
    /// When the claim ends unless it is extended, by the store's wall clock; for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<i64>,
    /// When it was submitted, by the store's wall clock; for people.
    pub enqueued_at_ms: i64,
    /// Which claim of its queue this is, in exclusive mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<u64>,
    /// Under which token it was submitted, if it was by a leader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_token: Option<Token>,
    /// What it is known by, if it is: of a schedule's task, its tick ([`tick_of`](crate::schedule::tick_of)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}
