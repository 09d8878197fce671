//! What people see when a run about claims has ended.

use super::verdict::Verdict;
use crate::controls::Control;
use crate::report::{Table, conclude, print_controls, print_gap_table};

/// Prints the figures, and tells whether all is well.
pub(crate) fn print(verdicts: &[Verdict], controls: &[Control], seed: u64) -> bool {
    if !verdicts.is_empty() {
        print_figures(verdicts);
        let stages = verdicts.iter().map(|it| (it.stage, it.recoveries.as_slice()));
        print_gap_table("recovery, from the last hold of a lost task to its next run, ms", stages);
    }
    if !controls.is_empty() {
        print_controls(controls);
    }
    let mut violations: Vec<&str> =
        verdicts.iter().flat_map(|it| &it.violations).map(String::as_str).collect();
    if !verdicts.is_empty() && verdicts.iter().all(|it| it.stale_refused == 0) {
        violations.push("no stale settlement was ever refused: the tokens were not put to the test");
    }
    conclude(&violations, controls, seed)
}

fn print_figures(verdicts: &[Verdict]) {
    let mut table = Table::default();
    let row = |table: &mut Table, what: &str, figure: &dyn Fn(&Verdict) -> String| {
        table.row(what, verdicts.iter().map(figure).collect());
    };
    let ms = |ns: u64| format!("{:.3}", ns as f64 / 1e6);
    row(&mut table, "", &|it| it.stage.to_owned());
    row(&mut table, "faults", &|it| it.faults.values().sum::<usize>().to_string());
    let kinds: std::collections::BTreeSet<_> =
        verdicts.iter().flat_map(|it| it.faults.keys().copied()).collect();
    for kind in kinds {
        row(&mut table, &format!("  {kind}"), &|it| it.faults.get(kind).map_or("-".into(), usize::to_string));
    }
    row(&mut table, "processes", &|it| it.processes.to_string());
    row(&mut table, "tasks submitted", &|it| it.submitted.to_string());
    row(&mut table, "  completed", &|it| it.completed.to_string());
    row(&mut table, "  dead", &|it| it.dead.to_string());
    row(&mut table, "  cancelled", &|it| it.cancelled.to_string());
    row(&mut table, "  anything else (must be 0)", &|it| it.unfinished.to_string());
    row(&mut table, "runs", &|it| it.runs.to_string());
    row(&mut table, "  whose claim was lost on the way", &|it| it.lost.to_string());
    row(&mut table, "one task in two hands, ms (must be 0)", &|it| ms(it.overlap_ns));
    row(&mut table, "one key in two hands, ms (must be 0)", &|it| ms(it.key_overlap_ns));
    row(&mut table, "times in exclusive mode", &|it| it.epochs.to_string());
    row(&mut table, "  turns judged", &|it| it.turns.to_string());
    row(&mut table, "  out of order (must be 0)", &|it| it.out_of_order.to_string());
    row(&mut table, "claims past the mode (must be 0)", &|it| it.past_the_mode.to_string());
    row(&mut table, "stale settlements taken (must be 0)", &|it| it.stale_accepted.to_string());
    row(&mut table, "stale settlements refused (must be > 0)", &|it| it.stale_refused.to_string());
    table.print();
}
