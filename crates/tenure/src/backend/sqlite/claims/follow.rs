//! What follows when claims end: for children, for others with the same concurrency key, and for who sleeps.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use sqlx::Row;
use tenure_core::claim::clip;
use tenure_core::port::{FAILURES_KEPT, Failure, QueueKey, TaskState, Wake};

use super::super::change::Change;
use super::super::connection::{parsed, query};
use super::{Failed, json};

/// A task that is claimed, as far as the end of its claim needs to know it.
pub(super) struct Standing {
    pub(super) id: i64,
    pub(super) queue: i64,
    pub(super) namespace: String,
    pub(super) token: i64,
    pub(super) state: TaskState,
    pub(super) attempt: u32,
    pub(super) max_attempts: u32,
    pub(super) worker: Option<String>,
    pub(super) concurrency: Option<String>,
    pub(super) failures: Vec<Failure>,
    pub(super) has_children: bool,
    /// Whether only so many of its queue may be claimed: then an end makes room.
    pub(super) limited: bool,
}

impl Standing {
    /// Remembers that this attempt failed.
    fn note(&mut self, error: &str, now: i64) {
        let (attempt, worker) = (self.attempt, self.worker.clone().unwrap_or_default());
        self.failures.push(Failure { attempt, at_ms: now, worker, error: error.to_owned() });
        let old = self.failures.len().saturating_sub(FAILURES_KEPT);
        self.failures.drain(..old);
    }
}

/// A task's way back to its queue, or to its grave.
#[derive(Serialize)]
struct Return {
    id: i64,
    state: &'static str,
    attempt: u32,
    /// Left out: as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    run_at: Option<Option<i64>>,
    failures: String,
    reason: Option<String>,
}

/// What some ends of claims come to, gathered before anything is written.
#[derive(Default)]
pub(super) struct Ends<'a> {
    completed: Vec<(i64, Option<&'a str>)>,
    returned: Vec<Return>,
    progress: Vec<(i64, Option<String>, Option<i64>)>,
    /// Completed ones that others wait for.
    parents: Vec<i64>,
    /// Dead or cancelled ones that others wait for.
    doomed: Vec<i64>,
    /// How many claims with a concurrency key ended.
    keys: BTreeMap<String, u64>,
    /// Queues in which something became ready.
    ready: BTreeSet<i64>,
}

impl<'a> Ends<'a> {
    pub(super) fn complete(&mut self, task: &mut Standing, output: Option<&'a str>) -> TaskState {
        self.completed.push((task.id, output));
        if task.has_children {
            self.parents.push(task.id);
        }
        self.end(task, TaskState::Completed)
    }

    /// An attempt failed: another follows in `after_ms`, if there shall be one.
    pub(super) fn fail(
        &mut self,
        task: &mut Standing,
        error: &str,
        retry: bool,
        after_ms: i64,
        now: i64,
    ) -> sqlx::Result<TaskState> {
        let error = clip(error);
        let (attempt, most) = (task.attempt, task.max_attempts);
        task.note(&error, now);
        if retry && attempt < most {
            let run_at = (after_ms > 0).then_some(now + after_ms);
            let state = if run_at.is_some() { TaskState::Scheduled } else { TaskState::Ready };
            return self.put_back(task, state, Some(run_at), None);
        }
        let reason = if retry {
            format!("attempt {attempt} of {most} failed: {error}")
        } else {
            format!("failed for good: {error}")
        };
        self.put_back(task, TaskState::Dead, None, Some(clip(&reason)))
    }

    /// The claim was lost: the attempt counts.
    pub(super) fn lose(&mut self, task: &mut Standing, error: &str, now: i64) -> sqlx::Result<TaskState> {
        let (attempt, most) = (task.attempt, task.max_attempts);
        task.note(error, now);
        if attempt < most {
            return self.put_back(task, TaskState::Ready, None, None);
        }
        self.put_back(task, TaskState::Dead, None, Some(format!("attempt {attempt} of {most} was {error}")))
    }

    /// The attempt does not count.
    pub(super) fn release(&mut self, task: &mut Standing) -> sqlx::Result<TaskState> {
        task.attempt = task.attempt.saturating_sub(1);
        self.put_back(task, TaskState::Ready, None, None)
    }

