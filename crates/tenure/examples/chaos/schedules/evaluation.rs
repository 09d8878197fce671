//! Evaluation of a schedule scenario.

use super::history::HistoryReport;
use super::plan::Plan;
use crate::Failed;
use crate::oracles::Injected;
use crate::process::StaleWrites;
use crate::report::Outcome;
use crate::worker_processes::WorkerProcesses;

/// Evaluate a scenario from the tick history, the overdue schedules in `left`, and the logs.
pub(super) fn evaluate(
    scenario: &'static str,
    report: HistoryReport,
    left: Option<String>,
    faults: &[Injected],
    workers: &WorkerProcesses<Plan>,
) -> Result<Outcome, Failed> {
    let StaleWrites { processes, accepted, rejected } = StaleWrites::of(workers)?;
    let figures = vec![
        ("processes", processes.to_string()),
        ("ticks fired", report.fired.to_string()),
        ("ticks skipped by policy", report.skipped.to_string()),
        ("  missed (must be 0)", report.missed.to_string()),
        ("  fired twice (must be 0)", report.doubled.to_string()),
        ("  against the policy (must be 0)", report.policy_violations.to_string()),
        ("non-overlapping runs checked", report.overlap_checks.to_string()),
        ("  overlapping (must be 0)", report.overlapping.to_string()),
        ("old tokens accepted (must be 0)", accepted.to_string()),
        ("old tokens rejected (must be > 0)", rejected.to_string()),
    ];
    let mut violations = report.violations;
    violations.extend(left);
    if accepted > 0 {
        violations.push(format!("{accepted} firings under old tokens were accepted"));
    }
    if rejected == 0 {
        violations.push("no old token was rejected: the tokens were not tested".into());
    }
    if report.overlap_checks < 20 {
        violations
            .push(format!("too few non-overlapping runs for a meaningful result: {}", report.overlap_checks));
    }
    if report.fired < 50 {
        violations.push(format!("too few events for a meaningful result: {} ticks", report.fired));
    }
    violations.extend(workers.unexpected_exits("processes"));
    Ok(Outcome { figures, ..Outcome::new(scenario, faults, violations) })
}
