//! The reference store: what every backend must do, as a pure value.
//!
//! `Book` is the truth of a store in memory. The memory backend wraps it in a mutex, the simulator puts a lossy network
//! in front of it, and the conformance suite holds every other backend to what it does. It has no clock: wall-clock
//! times, which are for people, are arguments.

mod adoption;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::port::{
    Ask, AskKind, Candidacy, CandidateView, ElectionView, Expire, Joined, LeaseView, NewSession, Observation,
    Pause, Pulse, Release, Scope, SessionView, Take, Term, Via, Wake,
};
use crate::{ElectionKey, Name, SessionId, Token};

/// How many terms of each election are remembered.
const TERMS_KEPT: usize = 100;

/// The whole content of a store.
///
/// ```
/// use tenure_core::book::Book;
/// use tenure_core::port::{NewSession, Pulse};
/// use tenure_core::{SessionId, SplitMix};
///
/// let mut book = Book::default();
/// let id = SessionId::generate(&mut SplitMix::new(1));
/// let session =
///     NewSession { id: id.clone(), name: "a".into(), lease: std::time::Duration::from_secs(10), takeover: Default::default(), owner: None };
/// assert!(matches!(book.open(&session, 0), Pulse::Alive { .. }));
/// book.end(&id, 0);
/// assert_eq!(book.beat(&id, 0), Pulse::Gone);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Book {
    epoch: u32,
    sessions: BTreeMap<SessionId, SessionView>,
    #[serde(with = "pairs")]
    elections: BTreeMap<ElectionKey, Election>,
    /// The last lease that was adopted of each slot, by who granted it. Stores that are written down grant themselves.
    #[serde(skip)]
    adopted: BTreeMap<(ElectionKey, u32, String), (Token, SessionId)>,
    #[serde(skip)]
    wakes: Vec<Wake>,
}

/// All that is known of an election: what a store that keeps whole documents keeps of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Election {
    /// How many may lead at once.
    pub slots: u32,
    /// What a leader must be able to do.
    pub requires: Vec<String>,
    /// Set while nobody may lead.
    pub paused: Option<Pause>,
    /// One for each slot, and for each that there ever was.
    pub leases: Vec<Lease>,
    /// Who stands, and since when.
    pub candidates: BTreeMap<SessionId, (Candidacy, i64)>,
    /// What is asked of the holders.
    pub asks: Vec<Ask>,
    /// The last terms, newest first.
    pub terms: Vec<Term>,
}

/// A lease, as it is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The token of the last grant, whoever granted it.
    pub token: Token,
    /// The last token that this store granted itself, while `token` is one that another elector granted. Tokens of
    /// different electors do not compare, so the store's own tokens go on from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<Token>,
    /// Who holds it.
    pub session: Option<SessionId>,
    /// Whom the last holder named as its successor.
    pub reserved: Option<SessionId>,
    /// How the term came about; of a free lease, how the next one will.
    pub via: Via,
    /// When it was granted.
    pub granted_at_ms: Option<i64>,
}

impl Book {
    /// A book of what is known: the sessions that live, and elections. Of sessions that are not among them, everything is freed.
    pub fn of(sessions: Vec<SessionView>, elections: BTreeMap<ElectionKey, Election>, wall_ms: i64) -> Book {
        let sessions = sessions.into_iter().map(|session| (session.id.clone(), session)).collect();
        let mut book = Book { sessions, elections, ..Book::default() };
        let live = |id: &SessionId| book.sessions.get(id).is_some_and(|session| session.live);
        for election in book.elections.values_mut() {
            election.candidates.retain(|id, _| live(id));
            for slot in 0..election.leases.len() {
                if election.leases[slot].session.as_ref().is_some_and(|id| !live(id)) {
                    election.free(slot, None, Via::Takeover, "expired", wall_ms);
                }
            }
        }
        book
    }

    /// All that is known of an election.
    pub fn kept(&self, key: &ElectionKey) -> Option<&Election> {
        self.elections.get(key)
    }

