//! Evaluation of an election scenario from logs and tables.

use std::path::PathBuf;

use crate::Failed;
use crate::log::{self, Kind};
use crate::oracles::{
    self, Gap, Injected, Term, gaps, led_and_total, overlaps, stale_rows, tokens_that_did_not_grow,
};
use crate::postgres::LEASE;
use crate::report::Outcome;
use crate::tables::WriteTables;
use crate::worker_processes::WorkerProcesses;

/// The guarantee of an election, which the evaluation checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guarantee {
    /// At most one process per slot believes at any time that it leads.
    AtMostOne,
    /// Two processes may believe for a while that they lead; fences still reject writes with an old token.
    Fencing,
}

/// A finished scenario.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// Names of the elections, by index.
    pub(crate) names: Vec<String>,
    pub(crate) guarantees: Vec<Guarantee>,
    pub(crate) faults: Vec<Injected>,
    pub(crate) end_ns: u64,
    /// Whether confirmed writes must be present; not after a failover with lost commits.
    pub(crate) commits_survive: bool,
}

/// Figures and violations of a scenario.
#[derive(Default)]
struct Evaluation {
    processes: usize,
    samples: usize,
    terms: usize,
    worst_overlap_ns: u64,
    /// Overlap where the guarantee is weaker: in mode `connection`, and across a promotion with lost commits.
    lesser_overlap_ns: u64,
    guarded: usize,
    guard_refused: usize,
    stale_accepted: usize,
    stale_refused: usize,
    unknown: usize,
    gaps: Vec<Gap>,
    /// Number of leases that guarantee at most one believer.
    leases: usize,
    led_ns: u64,
    total_ns: u64,
    violations: Vec<String>,
}

/// Read the logs and tables and evaluate them.
pub(crate) async fn evaluate(
    scenario: Scenario,
    workers: &WorkerProcesses,
    tables: &WriteTables,
) -> Result<Outcome, Failed> {
    let mut evaluation = Evaluation::default();
    for (_, path) in logs(workers)? {
        let records = log::read(&path)?;
        let count = |kind: Kind| records.iter().filter(|record| record.kind == kind).count();
        evaluation.processes += 1;
        evaluation.samples += count(Kind::Believes);
        evaluation.guarded += count(Kind::Guarded);
        evaluation.guard_refused += count(Kind::GuardRefused);
        evaluation.stale_refused += count(Kind::FenceRefused);
        evaluation.unknown += count(Kind::Unknown);
    }
    let terms = terms(workers)?;
    evaluation.terms = terms.len();
    evaluation.judge_belief(&scenario, &terms);
    evaluation.judge_tables(&scenario, tables).await?;
    if evaluation.terms < 2 || evaluation.guarded == 0 {
        let figures = format!("{} terms, {} guarded writes", evaluation.terms, evaluation.guarded);
        evaluation.violations.push(format!("too few events for a meaningful result: {figures}"));
    }
    evaluation.violations.extend(workers.unexpected_exits("workers"));
    let (figures, stale_refused, gaps) = (evaluation.figures(), evaluation.stale_refused, evaluation.gaps);
    let outcome = Outcome::new(scenario.name, &scenario.faults, evaluation.violations);
    Ok(Outcome { figures, stale_refused, gaps, ..outcome })
}

impl Evaluation {
    fn judge_belief(&mut self, scenario: &Scenario, terms: &[Term]) {
        let guarantee = |lease: oracles::Lease| scenario.guarantees[usize::from(lease.0)];
        for overlap in overlaps(terms) {
            let forbidden = match guarantee(overlap.lease) {
                Guarantee::AtMostOne => true,
                Guarantee::Fencing => false,
            };
            if forbidden {
                self.worst_overlap_ns = self.worst_overlap_ns.max(overlap.ns);
                let name = &scenario.names[usize::from(overlap.lease.0)];
                let ms = overlap.ns as f64 / 1e6;
                self.violations.push(format!("two leaders of {name} for {ms:.3} ms: {}", overlap.what));
            } else {
                self.lesser_overlap_ns = self.lesser_overlap_ns.max(overlap.ns);
            }
        }
        self.violations.extend(tokens_that_did_not_grow(terms));
        let strict: Vec<Term> =
            terms.iter().filter(|term| guarantee(term.lease) != Guarantee::Fencing).cloned().collect();
        self.gaps = gaps(terms, &scenario.faults, u64::try_from(LEASE.as_nanos()).unwrap_or(0));
        self.leases = oracles::by_lease(&strict).len();
        (self.led_ns, self.total_ns) = led_and_total(&strict, scenario.end_ns);
    }

    async fn judge_tables(&mut self, scenario: &Scenario, tables: &WriteTables) -> Result<(), Failed> {
        let (journal, fenced) = (tables.rows("journal").await?, tables.rows("fenced").await?);
        for (table, rows) in [("journal", &journal), ("fenced", &fenced)] {
            let stale = stale_rows(rows);
            self.stale_accepted += stale.len();
            self.violations.extend(stale.iter().map(|it| format!("stale write accepted in {table}, {it}")));
        }
        if scenario.commits_survive && journal.len() < self.guarded {
            let (there, confirmed) = (journal.len(), self.guarded);
            self.violations
                .push(format!("{confirmed} guarded writes were confirmed, but the table has {there}"));
        }
        Ok(())
    }

    fn figures(&self) -> Vec<(&'static str, String)> {
        let ms = |ns: u64| format!("{:.3}", ns as f64 / 1e6);
        let availability = 100.0 * self.led_ns as f64 / self.total_ns.max(1) as f64;
        let without_s = (self.total_ns - self.led_ns) as f64 / 1e9 / self.leases.max(1) as f64;
        vec![
            ("worker processes", self.processes.to_string()),
            ("belief samples", self.samples.to_string()),
            ("terms", self.terms.to_string()),
            ("belief overlap, ms (must be 0)", ms(self.worst_overlap_ns)),
            ("  with weaker guarantee, ms (see --help)", ms(self.lesser_overlap_ns)),
            ("stale writes accepted (must be 0)", self.stale_accepted.to_string()),
            ("stale writes rejected (must be > 0)", self.stale_refused.to_string()),
            ("guarded writes confirmed", self.guarded.to_string()),
            ("guarded writes rejected", self.guard_refused.to_string()),
            ("writes with unknown outcome", self.unknown.to_string()),
            ("availability, %", format!("{availability:.1}")),
            ("time without a leader, s per slot", format!("{without_s:.1}")),
        ]
    }
}

/// Terms of all processes.
pub(crate) fn terms<J>(workers: &WorkerProcesses<J>) -> Result<Vec<Term>, Failed> {
    let mut terms = Vec::new();
    for (process, (worker, path)) in logs(workers)?.into_iter().enumerate() {
        terms.extend(oracles::terms(process, worker, &log::read(&path)?));
    }
    Ok(terms)
}

/// Logs of all processes, with their worker numbers.
pub(crate) fn logs<J>(workers: &WorkerProcesses<J>) -> Result<Vec<(usize, PathBuf)>, Failed> {
    let mut logs = Vec::new();
    for entry in std::fs::read_dir(workers.directory.path())? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let worker = name.strip_prefix("worker-").and_then(|rest| rest.split('-').next()?.parse().ok());
        logs.extend(worker.map(|worker| (worker, path.clone())));
    }
    Ok(logs)
}
