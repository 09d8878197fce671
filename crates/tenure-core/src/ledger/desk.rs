//! What people ask about tasks.

use super::task::Task;
use super::{Ledger, Witness};
use crate::Name;
use crate::claim::{Look, why};
use crate::port::{Finished, QueueKey, TaskFilter, TaskId, TaskState, TaskView, Why};

impl Ledger {
    /// See [`Desk::tasks`](crate::port::Desk::tasks).
    pub fn tasks(&self, filter: &TaskFilter) -> Vec<TaskView> {
        let wanted = |task: &&Task| {
            filter.namespace.as_ref().is_none_or(|namespace| task.queue.namespace == *namespace)
                && filter.queue.as_ref().is_none_or(|queue| task.queue.name == *queue)
                && (filter.states.is_empty() || filter.states.contains(&task.state))
                && filter.kind.as_ref().is_none_or(|kind| task.new.kind == *kind)
                && filter.worker.as_ref().is_none_or(|worker| task.worker.as_ref() == Some(worker))
        };
        let before = filter.before.unwrap_or(TaskId(u64::MAX));
        let newest_first = self.tasks.range(..before).rev().map(|(_, task)| task);
        newest_first.filter(wanted).take(filter.limit as usize).map(|task| self.view(task)).collect()
    }

    /// See [`Desk::task`](crate::port::Desk::task).
    pub fn task(&self, namespace: &Name, id: TaskId) -> Option<TaskView> {
        let task = self.tasks.get(&id).filter(|task| task.queue.namespace == *namespace)?;
        Some(self.view(task))
    }

    /// See [`Desk::finished`](crate::port::Desk::finished).
    pub fn finished(&self, key: &QueueKey, limit: u32) -> Vec<Finished> {
        let last = self.queues.get(key).into_iter().flat_map(|queue| queue.finished.iter().rev());
        let tasks = last.filter_map(|(_, id)| self.tasks.get(id));
        let counts = tasks.filter(|task| task.state != TaskState::Cancelled);
        counts.take(limit as usize).map(Task::finished).collect()
    }

    /// See [`Desk::why`](crate::port::Desk::why).
    pub fn why(&self, namespace: &Name, id: TaskId, witness: &dyn Witness, now_ms: i64) -> Option<Vec<Why>> {
        let task = self.tasks.get(&id).filter(|task| task.queue.namespace == *namespace)?;
        let queue = self.queues.get(&task.queue)?;
        let crowd = task.new.concurrency_key.clone().map(|key| (namespace.clone(), key));
        let ahead = queue.ready.values().map(|places| places.range(..task.place()).count() as u64).sum();
        let view = self.queue(&task.queue, now_ms)?;
        Some(why(&Look {
            task: &self.view(task),
            queue: &view,
            workers: &self.workers(Some(namespace), witness, now_ms),
            open_parents: &self.open_parents(task),
            ahead,
            key_claimed: crowd.and_then(|key| self.crowds.get(&key)).map_or(0, |crowd| crowd.claimed),
            rate_next_in_ms: queue.bucket(now_ms).and_then(|(rate, bucket)| bucket.next_in_ms(rate)),
            led: witness.leader().is_some(),
            now_ms,
        }))
    }
}
