//! What was read, as the reference store understands it.
//!
//! A list of objects is what the namespace looked like at one moment. From it a [`Book`] is made, in which a change is worked out; what
//! comes of it is written object by object (see `writing.rs`), each only if it is still what was read.
//!
//! Who holds a Lease is what its `spec` says, and nothing else: a session that is over, and yet stands in a `spec`, is shown as living with a beat that does
//! not move, and has to be waited out. So is who must be feared to believe still: the holder of a Lease that was deleted, or whose `holderIdentity`
//! was cleared, by hand. And so is a holder that is no session of ours, whose beat is whatever its record says.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::book::{Book, Election, Lease};
use tenure_core::port::{Candidacy, SessionView, Term, Via};
use tenure_core::{ElectionKey, SessionId, Token};

use super::interest::Watched;
use super::names::{election_of, lease_name};
use super::object::{ELECTION, Object, SESSION};
use super::record::{Holder, OF, Record, SessionRecord};

/// How many terms of an election are shown.
const TERMS_KEPT: usize = 100;
/// The lease of a holder that does not say it: client-go's default.
const LEASE_MS: u64 = 15_000;

pub(super) type Slot = (ElectionKey, u32);

/// Objects as they were at one moment.
#[derive(Default)]
pub(super) struct Reading {
    /// The elections that were asked for; all if it is `None`.
    about: Watched,
    pub(super) leases: BTreeMap<Slot, Object>,
    pub(super) sessions: BTreeMap<SessionId, (Object, SessionRecord)>,
    /// Objects of sessions that make no sense: to be used again.
    pub(super) waste: Vec<Object>,
    /// How often sessions have beaten in what they hold.
    beats: BTreeMap<SessionId, u64>,
}

/// A slot, read.
struct Row {
    lease: Lease,
    /// The session of the holder, where no object of its own says that it lives.
    made_up: Option<SessionView>,
    terms: Vec<Term>,
    record: Record,
}

impl Reading {
    pub(super) fn of(about: Watched, objects: Vec<Object>) -> Reading {
        let mut reading = Reading { about, ..Reading::default() };
        objects.into_iter().for_each(|object| reading.add(object));
        reading
    }

    pub(super) fn add(&mut self, object: Object) {
        match object.kind() {
            Some(SESSION) => match SessionRecord::of(&object) {
                Some(record) => {
                    self.sessions.insert(record.view.id.clone(), (object, record));
                }
                None => self.waste.push(object),
            },
            _ => {
                let Some(slot) = slot_of(&object) else { return };
                if let Some(Holder { session, .. }) = holder_noted(&object) {
                    let beat = self.beats.entry(session.id).or_default();
                    *beat = session.beat.max(*beat);
                }
                self.leases.insert(slot, object);
            }
        }
    }

    /// Whether this election was asked for.
    fn is_about(&self, key: &ElectionKey) -> bool {
        self.about.as_ref().is_none_or(|keys| keys.contains(key))
    }

    /// The living sessions.
    fn live(&self) -> impl Iterator<Item = &SessionRecord> {
        self.sessions.values().map(|(_, record)| record).filter(|record| record.view.live)
    }

    /// The elections that were asked for, or that sessions stand for, and whose Lease is not among ours.
    pub(super) fn missing(&self) -> BTreeSet<ElectionKey> {
        let stood = self.live().flat_map(|record| &record.candidacies).map(|s| &s.candidacy.election);
        let all = stood.filter(|key| self.is_about(key)).chain(self.about.iter().flatten());
        all.filter(|key| !self.leases.contains_key(&((*key).clone(), 0))).cloned().collect()
    }

    /// Whether it says of each session whether it beats: who holds something says so there.
    pub(super) fn is_whole(&self) -> bool {
        let mut holds = self.live().flat_map(|record| &record.holds);
        holds.all(|hold| self.leases.contains_key(&(hold.election.clone(), hold.slot)))
    }

    /// How often a session has beaten: in its own object, or in what it holds.
    pub(super) fn beat_of(&self, id: &SessionId) -> u64 {
        let own = self.sessions.get(id).map_or(0, |(_, record)| record.view.beat);
        self.beats.get(id).map_or(own, |held| own.max(*held))
    }

    /// The greatest tokens, and the leases of their holders.
    pub(super) fn tokens(&self) -> BTreeMap<Slot, (Token, u64)> {
        let rows = self.leases.iter().map(|(slot, object)| {
            let lease_ms = object.lease_ms().unwrap_or(LEASE_MS);
            (slot.clone(), (token_of(object), lease_ms))
        });
        rows.collect()
    }

