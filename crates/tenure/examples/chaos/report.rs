//! What people see: a line while it runs, a table when it has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{IsTerminal, Write};
use std::time::Duration;

use tenure_testkit::rig::true_boottime_ns;

use crate::oracles::{Gap, Injected};
use crate::theatre::Control;

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

/// What came of a stage, as people are told.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) stage: &'static str,
    pub(crate) faults: BTreeMap<&'static str, usize>,
    /// What was counted. All stages of a run count the same.
    pub(crate) figures: Vec<(&'static str, String)>,
    /// How often something was refused that was said under an old token, if that is demanded of all stages together.
    pub(crate) stale_refused: usize,
    pub(crate) gaps: Vec<Gap>,
    pub(crate) violations: Vec<String>,
}

impl Outcome {
    /// A stage in which this was broken, and this was amiss.
    pub(crate) fn new(stage: &'static str, broken: &[Injected], amiss: Vec<String>) -> Outcome {
        let mut faults = BTreeMap::new();
        broken.iter().for_each(|fault| *faults.entry(fault.name).or_default() += 1);
        let violations = amiss.into_iter().map(|it| format!("{stage}: {it}")).collect();
        Outcome { stage, faults, violations, ..Outcome::default() }
    }
}

/// Says that nothing was put to the test if that is so in all stages: in a short one it may be that nobody lived to say anything under an
/// old token.
pub(crate) fn demand_refusals(outcomes: &mut [Outcome], otherwise: &str) {
    if outcomes.iter().all(|it| it.stale_refused == 0)
        && let Some(last) = outcomes.last_mut()
    {
        last.violations.push(otherwise.to_owned());
    }
}

/// Prints the figures, the gaps if they have a title, and what was amiss; tells whether nothing was.
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
        println!("\nFAILED: {} violations, {missed} controls amiss; seed {seed}", violations.len());
    }
    well
}

/// Figures of all stages side by side.
fn print_figures(outcomes: &[Outcome]) {
    let row = |what: &str, figure: &dyn Fn(&Outcome) -> String| {
        let figures: String = outcomes.iter().map(|it| format!(" {:>10}", figure(it))).collect();
        println!("{what:<40}{figures}");
    };
    println!();
    row("", &|it| it.stage.to_owned());
    row("faults", &|it| it.faults.values().sum::<usize>().to_string());
    let kinds: BTreeSet<_> = outcomes.iter().flat_map(|it| it.faults.keys()).collect();
    for kind in kinds {
        row(&format!("  {kind}"), &|it| it.faults.get(kind).map_or("-".into(), usize::to_string));
    }
    for (n, (what, _)) in outcomes[0].figures.iter().enumerate() {
        row(what, &|it| it.figures[n].1.clone());
    }
}

/// How long things were away, by stage and fault.
fn print_gaps(title: &str, outcomes: &[Outcome]) {
    println!("\n{title:<52} {:>5} {:>8} {:>8} {:>8}", "n", "p50", "p99", "max");
    for Outcome { stage, gaps, .. } in outcomes {
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
fn print_controls(controls: &[Control]) {
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
