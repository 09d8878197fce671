//! A queue's row, and the lists of its tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::rate::Bucket;
use super::task::Task;
use super::{Ledger, Witness};
use crate::Name;
use crate::claim::Demand;
use crate::port::{
    Authority, ClaimRefusal, Fallback, Mode, Pause, PoolKey, QueueKey, QueueSettings, QueueView, RateLimit,
    TaskId, TaskState, Wake,
};

/// Tasks by their place.
pub(super) type Places = BTreeSet<(i64, TaskId)>;

/// A queue.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    pub(super) settings: QueueSettings,
    pub(super) paused: Option<Pause>,
    pub(super) counts: BTreeMap<TaskState, u64>,
    /// By effective time.
    pub(super) ready: BTreeMap<Arc<Demand>, Places>,
    /// By the time for which they are scheduled.
    pub(super) scheduled: Places,
    /// By when they will have waited for too long.
    pub(super) impatient: Places,
    /// By when they ended.
    pub(super) finished: Places,
    /// The last turn that was handed out.
    pub(super) turn: u64,
    bucket: Option<Bucket>,
}

impl Queue {
    pub(super) fn count(&self, state: TaskState) -> u64 {
        self.counts.get(&state).copied().unwrap_or(0)
    }

    /// Puts a task on the lists where it belongs.
    pub(super) fn list(&mut self, task: &Task) {
        *self.counts.entry(task.state).or_default() += 1;
        match task.state {
            TaskState::Ready => {
                self.ready.entry(task.demand.clone()).or_default().insert(task.place());
            }
            TaskState::Scheduled => {
                self.scheduled.insert((task.run_at.unwrap_or(0), task.id));
            }
            state if state.is_final() => {
                self.finished.insert((task.finished_at.unwrap_or(0), task.id));
            }
            _ => {}
        }
        self.impatient.extend(task.gives_up_at().map(|at| (at, task.id)));
    }

    /// Takes a task off the lists.
    pub(super) fn unlist(&mut self, task: &Task) {
        if let Some(count) = self.counts.get_mut(&task.state) {
            *count -= 1;
        }
        match task.state {
            TaskState::Ready => {
                if let Some(places) = self.ready.get_mut(&task.demand) {
                    places.remove(&task.place());
                    if places.is_empty() {
                        self.ready.remove(&task.demand);
                    }
                }
            }
            TaskState::Scheduled => {
                self.scheduled.remove(&(task.run_at.unwrap_or(0), task.id));
            }
            state if state.is_final() => {
                self.finished.remove(&(task.finished_at.unwrap_or(0), task.id));
            }
            _ => {}
        }
        if let Some(at) = task.gives_up_at() {
            self.impatient.remove(&(at, task.id));
        }
    }

    /// The rate and what is left of it now, if there is one.
    pub(super) fn bucket(&self, now_ms: i64) -> Option<(RateLimit, Bucket)> {
        let rate = self.settings.rate?;
        let bucket = self.bucket.map_or(Bucket::full(rate, now_ms), |bucket| bucket.now(rate, now_ms));
        Some((rate, bucket))
    }

    /// How many claims may begin now, as the queue's rate and its limit have it.
    pub(super) fn room(&self, now_ms: i64) -> u64 {
        let rate = self.bucket(now_ms).map_or(u64::MAX, |(rate, bucket)| bucket.claims(rate));
        let most = self.settings.max_claimed.map_or(u64::MAX, u64::from);
        rate.min(most.saturating_sub(self.count(TaskState::Claimed)))
    }

    /// A clock that was put back: the bucket fills from here on, and nobody waits until the clock has caught up.
    pub(super) fn set_back(&mut self, now_ms: i64) {
        if let (Some(bucket), Some(rate)) = (self.bucket, self.settings.rate) {
            self.bucket = Some(bucket.now(rate, bucket.at_ms().min(now_ms)));
        }
    }

    /// A claim begins.
    pub(super) fn begin(&mut self, now_ms: i64) {
        if let Some((rate, mut bucket)) = self.bucket(now_ms) {
            bucket.take(rate);
            self.bucket = Some(bucket);
        }
    }
}

