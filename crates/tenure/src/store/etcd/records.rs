//! Keys and documents in etcd, and the transactions that change them.
//!
//! The token of a grant is the revision of the granting transaction, so it is unknown when the transaction is written.
//! A new lease and its term are written without a token; a reader uses the revision of the document instead. That is
//! correct because every later writer reads the document first and writes the token explicitly.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;
use tenure_core::model::elections::{ElectionRecord, Elections};
use tenure_core::port::{ErrorKind, LeaderRequest, SessionView, StoreError};
use tenure_core::{ElectionKey, SessionId, Token};

use super::message::{Compare, Kv, Op, Put, Range, Txn};

pub(super) const ELECTIONS: &str = "/tenure/elections/";
pub(super) const SESSIONS: &str = "/tenure/sessions/";
pub(super) const LEADER_REQUESTS: &str = "/tenure/leader-requests/";
/// Ended sessions, kept for a while because a session id is never reused.
pub(super) const ENDED: &str = "/tenure/ended/";
/// Elections in which a session takes part, for the cleanup after the session ends. An index only; the election
/// documents are authoritative.
const CANDIDACIES: &str = "/tenure/candidacies/";
const LEASES: &str = "/tenure/leases/";
/// Minimum revision for new tokens; written by a process that detects a restore.
pub(super) const MIN_TOKEN: &str = "/tenure/min-token";

pub(super) fn election_key(key: &ElectionKey) -> String {
    format!("{ELECTIONS}{}/{}", key.namespace, key.name)
}

pub(super) fn session_key(id: &SessionId) -> String {
    format!("{SESSIONS}{}", id.as_str())
}

pub(super) fn ended_key(id: &SessionId) -> String {
    format!("{ENDED}{}", id.as_str())
}

/// Key prefix of the requests to a session.
pub(super) fn requests_of(id: &SessionId) -> String {
    format!("{LEADER_REQUESTS}{}/", id.as_str())
}

/// Key prefix of the candidacies of a session.
pub(super) fn candidacies_of(id: &SessionId) -> String {
    format!("{CANDIDACIES}{}/", id.as_str())
}

fn candidacy_key(id: &SessionId, key: &ElectionKey) -> String {
    format!("{}{}/{}", candidacies_of(id), key.namespace, key.name)
}

/// Election of a candidacy key.
pub(super) fn election_of_candidacy(at: &str, id: &SessionId) -> Option<ElectionKey> {
    let (namespace, name) = at.strip_prefix(&candidacies_of(id))?.split_once('/')?;
    Some(ElectionKey::new(namespace.parse().ok()?, name.parse().ok()?))
}

/// Sessions that an election names as candidates or leaders.
pub(super) fn named(election: &ElectionRecord) -> BTreeSet<SessionId> {
    let holders = election.leases.iter().filter_map(|lease| lease.session.clone());
    election.candidates.keys().cloned().chain(holders).collect()
}

fn request_key(holder: &SessionId, key: &ElectionKey, slot: u32) -> String {
    format!("{}{}/{}/{slot}", requests_of(holder), key.namespace, key.name)
}

fn lease_key(key: &ElectionKey, slot: u32) -> String {
    format!("{LEASES}{}/{}/{slot}", key.namespace, key.name)
}

/// Election of an election key.
pub(super) fn election_of(key: &str) -> Option<ElectionKey> {
    let (namespace, name) = key.strip_prefix(ELECTIONS)?.split_once('/')?;
    Some(ElectionKey::new(namespace.parse().ok()?, name.parse().ok()?))
}

/// Decode a value.
pub(super) fn value<T: DeserializeOwned>(kv: &Kv) -> Result<T, StoreError> {
    serde_json::from_str(&kv.value).map_err(|error| {
        let message = format!(
            "cannot decode the etcd key {}: {error}; check that all processes run the same version and that the key was not edited",
            kv.key
        );
        StoreError::new(ErrorKind::Misconfigured, message)
    })
}

