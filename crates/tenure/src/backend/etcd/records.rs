//! What is read, worked on and written: elections and sessions, and the revisions that they were read at.
//!
//! A grant is written before its token is known, as that is the revision of the very transaction. So a lease (and its term) is written
//! with no token, and whoever reads it takes the revision of the document for it: nothing else was written into the document since, for
//! whoever writes to it has read it before, and writes the token as it is.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;
use tenure_core::book::{Book, Election};
use tenure_core::port::{Ask, SessionView, StoreError, Trouble};
use tenure_core::{ElectionKey, SessionId, Token};

use super::message::{Compare, Kv, Op, Put, Range, Txn};

pub(super) const ELECTIONS: &str = "/tenure/elections/";
pub(super) const SESSIONS: &str = "/tenure/sessions/";
pub(super) const ASKS: &str = "/tenure/asks/";
/// Sessions that are over, for as long as etcd remembers them: an id is used once.
pub(super) const ENDED: &str = "/tenure/ended/";
/// Which elections a session takes part in, for whoever has to tidy up after it. A help, not a truth: the elections are.
const PARTS: &str = "/tenure/parts/";
const LEASES: &str = "/tenure/leases/";
/// Below which no revision is a token: set by who has seen etcd go back.
pub(super) const FLOOR: &str = "/tenure/floor";

pub(super) fn election_key(key: &ElectionKey) -> String {
    format!("{ELECTIONS}{}/{}", key.namespace, key.name)
}

pub(super) fn session_key(id: &SessionId) -> String {
    format!("{SESSIONS}{}", id.as_str())
}

pub(super) fn ended_key(id: &SessionId) -> String {
    format!("{ENDED}{}", id.as_str())
}

/// Under which everything lies that is asked of a session.
pub(super) fn asks_of(id: &SessionId) -> String {
    format!("{ASKS}{}/", id.as_str())
}

/// Under which it lies what a session takes part in.
pub(super) fn parts_of(id: &SessionId) -> String {
    format!("{PARTS}{}/", id.as_str())
}

fn part_key(id: &SessionId, key: &ElectionKey) -> String {
    format!("{}{}/{}", parts_of(id), key.namespace, key.name)
}

/// The election that a session takes part in, by the key that says so.
pub(super) fn part_of(at: &str, id: &SessionId) -> Option<ElectionKey> {
    let (namespace, name) = at.strip_prefix(&parts_of(id))?.split_once('/')?;
    Some(ElectionKey::new(namespace.parse().ok()?, name.parse().ok()?))
}

/// Everybody whom an election names as a candidate or holder.
pub(super) fn named(election: &Election) -> BTreeSet<SessionId> {
    let holders = election.leases.iter().filter_map(|lease| lease.session.clone());
    election.candidates.keys().cloned().chain(holders).collect()
}

fn ask_key(holder: &SessionId, key: &ElectionKey, slot: u32) -> String {
    format!("{}{}/{}/{slot}", asks_of(holder), key.namespace, key.name)
}

fn lease_key(key: &ElectionKey, slot: u32) -> String {
    format!("{LEASES}{}/{}/{slot}", key.namespace, key.name)
}

/// The election that a key is about.
pub(super) fn election_of(key: &str) -> Option<ElectionKey> {
    let (namespace, name) = key.strip_prefix(ELECTIONS)?.split_once('/')?;
    Some(ElectionKey::new(namespace.parse().ok()?, name.parse().ok()?))
}

/// A value, as what it is taken to be.
pub(super) fn value<T: DeserializeOwned>(kv: &Kv) -> Result<T, StoreError> {
    serde_json::from_str(&kv.value).map_err(|error| {
        let message = format!(
            "etcd has {} in a form that this program does not understand: {error}; is it of another version, or was it edited?",
            kv.key
        );
        StoreError::new(Trouble::Unfit, message)
    })
}

