//! Workers, as they make themselves known and are approved.

use std::collections::BTreeSet;

use super::{Ledger, Witness};
use crate::Name;
use crate::port::{NewWorker, QueueKey, WorkerView};

/// For how long a worker without a session counts as living after it was seen, in milliseconds.
const SEEN_FOR_MS: i64 = 60_000;

/// For how long a worker is remembered that nobody sees, in milliseconds.
const KEPT_FOR_MS: i64 = 86_400_000;

/// A worker that made itself known.
#[derive(Clone, Debug)]
pub(super) struct Worker {
    new: NewWorker,
    pub(super) seen_at: i64,
}

impl Ledger {
    /// See [`Desk::register`](crate::port::Desk::register).
    pub fn register(&mut self, namespace: &Name, worker: &NewWorker, now_ms: i64) {
        let key = (namespace.clone(), worker.name.clone());
        self.workers.insert(key, Worker { new: worker.clone(), seen_at: now_ms });
    }

    /// See [`Desk::approve`](crate::port::Desk::approve).
    pub fn approve(&mut self, namespace: &Name, worker: &str, by: Option<&str>) -> bool {
        let key = (namespace.clone(), worker.to_string());
        if self.approvals.contains_key(&key) == by.is_some() {
            return false;
        }
        match by {
            Some(by) => self.approvals.insert(key, by.into()),
            None => self.approvals.remove(&key),
        };
        let queues =
            self.queues.iter().filter(|(key, it)| key.namespace == *namespace && it.settings.approval);
        let queues: Vec<QueueKey> = queues.map(|(key, _)| key.clone()).collect();
        queues.iter().for_each(|key| self.ring(key));
        true
    }

    /// See [`Desk::workers`](crate::port::Desk::workers). One that is approved and not yet known is shown too.
    pub fn workers(&self, namespace: Option<&Name>, witness: &dyn Witness, now_ms: i64) -> Vec<WorkerView> {
        let wanted = |key: &&(Name, String)| namespace.is_none_or(|namespace| key.0 == *namespace);
        let known: BTreeSet<&(Name, String)> =
            self.workers.keys().chain(self.approvals.keys()).filter(wanted).collect();
        known.into_iter().map(|key| self.worker(key, witness, now_ms)).collect()
    }

    /// Those that nobody has seen for long. An approval is somebody's word about a name, and stays until it is taken back.
    pub(super) fn forget_workers(&mut self, witness: &dyn Witness, clock_ms: i64) {
        let approvals = &self.approvals;
        self.workers.retain(|key, worker| {
            let session = worker.new.session.as_ref().and_then(|id| witness.session(id));
            let seen_at = session.map_or(worker.seen_at, |it| it.beat_at_ms.max(worker.seen_at));
            approvals.contains_key(key)
                || session.is_some_and(|session| session.live)
                || seen_at.saturating_add(KEPT_FOR_MS) >= clock_ms
        });
    }

    fn worker(&self, key: &(Name, String), witness: &dyn Witness, now_ms: i64) -> WorkerView {
        let (namespace, name) = key;
        let known = self.workers.get(key);
        let worker = known.map_or_else(|| named(name), |worker| worker.new.clone());
        let seen_at = known.map_or(0, |worker| worker.seen_at);
        let session = worker.session.as_ref().map(|id| witness.session(id));
        let claimed = self.claimed.iter().filter_map(|id| self.tasks.get(id));
        let mine = claimed.filter(|it| it.queue.namespace == *namespace && it.worker.as_ref() == Some(name));
        WorkerView {
            namespace: namespace.clone(),
            approved_by: self.approvals.get(key).cloned(),
            live: match session {
                Some(session) => session.is_some_and(|session| session.live),
                None => known.is_some() && now_ms.saturating_sub(seen_at) < SEEN_FOR_MS,
            },
            seen_at_ms: session.flatten().map_or(seen_at, |session| session.beat_at_ms.max(seen_at)),
            claimed: mine.count() as u64,
            worker,
        }
    }
}

/// A worker of which no more is known than its name.
fn named(name: &str) -> NewWorker {
    NewWorker {
        name: name.into(),
        kind: String::new(),
        tags: Vec::new(),
        kinds: Vec::new(),
        queues: Vec::new(),
        location: String::new(),
        capacity: 0,
        session: None,
    }
}
