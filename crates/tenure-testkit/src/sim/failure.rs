//! Failures of simulation runs.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use super::invariants::Violation;
use super::{InjectedBug, Scenario};

/// Number of trace lines of a failed run.
const LINES_KEPT: usize = 60;

/// A run that violated an invariant.
#[derive(Clone, Debug)]
pub struct SimFailure {
    /// Scenario of the run.
    pub scenario: Scenario,
    /// Seed of the run.
    pub seed: u64,
    /// Injected bug, if there was one.
    pub bug: Option<InjectedBug>,
    /// Violated invariant.
    pub violation: Violation,
    /// Simulated time of the violation.
    pub at: Duration,
    /// Last steps before it.
    pub trace: Vec<String>,
}

impl fmt::Display for SimFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SimFailure { scenario, seed, violation, at, .. } = self;
        writeln!(f, "{} violated at {:.3}s: {}", violation.invariant, at.as_secs_f64(), violation.what)?;
        for line in &self.trace {
            writeln!(f, "  {line}")?;
        }
        writeln!(f, "scenario {scenario}, seed {seed}: sim::replay(Scenario::{scenario:?}, {seed})")?;
        write!(f, "or: tenure-sim --scenario {scenario} --from {seed} --seeds 1")?;
        self.bug.map_or(Ok(()), |bug| write!(f, " --bug {bug}"))
    }
}

impl std::error::Error for SimFailure {}

/// The last steps, recorded only when a run is replayed.
#[derive(Debug, Default)]
pub(super) struct TraceLog {
    on: bool,
    lines: VecDeque<String>,
}

impl TraceLog {
    pub(super) fn new(on: bool) -> Self {
        TraceLog { on, lines: VecDeque::new() }
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
