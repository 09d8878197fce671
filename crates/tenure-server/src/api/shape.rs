//! Elections in the form in which they are shown.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Serialize;
use tenure::election::{by_rank, may_lead};
use tenure::port::{CandidateView, ElectionView, LeaseView, SessionView, Term, Via};
use tenure::{Moment, Name, SessionId, Token};
use utoipa::ToSchema;

use crate::board::{Entry, Seen};

/// An election: what the store has, and who leads, spelled out.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Election {
    #[serde(flatten)]
    view: ElectionView,
    /// The id of the leader; of several, of the one with the lowest slot.
    #[schema(example = "web-1")]
    leader: Option<String>,
    /// All leaders, by slot.
    leaders: Vec<Leader>,
    /// Changes with everything but beats, and is the same on every replica. Also the `ETag`.
    #[schema(example = "5f0c2a9be1d34787")]
    version: String,
}

/// A leader.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Leader {
    /// What people call it.
    #[schema(example = "web-1")]
    pub(crate) id: String,
    /// Its session.
    pub(crate) session: SessionId,
    /// Which slot it holds.
    #[schema(example = 0)]
    pub(crate) slot: u32,
    /// The fencing token of its term.
    pub(crate) token: Token,
    /// The token as people write it.
    #[schema(example = "7")]
    pub(crate) term: String,
    /// How its term came about.
    pub(crate) via: Via,
    /// Since when, by the store's wall clock; for people.
    pub(crate) since_ms: Option<i64>,
    /// What it says about itself: an address, a version.
    pub(crate) metadata: BTreeMap<String, String>,
}

/// A candidate, best first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Candidate {
    #[serde(flatten)]
    view: CandidateView,
    /// How many rank before it.
    #[schema(example = 0)]
    rank: usize,
    /// Whether it may lead at all: it is no observer, and can do what is required.
    may_lead: bool,
    /// The slot that it leads, if any.
    slot: Option<u32>,
    /// How long ago this server saw it beat.
    silent_ms: Option<u64>,
    /// For how long it may trust in what it holds, as far as this server can tell; of a candidate that holds something.
    trust_ms: Option<u64>,
}

/// A page of elections.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Elections {
    /// The elections, by namespace and name.
    elections: Vec<Election>,
    /// What to give as `after` to get the next page; `null` if this is the last one.
    #[schema(example = "default/nightly")]
    next: Option<String>,
}

/// The candidates of an election.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Candidates {
    /// The candidates, best first, observers included.
    pub(crate) candidates: Vec<Candidate>,
}

/// The last terms of an election.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct History {
    /// The terms, newest first.
    pub(crate) terms: Vec<Term>,
}

impl Election {
    pub(crate) fn of(entry: &Entry) -> Election {
        let leaders = leaders(entry);
        Election {
            view: ElectionView::clone(entry),
            leader: leaders.first().map(|leader| leader.id.clone()),
            leaders,
            version: entry.version().into(),
        }
    }
}

/// An election as JSON, made once for each time that it is seen.
pub(crate) fn whole(entry: &Entry) -> Bytes {
    entry.whole(|entry| json(&Election::of(entry)))
}

/// A page of elections, put together from what was made for each.
pub(crate) fn page(entries: &[&Entry], next: Option<String>) -> Bytes {
    let mut page = Vec::from(&br#"{"elections":["#[..]);
    for (n, entry) in entries.iter().enumerate() {
        if n > 0 {
            page.push(b',');
        }
        page.extend_from_slice(&whole(entry));
    }
    page.extend_from_slice(br#"],"next":"#);
    page.extend_from_slice(&json(&next));
    page.push(b'}');
    page.into()
}

/// The leaders of an election, by slot.
pub(crate) fn leaders(view: &ElectionView) -> Vec<Leader> {
    let leader = |(lease, holder): (&LeaseView, &SessionView)| {
        let candidate = view.candidate(&holder.id);
        Leader {
            id: candidate.map_or_else(|| holder.name.clone(), |candidate| candidate.id.clone()),
            session: holder.id.clone(),
            slot: lease.slot,
            token: lease.token,
            term: lease.token.to_string(),
            via: lease.via,
            since_ms: lease.granted_at_ms,
            metadata: candidate.map(|candidate| candidate.metadata.clone()).unwrap_or_default(),
        }
    };
    view.holders().map(leader).collect()
}

/// The candidates of an election, best first.
pub(crate) fn candidates(view: &ElectionView, seen: &Seen, now: Moment) -> Vec<Candidate> {
    let mut ranked: Vec<_> = view.candidates.iter().collect();
    ranked.sort_by(|a, b| by_rank(a, b));
    let candidate = |(rank, candidate): (usize, &CandidateView)| {
        let id = &candidate.session.id;
        let slot = view.held_by(id).next().map(|(slot, _)| slot);
        Candidate {
            view: candidate.clone(),
            rank,
            may_lead: may_lead(candidate, &view.requires),
            slot,
            silent_ms: seen.sessions.get(id).map(|sight| millis(now.since(sight.moved))),
            trust_ms: slot.and_then(|_| seen.trust_left(id, now)).map(millis),
        }
    };
    ranked.into_iter().enumerate().map(candidate).collect()
}

/// A duration in whole milliseconds.
pub(crate) fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Anything as JSON.
pub(crate) fn json(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).unwrap_or_default().into()
}

/// Where a page of elections goes on: after this one.
pub(crate) fn place(namespace: &Name, name: &Name) -> String {
    format!("{namespace}/{name}")
}
