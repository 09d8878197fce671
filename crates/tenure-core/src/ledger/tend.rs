//! What the keeper does: it returns what was lost, and forgets what is old.

use std::time::Duration;

use super::task::Task;
use super::{Ledger, Witness};
use crate::port::{QueueKey, TaskId, TaskState, Tend, Tended};

impl Ledger {
    /// See [`Tasks::tend`](crate::port::Tasks::tend).
    pub fn tend(&mut self, tend: &Tend, witness: &dyn Witness, now_ms: i64) -> Tended {
        let mut tended = Tended { store_ms: now_ms, ..Tended::default() };
        if !witness.leads(&tend.session, tend.token) {
            return tended;
        }
        tended.leads = true;
        // A step of our clock expires nothing; without a reckoning of it, nothing is over that goes by it.
        let clock_ms = tend.clock_ms.map_or(i64::MIN, |clock| clock.min(now_ms));
        let limit = tend.limit as usize;
        self.return_lost(&mut tended, witness, clock_ms, now_ms, limit);
        self.give_up(&mut tended, clock_ms, now_ms, limit);
        self.make_due(&mut tended, now_ms, tend.limit);
        self.forget(&mut tended, clock_ms, limit);
        self.tend_pools(&mut tended, witness, clock_ms, now_ms, limit);
        self.dozers.retain(|_, sessions| {
            sessions.retain(|session| witness.is_live(session));
            !sessions.is_empty()
        });
        self.forget_workers(witness, clock_ms);
        tended.next_in = self.next_due(clock_ms, now_ms);
        tended
    }

    /// Claims whose session is over, or whose time is.
    fn return_lost(
        &mut self,
        tended: &mut Tended,
        witness: &dyn Witness,
        clock_ms: i64,
        now_ms: i64,
        limit: usize,
    ) {
        let lost = |task: &Task| {
            if task.session.as_ref().is_some_and(|session| !witness.is_live(session)) {
                Some((task.id, "lost: its session ended"))
            } else if task.deadline.is_some_and(|deadline| deadline < clock_ms) {
                let run_over = task.run_over_at().is_some_and(|over| task.deadline >= Some(over));
                Some((task.id, if run_over { "lost: run time is over" } else { "lost: its claim timed out" }))
            } else {
                None
            }
        };
        let claimed = self.claimed.iter().filter_map(|id| self.tasks.get(id));
        let found: Vec<(TaskId, &str)> = claimed.filter_map(lost).take(limit + 1).collect();
        tended.more |= found.len() > limit;
        for (id, error) in found.into_iter().take(limit) {
            tended.dead += self.lose(id, error, now_ms).len() as u64;
            tended.returned += 1;
        }
    }

    /// Tasks that nobody claimed for too long.
    fn give_up(&mut self, tended: &mut Tended, clock_ms: i64, now_ms: i64, limit: usize) {
        let over = |(at, _): &&(i64, TaskId)| *at < clock_ms;
        let tasks = self.queues.values().flat_map(|queue| queue.impatient.iter().take_while(over));
        let found: Vec<TaskId> = tasks.map(|(_, id)| *id).take(limit + 1).collect();
        tended.more |= found.len() > limit;
        for id in found.into_iter().take(limit) {
            let most = self.tasks.get(&id).and_then(|task| task.new.max_wait_ms).unwrap_or(0);
            let reason = format!("nobody claimed it for its longest wait of {most} ms");
            tended.dead += 1 + self.doom(id, TaskState::Dead, reason, now_ms).len() as u64;
        }
    }

    fn make_due(&mut self, tended: &mut Tended, now_ms: i64, limit: u32) {
        let keys: Vec<QueueKey> = self.queues.keys().cloned().collect();
        for key in keys {
            let left = limit - u32::try_from(tended.due).unwrap_or(limit);
            tended.due += self.promote(&key, now_ms, left);
            let next = self.queues.get(&key).and_then(|queue| queue.scheduled.first());
            tended.more |= next.is_some_and(|(at, _)| *at <= now_ms);
        }
    }

    /// Finished tasks that nobody needs any more.
    fn forget(&mut self, tended: &mut Tended, clock_ms: i64, limit: usize) {
        let mut found: Vec<TaskId> = Vec::new();
        for queue in self.queues.values() {
            let settings = &queue.settings;
            let soonest = settings.keep_ms.min(settings.keep_dead_ms);
            let old =
                queue.finished.iter().take_while(|(at, _)| at.saturating_add_unsigned(soonest) < clock_ms);
            let over = |task: &&Task| {
                let dead = task.state == TaskState::Dead;
                let keep = if dead { settings.keep_dead_ms } else { settings.keep_ms };
                task.finished_at.unwrap_or(0).saturating_add_unsigned(keep) < clock_ms
                    && !self.is_needed(task)
            };
            let rest = (limit + 1).saturating_sub(found.len());
            found.extend(
                old.filter_map(|(_, id)| self.tasks.get(id)).filter(over).map(|task| task.id).take(rest),
            );
        }
        tended.more |= found.len() > limit;
        for id in found.into_iter().take(limit) {
            let Some(task) = self.tasks.remove(&id) else { continue };
            self.unlist(&task);
            if let Some(key) = &task.new.key {
                self.keys.remove(&(task.queue.clone(), key.clone()));
            }
            for parent in &task.parents {
                if let Some(parent) = self.tasks.get_mut(parent) {
                    parent.children.retain(|child| *child != id);
                }
            }
            tended.forgotten += 1;
        }
    }

    /// Whether a child may still want its output: one that is not completed may be retried.
    fn is_needed(&self, task: &Task) -> bool {
        let wants = |id: &TaskId| self.tasks.get(id).is_some_and(|it| it.state != TaskState::Completed);
        task.children.iter().any(wants)
    }

    /// In how long there is something to do, as far as is known.
    fn next_due(&self, clock_ms: i64, now_ms: i64) -> Option<Duration> {
        let deadlines = self.claimed.iter().filter_map(|id| self.tasks.get(id)?.deadline);
        let impatient = self.queues.values().filter_map(|queue| queue.impatient.first()).map(|(at, _)| *at);
        let by_clock = deadlines.chain(impatient).chain(self.pool_deadlines()).min();
        let due = self.queues.values().filter_map(|queue| queue.scheduled.first()).map(|(at, _)| *at);
        let by_now = due.chain(self.rested()).min();
        // Over is what is past: one more millisecond.
        let by_clock =
            by_clock.filter(|_| clock_ms > i64::MIN).map(|at| at.saturating_add(1).saturating_sub(clock_ms));
        let in_ms = by_clock.into_iter().chain(by_now.map(|at| at.saturating_sub(now_ms))).min()?;
        Some(Duration::from_millis(u64::try_from(in_ms).unwrap_or(0)))
    }
}
