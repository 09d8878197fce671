//! The processes and the schedules of the schedule scenarios.

use serde::{Deserialize, Serialize};
use tenure::ScheduleBuilder;
use tenure::rules::schedule::{OverlapPolicy, ScheduleDefinition};

use super::history::{QUEUE, RUNS, TOPIC};
use crate::Failed;
use crate::process;

/// Role of a process: all of them run a scheduler.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Fires;

impl process::Role for Fires {
    const ARGUMENT: &'static str = "schedules-process";
}

/// Instructions of a process.
pub(crate) type Plan = process::Plan<Fires>;

/// Name of a process.
pub(super) fn name_of(process: usize) -> String {
    format!("fires-{process}")
}

/// Process slot of a name.
pub(super) fn process_of(name: &str) -> Option<usize> {
    name.strip_prefix("fires-")?.parse().ok()
}

/// Schedules with all misfire and overlap policies, all kinds of expressions, and both targets that a store serves
/// itself.
pub(super) fn definitions() -> Result<Vec<ScheduleDefinition>, Failed> {
    let all = [
        ("all-tasks", "every 1s", "UTC", "fire_all(10000)", true),
        ("all-events", "every 2s", "UTC", "fire_all(10000)", false),
        ("all-cron", "*/3 * * * * *", "Europe/Berlin", "fire_all(10000)", false),
        ("all-odd", "every 700ms from start", "UTC", "fire_all(10000)", true),
        ("capped", "every 1s", "UTC", "fire_all(5)", false),
        ("once", "every 1s", "UTC", "fire_once", true),
        ("skips", "every 1s", "UTC", "skip", false),
        ("within", "every 1s", "UTC", "within(10s)", true),
    ];
    let built = all.into_iter().map(|(name, when, zone, misfire, task)| {
        let schedule = ScheduleBuilder::new(name, when).time_zone(zone).misfire_policy(misfire.parse()?);
        let schedule = if task { schedule.task(QUEUE, "tick") } else { schedule.event(TOPIC) };
        Ok(schedule.build()?)
    });
    let overlap_checks =
        [("skip", "fire_all(10000)", OverlapPolicy::Skip), ("queue", "fire_once", OverlapPolicy::Queue)];
    let overlap_checks = overlap_checks.into_iter().map(|(name, misfire, overlap)| {
        let schedule = ScheduleBuilder::new(format!("no-overlap-{name}"), "every 500ms")
            .misfire_policy(misfire.parse()?);
        Ok(schedule.overlap_policy(overlap).task(RUNS, "run").build()?)
    });
    built.chain(overlap_checks).collect()
}
