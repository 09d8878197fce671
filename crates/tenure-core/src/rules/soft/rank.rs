//! Rank and state of soft candidates.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

/// The rank of a candidate, constant while its process runs. The order is total; lower is better.
/// Candidates are ranked by priority (higher first), then generation (older first, so that a new process never replaces
/// a leader of its own priority), then id.
///
/// ```
/// use tenure_core::rules::soft::Rank;
///
/// let old = Rank { priority: 0, generation: 1, id: "b".into() };
/// let new = Rank { priority: 0, generation: 2, id: "a".into() };
/// let chosen = Rank { priority: 5, generation: 3, id: "c".into() };
/// assert!(chosen < old && old < new);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rank {
    /// Priority.
    pub priority: i32,
    /// Start of its process, in milliseconds since 1970 by its own clock. Only compared as a number.
    pub generation: u64,
    /// Member id.
    pub id: String,
}

impl Ord for Rank {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let key = |rank: &Rank| (Reverse(rank.priority), rank.generation);
        key(self).cmp(&key(other)).then_with(|| self.id.cmp(&other.id))
    }
}

impl PartialOrd for Rank {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// State that a soft candidate publishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SoftCandidateState {
    /// It wants to lead, but something is uncertain: it just started, or a higher-ranked candidate just became
    /// silent.
    Candidate,
    /// It leads as soon as no better candidate is ready or leads.
    Ready,
    /// It leads.
    Leading,
}

impl SoftCandidateState {
    /// Name of the state.
    pub fn as_str(self) -> &'static str {
        match self {
            SoftCandidateState::Candidate => "candidate",
            SoftCandidateState::Ready => "ready",
            SoftCandidateState::Leading => "leading",
        }
    }
}

/// Another candidate, as observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rival {
    /// Its rank.
    pub rank: Rank,
    /// Its state.
    pub state: SoftCandidateState,
}

/// The leader among the observed candidates: the best-ranked one that reports that it leads.
pub fn leader<'r>(seen: impl IntoIterator<Item = &'r Rival>) -> Option<&'r Rival> {
    seen.into_iter()
        .filter(|rival| rival.state == SoftCandidateState::Leading)
        .min_by(|a, b| a.rank.cmp(&b.rank))
}
