//! From logs and tables to a verdict on one stage.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::Failed;
use crate::crew::Crew;
use crate::ledger::Ledger;
use crate::log::{self, Kind};
use crate::oracles::{
    self, Gap, Injected, Term, gaps, led_and_total, overlaps, stale_rows, tokens_that_did_not_grow,
};
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
pub(crate) struct Verdict {
    pub(crate) stage: &'static str,
    pub(crate) faults: BTreeMap<&'static str, usize>,
    pub(crate) processes: usize,
    pub(crate) samples: usize,
    pub(crate) terms: usize,
    pub(crate) worst_overlap_ns: u64,
    /// Where less is promised: in mode `connection`, and over a promotion that lost commits.
    pub(crate) lesser_overlap_ns: u64,
    pub(crate) guarded: usize,
    pub(crate) guard_refused: usize,
    pub(crate) stale_accepted: usize,
    pub(crate) stale_refused: usize,
    pub(crate) unknown: usize,
    pub(crate) gaps: Vec<Gap>,
    /// How many leases there were that promise one believer.
    pub(crate) leases: usize,
    pub(crate) led_ns: u64,
    pub(crate) total_ns: u64,
    pub(crate) violations: Vec<String>,
}

/// Reads everything and judges it.
pub(crate) async fn judge(stage: Stage, crew: &Crew, ledger: &Ledger) -> Result<Verdict, Failed> {
    let mut verdict = Verdict { stage: stage.name, ..Verdict::default() };
    for fault in &stage.faults {
        *verdict.faults.entry(fault.name).or_default() += 1;
    }
    let mut terms = Vec::new();
    for (process, (worker, path)) in logs(crew)?.into_iter().enumerate() {
        let records = log::read(&path)?;
        let count = |kind: Kind| records.iter().filter(|record| record.kind == kind).count();
        verdict.processes += 1;
        verdict.samples += count(Kind::Believes);
        verdict.guarded += count(Kind::Guarded);
        verdict.guard_refused += count(Kind::GuardRefused);
        verdict.stale_refused += count(Kind::FenceRefused);
        verdict.unknown += count(Kind::Unknown);
        terms.extend(oracles::terms(process, worker, &records));
    }
    verdict.terms = terms.len();
    verdict.judge_belief(&stage, &terms);
    verdict.judge_tables(&stage, ledger).await?;
    if verdict.terms < 2 || verdict.guarded == 0 {
        let figures = format!("{} terms, {} guarded writes", verdict.terms, verdict.guarded);
        verdict.violations.push(format!("too little happened to prove anything: {figures}"));
    }
    if crew.fallen > 0 {
        verdict.violations.push(format!("{} workers ended without having been told to", crew.fallen));
    }
    for violation in &mut verdict.violations {
        *violation = format!("{}: {violation}", stage.name);
    }
    Ok(verdict)
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
