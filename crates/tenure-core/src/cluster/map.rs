//! Names without a store: what each member says that it has, merged.
//!
//! Each entry has one writer, the member that it speaks of, and a version that only this writer raises; the greater version
//! stands, and a claim that was given up is an entry too. So merging is a maximum: it does not matter in which order, how often,
//! or by which way two members hear of something. Those who have heard the same see the same.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Place;

use serde::{Deserialize, Serialize};

use super::Metadata;
use crate::Name;

/// Who claims a name. The order of members is that of their names; of their ids, where names are double.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClaimId {
    /// What people call the member.
    pub member: String,
    /// Its identity: another for every life of a process.
    pub id: String,
}

/// A member's claim to a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// When it was made: the member's wall clock, or more than any claim that it had seen until then.
    pub since_ms: i64,
    /// What the member says about it.
    pub metadata: Metadata,
}

/// What a member said about a name, and when in the order of what it said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Greater stands. Raised by its writer alone.
    pub version: u64,
    /// The claim; `None` if it was given up.
    pub claim: Option<Claim>,
    /// How a conflict was settled, if this member was to say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ruling: Option<Ruling>,
}

/// One claim of all that there ever were: a member may claim a name, give it up, and claim it anew.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Which {
    /// Whose.
    pub by: ClaimId,
    /// When it was made.
    pub since_ms: i64,
}

/// How a conflict was settled: of these claims, that one stands, or none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ruling {
    /// What stands.
    pub keep: Option<Which>,
    /// What it was about.
    pub of: Vec<Which>,
}

/// All that was heard.
///
/// ```
/// use tenure_core::cluster::{Claim, ClaimId, Entry, Metadata, NameMap};
///
/// let billing: tenure_core::Name = "billing".parse().unwrap();
/// let claim = |since_ms| Entry { version: 1, claim: Some(Claim { since_ms, metadata: Metadata::new() }), ruling: None };
/// let id = |member: &str| ClaimId { member: member.into(), id: "1".into() };
/// let (mut here, mut there) = (NameMap::default(), NameMap::default());
/// here.say(billing.clone(), id("a"), claim(10));
/// there.say(billing.clone(), id("b"), claim(20));
/// // The two sides meet, and both see two claims.
/// let before = here.clone();
/// here.merge(&there);
/// there.merge(&before);
/// assert_eq!(here, there);
/// assert_eq!(here.claims(&billing, |_| true).count(), 2);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameMap {
    entries: BTreeMap<Name, BTreeMap<ClaimId, Entry>>,
}

impl NameMap {
    /// Takes in what a member said. Whether it was news.
    pub fn say(&mut self, name: Name, by: ClaimId, entry: Entry) -> bool {
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

    /// Takes in all that another heard.
    pub fn merge(&mut self, other: &NameMap) {
        for (name, claims) in &other.entries {
            for (by, entry) in claims {
                self.say(name.clone(), by.clone(), entry.clone());
            }
        }
    }

    /// Forgets what members said who are not to be remembered.
    pub fn retain(&mut self, remembered: impl Fn(&ClaimId) -> bool) {
        self.entries.retain(|_, claims| {
            claims.retain(|by, _| remembered(by));
            !claims.is_empty()
        });
    }

    /// The names that somebody has spoken of.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.entries.keys()
    }

    /// The claims to a name of those who live, by member.
    pub fn claims<'m>(
        &'m self,
        name: &Name,
        lives: impl Fn(&ClaimId) -> bool + 'm,
    ) -> impl Iterator<Item = (&'m ClaimId, &'m Claim)> {
        let claims = self.entries.get(name).into_iter().flatten();
        claims.filter_map(|(by, entry)| Some((by, entry.claim.as_ref()?))).filter(move |(by, _)| lives(by))
    }

    /// The rulings about a name by those who live.
    pub fn rulings<'m>(
        &'m self,
        name: &Name,
        lives: impl Fn(&ClaimId) -> bool + 'm,
    ) -> impl Iterator<Item = &'m Ruling> {
        let said = self.entries.get(name).into_iter().flatten().filter(move |(by, _)| lives(by));
        said.filter_map(|(_, entry)| entry.ruling.as_ref())
    }

    /// The greatest time of any claim: a later one is made greater, so that what was seen is older than what followed from it.
    pub fn latest_ms(&self) -> Option<i64> {
        let entries = self.entries.values().flat_map(BTreeMap::values);
        entries.filter_map(|entry| entry.claim.as_ref()).map(|claim| claim.since_ms).max()
    }
}

/// Whether one entry of a writer stands before another. Two of one version are none of a sound writer; the order is total all the
/// same, so that even then all come to the same end.
fn outranks(new: &Entry, old: &Entry) -> bool {
    fn rank(entry: &Entry) -> (u64, Option<(i64, &Metadata)>, Option<&Ruling>) {
        let claim = entry.claim.as_ref().map(|claim| (claim.since_ms, &claim.metadata));
        (entry.version, claim, entry.ruling.as_ref())
    }
    rank(new) > rank(old)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Said = (Name, ClaimId, Entry);

    fn said() -> impl Strategy<Value = Said> {
        let claim = proptest::option::of((0i64..4, 0u8..2));
        (0u8..3, 0u8..4, 0u64..2, 0u64..4, claim).prop_map(|(name, member, id, version, claim)| {
            let name = format!("name-{name}").parse().unwrap();
            let by = ClaimId { member: format!("m{member}"), id: id.to_string() };
            let claim = claim.map(|(since_ms, zone)| {
                let metadata = Metadata::from([("zone".to_owned(), zone.to_string())]);
                Claim { since_ms, metadata }
            });
            (name, by, Entry { version, claim, ruling: None })
        })
    }

    fn map(said: &[Said]) -> NameMap {
        let mut map = NameMap::default();
        for (name, by, entry) in said.iter().cloned() {
            map.say(name, by, entry);
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
            a in proptest::collection::vec(said(), 0..12),
            b in proptest::collection::vec(said(), 0..12),
            c in proptest::collection::vec(said(), 0..12),
        ) {
            let (a, b, c) = (map(&a), map(&b), map(&c));
            prop_assert_eq!(merged(&a, &b), merged(&b, &a));
            prop_assert_eq!(merged(&merged(&a, &b), &c), merged(&a, &merged(&b, &c)));
            prop_assert_eq!(merged(&a, &a), a);
        }

        #[test]
        fn those_who_heard_the_same_see_the_same(
            all in proptest::collection::vec(said(), 0..20),
            order in proptest::collection::vec(any::<u16>(), 20),
        ) {
            let mut shuffled: Vec<(u16, Said)> = order.into_iter().cycle().zip(all.iter().cloned()).collect();
            shuffled.sort_by_key(|(place, _)| *place);
            let mut shuffled: Vec<Said> = shuffled.into_iter().map(|(_, said)| said).collect();
            // Heard twice, too.
            shuffled.extend(all.iter().cloned());
            prop_assert_eq!(map(&all), map(&shuffled));
        }

        #[test]
        fn what_was_given_up_stays_so_until_it_is_claimed_anew(mut all in proptest::collection::vec(said(), 1..12)) {
            let (name, by, _) = all[0].clone();
            all.insert(0, (name.clone(), by.clone(), Entry { version: 9, claim: None, ruling: None }));
            prop_assert!(map(&all).claims(&name, |_| true).all(|(who, _)| *who != by));
        }
    }
}
