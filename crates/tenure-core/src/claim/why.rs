//! What keeps a task from being claimed.

use crate::port::{Fallback, Mode, Profile, QueueView, TaskId, TaskState, TaskView, Why, WorkerView};

/// What a store knows about a task that might wait.
#[derive(Clone, Copy, Debug)]
pub struct Look<'a> {
    /// The task.
    pub task: &'a TaskView,
    /// Its queue.
    pub queue: &'a QueueView,
    /// The workers of its namespace.
    pub workers: &'a [WorkerView],
    /// Its parents that are not completed.
    pub open_parents: &'a [TaskId],
    /// How many ready tasks of the queue stand before it.
    pub ahead: u64,
    /// How many with its concurrency key are claimed.
    pub key_claimed: u64,
    /// In how long the queue's rate lets the next claim begin, if not now.
    pub rate_next_in_ms: Option<u64>,
    /// Whether somebody leads the claims' election.
    pub led: bool,
    /// The store's wall clock.
    pub now_ms: i64,
}

/// Everything that keeps the task from being claimed, what must change first before what passes by itself. Never empty.
pub fn why(look: &Look<'_>) -> Vec<Why> {
    let state = look.task.state;
    if state.is_final() || state == TaskState::Claimed {
        return vec![Why::NotWaiting { state }];
    }
    let mut reasons: Vec<Why> =
        look.queue.paused.iter().map(|it| Why::Paused { pause: it.clone() }).collect();
    if state == TaskState::Waiting {
        reasons.push(Why::Parents { tasks: look.open_parents.to_vec() });
    }
    if let Some(run_at_ms) = look.task.run_at_ms.filter(|at| *at > look.now_ms) {
        reasons.push(Why::NotDue { run_at_ms });
    }
    let settings = &look.queue.settings;
    if settings.mode == Mode::Exclusive && settings.fallback == Fallback::None && !look.led {
        reasons.push(Why::NoLeader);
    }
    let (workers, trouble) = fitting(look);
    reasons.extend(trouble);
    reasons.extend(limits(look));
    if reasons.is_empty() {
        reasons.push(Why::Claimable { workers, ahead: look.ahead });
    }
    reasons
}

/// How many live workers fit; or why none does.
fn fitting(look: &Look<'_>) -> (u64, Option<Why>) {
    let task = look.task;
    let here =
        |it: &&WorkerView| it.live && (it.worker.queues.is_empty() || it.worker.queues.contains(&task.queue));
    let mut workers: Vec<&WorkerView> = look.workers.iter().filter(here).collect();
    if workers.is_empty() {
        return (0, Some(Why::NoWorkers));
    }
    let anybody = task.workers.is_empty() || task.workers.iter().any(|name| name == "*");
    workers.retain(|it| anybody || task.workers.contains(&it.worker.name));
    if workers.is_empty() {
        return (0, Some(Why::NamedWorkersAway { workers: task.workers.clone() }));
    }
    workers.retain(|it| {
        let kinds = &it.worker.kinds;
        task.kind.is_empty() || kinds.is_empty() || kinds.contains(&task.kind)
    });
    if workers.is_empty() {
        return (0, Some(Why::NoWorkerForKind { kind: task.kind.clone() }));
    }
    let nobody_has = |tag: &&String| !workers.iter().any(|it| it.worker.tags.contains(tag));
    let missing: Vec<String> = task.requires.iter().filter(nobody_has).cloned().collect();
    workers.retain(|it| task.requires.iter().all(|tag| it.worker.tags.contains(tag)));
    if workers.is_empty() {
        let tags = if missing.is_empty() { task.requires.clone() } else { missing };
        return (0, Some(Why::NoWorkerWithTags { tags }));
    }
    if look.queue.settings.approval && !workers.iter().any(|it| it.approved_by.is_some()) {
        let pending = workers.iter().map(|it| it.worker.name.clone()).collect();
        return (0, Some(Why::NoApprovedWorker { pending }));
    }
    (workers.len() as u64, None)
}

/// What passes by itself, as claims end and time goes by.
fn limits(look: &Look<'_>) -> Vec<Why> {
    let (task, queue) = (look.task, look.queue);
    let mut reasons = Vec::new();
    if let Some(key) = &task.concurrency_key {
        let limit = task.concurrency_limit;
        if look.key_claimed >= u64::from(limit) || task.state == TaskState::Held {
            reasons.push(Why::Concurrency { key: key.clone(), limit });
        }
    }
    let full = |limit: &u32| queue.count(TaskState::Claimed) >= u64::from(*limit);
    reasons.extend(queue.settings.max_claimed.filter(full).map(|limit| Why::QueueLimit { limit }));
    reasons.extend(look.rate_next_in_ms.map(|next_in_ms| Why::Rate { next_in_ms }));
    reasons
}

impl From<&WorkerView> for Profile {
    /// The worker, as far as matching goes.
    fn from(view: &WorkerView) -> Profile {
        let worker = &view.worker;
        Profile { name: worker.name.clone(), kinds: worker.kinds.clone(), tags: worker.tags.clone() }
    }
}

#[cfg(test)]
#[path = "why_tests.rs"]
mod tests;