    pub(super) fn go_on(&mut self, task: &Standing, note: Option<&str>, hold_ms: Option<i64>) {
        self.progress.push((task.id, note.map(clip), hold_ms));
    }

    /// A task is dead or cancelled: it is written already.
    pub(super) fn doom(&mut self, id: i64) {
        self.doomed.push(id);
    }

    /// One with a concurrency key is no longer claimed, or no longer ready: others may be let in.
    pub(super) fn made_way(&mut self, concurrency: Option<String>) {
        if let Some(key) = concurrency {
            *self.keys.entry(key).or_default() += 1;
        }
    }

    pub(super) fn made_ready(&mut self, queue: i64) {
        self.ready.insert(queue);
    }

    fn put_back(
        &mut self,
        task: &mut Standing,
        state: TaskState,
        run_at: Option<Option<i64>>,
        reason: Option<String>,
    ) -> sqlx::Result<TaskState> {
        match state {
            TaskState::Ready => self.made_ready(task.queue),
            TaskState::Dead if task.has_children => self.doomed.push(task.id),
            _ => {}
        }
        let (id, attempt, failures) = (task.id, task.attempt, json(&task.failures)?);
        self.returned.push(Return { id, state: state.as_str(), attempt, run_at, failures, reason });
        Ok(self.end(task, state))
    }

    fn end(&mut self, task: &mut Standing, state: TaskState) -> TaskState {
        if let Some(key) = &task.concurrency {
            *self.keys.entry(key.clone()).or_default() += 1;
        }
        if task.limited {
            self.ready.insert(task.queue);
        }
        task.state = state;
        state
    }
}

impl Change<'_> {
    /// Writes what was gathered, and all that follows from it. Those that shared a fate.
    pub(super) async fn write_ends(&mut self, mut ends: Ends<'_>) -> Result<Vec<i64>, Failed> {
        let now = self.wall_ms;
        if !ends.progress.is_empty() {
            self.for_each("task_progress", &ends.progress).await?;
        }
        if !ends.completed.is_empty() {
            self.for_each("task_complete", &ends.completed).await?;
        }
        if !ends.returned.is_empty() {
            self.for_each("task_return", &ends.returned).await?;
        }
        if !ends.parents.is_empty() {
            let free = query(self.store.queries.get("children_free")).bind(json(&ends.parents)?).bind(now);
            for row in self.transaction.all(free).await? {
                if row.try_get::<&str, _>("state")? == "ready" {
                    ends.ready.insert(row.try_get("queue")?);
                }
            }
        }
        let mut followers = Vec::new();
        if !ends.doomed.is_empty() {
            let fate = query(self.store.queries.get("children_fate")).bind(json(&ends.doomed)?).bind(now);
            for row in self.transaction.all(fate).await? {
                followers.push(row.try_get("id")?);
            }
        }
        if let Some(most) = ends.keys.values().max() {
            let keys: Vec<(&String, &u64)> = ends.keys.iter().collect();
            let free =
                query(self.store.queries.get("keys_free")).bind(json(&keys)?).bind(super::number(*most));
            for row in self.transaction.all(free).await? {
                ends.ready.insert(row.try_get("queue")?);
            }
        }
        self.wake(&ends.ready).await?;
        Ok(followers)
    }

    /// Rings, after the commit, for those that sleep until one of these queues has work.
    pub(in super::super) async fn wake(&mut self, queues: &BTreeSet<i64>) -> Result<(), Failed> {
        if queues.is_empty() {
            return Ok(());
        }
        let rows =
            self.transaction.all(query(self.store.queries.get("dozer_wake")).bind(json(queues)?)).await?;
        let key = |row| Ok(QueueKey::new(parsed(row, "namespace")?, parsed(row, "queue")?));
        let keys = rows.iter().map(key).collect::<sqlx::Result<BTreeSet<QueueKey>>>()?;
        self.wakes.extend(keys.into_iter().map(Wake::Work));
        Ok(())
    }

    /// Runs a statement that takes a list and the time.
    async fn for_each(&mut self, name: &str, list: &impl Serialize) -> Result<(), Failed> {
        let statement = query(self.store.queries.get(name)).bind(json(list)?).bind(self.wall_ms);
        self.transaction.execute(statement).await?;
        Ok(())
    }
}
