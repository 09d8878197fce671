//! JSON forms of elections.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Serialize;
use tenure::port::{CandidateView, ElectionView, LeaseView, SessionView, StartReason, Term};
use tenure::rules::election::{by_rank, is_eligible};
use tenure::{BootInstant, Name, SessionId, Token};
use utoipa::ToSchema;

use crate::snapshot::elections::{CachedElection, ElectionsSnapshot};

/// Election as stored, with its leaders.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ElectionResponse {
    #[serde(flatten)]
    view: ElectionView,
    /// Name of the leader; with several, of the one with the lowest slot.
    #[schema(example = "web-1")]
    leader: Option<String>,
    /// Leaders by slot.
    leaders: Vec<LeaderView>,
    /// Version: changes with everything except heartbeats, and is the same on every replica. Also the `ETag`.
    #[schema(example = "5f0c2a9be1d34787")]
    version: String,
}

/// Leader.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct LeaderView {
    /// Name of the candidate.
    #[schema(example = "web-1")]
    pub(crate) name: String,
    /// Session.
    pub(crate) session: SessionId,
    /// Slot.
    #[schema(example = 0)]
    pub(crate) slot: u32,
    /// Fencing token of the term.
    pub(crate) token: Token,
    /// Token as text, `epoch.number`.
    #[schema(example = "7")]
    pub(crate) token_text: String,
    /// Start reason of the term.
    pub(crate) start_reason: StartReason,
    /// Start of the term, by the store's clock.
    pub(crate) since_at_ms: Option<i64>,
    /// Metadata, such as address and version.
    pub(crate) metadata: BTreeMap<String, String>,
}

/// Candidate with its rank.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RankedCandidate {
    #[serde(flatten)]
    view: CandidateView,
    /// Number of candidates that rank before it.
    #[schema(example = 0)]
    rank: usize,
    /// Whether the candidate may lead: it is no observer and has the required capabilities.
    eligible: bool,
    /// Slot that the candidate leads, if any.
    slot: Option<u32>,
    /// Time since this server last observed a heartbeat.
    heartbeat_age_ms: Option<u64>,
    /// Remaining lease as this server knows it, for candidates that hold a slot.
    lease_remaining_ms: Option<u64>,
}

/// Page of elections.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ElectionList {
    /// Elections by namespace and name.
    elections: Vec<ElectionResponse>,
    /// Cursor of the next page; `null` on the last page.
    #[schema(example = "default/nightly")]
    next_cursor: Option<String>,
}

/// Candidates of an election.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CandidateList {
    /// Candidates, best first, including observers.
    pub(crate) candidates: Vec<RankedCandidate>,
}

/// Last terms of an election.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TermList {
    /// Terms, newest first.
    pub(crate) terms: Vec<Term>,
}

impl ElectionResponse {
    pub(crate) fn of(entry: &CachedElection) -> ElectionResponse {
        let leaders = leaders(entry);
        ElectionResponse {
            view: ElectionView::clone(entry),
            leader: leaders.first().map(|leader| leader.name.clone()),
            leaders,
            version: entry.version().into(),
        }
    }
}

/// Election as JSON, serialized once per snapshot.
pub(crate) fn election_json(entry: &CachedElection) -> Bytes {
    entry.json(|entry| json(&ElectionResponse::of(entry)))
}

/// Page of elections, assembled from the serialized elections.
pub(crate) fn page(entries: &[&CachedElection], next: Option<String>) -> Bytes {
    let mut page = Vec::from(&br#"{"elections":["#[..]);
    for (n, entry) in entries.iter().enumerate() {
        if n > 0 {
            page.push(b',');
        }
        page.extend_from_slice(&election_json(entry));
    }
    page.extend_from_slice(br#"],"next_cursor":"#);
    page.extend_from_slice(&json(&next));
    page.push(b'}');
    page.into()
}

/// Leaders of an election, by slot.
pub(crate) fn leaders(view: &ElectionView) -> Vec<LeaderView> {
    let leader = |(lease, holder): (&LeaseView, &SessionView)| {
        let candidate = view.candidate(&holder.id);
        LeaderView {
            name: candidate.map_or_else(|| holder.name.clone(), |candidate| candidate.name.clone()),
            session: holder.id.clone(),
            slot: lease.slot,
            token: lease.token,
            token_text: lease.token.to_string(),
            start_reason: lease.start_reason,
            since_at_ms: lease.granted_at_ms,
            metadata: candidate.map(|candidate| candidate.metadata.clone()).unwrap_or_default(),
        }
    };
    view.holders().map(leader).collect()
}

/// Candidates of an election, best first.
pub(crate) fn candidates(
    view: &ElectionView,
    snapshot: &ElectionsSnapshot,
    now: BootInstant,
) -> Vec<RankedCandidate> {
    let mut ranked: Vec<_> = view.candidates.iter().collect();
    ranked.sort_by(|a, b| by_rank(a, b));
    let candidate = |(rank, candidate): (usize, &CandidateView)| {
        let id = &candidate.session.id;
        let slot = view.held_by(id).next().map(|(slot, _)| slot);
        RankedCandidate {
            view: candidate.clone(),
            rank,
            eligible: is_eligible(candidate, &view.required_capabilities),
            slot,
            heartbeat_age_ms: snapshot
                .sessions
                .get(id)
                .map(|heartbeat| millis(now.since(heartbeat.changed_at))),
            lease_remaining_ms: slot.and_then(|_| snapshot.lease_remaining(id, now)).map(millis),
        }
    };
    ranked.into_iter().enumerate().map(candidate).collect()
}

/// Whole milliseconds of a duration.
pub(crate) fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Serialize a value as JSON.
pub(crate) fn json(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).unwrap_or_default().into()
}

/// Cursor of a list of elections.
pub(crate) fn cursor(namespace: &Name, name: &Name) -> String {
    format!("{namespace}/{name}")
}
