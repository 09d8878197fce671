//! Queues and the indexes of their tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::rate::RateBucket;
use super::task::TaskRecord;
use super::{LeaseObservation, Work};
use crate::Name;
use crate::port::{
    AssignmentMode, BrokerFallback, ClaimAuthority, ClaimRefusal, Notification, Pause, PoolKey, QueueKey,
    QueueSettings, QueueView, RateLimit, TaskId, TaskState,
};
use crate::rules::work::Requirements;

/// Task ids ordered by a time.
pub(super) type TaskOrder = BTreeSet<(i64, TaskId)>;

/// A queue.
#[derive(Clone, Debug, Default)]
pub(super) struct QueueRecord {
    pub(super) settings: QueueSettings,
    pub(super) paused: Option<Pause>,
    pub(super) counts: BTreeMap<TaskState, u64>,
    /// Ready tasks by requirements, ordered by effective time.
    pub(super) ready: BTreeMap<Arc<Requirements>, TaskOrder>,
    /// Scheduled tasks, ordered by their time.
    pub(super) scheduled: TaskOrder,
    /// Pending tasks, ordered by the end of their maximum wait.
    pub(super) expiring_waits: TaskOrder,
    /// Finished tasks, ordered by their end.
    pub(super) finished: TaskOrder,
    /// Last claim sequence.
    pub(super) claim_seq: u64,
    bucket: Option<RateBucket>,
}

impl QueueRecord {
    pub(super) fn count(&self, state: TaskState) -> u64 {
        self.counts.get(&state).copied().unwrap_or(0)
    }

    /// Adds a task to the indexes.
    pub(super) fn list(&mut self, task: &TaskRecord) {
        *self.counts.entry(task.state).or_default() += 1;
        match task.state {
            TaskState::Ready => {
                self.ready.entry(task.requirements.clone()).or_default().insert(task.place());
            }
            TaskState::Scheduled => {
                self.scheduled.insert((task.run_at.unwrap_or(0), task.id));
            }
            state if state.is_final() => {
                self.finished.insert((task.finished_at.unwrap_or(0), task.id));
            }
            _ => {}
        }
        self.expiring_waits.extend(task.gives_up_at().map(|at| (at, task.id)));
    }

    /// Removes a task from the indexes.
    pub(super) fn unlist(&mut self, task: &TaskRecord) {
        if let Some(count) = self.counts.get_mut(&task.state) {
            *count -= 1;
        }
        match task.state {
            TaskState::Ready => {
                if let Some(locations) = self.ready.get_mut(&task.requirements) {
                    locations.remove(&task.place());
                    if locations.is_empty() {
                        self.ready.remove(&task.requirements);
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
            self.expiring_waits.remove(&(at, task.id));
        }
    }

    /// The rate limit with its current bucket, if there is one.
    pub(super) fn bucket(&self, now_ms: i64) -> Option<(RateLimit, RateBucket)> {
        let rate = self.settings.rate?;
        let bucket = self.bucket.map_or(RateBucket::full(rate, now_ms), |bucket| bucket.now(rate, now_ms));
        Some((rate, bucket))
    }

    /// Number of claims that the rate limit and the claim limit allow now.
    pub(super) fn room(&self, now_ms: i64) -> u64 {
        let rate = self.bucket(now_ms).map_or(u64::MAX, |(rate, bucket)| bucket.claims(rate));
        let most = self.settings.max_claimed.map_or(u64::MAX, u64::from);
        rate.min(most.saturating_sub(self.count(TaskState::Claimed)))
    }

    /// Restarts the bucket after a backward step of the clock. It fills from the new time on, so that no claim waits
    /// until the clock has caught up.
    pub(super) fn restart_rate(&mut self, now_ms: i64) {
        if let (Some(bucket), Some(rate)) = (self.bucket, self.settings.rate) {
            self.bucket = Some(bucket.now(rate, bucket.at_ms().min(now_ms)));
        }
    }

    /// Counts a claim.
    pub(super) fn begin(&mut self, now_ms: i64) {
        if let Some((rate, mut bucket)) = self.bucket(now_ms) {
            bucket.take(rate);
            self.bucket = Some(bucket);
        }
    }
}

/// Whether the caller may assign the tasks of a queue, or the resources of a pool, with these settings.
pub(super) fn may_assign(
    mode: AssignmentMode,
    fallback: BrokerFallback,
    authority: &ClaimAuthority,
    observation: &dyn LeaseObservation,
) -> Result<(), ClaimRefusal> {
    match (authority, mode) {
        (ClaimAuthority::Direct | ClaimAuthority::Fallback, AssignmentMode::Distributed) => Ok(()),
        (ClaimAuthority::Fallback, AssignmentMode::Exclusive) if fallback == BrokerFallback::Distributed => {
            Ok(())
        }
        (ClaimAuthority::Leader { session, token }, AssignmentMode::Exclusive) => {
            if observation.leads(session, *token) { Ok(()) } else { Err(ClaimRefusal::NotLeader) }
        }
        _ => Err(ClaimRefusal::Mode(mode)),
    }
}

impl Work {
    /// The pause of a queue or of its namespace.
    pub(super) fn pause_of(&self, key: &QueueKey) -> Option<&Pause> {
        let own = self.queues.get(key).and_then(|queue| queue.paused.as_ref());
        own.or_else(|| self.paused.get(&key.namespace))
    }

    /// See [`TaskAdmin::queues`](crate::port::TaskAdmin::queues).
    pub fn queues(&self, namespace: Option<&Name>, now_ms: i64) -> Vec<QueueView> {
        let matches_filter = |key: &&QueueKey| namespace.is_none_or(|namespace| key.namespace == *namespace);
        self.queues.keys().filter(matches_filter).filter_map(|key| self.queue(key, now_ms)).collect()
    }

    /// See [`TaskAdmin::queue`](crate::port::TaskAdmin::queue).
    pub fn queue(&self, key: &QueueKey, now_ms: i64) -> Option<QueueView> {
        let queue = self.queues.get(key)?;
        let ready = queue.ready.values().flatten().filter_map(|(_, id)| self.tasks.get(id)?.ready_at);
        Some(QueueView {
            key: key.clone(),
            settings: queue.settings,
            paused: self.pause_of(key).cloned(),
            counts: queue.counts.iter().filter(|(_, n)| **n > 0).map(|(state, n)| (*state, *n)).collect(),
            oldest_ready_age_ms: ready.min().map(|at| u64::try_from(now_ms - at).unwrap_or(0)),
        })
    }

    /// See [`TaskAdmin::set_queue`](crate::port::TaskAdmin::set_queue).
    pub fn set_queue(&mut self, key: &QueueKey, settings: &QueueSettings) {
        let queue = self.queues.entry(key.clone()).or_default();
        if queue.settings.rate != settings.rate {
            queue.bucket = None;
        }
        queue.settings = *settings;
        // The change may have removed the reason why workers wait.
        self.notify_queue(key);
    }

    /// See [`TaskAdmin::set_queue_paused`](crate::port::TaskAdmin::set_queue_paused).
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
            here.iter().for_each(|key| self.notify_queue(key));
            let pools = self.pools.keys().filter(|key| queue.is_none() && key.namespace == *namespace);
            let notifications: Vec<Notification> =
                pools.cloned().map(|key: PoolKey| Notification::PoolChanged(key)).collect();
            self.notifications.extend(notifications);
        }
        true
    }
}
