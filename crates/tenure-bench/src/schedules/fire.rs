//! Many schedules due in the same second: time until all have fired.

use std::time::Duration;

use tenure::rules::schedule::ScheduleDefinition;

use super::baseline::FireBaseline;
use super::{BenchSchedules, SchedulesBench, helper, median};
use crate::BenchError;
use crate::baseline::BenchDirectory;
use crate::queues::ComparisonRow;

/// Poll interval.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// How long before their tick the schedules are created: initial value, doubled up to the maximum if
/// creation takes longer.
const AHEAD_MS: (i64, i64) = (10_000, 600_000);

pub(super) async fn many(
    bench_schedules: &BenchSchedules,
    bench: &SchedulesBench,
    directory: &BenchDirectory,
    progress: &dyn Fn(&str),
) -> Result<ComparisonRow, BenchError> {
    let mut baseline = FireBaseline::open(bench.postgres.as_deref(), directory).await?;
    let (mut baseline_value, mut fired) = (Vec::new(), Vec::new());
    let mut ahead_ms = AHEAD_MS.0;
    for round in 1..=bench.repeats.max(1) {
        progress(&format!(
            "{} of {} schedules due in the same second, round {round}",
            bench.due,
            bench.schedules + bench.due
        ));
        let at_ms = create_ahead(bench_schedules, &format!("due{round}"), bench.due, &mut ahead_ms).await?;
        baseline_value.push(baseline.insert(at_ms, bench.due).await?);
        fired.push(until_fired(bench_schedules, at_ms).await?);
    }
    let what = format!("firing {} of {} schedules", bench.due, bench.schedules + bench.due);
    let rows = format!("plain insert of {} rows", 2 * bench.due);
    Ok(ComparisonRow::new(what, median(fired), rows, median(baseline_value), "ms").at_most(3.0))
}

/// Create schedules with the same future tick; returns the tick.
async fn create_ahead(
    bench_schedules: &BenchSchedules,
    name: &str,
    count: u64,
    ahead_ms: &mut i64,
) -> Result<i64, BenchError> {
    loop {
        let at_ms = (bench_schedules.store_ms().await? + *ahead_ms) / 1_000 * 1_000;
        let name = format!("{name}-{at_ms}");
        bench_schedules
            .make(&name, count, |definition| ScheduleDefinition { start_at_ms: Some(at_ms), ..definition })
            .await?;
        if bench_schedules.store_ms().await? + 1_000 < at_ms {
            return Ok(at_ms);
        }
        *ahead_ms *= 2;
        if *ahead_ms > AHEAD_MS.1 {
            return Err(helper(format!("cannot create {count} schedules within ten minutes; use fewer")));
        }
    }
}

/// Milliseconds from a tick until no schedule is due, on the store's clock.
async fn until_fired(bench_schedules: &BenchSchedules, at_ms: i64) -> Result<f64, BenchError> {
    loop {
        let due = bench_schedules.store().due_schedules(1).await?;
        if due.store_now_at_ms >= at_ms && due.schedules.is_empty() {
            return Ok((due.store_now_at_ms - at_ms) as f64);
        }
        let rest = u64::try_from(at_ms - due.store_now_at_ms - 50).unwrap_or(0);
        tokio::time::sleep(POLL_INTERVAL.max(Duration::from_millis(rest))).await;
    }
}
