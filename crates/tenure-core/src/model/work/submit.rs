//! Submission of tasks.

use std::collections::{BTreeMap, BTreeSet};

use super::Work;
use super::task::TaskRecord;
use crate::Name;
use crate::port::{ErrorKind, NewTask, ParentRef, StoreError, Submission, SubmitReceipt, TaskId, TaskState};
use crate::rules::work::validate_submission;

impl Work {
    /// See [`TaskStore::submit`](crate::port::TaskStore::submit).
    pub fn submit(&mut self, submission: &Submission, now_ms: i64) -> Result<Vec<SubmitReceipt>, StoreError> {
        validate_submission(submission)?;
        self.enter(submission, now_ms)
    }

    /// Submits tasks that were already validated.
    pub(super) fn enter(
        &mut self,
        submission: &Submission,
        now_ms: i64,
    ) -> Result<Vec<SubmitReceipt>, StoreError> {
        let numbered = self.numbered(submission);
        let new = || submission.tasks.iter().zip(&numbered).zip(0..).filter(|((_, it), _)| it.created);
        let mut rows = Vec::new();
        for ((task, submitted), place) in new() {
            let parents = self.parents(submission, &numbered, task, place)?;
            let task = NewTask { parents: Vec::new(), ..task.clone() };
            rows.push(TaskRecord::submitted(submitted.id, submission.queue.clone(), task, parents, now_ms));
        }
        // All checks are done; the following steps cannot fail.
        self.queues.entry(submission.queue.clone()).or_default();
        self.last_task += rows.len() as u64;
        let ids: Vec<TaskId> = rows.iter().map(|row| row.id).collect();
        for row in rows {
            if let Some(key) = row.new.idempotency_key.clone() {
                self.keys.insert((row.queue.clone(), key), row.id);
            }
            self.list(&row);
            self.tasks.insert(row.id, row);
        }
        for id in ids {
            self.adopt(id);
            self.free(id, now_ms);
        }
        Ok(numbered)
    }

    /// The id of each task, new or existing. Of several tasks with the same idempotency key, the first one is
    /// submitted.
    fn numbered(&self, submission: &Submission) -> Vec<SubmitReceipt> {
        let mut last = self.last_task;
        let mut here: BTreeMap<&str, TaskId> = BTreeMap::new();
        let mut numbered = Vec::with_capacity(submission.tasks.len());
        for task in &submission.tasks {
            let known = task.idempotency_key.as_ref().and_then(|key| {
                let stored = self.keys.get(&(submission.queue.clone(), key.clone()));
                stored.or_else(|| here.get(key.as_str())).copied()
            });
            let submitted = match known {
                Some(id) => SubmitReceipt { id, created: false },
                None => {
                    last += 1;
                    SubmitReceipt { id: TaskId(last), created: true }
                }
            };
            if let Some(key) = &task.idempotency_key {
                here.insert(key, submitted.id);
            }
            numbered.push(submitted);
        }
        numbered
    }

    /// The parents of a new task, without duplicates. Fails if a parent does not exist or cannot complete.
    fn parents(
        &self,
        submission: &Submission,
        numbered: &[SubmitReceipt],
        task: &NewTask,
        place: usize,
    ) -> Result<Vec<TaskId>, StoreError> {
        let mut parents = BTreeSet::new();
        for parent in &task.parents {
            let id = match *parent {
                // The parent is a new task of this call, given by its index.
                ParentRef::Index(index) if numbered[index as usize].id.0 > self.last_task => {
                    parents.insert(numbered[index as usize].id);
                    continue;
                }
                ParentRef::Index(index) => numbered[index as usize].id,
                ParentRef::Task(id) => id,
            };
            let namespace = &submission.queue.namespace;
            let there = self.tasks.get(&id).filter(|it| it.queue.namespace == *namespace);
            let state = there.map(|it| it.state).ok_or_else(|| no_such_parent(place, id, namespace))?;
            if matches!(state, TaskState::Dead | TaskState::Cancelled) {
                return Err(unfulfillable_parent(place, id, state));
            }
            parents.insert(id);
        }
        Ok(parents.into_iter().collect())
    }

    /// Adds a task to the children lists of its parents.
    fn adopt(&mut self, id: TaskId) {
        let parents = self.tasks.get(&id).map(|task| task.parents.clone()).unwrap_or_default();
        for parent in parents {
            if let Some(parent) = self.tasks.get_mut(&parent) {
                parent.children.push(id);
            }
        }
    }

    /// Releases a waiting task if all its parents are completed.
    pub(super) fn free(&mut self, id: TaskId, now_ms: i64) {
        let waits =
            |task: &&TaskRecord| task.state == TaskState::Waiting && self.open_parents(task).is_empty();
        if self.tasks.get(&id).filter(waits).is_some() {
            self.change(id, now_ms, |task| task.state = task.released(now_ms));
        }
    }
}

/// The error for a parent that does not exist.
pub fn no_such_parent(place: usize, parent: TaskId, namespace: &Name) -> StoreError {
    let message = format!(
        "task {place}: parent {parent} does not exist in namespace {namespace}; it may have been pruned. Omit \
         this parent or submit it first. Nothing was submitted"
    );
    StoreError::new(ErrorKind::Request, message)
}

/// The error for a parent that is dead or cancelled.
pub fn unfulfillable_parent(place: usize, parent: TaskId, state: TaskState) -> StoreError {
    let message = format!(
        "task {place}: parent {parent} is {}, so the task could never start; retry the parent first (`tenure \
         tasks retry {parent}`). Nothing was submitted",
        state.as_str()
    );
    StoreError::new(ErrorKind::Request, message)
}
