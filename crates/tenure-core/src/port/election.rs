//! Elections, as they are joined and seen.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{SessionView, Via};
use crate::{ElectionKey, SessionId, Token};

/// A candidacy: one session's wish to lead one election.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Candidacy {
    /// The session.
    pub session: SessionId,
    /// The election.
    pub election: ElectionKey,
    /// What people call the candidate. It need not be unique, and no rule depends on it but the order of equals.
    pub id: String,
    /// Higher leads first.
    pub priority: i32,
    /// Watches, and never leads.
    pub observer: bool,
    /// What this candidate can do.
    pub capabilities: Vec<String>,
    /// What a leader of this election must be able to do.
    pub requires: Vec<String>,
    /// How many may lead at once.
    pub slots: u32,
    /// What people want to know about it: version, zone, address.
    pub metadata: BTreeMap<String, String>,
}

impl Candidacy {
    /// An ordinary candidacy for the one slot of an election, named after its session until it gets an id.
    pub fn new(session: SessionId, election: ElectionKey) -> Candidacy {
        Candidacy {
            id: session.short().into(),
            session,
            election,
            priority: 0,
            observer: false,
            capabilities: Vec::new(),
            requires: Vec::new(),
            slots: 1,
            metadata: BTreeMap::new(),
        }
    }
}

/// What came of joining an election.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Joined {
    /// The candidate stands.
    Standing,
    /// The session is gone; nothing was written.
    Gone,
    /// Others campaign for another number of slots; nothing was written.
    SlotsDiffer {
        /// The election's number of slots.
        slots: u32,
    },
}

/// An election as the store has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ElectionView {
    /// Which.
    #[serde(flatten)]
    pub key: ElectionKey,
    /// How many may lead at once.
    pub slots: u32,
    /// What a leader must be able to do.
    pub requires: Vec<String>,
    /// Set while nobody may lead.
    pub paused: Option<Pause>,
    /// One for each slot.
    pub leases: Vec<LeaseView>,
    /// All who stand, observers included.
    pub candidates: Vec<CandidateView>,
}

impl ElectionView {
    /// The holders, by slot.
    pub fn holders(&self) -> impl Iterator<Item = (&LeaseView, &SessionView)> {
        self.leases.iter().filter_map(|lease| lease.holder.as_ref().filter(|h| h.live).map(|h| (lease, h)))
    }

    /// The slots that this session holds, and under which tokens.
    pub fn held_by(&self, session: &SessionId) -> impl Iterator<Item = (u32, Token)> {
        self.holders()
            .filter(move |(_, holder)| holder.id == *session)
            .map(|(lease, _)| (lease.slot, lease.token))
    }

    /// The candidate of this session.
    pub fn candidate(&self, session: &SessionId) -> Option<&CandidateView> {
        self.candidates.iter().find(|c| &c.session.id == session)
    }
}

/// Why nobody may lead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Pause {
    /// Who paused it.
    pub by: String,
    /// Their reason, possibly empty.
    pub reason: String,
    /// When, by the store's wall clock; for people.
    pub at_ms: i64,
}

/// One slot's lease as the store has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LeaseView {
    /// Which slot.
    pub slot: u32,
    /// The token of the last grant.
    pub token: Token,
    /// Who holds it.
    pub holder: Option<SessionView>,
    /// Whom the last holder named as its successor, while the lease is free.
    pub reserved: Option<SessionId>,
    /// How the term came about; of a free lease, how the next one will.
    pub via: Via,
    /// When it was granted, by the store's wall clock; for people.
    pub granted_at_ms: Option<i64>,
}

impl LeaseView {
    /// Nobody holds it, or its session has ended.
    pub fn is_free(&self) -> bool {
        self.holder.as_ref().is_none_or(|h| !h.live)
    }
}

/// A candidate as the store has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CandidateView {
    /// What people call it.
    pub id: String,
    /// Its session.
    pub session: SessionView,
    /// Higher leads first.
    pub priority: i32,
    /// Watches, and never leads.
    pub observer: bool,
    /// What it can do.
    pub capabilities: Vec<String>,
    /// What people want to know about it.
    pub metadata: BTreeMap<String, String>,
    /// When it joined, by the store's wall clock; for people.
    pub joined_at_ms: i64,
}

/// What an observation covers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "scope", content = "elections", rename_all = "lowercase")]
pub enum Scope {
    /// The elections in which the session stands and holds nothing: a follower's look.
    Contested,
    /// All in which it stands: a leader's occasional look.
    Standing,
    /// These.
    Only(Vec<ElectionKey>),
    /// All that there are: a server's look.
    All,
}

/// What the store looked like at one moment between the request and its answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Observation {
    /// The store's epoch.
    pub epoch: u32,
    /// The elections in scope.
    pub elections: Vec<ElectionView>,
    /// Leases that the session holds in elections where it does not stand: left over from a take whose answer was
    /// lost while its candidate went away. To be released.
    pub strays: Vec<(ElectionKey, u32, Token)>,
}

/// One holder's time in office.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Term {
    /// Which slot.
    pub slot: u32,
    /// Under which token.
    pub token: Token,
    /// What people call the holder.
    pub id: String,
    /// Its session.
    pub session: SessionId,
    /// How it came about.
    pub via: Via,
    /// When it began, by the store's wall clock; for people.
    pub began_at_ms: i64,
    /// When it ended, if it has.
    pub ended_at_ms: Option<i64>,
    /// How it ended: `released`, `expired` or `ended`.
    pub end: Option<String>,
}
