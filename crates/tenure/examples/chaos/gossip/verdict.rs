//! From what was written down to what is told of the stage.

use super::member::MemberPlan;
use super::nemesis::Broken;
use super::oracle::{count, covered, nanos, rounds, sides};
use super::{MEMBERS, ROUND, bound, settled};
use crate::crew::Crew;
use crate::oracles::{Term, gaps};
use crate::report::Outcome;

/// What came of the stage, which lasted for so long; `last` led when all had been calm for a while.
pub(super) fn conclude(
    terms: &[Term],
    broken: &Broken,
    last: &[usize],
    total_ns: u64,
    crew: &Crew<MemberPlan>,
) -> Outcome {
    let (duals, mut violations) = count(terms, &broken.cuts);
    let (sides, one_sided) = sides(terms, &broken.cuts, &broken.others, MEMBERS);
    violations.extend(one_sided);
    if last.len() != 1 {
        violations.push(format!("{last:?} led when all had been calm for {:?}", settled()));
    }
    if terms.len() < 3 || broken.cuts.is_empty() {
        let figures = format!("{} terms, {} cuts", terms.len(), broken.cuts.len());
        violations.push(format!("too little happened to prove anything: {figures}"));
    }
    violations.extend(crew.fallen("members"));
    let covered = covered(terms);
    let led_ns: u64 = covered.iter().map(|term| term.to_ns - term.from_ns).sum();
    let ms = |ns: u64| format!("{:.1}", ns as f64 / 1e6);
    let seconds = |ns: u64| format!("{:.2}", ns as f64 / 1e9);
    let figures = vec![
        ("processes", crew.starts.to_string()),
        ("terms", terms.len().to_string()),
        ("two at once, s, while cut", seconds(duals.cut_ns)),
        ("two at once, s, after mending", seconds(duals.healed_ns)),
        ("  at most so long after it, ms", ms(duals.healed_worst_ns)),
        ("  in rounds", rounds(duals.healed_worst_ns).to_string()),
        ("  the bound, ms", ms(nanos(bound()))),
        ("  a round, ms", ms(nanos(ROUND))),
        ("two at once while whole, ms (must be 0)", ms(duals.whole_ns)),
        ("sides of a lasting netsplit, one each", sides.to_string()),
        ("availability, %", format!("{:.1}", 100.0 * led_ns as f64 / total_ns.max(1) as f64)),
    ];
    let all = broken.all();
    let gaps = gaps(&covered, &all, nanos(settled()));
    Outcome { figures, gaps, violations, ..Outcome::new("gossip", &all, Vec::new()) }
}
