//! Reference implementation of sessions and elections, without I/O.
//!
//! [`Elections`] is the state of a store in memory. The memory store wraps it in a mutex, the simulator puts an
//! unreliable network in front of it, and the conformance suite compares every other store with it. It has no clock:
//! wall-clock times, which are only displayed, are arguments.

mod adoption;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::port::{
    Candidacy, CandidateView, ElectionView, ElectionsObservation, ExpireSessionRequest, HeartbeatResponse,
    JoinElectionResponse, LeaderRequest, LeaderRequestKind, LeaseView, Notification, ObserveScope,
    OpenSessionRequest, Pause, ReleaseLeaseRequest, SessionView, StartReason, TakeLeaseRequest, Term,
};
use crate::{ElectionKey, Name, SessionId, Token};

/// Number of terms kept per election.
const TERMS_KEPT: usize = 100;

/// All sessions and elections of a store.
///
/// ```
/// use tenure_core::model::Elections;
/// use tenure_core::port::{OpenSessionRequest, HeartbeatResponse};
/// use tenure_core::{SessionId, SplitMix};
///
/// let mut elections = Elections::default();
/// let id = SessionId::generate(&mut SplitMix::new(1));
/// let session =
///     OpenSessionRequest { id: id.clone(), name: "a".into(), lease: std::time::Duration::from_secs(10), takeover: Default::default(), owner: None };
/// assert!(matches!(elections.open_session(&session, 0), HeartbeatResponse::Live { .. }));
/// elections.end_session(&id, 0);
/// assert_eq!(elections.heartbeat(&id, 0), HeartbeatResponse::SessionEnded);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Elections {
    epoch: u32,
    sessions: BTreeMap<SessionId, SessionView>,
    #[serde(with = "pairs")]
    elections: BTreeMap<ElectionKey, ElectionRecord>,
    /// The last adopted lease of each slot, by granting store. Not serialized, because stores that serialize this
    /// state grant their own leases.
    #[serde(skip)]
    adopted: BTreeMap<(ElectionKey, u32, String), (Token, SessionId)>,
    #[serde(skip)]
    wakes: Vec<Notification>,
}

/// Everything that a document store keeps about one election.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ElectionRecord {
    /// Number of slots.
    pub slots: u32,
    /// Capabilities that a leader needs.
    pub required_capabilities: Vec<String>,
    /// Set while the election is paused.
    pub paused: Option<Pause>,
    /// One lease per slot that exists or ever existed.
    pub leases: Vec<LeaseRecord>,
    /// Candidates with their time of joining.
    pub candidates: BTreeMap<SessionId, (Candidacy, i64)>,
    /// Pending requests to the leaders.
    pub leader_requests: Vec<LeaderRequest>,
    /// Latest terms, newest first.
    pub terms: Vec<Term>,
}

/// A lease as stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// Token of the latest grant, by any store.
    pub token: Token,
    /// The last token that this store granted itself, while `token` was granted by another store. Tokens of different
    /// stores cannot be compared, so this store's tokens continue from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_token: Option<Token>,
    /// Session that holds the lease.
    pub session: Option<SessionId>,
    /// Session that the last holder named as its successor.
    pub reserved_for: Option<SessionId>,
    /// Start reason of the current term; for a free lease, of the next term.
    pub start_reason: StartReason,
    /// Time of the grant.
    pub granted_at_ms: Option<i64>,
}

impl Elections {
    /// Restores the state from the live sessions and the election records. Everything that other sessions held is
    /// released.
    pub fn from_records(
        sessions: Vec<SessionView>,
        elections: BTreeMap<ElectionKey, ElectionRecord>,
        wall_ms: i64,
    ) -> Elections {
        let sessions = sessions.into_iter().map(|session| (session.id.clone(), session)).collect();
        let mut restored = Elections { sessions, elections, ..Elections::default() };
        let live = |id: &SessionId| restored.sessions.get(id).is_some_and(|session| session.live);
        for election in restored.elections.values_mut() {
            election.candidates.retain(|id, _| live(id));
            for slot in 0..election.leases.len() {
                if election.leases[slot].session.as_ref().is_some_and(|id| !live(id)) {
                    election.free(slot, None, StartReason::Takeover, "expired", wall_ms);
                }
            }
        }
        restored
    }

    /// Everything stored about one election.
    pub fn record(&self, key: &ElectionKey) -> Option<&ElectionRecord> {
        self.elections.get(key)
    }

