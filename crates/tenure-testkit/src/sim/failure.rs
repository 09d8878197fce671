//! What a failed day tells.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use super::invariants::Violation;
use super::{Mistake, Scenario};

/// How many steps of a failed day are told.
const LINES_KEPT: usize = 60;

/// A day on which an invariant was broken.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Which kind of day.
    pub scenario: Scenario,
    /// Which day.
    pub seed: u64,
    /// What was put in wrong, if anything.
    pub mistake: Option<Mistake>,
    /// What was broken.
    pub violation: Violation,
    /// When, in real (virtual) time.
    pub at: Duration,
    /// The last steps before it.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { scenario, seed, violation, at, .. } = self;
        writeln!(f, "{} is broken at {:.3}s: {}", violation.invariant, at.as_secs_f64(), violation.what)?;
        for line in &self.trace {
            writeln!(f, "  {line}")?;
        }
        writeln!(f, "scenario {scenario}, seed {seed}: sim::replay(Scenario::{scenario:?}, {seed})")?;
        write!(f, "or: tenure-sim --scenario {scenario} --from {seed} --seeds 1")?;
        self.mistake.map_or(Ok(()), |mistake| write!(f, " --mistake {mistake}"))
    }
}

impl std::error::Error for Failure {}

/// The last steps, written down only on a day that is lived again.
#[derive(Debug, Default)]
pub(super) struct Diary {
    on: bool,
    lines: VecDeque<String>,
}

impl Diary {
    pub(super) fn new(on: bool) -> Self {
        Diary { on, lines: VecDeque::new() }
    }

    pub(super) fn note(&mut self, now: u64, line: impl FnOnce() -> String) {
        if self.on {
            if self.lines.len() == LINES_KEPT {
                self.lines.pop_front();
            }
            self.lines.push_back(format!("{:>9.4}s {}", Duration::from_nanos(now).as_secs_f64(), line()));
        }
    }

    pub(super) fn into_lines(self) -> Vec<String> {
        self.lines.into()
    }
}
