//! What workers say about their claims.

use std::time::Duration;

use super::Ledger;
use super::task::Task;
use crate::claim::{clip, span_ms};
use crate::port::{Json, Outcome, Settled, Settlement, TaskId, TaskState};

impl Ledger {
    /// See [`Tasks::settle`](crate::port::Tasks::settle).
    pub fn settle(&mut self, settlements: &[Settlement], now_ms: i64) -> Vec<Settled> {
        settlements.iter().map(|settlement| self.settle_one(settlement, now_ms)).collect()
    }

    fn settle_one(&mut self, settlement: &Settlement, now_ms: i64) -> Settled {
        let id = settlement.task;
        let under =
            |task: &&Task| task.token == settlement.token && task.queue.namespace == settlement.namespace;
        let Some(task) = self.tasks.get(&id).filter(under) else { return Settled::Lost };
        match (&settlement.outcome, task.state) {
            // An answer that was lost may be asked for again.
            (Outcome::Complete(_), TaskState::Completed) => return Settled::Now(TaskState::Completed),
            (_, TaskState::Claimed) => {}
            _ => return Settled::Lost,
        }
        match &settlement.outcome {
            Outcome::Complete(output) => self.complete(id, output.clone(), now_ms),
            Outcome::Fail { error, retry, after } => self.fail(id, &clip(error), *retry, *after, now_ms),
            Outcome::Release => self.change(id, now_ms, |task| {
                task.let_go();
                task.attempt -= 1;
                task.state = TaskState::Ready;
            }),
            Outcome::Progress { note, hold } => self.change(id, now_ms, |task| {
                task.progress = note.as_deref().map(clip).or(task.progress.take());
                let until = |hold: Duration| now_ms.saturating_add_unsigned(span_ms(hold));
                // Never beyond its longest run, however often it is said.
                let run_over = task.run_over_at().unwrap_or(i64::MAX);
                task.deadline = hold.map(|hold| until(hold).min(run_over)).or(task.deadline);
            }),
        }
        self.tasks.get(&id).map_or(Settled::Lost, |task| Settled::Now(task.state))
    }

    fn complete(&mut self, id: TaskId, output: Option<Json>, now_ms: i64) {
        self.change(id, now_ms, |task| {
            task.output = output;
            task.finish(TaskState::Completed, None, now_ms);
        });
        let children = self.tasks.get(&id).map(|task| task.children.clone()).unwrap_or_default();
        for child in children {
            self.free(child, now_ms);
        }
    }

    /// The attempt failed: there is another one, or the task is dead. Those that shared its fate.
    fn fail(&mut self, id: TaskId, error: &str, retry: bool, after: Duration, now_ms: i64) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        task.failed(error, now_ms);
        let (attempt, most) = (task.attempt, task.new.max_attempts);
        if retry && attempt < most {
            return self.change(id, now_ms, |task| {
                task.let_go();
                task.run_at = (!after.is_zero()).then(|| now_ms.saturating_add_unsigned(span_ms(after)));
                task.state = task.released(now_ms);
            });
        }
        let reason = if retry {
            clip(&format!("attempt {attempt} of {most} failed: {error}"))
        } else {
            clip(&format!("failed for good: {error}"))
        };
        self.doom(id, TaskState::Dead, reason, now_ms);
    }

    /// The claim was lost: the attempt counts as failed. Those that shared its fate, if it was the last.
    pub(super) fn lose(&mut self, id: TaskId, error: &str, now_ms: i64) -> Vec<TaskId> {
        let Some(task) = self.tasks.get_mut(&id) else { return Vec::new() };
        task.failed(error, now_ms);
        let (attempt, most) = (task.attempt, task.new.max_attempts);
        if attempt >= most {
            return self.doom(
                id,
                TaskState::Dead,
                format!("attempt {attempt} of {most} was {error}"),
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
