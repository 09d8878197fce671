//! From the books and the logs to what is told of one stage.

use super::books::Judged;
use super::plan::Plan;
use crate::Failed;
use crate::crew::Crew;
use crate::oracles::Injected;
use crate::process::Heard;
use crate::report::Outcome;

/// What came of a stage: what the books say, and what the processes wrote down.
pub(super) fn conclude(
    stage: &'static str,
    judged: Judged,
    faults: &[Injected],
    crew: &Crew<Plan>,
) -> Result<Outcome, Failed> {
    let Heard { processes, accepted, refused } = Heard::of(crew)?;
    let mut violations = judged.amiss;
    if accepted > 0 {
        violations.push(format!("{accepted} stale commits were accepted"));
    }
    if refused == 0 {
        violations.push("no stale commit was ever refused: the tokens were not put to the test".into());
    }
    if judged.published < 200 {
        violations.push(format!("too little happened to prove anything: {} events", judged.published));
    }
    violations.extend(crew.fallen("processes"));
    let figures = vec![
        ("processes", processes.to_string()),
        ("events committed", judged.published.to_string()),
        ("  lost (must be 0)", judged.lost.to_string()),
        ("  reordered (must be 0)", judged.reordered.to_string()),
        ("  with doubled effects (must be 0)", judged.doubled.to_string()),
        ("stale commits accepted (must be 0)", accepted.to_string()),
        ("stale commits refused (must be > 0)", refused.to_string()),
    ];
    Ok(Outcome { figures, ..Outcome::new(stage, faults, violations) })
}
