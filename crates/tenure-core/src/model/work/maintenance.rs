//! Maintenance: recovery of lost claims and pruning.

use std::time::Duration;

use super::task::TaskRecord;
use super::{LeaseObservation, Work};
use crate::port::{MaintenanceRequest, MaintenanceResponse, QueueKey, TaskId, TaskState};

impl Work {
    /// See [`TaskStore::maintain`](crate::port::TaskStore::maintain).
    pub fn maintain(
        &mut self,
        request: &MaintenanceRequest,
        observation: &dyn LeaseObservation,
        now_ms: i64,
    ) -> MaintenanceResponse {
        let mut response = MaintenanceResponse { store_now_at_ms: now_ms, ..MaintenanceResponse::default() };
        if !observation.leads(&request.session, request.token) {
            return response;
        }
        response.is_leader = true;
        // Use the lesser of the leader's estimate and the store's clock, so that a forward step of that clock expires
        // nothing. Without an estimate nothing expires by time.
        let clock_ms = request.clock_ms.map_or(i64::MIN, |clock| clock.min(now_ms));
        let limit = request.limit as usize;
        self.recover_lost_claims(&mut response, observation, clock_ms, now_ms, limit);
        self.end_overdue_waits(&mut response, clock_ms, now_ms, limit);
        self.promote_due(&mut response, now_ms, request.limit);
        self.prune_tasks(&mut response, clock_ms, limit);
        self.maintain_pools(&mut response, observation, clock_ms, now_ms, limit);
        self.queue_waiters.retain(|_, sessions| {
            sessions.retain(|session| observation.is_live(session));
            !sessions.is_empty()
        });
        self.prune_workers(observation, clock_ms);
        response.next_in = self.next_due(clock_ms, now_ms);
        response
    }

    /// Recovers claims whose session has ended or whose timeout or maximum run time is exceeded.
    fn recover_lost_claims(
        &mut self,
        response: &mut MaintenanceResponse,
        observation: &dyn LeaseObservation,
        clock_ms: i64,
        now_ms: i64,
        limit: usize,
    ) {
        let lost = |task: &TaskRecord| {
            if task.session.as_ref().is_some_and(|session| !observation.is_live(session)) {
                Some((task.id, "claim lost: session ended"))
            } else if task.deadline.is_some_and(|deadline| deadline < clock_ms) {
                let run_over = task.run_over_at().is_some_and(|over| task.deadline >= Some(over));
                Some((
                    task.id,
                    if run_over {
                        "claim lost: max_run_ms exceeded"
                    } else {
                        "claim lost: claim timeout exceeded"
                    },
                ))
            } else {
                None
            }
        };
        let claimed = self.claimed.iter().filter_map(|id| self.tasks.get(id));
        let found: Vec<(TaskId, &str)> = claimed.filter_map(lost).take(limit + 1).collect();
        response.has_more |= found.len() > limit;
        for (id, error) in found.into_iter().take(limit) {
            response.dead += self.lose(id, error, now_ms).len() as u64;
            response.recovered += 1;
        }
    }

    /// Ends tasks that exceeded their maximum wait.
    fn end_overdue_waits(
        &mut self,
        response: &mut MaintenanceResponse,
        clock_ms: i64,
        now_ms: i64,
        limit: usize,
    ) {
        let over = |(at, _): &&(i64, TaskId)| *at < clock_ms;
        let tasks = self.queues.values().flat_map(|queue| queue.expiring_waits.iter().take_while(over));
        let found: Vec<TaskId> = tasks.map(|(_, id)| *id).take(limit + 1).collect();
        response.has_more |= found.len() > limit;
        for id in found.into_iter().take(limit) {
            let most = self.tasks.get(&id).and_then(|task| task.new.max_wait_ms).unwrap_or(0);
            let reason = format!("not claimed within max_wait_ms ({most} ms)");
            response.dead += 1 + self.end_with_dependents(id, TaskState::Dead, reason, now_ms).len() as u64;
        }
    }

    fn promote_due(&mut self, response: &mut MaintenanceResponse, now_ms: i64, limit: u32) {
        let keys: Vec<QueueKey> = self.queues.keys().cloned().collect();
        for key in keys {
            let left = limit - u32::try_from(response.promoted).unwrap_or(limit);
            response.promoted += self.promote(&key, now_ms, left);
            let next = self.queues.get(&key).and_then(|queue| queue.scheduled.first());
            response.has_more |= next.is_some_and(|(at, _)| *at <= now_ms);
        }
    }

    /// Prunes finished tasks that are no longer needed.
    fn prune_tasks(&mut self, response: &mut MaintenanceResponse, clock_ms: i64, limit: usize) {
        let mut found: Vec<TaskId> = Vec::new();
        for queue in self.queues.values() {
            let settings = &queue.settings;
            let soonest = settings.retention_ms.min(settings.dead_retention_ms);
            let old =
                queue.finished.iter().take_while(|(at, _)| at.saturating_add_unsigned(soonest) < clock_ms);
            let over = |task: &&TaskRecord| {
                let dead = task.state == TaskState::Dead;
                let keep = if dead { settings.dead_retention_ms } else { settings.retention_ms };
                task.finished_at.unwrap_or(0).saturating_add_unsigned(keep) < clock_ms
                    && !self.is_needed(task)
            };
            let rest = (limit + 1).saturating_sub(found.len());
            found.extend(
                old.filter_map(|(_, id)| self.tasks.get(id)).filter(over).map(|task| task.id).take(rest),
            );
        }
        response.has_more |= found.len() > limit;
        for id in found.into_iter().take(limit) {
            let Some(task) = self.tasks.remove(&id) else { continue };
            self.unlist(&task);
            if let Some(key) = &task.new.idempotency_key {
                self.keys.remove(&(task.queue.clone(), key.clone()));
            }
            for parent in &task.parents {
                if let Some(parent) = self.tasks.get_mut(parent) {
                    parent.children.retain(|child| *child != id);
                }
            }
            response.pruned += 1;
        }
    }

    /// Whether a child may still need the result of this task. A child needs it until it is completed, because it may
    /// be retried.
    fn is_needed(&self, task: &TaskRecord) -> bool {
        let wants = |id: &TaskId| self.tasks.get(id).is_some_and(|it| it.state != TaskState::Completed);
        task.children.iter().any(wants)
    }

    /// Time until the next maintenance work, as far as it is known.
    fn next_due(&self, clock_ms: i64, now_ms: i64) -> Option<Duration> {
        let deadlines = self.claimed.iter().filter_map(|id| self.tasks.get(id)?.deadline);
        let expiring_waits =
            self.queues.values().filter_map(|queue| queue.expiring_waits.first()).map(|(at, _)| *at);
        let by_clock = deadlines.chain(expiring_waits).chain(self.pool_deadlines()).min();
        let due = self.queues.values().filter_map(|queue| queue.scheduled.first()).map(|(at, _)| *at);
        let by_now = due.chain(self.rested()).min();
        // A deadline is exceeded only after it has passed, so add one millisecond.
        let by_clock =
            by_clock.filter(|_| clock_ms > i64::MIN).map(|at| at.saturating_add(1).saturating_sub(clock_ms));
        let in_ms = by_clock.into_iter().chain(by_now.map(|at| at.saturating_sub(now_ms))).min()?;
        Some(Duration::from_millis(u64::try_from(in_ms).unwrap_or(0)))
    }
}
