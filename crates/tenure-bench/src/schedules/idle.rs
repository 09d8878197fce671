//! Nothing is due: what does waiting cost?

use std::time::Duration;

use serde::Serialize;

use crate::BenchError;
use crate::held::{cpu, transactions};

/// How long sessions may keep to themselves what they did.
const REPORTED: Duration = Duration::from_secs(12);

/// How many transactions in that time are no rest of what was done before.
const STRAGGLERS: f64 = 500.0;

/// How often that is waited for at most: what does not end by then is what it costs.
const SETTLE_MAX: u32 = 6;

/// What a scheduler costs while nothing is due.
#[derive(Clone, Debug, Serialize)]
pub struct Idle {
    /// How many schedules there are.
    pub schedules: u64,
    /// Transactions per second, as the server counts them; `None` where nobody counts.
    pub statements_per_second: Option<f64>,
    /// Of one core, in this process.
    pub cpu_percent: f64,
}

/// Watches the scheduler of this process for a while.
pub(super) async fn cost(
    counted: Option<&str>,
    schedules: u64,
    window: Duration,
) -> Result<Idle, BenchError> {
    settle(counted).await?;
    let before = (transactions(counted).await?, cpu());
    tokio::time::sleep(window).await;
    let after = (transactions(counted).await?, cpu());
    let seconds = window.as_secs_f64();
    // Our own counting makes one transaction per reading.
    let statements = before.0.zip(after.0).map(|(before, after)| (after - before - 1.0).max(0.0) / seconds);
    let cpu_percent = (after.1 - before.1).as_secs_f64() / seconds * 100.0;
    Ok(Idle { schedules, statements_per_second: statements, cpu_percent })
}

/// Waits until whatever was done before is over, and counted: sessions of a server report what they did only when they have been idle
/// for ten seconds, and on a busy machine later. What goes on by itself is counted all the same.
async fn settle(counted: Option<&str>) -> Result<(), BenchError> {
    let mut before = transactions(counted).await?;
    for _ in 0..SETTLE_MAX {
        tokio::time::sleep(if counted.is_some() { REPORTED } else { Duration::from_secs(2) }).await;
        let now = transactions(counted).await?;
        let grown = before.zip(now).map_or(0.0, |(before, now)| now - before);
        if grown <= STRAGGLERS {
            break;
        }
        before = now;
    }
    Ok(())
}
