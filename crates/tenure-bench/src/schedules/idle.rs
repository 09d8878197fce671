//! Nothing is due: what does waiting cost?

use std::time::Duration;

use serde::Serialize;

use crate::BenchError;
use crate::held::{cpu, transactions};

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
    // Whatever was done before is over. Sessions of a server report what they did only when they have been idle for ten seconds.
    tokio::time::sleep(Duration::from_secs(if counted.is_some() { 12 } else { 2 })).await;
    let before = (transactions(counted).await?, cpu());
    tokio::time::sleep(window).await;
    let after = (transactions(counted).await?, cpu());
    let seconds = window.as_secs_f64();
    // Our own counting makes one transaction per reading.
    let statements = before.0.zip(after.0).map(|(before, after)| (after - before - 1.0).max(0.0) / seconds);
    let cpu_percent = (after.1 - before.1).as_secs_f64() / seconds * 100.0;
    Ok(Idle { schedules, statements_per_second: statements, cpu_percent })
}