    /// Notifications since the last call.
    pub fn drain_notifications(&mut self) -> Vec<Notification> {
        std::mem::take(&mut self.wakes)
    }

    /// Raises the epoch, as the promotion of a standby does. To simulate lost replication, call this on an older clone.
    pub fn promote(&mut self) {
        self.epoch += 1;
    }

    /// Epoch of the store; 0 until the first promotion.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// A session, if it is known.
    pub fn session(&self, id: &SessionId) -> Option<&SessionView> {
        self.sessions.get(id)
    }

    /// See [`ElectionAdmin::sessions`](crate::port::ElectionAdmin::sessions).
    pub fn sessions(&self, which: Option<&[SessionId]>) -> Vec<SessionView> {
        let matches_filter = |session: &&SessionView| match which {
            Some(ids) => ids.contains(&session.id),
            None => session.live,
        };
        self.sessions.values().filter(matches_filter).cloned().collect()
    }

    /// See [`ElectionStore::open_session`](crate::port::ElectionStore::open_session).
    pub fn open_session(&mut self, session: &OpenSessionRequest, wall_ms: i64) -> HeartbeatResponse {
        if self.sessions.contains_key(&session.id) {
            return HeartbeatResponse::SessionEnded;
        }
        let view = SessionView {
            id: session.id.clone(),
            name: session.name.clone(),
            heartbeat_count: 0,
            lease_ms: u64::try_from(session.lease.as_millis()).unwrap_or(u64::MAX),
            live: true,
            heartbeat_at_ms: wall_ms,
            owner: session.owner.clone(),
        };
        self.sessions.insert(session.id.clone(), view);
        HeartbeatResponse::Live { epoch: self.epoch, leader_requests: Vec::new() }
    }

    /// See [`ElectionStore::heartbeat`](crate::port::ElectionStore::heartbeat).
    pub fn heartbeat(&mut self, id: &SessionId, wall_ms: i64) -> HeartbeatResponse {
        // Only a live session can be extended. An expired session must stay ended.
        let Some(session) = self.sessions.get_mut(id).filter(|session| session.live) else {
            return HeartbeatResponse::SessionEnded;
        };
        session.heartbeat_count += 1;
        session.heartbeat_at_ms = wall_ms;
        let leader_requests =
            self.elections.values().flat_map(|election| election.leader_requests_of(id)).collect();
        HeartbeatResponse::Live { epoch: self.epoch, leader_requests }
    }

    /// See [`ElectionStore::end_session`](crate::port::ElectionStore::end_session).
    pub fn end_session(&mut self, id: &SessionId, wall_ms: i64) {
        if self.close(id, "ended", wall_ms) {
            self.wakes.push(Notification::SessionEnded(id.clone()));
        }
    }

    /// See [`ElectionStore::expire_session`](crate::port::ElectionStore::expire_session).
    pub fn expire_session(&mut self, expire: &ExpireSessionRequest, wall_ms: i64) -> bool {
        let unmoved =
            |session: &SessionView| expire.heartbeat_count.is_none_or(|beat| session.heartbeat_count == beat);
        let due = self.sessions.get(&expire.session).is_some_and(|session| session.live && unmoved(session));
        due && expire.epoch == self.epoch && self.close(&expire.session, "expired", wall_ms)
    }

    /// Removes ended sessions whose last heartbeat was before `before_ms`, which bounds the size of the state.
    pub fn prune_sessions(&mut self, before_ms: i64) {
        self.sessions.retain(|_, session| session.live || session.heartbeat_at_ms >= before_ms);
    }

    /// Marks a session as ended and releases everything it held.
    fn close(&mut self, id: &SessionId, how: &str, wall_ms: i64) -> bool {
        let Some(session) = self.sessions.get_mut(id).filter(|session| session.live) else { return false };
        session.live = false;
        for (key, election) in &mut self.elections {
            let mut touched = election.candidates.remove(id).is_some();
            let next = if how == "expired" { StartReason::Takeover } else { StartReason::Release };
            for slot in 0..election.leases.len() {
                if election.leases[slot].session.as_ref() == Some(id) {
                    election.free(slot, None, next, how, wall_ms);
                    touched = true;
                }
            }
            if touched && how == "expired" {
                self.wakes.push(Notification::ElectionChanged(key.clone()));
            }
        }
        true
    }

