//! Subscriptions of watchers.
//!
//! Watchers of one election share a channel, and so do watchers of a namespace and of everything. An update
//! is rendered once for all of them. A channel keeps only its last few updates: a watcher that falls behind
//! receives the current state instead.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use tenure::port::Term;
use tenure::{ElectionKey, Name};
use tokio::sync::broadcast;

use super::CachedElection;

/// Number of buffered updates: of one election, and of many.
const KEPT: (usize, usize) = (8, 256);

/// Changed election.
#[derive(Debug)]
pub struct ElectionUpdate {
    /// [`number`](super::ElectionsSnapshot::number) of the snapshot.
    pub number: u64,
    /// The election after the change.
    pub entry: Arc<CachedElection>,
    /// Terms that started or ended, oldest first.
    pub transitions: Vec<TermTransition>,
    /// Latest known start or end of any term, by the store's clock.
    pub mark_ms: i64,
    frames: [OnceLock<Bytes>; 2],
}

/// Start or end of a term.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TermTransition {
    /// The term started.
    Started(Term),
    /// The term ended.
    Ended(Term),
}

impl TermTransition {
    /// The term.
    pub fn term(&self) -> &Term {
        match self {
            TermTransition::Started(term) | TermTransition::Ended(term) => term,
        }
    }
}

/// Receiver of updates.
pub type ElectionReceiver = broadcast::Receiver<Arc<ElectionUpdate>>;
type ElectionSender = broadcast::Sender<Arc<ElectionUpdate>>;

/// All subscriptions.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    elections: HashMap<ElectionKey, ElectionSender>,
    namespaces: HashMap<Option<Name>, ElectionSender>,
}

impl ElectionUpdate {
    pub(super) fn new(
        number: u64,
        entry: Arc<CachedElection>,
        transitions: Vec<TermTransition>,
        mark_ms: i64,
    ) -> ElectionUpdate {
        ElectionUpdate { number, entry, transitions, mark_ms, frames: Default::default() }
    }

    /// Rendered update for watchers of one election, or of many; computed once.
    pub(crate) fn frame(&self, many: bool, render: impl FnOnce(&ElectionUpdate) -> Bytes) -> Bytes {
        self.frames[usize::from(many)].get_or_init(|| render(self)).clone()
    }
}

impl Subscriptions {
    /// Subscribe to an election.
    pub(super) fn election(&mut self, key: &ElectionKey) -> ElectionReceiver {
        let channel = self.elections.entry(key.clone());
        channel.or_insert_with(|| broadcast::channel(KEPT.0).0).subscribe()
    }

    /// Subscribe to a namespace, or to everything.
    pub(super) fn namespace(&mut self, namespace: Option<&Name>) -> ElectionReceiver {
        let channel = self.namespaces.entry(namespace.cloned());
        channel.or_insert_with(|| broadcast::channel(KEPT.1).0).subscribe()
    }

    /// Whether this election has watchers.
    pub(super) fn has_watchers(&self, key: &ElectionKey) -> bool {
        let namespace = [None, Some(key.namespace.clone())];
        self.elections.contains_key(key) || namespace.iter().any(|name| self.namespaces.contains_key(name))
    }

    /// Send an update to all watchers.
    pub(super) fn send(&mut self, update: &Arc<ElectionUpdate>) {
        let key = &update.entry.key;
        if let Some(channel) = self.elections.get(key) {
            // No receivers: the channel is removed below.
            let _ = channel.send(update.clone());
        }
        for namespace in [None, Some(key.namespace.clone())] {
            if let Some(channel) = self.namespaces.get(&namespace) {
                let _ = channel.send(update.clone());
            }
        }
    }

    /// Remove channels without receivers.
    pub(super) fn remove_unused(&mut self) {
        self.elections.retain(|_, channel| channel.receiver_count() > 0);
        self.namespaces.retain(|_, channel| channel.receiver_count() > 0);
    }

    /// Disconnect the watchers of this election: they reconnect and receive what they missed.
    pub(super) fn disconnect(&mut self, key: &ElectionKey) {
        self.elections.remove(key);
        self.namespaces.remove(&None);
        self.namespaces.remove(&Some(key.namespace.clone()));
    }
}
