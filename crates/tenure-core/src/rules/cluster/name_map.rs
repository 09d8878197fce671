//! Registered names without a store: the merged claims of all members.
//!
//! Each entry has one writer, its member, and a version that only this writer raises. The entry with the greater
//! version wins; a withdrawn claim is an entry too. The result therefore depends neither on the order nor on the number
//! of exchanges: members that received the same entries have the same map.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Place;

use serde::{Deserialize, Serialize};

use super::Metadata;
use crate::Name;

/// The member that claims a name. Members are ordered by name, then by id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NameClaimant {
    /// Name of the member.
    pub member: String,
    /// Id of the member, new for every start of the process.
    pub id: String,
}

/// A member's claim to a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameClaim {
    /// Time of the claim: the member's wall clock, raised if necessary above the time of every claim that the member
    /// had seen.
    pub since_ms: i64,
    /// Metadata of the claim.
    pub metadata: Metadata,
}

/// A member's versioned entry about a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameEntry {
    /// The greater version wins. Raised only by the writer.
    pub version: u64,
    /// The claim; `None` if it was withdrawn.
    pub claim: Option<NameClaim>,
    /// A ruling about a conflict, if this member had to make it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ruling: Option<ConflictRuling>,
}

/// Reference to one claim of a member. A member may claim a name, withdraw, and claim it again.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NameClaimRef {
    /// Member of the claim.
    pub by: NameClaimant,
    /// Time of the claim.
    pub since_ms: i64,
}

/// The decision of a conflict: one of these claims is kept, or none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ConflictRuling {
    /// The claim that is kept.
    pub keep: Option<NameClaimRef>,
    /// The claims in conflict.
    pub of: Vec<NameClaimRef>,
}

/// All received entries.
///
/// ```
/// use tenure_core::rules::cluster::{Metadata, NameClaim, NameClaimant, NameEntry, NameMap};
///
/// let billing: tenure_core::Name = "billing".parse().unwrap();
/// let claim = |since_ms| NameEntry { version: 1, claim: Some(NameClaim { since_ms, metadata: Metadata::new() }), ruling: None };
/// let id = |member: &str| NameClaimant { member: member.into(), id: "1".into() };
/// let (mut here, mut there) = (NameMap::default(), NameMap::default());
/// here.apply(billing.clone(), id("a"), claim(10));
/// there.apply(billing.clone(), id("b"), claim(20));
/// // The two sides meet, and both see two claims.
/// let before = here.clone();
/// here.merge(&there);
/// there.merge(&before);
/// assert_eq!(here, there);
/// assert_eq!(here.claims(&billing, |_| true).count(), 2);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameMap {
    entries: BTreeMap<Name, BTreeMap<NameClaimant, NameEntry>>,
}

impl NameMap {
    /// Applies the entry of a member. Returns whether it was new.
    pub fn apply(&mut self, name: Name, by: NameClaimant, entry: NameEntry) -> bool {
        match self.entries.entry(name).or_default().entry(by) {
            Place::Vacant(place) => {
                place.insert(entry);
                true
            }
            Place::Occupied(mut place) => {
                let news = outranks(&entry, place.get());
                if news {
                    place.insert(entry);
                }
                news
            }
        }
    }

    /// Applies all entries of another map.
    pub fn merge(&mut self, other: &NameMap) {
        for (name, claims) in &other.entries {
            for (by, entry) in claims {
                self.apply(name.clone(), by.clone(), entry.clone());
            }
        }
    }

    /// Keeps the entries of members for which `remembered` returns true, and removes all others.
    pub fn retain(&mut self, remembered: impl Fn(&NameClaimant) -> bool) {
        self.entries.retain(|_, claims| {
            claims.retain(|by, _| remembered(by));
            !claims.is_empty()
        });
    }

