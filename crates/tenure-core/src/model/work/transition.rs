//! State transitions of tasks. Every transition updates the indexes and notifies waiters.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Work;
use super::queue::TaskOrder;
use super::task::TaskRecord;
use super::task_action::cascade_reason;
use crate::Name;
use crate::port::{QueueKey, TaskId, TaskState};
use crate::rules::work::Requirements;

/// Claimed and blocked tasks of one concurrency key.
#[derive(Clone, Debug, Default)]
pub(super) struct ConcurrencyKeyState {
    /// Number of claimed tasks.
    pub(super) claimed: u64,
    /// Blocked tasks, ordered by effective time.
    held: BTreeMap<(QueueKey, Arc<Requirements>), TaskOrder>,
}

impl Work {
    /// Applies a change to a task.
    pub(super) fn change(&mut self, id: TaskId, now_ms: i64, change: impl FnOnce(&mut TaskRecord)) {
        let Some(mut task) = self.tasks.remove(&id) else { return };
        let from = task.state;
        self.unlist(&task);
        change(&mut task);
        let to = task.state;
        // A blocked task keeps its ready time, because without the limit it would have been claimable all the time.
        if to == TaskState::Ready && !matches!(from, TaskState::Ready | TaskState::Blocked) {
            let due = task.run_at.filter(|at| from == TaskState::Scheduled && *at <= now_ms);
            task.ready_at = Some(due.unwrap_or(now_ms));
        }
        self.list(&task);
        let (queue, key) = (task.queue.clone(), task.new.concurrency_key.clone());
        self.tasks.insert(id, task);
        self.after_transition(&queue, key, from, to, now_ms);
    }

    /// Updates other tasks and notifies waiters after a change of state.
    fn after_transition(
        &mut self,
        queue: &QueueKey,
        key: Option<String>,
        from: TaskState,
        to: TaskState,
        now_ms: i64,
    ) {
        if from == to {
            return;
        }
        // Workers may also wait for a queue whose limit of claimed tasks was reached.
        let limited = self.queues.get(queue).is_some_and(|it| it.settings.max_claimed.is_some());
        if to == TaskState::Ready || (from == TaskState::Claimed && limited) {
            self.notify_queue(queue);
        }
        // Unblock the next task when a claim ends. Also do so when an unblocked task leaves the ready state without a
        // claim, because otherwise the blocked tasks behind it would wait forever.
        let made_way = from == TaskState::Claimed
            || (from == TaskState::Ready && !matches!(to, TaskState::Claimed | TaskState::Blocked));
        if let Some(key) = key.filter(|_| made_way) {
            self.unblock_first(&queue.namespace, key, now_ms);
        }
    }

    /// Makes the first blocked task of each distinct requirements with this key ready. The first worker to claim one of
    /// them gets it; the next claims block the others again.
    fn unblock_first(&mut self, namespace: &Name, key: String, now_ms: i64) {
        let Some(key_state) = self.key_states.get(&(namespace.clone(), key)) else { return };
        let firsts: Vec<TaskId> =
            key_state.held.values().filter_map(|locations| locations.first()).map(|(_, id)| *id).collect();
        for id in firsts {
            self.change(id, now_ms, |task| task.state = TaskState::Ready);
        }
    }

    /// Whether the limit of this task's concurrency key is reached.
    pub(super) fn is_at_key_limit(&self, task: &TaskRecord) -> bool {
        let Some(key) = &task.new.concurrency_key else { return false };
        let key_state = self.key_states.get(&(task.queue.namespace.clone(), key.clone()));
        key_state.is_some_and(|key_state| key_state.claimed >= u64::from(task.new.concurrency_limit))
    }

    /// Adds a task to the indexes.
    pub(super) fn list(&mut self, task: &TaskRecord) {
        self.queues.entry(task.queue.clone()).or_default().list(task);
        if task.state == TaskState::Claimed {
            self.claimed.insert(task.id);
        }
        let Some(key) = &task.new.concurrency_key else { return };
        let key = (task.queue.namespace.clone(), key.clone());
        match task.state {
            TaskState::Claimed => self.key_states.entry(key).or_default().claimed += 1,
            TaskState::Blocked => {
                let held = &mut self.key_states.entry(key).or_default().held;
                held.entry((task.queue.clone(), task.requirements.clone())).or_default().insert(task.place());
            }
            _ => {}
        }
    }

    /// Removes a task from the indexes.
    pub(super) fn unlist(&mut self, task: &TaskRecord) {
        if let Some(queue) = self.queues.get_mut(&task.queue) {
            queue.unlist(task);
        }
        if task.state == TaskState::Claimed {
            self.claimed.remove(&task.id);
        }
        let Some(key) = &task.new.concurrency_key else { return };
        let key = (task.queue.namespace.clone(), key.clone());
        let Some(key_state) = self.key_states.get_mut(&key) else { return };
        match task.state {
            TaskState::Claimed => key_state.claimed -= 1,
            TaskState::Blocked => {
                let of = (task.queue.clone(), task.requirements.clone());
                if let Some(locations) = key_state.held.get_mut(&of) {
                    locations.remove(&task.place());
                    if locations.is_empty() {
                        key_state.held.remove(&of);
                    }
                }
            }
            _ => {}
        }
        if key_state.claimed == 0 && key_state.held.is_empty() {
            self.key_states.remove(&key);
        }
    }

    /// Ends a task as dead or cancelled, and with it all tasks that depend on it. Returns those dependents.
    pub(super) fn end_with_dependents(
        &mut self,
        id: TaskId,
        state: TaskState,
        reason: String,
        now_ms: i64,
    ) -> Vec<TaskId> {
        self.change(id, now_ms, |task| task.finish(state, Some(reason), now_ms));
        let (mut shared, mut next) = (Vec::new(), vec![id]);
        while let Some(parent) = next.pop() {
            let children = self.tasks.get(&parent).map(|task| task.children.clone()).unwrap_or_default();
            for child in children {
                if self.tasks.get(&child).is_none_or(|task| task.state.is_final()) {
                    continue;
                }
                let reason = cascade_reason(parent, state);
                self.change(child, now_ms, |task| {
                    task.finish(state, Some(reason), now_ms);
                    task.cascaded_from = Some(parent);
                });
                shared.push(child);
                next.push(child);
            }
        }
        shared
    }
}
