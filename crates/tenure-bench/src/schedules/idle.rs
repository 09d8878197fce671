//! Cost of a scheduler while nothing is due.

use std::time::Duration;

use serde::Serialize;

use crate::BenchError;
use crate::holding_cost::{cpu, transactions};

/// Maximum delay of the statistics of PostgreSQL sessions.
const STATISTICS_DELAY: Duration = Duration::from_secs(12);

/// Maximum number of transactions during [`STATISTICS_DELAY`] for earlier activity to count as over.
const REMAINING_ACTIVITY_MAX: f64 = 500.0;

/// Maximum number of waits; activity beyond them counts as cost.
const SETTLE_MAX: u32 = 6;

/// Cost of a scheduler while nothing is due.
#[derive(Clone, Debug, Serialize)]
pub struct IdleCost {
    /// Number of schedules.
    pub schedules: u64,
    /// Transactions per second as counted by the server; `None` for stores without such a counter.
    pub statements_per_second: Option<f64>,
    /// Percent of one core, in this process.
    pub cpu_percent: f64,
}

/// Measure the scheduler of this process for a while.
pub(super) async fn cost(
    counted: Option<&str>,
    schedules: u64,
    window: Duration,
) -> Result<IdleCost, BenchError> {
    settle(counted).await?;
    let before = (transactions(counted).await?, cpu());
    tokio::time::sleep(window).await;
    let after = (transactions(counted).await?, cpu());
    let seconds = window.as_secs_f64();
    // Each reading makes one transaction itself.
    let statements = before.0.zip(after.0).map(|(before, after)| (after - before - 1.0).max(0.0) / seconds);
    let cpu_percent = (after.1 - before.1).as_secs_f64() / seconds * 100.0;
    Ok(IdleCost { schedules, statements_per_second: statements, cpu_percent })
}

/// Wait until earlier activity is over and counted: PostgreSQL sessions report their statistics only after ten seconds
/// of idling, and later on a busy machine. Continuous activity is counted as cost.
async fn settle(counted: Option<&str>) -> Result<(), BenchError> {
    let mut before = transactions(counted).await?;
    for _ in 0..SETTLE_MAX {
        tokio::time::sleep(if counted.is_some() { STATISTICS_DELAY } else { Duration::from_secs(2) }).await;
        let now = transactions(counted).await?;
        let grown = before.zip(now).map_or(0.0, |(before, now)| now - before);
        if grown <= REMAINING_ACTIVITY_MAX {
            break;
        }
        before = now;
    }
    Ok(())
}
