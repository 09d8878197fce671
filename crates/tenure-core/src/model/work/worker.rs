//! Workers: registration and approval.

use std::collections::BTreeSet;

use super::{LeaseObservation, Work};
use crate::Name;
use crate::port::{NewWorker, QueueKey, WorkerView};

/// How long a worker without a session counts as online after it was last seen, in milliseconds.
const SEEN_FOR_MS: i64 = 60_000;

/// How long an unseen worker is kept, in milliseconds.
const KEPT_FOR_MS: i64 = 86_400_000;

/// A registered worker.
#[derive(Clone, Debug)]
pub(super) struct WorkerRecord {
    new: NewWorker,
    pub(super) seen_at: i64,
}

impl Work {
    /// See [`TaskAdmin::register_worker`](crate::port::TaskAdmin::register_worker).
    pub fn register_worker(&mut self, namespace: &Name, worker: &NewWorker, now_ms: i64) {
        let key = (namespace.clone(), worker.name.clone());
        self.workers.insert(key, WorkerRecord { new: worker.clone(), seen_at: now_ms });
    }

    /// See [`TaskAdmin::set_worker_approval`](crate::port::TaskAdmin::set_worker_approval).
    pub fn set_worker_approval(&mut self, namespace: &Name, worker: &str, by: Option<&str>) -> bool {
        let key = (namespace.clone(), worker.to_string());
        if self.approvals.contains_key(&key) == by.is_some() {
            return false;
        }
        match by {
            Some(by) => self.approvals.insert(key, by.into()),
            None => self.approvals.remove(&key),
        };
        let queues = self
            .queues
            .iter()
            .filter(|(key, it)| key.namespace == *namespace && it.settings.require_approval);
        let queues: Vec<QueueKey> = queues.map(|(key, _)| key.clone()).collect();
        queues.iter().for_each(|key| self.notify_queue(key));
        true
    }

    /// See [`TaskAdmin::workers`](crate::port::TaskAdmin::workers). Includes approved workers that have not
    /// registered yet.
    pub fn workers(
        &self,
        namespace: Option<&Name>,
        observation: &dyn LeaseObservation,
        now_ms: i64,
    ) -> Vec<WorkerView> {
        let matches_filter = |key: &&(Name, String)| namespace.is_none_or(|namespace| key.0 == *namespace);
        let known: BTreeSet<&(Name, String)> =
            self.workers.keys().chain(self.approvals.keys()).filter(matches_filter).collect();
        known.into_iter().map(|key| self.worker(key, observation, now_ms)).collect()
    }

    /// Prunes workers that were not seen for long. An approval stays until it is revoked.
    pub(super) fn prune_workers(&mut self, observation: &dyn LeaseObservation, clock_ms: i64) {
        let approvals = &self.approvals;
        self.workers.retain(|key, worker| {
            let session = worker.new.session.as_ref().and_then(|id| observation.session(id));
            let seen_at = session.map_or(worker.seen_at, |it| it.heartbeat_at_ms.max(worker.seen_at));
            approvals.contains_key(key)
                || session.is_some_and(|session| session.live)
                || seen_at.saturating_add(KEPT_FOR_MS) >= clock_ms
        });
    }

    fn worker(&self, key: &(Name, String), observation: &dyn LeaseObservation, now_ms: i64) -> WorkerView {
        let (namespace, name) = key;
        let known = self.workers.get(key);
        let worker = known.map_or_else(|| named(name), |worker| worker.new.clone());
        let seen_at = known.map_or(0, |worker| worker.seen_at);
        let session = worker.session.as_ref().map(|id| observation.session(id));
        let claimed = self.claimed.iter().filter_map(|id| self.tasks.get(id));
        let mine = claimed.filter(|it| it.queue.namespace == *namespace && it.worker.as_ref() == Some(name));
        WorkerView {
            namespace: namespace.clone(),
            approved_by: self.approvals.get(key).cloned(),
            online: match session {
                Some(session) => session.is_some_and(|session| session.live),
                None => known.is_some() && now_ms.saturating_sub(seen_at) < SEEN_FOR_MS,
            },
            last_seen_at_ms: session
                .flatten()
                .map_or(seen_at, |session| session.heartbeat_at_ms.max(seen_at)),
            claimed_count: mine.count() as u64,
            worker,
        }
    }
}

/// A worker that was approved but has not registered: only its name is known.
fn named(name: &str) -> NewWorker {
    NewWorker {
        name: name.into(),
        description: String::new(),
        tags: Vec::new(),
        task_kinds: Vec::new(),
        queues: Vec::new(),
        location: String::new(),
        capacity: 0,
        session: None,
    }
}
