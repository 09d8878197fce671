//! Which request gets which resource.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::Name;
use crate::port::RequestId;

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// Which.
    pub id: RequestId,
    /// Its priority now.
    pub priority: i64,
    /// Tags that the resource must have.
    pub requires: &'a [String],
    /// Tags that it had better have.
    pub prefers: &'a [String],
}

/// A resource that is free, enabled and rested.
#[derive(Clone, Copy, Debug)]
pub struct Free<'a> {
    /// Which.
    pub name: &'a Name,
    /// What it has.
    pub tags: &'a [String],
}

/// Gives free resources to requests: by priority, the highest first, then in the order of their numbers; each gets, of those
/// that have all it requires, the one with the most tags that it prefers, then the least capable one (with the fewest tags, so that
/// what is special stays free for requests that require it), then the first by name. In the order of giving.
///
/// ```
/// use tenure_core::claim::{Free, Wish, assign};
/// use tenure_core::port::RequestId;
///
/// let (a, b) = ("a".parse().unwrap(), "b".parse().unwrap());
/// let ssd = ["ssd".to_string()];
/// let free = [Free { name: &a, tags: &[] }, Free { name: &b, tags: &ssd }];
/// let wishes = [
///     Wish { id: RequestId(1), priority: 100, requires: &[], prefers: &[] },
///     Wish { id: RequestId(2), priority: 150, requires: &[], prefers: &ssd },
/// ];
/// assert_eq!(assign(&wishes, &free), [(RequestId(2), b), (RequestId(1), a)]);
/// ```
pub fn assign(wishes: &[Wish<'_>], free: &[Free<'_>]) -> Vec<(RequestId, Name)> {
    let mut wishes: Vec<&Wish<'_>> = wishes.iter().collect();
    wishes.sort_by_key(|wish| (Reverse(wish.priority), wish.id));
    let mut left: BTreeMap<&Name, &[String]> = free.iter().map(|it| (it.name, it.tags)).collect();
    let mut given = Vec::new();
    for wish in wishes {
        if left.is_empty() {
            break;
        }
        let fitting = left.iter().filter(|(_, tags)| wish.requires.iter().all(|tag| tags.contains(tag)));
        let liked = |tags: &[String]| wish.prefers.iter().filter(|tag| tags.contains(tag)).count();
        // Of equals, `max_by_key` takes the last: the names go backwards.
        let best = fitting.rev().max_by_key(|(_, tags)| (liked(tags), Reverse(tags.len())));
        let best = best.map(|(name, _)| *name);
        if let Some(name) = best {
            left.remove(name);
            given.push((wish.id, name.clone()));
        }
    }
    given
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Tags = Vec<String>;

    fn tags() -> impl Strategy<Value = Tags> {
        prop::collection::vec("[abc]", 0..3)
    }

    fn fits(requires: &[String], tags: &[String]) -> bool {
        requires.iter().all(|tag| tags.contains(tag))
    }

    /// A request without requirements took the GPU host while a plain one was free.
    #[test]
    fn a_request_that_requires_nothing_leaves_the_special_resource_alone() {
        let (gpu_host, plain_host): (Name, Name) = ("a-gpu".parse().unwrap(), "z-plain".parse().unwrap());
        let gpu = ["gpu".to_owned()];
        let free = [Free { name: &gpu_host, tags: &gpu }, Free { name: &plain_host, tags: &[] }];
        let wish = Wish { id: RequestId(1), priority: 0, requires: &[], prefers: &[] };
        assert_eq!(assign(&[wish], &free), [(RequestId(1), plain_host.clone())]);
        assert_eq!(assign(&[Wish { prefers: &gpu, ..wish }], &free), [(RequestId(1), gpu_host)]);
    }

    proptest! {
        #[test]
        fn assignment_is_fair_fitting_and_complete(
            requests in prop::collection::vec((0..3i64, tags(), tags()), 0..8),
            resources in prop::collection::vec(tags(), 0..8),
        ) {
            let names: Vec<Name> = (0..resources.len()).map(|i| format!("r{i}").parse().unwrap()).collect();
            let free: Vec<Free<'_>> =
                names.iter().zip(&resources).map(|(name, tags)| Free { name, tags }).collect();
            let wishes: Vec<Wish<'_>> = requests.iter().zip(0..).map(|((priority, requires, prefers), id)| {
                Wish { id: RequestId(id), priority: *priority, requires, prefers }
            }).collect();
            let given = assign(&wishes, &free);
            let tags_of = |name: &Name| &resources[names.iter().position(|it| it == name).unwrap()];
            let wish = |id: RequestId| &wishes[id.0 as usize];
            let mut taken: Vec<&Name> = given.iter().map(|(_, name)| name).collect();
            taken.sort();
            taken.dedup();
            prop_assert_eq!(taken.len(), given.len(), "each resource once");
            let order: Vec<_> = given.iter().map(|(id, _)| (-wish(*id).priority, *id)).collect();
            prop_assert!(order.is_sorted(), "in strict order");
            for (place, (id, name)) in given.iter().enumerate() {
                prop_assert!(fits(wish(*id).requires, tags_of(name)), "it fits");
                let liked = |name: &Name| wish(*id).prefers.iter().filter(|t| tags_of(name).contains(t)).count();
                let rank = |name: &Name| (liked(name), Reverse(tags_of(name).len()), Reverse(name.clone()));
                // Of those that were left when it was served, none was better.
                for (_, later) in &given[place + 1..] {
                    prop_assert!(!(fits(wish(*id).requires, tags_of(later)) && rank(later) > rank(name)));
                }
            }
            // Who got nothing fits nothing that is left, nor anything that went to somebody of lower rank.
            for unserved in wishes.iter().filter(|w| !given.iter().any(|(id, _)| *id == w.id)) {
                for name in names.iter().filter(|name| !taken.contains(name)) {
                    prop_assert!(!fits(unserved.requires, tags_of(name)));
                }
                for (id, name) in &given {
                    let lower = (-wish(*id).priority, *id) > (-unserved.priority, unserved.id);
                    prop_assert!(!(lower && fits(unserved.requires, tags_of(name))));
                }
            }
        }
    }
}
