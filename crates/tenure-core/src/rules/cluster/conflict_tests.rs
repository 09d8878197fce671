//! Conflicts under each policy, with entries received in any order.

use proptest::prelude::*;

use super::*;
use crate::rules::cluster::{Metadata, NameEntry};

fn id(member: &str) -> NameClaimant {
    NameClaimant { member: member.into(), id: format!("{member}-1") }
}

fn name() -> Name {
    "printer".parse().unwrap()
}

fn claimed(version: u64, since_ms: i64) -> NameEntry {
    NameEntry { version, claim: Some(NameClaim { since_ms, metadata: Metadata::new() }), ruling: None }
}

fn two() -> NameMap {
    let mut map = NameMap::default();
    map.apply(name(), id("b"), claimed(1, 10));
    map.apply(name(), id("a"), claimed(1, 20));
    map
}

fn verdicts(resolver: ConflictPolicy, map: &NameMap) -> [ConflictDecision; 2] {
    ["a", "b"].map(|member| resolve_conflict(resolver, map, &name(), &id(member), |_| true))
}

#[test]
fn the_lower_or_older_claim_is_kept() {
    let gives_up = |to: &str| ConflictDecision::GiveUp { kept_by: Some(id(to)) };
    assert_eq!(verdicts(ConflictPolicy::KeepLower, &two()), [ConflictDecision::Keep, gives_up("a")]);
    assert_eq!(verdicts(ConflictPolicy::KeepOlder, &two()), [gives_up("b"), ConflictDecision::Keep]);
    let dead = resolve_conflict(ConflictPolicy::KeepOlder, &two(), &name(), &id("a"), |by| by.member == "a");
    assert_eq!(dead, ConflictDecision::Keep, "a member that is not live claims nothing");
}

/// The second member sees only that the first has withdrawn, and must still stop.
#[test]
fn with_stop_both_both_members_stop_in_any_order() {
    let mut map = two();
    let ConflictDecision::StopAll(ruling) =
        resolve_conflict(ConflictPolicy::StopBoth, &map, &name(), &id("a"), |_| true)
    else {
        panic!("a must stop");
    };
    map.apply(name(), id("a"), NameEntry { version: 2, claim: None, ruling: Some(ruling) });
    let second = resolve_conflict(ConflictPolicy::StopBoth, &map, &name(), &id("b"), |_| true);
    assert_eq!(second, ConflictDecision::GiveUp { kept_by: None });
    // A new registration is another claim that the ruling does not cover.
    map.apply(name(), id("b"), claimed(3, 30));
    assert_eq!(
        resolve_conflict(ConflictPolicy::StopBoth, &map, &name(), &id("b"), |_| true),
        ConflictDecision::Keep
    );
}

#[test]
fn the_lowest_member_calls_the_rule_once_and_the_others_wait() {
    let mut map = two();
    let [ConflictDecision::ApplyUserRule(of), ConflictDecision::Wait] =
        verdicts(ConflictPolicy::UserRule, &map)
    else {
        panic!("a calls the rule, b waits")
    };
    let keep = of.iter().find(|which| which.by == id("b")).cloned();
    let claim = Some(NameClaim { since_ms: 20, metadata: Metadata::new() });
    map.apply(name(), id("a"), NameEntry { version: 2, claim, ruling: Some(ConflictRuling { keep, of }) });
    assert_eq!(
        verdicts(ConflictPolicy::UserRule, &map),
        [ConflictDecision::GiveUp { kept_by: Some(id("b")) }, ConflictDecision::Keep]
    );
    // A further member claims the name; the ruling does not cover its claim.
    map.apply(name(), id("c"), claimed(1, 5));
    assert!(matches!(
        resolve_conflict(ConflictPolicy::UserRule, &map, &name(), &id("c"), |_| true),
        ConflictDecision::Wait
    ));
}

/// Members receive each other's entries in any order, some late, and act on each.
fn meet(resolver: ConflictPolicy, since: &[i64], order: &[(usize, usize)]) -> Vec<bool> {
    let ids: Vec<NameClaimant> = (0..since.len()).map(|n| id(&format!("m{n}"))).collect();
    let mut received: Vec<NameMap> = since
        .iter()
        .zip(&ids)
        .map(|(since, by)| {
            let mut map = NameMap::default();
            map.apply(name(), by.clone(), claimed(1, *since));
            map
        })
        .collect();
    // The last version and ruling of each member; a member keeps publishing its ruling after it withdraws.
    let mut published: Vec<(u64, Option<ConflictRuling>)> = vec![(1, None); ids.len()];
    let mut act = |at: usize, received: &mut Vec<NameMap>| {
        let (version, ruling) = &mut published[at];
        let claim = match resolve_conflict(resolver, &received[at], &name(), &ids[at], |_| true) {
            ConflictDecision::Keep | ConflictDecision::Wait => return,
            ConflictDecision::GiveUp { .. } => None,
            ConflictDecision::StopAll(ruled) => {
                *ruling = Some(ruled);
                None
            }
            ConflictDecision::ApplyUserRule(of) => {
                *ruling = Some(ConflictRuling { keep: of.last().cloned(), of });
                Some(NameClaim { since_ms: since[at], metadata: Metadata::new() })
            }
        };
        *version += 1;
        let entry = NameEntry { version: *version, claim, ruling: ruling.clone() };
        received[at].apply(name(), ids[at].clone(), entry);
    };
    // First the given order; then every member receives all entries until nothing changes.
    let all: Vec<(usize, usize)> =
        (0..ids.len()).flat_map(|from| (0..ids.len()).map(move |to| (from, to))).collect();
    for &(from, to) in order.iter().chain(all.iter().cycle().take(all.len() * 6)) {
        let (from, to) = (from % ids.len(), to % ids.len());
        let message = received[from].clone();
        received[to].merge(&message);
        act(to, &mut received);
    }
    let claims = |at: usize| received[at].claims(&name(), |by| *by == ids[at]).next().is_some();
    (0..ids.len()).map(claims).collect()
}

proptest! {
    #[test]
    fn one_claim_is_kept_in_any_order_of_messages(
        since in proptest::collection::vec(0i64..4, 1..5),
        order in proptest::collection::vec((0usize..5, 0usize..5), 0..20),
    ) {
        let lower = meet(ConflictPolicy::KeepLower, &since, &order);
        prop_assert_eq!(lower.iter().filter(|left| **left).count(), 1);
        prop_assert!(lower[0]);
        let older = meet(ConflictPolicy::KeepOlder, &since, &order);
        prop_assert_eq!(older.iter().filter(|left| **left).count(), 1);
        let oldest = (0..since.len()).min_by_key(|at| since[*at]).unwrap();
        prop_assert!(older[oldest]);
    }

    #[test]
    fn a_conflict_leaves_one_holder_with_a_rule_and_none_when_both_stop(
        since in proptest::collection::vec(0i64..4, 2..5),
        order in proptest::collection::vec((0usize..5, 0usize..5), 0..20),
    ) {
        let requested = meet(ConflictPolicy::UserRule, &since, &order);
        prop_assert!(requested.iter().filter(|left| **left).count() <= 1);
        let pair = meet(ConflictPolicy::StopBoth, &since[..2], &order);
        prop_assert_eq!(pair, [false, false]);
    }
}
