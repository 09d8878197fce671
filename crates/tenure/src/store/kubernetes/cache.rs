//! Cached sessions and Lease objects of this process. The cache only saves reads.
//!
//! A session that a server opened for a client may be used through any server, so only the name of its object is
//! cached.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tenure_core::{ElectionKey, SessionId, Token};

use super::decode::{LeaseReading, SlotKey};
use super::object::LeaseObject;
use super::record::{HeldLeaseRecord, SessionRecord};

/// Number of reads that list all objects after a read of selected elections was incomplete.
const WIDE_READS: u32 = 16;
/// Maximum number of cached object names.
const NAMES_MAX: usize = 10_000;

#[derive(Default)]
pub(super) struct LeaseCache {
    sessions: Mutex<HashMap<SessionId, CachedLeaseSession>>,
    /// Object names of sessions that this process does not own.
    names: Mutex<HashMap<SessionId, String>>,
    wide_reads: AtomicU32,
    /// Highest token seen per slot, with the lease duration of its holder.
    tokens: Mutex<BTreeMap<SlotKey, (Token, u64)>>,
}

/// A session and the Leases it holds.
#[derive(Clone)]
pub(super) struct CachedLeaseSession {
    pub(super) object: LeaseObject,
    pub(super) record: SessionRecord,
    pub(super) held: BTreeMap<SlotKey, HeldLeaseObject>,
    /// Elections that the session joined or tried to lead: their Leases may name it as holder.
    pub(super) elections_used: BTreeSet<ElectionKey>,
    /// Number of heartbeats, including attempts.
    pub(super) heartbeat_count: u64,
    /// The session has lost a Lease and has ended.
    pub(super) ended: bool,
}

/// A held Lease.
#[derive(Clone)]
pub(super) struct HeldLeaseObject {
    pub(super) token: Token,
    pub(super) object: LeaseObject,
}

impl CachedLeaseSession {
    /// A session that holds no Lease.
    pub(super) fn new(object: LeaseObject, record: SessionRecord) -> CachedLeaseSession {
        let elections_used =
            record.candidacies.iter().map(|candidacy_record| candidacy_record.candidacy.election.clone());
        let elections_used =
            elections_used.chain(record.held_leases.iter().map(|lease| lease.election.clone())).collect();
        CachedLeaseSession {
            object,
            record,
            held: BTreeMap::new(),
            elections_used,
            heartbeat_count: 0,
            ended: false,
        }
    }

    /// A session from a reading; `None` if it has ended or has lost a granted Lease.
    pub(super) fn read(reading: &LeaseReading, id: &SessionId) -> Option<CachedLeaseSession> {
        let (object, record) = reading.sessions.get(id).filter(|(_, record)| record.view.live)?;
        let hold = |HeldLeaseRecord { election, slot, token }: &HeldLeaseRecord| {
            let at = (election.clone(), *slot);
            let object = reading.leases.get(&at)?;
            let is_own = is_held(object, &record.identity, *token);
            is_own.then(|| (at, HeldLeaseObject { token: *token, object: object.clone() }))
        };
        let held = record.held_leases.iter().map(hold).collect::<Option<_>>()?;
        Some(CachedLeaseSession {
            held,
            heartbeat_count: reading.heartbeat_of(id),
            ..CachedLeaseSession::new(object.clone(), record.clone())
        })
    }
}

/// Whether a Lease is held by this identity under this token.
pub(super) fn is_held(object: &LeaseObject, identity: &str, token: Token) -> bool {
    object.holder() == Some(identity) && super::decode::token_of(object) == token
}

impl LeaseCache {
    fn locked(&self) -> MutexGuard<'_, HashMap<SessionId, CachedLeaseSession>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn known(&self, id: &SessionId) -> Option<CachedLeaseSession> {
        self.locked().get(id).cloned()
    }

    /// Cache a session.
    pub(super) fn remember(&self, known: CachedLeaseSession) {
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

    /// Name of the session's object when it was last seen.
    pub(super) fn name_of(&self, id: &SessionId) -> Option<String> {
        let own = self.with(id, |known| known.object.name().to_owned());
        own.or_else(|| self.names.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned())
    }

    pub(super) fn forget(&self, id: &SessionId) {
        self.locked().remove(id);
        self.names.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    /// Record that the session may hold a slot of this election.
    pub(super) fn add_election(&self, id: &SessionId, key: &ElectionKey) {
        self.with(id, |known| known.elections_used.insert(key.clone()));
    }

    /// All elections that the session has used.
    pub(super) fn elections_used(&self, id: &SessionId) -> BTreeSet<ElectionKey> {
        self.with(id, |known| known.elections_used.clone()).unwrap_or_default()
    }

    /// Whether this read must list all objects because a recent one was incomplete.
    pub(super) fn takes_wide_read(&self) -> bool {
        let less = |left: u32| left.checked_sub(1);
        self.wide_reads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// Make the next reads list all objects.
    pub(super) fn force_wide_reads(&self) {
        self.wide_reads.store(WIDE_READS, Ordering::Relaxed);
    }

    /// Access a cached session.
    pub(super) fn with<T>(
        &self,
        id: &SessionId,
        act: impl FnOnce(&mut CachedLeaseSession) -> T,
    ) -> Option<T> {
        self.locked().get_mut(id).map(act)
    }

    /// Record a granted Lease.
    pub(super) fn granted(&self, id: &SessionId, at: SlotKey, held: HeldLeaseObject) {
        self.with(id, |known| known.held.insert(at, held));
    }

    /// Record a released Lease, so that heartbeats do not miss it.
    pub(super) fn released(&self, id: &SessionId, key: &ElectionKey, slot: u32, token: Token) {
        let at = (key.clone(), slot);
        self.with(id, |known| {
            if known.held.get(&at).is_some_and(|held| held.token == token) {
                known.held.remove(&at);
            }
        });
    }

    /// Record the tokens of a reading.
    pub(super) fn remember_tokens(&self, reading: &LeaseReading) {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, (token, lease_ms)) in reading.tokens() {
            let entry = tokens.entry(at).or_insert((token, lease_ms));
            if token > entry.0 {
                *entry = (token, lease_ms);
            }
        }
    }

    pub(super) fn highest_tokens(&self) -> BTreeMap<SlotKey, (Token, u64)> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
