//! From what was found to a verdict on one stage, and what people see of it.

use std::collections::{BTreeMap, BTreeSet};

use super::history::Judged;
use crate::controls::Control;
use crate::oracles::Injected;
use crate::process::Heard;
use crate::report::{Table, print_controls};

/// How many violations of one run are shown.
const SHOWN: usize = 20;

/// What came of a stage.
pub(super) struct Verdict {
    stage: &'static str,
    faults: BTreeMap<&'static str, usize>,
    judged: Judged,
    heard: Heard,
    violations: Vec<String>,
}

impl Verdict {
    pub(super) fn new(stage: &'static str, mut judged: Judged, heard: Heard, faults: &[Injected]) -> Verdict {
        let mut kinds = BTreeMap::new();
        faults.iter().for_each(|fault| *kinds.entry(fault.name).or_default() += 1);
        let violations = std::mem::take(&mut judged.amiss);
        Verdict { stage, faults: kinds, judged, heard, violations }
    }

    pub(super) fn conclude(&mut self, fallen: usize, left: Option<String>) {
        self.violations.extend(left);
        if self.heard.accepted > 0 {
            self.violations.push(format!("{} firings under old tokens were accepted", self.heard.accepted));
        }
        if self.heard.refused == 0 {
            self.violations.push("no old token was ever refused: they were not put to the test".into());
        }
        if self.judged.apart < 20 {
            let few = format!("too few runs were kept apart to prove anything: {}", self.judged.apart);
            self.violations.push(few);
        }
        if self.judged.fired < 50 {
            let few = format!("too little happened to prove anything: {} ticks", self.judged.fired);
            self.violations.push(few);
        }
        if fallen > 0 {
            self.violations.push(format!("{fallen} processes ended without having been told to"));
        }
        for violation in &mut self.violations {
            *violation = format!("{}: {violation}", self.stage);
        }
    }
}

/// Prints the figures, and tells whether all is well.
pub(super) fn print(verdicts: &[Verdict], controls: &[Control], seed: u64) -> bool {
    if !verdicts.is_empty() {
        print_figures(verdicts);
    }
    if !controls.is_empty() {
        print_controls(controls);
    }
    let violations: Vec<&String> = verdicts.iter().flat_map(|it| &it.violations).collect();
    for violation in violations.iter().take(SHOWN) {
        println!("VIOLATION {violation}");
    }
    if violations.len() > SHOWN {
        println!("... and {} more", violations.len() - SHOWN);
    }
    let missed = controls.iter().filter(|it| !it.caught || !it.silent_without).count();
    let well = violations.is_empty() && missed == 0;
    if well {
        println!("\nall oracles hold; seed {seed}");
    } else {
        println!("\nFAILED: {} violations, {missed} controls amiss; seed {seed}", violations.len());
    }
    well
}

fn print_figures(verdicts: &[Verdict]) {
    let mut table = Table::default();
    let row = |table: &mut Table, what: &str, figure: &dyn Fn(&Verdict) -> String| {
        table.row(what, verdicts.iter().map(figure).collect());
    };
    row(&mut table, "", &|it| it.stage.to_owned());
    row(&mut table, "faults", &|it| it.faults.values().sum::<usize>().to_string());
    let kinds: BTreeSet<_> = verdicts.iter().flat_map(|it| it.faults.keys().copied()).collect();
    for kind in kinds {
        row(&mut table, &format!("  {kind}"), &|it| it.faults.get(kind).map_or("-".into(), usize::to_string));
    }
    row(&mut table, "processes", &|it| it.heard.processes.to_string());
    row(&mut table, "ticks fired", &|it| it.judged.fired.to_string());
    row(&mut table, "ticks skipped by policy", &|it| it.judged.skipped.to_string());
    row(&mut table, "  missed (must be 0)", &|it| it.judged.missed.to_string());
    row(&mut table, "  doubled (must be 0)", &|it| it.judged.doubled.to_string());
    row(&mut table, "  not as the policy says (must be 0)", &|it| it.judged.astray.to_string());
    row(&mut table, "runs that may not overlap", &|it| it.judged.apart.to_string());
    row(&mut table, "  not kept apart (must be 0)", &|it| it.judged.overlapping.to_string());
    row(&mut table, "old tokens accepted (must be 0)", &|it| it.heard.accepted.to_string());
    row(&mut table, "old tokens refused (must be > 0)", &|it| it.heard.refused.to_string());
    table.print();
}