/// An election as it was written, with the tokens that were not known then.
pub(super) fn election(kv: &Kv) -> Result<Election, StoreError> {
    let mut election: Election = value(kv)?;
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

/// What was read at one revision.
#[derive(Default)]
pub(super) struct Reading {
    pub(super) elections: BTreeMap<ElectionKey, (i64, Election)>,
    pub(super) sessions: BTreeMap<SessionId, Seen>,
    pub(super) epoch: u32,
    /// The revision; 0: nothing was read yet.
    pub(super) revision: i64,
    /// Below which no revision is a token.
    pub(super) floor: i64,
}

/// A session, and where it stands in etcd.
pub(super) struct Seen {
    pub(super) revision: i64,
    pub(super) lease: i64,
    pub(super) view: SessionView,
}

impl Reading {
    pub(super) fn take_in(&mut self, kv: &Kv) -> Result<(), StoreError> {
        if kv.key == FLOOR {
            self.floor = value(kv)?;
        } else if kv.key.starts_with(SESSIONS) {
            let view: SessionView = value(kv)?;
            self.sessions.insert(view.id.clone(), Seen { revision: kv.mod_revision, lease: kv.lease, view });
        } else if let Some(key) = election_of(&kv.key) {
            self.elections.insert(key, (kv.mod_revision, election(kv)?));
        }
        // What somebody else keeps there is not ours.
        Ok(())
    }

    /// To work on.
    pub(super) fn book(&self, wall_ms: i64) -> Book {
        let sessions = self.sessions.values().map(|seen| seen.view.clone()).collect();
        let elections = self.elections.iter().map(|(key, (_, election))| (key.clone(), election.clone()));
        Book::of(sessions, elections.collect(), wall_ms)
    }

    /// What makes etcd hold what the book does, if nothing was changed since it was read. `touched` are the elections that may
    /// have changed, each with whether it is to be heard of even if it has not. `acting` must live until then; `granted` is a lease of which
    /// the token is not known yet. `None`: nothing is to be changed.
    pub(super) fn change(
        &self,
        book: &Book,
        touched: &BTreeMap<ElectionKey, bool>,
        acting: Option<&SessionId>,
        granted: Option<(&ElectionKey, u32)>,
    ) -> Option<Txn> {
        let mut txn = Txn::default();
        for (key, is_heard) in touched {
            let Some(after) = book.kept(key) else { continue };
            let (revision, before) = self.elections.get(key).map_or((0, None), |(at, it)| (*at, Some(it)));
            if before == Some(after) && !is_heard {
                continue;
            }
            let at = election_key(key);
            let mut written = after.clone();
            if let Some((_, slot)) = granted.filter(|(granted, _)| *granted == key) {
                leave_open(&mut written, slot);
            }
            txn.compare.push(Compare::unchanged(&at, revision));
            txn.success.push(Op::Put(Put::new(&at, &written, None)));
            self.leases(key, before, after, &mut txn.success);
            asks(key, before, after, &mut txn.success);
            self.parts(key, before, after, book, &mut txn.success);
        }
        for (id, seen) in &self.sessions {
            if book.session(id).is_none_or(|session| !session.live) {
                let at = session_key(id);
                let over = SessionView { live: false, ..seen.view.clone() };
                txn.compare.push(Compare::unchanged(&at, seen.revision));
                txn.success.push(Op::Delete(Range::one(&at)));
                txn.success.push(Op::Delete(Range::below(&parts_of(id))));
                txn.success.push(Op::Put(Put::new(&ended_key(id), &over, Some(seen.lease))));
            }
        }
        if txn.success.is_empty() {
            return None;
        }
        // Of one that is over already, nothing but what tidies up is written.
        if let Some(id) = acting.filter(|id| self.sessions.contains_key(*id)) {
            txn.compare.push(Compare::exists(&session_key(id)));
        }
        Some(txn)
    }

    /// The keys that say what sessions take part in. Of those that are over they go with the session, or with its etcd lease.
    fn parts(
        &self,
        key: &ElectionKey,
        before: Option<&Election>,
        after: &Election,
        book: &Book,
        ops: &mut Vec<Op>,
    ) {
        let (were, are) = (before.map(named).unwrap_or_default(), named(after));
        for id in are.difference(&were) {
            if let Some(seen) = self.sessions.get(id) {
                ops.push(Op::Put(Put::new(&part_key(id, key), &(), Some(seen.lease))));
            }
        }
        let lives = |id: &&SessionId| book.session(id).is_some_and(|session| session.live);
        ops.extend(were.difference(&are).filter(lives).map(|id| Op::Delete(Range::one(&part_key(id, key)))));
    }

    /// The keys that say who leads.
    fn leases(&self, key: &ElectionKey, before: Option<&Election>, after: &Election, ops: &mut Vec<Op>) {
        for (slot, lease) in after.leases.iter().enumerate() {
            let was = before.and_then(|before| before.leases.get(slot));
            let (was, is) = (was.and_then(|lease| lease.session.as_ref()), lease.session.as_ref());
            let token_was = before.and_then(|before| before.leases.get(slot)).map(|lease| lease.token);
            let Ok(number) = u32::try_from(slot) else { continue };
            let at = lease_key(key, number);
            match is {
                Some(id) if was != is || token_was != Some(lease.token) => {
                    let hangs_on = self.sessions.get(id).map(|seen| seen.lease);
                    ops.push(Op::Put(Put::new(&at, id, hangs_on)));
                }
                None if was.is_some() => ops.push(Op::Delete(Range::one(&at))),
                _ => {}
            }
        }
    }
}

/// The keys that tell a holder what is asked of it.
fn asks(key: &ElectionKey, before: Option<&Election>, after: &Election, ops: &mut Vec<Op>) {
    let of = |election: &Election| -> BTreeMap<String, Ask> {
        let lease =
            |ask: &Ask| election.leases.get(ask.slot as usize).filter(|lease| lease.token == ask.token);
        let holder = |ask: &Ask| lease(ask).and_then(|lease| lease.session.clone());
        election
            .asks
            .iter()
            .filter_map(|ask| Some((ask_key(&holder(ask)?, key, ask.slot), ask.clone())))
            .collect()
    };
    let (were, are) = (before.map(of).unwrap_or_default(), of(after));
    for (at, ask) in &are {
        if were.get(at) != Some(ask) {
            ops.push(Op::Put(Put::new(at, ask, None)));
        }
    }
    for at in were.keys().filter(|at| !are.contains_key(*at)) {
        ops.push(Op::Delete(Range::one(at)));
    }
}

/// The token of this slot's grant is the revision at which this is written.
fn leave_open(election: &mut Election, slot: u32) {
    let Some(lease) = election.leases.get_mut(slot as usize) else { return };
    let token = std::mem::replace(&mut lease.token, Token::ZERO);
    if let Some(term) = election.terms.iter_mut().find(|term| term.slot == slot && term.token == token) {
        term.token = Token::ZERO;
    }
}
