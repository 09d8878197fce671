//! How tasks are handed out.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use super::queue::{Queue, may_hand_out};
use super::task::Task;
use super::{Ledger, Witness};
use crate::claim::Demand;
use crate::port::{
    Authority, CLAIM_BYTES, ClaimAnswer, ClaimAsk, ClaimRefusal, ClaimedTask, Profile, QueueKey, Seat,
    TaskId, TaskState,
};
use crate::{SessionId, Token};

impl Ledger {
    /// See [`Tasks::claim`](crate::port::Tasks::claim).
    pub fn claim(&mut self, ask: &ClaimAsk, witness: &dyn Witness, now_ms: i64) -> ClaimAnswer {
        let Some(queue) = self.queues.get(&ask.queue) else {
            return ClaimAnswer::Served { tasks: vec![Vec::new(); ask.seats.len()], next_in: None };
        };
        if let Err(refusal) = self.admit(ask, queue, witness) {
            return ClaimAnswer::Refused(refusal);
        }
        if let Some(queue) = self.queues.get_mut(&ask.queue) {
            queue.set_back(now_ms);
        }
        self.promote(&ask.queue, now_ms, u32::MAX);
        let in_order = matches!(ask.authority, Authority::Leader { .. });
        let mut round = Round {
            epoch: witness.epoch(),
            in_order,
            now_ms,
            next_ms: None,
            short: false,
            bytes: 0,
            served: 0,
            full: false,
        };
        let tasks = ask.seats.iter().map(|seat| self.serve(&ask.queue, seat, &mut round)).collect();
        let soon = |ms: i64| Duration::from_millis(u64::try_from(ms.saturating_sub(now_ms)).unwrap_or(0));
        ClaimAnswer::Served { tasks, next_in: round.next_ms.filter(|_| round.short).map(soon) }
    }

    /// See [`Tasks::held`](crate::port::Tasks::held).
    pub fn held(&self, session: &SessionId) -> Vec<(TaskId, Token)> {
        let claimed = self.claimed.iter().filter_map(|id| self.tasks.get(id));
        let mine = claimed.filter(|task| task.session.as_ref() == Some(session));
        mine.map(|task| (task.id, task.token)).collect()
    }

    /// Refuses who may not be handed anything.
    fn admit(&self, ask: &ClaimAsk, queue: &Queue, witness: &dyn Witness) -> Result<(), ClaimRefusal> {
        let settings = &queue.settings;
        may_hand_out(settings.mode, settings.fallback, &ask.authority, witness)?;
        if self.pause_of(&ask.queue).is_some() {
            return Err(ClaimRefusal::Paused);
        }
        for seat in &ask.seats {
            if let Some(session) = seat.session.as_ref().filter(|session| !witness.is_live(session)) {
                return Err(ClaimRefusal::Gone(session.clone()));
            }
            let worker = (ask.queue.namespace.clone(), seat.worker.name.clone());
            if settings.approval && !self.approvals.contains_key(&worker) {
                return Err(ClaimRefusal::NotApproved(worker.1));
            }
        }
        Ok(())
    }

    /// Makes ready what is due in a queue, at most so many. How many were.
    pub(super) fn promote(&mut self, key: &QueueKey, now_ms: i64, limit: u32) -> u64 {
        let Some(queue) = self.queues.get(key) else { return 0 };
        let due = queue.scheduled.iter().take_while(|(at, _)| *at <= now_ms).take(limit as usize);
        let due: Vec<TaskId> = due.map(|(_, id)| *id).collect();
        for id in &due {
            self.change(*id, now_ms, |task| task.state = TaskState::Ready);
        }
        due.len() as u64
    }

