//! Who watches what.
//!
//! Watchers of one election share a room, and so do those of a namespace and of everything. What is said in a room is made
//! once and shared by all who hear it. Whoever does not keep up is told how things stand, not everything that was missed:
//! a room remembers only its last few updates, however slow its slowest watcher is.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use tenure::port::Term;
use tenure::{ElectionKey, Name};
use tokio::sync::broadcast;

use super::Entry;

/// How many updates a room remembers: of one election, and of many.
const KEPT: (usize, usize) = (8, 256);

/// An election looks different than before.
#[derive(Debug)]
pub struct Update {
    /// The [`number`](super::Seen::number) of what was seen.
    pub number: u64,
    /// The election as it is now.
    pub entry: Arc<Entry>,
    /// The terms that began or ended, the oldest first.
    pub news: Vec<News>,
    /// The latest time at which a term is known to have begun or ended anywhere, by the store's wall clock.
    pub mark_ms: i64,
    frames: [OnceLock<Bytes>; 2],
}

/// A term began or ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// It began.
    Began(Term),
    /// It ended.
    Ended(Term),
}

impl News {
    /// The term.
    pub fn term(&self) -> &Term {
        match self {
            News::Began(term) | News::Ended(term) => term,
        }
    }
}

/// Those who watch hear of it here.
pub type Ear = broadcast::Receiver<Arc<Update>>;
type Room = broadcast::Sender<Arc<Update>>;

/// All rooms.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    elections: HashMap<ElectionKey, Room>,
    namespaces: HashMap<Option<Name>, Room>,
}

impl Update {
    pub(super) fn new(number: u64, entry: Arc<Entry>, news: Vec<News>, mark_ms: i64) -> Update {
        Update { number, entry, news, mark_ms, frames: Default::default() }
    }

    /// What `render` makes of it for those who watch one election, or many: made once, shared by all of them.
    pub(crate) fn frame(&self, many: bool, render: impl FnOnce(&Update) -> Bytes) -> Bytes {
        self.frames[usize::from(many)].get_or_init(|| render(self)).clone()
    }
}

impl Rooms {
    /// Watches an election.
    pub(super) fn election(&mut self, key: &ElectionKey) -> Ear {
        let room = self.elections.entry(key.clone());
        room.or_insert_with(|| broadcast::channel(KEPT.0).0).subscribe()
    }

    /// Watches a namespace, or all.
    pub(super) fn namespace(&mut self, namespace: Option<&Name>) -> Ear {
        let room = self.namespaces.entry(namespace.cloned());
        room.or_insert_with(|| broadcast::channel(KEPT.1).0).subscribe()
    }

    /// Whether anybody would hear of this election.
    pub(super) fn listens(&self, key: &ElectionKey) -> bool {
        let namespace = [None, Some(key.namespace.clone())];
        self.elections.contains_key(key) || namespace.iter().any(|name| self.namespaces.contains_key(name))
    }

    /// Tells all who watch.
    pub(super) fn tell(&mut self, update: &Arc<Update>) {
        let key = &update.entry.key;
        if let Some(room) = self.elections.get(key) {
            // Nobody there any more: the room is closed below.
            let _ = room.send(update.clone());
        }
        for namespace in [None, Some(key.namespace.clone())] {
            if let Some(room) = self.namespaces.get(&namespace) {
                let _ = room.send(update.clone());
            }
        }
    }

    /// Closes the rooms in which there is nobody.
    pub(super) fn tidy(&mut self) {
        self.elections.retain(|_, room| room.receiver_count() > 0);
        self.namespaces.retain(|_, room| room.receiver_count() > 0);
    }

    /// Sends home all who would have heard of this election: they come back, and are told what they missed.
    pub(super) fn dismiss(&mut self, key: &ElectionKey) {
        self.elections.remove(key);
        self.namespaces.remove(&None);
        self.namespaces.remove(&Some(key.namespace.clone()));
    }
}
