//! Evaluation of an event scenario.

use super::chains::ChainReport;
use super::plan::Plan;
use crate::Failed;
use crate::oracles::Injected;
use crate::process::StaleWrites;
use crate::report::Outcome;
use crate::worker_processes::WorkerProcesses;

/// Evaluate a scenario from the chain comparison and the logs.
pub(super) fn evaluate(
    scenario: &'static str,
    report: ChainReport,
    faults: &[Injected],
    workers: &WorkerProcesses<Plan>,
) -> Result<Outcome, Failed> {
    let StaleWrites { processes, accepted, rejected } = StaleWrites::of(workers)?;
    let mut violations = report.violations;
    if accepted > 0 {
        violations.push(format!("{accepted} stale commits were accepted"));
    }
    if rejected == 0 {
        violations.push("no stale commit was rejected: the tokens were not tested".into());
    }
    if report.published < 200 {
        violations.push(format!("too few events for a meaningful result: {} events", report.published));
    }
    violations.extend(workers.unexpected_exits("processes"));
    let figures = vec![
        ("processes", processes.to_string()),
        ("events committed", report.published.to_string()),
        ("  lost (must be 0)", report.lost.to_string()),
        ("  reordered (must be 0)", report.reordered.to_string()),
        ("  processed twice (must be 0)", report.doubled.to_string()),
        ("stale commits accepted (must be 0)", accepted.to_string()),
        ("stale commits rejected (must be > 0)", rejected.to_string()),
    ];
    Ok(Outcome { figures, ..Outcome::new(scenario, faults, violations) })
}
