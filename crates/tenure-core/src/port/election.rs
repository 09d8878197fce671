//! Elections, candidates, leases and terms.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{SessionView, StartReason};
use crate::{ElectionKey, SessionId, Token};

/// A request of one session to be a candidate in one election.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Candidacy {
    /// Session of the candidate.
    pub session: SessionId,
    /// Election to join.
    pub election: ElectionKey,
    /// Display name of the candidate. It need not be unique; it decides only between candidates of equal priority.
    pub name: String,
    /// Priority; the highest live candidate leads.
    pub priority: i32,
    /// Whether the candidate only observes and never leads.
    pub observer: bool,
    /// Capabilities that the candidate declares.
    pub capabilities: Vec<String>,
    /// Capabilities that a leader of this election needs.
    pub required_capabilities: Vec<String>,
    /// Number of slots: how many candidates may lead at a time.
    pub slots: u32,
    /// Free-form metadata for display: version, zone, address.
    pub metadata: BTreeMap<String, String>,
}

impl Candidacy {
    /// A candidacy with default options for an election with one slot. Its name is the short session id.
    pub fn new(session: SessionId, election: ElectionKey) -> Candidacy {
        Candidacy {
            name: session.short().into(),
            session,
            election,
            priority: 0,
            observer: false,
            capabilities: Vec::new(),
            required_capabilities: Vec::new(),
            slots: 1,
            metadata: BTreeMap::new(),
        }
    }
}

/// The result of joining an election.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum JoinElectionResponse {
    /// The candidate has joined.
    Joined,
    /// The session has ended. Nothing was written.
    SessionEnded,
    /// The election has another number of slots. Nothing was written.
    SlotsDiffer {
        /// Number of slots of the election.
        slots: u32,
    },
}

/// An election as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ElectionView {
    /// Namespace and name.
    #[serde(flatten)]
    pub key: ElectionKey,
    /// Number of slots.
    pub slots: u32,
    /// Capabilities that a leader needs.
    pub required_capabilities: Vec<String>,
    /// Set while the election is paused and no candidate may lead.
    pub paused: Option<Pause>,
    /// One lease per slot.
    pub leases: Vec<LeaseView>,
    /// All candidates, including observers.
    pub candidates: Vec<CandidateView>,
}

impl ElectionView {
    /// Leases with a live holder, ordered by slot.
    pub fn holders(&self) -> impl Iterator<Item = (&LeaseView, &SessionView)> {
        self.leases.iter().filter_map(|lease| lease.holder.as_ref().filter(|h| h.live).map(|h| (lease, h)))
    }

    /// Slots that this session holds, with their tokens.
    pub fn held_by(&self, session: &SessionId) -> impl Iterator<Item = (u32, Token)> {
        self.holders()
            .filter(move |(_, holder)| holder.id == *session)
            .map(|(lease, _)| (lease.slot, lease.token))
    }

    /// Candidate of this session.
    pub fn candidate(&self, session: &SessionId) -> Option<&CandidateView> {
        self.candidates.iter().find(|c| &c.session.id == session)
    }
}

/// A pause of an election, queue, group, schedule or namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Pause {
    /// Principal that set the pause.
    pub paused_by: String,
    /// Reason given by the principal; may be empty.
    pub reason: String,
    /// Start of the pause, by the store's wall clock. For display only.
    pub paused_at_ms: i64,
}

/// The lease of one slot as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LeaseView {
    /// Slot number.
    pub slot: u32,
    /// Token of the latest grant.
    pub token: Token,
    /// Session that holds the lease.
    pub holder: Option<SessionView>,
    /// Session that the previous holder chose as its successor. Set only while the lease is free.
    pub reserved_for: Option<SessionId>,
    /// Start reason of the current term; for a free lease, of the next term.
    pub start_reason: StartReason,
    /// Time of the grant, by the store's wall clock. For display only.
    pub granted_at_ms: Option<i64>,
}

impl LeaseView {
    /// Whether no live session holds the lease.
    pub fn is_free(&self) -> bool {
        self.holder.as_ref().is_none_or(|h| !h.live)
    }
}

/// A candidate as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CandidateView {
    /// Display name.
    pub name: String,
    /// Session of the candidate.
    pub session: SessionView,
    /// Priority; the highest live candidate leads.
    pub priority: i32,
    /// Whether the candidate only observes and never leads.
    pub observer: bool,
    /// Capabilities that the candidate declares.
    pub capabilities: Vec<String>,
    /// Free-form metadata for display.
    pub metadata: BTreeMap<String, String>,
    /// Time of joining, by the store's wall clock. For display only.
    pub joined_at_ms: i64,
}

/// Which elections an observation covers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "scope", content = "elections", rename_all = "snake_case")]
pub enum ObserveScope {
    /// Elections in which the session is a candidate and holds no lease; read by followers.
    Contested,
    /// All elections in which the session is a candidate; read by leaders from time to time.
    Own,
    /// The listed elections.
    Listed(Vec<ElectionKey>),
    /// All elections of the store; read by servers.
    All,
}

/// State of the store at one moment between the request and its response.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ElectionsObservation {
    /// Epoch of the store.
    pub epoch: u32,
    /// Elections in scope.
    pub elections: Vec<ElectionView>,
    /// Leases that the session holds in elections where it is not a candidate. This happens if the response to a take
    /// was lost and the candidate left meanwhile. The session must release them.
    pub orphaned_leases: Vec<(ElectionKey, u32, Token)>,
}

/// The period in which one candidate held one slot under one token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Term {
    /// Slot number.
    pub slot: u32,
    /// Token of the term.
    pub token: Token,
    /// Display name of the leader.
    pub candidate_name: String,
    /// Session of the leader.
    pub session: SessionId,
    /// How the term started.
    pub start_reason: StartReason,
    /// Start of the term, by the store's wall clock. For display only.
    pub started_at_ms: i64,
    /// End of the term; `None` while it lasts.
    pub ended_at_ms: Option<i64>,
    /// How the term ended: `released`, `expired` or `ended`.
    pub end_reason: Option<String>,
}