    /// The hints since the last call.
    pub fn drain_wakes(&mut self) -> Vec<Wake> {
        std::mem::take(&mut self.wakes)
    }

    /// As if a standby had been promoted. What it had not received, the caller takes away by using an older clone.
    pub fn promote(&mut self) {
        self.epoch += 1;
    }

    /// The epoch: 0 until the first promotion.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The state of a session, if it is known.
    pub fn session(&self, id: &SessionId) -> Option<&SessionView> {
        self.sessions.get(id)
    }

    /// See [`Directory::sessions`](crate::port::Directory::sessions).
    pub fn sessions(&self, which: Option<&[SessionId]>) -> Vec<SessionView> {
        let wanted = |session: &&SessionView| match which {
            Some(ids) => ids.contains(&session.id),
            None => session.live,
        };
        self.sessions.values().filter(wanted).cloned().collect()
    }

    /// See [`Store::open`](crate::port::Store::open).
    pub fn open(&mut self, session: &NewSession, wall_ms: i64) -> Pulse {
        if self.sessions.contains_key(&session.id) {
            return Pulse::Gone;
        }
        let view = SessionView {
            id: session.id.clone(),
            name: session.name.clone(),
            beat: 0,
            lease_ms: u64::try_from(session.lease.as_millis()).unwrap_or(u64::MAX),
            live: true,
            beat_at_ms: wall_ms,
            owner: session.owner.clone(),
        };
        self.sessions.insert(session.id.clone(), view);
        Pulse::Alive { epoch: self.epoch, asks: Vec::new() }
    }

    /// See [`Store::beat`](crate::port::Store::beat).
    pub fn beat(&mut self, id: &SessionId, wall_ms: i64) -> Pulse {
        // Only a live session beats: an expired one must never come back.
        let Some(session) = self.sessions.get_mut(id).filter(|session| session.live) else {
            return Pulse::Gone;
        };
        session.beat += 1;
        session.beat_at_ms = wall_ms;
        let asks = self.elections.values().flat_map(|election| election.asks_of(id)).collect();
        Pulse::Alive { epoch: self.epoch, asks }
    }

    /// See [`Store::end`](crate::port::Store::end).
    pub fn end(&mut self, id: &SessionId, wall_ms: i64) {
        if self.close(id, "ended", wall_ms) {
            self.wakes.push(Wake::Ended(id.clone()));
        }
    }

    /// See [`Store::expire`](crate::port::Store::expire).
    pub fn expire(&mut self, expire: &Expire, wall_ms: i64) -> bool {
        let unmoved = |session: &SessionView| expire.beat.is_none_or(|beat| session.beat == beat);
        let due = self.sessions.get(&expire.session).is_some_and(|session| session.live && unmoved(session));
        due && expire.epoch == self.epoch && self.close(&expire.session, "expired", wall_ms)
    }

    /// Forgets sessions that are over and beat last before a moment, so that a store that lives for ever does not grow for ever.
    pub fn forget_sessions(&mut self, before_ms: i64) {
        self.sessions.retain(|_, session| session.live || session.beat_at_ms >= before_ms);
    }

    /// Marks a session as over and frees all that it held.
    fn close(&mut self, id: &SessionId, how: &str, wall_ms: i64) -> bool {
        let Some(session) = self.sessions.get_mut(id).filter(|session| session.live) else { return false };
        session.live = false;
        for (key, election) in &mut self.elections {
            let mut touched = election.candidates.remove(id).is_some();
            let next = if how == "expired" { Via::Takeover } else { Via::Release };
            for slot in 0..election.leases.len() {
                if election.leases[slot].session.as_ref() == Some(id) {
                    election.free(slot, None, next, how, wall_ms);
                    touched = true;
                }
            }
            if touched && how == "expired" {
                self.wakes.push(Wake::Changed(key.clone()));
            }
        }
        true
    }

