//! Lateness of ticks at a steady rate.

use std::time::Duration;

use serde::Serialize;
use tenure::port::{ScheduleKey, TickFilter, TickOutcome};
use tenure::rules::schedule::{MisfirePolicy, ScheduleDefinition, ScheduleExpression};

use super::{BenchSchedules, helper};
use crate::BenchError;

/// Warm-up, because some schedules are created while others already fire.
const WARM_MS: i64 = 2_000;

/// Maximum of the 99th percentile in milliseconds.
const P99_LIMIT_MS: f64 = 50.0;

/// Lateness of ticks.
#[derive(Clone, Debug, Serialize)]
pub struct Lateness {
    /// Ticks due per second.
    pub per_second: u32,
    /// Number of evaluated ticks.
    pub ticks: u64,
    /// Number of skipped ticks; must be 0.
    pub skipped: u64,
    /// Median.
    pub p50_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Maximum.
    pub max_ms: f64,
    /// Maximum for the 99th percentile.
    pub p99_limit_ms: f64,
}

/// Measure schedules that fire once a second, spread over the second by jitter.
pub(super) async fn lateness(
    bench_schedules: &BenchSchedules,
    rate: u32,
    window: Duration,
) -> Result<Lateness, BenchError> {
    let when: ScheduleExpression = "every 1s".parse().map_err(helper)?;
    let each = |definition: ScheduleDefinition| ScheduleDefinition {
        expression: when.clone(),
        jitter_ms: 999,
        misfire_policy: MisfirePolicy::FireAll { cap: 100 },
        ..definition
    };
    bench_schedules.make("steady", rate.into(), each).await?;
    let from_ms = bench_schedules.store_ms().await? + WARM_MS;
    tokio::time::sleep(window + Duration::from_millis(WARM_MS.unsigned_abs())).await;
    let to_ms = bench_schedules.store_ms().await?;
    let (mut late, mut skipped) = (Vec::new(), 0);
    for number in 0..rate {
        let name = format!("steady-{number}").parse().map_err(tenure::Error::from)?;
        let key = ScheduleKey::new(bench_schedules.namespace.clone(), name);
        let limit = u32::try_from(window.as_secs() + 60).unwrap_or(u32::MAX);
        for tick in bench_schedules.store().ticks(&TickFilter { key, before_ms: None, limit }).await? {
            if !(from_ms..to_ms - 1_000).contains(&tick.tick_at_ms) {
                continue;
            }
            match tick.state {
                TickOutcome::Fired => late.push(tick.lateness_ms.max(0)),
                TickOutcome::Skipped | TickOutcome::Overlapped => skipped += tick.tick_count,
            }
        }
    }
    late.sort_unstable();
    let at = |part: f64| {
        late.get((late.len() as f64 * part) as usize).or(late.last()).map_or(f64::NAN, |ms| *ms as f64)
    };
    Ok(Lateness {
        per_second: rate,
        ticks: late.len() as u64,
        skipped,
        p50_ms: at(0.5),
        p99_ms: at(0.99),
        max_ms: at(1.0),
        p99_limit_ms: P99_LIMIT_MS,
    })
}
