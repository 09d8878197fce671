//! A task's row.

use std::sync::Arc;

use super::Ledger;
use crate::claim::{Demand, effective_at};
use crate::port::{
    ClaimedTask, FAILURES_KEPT, Failure, Finished, Json, NewTask, QueueKey, TaskId, TaskState, TaskView,
};
use crate::{SessionId, Token};

/// A task.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) id: TaskId,
    pub(super) queue: QueueKey,
    pub(super) demand: Arc<Demand>,
    /// As it was submitted, but for its parents.
    pub(super) new: NewTask,
    pub(super) state: TaskState,
    pub(super) output: Option<Json>,
    pub(super) attempt: u32,
    pub(super) token: Token,
    pub(super) turn: Option<u64>,
    pub(super) worker: Option<String>,
    pub(super) session: Option<SessionId>,
    pub(super) progress: Option<String>,
    pub(super) failures: Vec<Failure>,
    pub(super) reason: Option<String>,
    /// The parent whose fate it shares.
    pub(super) fate: Option<TaskId>,
    pub(super) parents: Vec<TaskId>,
    pub(super) children: Vec<TaskId>,
    pub(super) enqueued_at: i64,
    pub(super) effective_at: i64,
    pub(super) run_at: Option<i64>,
    pub(super) ready_at: Option<i64>,
    pub(super) claimed_at: Option<i64>,
    pub(super) deadline: Option<i64>,
    pub(super) finished_at: Option<i64>,
}

impl Task {
    /// A task that is submitted now, and waits.
    pub(super) fn submitted(
        id: TaskId,
        queue: QueueKey,
        new: NewTask,
        parents: Vec<TaskId>,
        now_ms: i64,
    ) -> Task {
        Task {
            id,
            queue,
            demand: Arc::new(Demand::of(&new)),
            state: TaskState::Waiting,
            output: None,
            attempt: 0,
            token: Token::ZERO,
            turn: None,
            worker: None,
            session: None,
            progress: None,
            failures: Vec::new(),
            reason: None,
            fate: None,
            parents,
            children: Vec::new(),
            enqueued_at: now_ms,
            effective_at: effective_at(now_ms, new.priority),
            run_at: new.run_at_ms,
            ready_at: None,
            claimed_at: None,
            deadline: None,
            finished_at: None,
            new,
        }
    }

    /// Its place among those that are ready.
    pub(super) fn place(&self) -> (i64, TaskId) {
        (self.effective_at, self.id)
    }

    /// Where it stands once nothing but time keeps it.
    pub(super) fn released(&self, now_ms: i64) -> TaskState {
        if self.run_at.is_some_and(|at| at > now_ms) { TaskState::Scheduled } else { TaskState::Ready }
    }

    /// When it will have waited for too long, if it waits for a worker.
    pub(super) fn gives_up_at(&self) -> Option<i64> {
        let waits = matches!(self.state, TaskState::Ready | TaskState::Held);
        let (since, most) = (self.ready_at.filter(|_| waits)?, self.new.max_wait_ms?);
        Some(since.saturating_add_unsigned(most))
    }

    /// When its claim will have lasted for as long as it may.
    pub(super) fn run_over_at(&self) -> Option<i64> {
        Some(self.claimed_at?.saturating_add_unsigned(self.new.max_run_ms?))
    }

    /// Notes that this attempt failed.
    pub(super) fn failed(&mut self, error: &str, now_ms: i64) {
        let (attempt, worker) = (self.attempt, self.worker.clone().unwrap_or_default());
        self.failures.push(Failure { attempt, at_ms: now_ms, worker, error: error.into() });
        let surplus = self.failures.len().saturating_sub(FAILURES_KEPT);
        self.failures.drain(..surplus);
    }

    /// The claim is over.
    pub(super) fn let_go(&mut self) {
        (self.session, self.deadline) = (None, None);
    }

