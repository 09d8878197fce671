//! Reasons why a task is not claimed.

use crate::port::{
    AssignmentMode, BrokerFallback, QueueView, TaskId, TaskState, TaskView, WaitReason, WorkerProfile,
    WorkerView,
};

/// What a store knows about a pending task.
#[derive(Clone, Copy, Debug)]
pub struct WaitContext<'a> {
    /// The task.
    pub task: &'a TaskView,
    /// Its queue.
    pub queue: &'a QueueView,
    /// Workers of its namespace.
    pub workers: &'a [WorkerView],
    /// Parents that are not completed.
    pub open_parents: &'a [TaskId],
    /// Number of ready tasks before it in the queue.
    pub ahead: u64,
    /// Number of claimed tasks with its concurrency key.
    pub key_claimed: u64,
    /// Time until the rate limit of the queue allows the next claim, if not now.
    pub rate_next_in_ms: Option<u64>,
    /// Whether a broker is elected.
    pub led: bool,
    /// The store's wall clock.
    pub now_ms: i64,
}

/// All reasons why the task is not claimed. Reasons that need an action come first, then those that pass by themselves.
/// The list is never empty.
pub fn wait_reasons(context: &WaitContext<'_>) -> Vec<WaitReason> {
    let state = context.task.state;
    if state.is_final() || state == TaskState::Claimed {
        return vec![WaitReason::NotPending { state }];
    }
    let mut reasons: Vec<WaitReason> =
        context.queue.paused.iter().map(|it| WaitReason::Paused { pause: it.clone() }).collect();
    if state == TaskState::Waiting {
        reasons.push(WaitReason::PendingParents { tasks: context.open_parents.to_vec() });
    }
    if let Some(run_at_ms) = context.task.run_at_ms.filter(|at| *at > context.now_ms) {
        reasons.push(WaitReason::NotDue { run_at_ms });
    }
    let settings = &context.queue.settings;
    if settings.mode == AssignmentMode::Exclusive && settings.fallback == BrokerFallback::None && !context.led
    {
        reasons.push(WaitReason::NoBroker);
    }
    let (workers, reason) = fitting(context);
    reasons.extend(reason);
    reasons.extend(limits(context));
    if reasons.is_empty() {
        reasons.push(WaitReason::Claimable { matching_workers: workers, tasks_ahead: context.ahead });
    }
    reasons
}

/// Number of matching online workers, or the reason why none matches.
fn fitting(context: &WaitContext<'_>) -> (u64, Option<WaitReason>) {
    let task = context.task;
    let here = |it: &&WorkerView| {
        it.online && (it.worker.queues.is_empty() || it.worker.queues.contains(&task.queue))
    };
    let mut workers: Vec<&WorkerView> = context.workers.iter().filter(here).collect();
    if workers.is_empty() {
        return (0, Some(WaitReason::NoWorkers));
    }
    let any_worker = task.allowed_workers.is_empty() || task.allowed_workers.iter().any(|name| name == "*");
    workers.retain(|it| any_worker || task.allowed_workers.contains(&it.worker.name));
    if workers.is_empty() {
        return (
            0,
            Some(WaitReason::AllowedWorkersOffline { matching_workers: task.allowed_workers.clone() }),
        );
    }
    workers.retain(|it| {
        let kinds = &it.worker.task_kinds;
        task.kind.is_empty() || kinds.is_empty() || kinds.contains(&task.kind)
    });
    if workers.is_empty() {
        return (0, Some(WaitReason::NoWorkerForKind { kind: task.kind.clone() }));
    }
    let is_missing = |tag: &&String| !workers.iter().any(|it| it.worker.tags.contains(tag));
    let missing: Vec<String> = task.required_tags.iter().filter(is_missing).cloned().collect();
    workers.retain(|it| task.required_tags.iter().all(|tag| it.worker.tags.contains(tag)));
    if workers.is_empty() {
        let tags = if missing.is_empty() { task.required_tags.clone() } else { missing };
        return (0, Some(WaitReason::NoWorkerWithTags { tags }));
    }
    if context.queue.settings.require_approval && !workers.iter().any(|it| it.approved_by.is_some()) {
        let pending = workers.iter().map(|it| it.worker.name.clone()).collect();
        return (0, Some(WaitReason::NoApprovedWorker { unapproved_workers: pending }));
    }
    (workers.len() as u64, None)
}

/// Limits that end without an action, when claims end or time passes.
fn limits(context: &WaitContext<'_>) -> Vec<WaitReason> {
    let (task, queue) = (context.task, context.queue);
    let mut reasons = Vec::new();
    if let Some(key) = &task.concurrency_key {
        let limit = task.concurrency_limit;
        if context.key_claimed >= u64::from(limit) || task.state == TaskState::Blocked {
            reasons.push(WaitReason::ConcurrencyLimit { key: key.clone(), limit });
        }
    }
    let full = |limit: &u32| queue.count(TaskState::Claimed) >= u64::from(*limit);
    reasons.extend(queue.settings.max_claimed.filter(full).map(|limit| WaitReason::QueueLimit { limit }));
    reasons.extend(context.rate_next_in_ms.map(|next_in_ms| WaitReason::RateLimit { next_in_ms }));
    reasons
}

impl From<&WorkerView> for WorkerProfile {
    /// The properties of the worker that are matched.
    fn from(view: &WorkerView) -> WorkerProfile {
        let worker = &view.worker;
        WorkerProfile {
            name: worker.name.clone(),
            task_kinds: worker.task_kinds.clone(),
            tags: worker.tags.clone(),
        }
    }
}

#[cfg(test)]
#[path = "why_tests.rs"]
mod tests;
