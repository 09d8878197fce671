//! Consequences of settled claims: for children, for tasks with the same concurrency key, and for waiters.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use sqlx::Row;
use tenure_core::port::{AttemptFailure, FAILURES_MAX, Notification, QueueKey, TaskState};
use tenure_core::rules::work::clip;

use super::super::connection::{parsed, query};
use super::super::write_transaction::WriteTransaction;
use super::{CallError, json};

/// A claimed task as settling needs it.
pub(super) struct ClaimedRow {
    pub(super) id: i64,
    pub(super) queue_id: i64,
    pub(super) namespace: String,
    pub(super) token: i64,
    pub(super) state: TaskState,
    pub(super) attempt: u32,
    pub(super) max_attempts: u32,
    pub(super) worker: Option<String>,
    pub(super) concurrency_key: Option<String>,
    pub(super) failures: Vec<AttemptFailure>,
    pub(super) has_children: bool,
    /// Whether the queue limits the number of claimed tasks, so that an ended claim frees capacity.
    pub(super) has_claim_limit: bool,
}

impl ClaimedRow {
    /// Record the failure of the current attempt.
    fn record_failure(&mut self, error: &str, now: i64) {
        let (attempt, worker) = (self.attempt, self.worker.clone().unwrap_or_default());
        self.failures.push(AttemptFailure { attempt, failed_at_ms: now, worker, error: error.to_owned() });
        let old = self.failures.len().saturating_sub(FAILURES_MAX);
        self.failures.drain(..old);
    }
}

/// A task that returns to its queue or dies, as the statement task_requeue reads it.
#[derive(Serialize)]
struct RequeuedTask {
    id: i64,
    state: &'static str,
    attempt: u32,
    /// `None` keeps the stored value.
    #[serde(skip_serializing_if = "Option::is_none")]
    run_at_ms: Option<Option<i64>>,
    failures: String,
    end_reason: Option<String>,
}

/// Writes that follow from settled claims, collected before they are executed.
#[derive(Default)]
pub(super) struct SettleWrites<'a> {
    completed: Vec<(i64, Option<&'a str>)>,
    requeued: Vec<RequeuedTask>,
    heartbeats: Vec<(i64, Option<String>, Option<i64>)>,
    /// Completed tasks with children.
    parents: Vec<i64>,
    /// Dead or cancelled tasks whose children end too.
    ended_parents: Vec<i64>,
    /// The number of ended claims for each concurrency key.
    keys: BTreeMap<String, u64>,
    /// Queues with tasks that became ready.
    ready: BTreeSet<i64>,
}

impl<'a> SettleWrites<'a> {
    pub(super) fn complete(&mut self, task: &mut ClaimedRow, result: Option<&'a str>) -> TaskState {
        self.completed.push((task.id, result));
        if task.has_children {
            self.parents.push(task.id);
        }
        self.end(task, TaskState::Completed)
    }

    /// Fail the attempt. The task is retried after `retry_in_ms` if `retry` is set and attempts remain; otherwise it dies.
    pub(super) fn fail(
        &mut self,
        task: &mut ClaimedRow,
        error: &str,
        retry: bool,
        retry_in_ms: i64,
        now: i64,
    ) -> sqlx::Result<TaskState> {
        let error = clip(error);
        let (attempt, max) = (task.attempt, task.max_attempts);
        task.record_failure(&error, now);
        if retry && attempt < max {
            let run_at_ms = (retry_in_ms > 0).then_some(now + retry_in_ms);
            let state = if run_at_ms.is_some() { TaskState::Scheduled } else { TaskState::Ready };
            return self.requeue(task, state, Some(run_at_ms), None);
        }
        let end_reason = if retry {
            format!("attempt {attempt} of {max} failed: {error}")
        } else {
            format!("failed permanently: {error}")
        };
        self.requeue(task, TaskState::Dead, None, Some(clip(&end_reason)))
    }

    /// End a lost claim. The attempt counts.
    pub(super) fn lose(&mut self, task: &mut ClaimedRow, error: &str, now: i64) -> sqlx::Result<TaskState> {
        let (attempt, max) = (task.attempt, task.max_attempts);
        task.record_failure(error, now);
        if attempt < max {
            return self.requeue(task, TaskState::Ready, None, None);
        }
        self.requeue(task, TaskState::Dead, None, Some(format!("attempt {attempt} of {max} failed: {error}")))
    }

    /// Release the claim. The attempt does not count.
    pub(super) fn release(&mut self, task: &mut ClaimedRow) -> sqlx::Result<TaskState> {
        task.attempt = task.attempt.saturating_sub(1);
        self.requeue(task, TaskState::Ready, None, None)
    }