/// Whether somebody may hand out, in a queue or pool that is set like this.
pub(super) fn may_hand_out(
    mode: Mode,
    fallback: Fallback,
    authority: &Authority,
    witness: &dyn Witness,
) -> Result<(), ClaimRefusal> {
    match (authority, mode) {
        (Authority::Direct | Authority::Fallback, Mode::Distributed) => Ok(()),
        (Authority::Fallback, Mode::Exclusive) if fallback == Fallback::Distributed => Ok(()),
        (Authority::Leader { session, token }, Mode::Exclusive) => {
            if witness.leads(session, *token) {
                Ok(())
            } else {
                Err(ClaimRefusal::NotLeader)
            }
        }
        _ => Err(ClaimRefusal::Mode(mode)),
    }
}

impl Ledger {
    /// The pause of a queue: its own, or its namespace's.
    pub(super) fn pause_of(&self, key: &QueueKey) -> Option<&Pause> {
        let own = self.queues.get(key).and_then(|queue| queue.paused.as_ref());
        own.or_else(|| self.paused.get(&key.namespace))
    }

    /// See [`Desk::queues`](crate::port::Desk::queues).
    pub fn queues(&self, namespace: Option<&Name>, now_ms: i64) -> Vec<QueueView> {
        let wanted = |key: &&QueueKey| namespace.is_none_or(|namespace| key.namespace == *namespace);
        self.queues.keys().filter(wanted).filter_map(|key| self.queue(key, now_ms)).collect()
    }

    /// See [`Desk::queue`](crate::port::Desk::queue).
    pub fn queue(&self, key: &QueueKey, now_ms: i64) -> Option<QueueView> {
        let queue = self.queues.get(key)?;
        let ready = queue.ready.values().flatten().filter_map(|(_, id)| self.tasks.get(id)?.ready_at);
        Some(QueueView {
            key: key.clone(),
            settings: queue.settings,
            paused: self.pause_of(key).cloned(),
            counts: queue.counts.iter().filter(|(_, n)| **n > 0).map(|(state, n)| (*state, *n)).collect(),
            oldest_ready_ms: ready.min().map(|at| u64::try_from(now_ms - at).unwrap_or(0)),
        })
    }

    /// See [`Desk::set_queue`](crate::port::Desk::set_queue).
    pub fn set_queue(&mut self, key: &QueueKey, settings: &QueueSettings) {
        let queue = self.queues.entry(key.clone()).or_default();
        if queue.settings.rate != settings.rate {
            queue.bucket = None;
        }
        queue.settings = *settings;
        // Whatever kept somebody waiting may be no more.
        self.ring(key);
    }

    /// See [`Desk::set_queue_paused`](crate::port::Desk::set_queue_paused).
    pub fn set_queue_paused(
        &mut self,
        namespace: &Name,
        queue: Option<&Name>,
        pause: Option<&Pause>,
    ) -> bool {
        let here = match queue {
            Some(name) => {
                let key = QueueKey::new(namespace.clone(), name.clone());
                let paused = &mut self.queues.entry(key.clone()).or_default().paused;
                let changes = paused.is_some() != pause.is_some();
                if changes {
                    *paused = pause.cloned();
                }
                if !changes {
                    return false;
                }
                vec![key]
            }
            None => {
                if self.paused.contains_key(namespace) == pause.is_some() {
                    return false;
                }
                match pause {
                    Some(pause) => self.paused.insert(namespace.clone(), pause.clone()),
                    None => self.paused.remove(namespace),
                };
                self.queues.keys().filter(|key| key.namespace == *namespace).cloned().collect()
            }
        };
        if pause.is_none() {
            here.iter().for_each(|key| self.ring(key));
            let pools = self.pools.keys().filter(|key| queue.is_none() && key.namespace == *namespace);
            let wakes: Vec<Wake> = pools.cloned().map(|key: PoolKey| Wake::Pool(key)).collect();
            self.wakes.extend(wakes);
        }
        true
    }
}