    /// Ends the candidacy of a session in one election, as [`end_session`](Self::end_session) does in all elections.
    pub fn withdraw(&mut self, key: &ElectionKey, id: &SessionId, wall_ms: i64) {
        let Some(election) = self.elections.get_mut(key) else { return };
        election.candidates.remove(id);
        for slot in 0..election.leases.len() {
            if election.leases[slot].session.as_ref() == Some(id) {
                election.free(slot, None, StartReason::Release, "ended", wall_ms);
            }
        }
    }

    /// See [`ElectionStore::join_election`](crate::port::ElectionStore::join_election).
    pub fn join_election(&mut self, candidacy: &Candidacy, wall_ms: i64) -> JoinElectionResponse {
        if !self.is_live(&candidacy.session) {
            return JoinElectionResponse::SessionEnded;
        }
        let sessions = &self.sessions;
        let live = |id: &SessionId| sessions.get(id).is_some_and(|session| session.live);
        let election = self.elections.entry(candidacy.election.clone()).or_default();
        let others = election.candidates.keys().any(|id| *id != candidacy.session && live(id));
        if election.slots != candidacy.slots && election.slots != 0 && others {
            return JoinElectionResponse::SlotsDiffer { slots: election.slots };
        }
        election.slots = candidacy.slots;
        // Leases beyond the current number of slots are kept, because their tokens must never be granted again.
        let rows = election.leases.len().max(candidacy.slots as usize);
        // A new lease starts in the current epoch, so that its first grant belongs to that epoch.
        let fresh = LeaseRecord { token: Token::first(self.epoch), ..LeaseRecord::default() };
        election.leases.resize(rows, fresh);
        // A candidate that requires no capabilities does not change those that the election requires.
        if !others || !candidacy.required_capabilities.is_empty() {
            election.required_capabilities.clone_from(&candidacy.required_capabilities);
        }
        let joined_at = election.candidates.get(&candidacy.session).map_or(wall_ms, |(_, at)| *at);
        election.candidates.insert(candidacy.session.clone(), (candidacy.clone(), joined_at));
        self.wakes.push(Notification::ElectionChanged(candidacy.election.clone()));
        JoinElectionResponse::Joined
    }

    /// See [`ElectionStore::leave_election`](crate::port::ElectionStore::leave_election).
    pub fn leave_election(&mut self, session: &SessionId, key: &ElectionKey) {
        let left = self.elections.get_mut(key).and_then(|election| election.candidates.remove(session));
        if left.is_some() {
            self.wakes.push(Notification::ElectionChanged(key.clone()));
        }
    }

    /// See [`ElectionStore::observe`](crate::port::ElectionStore::observe).
    pub fn observe(&self, session: &SessionId, scope: &ObserveScope) -> ElectionsObservation {
        let holds =
            |election: &ElectionRecord| election.leases.iter().any(|l| l.session.as_ref() == Some(session));
        let is_candidate = |election: &ElectionRecord| election.candidates.contains_key(session);
        let in_scope = |key: &ElectionKey, election: &ElectionRecord| match scope {
            ObserveScope::Contested => is_candidate(election) && !holds(election),
            ObserveScope::Own => is_candidate(election),
            ObserveScope::Listed(keys) => keys.contains(key),
            ObserveScope::All => true,
        };
        let elections = self.elections.iter().filter(|(key, election)| in_scope(key, election));
        let orphaned = self.elections.iter().filter(|(_, election)| !is_candidate(election)).flat_map(
            |(key, election)| {
                let mine =
                    election.leases.iter().zip(0..).filter(|(l, _)| l.session.as_ref() == Some(session));
                mine.map(|(lease, slot)| (key.clone(), slot, lease.token))
            },
        );
        ElectionsObservation {
            epoch: self.epoch,
            elections: elections.map(|(key, election)| self.view(key, election)).collect(),
            orphaned_leases: orphaned.collect(),
        }
    }

    /// See [`ElectionStore::take_lease`](crate::port::ElectionStore::take_lease).
    pub fn take_lease(&mut self, take: &TakeLeaseRequest, wall_ms: i64) -> Option<Token> {
        self.take_lease_as(take, Token::ZERO, wall_ms)
    }

