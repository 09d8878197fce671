//! Claims beside the bare statements behind them.
//!
//! Two benches. [`drain`] empties queues through the one-by-one API and through a `Worker`, beside a job table written by
//! hand. [`assign`] asks the question of the seeds: what does strict order cost, with one replica and with nine?

mod assign;
mod chart;
mod drain;
pub(crate) mod pgbench;
mod replica;

use std::time::Duration;

use serde::Serialize;
use tenure::port::{Json, NewTask, Profile, QueueKey, Seat};
use tenure::{Name, Tenure};

pub use self::assign::{AssignBench, AssignReport, AssignRow, assign};
pub use self::chart::svg;
pub use self::drain::{DrainBench, DrainReport, drain};
pub use self::replica::{Replica, replica};
use crate::BenchError;

/// How many tasks are submitted at once.
const SUBMIT: u64 = 1_000;

/// A figure beside the bare one, with a ratio to reach or to stay below.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    /// What was measured.
    pub what: String,
    /// The figure of Tenure.
    pub tenure: f64,
    /// What it is compared with.
    pub bare: String,
    /// The figure of that.
    pub beside: f64,
    /// The unit of both.
    pub unit: &'static str,
    /// `tenure / beside`.
    pub ratio: f64,
    /// The ratio to reach.
    pub at_least: Option<f64>,
    /// The ratio to stay below.
    pub at_most: Option<f64>,
    /// A figure that is enough, whatever the ratio.
    pub enough: Option<f64>,
}

impl Compared {
    pub(crate) fn new(
        what: impl Into<String>,
        tenure: f64,
        bare: impl Into<String>,
        beside: f64,
        unit: &'static str,
    ) -> Compared {
        let (what, bare) = (what.into(), bare.into());
        let (at_least, at_most, enough) = (None, None, None);
        Compared { what, tenure, bare, beside, unit, ratio: tenure / beside, at_least, at_most, enough }
    }

    pub(crate) fn at_least(mut self, ratio: f64) -> Compared {
        self.at_least = Some(ratio);
        self
    }

    pub(crate) fn at_most(mut self, ratio: f64) -> Compared {
        self.at_most = Some(ratio);
        self
    }

    pub(crate) fn or_enough(mut self, figure: f64) -> Compared {
        self.enough = Some(figure);
        self
    }

    /// Whether the ratio is as it should be, or the figure is enough; `None` if nothing was said about it.
    pub fn holds(&self) -> Option<bool> {
        let enough = self.enough.is_some_and(|enough| self.tenure >= enough);
        let least = self.at_least.map(|least| self.ratio >= least || enough);
        least.or_else(|| self.at_most.map(|most| self.ratio <= most))
    }
}

/// The namespace of the bench's own, apart from everything that is in use.
fn namespace() -> Name {
    crate::NAMESPACE.parse().expect("the bench's namespace is a name")
}

fn queue(name: &str) -> QueueKey {
    QueueKey::new(namespace(), name.parse().expect("the names of the bench's queues are names"))
}

/// A small task.
fn task() -> NewTask {
    NewTask { payload: "{\"n\":1}".parse::<Json>().unwrap_or_default(), ..NewTask::new("no-op") }
}

async fn fill(tenure: &Tenure, queue: &QueueKey, tasks: u64) -> Result<(), BenchError> {
    let claims = tenure.claims();
    let mut left = tasks;
    while left > 0 {
        let now = left.min(SUBMIT);
        claims.submit(queue, (0..now).map(|_| task()).collect()).await?;
        left -= now;
    }
    Ok(())
}

/// A wish for one task, on the beat of this process.
fn seat(tenure: &Tenure) -> Seat {
    let worker = Profile { name: tenure.name().into(), ..Profile::default() };
    Seat { worker, limit: 1, session: tenure.session(), hold_ms: None }
}

pub(crate) fn per_second(count: u64, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64().max(f64::MIN_POSITIVE)
}
