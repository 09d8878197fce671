//! What must be true of the commands' lives, given when the network was cut: two at once are counted, and bounded after healing.
//!
//! Everything here is a pure function of what was written down.

use super::{ROUND, bound, settled};
use crate::oracles::{Injected, Term};

/// A time in which the network was cut.
#[derive(Clone, Debug)]
pub(super) struct Cut {
    pub(super) name: &'static str,
    /// Who was on this side; nothing got across to the other, and if `both_ways`, nothing came back.
    pub(super) here: Vec<usize>,
    pub(super) both_ways: bool,
    /// Before the first route was cut.
    pub(super) from_ns: u64,
    /// When mending began.
    pub(super) mending_ns: u64,
    /// When all was mended.
    pub(super) to_ns: u64,
}

/// For how long two commands lived at once, and when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Duals {
    /// While the network was cut.
    pub(super) cut_ns: u64,
    /// After it was mended, within the bound.
    pub(super) healed_ns: u64,
    /// How long after mending there were two, at most.
    pub(super) healed_worst_ns: u64,
    /// While it was whole: must not be.
    pub(super) whole_ns: u64,
}

/// The times in which two or more lived.
fn duals(terms: &[Term]) -> Vec<(u64, u64)> {
    let mut edges: Vec<(u64, i32)> =
        terms.iter().flat_map(|term| [(term.from_ns, 1), (term.to_ns, -1)]).collect();
    // Who ends at a moment does not meet who begins at it.
    edges.sort_unstable();
    let (mut living, mut since, mut found) = (0, 0, Vec::new());
    for (at, change) in edges {
        let before = living;
        living += change;
        if before < 2 && living >= 2 {
            since = at;
        } else if before >= 2 && living < 2 && at > since {
            found.push((since, at));
        }
    }
    found
}

/// How long two lived at once, by what the network was like; and what of it must not be.
pub(super) fn count(terms: &[Term], cuts: &[Cut]) -> (Duals, Vec<String>) {
    let (mut counted, mut amiss) = (Duals::default(), Vec::new());
    let bound_ns = nanos(bound());
    for (from, to) in duals(terms) {
        let mut at = from;
        // Cuts are in order and apart; the time between them belongs to the one before.
        while at < to {
            let Some(n) = cuts.iter().rposition(|cut| cut.from_ns <= at) else {
                let until = cuts.first().map_or(to, |cut| cut.from_ns.min(to));
                counted.whole_ns += until - at;
                amiss.push(told(terms, at, until, "before anything was cut"));
                at = until;
                continue;
            };
            let (cut, next) = (&cuts[n], cuts.get(n + 1).map_or(u64::MAX, |next| next.from_ns));
            let excused = cut.to_ns.saturating_add(bound_ns);
            let edges = [cut.to_ns, excused, next, to];
            let until = edges.into_iter().filter(|edge| *edge > at).min().unwrap_or(to);
            if at < cut.to_ns {
                counted.cut_ns += until - at;
            } else if at < excused {
                counted.healed_ns += until - at;
                counted.healed_worst_ns = counted.healed_worst_ns.max(until - cut.to_ns);
            } else {
                counted.whole_ns += until - at;
                let since = (at - cut.to_ns) / 1_000_000;
                amiss.push(told(terms, at, until, &format!("{since} ms after a {} was mended", cut.name)));
            }
            at = until;
        }
    }
    (counted, amiss)
}

fn told(terms: &[Term], from: u64, to: u64, when: &str) -> String {
    let those = terms.iter().filter(|term| term.from_ns < to && term.to_ns > from);
    let those: Vec<String> = those.map(|term| format!("m{}", term.worker)).collect();
    format!("{} at once for {:.1} ms, {when}", those.join(" and "), (to - from) as f64 / 1e6)
}

/// Sides of a netsplit on which, when it had lasted for long and nothing else was broken, there was not one command. Also, how many
/// sides there were to look at.
pub(super) fn sides(
    terms: &[Term],
    cuts: &[Cut],
    others: &[Injected],
    members: usize,
) -> (usize, Vec<String>) {
    let settled_ns = nanos(settled());
    let (mut looked, mut amiss) = (0, Vec::new());
    for cut in cuts.iter().filter(|cut| cut.both_ways) {
        // A moment before: whoever is told to end may be quick.
        let at = cut.mending_ns.saturating_sub(nanos(ROUND));
        let calm_since = at.saturating_sub(settled_ns);
        let disturbed = others.iter().any(|fault| fault.from_ns < at && fault.to_ns > calm_since);
        if cut.from_ns > calm_since || disturbed {
            continue;
        }
        let there = (0..members).filter(|member| !cut.here.contains(member)).collect();
        for side in [&cut.here, &there] {
            looked += 1;
            let lives = |term: &&Term| term.from_ns <= at && at <= term.to_ns && side.contains(&term.worker);
            let living = terms.iter().filter(lives).count();
            if living != 1 {
                amiss.push(format!("{living} lived on the side {side:?} of a netsplit that had lasted"));
            }
        }
    }
    (looked, amiss)
}

/// The times in which at least one lived, as terms of whoever was the last of each.
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

/// In rounds of gossip.
pub(super) fn rounds(ns: u64) -> u64 {
    ns.div_ceil(nanos(ROUND))
}

pub(super) fn nanos(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
