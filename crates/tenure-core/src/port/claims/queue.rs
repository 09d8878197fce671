//! Queues and workers, as people set and see them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{QueueKey, TaskId, TaskState};
use crate::port::Pause;
use crate::{Name, SessionId};

/// How tasks of a queue, or resources of a pool, are handed out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Any process hands out directly. Order is approximate.
    #[default]
    Distributed,
    /// The leader alone hands out, in strict order.
    Exclusive,
}

impl Mode {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Distributed => "distributed",
            Mode::Exclusive => "exclusive",
        }
    }
}

/// What a process does in exclusive mode when it can not reach the leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Fallback {
    /// It says "not now": order is kept.
    #[default]
    None,
    /// It hands out directly: work goes on, order is approximate meanwhile.
    Distributed,
}

impl Fallback {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Fallback::None => "none",
            Fallback::Distributed => "distributed",
        }
    }
}

/// At most `count` claims begin in any `per_ms`, on average; as many at once after a rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RateLimit {
    /// How many.
    pub count: u32,
    /// In how long.
    pub per_ms: u64,
}

/// How a queue is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct QueueSettings {
    /// How its tasks are handed out.
    pub mode: Mode,
    /// What happens in exclusive mode when the leader can not be reached.
    pub fallback: Fallback,
    /// Whether a worker must be approved before it gets tasks.
    pub approval: bool,
    /// How fast claims may begin.
    pub rate: Option<RateLimit>,
    /// How many of its tasks may be claimed at once.
    pub max_claimed: Option<u32>,
    /// For how long a task that prefers some tags is offered only to workers that have one.
    pub prefer_ms: u64,
    /// For how long completed and cancelled tasks are remembered.
    pub keep_ms: u64,
    /// For how long dead tasks are remembered.
    pub keep_dead_ms: u64,
}

impl Default for QueueSettings {
    fn default() -> Self {
        const DAY_MS: u64 = 86_400_000;
        QueueSettings {
            mode: Mode::Distributed,
            fallback: Fallback::None,
            approval: false,
            rate: None,
            max_claimed: None,
            prefer_ms: 5_000,
            keep_ms: DAY_MS,
            keep_dead_ms: 30 * DAY_MS,
        }
    }
}

/// A queue as the store has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct QueueView {
    /// Which.
    #[serde(flatten)]
    pub key: QueueKey,
    /// How it is set.
    pub settings: QueueSettings,
    /// Set while nothing is handed out, the queue's own pause or its namespace's.
    pub paused: Option<Pause>,
    /// How many tasks stand where, those that are remembered included. States with none may be missing.
    pub counts: BTreeMap<TaskState, u64>,
    /// For how long the oldest ready task has been ready, in milliseconds.
    pub oldest_ready_ms: Option<u64>,
}

impl QueueView {
    /// How many tasks stand there.
    pub fn count(&self, state: TaskState) -> u64 {
        self.counts.get(&state).copied().unwrap_or(0)
    }
}

/// A worker that makes itself known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewWorker {
    /// Its name. Whoever comes by the same name later replaces it; claims hang on sessions, not on names.
    pub name: String,
    /// What sort of worker, for people.
    #[serde(default)]
    pub kind: String,
    /// What it has.
    #[serde(default)]
    pub tags: Vec<String>,
    /// The kinds of tasks that it knows. Empty: every kind.
    #[serde(default)]
    pub kinds: Vec<String>,
    /// The queues that it works on.
    #[serde(default)]
    pub queues: Vec<Name>,
    /// Where it is, for people.
    #[serde(default)]
    pub location: String,
    /// How many tasks it runs at once.
    #[serde(default)]
    pub capacity: u32,
    /// Its session, if it has one.
    #[serde(default)]
    pub session: Option<SessionId>,
}

/// A worker as the store has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WorkerView {
    /// Of which namespace.
    pub namespace: Name,
    /// What it said of itself.
    #[serde(flatten)]
    pub worker: NewWorker,
    /// Who approved it, if anybody did.
    pub approved_by: Option<String>,
    /// Whether its session lives; without a session, whether it was seen within the last minute.
    pub live: bool,
    /// When it was last seen (its session's beat, its last claim), by the store's wall clock, in milliseconds since 1970.
    pub seen_at_ms: i64,
    /// How many tasks it has now.
    pub claimed: u64,
}