    /// Takes a lease as [`take_lease`](Self::take_lease) does, for a store that numbers its changes: grants `number` as
    /// the token if it is greater than the next token.
    pub fn take_lease_as(&mut self, take: &TakeLeaseRequest, number: Token, wall_ms: i64) -> Option<Token> {
        if !self.is_live(&take.session) || take.epoch != self.epoch {
            return None;
        }
        let lease_record = self.elections.get(&take.election)?.leases.get(take.slot as usize)?;
        // Compare-and-swap on the observed token and holder.
        if lease_record.token != take.token || lease_record.session != take.holder {
            return None;
        }
        // Expire the silent session even if the take is rejected below.
        if let Some(expire) = &take.expire {
            self.expire_session(expire, wall_ms);
        }
        if take.holder.as_ref().is_some_and(|holder| self.is_live(holder)) {
            return None;
        }
        let over = take.holder.is_some();
        let election = self.elections.get_mut(&take.election)?;
        if election.paused.is_some() || take.slot >= election.slots {
            return None;
        }
        let id = election.candidates.get(&take.session).map(|(c, _)| c.name.clone())?;
        let lease = &mut election.leases[take.slot as usize];
        let token = lease.own_token.unwrap_or(lease.token).next(self.epoch).max(number);
        let start_reason = if over { StartReason::Takeover } else { lease.start_reason };
        *lease = LeaseRecord {
            token,
            own_token: None,
            session: Some(take.session.clone()),
            reserved_for: None,
            start_reason,
            granted_at_ms: Some(wall_ms),
        };
        let (slot, session) = (take.slot, take.session.clone());
        election.terms.insert(
            0,
            Term {
                slot,
                token,
                candidate_name: id,
                session,
                start_reason,
                started_at_ms: wall_ms,
                ended_at_ms: None,
                end_reason: None,
            },
        );
        election.terms.truncate(TERMS_KEPT);
        self.wakes.push(Notification::ElectionChanged(take.election.clone()));
        Some(token)
    }

    /// See [`ElectionStore::release_lease`](crate::port::ElectionStore::release_lease).
    pub fn release_lease(&mut self, release: &ReleaseLeaseRequest, wall_ms: i64) {
        let Some(election) = self.elections.get_mut(&release.election) else { return };
        let slot = release.slot as usize;
        let held = |lease: &&LeaseRecord| {
            lease.token == release.token && lease.session.as_ref() == Some(&release.session)
        };
        if release.leave {
            election.candidates.remove(&release.session);
        }
        if election.leases.get(slot).filter(held).is_none() {
            return;
        }
        election.free(slot, release.successor.clone(), release.start_reason, "released", wall_ms);
        self.wakes.push(Notification::LeaseReleased {
            election: release.election.clone(),
            slot: release.slot,
            token: release.token,
            released_by: release.session.clone(),
            successor: release.successor.clone(),
            start_reason: release.start_reason,
        });
    }

    /// See [`ElectionStore::request_leader`](crate::port::ElectionStore::request_leader).
    pub fn request_leader(&mut self, request: &LeaderRequest) -> bool {
        let Some(election) = self.elections.get_mut(&request.election) else { return false };
        let Some(lease) = election.leases.get(request.slot as usize) else { return false };
        let Some(holder) = lease.session.clone().filter(|_| lease.token == request.token) else {
            return false;
        };
        // One request per term. An operator's request replaces a candidate's, never the reverse.
        let same_term = |other: &LeaderRequest| (other.slot, other.token) == (request.slot, request.token);
        let weaker = matches!(request.kind, LeaderRequestKind::Preempt(_));
        if !(weaker && election.leader_requests.iter().any(same_term)) {
            election.leader_requests.retain(|other| !same_term(other));
            election.leader_requests.push(request.clone());
        }
        self.wakes.push(Notification::LeaderRequested(holder));
        true
    }

    /// See [`ElectionAdmin::set_election_paused`](crate::port::ElectionAdmin::set_election_paused). Returns `None` if
    /// the election does not exist.
    pub fn set_election_paused(&mut self, key: &ElectionKey, pause: Option<&Pause>) -> Option<bool> {
        let election = self.elections.get_mut(key)?;
        if election.paused.is_some() == pause.is_some() {
            return Some(false);
        }
        election.paused = pause.cloned();
        let by = pause.map_or_else(String::new, |pause| pause.paused_by.clone());
        let held: Vec<_> = election.leases.iter().zip(0..).filter(|(l, _)| l.session.is_some()).collect();
        let request = |(lease, slot): &(&LeaseRecord, u32)| LeaderRequest {
            election: key.clone(),
            slot: *slot,
            token: lease.token,
            kind: LeaderRequestKind::Pause,
            requested_by: by.clone(),
        };
        let leader_requests: Vec<LeaderRequest> =
            if pause.is_some() { held.iter().map(request).collect() } else { Vec::new() };
        if pause.is_none() {
            election.leader_requests.retain(|request| request.kind != LeaderRequestKind::Pause);
        }
        for request in &leader_requests {
            self.request_leader(request);
        }
        self.wakes.push(Notification::ElectionChanged(key.clone()));
        Some(true)
    }

