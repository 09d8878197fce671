//! From the books to a verdict on one stage, and what people see of it.

use std::collections::{BTreeMap, BTreeSet};

use super::books::Judged;
use crate::controls::Control;
use crate::oracles::Injected;
use crate::process::Heard;
use crate::report::{Table, conclude, print_controls};

/// What came of a stage.
pub(super) struct Verdict {
    stage: &'static str,
    faults: BTreeMap<&'static str, usize>,
    judged: Judged,
    heard: Heard,
    violations: Vec<String>,
}

impl Verdict {
    pub(super) fn new(stage: &'static str, judged: Judged, heard: Heard, faults: &[Injected]) -> Verdict {
        let mut kinds = BTreeMap::new();
        faults.iter().for_each(|fault| *kinds.entry(fault.name).or_default() += 1);
        let violations = judged.amiss.clone();
        Verdict { stage, faults: kinds, judged, heard, violations }
    }

    pub(super) fn conclude(&mut self, fallen: usize) {
        if self.heard.accepted > 0 {
            self.violations.push(format!("{} stale commits were accepted", self.heard.accepted));
        }
        if self.heard.refused == 0 {
            self.violations
                .push("no stale commit was ever refused: the tokens were not put to the test".into());
        }
        if self.judged.published < 200 {
            let few = format!("too little happened to prove anything: {} events", self.judged.published);
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
    let violations: Vec<&str> = verdicts.iter().flat_map(|it| &it.violations).map(String::as_str).collect();
    conclude(&violations, controls, seed)
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
    row(&mut table, "events committed", &|it| it.judged.published.to_string());
    row(&mut table, "  lost (must be 0)", &|it| it.judged.lost.to_string());
    row(&mut table, "  reordered (must be 0)", &|it| it.judged.reordered.to_string());
    row(&mut table, "  with doubled effects (must be 0)", &|it| it.judged.doubled.to_string());
    row(&mut table, "stale commits accepted (must be 0)", &|it| it.heard.accepted.to_string());
    row(&mut table, "stale commits refused (must be > 0)", &|it| it.heard.refused.to_string());
    table.print();
}
