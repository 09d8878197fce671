//! From what was written down to a verdict, and what people see of it.

use std::collections::BTreeMap;

use super::nemesis::Broken;
use super::oracle::{Duals, count, covered, nanos, rounds, sides};
use super::{MEMBERS, ROUND, bound, settled};
use crate::controls::Control;
use crate::oracles::{Gap, Term, gaps};
use crate::report::{Table, conclude, print_controls, print_gap_table};

/// What came of the stage.
pub(super) struct Verdict {
    faults: BTreeMap<&'static str, usize>,
    cuts: usize,
    processes: u32,
    terms: usize,
    duals: Duals,
    /// How many sides of netsplits lasted long enough to be looked at.
    sides: usize,
    led_ns: u64,
    total_ns: u64,
    gaps: Vec<Gap>,
    violations: Vec<String>,
}

impl Verdict {
    pub(super) fn new(terms: &[Term], broken: &Broken, processes: u32, total_ns: u64) -> Verdict {
        let all = broken.all();
        let mut faults = BTreeMap::new();
        all.iter().for_each(|fault| *faults.entry(fault.name).or_default() += 1);
        let (duals, mut violations) = count(terms, &broken.cuts);
        let (sides, one_sided) = sides(terms, &broken.cuts, &broken.others, MEMBERS);
        violations.extend(one_sided);
        let covered = covered(terms);
        Verdict {
            faults,
            cuts: broken.cuts.len(),
            processes,
            terms: terms.len(),
            duals,
            sides,
            led_ns: covered.iter().map(|term| term.to_ns - term.from_ns).sum(),
            total_ns,
            gaps: gaps(&covered, &all, nanos(settled())),
            violations,
        }
    }

    /// What else must be so; `last` led when all had been calm for a while.
    pub(super) fn conclude(mut self, fallen: usize, last: &[usize]) -> Verdict {
        if last.len() != 1 {
            self.violations.push(format!("{last:?} led when all had been calm for {:?}", settled()));
        }
        if self.terms < 3 || self.cuts == 0 {
            let figures = format!("{} terms, {} cuts", self.terms, self.cuts);
            self.violations.push(format!("too little happened to prove anything: {figures}"));
        }
        if fallen > 0 {
            self.violations.push(format!("{fallen} members ended without having been told to"));
        }
        self
    }
}

/// Prints the figures, and tells whether all is well.
pub(super) fn print(verdict: Option<&Verdict>, controls: &[Control], seed: u64) -> bool {
    if let Some(verdict) = verdict {
        print_figures(verdict);
        print_gap_table("from one command to the next, ms", [("gossip", verdict.gaps.as_slice())]);
    }
    if !controls.is_empty() {
        print_controls(controls);
    }
    let violations = verdict.iter().flat_map(|it| &it.violations).map(String::as_str);
    conclude(&violations.collect::<Vec<_>>(), controls, seed)
}

fn print_figures(verdict: &Verdict) {
    let mut table = Table::default();
    let mut row = |what: &str, figure: String| table.row(what, vec![figure]);
    let ms = |ns: u64| format!("{:.1}", ns as f64 / 1e6);
    let seconds = |ns: u64| format!("{:.2}", ns as f64 / 1e9);
    row("", "gossip".into());
    row("faults", verdict.faults.values().sum::<usize>().to_string());
    for (kind, count) in &verdict.faults {
        row(&format!("  {kind}"), count.to_string());
    }
    row("processes", verdict.processes.to_string());
    row("terms", verdict.terms.to_string());
    row("two at once, s, while cut", seconds(verdict.duals.cut_ns));
    row("two at once, s, after mending", seconds(verdict.duals.healed_ns));
    row("  at most so long after it, ms", ms(verdict.duals.healed_worst_ns));
    row("  in rounds", rounds(verdict.duals.healed_worst_ns).to_string());
    row("  the bound, ms", ms(nanos(bound())));
    row("  a round, ms", ms(nanos(ROUND)));
    row("two at once while whole, ms (must be 0)", ms(verdict.duals.whole_ns));
    row("sides of a lasting netsplit, one each", verdict.sides.to_string());
    row("availability, %", format!("{:.1}", 100.0 * verdict.led_ns as f64 / verdict.total_ns.max(1) as f64));
    table.print();
}
