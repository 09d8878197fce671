//! What this process knows of its own sessions: it saves looking, and is never needed.
//!
//! A session that a server opened for somebody else may be used through any server, so nothing is remembered of it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tenure_core::{ElectionKey, SessionId, Token};

use super::object::Object;
use super::reading::{Reading, Slot};
use super::record::{Hold, SessionRecord};

#[derive(Default)]
pub(super) struct Memo {
    sessions: Mutex<HashMap<SessionId, Known>>,
    /// The greatest tokens that were ever seen here, and the leases of their holders.
    seen: Mutex<BTreeMap<Slot, (Token, u64)>>,
}

/// A session, and what it holds.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) object: Object,
    pub(super) record: SessionRecord,
    pub(super) held: BTreeMap<Slot, Held>,
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
        let beat = reading.beat_of(id);
        Some(Known { object: object.clone(), record: record.clone(), held, beat, gone: false })
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
        if known.record.view.owner.is_none() {
            self.locked().insert(known.record.view.id.clone(), known);
        }
    }

    pub(super) fn forget(&self, id: &SessionId) {
        self.locked().remove(id);
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
