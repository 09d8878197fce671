//! Queue benchmarks, compared with plain statements.
//!
//! [`queues`] processes queues through the single-task API and through a `Worker`, compared with a plain job table.
//! [`claim_modes`] measures the cost of strict order with one replica and with several.

mod chart;
mod claim_modes;
pub(crate) mod pgbench;
mod replica;
mod throughput;

use std::time::Duration;

use serde::Serialize;
use tenure::port::{ClaimRequest, NewTask, QueueKey, RawJson, WorkerProfile};
use tenure::{Name, Tenure};

pub use self::chart::svg;
pub use self::claim_modes::{ClaimModesBench, ClaimModesReport, ClaimModesRow, claim_modes};
pub use self::replica::{ReplicaSpec, replica};
pub use self::throughput::{QueuesBench, QueuesReport, queues};
use crate::BenchError;

/// Number of tasks per submission.
const SUBMIT: u64 = 1_000;

/// A figure with its baseline and a minimum or maximum ratio.
#[derive(Clone, Debug, Serialize)]
pub struct ComparisonRow {
    /// Measured operation.
    pub operation: String,
    /// Figure of Tenure.
    pub tenure: f64,
    /// Baseline operation.
    pub baseline: String,
    /// Figure of the baseline.
    pub baseline_value: f64,
    /// Unit of both figures.
    pub unit: &'static str,
    /// `tenure / baseline_value`.
    pub ratio: f64,
    /// Minimum ratio.
    pub min_ratio: Option<f64>,
    /// Maximum ratio.
    pub max_ratio: Option<f64>,
    /// Figure that is sufficient, independent of the ratio.
    pub sufficient: Option<f64>,
}

impl ComparisonRow {
    pub(crate) fn new(
        what: impl Into<String>,
        tenure: f64,
        baseline: impl Into<String>,
        baseline_value: f64,
        unit: &'static str,
    ) -> ComparisonRow {
        let (operation, baseline) = (what.into(), baseline.into());
        let (min_ratio, max_ratio, sufficient) = (None, None, None);
        ComparisonRow {
            operation,
            tenure,
            baseline,
            baseline_value,
            unit,
            ratio: tenure / baseline_value,
            min_ratio,
            max_ratio,
            sufficient,
        }
    }

    pub(crate) fn at_least(mut self, ratio: f64) -> ComparisonRow {
        self.min_ratio = Some(ratio);
        self
    }

    pub(crate) fn at_most(mut self, ratio: f64) -> ComparisonRow {
        self.max_ratio = Some(ratio);
        self
    }

    pub(crate) fn or_enough(mut self, figure: f64) -> ComparisonRow {
        self.sufficient = Some(figure);
        self
    }

    /// Whether the ratio or the sufficient figure is met; `None` without a requirement.
    pub fn is_met(&self) -> Option<bool> {
        let enough = self.sufficient.is_some_and(|enough| self.tenure >= enough);
        let least = self.min_ratio.map(|least| self.ratio >= least || enough);
        least.or_else(|| self.max_ratio.map(|most| self.ratio <= most))
    }
}

/// Namespace of the benchmark, separate from other data.
fn namespace() -> Name {
    crate::NAMESPACE.parse().expect("a valid name")
}

fn queue(name: &str) -> QueueKey {
    QueueKey::new(namespace(), name.parse().expect("a valid name"))
}

/// A small task.
fn task() -> NewTask {
    NewTask { payload: "{\"n\":1}".parse::<RawJson>().unwrap_or_default(), ..NewTask::new("no-op") }
}

async fn fill(tenure: &Tenure, queue: &QueueKey, tasks: u64) -> Result<(), BenchError> {
    let claims = tenure.tasks();
    let mut left = tasks;
    while left > 0 {
        let now = left.min(SUBMIT);
        claims.submit(queue, (0..now).map(|_| task()).collect()).await?;
        left -= now;
    }
    Ok(())
}

/// A claim request for one task, bound to the session of this process.
fn claim_request(tenure: &Tenure) -> ClaimRequest {
    let worker = WorkerProfile { name: tenure.name().into(), ..WorkerProfile::default() };
    ClaimRequest { worker, limit: 1, session: tenure.session(), claim_timeout_ms: None }
}

pub(crate) fn per_second(count: u64, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64().max(f64::MIN_POSITIVE)
}
