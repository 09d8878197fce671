//! Evaluation of the gossip scenario.

use super::member::MemberPlan;
use super::nemesis::Broken;
use super::oracle::{count, covered, nanos, rounds, sides};
use super::{MEMBERS, ROUND, bound, settled};
use crate::oracles::{Term, gaps};
use crate::report::Outcome;
use crate::worker_processes::WorkerProcesses;

/// Evaluate a scenario of the given duration; `last` are the leaders at its end, after a time without faults.
pub(super) fn evaluate(
    terms: &[Term],
    broken: &Broken,
    last: &[usize],
    total_ns: u64,
    workers: &WorkerProcesses<MemberPlan>,
) -> Outcome {
    let (overlaps, mut violations) = count(terms, &broken.network_faults);
    let (sides, one_sided) = sides(terms, &broken.network_faults, &broken.others, MEMBERS);
    violations.extend(one_sided);
    if last.len() != 1 {
        violations.push(format!("{last:?} led after {:?} without faults", settled()));
    }
    if terms.len() < 3 || broken.network_faults.is_empty() {
        let figures = format!("{} terms, {} network faults", terms.len(), broken.network_faults.len());
        violations.push(format!("too few events for a meaningful result: {figures}"));
    }
    violations.extend(workers.unexpected_exits("members"));
    let covered = covered(terms);
    let led_ns: u64 = covered.iter().map(|term| term.to_ns - term.from_ns).sum();
    let ms = |ns: u64| format!("{:.1}", ns as f64 / 1e6);
    let seconds = |ns: u64| format!("{:.2}", ns as f64 / 1e9);
    let figures = vec![
        ("processes", workers.starts.to_string()),
        ("terms", terms.len().to_string()),
        ("two leaders during a split, s", seconds(overlaps.fault_ns)),
        ("two leaders after healing, s", seconds(overlaps.healed_ns)),
        ("  longest time after healing, ms", ms(overlaps.healed_worst_ns)),
        ("  in rounds", rounds(overlaps.healed_worst_ns).to_string()),
        ("  limit, ms", ms(nanos(bound()))),
        ("  gossip round, ms", ms(nanos(ROUND))),
        ("two leaders while intact, ms (must be 0)", ms(overlaps.intact_ns)),
        ("sides of long splits checked", sides.to_string()),
        ("availability, %", format!("{:.1}", 100.0 * led_ns as f64 / total_ns.max(1) as f64)),
    ];
    let all = broken.all();
    let gaps = gaps(&covered, &all, nanos(settled()));
    Outcome { figures, gaps, violations, ..Outcome::new("gossip", &all, Vec::new()) }
}