    /// A session's part in one election, ended as [`end`](Self::end) ends it in all.
    pub fn withdraw(&mut self, key: &ElectionKey, id: &SessionId, wall_ms: i64) {
        let Some(election) = self.elections.get_mut(key) else { return };
        election.candidates.remove(id);
        for slot in 0..election.leases.len() {
            if election.leases[slot].session.as_ref() == Some(id) {
                election.free(slot, None, Via::Release, "ended", wall_ms);
            }
        }
    }

    /// See [`Store::join`](crate::port::Store::join).
    pub fn join(&mut self, candidacy: &Candidacy, wall_ms: i64) -> Joined {
        if !self.is_live(&candidacy.session) {
            return Joined::Gone;
        }
        let sessions = &self.sessions;
        let live = |id: &SessionId| sessions.get(id).is_some_and(|session| session.live);
        let election = self.elections.entry(candidacy.election.clone()).or_default();
        let others = election.candidates.keys().any(|id| *id != candidacy.session && live(id));
        if election.slots != candidacy.slots && election.slots != 0 && others {
            return Joined::SlotsDiffer { slots: election.slots };
        }
        election.slots = candidacy.slots;
        // Rows of a former, larger number of slots stay: their tokens must never be granted again.
        let rows = election.leases.len().max(candidacy.slots as usize);
        // A new row is of this epoch, so that its first grant is too.
        let fresh = Lease { token: Token::first(self.epoch), ..Lease::default() };
        election.leases.resize(rows, fresh);
        // Who requires nothing leaves what others require as it is.
        if !others || !candidacy.requires.is_empty() {
            election.requires.clone_from(&candidacy.requires);
        }
        let joined_at = election.candidates.get(&candidacy.session).map_or(wall_ms, |(_, at)| *at);
        election.candidates.insert(candidacy.session.clone(), (candidacy.clone(), joined_at));
        self.wakes.push(Wake::Changed(candidacy.election.clone()));
        Joined::Standing
    }

    /// See [`Store::leave`](crate::port::Store::leave).
    pub fn leave(&mut self, session: &SessionId, key: &ElectionKey) {
        let left = self.elections.get_mut(key).and_then(|election| election.candidates.remove(session));
        if left.is_some() {
            self.wakes.push(Wake::Changed(key.clone()));
        }
    }

    /// See [`Store::observe`](crate::port::Store::observe).
    pub fn observe(&self, session: &SessionId, scope: &Scope) -> Observation {
        let holds = |election: &Election| election.leases.iter().any(|l| l.session.as_ref() == Some(session));
        let stands = |election: &Election| election.candidates.contains_key(session);
        let in_scope = |key: &ElectionKey, election: &Election| match scope {
            Scope::Contested => stands(election) && !holds(election),
            Scope::Standing => stands(election),
            Scope::Only(keys) => keys.contains(key),
            Scope::All => true,
        };
        let elections = self.elections.iter().filter(|(key, election)| in_scope(key, election));
        let strays =
            self.elections.iter().filter(|(_, election)| !stands(election)).flat_map(|(key, election)| {
                let mine =
                    election.leases.iter().zip(0..).filter(|(l, _)| l.session.as_ref() == Some(session));
                mine.map(|(lease, slot)| (key.clone(), slot, lease.token))
            });
        Observation {
            epoch: self.epoch,
            elections: elections.map(|(key, election)| self.view(key, election)).collect(),
            strays: strays.collect(),
        }
    }

    /// See [`Store::take`](crate::port::Store::take).
    pub fn take(&mut self, take: &Take, wall_ms: i64) -> Option<Token> {
        self.take_as(take, Token::ZERO, wall_ms)
    }

