//! Roles of the processes, and the tasks they process.

use serde::{Deserialize, Serialize};
use tenure::port::{Backoff, NewTask, ParentRef, RawJson};
use tenure_core::{Entropy, SplitMix};

use crate::process;

/// The queue whose order is checked: plain tasks of different priority, in a mode that changes.
pub(crate) const ORDERS: &str = "orders";
/// The queue with all other tasks: graphs, concurrency keys, tags, failures.
pub(crate) const MIXED: &str = "mixed";

/// Role of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    Submits,
    Works,
}

impl process::Role for Role {
    const ARGUMENT: &'static str = "queues-process";
}

/// Instructions of a process.
pub(crate) type Plan = process::Plan<Role>;

/// Payload of a task: instructions for its handler.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TaskScript {
    pub(crate) behaviour: TaskBehaviour,
    pub(crate) duration_ms: u64,
    /// Concurrency key.
    pub(crate) key: Option<String>,
    /// Number of parent results that it needs.
    pub(crate) parent_count: usize,
}

/// Outcome of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TaskBehaviour {
    /// It succeeds.
    Succeed,
    /// It fails every time and is dead at the end.
    Fail,
    /// It panics at the first attempt.
    Panic,
}

/// Result of a task: the token under which it ran.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TaskResult {
    pub(crate) token: u64,
}

/// Tasks to submit together to [`ORDERS`].
pub(crate) fn orders(entropy: &mut SplitMix) -> Vec<NewTask> {
    let count = 1 + entropy.next_u64() % 12;
    (0..count)
        .map(|_| {
            let priority = i32::try_from(entropy.next_u64() % 7).unwrap_or(0) - 3;
            NewTask { priority, ..task(TaskBehaviour::Succeed, entropy.next_u64() % 12, None, &[]) }
        })
        .collect()
}

/// Tasks to submit together to [`MIXED`].
pub(crate) fn mixed(entropy: &mut SplitMix) -> Vec<NewTask> {
    let duration_ms = entropy.next_u64() % 30;
    match entropy.next_u64() % 10 {
        // Two roots, two in the middle, one at the end.
        0 => vec![
            task(TaskBehaviour::Succeed, duration_ms, None, &[1, 2]),
            task(TaskBehaviour::Succeed, duration_ms, None, &[3]),
            task(TaskBehaviour::Succeed, duration_ms, None, &[3, 4]),
            task(TaskBehaviour::Succeed, duration_ms, None, &[]),
            task(TaskBehaviour::Succeed, 5, None, &[]),
        ],
        // A graph whose root fails.
        1 => vec![
            task(TaskBehaviour::Fail, 5, None, &[]),
            task(TaskBehaviour::Succeed, duration_ms, None, &[0]),
        ],
        2 => vec![task(TaskBehaviour::Panic, duration_ms, None, &[])],
        3 => vec![task(TaskBehaviour::Succeed, 400 + duration_ms * 20, None, &[])],
        4..6 => {
            let key = format!("key-{}", entropy.next_u64() % 12);
            vec![
                task(TaskBehaviour::Succeed, duration_ms, Some(&key), &[]),
                task(TaskBehaviour::Succeed, duration_ms, Some(&key), &[]),
            ]
        }
        6 => vec![NewTask {
            required_tags: vec!["even".into()],
            ..task(TaskBehaviour::Succeed, duration_ms, None, &[])
        }],
        7 => {
            let run_at_ms = tenure::runtime::wall_ms() + 300;
            vec![NewTask {
                run_at_ms: Some(run_at_ms),
                ..task(TaskBehaviour::Succeed, duration_ms, None, &[])
            }]
        }
        _ => vec![task(TaskBehaviour::Succeed, duration_ms, None, &[])],
    }
}

fn task(behaviour: TaskBehaviour, duration_ms: u64, key: Option<&str>, parents: &[u32]) -> NewTask {
    let script =
        TaskScript { behaviour, duration_ms, key: key.map(str::to_owned), parent_count: parents.len() };
    NewTask {
        payload: RawJson::of(&script).unwrap_or_default(),
        max_attempts: if behaviour == TaskBehaviour::Fail { 2 } else { 20 },
        backoff: Backoff { initial_ms: 20, max_ms: 200 },
        parents: parents.iter().copied().map(ParentRef::Index).collect(),
        concurrency_key: key.map(str::to_owned),
        concurrency_limit: 1,
        ..NewTask::default()
    }
}