    /// Hands one worker what it may have, as much as it asks for.
    fn serve(&mut self, key: &QueueKey, seat: &Seat, round: &mut Round) -> Vec<ClaimedTask> {
        if let Some(worker) = self.workers.get_mut(&(key.namespace.clone(), seat.worker.name.clone())) {
            worker.seen_at = round.now_ms;
        }
        let (mut got, mut after) = (Vec::new(), None);
        let demands = self.demands(key, &seat.worker);
        while got.len() < seat.limit as usize && !round.full && self.has_room(key, round) {
            let Some((demand, place)) = self.next(key, &demands, after) else { break };
            after = Some(place);
            let Some(task) = self.tasks.get(&place.1) else { continue };
            if let Some(at) = self.reserved_until(task, &demand, &seat.worker, round.now_ms) {
                round.look_at(at);
            } else if self.is_crowded(task) {
                self.change(place.1, round.now_ms, |task| task.state = TaskState::Held);
            } else if round.carries(self.weight(task)) {
                got.extend(self.begin(place.1, seat, round));
            } else {
                // The rest is for the next call.
                round.full = true;
                round.look_at(round.now_ms);
            }
        }
        if got.len() < seat.limit as usize {
            round.short = true;
            let queue = self.queues.get(key);
            queue.and_then(|queue| queue.scheduled.first()).iter().for_each(|(at, _)| round.look_at(*at));
        }
        got
    }

    fn has_room(&self, key: &QueueKey, round: &mut Round) -> bool {
        let Some(queue) = self.queues.get(key) else { return false };
        let pause = queue.bucket(round.now_ms).and_then(|(rate, bucket)| bucket.next_in_ms(rate));
        if let Some(pause) = pause {
            round.look_at(round.now_ms.saturating_add_unsigned(pause));
        }
        queue.room(round.now_ms) > 0
    }

    /// The demands of ready tasks that this worker may ever have.
    fn demands(&self, key: &QueueKey, worker: &Profile) -> Vec<Arc<Demand>> {
        let ready = self.queues.get(key).into_iter().flat_map(|queue| queue.ready.keys());
        ready.filter(|demand| demand.suits(worker)).cloned().collect()
    }

    /// The first ready task of these demands after this place.
    fn next(
        &self,
        key: &QueueKey,
        demands: &[Arc<Demand>],
        after: Option<(i64, TaskId)>,
    ) -> Option<(Arc<Demand>, (i64, TaskId))> {
        let queue = self.queues.get(key)?;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let first = |demand: &Arc<Demand>| {
            let place = queue.ready.get(demand)?.range((from, Bound::Unbounded)).next()?;
            Some((demand.clone(), *place))
        };
        demands.iter().filter_map(first).min_by_key(|(_, place)| *place)
    }

    /// Until when a task is for workers that it prefers, if this one is none of them.
    fn reserved_until(&self, task: &Task, demand: &Demand, worker: &Profile, now_ms: i64) -> Option<i64> {
        let prefer_ms = self.queues.get(&task.queue)?.settings.prefer_ms;
        let ready_at = task.ready_at.unwrap_or(now_ms);
        let ready_for = Duration::from_millis(u64::try_from(now_ms - ready_at).unwrap_or(0));
        let fits = demand.fits(worker, ready_for, Duration::from_millis(prefer_ms));
        (!fits).then(|| ready_at.saturating_add_unsigned(prefer_ms))
    }

    /// The claim begins.
    fn begin(&mut self, id: TaskId, seat: &Seat, round: &Round) -> Option<ClaimedTask> {
        let now_ms = round.now_ms;
        let queue = self.queues.get_mut(&self.tasks.get(&id)?.queue)?;
        queue.begin(now_ms);
        let turn = round.in_order.then(|| {
            queue.turn += 1;
            queue.turn
        });
        self.change(id, now_ms, |task| {
            let ends = [seat.hold_ms, task.new.max_run_ms].into_iter().flatten().min();
            task.state = TaskState::Claimed;
            task.attempt += 1;
            task.token = task.token.next(round.epoch);
            task.turn = turn;
            (task.session, task.worker) = (seat.session.clone(), Some(seat.worker.name.clone()));
            (task.progress, task.claimed_at) = (None, Some(now_ms));
            task.deadline = ends.map(|ms| now_ms.saturating_add_unsigned(ms));
        });
        self.tasks.get(&id).map(|task| self.handed(task))
    }
}

/// What one call knows.
struct Round {
    epoch: u32,
    in_order: bool,
    now_ms: i64,
    /// When there may be more.
    next_ms: Option<i64>,
    /// Whether a seat got less than it wanted.
    short: bool,
    /// How many bytes are handed out, and in how many tasks.
    bytes: usize,
    served: usize,
    /// Whether the next would be too much.
    full: bool,
}

impl Round {
    /// Whether so many bytes go along, in one more task; then they do.
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