/// Decode an election and fill in the tokens that were unknown when it was written.
pub(super) fn election(kv: &Kv) -> Result<ElectionRecord, StoreError> {
    let mut election: ElectionRecord = value(kv)?;
    let token = Token::from_u64(kv.mod_revision.unsigned_abs());
    for lease in election.leases.iter_mut().filter(|lease| lease.session.is_some()) {
        if lease.token == Token::ZERO {
            lease.token = token;
        }
    }
    for term in election.terms.iter_mut().filter(|term| term.token == Token::ZERO) {
        term.token = token;
    }
    Ok(election)
}

/// Elections and sessions read at one revision.
#[derive(Default)]
pub(super) struct StoreReading {
    pub(super) elections: BTreeMap<ElectionKey, (i64, ElectionRecord)>,
    pub(super) sessions: BTreeMap<SessionId, SessionReading>,
    pub(super) epoch: u32,
    /// The revision; 0 before the first read.
    pub(super) revision: i64,
    /// Minimum revision for new tokens.
    pub(super) min_token: i64,
}

/// A session with its etcd revision and etcd lease.
pub(super) struct SessionReading {
    pub(super) revision: i64,
    pub(super) lease: i64,
    pub(super) view: SessionView,
}

impl StoreReading {
    pub(super) fn add(&mut self, kv: &Kv) -> Result<(), StoreError> {
        if kv.key == MIN_TOKEN {
            self.min_token = value(kv)?;
        } else if kv.key.starts_with(SESSIONS) {
            let view: SessionView = value(kv)?;
            self.sessions
                .insert(view.id.clone(), SessionReading { revision: kv.mod_revision, lease: kv.lease, view });
        } else if let Some(key) = election_of(&kv.key) {
            self.elections.insert(key, (kv.mod_revision, election(kv)?));
        }
        // Keys of other applications are ignored.
        Ok(())
    }

    /// Build the reference implementation from the records.
    pub(super) fn to_model(&self, wall_ms: i64) -> Elections {
        let sessions = self.sessions.values().map(|reading| reading.view.clone()).collect();
        let elections = self.elections.iter().map(|(key, (_, election))| (key.clone(), election.clone()));
        Elections::from_records(sessions, elections.collect(), wall_ms)
    }

    /// Build the transaction that writes the changed records, or `None` if no record changed. It succeeds only if the
    /// records are unchanged since they were read and `acting` is alive. `touched` lists the elections that may have
    /// changed, each with whether watchers must be notified even without a change. `granted` is a lease whose token is
    /// not known yet.
    pub(super) fn change(
        &self,
        elections: &Elections,
        touched: &BTreeMap<ElectionKey, bool>,
        acting: Option<&SessionId>,
        granted: Option<(&ElectionKey, u32)>,
    ) -> Option<Txn> {
        let mut txn = Txn::default();
        for (key, notify) in touched {
            let Some(after) = elections.record(key) else { continue };
            let (revision, before) = self.elections.get(key).map_or((0, None), |(at, it)| (*at, Some(it)));
            if before == Some(after) && !notify {
                continue;
            }
            let at = election_key(key);
            let mut written = after.clone();
            if let Some((_, slot)) = granted.filter(|(granted, _)| *granted == key) {
                clear_token(&mut written, slot);
            }
            txn.compare.push(Compare::unchanged(&at, revision));
            txn.success.push(Op::Put(Put::new(&at, &written, None)));
            self.leases(key, before, after, &mut txn.success);
            leader_requests(key, before, after, &mut txn.success);
            self.candidacies(key, before, after, elections, &mut txn.success);
        }
        for (id, reading) in &self.sessions {
            if elections.session(id).is_none_or(|session| !session.live) {
                let at = session_key(id);
                let ended = SessionView { live: false, ..reading.view.clone() };
                txn.compare.push(Compare::unchanged(&at, reading.revision));
                txn.success.push(Op::Delete(Range::one(&at)));
                txn.success.push(Op::Delete(Range::below(&candidacies_of(id))));
                txn.success.push(Op::Put(Put::new(&ended_key(id), &ended, Some(reading.lease))));
            }
        }
        if txn.success.is_empty() {
            return None;
        }
        // For a session that has already ended, only cleanup is written.
        if let Some(id) = acting.filter(|id| self.sessions.contains_key(*id)) {
            txn.compare.push(Compare::exists(&session_key(id)));
        }
        Some(txn)
    }

