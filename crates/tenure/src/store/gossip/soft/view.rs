//! Views of soft elections and their candidates.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tenure_core::rules::soft::{Rank, Rival, SoftCandidateState, SoftObservation};
use tenure_core::{ElectionKey, Name};

use crate::store::gossip::{GossipMember, GossipMemberState, Roster};

/// Key prefix of candidacy entries.
const PREFIX: &str = "tenure/soft/";

/// Entry that a soft candidate publishes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SoftCandidacy {
    pub(super) priority: i32,
    pub(super) generation: u64,
    pub(super) state: SoftCandidateState,
    /// Start of the state on the candidate's wall clock; for display.
    pub(super) since_ms: i64,
}

/// A candidate of a soft election as this process sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SoftCandidateView {
    /// The member.
    pub member: Arc<GossipMember>,
    /// Rank of the candidate.
    pub rank: Rank,
    /// State that the candidate published.
    pub state: SoftCandidateState,
    /// Start of that state, in milliseconds since 1970 on the candidate's clock.
    pub since_ms: i64,
}

/// A soft election as this process sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SoftElectionView {
    /// Key of the election.
    pub election: ElectionKey,
    /// Live candidates, best first.
    pub candidates: Vec<SoftCandidateView>,
}

impl SoftElectionView {
    /// Candidates that report to lead, best first. More than one after a network split has just healed, or while a
    /// member does not receive all gossip.
    pub fn leaders(&self) -> impl Iterator<Item = &SoftCandidateView> {
        self.candidates.iter().filter(|candidate| candidate.state == SoftCandidateState::Leading)
    }
}

/// Entry key of a candidacy.
pub(super) fn entry_key(election: &ElectionKey) -> String {
    format!("{PREFIX}{}/{}", election.namespace, election.name)
}

/// All elections with at least one candidate.
pub(in crate::store::gossip) fn elections(roster: &Roster) -> Vec<SoftElectionView> {
    let mut elections: BTreeMap<ElectionKey, Vec<SoftCandidateView>> = BTreeMap::new();
    for entry in roster.entries(PREFIX) {
        let Some((namespace, name)) = entry.key[PREFIX.len()..].split_once('/') else { continue };
        let (Ok(namespace), Ok(name)) = (namespace.parse::<Name>(), name.parse::<Name>()) else { continue };
        if let Some(candidate) = candidate(&entry.member, &entry.value) {
            elections.entry(ElectionKey::new(namespace, name)).or_default().push(candidate);
        }
    }
    elections.into_iter().map(|(election, candidates)| ordered(election, candidates)).collect()
}

/// One election.
pub(in crate::store::gossip) fn election(roster: &Roster, election: &ElectionKey) -> SoftElectionView {
    let key = entry_key(election);
    let candidates = roster.live().filter_map(|member| candidate(member, member.value(&key)?));
    ordered(election.clone(), candidates.collect())
}

fn ordered(election: ElectionKey, mut candidates: Vec<SoftCandidateView>) -> SoftElectionView {
    candidates.sort_by(|a, b| a.rank.cmp(&b.rank));
    SoftElectionView { election, candidates }
}

fn candidate(member: &Arc<GossipMember>, value: &str) -> Option<SoftCandidateView> {
    // Entries of a later version that cannot be decoded are ignored.
    let entry: SoftCandidacy = serde_json::from_str(value).ok()?;
    let rank = Rank { priority: entry.priority, generation: entry.generation, id: member.id.clone() };
    Some(SoftCandidateView { member: member.clone(), rank, state: entry.state, since_ms: entry.since_ms })
}

/// The other candidates, as input for the election rules.
pub(super) fn observation(roster: &Roster, me: &str, key: &str) -> SoftObservation {
    let mut observation = SoftObservation::default();
    for member in roster.all().filter(|member| member.id != me) {
        let entry = member.value(key).and_then(|value| candidate(member, value));
        match (member.state, entry) {
            (GossipMemberState::Live, Some(entry)) => {
                observation.rivals.insert(member.id.clone(), Rival { rank: entry.rank, state: entry.state });
            }
            (GossipMemberState::Live, None) | (GossipMemberState::Left, _) => {
                observation.departed.insert(member.id.clone());
            }
            (GossipMemberState::Failed, _) => {}
        }
    }
    observation
}