    /// See [`ElectionAdmin::elections`](crate::port::ElectionAdmin::elections).
    pub fn elections(&self, namespace: Option<&Name>) -> Vec<ElectionView> {
        let matches_filter =
            |key: &ElectionKey| namespace.is_none_or(|namespace| key.namespace == *namespace);
        self.elections
            .iter()
            .filter(|(key, _)| matches_filter(key))
            .map(|(key, e)| self.view(key, e))
            .collect()
    }

    /// See [`ElectionAdmin::election`](crate::port::ElectionAdmin::election).
    pub fn election(&self, key: &ElectionKey) -> Option<ElectionView> {
        self.elections.get(key).map(|election| self.view(key, election))
    }

    /// See [`ElectionAdmin::term_history`](crate::port::ElectionAdmin::term_history).
    pub fn term_history(&self, key: &ElectionKey, limit: u32) -> Vec<Term> {
        let terms = self.elections.get(key).map(|election| election.terms.as_slice()).unwrap_or_default();
        terms.iter().take(limit as usize).cloned().collect()
    }

    fn is_live(&self, id: &SessionId) -> bool {
        self.sessions.get(id).is_some_and(|session| session.live)
    }

    fn view(&self, key: &ElectionKey, election: &ElectionRecord) -> ElectionView {
        let lease = |(lease, slot): (&LeaseRecord, u32)| LeaseView {
            slot,
            token: lease.token,
            holder: lease.session.as_ref().and_then(|id| self.sessions.get(id).cloned()),
            reserved_for: lease.reserved_for.clone(),
            start_reason: lease.start_reason,
            granted_at_ms: lease.granted_at_ms,
        };
        let candidate = |(id, (candidacy, joined_at_ms)): (&SessionId, &(Candidacy, i64))| {
            Some(CandidateView {
                name: candidacy.name.clone(),
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
            required_capabilities: election.required_capabilities.clone(),
            paused: election.paused.clone(),
            leases: election.leases.iter().zip(0..election.slots).map(lease).collect(),
            candidates: election.candidates.iter().filter_map(candidate).collect(),
        }
    }
}

/// Serializes a map with structured keys as a list of pairs.
mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<K: Serialize, V: Serialize, S: Serializer>(
        map: &BTreeMap<K, V>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(map)
    }

    pub(crate) fn deserialize<'de, K, V, D>(from: D) -> Result<BTreeMap<K, V>, D::Error>
    where
        K: Deserialize<'de> + Ord,
        V: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        Vec::<(K, V)>::deserialize(from).map(|pairs| pairs.into_iter().collect())
    }
}

impl ElectionRecord {
    fn leader_requests_of<'a>(&'a self, session: &'a SessionId) -> impl Iterator<Item = LeaderRequest> + 'a {
        let holds = move |request: &&LeaderRequest| {
            let lease = self.leases.get(request.slot as usize);
            lease.is_some_and(|lease| lease.session.as_ref() == Some(session) && lease.token == request.token)
        };
        self.leader_requests.iter().filter(holds).cloned()
    }

    fn free(
        &mut self,
        slot: usize,
        successor: Option<SessionId>,
        start_reason: StartReason,
        how: &str,
        wall_ms: i64,
    ) {
        let lease = &mut self.leases[slot];
        let token = lease.token;
        (lease.session, lease.reserved_for, lease.start_reason) = (None, successor, start_reason);
        // The token of the other store ends with its leader; a free lease has this store's own token again.
        lease.token = lease.own_token.take().unwrap_or(token);
        self.leader_requests.retain(|request| request.token != token || request.slot as usize != slot);
        // End a term only once: the token of another store may equal a token that this store granted earlier.
        let open =
            |term: &&mut Term| term.slot as usize == slot && term.token == token && term.end_reason.is_none();
        let term = self.terms.iter_mut().find(open);
        if let Some(term) = term {
            (term.ended_at_ms, term.end_reason) = (Some(wall_ms), Some(how.into()));
        }
    }
}
