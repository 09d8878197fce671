//! What the processes of this stage are told, and the schedules that they fire.

use serde::{Deserialize, Serialize};
use tenure::ScheduleBuilder;
use tenure::schedule::{Definition, Overlap};

use super::history::{QUEUE, RUNS, TOPIC};
use crate::Failed;
use crate::process;

/// What a process does: all fire.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Fires;

impl process::Role for Fires {
    const WORD: &'static str = "schedules-process";
}

/// What a process is told to do.
pub(crate) type Plan = process::Plan<Fires>;

/// What a process is called.
pub(super) fn name_of(hand: usize) -> String {
    format!("fires-{hand}")
}

/// Which process is called so.
pub(super) fn hand_of(name: &str) -> Option<usize> {
    name.strip_prefix("fires-")?.parse().ok()
}

/// Every policy for missed ticks and for runs, every sort of times, both targets that a store has by itself.
pub(super) fn definitions() -> Result<Vec<Definition>, Failed> {
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
        let schedule = ScheduleBuilder::new(name, when).zone(zone).misfire(misfire.parse()?);
        let schedule = if task { schedule.task(QUEUE, "tick") } else { schedule.event(TOPIC) };
        Ok(schedule.build()?)
    });
    let apart = [("skip", "fire_all(10000)", Overlap::Skip), ("queue", "fire_once", Overlap::Queue)];
    let apart = apart.into_iter().map(|(name, misfire, overlap)| {
        let schedule = ScheduleBuilder::new(format!("apart-{name}"), "every 500ms").misfire(misfire.parse()?);
        Ok(schedule.overlap(overlap).task(RUNS, "run").build()?)
    });
    built.chain(apart).collect()
}
