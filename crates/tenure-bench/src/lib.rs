//! The benchmarks behind `tenure bench`.
//!
//! Absolute figures differ between machines. Ratios are comparable if both sides are measured in one run, on the same
//! server, in the same time window. Every figure of Tenure therefore has a *baseline*: the cost of the database or the
//! kernel alone for the same operation.

mod baseline;
mod crash;
mod events;
mod handover;
mod holding_cost;
pub mod lock_holder;
mod queues;
mod schedules;
mod server;
mod stores;

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use tenure::port::StoreError;

pub use crate::events::{EventsBench, EventsReport, events};
pub use crate::queues::{
    ClaimModesBench, ClaimModesReport, ClaimModesRow, ComparisonRow, QueuesBench, QueuesReport, ReplicaSpec,
    claim_modes, queues, replica, svg,
};
pub use crate::schedules::{IdleCost, Lateness, SchedulesBench, SchedulesReport, schedules};
pub use crate::server::{RateRow, ServerBench, ServerReport, StreamCost, server};
pub use crate::stores::{HoldingRate, StoreFigures, StoresBench, StoresReport, stores};

/// Namespace of all measured elections, queues and topics. Schedules use a namespace per run.
pub const NAMESPACE: &str = "tenure-bench";

/// Pause before each round, for Tenure and for the baseline. A handover is an isolated event; operations in quick
/// succession would find warm caches and running threads.
const REST: Duration = Duration::from_millis(100);

/// Options of the election benchmark.
#[derive(Clone, Debug)]
pub struct ElectionsBench {
    /// `postgres://…` with Tenure's schema; without it only SQLite is measured.
    pub postgres: Option<String>,
    /// Number of handovers and crashes to measure.
    pub rounds: u32,
    /// Numbers of elections that one process holds; each number is measured separately.
    pub elections: Vec<u32>,
    /// Measurement window for the cost of holding.
    pub window: Duration,
    /// The `tenure` program, run by the leaders that are killed.
    pub program: PathBuf,
}

/// A figure with its baseline.
#[derive(Clone, Debug, Serialize)]
pub struct BaselineRow {
    /// Measured operation.
    pub operation: String,
    /// Baseline operation.
    pub baseline: String,
    /// Figure of Tenure.
    pub tenure: f64,
    /// Figure of the baseline.
    pub baseline_value: f64,
    /// Unit of both figures.
    pub unit: &'static str,
    /// `tenure / baseline_value`.
    pub ratio: f64,
    /// Highest acceptable ratio, if there is a limit.
    pub max_ratio: Option<f64>,
}

/// Cost of a process that holds elections.
#[derive(Clone, Debug, Serialize)]
pub struct HoldingCost {
    /// Store.
    pub store: &'static str,
    /// Number of elections.
    pub elections: u32,
    /// Transactions per second as counted by the server; `None` for stores without such a counter.
    pub statements_per_second: Option<f64>,
    /// Percent of one core.
    pub cpu_percent: f64,
}

/// Results of the election benchmark.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ElectionsReport {
    /// Comparisons with a baseline.
    pub rows: Vec<BaselineRow>,
    /// Costs of holding elections.
    pub costs: Vec<HoldingCost>,
}

/// Why a benchmark failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// Tenure failed.
    #[error(transparent)]
    Tenure(#[from] tenure::Error),
    /// The baseline failed.
    #[error("baseline: {0}")]
    Database(#[from] sqlx::Error),
    /// The operating system failed.
    #[error("operating system: {0}")]
    System(#[from] std::io::Error),
    /// A helper process failed.
    #[error("{0}")]
    Helper(String),
}

impl From<StoreError> for BenchError {
    fn from(error: StoreError) -> Self {
        BenchError::Tenure(error.into())
    }
}

/// Run the election benchmark; `progress` receives the current step.
pub async fn elections(
    bench: &ElectionsBench,
    progress: &dyn Fn(&str),
) -> Result<ElectionsReport, BenchError> {
    let mut report = ElectionsReport::default();
    let directory = baseline::BenchDirectory::new()?;
    if let Some(url) = &bench.postgres {
        progress("handover on PostgreSQL, baseline: NOTIFY");
        report.rows.extend(handover::postgres(url, bench.rounds).await?);
        progress("crash takeover on PostgreSQL, baseline: advisory lock");
        report.rows.extend(crash::postgres(bench, url).await?);
    }
    progress("handover on SQLite, baseline: durable writes");
    report.rows.push(handover::sqlite(&directory, bench.rounds).await?);
    progress("crash takeover on SQLite, baseline: kernel lock");
    report.rows.extend(crash::sqlite(bench, &directory).await?);
    for &held in &bench.elections {
        if let Some(url) = &bench.postgres {
            progress(&format!("holding {held} elections on PostgreSQL"));
            report.costs.push(holding_cost::cost("postgres", url, Some(url), held, bench.window).await?);
        }
        progress(&format!("holding {held} elections on SQLite"));
        let url = directory.store(&format!("held-{held}"));
        report.costs.push(holding_cost::cost("sqlite", &url, None, held, bench.window).await?);
    }
    Ok(report)
}

/// Median in milliseconds.
fn median_ms(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times.get(times.len() / 2).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
}

fn row(
    operation: &str,
    baseline: &str,
    tenure: f64,
    baseline_value: f64,
    max_ratio: Option<f64>,
) -> BaselineRow {
    BaselineRow {
        operation: operation.into(),
        baseline: baseline.into(),
        tenure,
        baseline_value,
        unit: "ms",
        ratio: tenure / baseline_value,
        max_ratio,
    }
}
