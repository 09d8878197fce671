//! Output: a progress line during the run, and tables at its end.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{IsTerminal, Write};
use std::time::Duration;

use tenure_testkit::rig::true_boottime_ns;

use crate::control_runner::Control;
use crate::oracles::{Gap, Injected};

/// Maximum number of printed violations.
const SHOWN: usize = 20;

/// The progress line. On a terminal it is overwritten; otherwise a new line is printed every ten seconds.
pub(crate) struct Progress {
    scenario: &'static str,
    doing: String,
    until_ns: u64,
    painted_ns: u64,
    terminal: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { scenario: "", doing: String::new(), until_ns: 0, painted_ns: 0, terminal }
    }

    /// Start a scenario of about this duration.
    pub(crate) fn scenario(&mut self, scenario: &'static str, seconds: f64) {
        self.scenario = scenario;
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

    /// Print a note.
    pub(crate) fn note(&mut self, what: &str) {
        eprintln!("{}[{}] {what}", if self.terminal { "\r\x1b[K" } else { "" }, self.scenario);
    }

    pub(crate) fn tick(&mut self) {
        let now = true_boottime_ns();
        let every = Duration::from_millis(if self.terminal { 200 } else { 10_000 });
        if now.saturating_sub(self.painted_ns) < u64::try_from(every.as_nanos()).unwrap_or(0) {
            return;
        }
        self.painted_ns = now;
        let left = self.until_ns.saturating_sub(now).div_ceil(1_000_000_000);
        let line = format!("[{}] {left} s left: {}", self.scenario, self.doing);
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

/// Printed result of a scenario.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) scenario: &'static str,
    pub(crate) faults: BTreeMap<&'static str, usize>,
    /// Figures. All scenarios of a run have the same ones.
    pub(crate) figures: Vec<(&'static str, String)>,
    /// Number of rejected writes under old tokens, if the run requires some.
    pub(crate) stale_refused: usize,
    pub(crate) gaps: Vec<Gap>,
    pub(crate) violations: Vec<String>,
}

impl Outcome {
    /// Create the result of a scenario from its faults and violations.
    pub(crate) fn new(scenario: &'static str, broken: &[Injected], violations: Vec<String>) -> Outcome {
        let mut faults = BTreeMap::new();
        broken.iter().for_each(|fault| *faults.entry(fault.name).or_default() += 1);
        let violations = violations.into_iter().map(|it| format!("{scenario}: {it}")).collect();
        Outcome { scenario, faults, violations, ..Outcome::default() }
    }
}

/// Add a violation if no scenario rejected a write under an old token. A single short scenario may have none.
pub(crate) fn demand_refusals(outcomes: &mut [Outcome], otherwise: &str) {
    if outcomes.iter().all(|it| it.stale_refused == 0)
        && let Some(last) = outcomes.last_mut()
    {
        last.violations.push(otherwise.to_owned());
    }
}

/// Print figures, gaps (if titled), controls and violations. Returns whether there is no violation.
pub(crate) fn print(outcomes: &[Outcome], gaps: Option<&str>, controls: &[Control], seed: u64) -> bool {
    if !outcomes.is_empty() {
        print_figures(outcomes);
        if let Some(title) = gaps {
            print_gaps(title, outcomes);
        }
    }
    if !controls.is_empty() {
        print_controls(controls);
    }
    let violations: Vec<&String> = outcomes.iter().flat_map(|it| &it.violations).collect();
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
        println!("\nFAILED: {} violations, {missed} failed controls; seed {seed}", violations.len());
    }
    well
}

/// Figures of all scenarios side by side.
fn print_figures(outcomes: &[Outcome]) {
    let row = |what: &str, figure: &dyn Fn(&Outcome) -> String| {
        let figures: String = outcomes.iter().map(|it| format!(" {:>10}", figure(it))).collect();
        println!("{what:<40}{figures}");
    };
    println!();
    row("", &|it| it.scenario.to_owned());
    row("faults", &|it| it.faults.values().sum::<usize>().to_string());
    let kinds: BTreeSet<_> = outcomes.iter().flat_map(|it| it.faults.keys()).collect();
    for kind in kinds {
        row(&format!("  {kind}"), &|it| it.faults.get(kind).map_or("-".into(), usize::to_string));
    }
    for (n, (what, _)) in outcomes[0].figures.iter().enumerate() {
        row(what, &|it| it.figures[n].1.clone());
    }
}

/// Durations of gaps by scenario and fault.
fn print_gaps(title: &str, outcomes: &[Outcome]) {
    println!("\n{title:<52} {:>5} {:>8} {:>8} {:>8}", "n", "p50", "p99", "max");
    for Outcome { scenario, gaps, .. } in outcomes {
        let mut by_fault: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for Gap { after, ns } in gaps {
            by_fault.entry(after).or_default().push(*ns);
        }
        for (after, mut gaps) in by_fault {
            gaps.sort_unstable();
            let at = |part: f64| gaps[((gaps.len() - 1) as f64 * part).round() as usize] as f64 / 1e6;
            println!(
                "  {:<50} {:>5} {:>8.1} {:>8.1} {:>8.1}",
                format!("{scenario}: {after}"),
                gaps.len(),
                at(0.5),
                at(0.99),
                at(1.0)
            );
        }
    }
}

/// Results of the controls.
fn print_controls(controls: &[Control]) {
    let caught = controls.iter().filter(|it| it.caught && it.silent_without).count();
    println!("\ncontrols caught {caught} of {}", controls.len());
    for control in controls {
        let evaluation = match (control.caught, control.silent_without) {
            (true, true) => "caught",
            (false, _) => "MISSED",
            (true, false) => "FALSE ALARM without the bug",
        };
        println!("  {:<50} {evaluation}", control.bug);
    }
}
