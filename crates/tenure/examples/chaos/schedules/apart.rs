//! The oracle of runs that may not overlap: what the store tells of each tick and its task, in true time.
//!
//! Under `skip`, a tick fires only if no earlier run was under way when it was decided about, and does nothing only if one was. Under
//! `queue`, all fire, and no two tasks are claimed at the same time. A moment that the clock showed twice proves nothing, and is left
//! out; how much was proved is counted.

use std::collections::BTreeMap;

use tenure::port::{ScheduleView, TaskView, TickState, TickView};
use tenure::schedule::Overlap;

use super::clock::Clock;
use super::history::CALL_MS;

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Apart {
    /// How many decisions and claims could be judged.
    pub(super) judged: usize,
    pub(super) amiss: Vec<String>,
}

/// A run: from when to when, in true time. `None`: it is not over.
struct Run {
    from_ms: i64,
    to_ms: Option<i64>,
}

/// Judges the ticks of one schedule, the oldest first, by their tasks.
pub(super) fn judge(
    view: &ScheduleView,
    ticks: &[TickView],
    tasks: &BTreeMap<i64, TaskView>,
    clock: &Clock,
) -> Apart {
    let mut apart = Apart::default();
    match view.definition.overlap {
        Overlap::Allow => {}
        Overlap::Skip => apart.skips(view, ticks, tasks, clock),
        Overlap::Queue => apart.waits(view, ticks, tasks, clock),
    }
    apart
}

impl Apart {
    fn skips(
        &mut self,
        view: &ScheduleView,
        ticks: &[TickView],
        tasks: &BTreeMap<i64, TaskView>,
        clock: &Clock,
    ) {
        let name = &view.definition.name;
        // From the decision to the end of the task: what counts as under way. `vague`: of the last one that is not known.
        let (mut runs, mut vague): (Vec<Run>, bool) = (Vec::new(), false);
        for tick in ticks.iter().filter(|tick| tick.state != TickState::Skipped) {
            let decided = clock.true_ms(tick.decided_ms);
            if let Some(decided) = decided {
                let under_way = |at_ms: i64| {
                    let over = |run: &Run| run.to_ms.is_some_and(|to_ms| to_ms <= at_ms);
                    runs.iter().any(|run| run.from_ms <= decided && !over(run))
                };
                let wrong = match tick.state {
                    TickState::Fired => under_way(decided).then_some("ran, and an earlier run was under way"),
                    // It was decided a call before it was written.
                    _ if vague => None,
                    _ => (!under_way(decided - CALL_MS)).then_some("did nothing, and nothing was under way"),
                };
                self.amiss.extend(wrong.map(|wrong| format!("{name}: {} {wrong}", tick.at_ms)));
                self.judged += 1;
            }
            if tick.state == TickState::Fired {
                let task = tasks.get(&tick.at_ms);
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

    fn waits(
        &mut self,
        view: &ScheduleView,
        ticks: &[TickView],
        tasks: &BTreeMap<i64, TaskView>,
        clock: &Clock,
    ) {
        let name = &view.definition.name;
        let idle = ticks.iter().filter(|tick| tick.state == TickState::Overlapped).count();
        if idle > 0 {
            self.amiss.push(format!("{name}: {idle} ticks did nothing, and should have waited"));
        }
        let claimed = tasks.values().filter_map(|task| {
            let (from_ms, to_ms) = (task.claimed_at_ms?, task.finished_at_ms?);
            Some((clock.true_ms(from_ms)?, clock.true_ms(to_ms)?))
        });
        let mut claimed: Vec<(i64, i64)> = claimed.collect();
        claimed.sort_unstable();
        for pair in claimed.windows(2) {
            self.judged += 1;
            if pair[1].0 < pair[0].1 {
                self.amiss.push(format!("{name}: two of its tasks ran at once: {pair:?}"));
            }
        }
    }
}
