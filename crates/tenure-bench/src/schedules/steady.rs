//! A steady rate: how late is each tick?

use std::time::Duration;

use serde::Serialize;
use tenure::port::{ScheduleKey, TickFilter, TickState};
use tenure::schedule::{Definition, Misfire, When};

use super::{Yard, helper};
use crate::BenchError;

/// What makes a rate unsteady is over: those that were made while others fired.
const WARM_MS: i64 = 2_000;

/// What the slowest of a hundred must stay below, in milliseconds.
const AIM_MS: f64 = 50.0;

/// How late ticks were.
#[derive(Clone, Debug, Serialize)]
pub struct Lateness {
    /// How many ticks were due per second.
    pub per_second: u32,
    /// How many were looked at.
    pub ticks: u64,
    /// How many had been skipped: must be 0.
    pub skipped: u64,
    /// Half of them were not later.
    pub p50_ms: f64,
    /// 99 of 100 were not later.
    pub p99_ms: f64,
    /// The latest.
    pub most_ms: f64,
    /// What the 99 of 100 must stay below.
    pub aim_ms: f64,
}

/// So many schedules once a second, each spread over the second by its jitter.
pub(super) async fn lateness(yard: &Yard, rate: u32, window: Duration) -> Result<Lateness, BenchError> {
    let when: When = "every 1s".parse().map_err(helper)?;
    let each = |definition: Definition| Definition {
        when: when.clone(),
        jitter_ms: 999,
        misfire: Misfire::FireAll { cap: 100 },
        ..definition
    };
    yard.make("steady", rate.into(), each).await?;
    let from_ms = yard.store_ms().await? + WARM_MS;
    tokio::time::sleep(window + Duration::from_millis(WARM_MS.unsigned_abs())).await;
    let to_ms = yard.store_ms().await?;
    let (mut late, mut skipped) = (Vec::new(), 0);
    for number in 0..rate {
        let name = format!("steady-{number}").parse().map_err(tenure::Error::from)?;
        let key = ScheduleKey::new(yard.namespace.clone(), name);
        let limit = u32::try_from(window.as_secs() + 60).unwrap_or(u32::MAX);
        for tick in yard.store().ticks(&TickFilter { key, before_ms: None, limit }).await? {
            if !(from_ms..to_ms - 1_000).contains(&tick.at_ms) {
                continue;
            }
            match tick.state {
                TickState::Fired => late.push(tick.late_ms.max(0)),
                TickState::Skipped | TickState::Overlapped => skipped += tick.count,
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
        most_ms: at(1.0),
        aim_ms: AIM_MS,
    })
}