    /// To work on.
    pub(super) fn book(&self, wall_ms: i64) -> Book {
        let floors = self.floors();
        let mut sessions = BTreeMap::new();
        for (id, (_, record)) in &self.sessions {
            let beat = self.beat_of(id);
            sessions.insert(id.clone(), SessionView { beat, ..record.view.clone() });
        }
        let slots = self.leases.keys().chain(floors.keys()).filter(|(key, _)| self.is_about(key));
        let slots = slots.cloned().collect::<BTreeSet<Slot>>();
        let mut elections: BTreeMap<ElectionKey, Election> = BTreeMap::new();
        for (key, slot) in slots {
            let row = self.row(&(key.clone(), slot), &floors);
            if let Some(view) = row.made_up {
                sessions.insert(view.id.clone(), view);
            }
            let election = elections.entry(key).or_default();
            let at = slot as usize;
            if election.leases.len() <= at {
                election.leases.resize(at + 1, Lease::default());
            }
            election.leases[at] = row.lease;
            election.asks.extend(row.record.asks);
            election.terms.extend(row.terms);
            if slot == 0 {
                (election.slots, election.requires) = (row.record.slots, row.record.requires);
                election.paused = row.record.paused;
                let rows = election.leases.len().max(row.record.rows as usize);
                election.leases.resize(rows, Lease::default());
            }
        }
        for (id, (_, record)) in self.sessions.iter().filter(|(_, (_, record))| record.view.live) {
            for standing in record.candidacies.iter().filter(|s| self.is_about(&s.candidacy.election)) {
                let candidacy = standing.candidacy.clone();
                let election = elections.entry(candidacy.election.clone()).or_default();
                stand(election, &candidacy);
                election.candidates.insert(id.clone(), (candidacy, standing.joined_at_ms));
            }
        }
        for election in elections.values_mut() {
            election.slots = election.slots.max(1);
            let rows = election.leases.len().max(election.slots as usize);
            election.leases.resize(rows, Lease::default());
            election.terms.sort_by_key(|term| std::cmp::Reverse((term.began_at_ms, term.token)));
            election.terms.truncate(TERMS_KEPT);
        }
        Book::of(sessions.into_values().collect(), elections, wall_ms)
    }

    /// The greatest tokens that sessions have seen, and the longest leases of their holders.
    fn floors(&self) -> BTreeMap<Slot, (Token, u64)> {
        let mut floors = BTreeMap::new();
        for seen in self.sessions.values().flat_map(|(_, record)| &record.seen) {
            let floor =
                floors.entry((seen.election.clone(), seen.slot)).or_insert((seen.token, seen.lease_ms));
            *floor = (floor.0.max(seen.token), floor.1.max(seen.lease_ms));
        }
        floors
    }

    fn row(&self, slot: &Slot, floors: &BTreeMap<Slot, (Token, u64)>) -> Row {
        let floor = floors.get(slot).copied();
        let Some(object) = self.leases.get(slot) else { return deleted(slot, floor) };
        let record: Record = object.note(super::record::RECORD).unwrap_or_default();
        let token = token_of(object);
        let lives = |id: &SessionId| self.sessions.get(id).is_some_and(|(_, record)| record.view.live);
        let noted = record.holder.clone();
        let raised = token.max(floor.map_or(Token::ZERO, |(token, _)| token));
        let (token, session, made_up) = match (object.holder(), noted) {
            (Some(identity), Some(noted)) if noted.identity == identity => {
                let made_up = (!lives(&noted.session.id)).then(|| alive(&noted.session));
                (token, Some(noted.session.id), made_up)
            }
            (Some(identity), _) => match self.by_identity(identity) {
                Some(id) => (token, Some(id), None),
                None => {
                    let view = stranger(object, identity);
                    (raised, Some(view.id.clone()), Some(view))
                }
            },
            // Nobody released it: it was cleared by hand, or made anew after it was deleted.
            (None, Some(noted)) if noted.token == token => {
                let made_up = (!lives(&noted.session.id)).then(|| alive(&noted.session));
                (token, Some(noted.session.id), made_up)
            }
            (None, _) => (raised, None, None),
        };
        let strange = made_up.as_ref().filter(|view| is_stranger(&view.id));
        let acquired_ms = object.time("acquireTime").map(|micros| micros / 1000);
        let last = record.last.as_ref().filter(|last| last.token == token);
        let lease = Lease {
            token,
            own: None,
            reserved: last.and_then(|last| last.reserved.clone()).filter(|_| session.is_none()),
            via: last.map_or(if strange.is_some() { Via::Takeover } else { Via::Release }, |last| last.via),
            granted_at_ms: last.map_or(acquired_ms, |last| last.granted_at_ms),
            session,
        };
        let mut terms = record.terms.clone();
        for term in terms.iter_mut().filter(|term| term.end.is_none() && term.token < token) {
            // Whoever followed did not say so: it was no session of ours.
            (term.ended_at_ms, term.end) = (acquired_ms, Some("expired".into()));
        }
        if let Some(view) = strange.filter(|_| terms.iter().all(|t| t.token != token)) {
            terms.insert(0, term_of(view, slot.1, &lease));
        }
        Row { lease, made_up, terms, record }
    }

