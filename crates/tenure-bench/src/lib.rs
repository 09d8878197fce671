//! The measured comparisons behind `tenure bench`.
//!
//! Absolute figures do not travel from one machine to another; ratios do, if both sides were measured in one run, on the
//! same server, in the same window. So every figure of Tenure stands beside a *bare* one: what the database or the
//! kernel itself needs for the same thing.

mod bare;
mod claims;
mod crash;
mod events;
mod handover;
mod held;
pub mod hold;
mod schedules;
mod server;
mod stores;

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use tenure::port::StoreError;

pub use crate::claims::{
    AssignBench, AssignReport, AssignRow, Compared, DrainBench, DrainReport, Replica, assign, drain, replica,
    svg,
};
pub use crate::events::{EventsBench, EventsReport, events};
pub use crate::schedules::{Idle, Lateness, SchedulesBench, SchedulesReport, schedules};
pub use crate::server::{Rate, ServerBench, ServerReport, Watchers, server};
pub use crate::stores::{Holding, StoreFigures, StoresBench, StoresReport, stores};

/// The namespace of all elections, queues and topics that are measured, except those of schedules, which have a namespace for each run.
pub const NAMESPACE: &str = "tenure-bench";

/// The rest before each round, on both sides. A hand-over comes out of the blue, and so must what it is compared with:
/// what is done back to back finds every cache warm and every thread awake.
const REST: Duration = Duration::from_millis(100);

/// What to measure.
#[derive(Clone, Debug)]
pub struct ElectionBench {
    /// `postgres://…` with Tenure's tables in it; without it only SQLite is measured.
    pub postgres: Option<String>,
    /// How many hand-overs and crashes to time.
    pub rounds: u32,
    /// How many elections one process holds.
    pub held: Vec<u32>,
    /// How long the cost of holding is watched.
    pub window: Duration,
    /// The `tenure` program: holders that are to be killed run it.
    pub program: PathBuf,
}

/// A figure beside the bare one.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What was measured.
    pub what: String,
    /// What it is compared with.
    pub bare: String,
    /// The figure of Tenure.
    pub tenure: f64,
    /// The bare figure.
    pub beside: f64,
    /// The unit of both.
    pub unit: &'static str,
    /// `tenure / beside`.
    pub ratio: f64,
    /// The ratio to stay below, if there is one.
    pub aim: Option<f64>,
}

/// What a process costs while it holds elections.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    /// The store.
    pub store: &'static str,
    /// How many elections.
    pub held: u32,
    /// Transactions per second, as the server counts them; `None` where nobody counts.
    pub statements_per_second: Option<f64>,
    /// Of one core.
    pub cpu_percent: f64,
}

/// Everything that was measured.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Comparisons.
    pub rows: Vec<Row>,
    /// Costs.
    pub costs: Vec<Cost>,
}

/// Why a measurement could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// Tenure failed.
    #[error(transparent)]
    Tenure(#[from] tenure::Error),
    /// The bare side failed.
    #[error("the bare side: {0}")]
    Database(#[from] sqlx::Error),
    /// The operating system failed.
    #[error("the operating system: {0}")]
    System(#[from] std::io::Error),
    /// A helper process did not do its part.
    #[error("{0}")]
    Helper(String),
}

impl From<StoreError> for BenchError {
    fn from(error: StoreError) -> Self {
        BenchError::Tenure(error.into())
    }
}

/// Measures elections; `progress` is told what is being done.
pub async fn election(bench: &ElectionBench, progress: &dyn Fn(&str)) -> Result<Report, BenchError> {
    let mut report = Report::default();
    let folder = bare::Folder::new()?;
    if let Some(url) = &bench.postgres {
        progress("hand-over on PostgreSQL beside bare NOTIFY");
        report.rows.extend(handover::postgres(url, bench.rounds).await?);
        progress("crash take-over on PostgreSQL beside a blocked advisory lock");
        report.rows.extend(crash::postgres(bench, url).await?);
    }
    progress("hand-over on SQLite beside a bare write");
    report.rows.push(handover::sqlite(&folder, bench.rounds).await?);
    progress("crash take-over on SQLite beside a blocked kernel lock");
    report.rows.extend(crash::sqlite(bench, &folder).await?);
    for &held in &bench.held {
        if let Some(url) = &bench.postgres {
            progress(&format!("holding {held} elections on PostgreSQL"));
            report.costs.push(held::cost("postgres", url, Some(url), held, bench.window).await?);
        }
        progress(&format!("holding {held} elections on SQLite"));
        let url = folder.store(&format!("held-{held}"));
        report.costs.push(held::cost("sqlite", &url, None, held, bench.window).await?);
    }
    Ok(report)
}

/// The median of some times, in milliseconds.
fn median_ms(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times.get(times.len() / 2).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
}

fn row(what: &str, bare: &str, tenure: f64, beside: f64, aim: Option<f64>) -> Row {
    Row { what: what.into(), bare: bare.into(), tenure, beside, unit: "ms", ratio: tenure / beside, aim }
}
