//! Settlement of claims.

use std::time::Duration;

use super::Work;
use super::task::TaskRecord;
use crate::port::{ClaimOutcome, RawJson, SettleResult, Settlement, TaskId, TaskState};
use crate::rules::work::{bounded_ms, clip};

impl Work {
    /// See [`TaskStore::settle`](crate::port::TaskStore::settle).
    pub fn settle(&mut self, settlements: &[Settlement], now_ms: i64) -> Vec<SettleResult> {
        settlements.iter().map(|settlement| self.settle_one(settlement, now_ms)).collect()
    }

    fn settle_one(&mut self, settlement: &Settlement, now_ms: i64) -> SettleResult {
        let id = settlement.task;
        let under = |task: &&TaskRecord| {
            task.token == settlement.token && task.queue.namespace == settlement.namespace
        };
        let Some(task) = self.tasks.get(&id).filter(under) else { return SettleResult::ClaimLost };
        match (&settlement.outcome, task.state) {
            // A worker may repeat a completion whose response was lost.
            (ClaimOutcome::Complete(_), TaskState::Completed) => {
                return SettleResult::Applied(TaskState::Completed);
            }
            (_, TaskState::Claimed) => {}
            _ => return SettleResult::ClaimLost,
        }
        match &settlement.outcome {
            ClaimOutcome::Complete(output) => self.complete(id, output.clone(), now_ms),
            ClaimOutcome::Fail { error, retry, retry_in: after } => {
                self.fail(id, &clip(error), *retry, *after, now_ms)
            }
            ClaimOutcome::Release => self.change(id, now_ms, |task| {
                task.let_go();
                task.attempt -= 1;
                task.state = TaskState::Ready;
            }),
            ClaimOutcome::Heartbeat { progress: note, claim_timeout: hold } => {
                self.change(id, now_ms, |task| {
                    task.progress = note.as_deref().map(clip).or(task.progress.take());
                    let until = |hold: Duration| now_ms.saturating_add_unsigned(bounded_ms(hold));
                    // Heartbeats never extend a claim beyond the maximum run time.
                    let run_over = task.run_over_at().unwrap_or(i64::MAX);
                    task.deadline = hold.map(|hold| until(hold).min(run_over)).or(task.deadline);
                })
            }
        }
        self.tasks.get(&id).map_or(SettleResult::ClaimLost, |task| SettleResult::Applied(task.state))
    }

    fn complete(&mut self, id: TaskId, output: Option<RawJson>, now_ms: i64) {
        self.change(id, now_ms, |task| {
            task.output = output;
            task.finish(TaskState::Completed, None, now_ms);
        });
        let children = self.tasks.get(&id).map(|task| task.children.clone()).unwrap_or_default();
        for child in children {
            self.free(child, now_ms);
        }
    }

    /// Ends an attempt as failed: the task is retried or dies.
    fn fail(&mut self, id: TaskId, error: &str, retry: bool, after: Duration, now_ms: i64) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        task.failed(error, now_ms);
        let (attempt, most) = (task.attempt, task.new.max_attempts);
        if retry && attempt < most {
            return self.change(id, now_ms, |task| {
                task.let_go();
                task.run_at = (!after.is_zero()).then(|| now_ms.saturating_add_unsigned(bounded_ms(after)));
                task.state = task.released(now_ms);
            });
        }
        let reason = if retry {
            clip(&format!("attempt {attempt} of {most} failed: {error}"))
        } else {
            clip(&format!("failed permanently: {error}"))
        };
        self.end_with_dependents(id, TaskState::Dead, reason, now_ms);
    }

    /// Ends an attempt because the claim was lost. If it was the last attempt, the task dies. Returns the dependents
    /// that died with it.
    pub(super) fn lose(&mut self, id: TaskId, error: &str, now_ms: i64) -> Vec<TaskId> {
        let Some(task) = self.tasks.get_mut(&id) else { return Vec::new() };
        task.failed(error, now_ms);
        let (attempt, most) = (task.attempt, task.new.max_attempts);
        if attempt >= most {
            return self.end_with_dependents(
                id,
                TaskState::Dead,
                format!("attempt {attempt} of {most} failed: {error}"),
                now_ms,
            );
        }
        self.change(id, now_ms, |task| {
            task.let_go();
            task.state = TaskState::Ready;
        });
        Vec::new()
    }
}
