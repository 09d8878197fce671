//! What it costs to go on holding.
#![allow(unsafe_code)]

use std::time::Duration;

use sqlx::Connection;
use sqlx::postgres::PgConnection;
use tenure::Tenure;

use crate::{BenchError, Cost};

/// Holds so many elections in this process and watches for a while what that costs.
pub(crate) async fn cost(
    store: &'static str,
    url: &str,
    counted: Option<&str>,
    held: u32,
    window: Duration,
) -> Result<Cost, BenchError> {
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
    // Whatever becoming leader set off is over. Sessions of a server report what they did only when they have been idle for
    // ten seconds, the listener's answers to ten thousand notifications among them.
    tokio::time::sleep(Duration::from_secs(if counted.is_some() { 30 } else { 3 })).await;
    let before = (transactions(counted).await?, cpu());
    tokio::time::sleep(window).await;
    let after = (transactions(counted).await?, cpu());
    let seconds = window.as_secs_f64();
    // Our own counting makes one transaction per reading.
    let statements = before.0.zip(after.0).map(|(before, after)| (after - before - 1.0).max(0.0) / seconds);
    let cpu_percent = (after.1 - before.1).as_secs_f64() / seconds * 100.0;
    drop(electors);
    tenure.close().await?;
    Ok(Cost { store, held, statements_per_second: statements, cpu_percent })
}

/// How many transactions the server has seen in this database.
pub(crate) async fn transactions(url: Option<&str>) -> Result<Option<f64>, BenchError> {
    let Some(url) = url else { return Ok(None) };
    let mut connection = PgConnection::connect(url).await?;
    // Sessions report what they did only now and then.
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let sql = "SELECT (xact_commit + xact_rollback)::float8 FROM pg_stat_database WHERE datname = current_database()";
    let count: f64 = sqlx::query_scalar(sql).fetch_one(&mut connection).await?;
    connection.close().await?;
    Ok(Some(count))
}

/// The processor time of this process so far.
pub(crate) fn cpu() -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills in the structure that it is given.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let of = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    of(usage.ru_utime) + of(usage.ru_stime)
}
