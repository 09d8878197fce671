//! What an operator wants with tasks: to call them off, or to have them tried again.

use std::collections::BTreeSet;

use super::Ledger;
use super::task::Task;
use crate::Name;
use crate::port::{Order, TaskId, TaskState, Wake};

impl Ledger {
    /// See [`Desk::order`](crate::port::Desk::order).
    pub fn order(&mut self, namespace: &Name, tasks: &[TaskId], order: Order, now_ms: i64) -> Vec<TaskId> {
        let here = |id: &&TaskId| self.tasks.get(id).is_some_and(|it| it.queue.namespace == *namespace);
        let tasks: BTreeSet<TaskId> = tasks.iter().filter(here).copied().collect();
        let done = match order {
            Order::Cancel => tasks.into_iter().flat_map(|id| self.cancel(id, now_ms)).collect(),
            Order::Retry => self.retry_all(tasks, now_ms),
        };
        done.into_iter().collect()
    }

    fn cancel(&mut self, id: TaskId, now_ms: i64) -> BTreeSet<TaskId> {
        let Some(task) = self.tasks.get(&id).filter(|task| !task.state.is_final()) else {
            return BTreeSet::new();
        };
        if let Some(session) = task.session.clone().filter(|_| task.state == TaskState::Claimed) {
            self.wakes.push(Wake::Recalled(session));
        }
        let shared = self.doom(id, TaskState::Cancelled, "called off".into(), now_ms);
        shared.into_iter().chain([id]).collect()
    }

    /// In whatever order they are named: one that comes back may bring others within reach.
    fn retry_all(&mut self, mut tasks: BTreeSet<TaskId>, now_ms: i64) -> BTreeSet<TaskId> {
        let mut done = BTreeSet::new();
        loop {
            let now: Vec<TaskId> = tasks.iter().filter(|id| self.may_retry(id)).copied().collect();
            if now.is_empty() {
                return done;
            }
            for id in now {
                tasks.remove(&id);
                self.retry(id, now_ms, &mut done);
            }
        }
    }

    /// A task that is over may come back while none of its parents would keep it for ever; one that is scheduled need not wait.
    fn may_retry(&self, id: &TaskId) -> bool {
        let lost = |task: &Task| matches!(task.state, TaskState::Dead | TaskState::Cancelled);
        let Some(task) = self.tasks.get(id) else { return false };
        let hopeless = || task.parents.iter().filter_map(|id| self.tasks.get(id)).any(lost);
        task.state == TaskState::Scheduled || (lost(task) && !hopeless())
    }

    /// Brings a task back, and with it those that shared its fate.
    fn retry(&mut self, id: TaskId, now_ms: i64, done: &mut BTreeSet<TaskId>) {
        self.revive(id, now_ms, true);
        done.insert(id);
        let mut next = vec![id];
        while let Some(parent) = next.pop() {
            let children = self.tasks.get(&parent).map(|task| task.children.clone()).unwrap_or_default();
            for child in children {
                if self.tasks.get(&child).is_none_or(|task| task.fate != Some(parent)) {
                    continue;
                }
                if self.may_retry(&child) {
                    self.revive(child, now_ms, false);
                    done.insert(child);
                    next.push(child);
                } else {
                    self.share_another_fate(child);
                }
            }
        }
    }

    fn revive(&mut self, id: TaskId, now_ms: i64, at_once: bool) {
        let waits = self.tasks.get(&id).is_some_and(|task| !self.open_parents(task).is_empty());
        self.change(id, now_ms, |task| {
            (task.attempt, task.output, task.reason, task.fate) = (0, None, None, None);
            task.finished_at = None;
            if at_once {
                task.run_at = None;
            }
            task.state = if waits { TaskState::Waiting } else { task.released(now_ms) };
        });
    }

    /// The parent that it fell with is back, but there is another that keeps it down.
    fn share_another_fate(&mut self, id: TaskId) {
        let lost = |id: &TaskId| {
            let state = self.tasks.get(id)?.state;
            matches!(state, TaskState::Dead | TaskState::Cancelled).then_some((*id, state))
        };
        let other = self.tasks.get(&id).and_then(|task| task.parents.iter().find_map(lost));
        if let (Some(task), Some((other, state))) = (self.tasks.get_mut(&id), other) {
            task.fate = Some(other);
            task.reason = Some(shared_fate(other, state));
        }
    }
}

/// Why a task is over whose parent is.
pub(super) fn shared_fate(parent: TaskId, state: TaskState) -> String {
    format!("its parent {parent} is {}", state.as_str())
}
