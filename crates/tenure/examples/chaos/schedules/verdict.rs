//! From what was found and the logs to what is told of one stage.

use super::history::Judged;
use super::plan::Plan;
use crate::Failed;
use crate::crew::Crew;
use crate::oracles::Injected;
use crate::process::Heard;
use crate::report::Outcome;

/// What came of a stage: what the history says, what was `left` undone, and what the processes wrote down.
pub(super) fn conclude(
    stage: &'static str,
    judged: Judged,
    left: Option<String>,
    faults: &[Injected],
    crew: &Crew<Plan>,
) -> Result<Outcome, Failed> {
    let Heard { processes, accepted, refused } = Heard::of(crew)?;
    let figures = vec![
        ("processes", processes.to_string()),
        ("ticks fired", judged.fired.to_string()),
        ("ticks skipped by policy", judged.skipped.to_string()),
        ("  missed (must be 0)", judged.missed.to_string()),
        ("  doubled (must be 0)", judged.doubled.to_string()),
        ("  not as the policy says (must be 0)", judged.astray.to_string()),
        ("runs that may not overlap", judged.apart.to_string()),
        ("  not kept apart (must be 0)", judged.overlapping.to_string()),
        ("old tokens accepted (must be 0)", accepted.to_string()),
        ("old tokens refused (must be > 0)", refused.to_string()),
    ];
    let mut violations = judged.amiss;
    violations.extend(left);
    if accepted > 0 {
        violations.push(format!("{accepted} firings under old tokens were accepted"));
    }
    if refused == 0 {
        violations.push("no old token was ever refused: they were not put to the test".into());
    }
    if judged.apart < 20 {
        violations.push(format!("too few runs were kept apart to prove anything: {}", judged.apart));
    }
    if judged.fired < 50 {
        violations.push(format!("too little happened to prove anything: {} ticks", judged.fired));
    }
    violations.extend(crew.fallen("processes"));
    Ok(Outcome { figures, ..Outcome::new(stage, faults, violations) })
}
