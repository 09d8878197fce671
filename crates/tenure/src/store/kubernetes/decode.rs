//! Decoding of Lease objects into elections.
//!
//! A list of objects is the state of the namespace at one version. It is converted to [`Elections`], on which a change
//! is computed; the result is written object by object (`encode.rs`), each only if unchanged.
//!
//! The holder of a slot is only what the `spec` of its Lease says. A session that has ended but is still named in a
//! `spec` is shown as live with a constant heartbeat, so candidates wait for its lease duration. The same applies to
//! holders that may still trust their lease: the holder of a Lease that was deleted, or whose `holderIdentity` was
//! cleared manually. It also applies to a holder that is not a Tenure session; its heartbeat is derived from its
//! record.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::model::elections::{ElectionRecord, Elections, LeaseRecord};
use tenure_core::port::{Candidacy, SessionView, StartReason, Term};
use tenure_core::{ElectionKey, SessionId, Token};

use super::names::{election_of, lease_name};
use super::object::{ELECTION, LeaseObject, SESSION};
use super::record::{Holder, OF, SessionRecord, SlotRecord};
use super::watch_scope::WatchScope;

/// Maximum number of terms per election.
const TERMS_KEPT: usize = 100;
/// Lease duration of a holder that does not state it: client-go's default.
const LEASE_MS: u64 = 15_000;

pub(super) type SlotKey = (ElectionKey, u32);

/// Objects at one version.
#[derive(Default)]
pub(super) struct LeaseReading {
    /// The requested elections; `None` means all.
    scope: WatchScope,
    pub(super) leases: BTreeMap<SlotKey, LeaseObject>,
    pub(super) sessions: BTreeMap<SessionId, (LeaseObject, SessionRecord)>,
    /// Session objects that cannot be decoded; they are reused.
    pub(super) undecodable: Vec<LeaseObject>,
    /// Heartbeats recorded in the held Leases.
    heartbeats: BTreeMap<SessionId, u64>,
}

/// A decoded slot.
struct Row {
    lease: LeaseRecord,
    /// View of the holder's session, if no live session object exists.
    synthetic: Option<SessionView>,
    terms: Vec<Term>,
    record: SlotRecord,
}

impl LeaseReading {
    pub(super) fn of(scope: WatchScope, objects: Vec<LeaseObject>) -> LeaseReading {
        let mut reading = LeaseReading { scope, ..LeaseReading::default() };
        objects.into_iter().for_each(|object| reading.add(object));
        reading
    }

    pub(super) fn add(&mut self, object: LeaseObject) {
        match object.kind() {
            Some(SESSION) => match SessionRecord::of(&object) {
                Some(record) => {
                    self.sessions.insert(record.view.id.clone(), (object, record));
                }
                None => self.undecodable.push(object),
            },
            _ => {
                let Some(slot) = slot_key(&object) else { return };
                if let Some(Holder { session, .. }) = holder_noted(&object) {
                    let heartbeat_count = self.heartbeats.entry(session.id).or_default();
                    *heartbeat_count = session.heartbeat_count.max(*heartbeat_count);
                }
                self.leases.insert(slot, object);
            }
        }
    }

    /// Whether this election was requested.
    fn in_scope(&self, key: &ElectionKey) -> bool {
        self.scope.as_ref().is_none_or(|keys| keys.contains(key))
    }

    /// Live sessions.
    fn live(&self) -> impl Iterator<Item = &SessionRecord> {
        self.sessions.values().map(|(_, record)| record).filter(|record| record.view.live)
    }

    /// Elections that were requested or have candidates, but whose Lease is missing.
    pub(super) fn missing(&self) -> BTreeSet<ElectionKey> {
        let candidates = self.live().flat_map(|record| &record.candidacies).map(|s| &s.candidacy.election);
        let all = candidates.filter(|key| self.in_scope(key)).chain(self.scope.iter().flatten());
        all.filter(|key| !self.leases.contains_key(&((*key).clone(), 0))).cloned().collect()
    }

    /// Whether the reading tells the heartbeat of each session: a leader's heartbeat is in its Leases.
    pub(super) fn is_complete(&self) -> bool {
        let mut held_leases = self.live().flat_map(|record| &record.held_leases);
        held_leases.all(|lease| self.leases.contains_key(&(lease.election.clone(), lease.slot)))
    }

    /// Heartbeat of a session: from its own object or from its Leases.
    pub(super) fn heartbeat_of(&self, id: &SessionId) -> u64 {
        let own = self.sessions.get(id).map_or(0, |(_, record)| record.view.heartbeat_count);
        self.heartbeats.get(id).map_or(own, |held| own.max(*held))
    }

    /// Highest tokens, with the lease durations of their holders.
    pub(super) fn tokens(&self) -> BTreeMap<SlotKey, (Token, u64)> {
        let rows = self.leases.iter().map(|(slot, object)| {
            let lease_ms = object.lease_ms().unwrap_or(LEASE_MS);
            (slot.clone(), (token_of(object), lease_ms))
        });
        rows.collect()
    }