    /// It is over, in this way.
    pub(super) fn finish(&mut self, state: TaskState, reason: Option<String>, now_ms: i64) {
        self.let_go();
        (self.state, self.reason, self.finished_at) = (state, reason, Some(now_ms));
    }

    /// As it counts for statistics.
    pub(super) fn finished(&self) -> Finished {
        let since = |from: Option<i64>, to: Option<i64>| match (from, to) {
            (Some(from), Some(to)) => u64::try_from(to - from).unwrap_or(0),
            _ => 0,
        };
        // One that nobody claimed has waited to its end.
        let claimed = self.claimed_at.filter(|claimed| self.ready_at.is_none_or(|ready| ready <= *claimed));
        Finished {
            kind: self.new.kind.clone(),
            completed: self.state == TaskState::Completed,
            at_ms: self.finished_at.unwrap_or_default(),
            wait_ms: since(self.ready_at, claimed.or(self.finished_at)),
            run_ms: since(claimed, self.finished_at),
        }
    }
}

impl Ledger {
    /// The parents of a task that are not completed. One that is forgotten was.
    pub(super) fn open_parents(&self, task: &Task) -> Vec<TaskId> {
        let open = |id: &&TaskId| self.tasks.get(id).is_some_and(|it| it.state != TaskState::Completed);
        task.parents.iter().filter(open).copied().collect()
    }

    /// How many bytes a worker gets with it.
    pub(super) fn weight(&self, task: &Task) -> usize {
        let input = |id: &TaskId| Some(self.tasks.get(id)?.output.as_ref()?.as_str().len());
        task.new.payload.as_str().len() + task.parents.iter().filter_map(input).sum::<usize>()
    }

    /// The task as it is handed to a worker.
    pub(super) fn handed(&self, task: &Task) -> ClaimedTask {
        let input = |id: &TaskId| Some((*id, self.tasks.get(id)?.output.clone()?));
        ClaimedTask {
            id: task.id,
            token: task.token,
            queue: task.queue.name.clone(),
            kind: task.new.kind.clone(),
            payload: task.new.payload.clone(),
            inputs: task.parents.iter().filter_map(input).collect(),
            attempt: task.attempt,
            max_attempts: task.new.max_attempts,
            backoff: task.new.backoff,
            priority: task.new.priority,
            max_run_ms: task.new.max_run_ms,
            deadline_ms: task.deadline,
            enqueued_at_ms: task.enqueued_at,
            turn: task.turn,
            leader_token: task.new.leader_token,
            key: task.new.key.clone(),
        }
    }

    /// The task as people see it.
    pub(super) fn view(&self, task: &Task) -> TaskView {
        let (new, demand) = (&task.new, &task.demand);
        TaskView {
            id: task.id,
            namespace: task.queue.namespace.clone(),
            queue: task.queue.name.clone(),
            kind: new.kind.clone(),
            state: task.state,
            payload: new.payload.clone(),
            output: task.output.clone(),
            priority: new.priority,
            requires: demand.requires.clone(),
            prefers: demand.prefers.clone(),
            workers: demand.workers.clone(),
            attempt: task.attempt,
            max_attempts: new.max_attempts,
            backoff: new.backoff,
            token: task.token,
            turn: task.turn,
            worker: task.worker.clone(),
            session: task.session.clone(),
            progress: task.progress.clone(),
            failures: task.failures.clone(),
            reason: task.reason.clone(),
            parents: task.parents.clone(),
            children: task.children.clone(),
            key: new.key.clone(),
            concurrency_key: new.concurrency_key.clone(),
            concurrency_limit: new.concurrency_limit,
            leader_token: new.leader_token,
            max_wait_ms: new.max_wait_ms,
            max_run_ms: new.max_run_ms,
            enqueued_at_ms: task.enqueued_at,
            effective_at_ms: task.effective_at,
            run_at_ms: task.run_at,
            ready_at_ms: task.ready_at,
            claimed_at_ms: task.claimed_at,
            deadline_ms: task.deadline,
            finished_at_ms: task.finished_at,
        }
    }
}
