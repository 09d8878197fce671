//! How a task's state changes: in one place, where the lists are kept and the bells are rung.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Ledger;
use super::order::shared_fate;
use super::queue::Places;
use super::task::Task;
use crate::Name;
use crate::claim::Demand;
use crate::port::{QueueKey, TaskId, TaskState};

/// Those with one concurrency key.
#[derive(Clone, Debug, Default)]
pub(super) struct Crowd {
    /// How many are claimed.
    pub(super) claimed: u64,
    /// Who is held back, by effective time.
    held: BTreeMap<(QueueKey, Arc<Demand>), Places>,
}

impl Ledger {
    /// Changes a task, whatever about it.
    pub(super) fn change(&mut self, id: TaskId, now_ms: i64, change: impl FnOnce(&mut Task)) {
        let Some(mut task) = self.tasks.remove(&id) else { return };
        let from = task.state;
        self.unlist(&task);
        change(&mut task);
        let to = task.state;
        // Who was held back could have been claimed all the time, but for the others.
        if to == TaskState::Ready && !matches!(from, TaskState::Ready | TaskState::Held) {
            let due = task.run_at.filter(|at| from == TaskState::Scheduled && *at <= now_ms);
            task.ready_at = Some(due.unwrap_or(now_ms));
        }
        self.list(&task);
        let (queue, key) = (task.queue.clone(), task.new.concurrency_key.clone());
        self.tasks.insert(id, task);
        self.resound(&queue, key, from, to, now_ms);
    }

    /// What a change of state means for others.
    fn resound(
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
        // Who waits for a full queue sleeps too.
        let limited = self.queues.get(queue).is_some_and(|it| it.settings.max_claimed.is_some());
        if to == TaskState::Ready || (from == TaskState::Claimed && limited) {
            self.ring(queue);
        }
        // One that was let in and then went elsewhere makes room as well as a claim that ends: or nobody would be let in again.
        let made_way = from == TaskState::Claimed
            || (from == TaskState::Ready && !matches!(to, TaskState::Claimed | TaskState::Held));
        if let Some(key) = key.filter(|_| made_way) {
            self.let_in(&queue.namespace, key, now_ms);
        }
    }

    /// Of those held back by this key, the first of each demand becomes ready: whoever comes first may have it.
    fn let_in(&mut self, namespace: &Name, key: String, now_ms: i64) {
        let Some(crowd) = self.crowds.get(&(namespace.clone(), key)) else { return };
        let firsts: Vec<TaskId> =
            crowd.held.values().filter_map(|places| places.first()).map(|(_, id)| *id).collect();
        for id in firsts {
            self.change(id, now_ms, |task| task.state = TaskState::Ready);
        }
    }

    /// Whether as many with this task's concurrency key are claimed as may be.
    pub(super) fn is_crowded(&self, task: &Task) -> bool {
        let Some(key) = &task.new.concurrency_key else { return false };
        let crowd = self.crowds.get(&(task.queue.namespace.clone(), key.clone()));
        crowd.is_some_and(|crowd| crowd.claimed >= u64::from(task.new.concurrency_limit))
    }

    /// Puts a task on the lists where it belongs.
    pub(super) fn list(&mut self, task: &Task) {
        self.queues.entry(task.queue.clone()).or_default().list(task);
        if task.state == TaskState::Claimed {
            self.claimed.insert(task.id);
        }
        let Some(key) = &task.new.concurrency_key else { return };
        let key = (task.queue.namespace.clone(), key.clone());
        match task.state {
            TaskState::Claimed => self.crowds.entry(key).or_default().claimed += 1,
            TaskState::Held => {
                let held = &mut self.crowds.entry(key).or_default().held;
                held.entry((task.queue.clone(), task.demand.clone())).or_default().insert(task.place());
            }
            _ => {}
        }
    }

    /// Takes a task off the lists.
    pub(super) fn unlist(&mut self, task: &Task) {
        if let Some(queue) = self.queues.get_mut(&task.queue) {
            queue.unlist(task);
        }
        if task.state == TaskState::Claimed {
            self.claimed.remove(&task.id);
        }
        let Some(key) = &task.new.concurrency_key else { return };
        let key = (task.queue.namespace.clone(), key.clone());
        let Some(crowd) = self.crowds.get_mut(&key) else { return };
        match task.state {
            TaskState::Claimed => crowd.claimed -= 1,
            TaskState::Held => {
                let of = (task.queue.clone(), task.demand.clone());
                if let Some(places) = crowd.held.get_mut(&of) {
                    places.remove(&task.place());
                    if places.is_empty() {
                        crowd.held.remove(&of);
                    }
                }
            }
            _ => {}
        }
        if crowd.claimed == 0 && crowd.held.is_empty() {
            self.crowds.remove(&key);
        }
    }

    /// Ends a task as dead or cancelled, and with it all that wait for it. Those that shared its fate.
    pub(super) fn doom(&mut self, id: TaskId, state: TaskState, reason: String, now_ms: i64) -> Vec<TaskId> {
        self.change(id, now_ms, |task| task.finish(state, Some(reason), now_ms));
        let (mut shared, mut next) = (Vec::new(), vec![id]);
        while let Some(parent) = next.pop() {
            let children = self.tasks.get(&parent).map(|task| task.children.clone()).unwrap_or_default();
            for child in children {
                if self.tasks.get(&child).is_none_or(|task| task.state.is_final()) {
                    continue;
                }
                let reason = shared_fate(parent, state);
                self.change(child, now_ms, |task| {
                    task.finish(state, Some(reason), now_ms);
                    task.fate = Some(parent);
                });
                shared.push(child);
                next.push(child);
            }
        }
        shared
    }
}