    /// Build the reference implementation from the objects.
    pub(super) fn to_model(&self, wall_ms: i64) -> Elections {
        let highest_tokens = self.highest_tokens();
        let mut sessions = BTreeMap::new();
        for (id, (_, record)) in &self.sessions {
            let heartbeat_count = self.heartbeat_of(id);
            sessions.insert(id.clone(), SessionView { heartbeat_count, ..record.view.clone() });
        }
        let slots = self.leases.keys().chain(highest_tokens.keys()).filter(|(key, _)| self.in_scope(key));
        let slots = slots.cloned().collect::<BTreeSet<SlotKey>>();
        let mut elections: BTreeMap<ElectionKey, ElectionRecord> = BTreeMap::new();
        for (key, slot) in slots {
            let row = self.row(&(key.clone(), slot), &highest_tokens);
            if let Some(view) = row.synthetic {
                sessions.insert(view.id.clone(), view);
            }
            let election = elections.entry(key).or_default();
            let at = slot as usize;
            if election.leases.len() <= at {
                election.leases.resize(at + 1, LeaseRecord::default());
            }
            election.leases[at] = row.lease;
            election.leader_requests.extend(row.record.leader_requests);
            election.terms.extend(row.terms);
            if slot == 0 {
                (election.slots, election.required_capabilities) =
                    (row.record.slots, row.record.required_capabilities);
                election.paused = row.record.paused;
                let rows = election.leases.len().max(row.record.max_slots as usize);
                election.leases.resize(rows, LeaseRecord::default());
            }
        }
        for (id, (_, record)) in self.sessions.iter().filter(|(_, (_, record))| record.view.live) {
            for candidacy_record in record.candidacies.iter().filter(|s| self.in_scope(&s.candidacy.election))
            {
                let candidacy = candidacy_record.candidacy.clone();
                let election = elections.entry(candidacy.election.clone()).or_default();
                apply_candidacy(election, &candidacy);
                election.candidates.insert(id.clone(), (candidacy, candidacy_record.joined_at_ms));
            }
        }
        for election in elections.values_mut() {
            election.slots = election.slots.max(1);
            let rows = election.leases.len().max(election.slots as usize);
            election.leases.resize(rows, LeaseRecord::default());
            election.terms.sort_by_key(|term| std::cmp::Reverse((term.started_at_ms, term.token)));
            election.terms.truncate(TERMS_KEPT);
        }
        Elections::from_records(sessions.into_values().collect(), elections, wall_ms)
    }

    /// Highest tokens that sessions have recorded, with the longest lease durations of their holders.
    fn highest_tokens(&self) -> BTreeMap<SlotKey, (Token, u64)> {
        let mut highest_tokens = BTreeMap::new();
        for highest_token in self.sessions.values().flat_map(|(_, record)| &record.highest_tokens) {
            let highest = highest_tokens
                .entry((highest_token.election.clone(), highest_token.slot))
                .or_insert((highest_token.token, highest_token.lease_ms));
            *highest = (highest.0.max(highest_token.token), highest.1.max(highest_token.lease_ms));
        }
        highest_tokens
    }

    fn row(&self, slot: &SlotKey, highest_tokens: &BTreeMap<SlotKey, (Token, u64)>) -> Row {
        let highest = highest_tokens.get(slot).copied();
        let Some(object) = self.leases.get(slot) else { return deleted(slot, highest) };
        let record: SlotRecord = object.note(super::record::RECORD).unwrap_or_default();
        let token = token_of(object);
        let is_live = |id: &SessionId| self.sessions.get(id).is_some_and(|(_, record)| record.view.live);
        let noted = record.holder.clone();
        let raised = token.max(highest.map_or(Token::ZERO, |(token, _)| token));
        let (token, session, synthetic) = match (object.holder(), noted) {
            (Some(identity), Some(noted)) if noted.identity == identity => {
                let synthetic = (!is_live(&noted.session.id)).then(|| as_live(&noted.session));
                (token, Some(noted.session.id), synthetic)
            }
            (Some(identity), _) => match self.by_identity(identity) {
                Some(id) => (token, Some(id), None),
                None => {
                    let view = external_session(object, identity);
                    (raised, Some(view.id.clone()), Some(view))
                }
            },
            // The Lease was not released: it was cleared manually, or recreated after a deletion.
            (None, Some(noted)) if noted.token == token => {
                let synthetic = (!is_live(&noted.session.id)).then(|| as_live(&noted.session));
                (token, Some(noted.session.id), synthetic)
            }
            (None, _) => (raised, None, None),
        };
        let external = synthetic.as_ref().filter(|view| is_external(&view.id));
        let acquired_ms = object.time("acquireTime").map(|micros| micros / 1000);
        let last = record.last_term.as_ref().filter(|last| last.token == token);
        let lease = LeaseRecord {
            token,
            own_token: None,
            reserved_for: last.and_then(|last| last.reserved_for.clone()).filter(|_| session.is_none()),
            start_reason: last.map_or(
                if external.is_some() { StartReason::Takeover } else { StartReason::Release },
                |last| last.start_reason,
            ),
            granted_at_ms: last.map_or(acquired_ms, |last| last.granted_at_ms),
            session,
        };
        let mut terms = record.terms.clone();
        for term in terms.iter_mut().filter(|term| term.end_reason.is_none() && term.token < token) {
            // The successor did not record the end of the term, so it was not a Tenure session.
            (term.ended_at_ms, term.end_reason) = (acquired_ms, Some("expired".into()));
        }
        if let Some(view) = external.filter(|_| terms.iter().all(|t| t.token != token)) {
            terms.insert(0, term_of(view, slot.1, &lease));
        }
        Row { lease, synthetic, terms, record }
    }