    /// Likewise, for a store that has a number of its own for each change: the token is that number, if it is greater than what the
    /// token would be.
    pub fn take_as(&mut self, take: &Take, number: Token, wall_ms: i64) -> Option<Token> {
        if !self.is_live(&take.session) || take.epoch != self.epoch {
            return None;
        }
        let seen = self.elections.get(&take.election)?.leases.get(take.slot as usize)?;
        // Compare and swap: what was seen must still be so.
        if seen.token != take.token || seen.session != take.holder {
            return None;
        }
        // A session whose beat stood still is dead whether or not the lease can be had.
        if let Some(expire) = &take.expire {
            self.expire(expire, wall_ms);
        }
        if take.holder.as_ref().is_some_and(|holder| self.is_live(holder)) {
            return None;
        }
        let over = take.holder.is_some();
        let election = self.elections.get_mut(&take.election)?;
        if election.paused.is_some() || take.slot >= election.slots {
            return None;
        }
        let id = election.candidates.get(&take.session).map(|(c, _)| c.id.clone())?;
        let lease = &mut election.leases[take.slot as usize];
        let token = lease.own.unwrap_or(lease.token).next(self.epoch).max(number);
        let via = if over { Via::Takeover } else { lease.via };
        *lease = Lease {
            token,
            own: None,
            session: Some(take.session.clone()),
            reserved: None,
            via,
            granted_at_ms: Some(wall_ms),
        };
        let (slot, session) = (take.slot, take.session.clone());
        election.terms.insert(
            0,
            Term { slot, token, id, session, via, began_at_ms: wall_ms, ended_at_ms: None, end: None },
        );
        election.terms.truncate(TERMS_KEPT);
        self.wakes.push(Wake::Changed(take.election.clone()));
        Some(token)
    }

    /// See [`Store::release`](crate::port::Store::release).
    pub fn release(&mut self, release: &Release, wall_ms: i64) {
        let Some(election) = self.elections.get_mut(&release.election) else { return };
        let slot = release.slot as usize;
        let held =
            |lease: &&Lease| lease.token == release.token && lease.session.as_ref() == Some(&release.session);
        if release.leave {
            election.candidates.remove(&release.session);
        }
        if election.leases.get(slot).filter(held).is_none() {
            return;
        }
        election.free(slot, release.successor.clone(), release.via, "released", wall_ms);
        self.wakes.push(Wake::Released {
            election: release.election.clone(),
            slot: release.slot,
            token: release.token,
            by: release.session.clone(),
            successor: release.successor.clone(),
            via: release.via,
        });
    }

    /// See [`Store::ask`](crate::port::Store::ask).
    pub fn ask(&mut self, ask: &Ask) -> bool {
        let Some(election) = self.elections.get_mut(&ask.election) else { return false };
        let Some(lease) = election.leases.get(ask.slot as usize) else { return false };
        let Some(holder) = lease.session.clone().filter(|_| lease.token == ask.token) else { return false };
        // One request per term: an operator's replaces a candidate's, never the other way round.
        let same_term = |other: &Ask| (other.slot, other.token) == (ask.slot, ask.token);
        let weaker = matches!(ask.kind, AskKind::Preempt(_));
        if !(weaker && election.asks.iter().any(same_term)) {
            election.asks.retain(|other| !same_term(other));
            election.asks.push(ask.clone());
        }
        self.wakes.push(Wake::Asked(holder));
        true
    }

    /// See [`Directory::set_paused`](crate::port::Directory::set_paused). `None` if there is no such election.
    pub fn set_paused(&mut self, key: &ElectionKey, pause: Option<&Pause>) -> Option<bool> {
        let election = self.elections.get_mut(key)?;
        if election.paused.is_some() == pause.is_some() {
            return Some(false);
        }
        election.paused = pause.cloned();
        let by = pause.map_or_else(String::new, |pause| pause.by.clone());
        let held: Vec<_> = election.leases.iter().zip(0..).filter(|(l, _)| l.session.is_some()).collect();
        let ask = |(lease, slot): &(&Lease, u32)| Ask {
            election: key.clone(),
            slot: *slot,
            token: lease.token,
            kind: AskKind::Pause,
            by: by.clone(),
        };
        let asks: Vec<Ask> = if pause.is_some() { held.iter().map(ask).collect() } else { Vec::new() };
        if pause.is_none() {
            election.asks.retain(|ask| ask.kind != AskKind::Pause);
        }
        for ask in &asks {
            self.ask(ask);
        }
        self.wakes.push(Wake::Changed(key.clone()));
        Some(true)
    }

