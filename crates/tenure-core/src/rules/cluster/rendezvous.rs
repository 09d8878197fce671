//! Ownership of singletons by rendezvous hashing.
//!
//! Each member has a weight for each singleton, computed only from their names; the heaviest member owns it. Members
//! agree without communication. A new member takes only the singletons for which it is the heaviest, and a leaving
//! member gives up only its own.

/// Maximum capacity of a member.
pub const CAPACITY_MAX: u32 = 64;

/// The weight of a member for a singleton, identical in every version and on every machine. A member with capacity 3
/// counts like three members and gets three times as many singletons on average.
///
/// ```
/// use tenure_core::rules::cluster::weight;
///
/// assert_eq!(weight("node-1", 1, "billing"), weight("node-1", 1, "billing"));
/// assert!(weight("node-1", 5, "billing") >= weight("node-1", 1, "billing"));
/// ```
pub fn weight(member: &str, capacity: u32, singleton: &str) -> u64 {
    let base = hash(hash(OFFSET, singleton), member);
    let one = |part: u32| mixed(base.wrapping_add(u64::from(part).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    (0..capacity.clamp(1, CAPACITY_MAX)).map(one).max().unwrap_or_default()
}

/// The weight as the priority of a candidate: the heaviest leads and preempts others.
///
/// ```
/// use tenure_core::rules::cluster::priority;
///
/// assert!(priority("node-1", 1, "billing") >= 0);
/// ```
pub fn priority(member: &str, capacity: u32, singleton: &str) -> i32 {
    // Keep 31 bits. Candidates with equal priority are ranked by name.
    i32::try_from(weight(member, capacity, singleton) >> 33).unwrap_or(i32::MAX)
}

/// The owner of a singleton among members with names and capacities, in any order. `None` without members.
///
/// ```
/// use tenure_core::rules::cluster::owner;
///
/// let three = [("a", 1), ("b", 1), ("c", 1)];
/// let of_three = owner("billing", three).unwrap();
/// let others: Vec<_> = three.into_iter().filter(|(name, _)| *name != of_three).collect();
/// assert_eq!(owner("billing", [others[0], (of_three, 1)]), Some(of_three), "another member leaving changes nothing");
/// ```
pub fn owner<'m>(singleton: &str, members: impl IntoIterator<Item = (&'m str, u32)>) -> Option<&'m str> {
    let weighed = members.into_iter().map(|(name, capacity)| (priority(name, capacity, singleton), name));
    // Of equal weights the lower name wins, as among candidates of equal priority.
    weighed.max_by(|a, b| a.0.cmp(&b.0).then_with(|| b.1.cmp(a.1))).map(|(_, name)| name)
}

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a over the text and a terminator that no text contains, so that `ab` + `c` and `a` + `bc` differ.
fn hash(start: u64, text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().chain([0xff]).fold(start, step)
}

/// The final step of SplitMix64, because FNV alone leaves the high bits of similar names alike.
fn mixed(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("node-{n}")).collect()
    }

    fn placed(members: &[String], singletons: usize) -> BTreeMap<String, String> {
        let each = |n: usize| {
            let name = format!("job-{n}");
            let owner = owner(&name, members.iter().map(|member| (member.as_str(), 1)));
            owner.map(|owner| (name, owner.to_owned()))
        };
        (0..singletons).filter_map(each).collect()
    }

    #[test]
    fn weights_of_known_names_never_change() {
        let found: Vec<u64> = [("node-1", "billing"), ("node-2", "billing"), ("", ""), ("узел", "работа")]
            .iter()
            .map(|(member, singleton)| weight(member, 1, singleton))
            .collect();
        assert_eq!(found, KNOWN);
    }

    const KNOWN: [u64; 4] =
        [0xa219_05ee_c0ba_ab51, 0x7533_56fe_6224_56f6, 0x5509_f800_bdae_f57e, 0xf0e2_8ecd_20b2_6522];

    #[test]
    fn singletons_spread_evenly_and_by_capacity() {
        let members = names(5);
        let mut counts: BTreeMap<String, u32> = BTreeMap::new();
        placed(&members, 10_000).into_values().for_each(|owner| *counts.entry(owner).or_default() += 1);
        assert!(counts.values().all(|count| (1_800..2_200).contains(count)), "{counts:?}");
        let of_big = (0..10_000)
            .filter(|n| owner(&format!("job-{n}"), [("big", 3), ("small", 1)]) == Some("big"))
            .count();
        assert!((7_200..7_800).contains(&of_big), "{of_big}");
    }

    proptest! {
        #[test]
        fn a_new_member_takes_only_its_own_singletons(count in 1usize..12, singletons in 1usize..200) {
            let members = names(count + 1);
            let (before, after) = (placed(&members[..count], singletons), placed(&members, singletons));
            for (name, owner) in &after {
                prop_assert!(*owner == before[name] || *owner == members[count]);
            }
        }

        #[test]
        fn a_leaving_member_gives_up_only_its_own_singletons(count in 2usize..12, gone in 0usize..12, singletons in 1usize..200) {
            let members = names(count);
            let gone = members[gone % count].clone();
            let rest: Vec<String> = members.iter().filter(|name| **name != gone).cloned().collect();
            let (before, after) = (placed(&members, singletons), placed(&rest, singletons));
            for (name, owner) in &before {
                prop_assert!(*owner == gone || after[name] == *owner);
            }
        }

        #[test]
        fn the_order_of_members_does_not_matter(count in 1usize..12, turn in 0usize..12, name in "[a-z]{1,8}") {
            let mut members = names(count);
            let owner_of = |members: &[String]| {
                owner(&name, members.iter().map(|member| (member.as_str(), 1))).map(str::to_owned)
            };
            let before = owner_of(&members);
            members.rotate_left(turn % count);
            prop_assert_eq!(owner_of(&members), before);
        }

        #[test]
        fn a_singleton_belongs_to_the_best_ranked_candidate(count in 1usize..12, name in "[a-z]{1,8}") {
            let members = names(count);
            let best = members.iter().min_by_key(|member| (std::cmp::Reverse(priority(member, 1, &name)), *member));
            prop_assert_eq!(owner(&name, members.iter().map(|m| (m.as_str(), 1))), best.map(String::as_str));
        }
    }
}
