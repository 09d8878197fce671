//! Who stands for what, and who says that it leads.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tenure_core::soft::{Rank, Rival, SoftSight, Stance};
use tenure_core::{ElectionKey, Name};

use crate::backend::gossip::{Member, Presence, Roster};

/// Entries that are candidacies.
const PREFIX: &str = "tenure/soft/";

/// What a candidate tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Candidacy {
    pub(super) priority: i32,
    pub(super) generation: u64,
    pub(super) stance: Stance,
    /// Since when, by its own wall clock; for people.
    pub(super) since_ms: i64,
}

/// Somebody who stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SoftStanding {
    /// Who.
    pub member: Arc<Member>,
    /// Its rank.
    pub rank: Rank,
    /// What it says.
    pub stance: Stance,
    /// Since when, in milliseconds since 1970 by its own clock.
    pub since_ms: i64,
}

/// A soft election as it is seen from here.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SoftElectionView {
    /// Which.
    pub election: ElectionKey,
    /// Who stands and is there, the best first.
    pub candidates: Vec<SoftStanding>,
}

impl SoftElectionView {
    /// Those who say that they lead, the best first. More than one: a netsplit has just healed, or somebody does not hear all.
    pub fn leaders(&self) -> impl Iterator<Item = &SoftStanding> {
        self.candidates.iter().filter(|standing| standing.stance == Stance::Leading)
    }
}

/// Where a candidacy is told.
pub(super) fn entry_key(election: &ElectionKey) -> String {
    format!("{PREFIX}{}/{}", election.namespace, election.name)
}

/// All elections that somebody stands in.
pub(in crate::backend::gossip) fn elections(roster: &Roster) -> Vec<SoftElectionView> {
    let mut elections: BTreeMap<ElectionKey, Vec<SoftStanding>> = BTreeMap::new();
    for entry in roster.entries(PREFIX) {
        let Some((namespace, name)) = entry.key[PREFIX.len()..].split_once('/') else { continue };
        let (Ok(namespace), Ok(name)) = (namespace.parse::<Name>(), name.parse::<Name>()) else { continue };
        if let Some(standing) = standing(&entry.member, &entry.value) {
            elections.entry(ElectionKey::new(namespace, name)).or_default().push(standing);
        }
    }
    elections.into_iter().map(|(election, candidates)| ordered(election, candidates)).collect()
}

/// One election.
pub(in crate::backend::gossip) fn election(roster: &Roster, election: &ElectionKey) -> SoftElectionView {
    let key = entry_key(election);
    let said = roster.live().filter_map(|member| standing(member, member.value(&key)?));
    ordered(election.clone(), said.collect())
}

fn ordered(election: ElectionKey, mut candidates: Vec<SoftStanding>) -> SoftElectionView {
    candidates.sort_by(|a, b| a.rank.cmp(&b.rank));
    SoftElectionView { election, candidates }
}

fn standing(member: &Arc<Member>, value: &str) -> Option<SoftStanding> {
    // What a later version tells, and we do not understand, stands for nothing here.
    let told: Candidacy = serde_json::from_str(value).ok()?;
    let rank = Rank { priority: told.priority, generation: told.generation, id: member.id.clone() };
    Some(SoftStanding { member: member.clone(), rank, stance: told.stance, since_ms: told.since_ms })
}

/// The others, as the rules want to know of them.
pub(super) fn sight(roster: &Roster, me: &str, key: &str) -> SoftSight {
    let mut sight = SoftSight::default();
    for member in roster.all().filter(|member| member.id != me) {
        let told = member.value(key).and_then(|value| standing(member, value));
        match (member.presence, told) {
            (Presence::Live, Some(told)) => {
                sight.rivals.insert(member.id.clone(), Rival { rank: told.rank, stance: told.stance });
            }
            (Presence::Live, None) | (Presence::Left, _) => {
                sight.parted.insert(member.id.clone());
            }
            (Presence::Silent, _) => {}
        }
    }
    sight
}
