//! Matching of pool requests and free resources.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::Name;
use crate::port::PoolRequestId;

/// A waiting pool request.
#[derive(Clone, Copy, Debug)]
pub struct WaitingPoolRequest<'a> {
    /// Request id.
    pub id: PoolRequestId,
    /// Current priority.
    pub priority: i64,
    /// Tags that the resource must have.
    pub required_tags: &'a [String],
    /// Tags that the resource should have.
    pub preferred_tags: &'a [String],
}

/// A resource that is free, enabled and not in cooldown.
#[derive(Clone, Copy, Debug)]
pub struct FreeResource<'a> {
    /// Name of the resource.
    pub name: &'a Name,
    /// Tags of the resource.
    pub tags: &'a [String],
}

/// Assigns free resources to requests in order of priority, then of request id. Each request gets, among the free
/// resources with all required tags, the one with the most preferred tags; then the one with the fewest tags, so that
/// special resources stay free for requests that need them; then the first by name. Returns the assignments in the
/// order in which they were made.
///
/// ```
/// use tenure_core::rules::work::{FreeResource, WaitingPoolRequest, match_pool_requests};
/// use tenure_core::port::PoolRequestId;
///
/// let (a, b) = ("a".parse().unwrap(), "b".parse().unwrap());
/// let ssd = ["ssd".to_string()];
/// let free = [FreeResource { name: &a, tags: &[] }, FreeResource { name: &b, tags: &ssd }];
/// let requests = [
///     WaitingPoolRequest { id: PoolRequestId(1), priority: 100, required_tags: &[], preferred_tags: &[] },
///     WaitingPoolRequest { id: PoolRequestId(2), priority: 150, required_tags: &[], preferred_tags: &ssd },
/// ];
/// assert_eq!(match_pool_requests(&requests, &free), [(PoolRequestId(2), b), (PoolRequestId(1), a)]);
/// ```
pub fn match_pool_requests(
    requests: &[WaitingPoolRequest<'_>],
    free: &[FreeResource<'_>],
) -> Vec<(PoolRequestId, Name)> {
    let mut requests: Vec<&WaitingPoolRequest<'_>> = requests.iter().collect();
    requests.sort_by_key(|request| (Reverse(request.priority), request.id));
    let mut left: BTreeMap<&Name, &[String]> = free.iter().map(|it| (it.name, it.tags)).collect();
    let mut assigned = Vec::new();
    for request in requests {
        if left.is_empty() {
            break;
        }
        let matching =
            left.iter().filter(|(_, tags)| request.required_tags.iter().all(|tag| tags.contains(tag)));
        let preferred =
            |tags: &[String]| request.preferred_tags.iter().filter(|tag| tags.contains(tag)).count();
        // `max_by_key` returns the last of equal elements, so iterate over the names in reverse order.
        let best = matching.rev().max_by_key(|(_, tags)| (preferred(tags), Reverse(tags.len())));
        let best = best.map(|(name, _)| *name);
        if let Some(name) = best {
            left.remove(name);
            assigned.push((request.id, name.clone()));
        }
    }
    assigned
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Tags = Vec<String>;

    fn tags() -> impl Strategy<Value = Tags> {
        prop::collection::vec("[abc]", 0..3)
    }

    fn fits(required_tags: &[String], tags: &[String]) -> bool {
        required_tags.iter().all(|tag| tags.contains(tag))
    }

    /// A request without required tags used to get the GPU host while a plain host was free.
    #[test]
    fn a_request_without_tags_leaves_the_special_resource_free() {
        let (gpu_host, plain_host): (Name, Name) = ("a-gpu".parse().unwrap(), "z-plain".parse().unwrap());
        let gpu = ["gpu".to_owned()];
        let free =
            [FreeResource { name: &gpu_host, tags: &gpu }, FreeResource { name: &plain_host, tags: &[] }];
        let request =
            WaitingPoolRequest { id: PoolRequestId(1), priority: 0, required_tags: &[], preferred_tags: &[] };
        assert_eq!(match_pool_requests(&[request], &free), [(PoolRequestId(1), plain_host.clone())]);
        assert_eq!(
            match_pool_requests(&[WaitingPoolRequest { preferred_tags: &gpu, ..request }], &free),
            [(PoolRequestId(1), gpu_host)]
        );
    }

    proptest! {
        #[test]
        fn assignment_is_fair_fitting_and_complete(
            requests in prop::collection::vec((0..3i64, tags(), tags()), 0..8),
            resources in prop::collection::vec(tags(), 0..8),
        ) {
            let names: Vec<Name> = (0..resources.len()).map(|i| format!("r{i}").parse().unwrap()).collect();
            let free: Vec<FreeResource<'_>> =
                names.iter().zip(&resources).map(|(name, tags)| FreeResource { name, tags }).collect();
            let requests: Vec<WaitingPoolRequest<'_>> = requests.iter().zip(0..).map(|((priority, required_tags, preferred_tags), id)| {
                WaitingPoolRequest { id: PoolRequestId(id), priority: *priority, required_tags, preferred_tags }
            }).collect();
            let assigned = match_pool_requests(&requests, &free);
            let tags_of = |name: &Name| &resources[names.iter().position(|it| it == name).unwrap()];
            let request = |id: PoolRequestId| &requests[id.0 as usize];
            let mut taken: Vec<&Name> = assigned.iter().map(|(_, name)| name).collect();
            taken.sort();
            taken.dedup();
            prop_assert_eq!(taken.len(), assigned.len(), "each resource is assigned once");
            let order: Vec<_> = assigned.iter().map(|(id, _)| (-request(*id).priority, *id)).collect();
            prop_assert!(order.is_sorted(), "in strict order");
            for (place, (id, name)) in assigned.iter().enumerate() {
                prop_assert!(fits(request(*id).required_tags, tags_of(name)), "the resource matches");
                let preferred = |name: &Name| request(*id).preferred_tags.iter().filter(|t| tags_of(name).contains(t)).count();
                let rank = |name: &Name| (preferred(name), Reverse(tags_of(name).len()), Reverse(name.clone()));
                // When the request was served, no remaining resource matched it better.
                for (_, later) in &assigned[place + 1..] {
                    prop_assert!(!(fits(request(*id).required_tags, tags_of(later)) && rank(later) > rank(name)));
                }
            }
            // An unserved request matches no free resource, and none that a lower-ranked request received.
            for unserved in requests.iter().filter(|w| !assigned.iter().any(|(id, _)| *id == w.id)) {
                for name in names.iter().filter(|name| !taken.contains(name)) {
                    prop_assert!(!fits(unserved.required_tags, tags_of(name)));
                }
                for (id, name) in &assigned {
                    let lower = (-request(*id).priority, *id) > (-unserved.priority, unserved.id);
                    prop_assert!(!(lower && fits(unserved.required_tags, tags_of(name))));
                }
            }
        }
    }
}
