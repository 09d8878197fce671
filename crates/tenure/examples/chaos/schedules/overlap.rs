//! Oracle of the overlap policy: ticks and their tasks in true time.
//!
//! Under `skip`, a tick fires only if no earlier run was unfinished at the decision, and is recorded as overlapped only
//! if one was. Under `queue`, all ticks fire, and no two tasks are claimed at the same time. An instant that the clock
//! showed twice proves nothing and is ignored; the number of checked decisions is counted.

use std::collections::BTreeMap;

use tenure::port::{ScheduleView, TaskView, TickOutcome, TickView};
use tenure::rules::schedule::OverlapPolicy;

use super::clock::Clock;
use super::history::CALL_MS;

/// Result of the check.
#[derive(Debug, Default)]
pub(super) struct OverlapCheck {
    /// Number of checked decisions and claims.
    pub(super) checked: usize,
    pub(super) violations: Vec<String>,
}

/// A run in true time; `to_ms` is `None` while it is unfinished.
struct Run {
    from_ms: i64,
    to_ms: Option<i64>,
}

/// Check the ticks of one schedule, oldest first, against their tasks.
pub(super) fn evaluate(
    view: &ScheduleView,
    ticks: &[TickView],
    tasks: &BTreeMap<i64, TaskView>,
    clock: &Clock,
) -> OverlapCheck {
    let mut check = OverlapCheck::default();
    match view.definition.overlap_policy {
        OverlapPolicy::Allow => {}
        OverlapPolicy::Skip => check.check_skip(view, ticks, tasks, clock),
        OverlapPolicy::Queue => check.check_queue(view, ticks, tasks, clock),
    }
    check
}

impl OverlapCheck {
    fn check_skip(
        &mut self,
        view: &ScheduleView,
        ticks: &[TickView],
        tasks: &BTreeMap<i64, TaskView>,
        clock: &Clock,
    ) {
        let name = &view.definition.name;
        // A run lasts from the decision to the end of its task. `vague` means that the true times of the last run are
        // unknown.
        let (mut runs, mut vague): (Vec<Run>, bool) = (Vec::new(), false);
        for tick in ticks.iter().filter(|tick| tick.state != TickOutcome::Skipped) {
            let decided = clock.true_ms(tick.decided_at_ms);
            if let Some(decided) = decided {
                let under_way = |at_ms: i64| {
                    let over = |run: &Run| run.to_ms.is_some_and(|to_ms| to_ms <= at_ms);
                    runs.iter().any(|run| run.from_ms <= decided && !over(run))
                };
                let wrong = match tick.state {
                    TickOutcome::Fired => {
                        under_way(decided).then_some("fired while an earlier run was unfinished")
                    }
                    // The decision was made up to one call before it was written.
                    _ if vague => None,
                    _ => (!under_way(decided - CALL_MS))
                        .then_some("was recorded as overlapped without an unfinished run"),
                };
                self.violations.extend(wrong.map(|wrong| format!("{name}: {} {wrong}", tick.tick_at_ms)));
                self.checked += 1;
            }
            if tick.state == TickOutcome::Fired {
                let task = tasks.get(&tick.tick_at_ms);
                let to_ms = task.map(|task| task.finished_at_ms.map(|at_ms| clock.true_ms(at_ms)));
                let run = match (decided, to_ms) {
                    (Some(from_ms), Some(None)) => Some(Run { from_ms, to_ms: None }),
                    (Some(from_ms), Some(Some(Some(to_ms)))) => Some(Run { from_ms, to_ms: Some(to_ms) }),
                    _ => None,
                };
                vague = run.is_none();
                runs.extend(run);
            }
        }
    }

    fn check_queue(
        &mut self,
        view: &ScheduleView,
        ticks: &[TickView],
        tasks: &BTreeMap<i64, TaskView>,
        clock: &Clock,
    ) {
        let name = &view.definition.name;
        let idle = ticks.iter().filter(|tick| tick.state == TickOutcome::Overlapped).count();
        if idle > 0 {
            self.violations.push(format!("{name}: {idle} ticks are overlapped but should have been queued"));
        }
        let claimed = tasks.values().filter_map(|task| {
            let (from_ms, to_ms) = (task.claimed_at_ms?, task.finished_at_ms?);
            Some((clock.true_ms(from_ms)?, clock.true_ms(to_ms)?))
        });
        let mut claimed: Vec<(i64, i64)> = claimed.collect();
        claimed.sort_unstable();
        for pair in claimed.windows(2) {
            self.checked += 1;
            if pair[1].0 < pair[0].1 {
                self.violations.push(format!("{name}: two tasks ran at once: {pair:?}"));
            }
        }
    }
}
