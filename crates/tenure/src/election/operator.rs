//! Operator requests to an election: resign, transfer, pause and resume.
//!
//! A request does not stop a leader by force: the leader receives it, finishes its work and releases the lease.
//! [`OperatorRequest::is_done`] returns whether a later view of the election shows the result.

use tenure_core::port::{
    CandidateView, ElectionAdmin, ElectionStore, ElectionView, LeaderRequest, LeaderRequestKind, Pause,
    StoreError,
};
use tenure_core::rules::election::is_eligible;
use tenure_core::{ElectionKey, SessionId};

/// A request that an operator made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorRequest {
    /// End these terms.
    Resign(Vec<LeaderRequest>),
    /// Make this session the leader.
    Transfer(SessionId),
    /// Leave the election without a leader until it is resumed.
    Pause,
}

/// An operator's request was rejected. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperatorError {
    /// The election has no leader.
    #[error("election {0} has no leader; it elects one by itself")]
    NoLeader(ElectionKey),
    /// The election has no candidates.
    #[error("election {election} has no candidates, so {to} cannot lead it")]
    NoCandidates {
        /// The election.
        election: ElectionKey,
        /// The requested leader.
        to: String,
    },
    /// The requested leader is not a candidate.
    #[error("{to} is not a candidate of {election}; candidates: {candidates}")]
    NotACandidate {
        /// The election.
        election: ElectionKey,
        /// The requested leader.
        to: String,
        /// The candidates.
        candidates: String,
    },
    /// Several candidates have this name.
    #[error("{to} is ambiguous; use a session identifier: {found}")]
    Ambiguous {
        /// The requested leader.
        to: String,
        /// The candidates with this name.
        found: String,
    },
    /// The requested leader is a candidate that cannot lead.
    #[error("{to} cannot lead {election}: {why}")]
    NotEligible {
        /// The election.
        election: ElectionKey,
        /// The requested leader.
        to: String,
        /// The reason.
        why: &'static str,
    },
    /// The requested leader already leads.
    #[error("{to} already leads {election}")]
    AlreadyLeads {
        /// The election.
        election: ElectionKey,
        /// The requested leader.
        to: String,
    },
    /// The store failed. It is unknown whether the request was delivered.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl OperatorRequest {
    /// Whether the request is fulfilled in this later view of the election.
    pub fn is_done(&self, now: &ElectionView) -> bool {
        match self {
            OperatorRequest::Resign(asks) => asks.iter().all(|request| {
                now.leases.iter().all(|lease| lease.slot != request.slot || lease.token > request.token)
            }),
            OperatorRequest::Transfer(to) => now.held_by(to).next().is_some(),
            OperatorRequest::Pause => now.holders().next().is_none(),
        }
    }
}

/// Requests the leaders of an election, or the leader of one slot, to resign. Fails with
/// [`OperatorError::NoLeader`] if no leader received the request.
pub async fn resign(
    store: &(impl ElectionStore + ?Sized),
    election: &ElectionView,
    slot: Option<u32>,
    by: &str,
) -> Result<OperatorRequest, OperatorError> {
    let mut requests = Vec::new();
    for (lease, _) in election.holders().filter(|(lease, _)| slot.is_none_or(|slot| slot == lease.slot)) {
        let request = LeaderRequest {
            election: election.key.clone(),
            slot: lease.slot,
            token: lease.token,
            kind: LeaderRequestKind::Resign,
            requested_by: by.into(),
        };
        if store.request_leader(&request).await? {
            requests.push(request);
        }
    }
    if requests.is_empty() {
        Err(OperatorError::NoLeader(election.key.clone()))
    } else {
        Ok(OperatorRequest::Resign(requests))
    }
}

/// Requests the leader to transfer to a candidate, given by name, session identifier or the beginning of a
/// session identifier. Of several leaders, the one with the lowest priority receives the request.
pub async fn transfer(
    store: &(impl ElectionStore + ?Sized),
    election: &ElectionView,
    to: &str,
    by: &str,
) -> Result<OperatorRequest, OperatorError> {
    let target = &candidate(election, to)?.session.id;
    if election.held_by(target).next().is_some() {
        return Err(OperatorError::AlreadyLeads { election: election.key.clone(), to: to.into() });
    }
    let priority = |session: &SessionId| election.candidate(session).map_or(i32::MIN, |c| c.priority);
    let least = election.holders().min_by_key(|(_, holder)| priority(&holder.id));
    let (lease, _) = least.ok_or_else(|| OperatorError::NoLeader(election.key.clone()))?;
    let request = LeaderRequest {
        election: election.key.clone(),
        slot: lease.slot,
        token: lease.token,
        kind: LeaderRequestKind::Transfer(target.clone()),
        requested_by: by.into(),
    };
    // If that term has ended meanwhile, no leader received the request.
    if store.request_leader(&request).await? {
        Ok(OperatorRequest::Transfer(target.clone()))
    } else {
        Err(OperatorError::NoLeader(election.key.clone()))
    }
}

/// Pauses an election: it has no leader until it is resumed. Returns `None` if it was already paused.
pub async fn pause(
    store: &(impl ElectionAdmin + ?Sized),
    election: &ElectionKey,
    pause: &Pause,
) -> Result<Option<OperatorRequest>, StoreError> {
    Ok(store.set_election_paused(election, Some(pause)).await?.then_some(OperatorRequest::Pause))
}

/// Resumes an election. Returns `false` if it was not paused.
pub async fn resume(
    store: &(impl ElectionAdmin + ?Sized),
    election: &ElectionKey,
) -> Result<bool, StoreError> {
    store.set_election_paused(election, None).await
}

/// Finds a candidate by name, session identifier or the beginning of a session identifier.
pub fn candidate<'v>(election: &'v ElectionView, to: &str) -> Result<&'v CandidateView, OperatorError> {
    let matches = |candidate: &&CandidateView| {
        candidate.name == to || (to.len() >= 4 && candidate.session.id.as_str().starts_with(to))
    };
    let found: Vec<_> = election.candidates.iter().filter(matches).collect();
    let names = |candidates: &[&CandidateView]| {
        let each = candidates.iter().map(|c| format!("{} ({})", c.name, c.session.id.short()));
        each.collect::<Vec<_>>().join(", ")
    };
    let (key, to) = (election.key.clone(), to.to_owned());
    match found.as_slice() {
        [candidate] if is_eligible(candidate, &election.required_capabilities) => Ok(candidate),
        [candidate] => {
            let why = if candidate.observer { "it is an observer" } else { "it lacks a required capability" };
            Err(OperatorError::NotEligible { election: key, to, why })
        }
        [] if election.candidates.is_empty() => Err(OperatorError::NoCandidates { election: key, to }),
        [] => {
            let all: Vec<_> = election.candidates.iter().collect();
            Err(OperatorError::NotACandidate { election: key, to, candidates: names(&all) })
        }
        several => Err(OperatorError::Ambiguous { to, found: names(several) }),
    }
}
