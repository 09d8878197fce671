//! Operator actions on tasks: cancel and retry.

use std::collections::BTreeSet;

use super::Work;
use super::task::TaskRecord;
use crate::Name;
use crate::port::{Notification, TaskAction, TaskId, TaskState};

impl Work {
    /// See [`TaskAdmin::apply_task_action`](crate::port::TaskAdmin::apply_task_action).
    pub fn apply_task_action(
        &mut self,
        namespace: &Name,
        tasks: &[TaskId],
        order: TaskAction,
        now_ms: i64,
    ) -> Vec<TaskId> {
        let here = |id: &&TaskId| self.tasks.get(id).is_some_and(|it| it.queue.namespace == *namespace);
        let tasks: BTreeSet<TaskId> = tasks.iter().filter(here).copied().collect();
        let done = match order {
            TaskAction::Cancel => tasks.into_iter().flat_map(|id| self.cancel(id, now_ms)).collect(),
            TaskAction::Retry => self.retry_all(tasks, now_ms),
        };
        done.into_iter().collect()
    }

    fn cancel(&mut self, id: TaskId, now_ms: i64) -> BTreeSet<TaskId> {
        let Some(task) = self.tasks.get(&id).filter(|task| !task.state.is_final()) else {
            return BTreeSet::new();
        };
        if let Some(session) = task.session.clone().filter(|_| task.state == TaskState::Claimed) {
            self.notifications.push(Notification::ClaimCancelled(session));
        }
        let shared = self.end_with_dependents(id, TaskState::Cancelled, "cancelled".into(), now_ms);
        shared.into_iter().chain([id]).collect()
    }

    /// Retries tasks until no more can be retried. The order does not matter: a retried parent may make its children
    /// retriable.
    fn retry_all(&mut self, mut tasks: BTreeSet<TaskId>, now_ms: i64) -> BTreeSet<TaskId> {
        let mut done = BTreeSet::new();
        loop {
            let now: Vec<TaskId> = tasks.iter().filter(|id| self.can_retry(id)).copied().collect();
            if now.is_empty() {
                return done;
            }
            for id in now {
                tasks.remove(&id);
                self.retry(id, now_ms, &mut done);
            }
        }
    }

    /// Whether a task can be retried: it is dead or cancelled and none of its parents is, or it is scheduled and then
    /// becomes ready at once.
    fn can_retry(&self, id: &TaskId) -> bool {
        let lost = |task: &TaskRecord| matches!(task.state, TaskState::Dead | TaskState::Cancelled);
        let Some(task) = self.tasks.get(id) else { return false };
        let hopeless = || task.parents.iter().filter_map(|id| self.tasks.get(id)).any(lost);
        task.state == TaskState::Scheduled || (lost(task) && !hopeless())
    }

    /// Retries a task and the children that ended because of it.
    fn retry(&mut self, id: TaskId, now_ms: i64, done: &mut BTreeSet<TaskId>) {
        self.requeue(id, now_ms, true);
        done.insert(id);
        let mut next = vec![id];
        while let Some(parent) = next.pop() {
            let children = self.tasks.get(&parent).map(|task| task.children.clone()).unwrap_or_default();
            for child in children {
                if self.tasks.get(&child).is_none_or(|task| task.cascaded_from != Some(parent)) {
                    continue;
                }
                if self.can_retry(&child) {
                    self.requeue(child, now_ms, false);
                    done.insert(child);
                    next.push(child);
                } else {
                    self.set_other_cascade(child);
                }
            }
        }
    }

    fn requeue(&mut self, id: TaskId, now_ms: i64, at_once: bool) {
        let waits = self.tasks.get(&id).is_some_and(|task| !self.open_parents(task).is_empty());
        self.change(id, now_ms, |task| {
            (task.attempt, task.output, task.reason, task.cascaded_from) = (0, None, None, None);
            task.finished_at = None;
            if at_once {
                task.run_at = None;
            }
            task.state = if waits { TaskState::Waiting } else { task.released(now_ms) };
        });
    }

    /// Names another dead or cancelled parent as the cause, after the parent that ended this task was retried.
    fn set_other_cascade(&mut self, id: TaskId) {
        let lost = |id: &TaskId| {
            let state = self.tasks.get(id)?.state;
            matches!(state, TaskState::Dead | TaskState::Cancelled).then_some((*id, state))
        };
        let other = self.tasks.get(&id).and_then(|task| task.parents.iter().find_map(lost));
        if let (Some(task), Some((other, state))) = (self.tasks.get_mut(&id), other) {
            task.cascaded_from = Some(other);
            task.reason = Some(cascade_reason(other, state));
        }
    }
}

/// End reason of a task whose parent ended.
pub(super) fn cascade_reason(parent: TaskId, state: TaskState) -> String {
    format!("parent {parent} is {}", state.as_str())
}