    /// See [`Directory::elections`](crate::port::Directory::elections).
    pub fn elections(&self, namespace: Option<&Name>) -> Vec<ElectionView> {
        let wanted = |key: &ElectionKey| namespace.is_none_or(|namespace| key.namespace == *namespace);
        self.elections.iter().filter(|(key, _)| wanted(key)).map(|(key, e)| self.view(key, e)).collect()
    }

    /// See [`Directory::election`](crate::port::Directory::election).
    pub fn election(&self, key: &ElectionKey) -> Option<ElectionView> {
        self.elections.get(key).map(|election| self.view(key, election))
    }

    /// See [`Directory::history`](crate::port::Directory::history).
    pub fn history(&self, key: &ElectionKey, limit: u32) -> Vec<Term> {
        let terms = self.elections.get(key).map(|election| election.terms.as_slice()).unwrap_or_default();
        terms.iter().take(limit as usize).cloned().collect()
    }

    fn is_live(&self, id: &SessionId) -> bool {
        self.sessions.get(id).is_some_and(|session| session.live)
    }

    fn view(&self, key: &ElectionKey, election: &Election) -> ElectionView {
        let lease = |(lease, slot): (&Lease, u32)| LeaseView {
            slot,
            token: lease.token,
            holder: lease.session.as_ref().and_then(|id| self.sessions.get(id).cloned()),
            reserved: lease.reserved.clone(),
            via: lease.via,
            granted_at_ms: lease.granted_at_ms,
        };
        let candidate = |(id, (candidacy, joined_at_ms)): (&SessionId, &(Candidacy, i64))| {
            Some(CandidateView {
                id: candidacy.id.clone(),
                session: self.sessions.get(id)?.clone(),
                priority: candidacy.priority,
                observer: candidacy.observer,
                capabilities: candidacy.capabilities.clone(),
                metadata: candidacy.metadata.clone(),
                joined_at_ms: *joined_at_ms,
            })
        };
        ElectionView {
            key: key.clone(),
            slots: election.slots,
            requires: election.requires.clone(),
            paused: election.paused.clone(),
            leases: election.leases.iter().zip(0..election.slots).map(lease).collect(),
            candidates: election.candidates.iter().filter_map(candidate).collect(),
        }
    }
}

/// A map whose keys are no text, as a list.
mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<K: Serialize, V: Serialize, S: Serializer>(
        map: &BTreeMap<K, V>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(map)
    }

    pub(super) fn deserialize<'de, K, V, D>(from: D) -> Result<BTreeMap<K, V>, D::Error>
    where
        K: Deserialize<'de> + Ord,
        V: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        Vec::<(K, V)>::deserialize(from).map(|pairs| pairs.into_iter().collect())
    }
}

impl Election {
    fn asks_of<'a>(&'a self, session: &'a SessionId) -> impl Iterator<Item = Ask> + 'a {
        let holds = move |ask: &&Ask| {
            let lease = self.leases.get(ask.slot as usize);
            lease.is_some_and(|lease| lease.session.as_ref() == Some(session) && lease.token == ask.token)
        };
        self.asks.iter().filter(holds).cloned()
    }

    fn free(&mut self, slot: usize, successor: Option<SessionId>, via: Via, how: &str, wall_ms: i64) {
        let lease = &mut self.leases[slot];
        let token = lease.token;
        (lease.session, lease.reserved, lease.via) = (None, successor, via);
        // The token of another elector is gone with its leader: a free lease shows this store's own.
        lease.token = lease.own.take().unwrap_or(token);
        self.asks.retain(|ask| ask.token != token || ask.slot as usize != slot);
        // A term ends once: another elector's token may be equal to one that was granted here.
        let open = |term: &&mut Term| term.slot as usize == slot && term.token == token && term.end.is_none();
        let term = self.terms.iter_mut().find(open);
        if let Some(term) = term {
            (term.ended_at_ms, term.end) = (Some(wall_ms), Some(how.into()));
        }
    }
}
