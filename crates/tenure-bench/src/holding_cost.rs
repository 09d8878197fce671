//! Cost of holding elections.
#![allow(unsafe_code)]

use std::time::Duration;

use sqlx::Connection;
use sqlx::postgres::PgConnection;
use tenure::Tenure;

use crate::{BenchError, HoldingCost};

/// Hold elections in this process and measure the cost for a while.
pub(crate) async fn cost(
    store: &'static str,
    url: &str,
    counted: Option<&str>,
    held: u32,
    window: Duration,
) -> Result<HoldingCost, BenchError> {
    let tenure = Tenure::builder().url(url).name("holder").open().await?;
    let mut electors = Vec::new();
    let run = std::process::id();
    for number in 0..held {
        let name = format!("held-{run}-{held}-{number}");
        electors.push(tenure.elector(name).namespace(crate::NAMESPACE).start().await?);
    }
    for elector in &electors {
        drop(elector.elected().await?);
    }
    // Wait until the effects of becoming leader are over. PostgreSQL sessions report their statistics only after ten
    // seconds of idling, including those of the listener for ten thousand notifications.
    tokio::time::sleep(Duration::from_secs(if counted.is_some() { 30 } else { 3 })).await;
    let before = (transactions(counted).await?, cpu());
    tokio::time::sleep(window).await;
    let after = (transactions(counted).await?, cpu());
    let seconds = window.as_secs_f64();
    // Each reading makes one transaction itself.
    let statements = before.0.zip(after.0).map(|(before, after)| (after - before - 1.0).max(0.0) / seconds);
    let cpu_percent = (after.1 - before.1).as_secs_f64() / seconds * 100.0;
    drop(electors);
    tenure.close().await?;
    Ok(HoldingCost { store, elections: held, statements_per_second: statements, cpu_percent })
}

/// Number of transactions that the server has counted in this database.
pub(crate) async fn transactions(url: Option<&str>) -> Result<Option<f64>, BenchError> {
    let Some(url) = url else { return Ok(None) };
    let mut connection = PgConnection::connect(url).await?;
    // Sessions report their statistics with a delay.
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let sql = "SELECT (xact_commit + xact_rollback)::float8 FROM pg_stat_database WHERE datname = current_database()";
    let count: f64 = sqlx::query_scalar(sql).fetch_one(&mut connection).await?;
    connection.close().await?;
    Ok(Some(count))
}

/// CPU time of this process so far.
pub(crate) fn cpu() -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills the given structure.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let of = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    of(usage.ru_utime) + of(usage.ru_stime)
}
