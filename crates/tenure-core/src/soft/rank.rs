//! Who ranks before whom, and what each says of itself.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

/// The rank of a candidate: it stays the same for as long as the process lives, and is total. The lower, the better.
///
/// Priority (higher first), then generation (older first, so that nobody is unseated by a newcomer of its own priority), then id.
///
/// ```
/// use tenure_core::soft::Rank;
///
/// let old = Rank { priority: 0, generation: 1, id: "b".into() };
/// let new = Rank { priority: 0, generation: 2, id: "a".into() };
/// let chosen = Rank { priority: 5, generation: 3, id: "c".into() };
/// assert!(chosen < old && old < new);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rank {
    /// The highest leads.
    pub priority: i32,
    /// When its process started, in milliseconds since 1970 by its own clock. Compared only as a number that all see alike.
    pub generation: u64,
    /// The member.
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

/// What a candidate says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stance {
    /// It would lead, but something is in doubt: it has just come, or somebody who ranks before it has just gone silent.
    Standing,
    /// It would lead if nobody better did.
    Ready,
    /// It leads.
    Leading,
}

impl Stance {
    /// As it is told.
    pub fn as_str(self) -> &'static str {
        match self {
            Stance::Standing => "standing",
            Stance::Ready => "ready",
            Stance::Leading => "leading",
        }
    }
}

/// A candidate as it is seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rival {
    /// Its rank.
    pub rank: Rank,
    /// What it says.
    pub stance: Stance,
}

/// Who leads, among those who are seen: the best of those who say so.
pub fn leader<'r>(seen: impl IntoIterator<Item = &'r Rival>) -> Option<&'r Rival> {
    seen.into_iter().filter(|rival| rival.stance == Stance::Leading).min_by(|a, b| a.rank.cmp(&b.rank))
}
