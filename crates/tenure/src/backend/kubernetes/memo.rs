//! What this process knows of its own sessions: it saves looking, and is never needed.
//!
//! A session that a server opened for somebody else may be used through any server, so nothing is remembered of it but the name of its object.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tenure_core::{ElectionKey, SessionId, Token};

use super::object::Object;
use super::reading::{Reading, Slot};
use super::record::{Hold, SessionRecord};

/// How many looks read everything after one that found too little about its elections alone.
const WIDE_LOOKS: u32 = 16;
/// How many names of objects are kept.
const NAMES_MAX: usize = 10_000;

#[derive(Default)]
pub(super) struct Memo {
    sessions: Mutex<HashMap<SessionId, Known>>,
    /// What the objects of others' sessions are called.
    names: Mutex<HashMap<SessionId, String>>,
    wide: AtomicU32,
    /// The greatest tokens that were ever seen here, and the leases of their holders.
    seen: Mutex<BTreeMap<Slot, (Token, u64)>>,
}

/// A session, and what it holds.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) object: Object,
    pub(super) record: SessionRecord,
    pub(super) held: BTreeMap<Slot, Held>,
    /// All that it ever stood for or tried to take: where a Lease may say that it holds it.
    pub(super) tried: BTreeSet<ElectionKey>,
    /// How often it has beaten, or tried to.
    pub(super) beat: u64,
    /// It was found to have lost something: it never comes back.
    pub(super) gone: bool,
}

/// A Lease that is held.
#[derive(Clone)]
pub(super) struct Held {
    pub(super) token: Token,
    pub(super) object: Object,
}

impl Known {
    /// A session that holds nothing.
    pub(super) fn new(object: Object, record: SessionRecord) -> Known {
        let tried = record.candidacies.iter().map(|standing| standing.candidacy.election.clone());
        let tried = tried.chain(record.holds.iter().map(|hold| hold.election.clone())).collect();
        Known { object, record, held: BTreeMap::new(), tried, beat: 0, gone: false }
    }

    /// A session as it was read; `None` if it is over, or has lost something that it was granted.
    pub(super) fn read(reading: &Reading, id: &SessionId) -> Option<Known> {
        let (object, record) = reading.sessions.get(id).filter(|(_, record)| record.view.live)?;
        let hold = |Hold { election, slot, token }: &Hold| {
            let at = (election.clone(), *slot);
            let object = reading.leases.get(&at)?;
            let is_ours = is_held(object, &record.identity, *token);
            is_ours.then(|| (at, Held { token: *token, object: object.clone() }))
        };
        let held = record.holds.iter().map(hold).collect::<Option<_>>()?;
        Some(Known { held, beat: reading.beat_of(id), ..Known::new(object.clone(), record.clone()) })
    }
}

/// Whether a Lease is held by this identity under this token.
pub(super) fn is_held(object: &Object, identity: &str, token: Token) -> bool {
    object.holder() == Some(identity) && super::reading::token_of(object) == token
}

impl Memo {
    fn locked(&self) -> MutexGuard<'_, HashMap<SessionId, Known>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn known(&self, id: &SessionId) -> Option<Known> {
        self.locked().get(id).cloned()
    }

    /// From now on it is known.
    pub(super) fn learn(&self, known: Known) {
        let id = known.record.view.id.clone();
        if known.record.view.owner.is_none() {
            self.locked().insert(id, known);
            return;
        }
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if names.len() >= NAMES_MAX {
            names.clear();
        }
        names.insert(id, known.object.name().to_owned());
    }

    /// What the object of a session was called when it was last seen.
    pub(super) fn name_of(&self, id: &SessionId) -> Option<String> {
        let own = self.with(id, |known| known.object.name().to_owned());
        own.or_else(|| self.names.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned())
    }

    pub(super) fn forget(&self, id: &SessionId) {
        self.locked().remove(id);
        self.names.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    /// It may hold this, whether or not we are told.
    pub(super) fn tries(&self, id: &SessionId, key: &ElectionKey) {
        self.with(id, |known| known.tried.insert(key.clone()));
    }

    /// All that it ever had to do with.
    pub(super) fn tried(&self, id: &SessionId) -> BTreeSet<ElectionKey> {
        self.with(id, |known| known.tried.clone()).unwrap_or_default()
    }

    /// Whether this look has to read everything: one of the last ones found too little about its elections alone.
    pub(super) fn looks_wide(&self) -> bool {
        let less = |left: u32| left.checked_sub(1);
        self.wide.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// The next looks have to read everything.
    pub(super) fn widen(&self) {
        self.wide.store(WIDE_LOOKS, Ordering::Relaxed);
    }

    /// Does something to what is known of a session.
    pub(super) fn with<T>(&self, id: &SessionId, act: impl FnOnce(&mut Known) -> T) -> Option<T> {
        self.locked().get_mut(id).map(act)
    }

    /// It holds this now.
    pub(super) fn granted(&self, id: &SessionId, at: Slot, held: Held) {
        self.with(id, |known| known.held.insert(at, held));
    }

    /// It holds this no more, and whoever beats for it must not miss it.
    pub(super) fn given_back(&self, id: &SessionId, key: &ElectionKey, slot: u32, token: Token) {
        let at = (key.clone(), slot);
        self.with(id, |known| {
            if known.held.get(&at).is_some_and(|held| held.token == token) {
                known.held.remove(&at);
            }
        });
    }

    /// Remembers the tokens that were read.
    pub(super) fn saw(&self, reading: &Reading) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, (token, lease_ms)) in reading.tokens() {
            let entry = seen.entry(at).or_insert((token, lease_ms));
            if token > entry.0 {
                *entry = (token, lease_ms);
            }
        }
    }

    pub(super) fn seen(&self) -> BTreeMap<Slot, (Token, u64)> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
