//! Conflicts, each rule, and members who hear of each other in any order.

use proptest::prelude::*;

use super::*;
use crate::cluster::{Entry, Metadata};

fn id(member: &str) -> ClaimId {
    ClaimId { member: member.into(), id: format!("{member}-1") }
}

fn name() -> Name {
    "printer".parse().unwrap()
}

fn claimed(version: u64, since_ms: i64) -> Entry {
    Entry { version, claim: Some(Claim { since_ms, metadata: Metadata::new() }), ruling: None }
}

fn two() -> NameMap {
    let mut map = NameMap::default();
    map.say(name(), id("b"), claimed(1, 10));
    map.say(name(), id("a"), claimed(1, 20));
    map
}

fn verdicts(resolver: Resolver, map: &NameMap) -> [Verdict; 2] {
    ["a", "b"].map(|member| settle(resolver, map, &name(), &id(member), |_| true))
}

#[test]
fn the_lower_or_the_older_keeps_it_and_the_other_gives_it_up() {
    let gives_up = |to: &str| Verdict::GiveUp { kept_by: Some(id(to)) };
    assert_eq!(verdicts(Resolver::KeepLower, &two()), [Verdict::Keep, gives_up("a")]);
    assert_eq!(verdicts(Resolver::KeepOlder, &two()), [gives_up("b"), Verdict::Keep]);
    let dead = settle(Resolver::KeepOlder, &two(), &name(), &id("a"), |by| by.member == "a");
    assert_eq!(dead, Verdict::Keep, "who does not live claims nothing");
}

/// The second sees only that the first has gone, and must stop all the same.
#[test]
fn where_both_are_to_stop_both_do_whoever_sees_it_first() {
    let mut map = two();
    let Verdict::StopAll(ruling) = settle(Resolver::StopBoth, &map, &name(), &id("a"), |_| true) else {
        panic!("a is to stop");
    };
    map.say(name(), id("a"), Entry { version: 2, claim: None, ruling: Some(ruling) });
    let second = settle(Resolver::StopBoth, &map, &name(), &id("b"), |_| true);
    assert_eq!(second, Verdict::GiveUp { kept_by: None });
    // Registered anew, it is another claim, of which nothing was said.
    map.say(name(), id("b"), claimed(3, 30));
    assert_eq!(settle(Resolver::StopBoth, &map, &name(), &id("b"), |_| true), Verdict::Keep);
}

#[test]
fn the_lowest_asks_once_and_the_others_wait_for_what_it_says() {
    let mut map = two();
    let [Verdict::Ask(of), Verdict::Wait] = verdicts(Resolver::Ask, &map) else { panic!("a asks, b waits") };
    let keep = of.iter().find(|which| which.by == id("b")).cloned();
    let claim = Some(Claim { since_ms: 20, metadata: Metadata::new() });
    map.say(name(), id("a"), Entry { version: 2, claim, ruling: Some(Ruling { keep, of }) });
    assert_eq!(verdicts(Resolver::Ask, &map), [Verdict::GiveUp { kept_by: Some(id("b")) }, Verdict::Keep]);
    // One more comes, of whom nothing was said.
    map.say(name(), id("c"), claimed(1, 5));
    assert!(matches!(settle(Resolver::Ask, &map, &name(), &id("c"), |_| true), Verdict::Wait));
}

/// Members who hear of each other's entries in any order, some of them late, act on each as they hear it.
fn meet(resolver: Resolver, since: &[i64], order: &[(usize, usize)]) -> Vec<bool> {
    let ids: Vec<ClaimId> = (0..since.len()).map(|n| id(&format!("m{n}"))).collect();
    let mut heard: Vec<NameMap> = since
        .iter()
        .zip(&ids)
        .map(|(since, by)| {
            let mut map = NameMap::default();
            map.say(name(), by.clone(), claimed(1, *since));
            map
        })
        .collect();
    // What each said last, and how it settled a conflict, which it goes on to say when it gives its claim up.
    let mut said: Vec<(u64, Option<Ruling>)> = vec![(1, None); ids.len()];
    let mut act = |at: usize, heard: &mut Vec<NameMap>| {
        let (version, ruling) = &mut said[at];
        let claim = match settle(resolver, &heard[at], &name(), &ids[at], |_| true) {
            Verdict::Keep | Verdict::Wait => return,
            Verdict::GiveUp { .. } => None,
            Verdict::StopAll(ruled) => {
                *ruling = Some(ruled);
                None
            }
            Verdict::Ask(of) => {
                *ruling = Some(Ruling { keep: of.last().cloned(), of });
                Some(Claim { since_ms: since[at], metadata: Metadata::new() })
            }
        };
        *version += 1;
        let entry = Entry { version: *version, claim, ruling: ruling.clone() };
        heard[at].say(name(), ids[at].clone(), entry);
    };
    // Whatever they hear first; then each hears all, until nothing changes.
    let all: Vec<(usize, usize)> =
        (0..ids.len()).flat_map(|from| (0..ids.len()).map(move |to| (from, to))).collect();
    for &(from, to) in order.iter().chain(all.iter().cycle().take(all.len() * 6)) {
        let (from, to) = (from % ids.len(), to % ids.len());
        let said = heard[from].clone();
        heard[to].merge(&said);
        act(to, &mut heard);
    }
    let claims = |at: usize| heard[at].claims(&name(), |by| *by == ids[at]).next().is_some();
    (0..ids.len()).map(claims).collect()
}

proptest! {
    #[test]
    fn one_is_left_whatever_is_heard_first(
        since in proptest::collection::vec(0i64..4, 1..5),
        order in proptest::collection::vec((0usize..5, 0usize..5), 0..20),
    ) {
        let lower = meet(Resolver::KeepLower, &since, &order);
        prop_assert_eq!(lower.iter().filter(|left| **left).count(), 1);
        prop_assert!(lower[0]);
        let older = meet(Resolver::KeepOlder, &since, &order);
        prop_assert_eq!(older.iter().filter(|left| **left).count(), 1);
        let oldest = (0..since.len()).min_by_key(|at| since[*at]).unwrap();
        prop_assert!(older[oldest]);
    }

    #[test]
    fn never_two_are_left_of_those_who_ask_and_none_of_two_who_stop(
        since in proptest::collection::vec(0i64..4, 2..5),
        order in proptest::collection::vec((0usize..5, 0usize..5), 0..20),
    ) {
        let asked = meet(Resolver::Ask, &since, &order);
        prop_assert!(asked.iter().filter(|left| **left).count() <= 1);
        let pair = meet(Resolver::StopBoth, &since[..2], &order);
        prop_assert_eq!(pair, [false, false]);
    }
}
