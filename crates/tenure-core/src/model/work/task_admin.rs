//! Administrative operations on tasks.

use super::task::TaskRecord;
use super::{LeaseObservation, Work};
use crate::Name;
use crate::port::{FinishedTask, QueueKey, TaskFilter, TaskId, TaskState, TaskView, WaitReason};
use crate::rules::work::{WaitContext, wait_reasons};

impl Work {
    /// See [`TaskAdmin::tasks`](crate::port::TaskAdmin::tasks).
    pub fn tasks(&self, filter: &TaskFilter) -> Vec<TaskView> {
        let matches_filter = |task: &&TaskRecord| {
            filter.namespace.as_ref().is_none_or(|namespace| task.queue.namespace == *namespace)
                && filter.queue.as_ref().is_none_or(|queue| task.queue.name == *queue)
                && (filter.states.is_empty() || filter.states.contains(&task.state))
                && filter.kind.as_ref().is_none_or(|kind| task.new.kind == *kind)
                && filter.worker.as_ref().is_none_or(|worker| task.worker.as_ref() == Some(worker))
        };
        let before = filter.before.unwrap_or(TaskId(u64::MAX));
        let newest_first = self.tasks.range(..before).rev().map(|(_, task)| task);
        newest_first.filter(matches_filter).take(filter.limit as usize).map(|task| self.view(task)).collect()
    }

    /// See [`TaskAdmin::task`](crate::port::TaskAdmin::task).
    pub fn task(&self, namespace: &Name, id: TaskId) -> Option<TaskView> {
        let task = self.tasks.get(&id).filter(|task| task.queue.namespace == *namespace)?;
        Some(self.view(task))
    }

    /// See [`TaskAdmin::finished_tasks`](crate::port::TaskAdmin::finished_tasks).
    pub fn finished_tasks(&self, key: &QueueKey, limit: u32) -> Vec<FinishedTask> {
        let last = self.queues.get(key).into_iter().flat_map(|queue| queue.finished.iter().rev());
        let tasks = last.filter_map(|(_, id)| self.tasks.get(id));
        let counts = tasks.filter(|task| task.state != TaskState::Cancelled);
        counts.take(limit as usize).map(TaskRecord::finished).collect()
    }

    /// See [`TaskAdmin::wait_reasons`](crate::port::TaskAdmin::wait_reasons).
    pub fn wait_reasons(
        &self,
        namespace: &Name,
        id: TaskId,
        observation: &dyn LeaseObservation,
        now_ms: i64,
    ) -> Option<Vec<WaitReason>> {
        let task = self.tasks.get(&id).filter(|task| task.queue.namespace == *namespace)?;
        let queue = self.queues.get(&task.queue)?;
        let key_state = task.new.concurrency_key.clone().map(|key| (namespace.clone(), key));
        let ahead =
            queue.ready.values().map(|locations| locations.range(..task.place()).count() as u64).sum();
        let view = self.queue(&task.queue, now_ms)?;
        Some(wait_reasons(&WaitContext {
            task: &self.view(task),
            queue: &view,
            workers: &self.workers(Some(namespace), observation, now_ms),
            open_parents: &self.open_parents(task),
            ahead,
            key_claimed: key_state
                .and_then(|key| self.key_states.get(&key))
                .map_or(0, |key_state| key_state.claimed),
            rate_next_in_ms: queue.bucket(now_ms).and_then(|(rate, bucket)| bucket.next_in_ms(rate)),
            led: observation.leader().is_some(),
            now_ms,
        }))
    }
}
