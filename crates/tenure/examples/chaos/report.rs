//! What people see: a line while it runs, a table when it has ended.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use tenure_testkit::rig::true_boottime_ns;

use crate::controls::Control;
use crate::oracles::Gap;
use crate::verdict::Verdict;

/// How many violations of one run are shown.
const SHOWN: usize = 20;

/// The line that tells how far it is. On a terminal it is painted over; elsewhere a new one comes every ten seconds.
pub(crate) struct Progress {
    stage: &'static str,
    doing: String,
    until_ns: u64,
    painted_ns: u64,
    terminal: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { stage: "", doing: String::new(), until_ns: 0, painted_ns: 0, terminal }
    }

    /// A stage begins that lasts about this long.
    pub(crate) fn stage(&mut self, stage: &'static str, seconds: f64) {
        self.stage = stage;
        self.until_ns = true_boottime_ns() + (seconds * 1e9) as u64;
        self.doing = "starting".into();
        self.painted_ns = 0;
        self.tick();
    }

    pub(crate) fn doing(&mut self, what: &str) {
        what.clone_into(&mut self.doing);
        if self.terminal {
            self.painted_ns = 0;
        }
        self.tick();
    }

    /// Something that people should know.
    pub(crate) fn note(&mut self, what: &str) {
        eprintln!("{}[{}] {what}", if self.terminal { "\r\x1b[K" } else { "" }, self.stage);
    }

    pub(crate) fn tick(&mut self) {
        let now = true_boottime_ns();
        let every = Duration::from_millis(if self.terminal { 200 } else { 10_000 });
        if now.saturating_sub(self.painted_ns) < u64::try_from(every.as_nanos()).unwrap_or(0) {
            return;
        }
        self.painted_ns = now;
        let left = self.until_ns.saturating_sub(now).div_ceil(1_000_000_000);
        let line = format!("[{}] {left} s left: {}", self.stage, self.doing);
        if self.terminal {
            eprint!("\r\x1b[K{line}");
            let _ = std::io::stderr().flush();
        } else {
            eprintln!("{line}");
        }
    }

    pub(crate) fn done(&mut self) {
        if self.terminal {
            eprint!("\r\x1b[K");
        }
    }
}

/// Prints the figures, and tells whether all is well.
pub(crate) fn print(verdicts: &[Verdict], controls: &[Control], seed: u64) -> bool {
    let mut table = Table::default();
    let row = |table: &mut Table, what: &str, figure: &dyn Fn(&Verdict) -> String| {
        table.row(what, verdicts.iter().map(figure).collect());
    };
    table.row("", verdicts.iter().map(|it| it.stage.to_owned()).collect());
    let ms = |ns: u64| format!("{:.3}", ns as f64 / 1e6);
    row(&mut table, "faults", &|it| it.faults.values().sum::<usize>().to_string());
    let kinds: std::collections::BTreeSet<_> =
        verdicts.iter().flat_map(|it| it.faults.keys().copied()).collect();
    for kind in kinds {
        row(&mut table, &format!("  {kind}"), &|it| it.faults.get(kind).map_or("-".into(), usize::to_string));
    }
    row(&mut table, "worker processes", &|it| it.processes.to_string());
    row(&mut table, "samples of belief", &|it| it.samples.to_string());
    row(&mut table, "terms", &|it| it.terms.to_string());
    row(&mut table, "overlap of belief, ms (must be 0)", &|it| ms(it.worst_overlap_ns));
    row(&mut table, "  where less is promised, ms (see --help)", &|it| ms(it.lesser_overlap_ns));
    row(&mut table, "stale writes accepted (must be 0)", &|it| it.stale_accepted.to_string());
    row(&mut table, "stale writes refused (must be > 0)", &|it| it.stale_refused.to_string());
    row(&mut table, "guarded writes confirmed", &|it| it.guarded.to_string());
    row(&mut table, "guarded writes refused", &|it| it.guard_refused.to_string());
    row(&mut table, "writes of unknown outcome", &|it| it.unknown.to_string());
    row(&mut table, "availability, %", &|it| {
        format!("{:.1}", 100.0 * it.led_ns as f64 / it.total_ns.max(1) as f64)
    });
    row(&mut table, "time without a leader, s per slot", &|it| {
        format!("{:.1}", (it.total_ns - it.led_ns) as f64 / 1e9 / it.leases.max(1) as f64)
    });
    if !verdicts.is_empty() {
        table.print();
        print_gaps(verdicts);
    }
    if !controls.is_empty() {
        print_controls(controls);
    }
    let mut violations: Vec<&str> =
        verdicts.iter().flat_map(|it| &it.violations).map(String::as_str).collect();
    // Over all stages: in a short one it may be that nobody lived to write under an old token.
    if !verdicts.is_empty() && verdicts.iter().all(|it| it.stale_refused == 0) {
        violations.push("no stale write was ever refused: the fence was not put to the test");
    }
    conclude(&violations, controls, seed)
}

/// Prints what was amiss, and tells whether nothing was.
pub(crate) fn conclude(violations: &[&str], controls: &[Control], seed: u64) -> bool {
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

fn print_gaps(verdicts: &[Verdict]) {
    let stages = verdicts.iter().map(|it| (it.stage, it.gaps.as_slice()));
    print_gap_table("take-over, from the last belief to the next, ms", stages);
}

/// How long things were away, by stage and fault.
pub(crate) fn print_gap_table<'a>(title: &str, stages: impl IntoIterator<Item = (&'static str, &'a [Gap])>) {
    println!("\n{title:<52} {:>5} {:>8} {:>8} {:>8}", "n", "p50", "p99", "max");
    for (stage, gaps) in stages {
        let mut by_fault: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for Gap { after, ns } in gaps {
            by_fault.entry(after).or_default().push(*ns);
        }
        for (after, mut gaps) in by_fault {
            gaps.sort_unstable();
            let at = |part: f64| gaps[((gaps.len() - 1) as f64 * part).round() as usize] as f64 / 1e6;
            println!(
                "  {:<50} {:>5} {:>8.1} {:>8.1} {:>8.1}",
                format!("{stage}: {after}"),
                gaps.len(),
                at(0.5),
                at(0.99),
                at(1.0)
            );
        }
    }
}

/// Which mistakes were found.
pub(crate) fn print_controls(controls: &[Control]) {
    let caught = controls.iter().filter(|it| it.caught && it.silent_without).count();
    println!("\ncontrols caught {caught} of {}", controls.len());
    for control in controls {
        let verdict = match (control.caught, control.silent_without) {
            (true, true) => "caught",
            (false, _) => "MISSED",
            (true, false) => "FALSE ALARM without the mistake",
        };
        println!("  {:<50} {verdict}", control.mistake);
    }
}

/// Figures side by side.
#[derive(Default)]
pub(crate) struct Table(Vec<(String, Vec<String>)>);

impl Table {
    pub(crate) fn row(&mut self, what: &str, figures: Vec<String>) {
        self.0.push((what.to_owned(), figures));
    }

    pub(crate) fn print(&self) {
        println!();
        for (what, figures) in &self.0 {
            let figures: String = figures.iter().map(|figure| format!(" {figure:>10}")).collect();
            println!("{what:<40}{figures}");
        }
    }
}
