//! Claiming of tasks.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use super::queue::{QueueRecord, may_assign};
use super::task::TaskRecord;
use super::{LeaseObservation, Work};
use crate::port::{
    CLAIM_BYTES, ClaimAuthority, ClaimBatchRequest, ClaimBatchResponse, ClaimRefusal, ClaimRequest,
    ClaimedTask, QueueKey, TaskId, TaskState, WorkerProfile,
};
use crate::rules::work::Requirements;
use crate::{SessionId, Token};

impl Work {
    /// See [`TaskStore::claim`](crate::port::TaskStore::claim).
    pub fn claim(
        &mut self,
        request: &ClaimBatchRequest,
        observation: &dyn LeaseObservation,
        now_ms: i64,
    ) -> ClaimBatchResponse {
        let Some(queue) = self.queues.get(&request.queue) else {
            return ClaimBatchResponse::Served {
                tasks: vec![Vec::new(); request.requests.len()],
                next_in: None,
            };
        };
        if let Err(refusal) = self.admit(request, queue, observation) {
            return ClaimBatchResponse::Refused(refusal);
        }
        if let Some(queue) = self.queues.get_mut(&request.queue) {
            queue.restart_rate(now_ms);
        }
        self.promote(&request.queue, now_ms, u32::MAX);
        let in_order = matches!(request.authority, ClaimAuthority::Leader { .. });
        let mut pass = ClaimPass {
            epoch: observation.epoch(),
            in_order,
            now_ms,
            next_ms: None,
            short: false,
            bytes: 0,
            served: 0,
            full: false,
        };
        let tasks = request
            .requests
            .iter()
            .map(|claim_request| self.serve(&request.queue, claim_request, &mut pass))
            .collect();
        let soon = |ms: i64| Duration::from_millis(u64::try_from(ms.saturating_sub(now_ms)).unwrap_or(0));
        ClaimBatchResponse::Served { tasks, next_in: pass.next_ms.filter(|_| pass.short).map(soon) }
    }

    /// See [`TaskStore::held_claims`](crate::port::TaskStore::held_claims).
    pub fn held_claims(&self, session: &SessionId) -> Vec<(TaskId, Token)> {
        let claimed = self.claimed.iter().filter_map(|id| self.tasks.get(id));
        let mine = claimed.filter(|task| task.session.as_ref() == Some(session));
        mine.map(|task| (task.id, task.token)).collect()
    }

    /// Rejects callers that may not claim.
    fn admit(
        &self,
        request: &ClaimBatchRequest,
        queue: &QueueRecord,
        observation: &dyn LeaseObservation,
    ) -> Result<(), ClaimRefusal> {
        let settings = &queue.settings;
        may_assign(settings.mode, settings.fallback, &request.authority, observation)?;
        if self.pause_of(&request.queue).is_some() {
            return Err(ClaimRefusal::Paused);
        }
        for claim_request in &request.requests {
            if let Some(session) =
                claim_request.session.as_ref().filter(|session| !observation.is_live(session))
            {
                return Err(ClaimRefusal::SessionEnded(session.clone()));
            }
            let worker = (request.queue.namespace.clone(), claim_request.worker.name.clone());
            if settings.require_approval && !self.approvals.contains_key(&worker) {
                return Err(ClaimRefusal::NotApproved(worker.1));
            }
        }
        Ok(())
    }

    /// Makes up to `limit` due tasks of a queue ready. Returns the number of tasks.
    pub(super) fn promote(&mut self, key: &QueueKey, now_ms: i64, limit: u32) -> u64 {
        let Some(queue) = self.queues.get(key) else { return 0 };
        let due = queue.scheduled.iter().take_while(|(at, _)| *at <= now_ms).take(limit as usize);
        let due: Vec<TaskId> = due.map(|(_, id)| *id).collect();
        for id in &due {
            self.change(*id, now_ms, |task| task.state = TaskState::Ready);
        }
        due.len() as u64
    }

    /// Serves one claim request.
    fn serve(
        &mut self,
        key: &QueueKey,
        claim_request: &ClaimRequest,
        pass: &mut ClaimPass,
    ) -> Vec<ClaimedTask> {
        if let Some(worker) =
            self.workers.get_mut(&(key.namespace.clone(), claim_request.worker.name.clone()))
        {
            worker.seen_at = pass.now_ms;
        }
        let (mut got, mut after) = (Vec::new(), None);
        let requirements_list = self.requirements_list(key, &claim_request.worker);
        while got.len() < claim_request.limit as usize && !pass.full && self.has_room(key, pass) {
            let Some((requirements, place)) = self.next(key, &requirements_list, after) else { break };
            after = Some(place);
            let Some(task) = self.tasks.get(&place.1) else { continue };
            if let Some(at) = self.reserved_until(task, &requirements, &claim_request.worker, pass.now_ms) {
                pass.look_at(at);
            } else if self.is_at_key_limit(task) {
                self.change(place.1, pass.now_ms, |task| task.state = TaskState::Blocked);
            } else if pass.carries(self.weight(task)) {
                got.extend(self.begin(place.1, claim_request, pass));
            } else {
                // The response is full; the next call returns this task.
                pass.full = true;
                pass.look_at(pass.now_ms);
            }
        }
        if got.len() < claim_request.limit as usize {
            pass.short = true;
            let queue = self.queues.get(key);
            queue.and_then(|queue| queue.scheduled.first()).iter().for_each(|(at, _)| pass.look_at(*at));
        }
        got
    }