    /// The live session with this `holderIdentity`.
    fn by_identity(&self, identity: &str) -> Option<SessionId> {
        self.live().find(|record| record.identity == identity).map(|record| record.view.id.clone())
    }
}

/// Election and slot of a Lease.
pub(super) fn slot_key(object: &LeaseObject) -> Option<SlotKey> {
    let noted = || {
        let mut parts = object.annotation(OF)?.split('/');
        let (namespace, name) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some((ElectionKey::new(namespace, name), parts.next()?.parse().ok()?))
    };
    // A copied Lease has a copied annotation, so the name must match.
    let noted = || noted().filter(|(key, slot)| lease_name(key, *slot) == object.name());
    if object.kind().is_some_and(|kind| kind != ELECTION) {
        return None;
    }
    noted().or_else(|| election_of(object.name()))
}

/// The recorded holder, if it matches `holderIdentity`.
pub(super) fn holder_noted(object: &LeaseObject) -> Option<Holder> {
    let record: SlotRecord = object.note(super::record::RECORD)?;
    record.holder.filter(|noted| object.holder().is_none_or(|identity| identity == noted.identity))
}

/// Token of the last grant.
pub(super) fn token_of(object: &LeaseObject) -> Token {
    let held = object.holder().map(|_| 0);
    object.transitions().or(held).map_or(Token::ZERO, |transitions| Token::from_u64(transitions + 1))
}

/// Whether this is the id of a holder that is not a Tenure session.
pub(super) fn is_external(id: &SessionId) -> bool {
    id.as_str().starts_with(EXTERNAL)
}

const EXTERNAL: &str = "external:";
const DELETED: &str = "deleted:";

/// View of a holder that is not a Tenure session: it counts as live while its record changes.
fn external_session(object: &LeaseObject, identity: &str) -> SessionView {
    SessionView {
        id: SessionId::from_stored(&format!("{EXTERNAL}{identity}@{}", object.name())),
        name: identity.into(),
        heartbeat_count: digest(&object.spec().to_string()),
        lease_ms: object.lease_ms().unwrap_or(LEASE_MS),
        live: true,
        heartbeat_at_ms: object.time("renewTime").map_or(0, |micros| micros / 1000),
        owner: None,
    }
}

/// A missing Lease whose tokens were seen: its last holder may still trust it for a while.
fn deleted(slot: &SlotKey, highest: Option<(Token, u64)>) -> Row {
    let none = Row {
        lease: LeaseRecord::default(),
        synthetic: None,
        terms: Vec::new(),
        record: SlotRecord::default(),
    };
    let Some((token, lease_ms)) = highest.filter(|(token, _)| *token > Token::ZERO) else { return none };
    let id = SessionId::from_stored(&format!("{DELETED}{}@{token}", lease_name(&slot.0, slot.1)));
    let view = SessionView {
        id: id.clone(),
        name: "last holder of a deleted Lease".into(),
        heartbeat_count: 0,
        lease_ms,
        live: true,
        heartbeat_at_ms: 0,
        owner: None,
    };
    Row {
        lease: LeaseRecord { token, session: Some(id), ..LeaseRecord::default() },
        synthetic: Some(view),
        ..none
    }
}

fn as_live(view: &SessionView) -> SessionView {
    SessionView { live: true, ..view.clone() }
}

/// Settings of an election without a Lease, from a candidacy.
fn apply_candidacy(election: &mut ElectionRecord, candidacy: &Candidacy) {
    if election.slots == 0 {
        election.slots = candidacy.slots;
        election.required_capabilities.clone_from(&candidacy.required_capabilities);
    }
}

fn term_of(view: &SessionView, slot: u32, lease: &LeaseRecord) -> Term {
    Term {
        slot,
        token: lease.token,
        candidate_name: view.name.clone(),
        session: view.id.clone(),
        start_reason: lease.start_reason,
        started_at_ms: lease.granted_at_ms.unwrap_or(0),
        ended_at_ms: None,
        end_reason: None,
    }
}

/// FNV-1a: a number that changes with the text.
fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
