//! From logs and tables to a verdict on one stage.

use std::path::PathBuf;

use crate::Failed;
use crate::crew::Crew;
use crate::ledger::Ledger;
use crate::log::{self, Kind};
use crate::oracles::{
    self, Gap, Injected, Term, gaps, led_and_total, overlaps, stale_rows, tokens_that_did_not_grow,
};
use crate::report::Outcome;
use crate::servers::LEASE;

/// What an election promises, and so what it is judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Promise {
    /// At most one process believes, per slot, at any moment.
    AtMostOne,
    /// Two may believe for a while; tokens and fences still hold.
    Fencing,
}

/// A stage that has ended.
pub(crate) struct Stage {
    pub(crate) name: &'static str,
    /// The elections' names, by index.
    pub(crate) names: Vec<String>,
    pub(crate) promises: Vec<Promise>,
    pub(crate) faults: Vec<Injected>,
    pub(crate) end_ns: u64,
    /// Whether what was confirmed must be there: not after a failover that lost commits.
    pub(crate) commits_survive: bool,
}

/// What came of a stage.
#[derive(Default)]
struct Verdict {
    processes: usize,
    samples: usize,
    terms: usize,
    worst_overlap_ns: u64,
    /// Where less is promised: in mode `connection`, and over a promotion that lost commits.
    lesser_overlap_ns: u64,
    guarded: usize,
    guard_refused: usize,
    stale_accepted: usize,
    stale_refused: usize,
    unknown: usize,
    gaps: Vec<Gap>,
    /// How many leases there were that promise one believer.
    leases: usize,
    led_ns: u64,
    total_ns: u64,
    violations: Vec<String>,
}

/// Reads everything and judges it.
pub(crate) async fn judge(stage: Stage, crew: &Crew, ledger: &Ledger) -> Result<Outcome, Failed> {
    let mut verdict = Verdict::default();
    for (_, path) in logs(crew)? {
        let records = log::read(&path)?;
        let count = |kind: Kind| records.iter().filter(|record| record.kind == kind).count();
        verdict.processes += 1;
        verdict.samples += count(Kind::Believes);
        verdict.guarded += count(Kind::Guarded);
        verdict.guard_refused += count(Kind::GuardRefused);
        verdict.stale_refused += count(Kind::FenceRefused);
        verdict.unknown += count(Kind::Unknown);
    }
    let terms = terms(crew)?;
    verdict.terms = terms.len();
    verdict.judge_belief(&stage, &terms);
    verdict.judge_tables(&stage, ledger).await?;
    if verdict.terms < 2 || verdict.guarded == 0 {
        let figures = format!("{} terms, {} guarded writes", verdict.terms, verdict.guarded);
        verdict.violations.push(format!("too little happened to prove anything: {figures}"));
    }
    verdict.violations.extend(crew.fallen("workers"));
    let (figures, stale_refused, gaps) = (verdict.figures(), verdict.stale_refused, verdict.gaps);
    let outcome = Outcome::new(stage.name, &stage.faults, verdict.violations);
    Ok(Outcome { figures, stale_refused, gaps, ..outcome })
}

impl Verdict {
    fn judge_belief(&mut self, stage: &Stage, terms: &[Term]) {
        let promise = |lease: oracles::Lease| stage.promises[usize::from(lease.0)];
        for overlap in overlaps(terms) {
            let forbidden = match promise(overlap.lease) {
                Promise::AtMostOne => true,
                Promise::Fencing => false,
            };
            if forbidden {
                self.worst_overlap_ns = self.worst_overlap_ns.max(overlap.ns);
                let name = &stage.names[usize::from(overlap.lease.0)];
                let ms = overlap.ns as f64 / 1e6;
                self.violations.push(format!("two leaders of {name} for {ms:.3} ms: {}", overlap.what));
            } else {
                self.lesser_overlap_ns = self.lesser_overlap_ns.max(overlap.ns);
            }
        }
        self.violations.extend(tokens_that_did_not_grow(terms));
        let kept: Vec<Term> =
            terms.iter().filter(|term| promise(term.lease) != Promise::Fencing).cloned().collect();
        self.gaps = gaps(terms, &stage.faults, u64::try_from(LEASE.as_nanos()).unwrap_or(0));
        self.leases = oracles::by_lease(&kept).len();
        (self.led_ns, self.total_ns) = led_and_total(&kept, stage.end_ns);
    }

    async fn judge_tables(&mut self, stage: &Stage, ledger: &Ledger) -> Result<(), Failed> {
        let (journal, fenced) = (ledger.rows("journal").await?, ledger.rows("fenced").await?);
        for (table, rows) in [("journal", &journal), ("fenced", &fenced)] {
            let stale = stale_rows(rows);
            self.stale_accepted += stale.len();
            self.violations.extend(stale.iter().map(|it| format!("stale write accepted in {table}, {it}")));
        }
        if stage.commits_survive && journal.len() < self.guarded {
            let (there, told) = (journal.len(), self.guarded);
            self.violations.push(format!("{told} guarded writes were confirmed and {there} are there"));
        }
        Ok(())
    }

    fn figures(&self) -> Vec<(&'static str, String)> {
        let ms = |ns: u64| format!("{:.3}", ns as f64 / 1e6);
        let availability = 100.0 * self.led_ns as f64 / self.total_ns.max(1) as f64;
        let without_s = (self.total_ns - self.led_ns) as f64 / 1e9 / self.leases.max(1) as f64;
        vec![
            ("worker processes", self.processes.to_string()),
            ("samples of belief", self.samples.to_string()),
            ("terms", self.terms.to_string()),
            ("overlap of belief, ms (must be 0)", ms(self.worst_overlap_ns)),
            ("  where less is promised, ms (see --help)", ms(self.lesser_overlap_ns)),
            ("stale writes accepted (must be 0)", self.stale_accepted.to_string()),
            ("stale writes refused (must be > 0)", self.stale_refused.to_string()),
            ("guarded writes confirmed", self.guarded.to_string()),
            ("guarded writes refused", self.guard_refused.to_string()),
            ("writes of unknown outcome", self.unknown.to_string()),
            ("availability, %", format!("{availability:.1}")),
            ("time without a leader, s per slot", format!("{without_s:.1}")),
        ]
    }
}

/// The terms of all processes there were.
pub(crate) fn terms<J>(crew: &Crew<J>) -> Result<Vec<Term>, Failed> {
    let mut terms = Vec::new();
    for (process, (worker, path)) in logs(crew)?.into_iter().enumerate() {
        terms.extend(oracles::terms(process, worker, &log::read(&path)?));
    }
    Ok(terms)
}

/// The logs of all processes there were, with their worker's number.
pub(crate) fn logs<J>(crew: &Crew<J>) -> Result<Vec<(usize, PathBuf)>, Failed> {
    let mut logs = Vec::new();
    for entry in std::fs::read_dir(crew.workplace.path())? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let worker = name.strip_prefix("worker-").and_then(|rest| rest.split('-').next()?.parse().ok());
        logs.extend(worker.map(|worker| (worker, path.clone())));
    }
    Ok(logs)
}