    /// The names with at least one entry.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.entries.keys()
    }

    /// The claims of live members to a name, ordered by member.
    pub fn claims<'m>(
        &'m self,
        name: &Name,
        lives: impl Fn(&NameClaimant) -> bool + 'm,
    ) -> impl Iterator<Item = (&'m NameClaimant, &'m NameClaim)> {
        let claims = self.entries.get(name).into_iter().flatten();
        claims.filter_map(|(by, entry)| Some((by, entry.claim.as_ref()?))).filter(move |(by, _)| lives(by))
    }

    /// The rulings of live members about a name.
    pub fn rulings<'m>(
        &'m self,
        name: &Name,
        lives: impl Fn(&NameClaimant) -> bool + 'm,
    ) -> impl Iterator<Item = &'m ConflictRuling> {
        let update = self.entries.get(name).into_iter().flatten().filter(move |(by, _)| lives(by));
        update.filter_map(|(_, entry)| entry.ruling.as_ref())
    }

    /// The latest time of any claim. A member gives a new claim a later time, so that the claim is younger than all
    /// claims the member had seen.
    pub fn latest_ms(&self) -> Option<i64> {
        let entries = self.entries.values().flat_map(BTreeMap::values);
        entries.filter_map(|entry| entry.claim.as_ref()).map(|claim| claim.since_ms).max()
    }
}

/// Whether one entry of a writer wins over another. A correct writer never writes two entries with the same version.
/// The order is total even for such entries, so that all members agree.
fn outranks(new: &NameEntry, old: &NameEntry) -> bool {
    fn rank(entry: &NameEntry) -> (u64, Option<(i64, &Metadata)>, Option<&ConflictRuling>) {
        let claim = entry.claim.as_ref().map(|claim| (claim.since_ms, &claim.metadata));
        (entry.version, claim, entry.ruling.as_ref())
    }
    rank(new) > rank(old)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type NameUpdate = (Name, NameClaimant, NameEntry);

    fn update() -> impl Strategy<Value = NameUpdate> {
        let claim = proptest::option::of((0i64..4, 0u8..2));
        (0u8..3, 0u8..4, 0u64..2, 0u64..4, claim).prop_map(|(name, member, id, version, claim)| {
            let name = format!("name-{name}").parse().unwrap();
            let by = NameClaimant { member: format!("m{member}"), id: id.to_string() };
            let claim = claim.map(|(since_ms, zone)| {
                let metadata = Metadata::from([("zone".to_owned(), zone.to_string())]);
                NameClaim { since_ms, metadata }
            });
            (name, by, NameEntry { version, claim, ruling: None })
        })
    }

    fn map(update: &[NameUpdate]) -> NameMap {
        let mut map = NameMap::default();
        for (name, by, entry) in update.iter().cloned() {
            map.apply(name, by, entry);
        }
        map
    }

    fn merged(a: &NameMap, b: &NameMap) -> NameMap {
        let mut merged = a.clone();
        merged.merge(b);
        merged
    }

    proptest! {
        #[test]
        fn merging_is_commutative_associative_and_idempotent(
            a in proptest::collection::vec(update(), 0..12),
            b in proptest::collection::vec(update(), 0..12),
            c in proptest::collection::vec(update(), 0..12),
        ) {
            let (a, b, c) = (map(&a), map(&b), map(&c));
            prop_assert_eq!(merged(&a, &b), merged(&b, &a));
            prop_assert_eq!(merged(&merged(&a, &b), &c), merged(&a, &merged(&b, &c)));
            prop_assert_eq!(merged(&a, &a), a);
        }

        #[test]
        fn members_with_the_same_entries_have_the_same_map(
            all in proptest::collection::vec(update(), 0..20),
            order in proptest::collection::vec(any::<u16>(), 20),
        ) {
            let mut shuffled: Vec<(u16, NameUpdate)> = order.into_iter().cycle().zip(all.iter().cloned()).collect();
            shuffled.sort_by_key(|(place, _)| *place);
            let mut shuffled: Vec<NameUpdate> = shuffled.into_iter().map(|(_, update)| update).collect();
            // Some entries arrive twice.
            shuffled.extend(all.iter().cloned());
            prop_assert_eq!(map(&all), map(&shuffled));
        }

        #[test]
        fn a_withdrawn_claim_stays_withdrawn_until_claimed_again(mut all in proptest::collection::vec(update(), 1..12)) {
            let (name, by, _) = all[0].clone();
            all.insert(0, (name.clone(), by.clone(), NameEntry { version: 9, claim: None, ruling: None }));
            prop_assert!(map(&all).claims(&name, |_| true).all(|(who, _)| *who != by));
        }
    }
}