/// Which tasks to show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskFilter {
    /// Of which namespace; `None`: of all.
    pub namespace: Option<Name>,
    /// Of which queue.
    pub queue: Option<Name>,
    /// In which states; empty: in any.
    pub states: Vec<TaskState>,
    /// Of which kind.
    pub kind: Option<String>,
    /// Of which worker.
    pub worker: Option<String>,
    /// Before this number, for the next page.
    pub before: Option<TaskId>,
    /// How many at most.
    pub limit: u32,
}

/// What an operator wants with tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Call it off, and with it all that wait for it. A worker that has it is told, and refused if it goes on.
    Cancel,
    /// Give it another attempt at once, with as many to follow as it had at first: a dead or cancelled one comes back (its
    /// children that shared its fate too), a scheduled one need not wait.
    Retry,
}

/// How long tasks of one kind wait and run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct KindStats {
    /// Which kind.
    pub kind: String,
    /// How many were completed, of the last ones that were looked at.
    pub completed: u64,
    /// How many are dead, likewise.
    pub dead: u64,
    /// From ready to claimed, in milliseconds.
    pub wait_ms: Spread,
    /// From claimed to finished, in milliseconds.
    pub run_ms: Spread,
}

/// How some durations are spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Spread {
    /// Half are at most this.
    pub p50: u64,
    /// 95 of 100.
    pub p95: u64,
    /// 99 of 100.
    pub p99: u64,
    /// All.
    pub max: u64,
}

/// A finished task, for [`KindStats`] and for throughput.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// Its kind.
    pub kind: String,
    /// Completed, or dead.
    pub completed: bool,
    /// When, by the store's wall clock, in milliseconds since 1970: how many there were in the last while is the throughput.
    pub at_ms: i64,
    /// From ready to claimed, in milliseconds.
    pub wait_ms: u64,
    /// From claimed to finished, in milliseconds.
    pub run_ms: u64,
}

/// A condition that keeps a task from being claimed. See [`why`](crate::claim::why).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", tag = "because")]
pub enum Why {
    /// It could be claimed right now: somebody will, or all fitting workers are busy.
    Claimable {
        /// How many live workers fit.
        workers: u64,
        /// How many tasks stand before it in the queue.
        ahead: u64,
    },
    /// It is not waiting: it is claimed, or finished.
    NotWaiting {
        /// Where it stands.
        state: TaskState,
    },
    /// The queue or its namespace is paused.
    Paused {
        /// By whom, when and why.
        pause: Pause,
    },
    /// Its time has not come.
    NotDue {
        /// When it will, in milliseconds since 1970.
        run_at_ms: i64,
    },
    /// It waits for these parents.
    Parents {
        /// Those that are not completed.
        tasks: Vec<TaskId>,
    },
    /// As many with its concurrency key are claimed as may be.
    Concurrency {
        /// The key.
        key: String,
        /// How many may be.
        limit: u32,
    },
    /// As many of the queue are claimed as may be.
    QueueLimit {
        /// How many may be.
        limit: u32,
    },
    /// The queue's rate is used up.
    Rate {
        /// When the next may begin, in milliseconds.
        next_in_ms: u64,
    },
    /// No live worker works on this queue.
    NoWorkers,
    /// Live workers there are, but none has these tags.
    NoWorkerWithTags {
        /// Those that no worker has; or, if each is to be had but not together, all that are required.
        tags: Vec<String>,
    },
    /// Live workers there are, but none knows this kind.
    NoWorkerForKind {
        /// The kind.
        kind: String,
    },
    /// It is meant for these, and none of them lives.
    NamedWorkersAway {
        /// Their names.
        workers: Vec<String>,
    },
    /// Fitting workers there are, but none is approved.
    NoApprovedWorker {
        /// Those that wait for approval.
        pending: Vec<String>,
    },
    /// The queue is exclusive, and nobody leads.
    NoLeader,
}