    /// The living session that writes this as its `holderIdentity`.
    fn by_identity(&self, identity: &str) -> Option<SessionId> {
        self.live().find(|record| record.identity == identity).map(|record| record.view.id.clone())
    }
}

/// Which slot of which election a Lease is of.
pub(super) fn slot_of(object: &Object) -> Option<Slot> {
    let noted = || {
        let mut parts = object.words(OF)?.split('/');
        let (namespace, name) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some((ElectionKey::new(namespace, name), parts.next()?.parse().ok()?))
    };
    // Whoever copied it copied the annotation too.
    let noted = || noted().filter(|(key, slot)| lease_name(key, *slot) == object.name());
    if object.kind().is_some_and(|kind| kind != ELECTION) {
        return None;
    }
    noted().or_else(|| election_of(object.name()))
}

/// The session that is noted as the holder, if it is that.
pub(super) fn holder_noted(object: &Object) -> Option<Holder> {
    let record: Record = object.note(super::record::RECORD)?;
    record.holder.filter(|noted| object.holder().is_none_or(|identity| identity == noted.identity))
}

/// The token of the last grant.
pub(super) fn token_of(object: &Object) -> Token {
    let held = object.holder().map(|_| 0);
    object.transitions().or(held).map_or(Token::ZERO, |transitions| Token::from_u64(transitions + 1))
}

/// Whether this is the id of a holder that is no session of ours.
pub(super) fn is_stranger(id: &SessionId) -> bool {
    id.as_str().starts_with(STRANGER)
}

const STRANGER: &str = "other:";
const DELETED: &str = "deleted:";

/// A holder that is no session of ours: it lives for as long as its record changes.
fn stranger(object: &Object, identity: &str) -> SessionView {
    SessionView {
        id: SessionId::from_stored(&format!("{STRANGER}{identity}@{}", object.name())),
        name: identity.into(),
        beat: digest(&object.spec().to_string()),
        lease_ms: object.lease_ms().unwrap_or(LEASE_MS),
        live: true,
        beat_at_ms: object.time("renewTime").map_or(0, |micros| micros / 1000),
        owner: None,
    }
}

/// A Lease that is not there, though its tokens were seen: whoever held it may believe for a while that it still does.
fn deleted(slot: &Slot, floor: Option<(Token, u64)>) -> Row {
    let none = Row { lease: Lease::default(), made_up: None, terms: Vec::new(), record: Record::default() };
    let Some((token, lease_ms)) = floor.filter(|(token, _)| *token > Token::ZERO) else { return none };
    let id = SessionId::from_stored(&format!("{DELETED}{}@{token}", lease_name(&slot.0, slot.1)));
    let view = SessionView {
        id: id.clone(),
        name: "whoever held the Lease that was deleted".into(),
        beat: 0,
        lease_ms,
        live: true,
        beat_at_ms: 0,
        owner: None,
    };
    Row { lease: Lease { token, session: Some(id), ..Lease::default() }, made_up: Some(view), ..none }
}

fn alive(view: &SessionView) -> SessionView {
    SessionView { live: true, ..view.clone() }
}

/// What the election is like, if its Lease does not say it.
fn stand(election: &mut Election, candidacy: &Candidacy) {
    if election.slots == 0 {
        election.slots = candidacy.slots;
        election.requires.clone_from(&candidacy.requires);
    }
}

fn term_of(view: &SessionView, slot: u32, lease: &Lease) -> Term {
    Term {
        slot,
        token: lease.token,
        id: view.name.clone(),
        session: view.id.clone(),
        via: lease.via,
        began_at_ms: lease.granted_at_ms.unwrap_or(0),
        ended_at_ms: None,
        end: None,
    }
}

/// FNV-1a: a number that moves whenever the text does.
fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
