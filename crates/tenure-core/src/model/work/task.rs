//! Tasks as the model keeps them.

use std::sync::Arc;

use super::Work;
use crate::port::{
    AttemptFailure, ClaimedTask, FAILURES_MAX, FinishedTask, NewTask, QueueKey, RawJson, TaskId, TaskState,
    TaskView,
};
use crate::rules::work::{Requirements, effective_at};
use crate::{SessionId, Token};

/// A task.
#[derive(Clone, Debug)]
pub(super) struct TaskRecord {
    pub(super) id: TaskId,
    pub(super) queue: QueueKey,
    pub(super) requirements: Arc<Requirements>,
    /// The task as submitted, without its parents.
    pub(super) new: NewTask,
    pub(super) state: TaskState,
    pub(super) output: Option<RawJson>,
    pub(super) attempt: u32,
    pub(super) token: Token,
    pub(super) claim_seq: Option<u64>,
    pub(super) worker: Option<String>,
    pub(super) session: Option<SessionId>,
    pub(super) progress: Option<String>,
    pub(super) failures: Vec<AttemptFailure>,
    pub(super) reason: Option<String>,
    /// Parent whose end ended this task.
    pub(super) cascaded_from: Option<TaskId>,
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

impl TaskRecord {
    /// A newly submitted task in the waiting state.
    pub(super) fn submitted(
        id: TaskId,
        queue: QueueKey,
        new: NewTask,
        parents: Vec<TaskId>,
        now_ms: i64,
    ) -> TaskRecord {
        TaskRecord {
            id,
            queue,
            requirements: Arc::new(Requirements::of(&new)),
            state: TaskState::Waiting,
            output: None,
            attempt: 0,
            token: Token::ZERO,
            claim_seq: None,
            worker: None,
            session: None,
            progress: None,
            failures: Vec::new(),
            reason: None,
            cascaded_from: None,
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

    /// Position among ready tasks.
    pub(super) fn place(&self) -> (i64, TaskId) {
        (self.effective_at, self.id)
    }

    /// The state once all parents are completed.
    pub(super) fn released(&self, now_ms: i64) -> TaskState {
        if self.run_at.is_some_and(|at| at > now_ms) { TaskState::Scheduled } else { TaskState::Ready }
    }

    /// When the maximum wait of the task ends, if it waits for a worker.
    pub(super) fn gives_up_at(&self) -> Option<i64> {
        let waits = matches!(self.state, TaskState::Ready | TaskState::Blocked);
        let (since, most) = (self.ready_at.filter(|_| waits)?, self.new.max_wait_ms?);
        Some(since.saturating_add_unsigned(most))
    }

    /// When the maximum run time of the current attempt ends.
    pub(super) fn run_over_at(&self) -> Option<i64> {
        Some(self.claimed_at?.saturating_add_unsigned(self.new.max_run_ms?))
    }

    /// Records a failed attempt.
    pub(super) fn failed(&mut self, error: &str, now_ms: i64) {
        let (attempt, worker) = (self.attempt, self.worker.clone().unwrap_or_default());
        self.failures.push(AttemptFailure { attempt, failed_at_ms: now_ms, worker, error: error.into() });
        let surplus = self.failures.len().saturating_sub(FAILURES_MAX);
        self.failures.drain(..surplus);
    }

    /// Ends the claim.
    pub(super) fn let_go(&mut self) {
        (self.session, self.deadline) = (None, None);
    }

    /// Moves the task to a final state.
    pub(super) fn finish(&mut self, state: TaskState, reason: Option<String>, now_ms: i64) {
        self.let_go();
        (self.state, self.reason, self.finished_at) = (state, reason, Some(now_ms));
    }

    /// The task as a sample for statistics.
    pub(super) fn finished(&self) -> FinishedTask {
        let since = |from: Option<i64>, to: Option<i64>| match (from, to) {
            (Some(from), Some(to)) => u64::try_from(to - from).unwrap_or(0),
            _ => 0,
        };
        // A task that was not claimed waited until its end.
        let claimed = self.claimed_at.filter(|claimed| self.ready_at.is_none_or(|ready| ready <= *claimed));
        FinishedTask {
            kind: self.new.kind.clone(),
            completed: self.state == TaskState::Completed,
            finished_at_ms: self.finished_at.unwrap_or_default(),
            wait_ms: since(self.ready_at, claimed.or(self.finished_at)),
            run_ms: since(claimed, self.finished_at),
        }
    }
}

impl Work {
    /// The parents of a task that are not completed. A pruned parent was completed.
    pub(super) fn open_parents(&self, task: &TaskRecord) -> Vec<TaskId> {
        let open = |id: &&TaskId| self.tasks.get(id).is_some_and(|it| it.state != TaskState::Completed);
        task.parents.iter().filter(open).copied().collect()
    }

    /// Bytes that a worker receives with the task.
    pub(super) fn weight(&self, task: &TaskRecord) -> usize {
        let input = |id: &TaskId| Some(self.tasks.get(id)?.output.as_ref()?.as_str().len());
        task.new.payload.as_str().len() + task.parents.iter().filter_map(input).sum::<usize>()
    }

    /// The task as returned to the worker that claimed it.
    pub(super) fn handed(&self, task: &TaskRecord) -> ClaimedTask {
        let input = |id: &TaskId| Some((*id, self.tasks.get(id)?.output.clone()?));
        ClaimedTask {
            id: task.id,
            token: task.token,
            queue: task.queue.name.clone(),
            kind: task.new.kind.clone(),
            payload: task.new.payload.clone(),
            parent_results: task.parents.iter().filter_map(input).collect(),
            attempt: task.attempt,
            max_attempts: task.new.max_attempts,
            backoff: task.new.backoff,
            priority: task.new.priority,
            max_run_ms: task.new.max_run_ms,
            claim_expires_at_ms: task.deadline,
            submitted_at_ms: task.enqueued_at,
            claim_seq: task.claim_seq,
            leader_token: task.new.leader_token,
            idempotency_key: task.new.idempotency_key.clone(),
        }
    }

    /// The task for display.
    pub(super) fn view(&self, task: &TaskRecord) -> TaskView {
        let (new, requirements) = (&task.new, &task.requirements);
        TaskView {
            id: task.id,
            namespace: task.queue.namespace.clone(),
            queue: task.queue.name.clone(),
            kind: new.kind.clone(),
            state: task.state,
            payload: new.payload.clone(),
            result: task.output.clone(),
            priority: new.priority,
            required_tags: requirements.required_tags.clone(),
            preferred_tags: requirements.preferred_tags.clone(),
            allowed_workers: requirements.allowed_workers.clone(),
            attempt: task.attempt,
            max_attempts: new.max_attempts,
            backoff: new.backoff,
            token: task.token,
            claim_seq: task.claim_seq,
            worker: task.worker.clone(),
            session: task.session.clone(),
            progress: task.progress.clone(),
            failures: task.failures.clone(),
            end_reason: task.reason.clone(),
            parents: task.parents.clone(),
            children: task.children.clone(),
            idempotency_key: new.idempotency_key.clone(),
            concurrency_key: new.concurrency_key.clone(),
            concurrency_limit: new.concurrency_limit,
            leader_token: new.leader_token,
            max_wait_ms: new.max_wait_ms,
            max_run_ms: new.max_run_ms,
            submitted_at_ms: task.enqueued_at,
            effective_at_ms: task.effective_at,
            run_at_ms: task.run_at,
            ready_at_ms: task.ready_at,
            claimed_at_ms: task.claimed_at,
            claim_expires_at_ms: task.deadline,
            finished_at_ms: task.finished_at,
        }
    }
}
