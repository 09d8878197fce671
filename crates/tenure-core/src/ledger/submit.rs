//! How tasks come in.

use std::collections::{BTreeMap, BTreeSet};

use super::Ledger;
use super::task::Task;
use crate::Name;
use crate::claim::check;
use crate::port::{NewTask, Parent, StoreError, Submission, Submitted, TaskId, TaskState, Trouble};

impl Ledger {
    /// See [`Tasks::submit`](crate::port::Tasks::submit).
    pub fn submit(&mut self, submission: &Submission, now_ms: i64) -> Result<Vec<Submitted>, StoreError> {
        check(submission)?;
        self.enter(submission, now_ms)
    }

    /// The same, of what was checked.
    pub(super) fn enter(
        &mut self,
        submission: &Submission,
        now_ms: i64,
    ) -> Result<Vec<Submitted>, StoreError> {
        let numbered = self.numbered(submission);
        let new = || submission.tasks.iter().zip(&numbered).zip(0..).filter(|((_, it), _)| it.new);
        let mut rows = Vec::new();
        for ((task, submitted), place) in new() {
            let parents = self.parents(submission, &numbered, task, place)?;
            let task = NewTask { parents: Vec::new(), ..task.clone() };
            rows.push(Task::submitted(submitted.id, submission.queue.clone(), task, parents, now_ms));
        }
        // From here on nothing can fail.
        self.queues.entry(submission.queue.clone()).or_default();
        self.last_task += rows.len() as u64;
        let ids: Vec<TaskId> = rows.iter().map(|row| row.id).collect();
        for row in rows {
            if let Some(key) = row.new.key.clone() {
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

    /// Which number each task gets, or has: of several with one key the first is the one.
    fn numbered(&self, submission: &Submission) -> Vec<Submitted> {
        let mut last = self.last_task;
        let mut here: BTreeMap<&str, TaskId> = BTreeMap::new();
        let mut numbered = Vec::with_capacity(submission.tasks.len());
        for task in &submission.tasks {
            let known = task.key.as_ref().and_then(|key| {
                let stored = self.keys.get(&(submission.queue.clone(), key.clone()));
                stored.or_else(|| here.get(key.as_str())).copied()
            });
            let submitted = match known {
                Some(id) => Submitted { id, new: false },
                None => {
                    last += 1;
                    Submitted { id: TaskId(last), new: true }
                }
            };
            if let Some(key) = &task.key {
                here.insert(key, submitted.id);
            }
            numbered.push(submitted);
        }
        numbered
    }

    /// The parents of a new task, each once. Refused if one is not there, or will never be completed.
    fn parents(
        &self,
        submission: &Submission,
        numbered: &[Submitted],
        task: &NewTask,
        place: usize,
    ) -> Result<Vec<TaskId>, StoreError> {
        let mut parents = BTreeSet::new();
        for parent in &task.parents {
            let id = match *parent {
                // New with this submission, here or further up under the same key.
                Parent::Index(index) if numbered[index as usize].id.0 > self.last_task => {
                    parents.insert(numbered[index as usize].id);
                    continue;
                }
                Parent::Index(index) => numbered[index as usize].id,
                Parent::Task(id) => id,
            };
            let namespace = &submission.queue.namespace;
            let there = self.tasks.get(&id).filter(|it| it.queue.namespace == *namespace);
            let state = there.map(|it| it.state).ok_or_else(|| no_such_parent(place, id, namespace))?;
            if matches!(state, TaskState::Dead | TaskState::Cancelled) {
                return Err(hopeless_parent(place, id, state));
            }
            parents.insert(id);
        }
        Ok(parents.into_iter().collect())
    }

    /// Tells its parents of a task.
    fn adopt(&mut self, id: TaskId) {
        let parents = self.tasks.get(&id).map(|task| task.parents.clone()).unwrap_or_default();
        for parent in parents {
            if let Some(parent) = self.tasks.get_mut(&parent) {
                parent.children.push(id);
            }
        }
    }

    /// Lets a waiting task go on, if none of its parents keeps it.
    pub(super) fn free(&mut self, id: TaskId, now_ms: i64) {
        let waits = |task: &&Task| task.state == TaskState::Waiting && self.open_parents(task).is_empty();
        if self.tasks.get(&id).filter(waits).is_some() {
            self.change(id, now_ms, |task| task.state = task.released(now_ms));
        }
    }
}

/// The error for a parent that is not there.
pub fn no_such_parent(place: usize, parent: TaskId, namespace: &Name) -> StoreError {
    let message = format!(
        "task {place}: there is no task {parent} in namespace {namespace} that it could wait for; it may be forgotten, \
         or never was: leave this parent out, or submit it first. Nothing was submitted"
    );
    StoreError::new(Trouble::Request, message)
}

/// The error for a parent that will never be completed as it is.
pub fn hopeless_parent(place: usize, parent: TaskId, state: TaskState) -> StoreError {
    let message = format!(
        "task {place}: its parent {parent} is {}, so it would never begin; retry the parent first \
         (`tenure tasks retry {parent}`). Nothing was submitted",
        state.as_str()
    );
    StoreError::new(Trouble::Request, message)
}