    fn has_room(&self, key: &QueueKey, pass: &mut ClaimPass) -> bool {
        let Some(queue) = self.queues.get(key) else { return false };
        let pause = queue.bucket(pass.now_ms).and_then(|(rate, bucket)| bucket.next_in_ms(rate));
        if let Some(pause) = pause {
            pass.look_at(pass.now_ms.saturating_add_unsigned(pause));
        }
        queue.room(pass.now_ms) > 0
    }

    /// The distinct requirements of the ready tasks of a queue that this worker may ever match.
    fn requirements_list(&self, key: &QueueKey, worker: &WorkerProfile) -> Vec<Arc<Requirements>> {
        let ready = self.queues.get(key).into_iter().flat_map(|queue| queue.ready.keys());
        ready.filter(|requirements| requirements.may_match(worker)).cloned().collect()
    }

    /// The first ready task after this position that has one of these requirements.
    fn next(
        &self,
        key: &QueueKey,
        requirements_list: &[Arc<Requirements>],
        after: Option<(i64, TaskId)>,
    ) -> Option<(Arc<Requirements>, (i64, TaskId))> {
        let queue = self.queues.get(key)?;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let first = |requirements: &Arc<Requirements>| {
            let place = queue.ready.get(requirements)?.range((from, Bound::Unbounded)).next()?;
            Some((requirements.clone(), *place))
        };
        requirements_list.iter().filter_map(first).min_by_key(|(_, place)| *place)
    }

    /// The end of the preference window of a task, if this worker has no preferred tag and the window is not over.
    fn reserved_until(
        &self,
        task: &TaskRecord,
        requirements: &Requirements,
        worker: &WorkerProfile,
        now_ms: i64,
    ) -> Option<i64> {
        let prefer_ms = self.queues.get(&task.queue)?.settings.preference_window_ms;
        let ready_at = task.ready_at.unwrap_or(now_ms);
        let ready_for = Duration::from_millis(u64::try_from(now_ms - ready_at).unwrap_or(0));
        let fits = requirements.matches_now(worker, ready_for, Duration::from_millis(prefer_ms));
        (!fits).then(|| ready_at.saturating_add_unsigned(prefer_ms))
    }

    /// Claims a task.
    fn begin(&mut self, id: TaskId, claim_request: &ClaimRequest, pass: &ClaimPass) -> Option<ClaimedTask> {
        let now_ms = pass.now_ms;
        let queue = self.queues.get_mut(&self.tasks.get(&id)?.queue)?;
        queue.begin(now_ms);
        let claim_seq = pass.in_order.then(|| {
            queue.claim_seq += 1;
            queue.claim_seq
        });
        self.change(id, now_ms, |task| {
            let ends = [claim_request.claim_timeout_ms, task.new.max_run_ms].into_iter().flatten().min();
            task.state = TaskState::Claimed;
            task.attempt += 1;
            task.token = task.token.next(pass.epoch);
            task.claim_seq = claim_seq;
            (task.session, task.worker) =
                (claim_request.session.clone(), Some(claim_request.worker.name.clone()));
            (task.progress, task.claimed_at) = (None, Some(now_ms));
            task.deadline = ends.map(|ms| now_ms.saturating_add_unsigned(ms));
        });
        self.tasks.get(&id).map(|task| self.handed(task))
    }
}

/// State of one claim call.
struct ClaimPass {
    epoch: u32,
    in_order: bool,
    now_ms: i64,
    /// When more tasks may become claimable.
    next_ms: Option<i64>,
    /// Whether a request got fewer tasks than its limit.
    short: bool,
    /// Bytes and tasks returned so far.
    bytes: usize,
    served: usize,
    /// Whether the next task would exceed the maximum size.
    full: bool,
}

impl ClaimPass {
    /// Whether one more task of this size fits; if so, counts it.
    fn carries(&mut self, bytes: usize) -> bool {
        let sum = self.bytes.saturating_add(bytes);
        let fits = self.served == 0 || sum <= CLAIM_BYTES;
        if fits {
            (self.bytes, self.served) = (sum, self.served + 1);
        }
        fits
    }

    fn look_at(&mut self, at_ms: i64) {
        self.next_ms = Some(self.next_ms.map_or(at_ms, |next| next.min(at_ms)));
    }
}
