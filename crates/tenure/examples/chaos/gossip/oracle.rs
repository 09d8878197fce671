//! Invariants of the command runs, given the network faults: overlaps are measured, and limited after healing. All
//! functions are pure.

use super::{ROUND, bound, settled};
use crate::oracles::{Injected, Term};

/// A network fault.
#[derive(Clone, Debug)]
pub(super) struct NetworkFault {
    pub(super) name: &'static str,
    /// The members on this side. No datagram reached the other side, and if `both_ways`, none came back.
    pub(super) here: Vec<usize>,
    pub(super) both_ways: bool,
    /// Time before the first route was blocked.
    pub(super) from_ns: u64,
    /// Time when healing began.
    pub(super) healing_ns: u64,
    /// Time when healing was complete.
    pub(super) to_ns: u64,
}

/// Total time with two running commands, by state of the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LeaderOverlaps {
    /// During a network fault.
    pub(super) fault_ns: u64,
    /// After healing, within the bound.
    pub(super) healed_ns: u64,
    /// Longest time after healing until the overlap ended.
    pub(super) healed_worst_ns: u64,
    /// While the network was intact; must be 0.
    pub(super) intact_ns: u64,
}

/// Intervals with two or more running commands.
fn overlaps(terms: &[Term]) -> Vec<(u64, u64)> {
    let mut edges: Vec<(u64, i32)> =
        terms.iter().flat_map(|term| [(term.from_ns, 1), (term.to_ns, -1)]).collect();
    // A term that ends at an instant does not overlap one that begins at it.
    edges.sort_unstable();
    let (mut running, mut since, mut found) = (0, 0, Vec::new());
    for (at, change) in edges {
        let before = running;
        running += change;
        if before < 2 && running >= 2 {
            since = at;
        } else if before >= 2 && running < 2 && at > since {
            found.push((since, at));
        }
    }
    found
}

/// Classify the overlaps by state of the network; returns totals and violations.
pub(super) fn count(terms: &[Term], network_faults: &[NetworkFault]) -> (LeaderOverlaps, Vec<String>) {
    let (mut counted, mut violations) = (LeaderOverlaps::default(), Vec::new());
    let bound_ns = nanos(bound());
    for (from, to) in overlaps(terms) {
        let mut at = from;
        // Faults are in order and disjoint; the time between two belongs to the earlier one.
        while at < to {
            let Some(n) = network_faults.iter().rposition(|fault| fault.from_ns <= at) else {
                let until = network_faults.first().map_or(to, |fault| fault.from_ns.min(to));
                counted.intact_ns += until - at;
                violations.push(describe(terms, at, until, "before the first network fault"));
                at = until;
                continue;
            };
            let (fault, next) =
                (&network_faults[n], network_faults.get(n + 1).map_or(u64::MAX, |next| next.from_ns));
            let excused = fault.to_ns.saturating_add(bound_ns);
            let edges = [fault.to_ns, excused, next, to];
            let until = edges.into_iter().filter(|edge| *edge > at).min().unwrap_or(to);
            if at < fault.to_ns {
                counted.fault_ns += until - at;
            } else if at < excused {
                counted.healed_ns += until - at;
                counted.healed_worst_ns = counted.healed_worst_ns.max(until - fault.to_ns);
            } else {
                counted.intact_ns += until - at;
                let since = (at - fault.to_ns) / 1_000_000;
                violations.push(describe(
                    terms,
                    at,
                    until,
                    &format!("{since} ms after a {} was healed", fault.name),
                ));
            }
            at = until;
        }
    }
    (counted, violations)
}

fn describe(terms: &[Term], from: u64, to: u64, when: &str) -> String {
    let those = terms.iter().filter(|term| term.from_ns < to && term.to_ns > from);
    let those: Vec<String> = those.map(|term| format!("m{}", term.worker)).collect();
    format!("{} led at once for {:.1} ms, {when}", those.join(" and "), (to - from) as f64 / 1e6)
}

/// Check that each side of a long split without other faults has exactly one running command. Returns the number of
/// checked sides and the violations.
pub(super) fn sides(
    terms: &[Term],
    network_faults: &[NetworkFault],
    others: &[Injected],
    members: usize,
) -> (usize, Vec<String>) {
    let settled_ns = nanos(settled());
    let (mut checked, mut violations) = (0, Vec::new());
    for fault in network_faults.iter().filter(|fault| fault.both_ways) {
        // Shortly before healing begins, because members react quickly.
        let at = fault.healing_ns.saturating_sub(nanos(ROUND));
        let calm_since = at.saturating_sub(settled_ns);
        let disturbed = others.iter().any(|fault| fault.from_ns < at && fault.to_ns > calm_since);
        if fault.from_ns > calm_since || disturbed {
            continue;
        }
        let there = (0..members).filter(|member| !fault.here.contains(member)).collect();
        for side in [&fault.here, &there] {
            checked += 1;
            let runs = |term: &&Term| term.from_ns <= at && at <= term.to_ns && side.contains(&term.worker);
            let running = terms.iter().filter(runs).count();
            if running != 1 {
                violations.push(format!("{running} commands ran on side {side:?} of a long network split"));
            }
        }
    }
    (checked, violations)
}

/// Intervals with at least one running command. Each is returned as a term of the member whose command ended last.
pub(super) fn covered(terms: &[Term]) -> Vec<Term> {
    let mut terms = terms.to_vec();
    terms.sort_by_key(|term| term.from_ns);
    let mut covered: Vec<Term> = Vec::new();
    for term in terms {
        match covered.last_mut().filter(|last| term.from_ns <= last.to_ns) {
            Some(last) if term.to_ns > last.to_ns => *last = Term { from_ns: last.from_ns, ..term },
            Some(_) => {}
            None => covered.push(term),
        }
    }
    covered
}

/// Duration in gossip rounds, rounded up.
pub(super) fn rounds(ns: u64) -> u64 {
    ns.div_ceil(nanos(ROUND))
}

pub(super) fn nanos(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