    pub(super) fn heartbeat(
        &mut self,
        task: &ClaimedRow,
        progress: Option<&str>,
        claim_timeout_ms: Option<i64>,
    ) {
        self.heartbeats.push((task.id, progress.map(clip), claim_timeout_ms));
    }

    /// End the children of a task that is already written as dead or cancelled.
    pub(super) fn end_children(&mut self, id: i64) {
        self.ended_parents.push(id);
    }

    /// A task with this concurrency key is no longer claimed or ready, so others may be unblocked.
    pub(super) fn free_concurrency_key(&mut self, concurrency_key: Option<String>) {
        if let Some(key) = concurrency_key {
            *self.keys.entry(key).or_default() += 1;
        }
    }

    pub(super) fn mark_ready(&mut self, queue_id: i64) {
        self.ready.insert(queue_id);
    }

    fn requeue(
        &mut self,
        task: &mut ClaimedRow,
        state: TaskState,
        run_at_ms: Option<Option<i64>>,
        end_reason: Option<String>,
    ) -> sqlx::Result<TaskState> {
        match state {
            TaskState::Ready => self.mark_ready(task.queue_id),
            TaskState::Dead if task.has_children => self.ended_parents.push(task.id),
            _ => {}
        }
        let (id, attempt, failures) = (task.id, task.attempt, json(&task.failures)?);
        self.requeued.push(RequeuedTask {
            id,
            state: state.as_str(),
            attempt,
            run_at_ms,
            failures,
            end_reason,
        });
        Ok(self.end(task, state))
    }

    fn end(&mut self, task: &mut ClaimedRow, state: TaskState) -> TaskState {
        if let Some(key) = &task.concurrency_key {
            *self.keys.entry(key.clone()).or_default() += 1;
        }
        if task.has_claim_limit {
            self.ready.insert(task.queue_id);
        }
        task.state = state;
        state
    }
}

impl WriteTransaction<'_> {
    /// Execute the collected writes and their consequences. Returns the descendants that ended with their parents.
    pub(super) async fn write_settled(
        &mut self,
        mut writes: SettleWrites<'_>,
    ) -> Result<Vec<i64>, CallError> {
        let now = self.wall_ms;
        if !writes.heartbeats.is_empty() {
            self.for_each("task_heartbeat", &writes.heartbeats).await?;
        }
        if !writes.completed.is_empty() {
            self.for_each("task_complete", &writes.completed).await?;
        }
        if !writes.requeued.is_empty() {
            self.for_each("task_requeue", &writes.requeued).await?;
        }
        if !writes.parents.is_empty() {
            let release =
                query(self.store.queries.get("children_release")).bind(json(&writes.parents)?).bind(now);
            for row in self.transaction.all(release).await? {
                if row.try_get::<&str, _>("state")? == "ready" {
                    writes.ready.insert(row.try_get("queue_id")?);
                }
            }
        }
        let mut cascaded = Vec::new();
        if !writes.ended_parents.is_empty() {
            let cascade = query(self.store.queries.get("children_cascade"))
                .bind(json(&writes.ended_parents)?)
                .bind(now);
            for row in self.transaction.all(cascade).await? {
                cascaded.push(row.try_get("id")?);
            }
        }
        if let Some(max) = writes.keys.values().max() {
            let keys: Vec<(&String, &u64)> = writes.keys.iter().collect();
            let release = query(self.store.queries.get("concurrency_keys_unblock"))
                .bind(json(&keys)?)
                .bind(super::number(*max));
            for row in self.transaction.all(release).await? {
                writes.ready.insert(row.try_get("queue_id")?);
            }
        }
        self.notify_queues(&writes.ready).await?;
        Ok(cascaded)
    }

    /// Notify the waiters of these queues after the commit.
    pub(in super::super) async fn notify_queues(&mut self, queues: &BTreeSet<i64>) -> Result<(), CallError> {
        if queues.is_empty() {
            return Ok(());
        }
        let rows = self
            .transaction
            .all(query(self.store.queries.get("queue_waiter_notify")).bind(json(queues)?))
            .await?;
        let key = |row| Ok(QueueKey::new(parsed(row, "namespace")?, parsed(row, "queue")?));
        let keys = rows.iter().map(key).collect::<sqlx::Result<BTreeSet<QueueKey>>>()?;
        self.notifications.extend(keys.into_iter().map(Notification::QueueReady));
        Ok(())
    }

    /// Execute a statement with a list and the current time as parameters.
    async fn for_each(&mut self, name: &str, list: &impl Serialize) -> Result<(), CallError> {
        let statement = query(self.store.queries.get(name)).bind(json(list)?).bind(self.wall_ms);
        self.transaction.execute(statement).await?;
        Ok(())
    }
}