    /// Update the candidacy keys. The keys of ended sessions are deleted with the session or with its etcd lease.
    fn candidacies(
        &self,
        key: &ElectionKey,
        before: Option<&ElectionRecord>,
        after: &ElectionRecord,
        elections: &Elections,
        ops: &mut Vec<Op>,
    ) {
        let (were, are) = (before.map(named).unwrap_or_default(), named(after));
        for id in are.difference(&were) {
            if let Some(reading) = self.sessions.get(id) {
                ops.push(Op::Put(Put::new(&candidacy_key(id, key), &(), Some(reading.lease))));
            }
        }
        let is_live = |id: &&SessionId| elections.session(id).is_some_and(|session| session.live);
        ops.extend(
            were.difference(&are).filter(is_live).map(|id| Op::Delete(Range::one(&candidacy_key(id, key)))),
        );
    }

    /// Update the leader keys.
    fn leases(
        &self,
        key: &ElectionKey,
        before: Option<&ElectionRecord>,
        after: &ElectionRecord,
        ops: &mut Vec<Op>,
    ) {
        for (slot, lease) in after.leases.iter().enumerate() {
            let was = before.and_then(|before| before.leases.get(slot));
            let (was, is) = (was.and_then(|lease| lease.session.as_ref()), lease.session.as_ref());
            let token_was = before.and_then(|before| before.leases.get(slot)).map(|lease| lease.token);
            let Ok(number) = u32::try_from(slot) else { continue };
            let at = lease_key(key, number);
            match is {
                Some(id) if was != is || token_was != Some(lease.token) => {
                    let etcd_lease = self.sessions.get(id).map(|reading| reading.lease);
                    ops.push(Op::Put(Put::new(&at, id, etcd_lease)));
                }
                None if was.is_some() => ops.push(Op::Delete(Range::one(&at))),
                _ => {}
            }
        }
    }
}

/// Update the leader request keys.
fn leader_requests(
    key: &ElectionKey,
    before: Option<&ElectionRecord>,
    after: &ElectionRecord,
    ops: &mut Vec<Op>,
) {
    let of = |election: &ElectionRecord| -> BTreeMap<String, LeaderRequest> {
        let lease = |request: &LeaderRequest| {
            election.leases.get(request.slot as usize).filter(|lease| lease.token == request.token)
        };
        let holder = |request: &LeaderRequest| lease(request).and_then(|lease| lease.session.clone());
        election
            .leader_requests
            .iter()
            .filter_map(|request| Some((request_key(&holder(request)?, key, request.slot), request.clone())))
            .collect()
    };
    let (were, are) = (before.map(of).unwrap_or_default(), of(after));
    for (at, request) in &are {
        if were.get(at) != Some(request) {
            ops.push(Op::Put(Put::new(at, request, None)));
        }
    }
    for at in were.keys().filter(|at| !are.contains_key(*at)) {
        ops.push(Op::Delete(Range::one(at)));
    }
}

/// Clear the token of a granted slot: it is the revision at which the document will be written.
fn clear_token(election: &mut ElectionRecord, slot: u32) {
    let Some(lease) = election.leases.get_mut(slot as usize) else { return };
    let token = std::mem::replace(&mut lease.token, Token::ZERO);
    if let Some(term) = election.terms.iter_mut().find(|term| term.slot == slot && term.token == token) {
        term.token = Token::ZERO;
    }
}
