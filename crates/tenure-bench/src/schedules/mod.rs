//! Schedule benchmarks: many schedules in one second compared with plain inserts of the same rows, lateness at a steady
//! rate, and the cost of many schedules of which none is due.
//!
//! All schedules are fired by a real [`Scheduler`], elected and fenced. Times are read from the store's clock. Use an
//! otherwise idle store: another scheduler on it would fire the schedules too.

mod baseline;
mod fire;
mod idle;
mod lateness;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tenure::port::{
    Precondition, RawJson, ScheduleFilter, ScheduleKey, ScheduleView, SetScheduleRequest, Store, StoreError,
    TopicKey, TopicSettings,
};
use tenure::rules::schedule::{ScheduleDefinition, ScheduleExpression, ScheduleTarget};
use tenure::{Name, Scheduler, Tenure};
use tokio::task::JoinSet;

pub use self::idle::IdleCost;
pub use self::lateness::Lateness;
use crate::BenchError;
use crate::baseline::BenchDirectory;
use crate::queues::{ComparisonRow, pgbench};

/// Number of schedules created or deleted concurrently: on a server, and in a file, which has one writer.
const CONCURRENCY: (usize, usize) = (16, 2);

/// Payload of a tick.
const PAYLOAD: &str = r#"{"of": "yesterday", "full": true}"#;

/// Options of the schedule benchmark.
#[derive(Clone, Debug)]
pub struct SchedulesBench {
    /// `postgres://…` with Tenure's schema; without it SQLite is measured.
    pub postgres: Option<String>,
    /// Number of schedules.
    pub schedules: u64,
    /// Number of additional schedules that are due in the same second.
    pub due: u64,
    /// Number of repetitions; the median counts.
    pub repeats: u32,
    /// Steady rate in ticks per second.
    pub rate: u32,
    /// Measurement window for the steady rate and for idling.
    pub window: Duration,
}

/// Results of the schedule benchmark.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SchedulesReport {
    /// Many schedules at once, compared with plain inserts.
    pub rows: Vec<ComparisonRow>,
    /// Lateness at a steady rate.
    pub lateness: Vec<Lateness>,
    /// Cost while nothing is due.
    pub idle: Vec<IdleCost>,
}

/// Run the schedule benchmark; `progress` receives the current step.
pub async fn schedules(
    bench: &SchedulesBench,
    progress: &dyn Fn(&str),
) -> Result<SchedulesReport, BenchError> {
    let directory = BenchDirectory::new()?;
    let url = bench.postgres.clone().unwrap_or_else(|| directory.store("schedules"));
    let mut report = SchedulesReport::default();
    let concurrency = if bench.postgres.is_some() { CONCURRENCY.0 } else { CONCURRENCY.1 };
    let bench_schedules = BenchSchedules::open(&url, concurrency).await?;
    let counted = bench.postgres.as_deref();
    progress("idle cost without schedules");
    report.idle.push(idle::cost(counted, 0, bench.window).await?);
    progress(&format!("creating {} schedules", bench.schedules));
    bench_schedules.fill(bench.schedules).await?;
    progress(&format!("idle cost with {} schedules, none due", bench.schedules));
    report.idle.push(idle::cost(counted, bench.schedules, bench.window).await?);
    report.rows.push(fire::many(&bench_schedules, bench, &directory, progress).await?);
    progress(&format!("{} ticks per second", bench.rate));
    report.lateness.push(lateness::lateness(&bench_schedules, bench.rate, bench.window).await?);
    // SQLite needs no cleanup, because its temporary directory is removed.
    if let Some(url) = &bench.postgres {
        progress("deleting the schedules");
        bench_schedules.clear().await?;
        pgbench::clear(url).await?;
    }
    bench_schedules.end().await?;
    Ok(report)
}

/// A namespace of the benchmark with a scheduler and a topic, cleared afterwards.
struct BenchSchedules {
    tenure: Tenure,
    scheduler: Scheduler,
    namespace: Name,
    topic: TopicKey,
    concurrency: usize,
}

impl BenchSchedules {
    async fn open(url: &str, concurrency: usize) -> Result<BenchSchedules, BenchError> {
        let tenure = Tenure::open(url).await?;
        let namespace: Name =
            format!("bench-{:x}", tenure::runtime::random()).parse().map_err(tenure::Error::from)?;
        let topic = TopicKey::new(namespace.clone(), "ticks".parse().map_err(tenure::Error::from)?);
        tenure.store().set_topic(&topic, &TopicSettings::default()).await?;
        let scheduler = tenure.scheduler().start().await?;
        while !scheduler.is_leader() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(BenchSchedules { tenure, scheduler, namespace, topic, concurrency })
    }

    fn store(&self) -> &Arc<dyn Store> {
        self.tenure.store()
    }

    /// The store's wall clock.
    async fn store_ms(&self) -> Result<i64, BenchError> {
        Ok(self.store().due_schedules(1).await?.store_now_at_ms)
    }

    /// Create schedules that are due in a year.
    async fn fill(&self, schedules: u64) -> Result<(), BenchError> {
        let start_ms = self.store_ms().await? + 365 * 86_400_000;
        self.make("idle", schedules, |definition| ScheduleDefinition {
            start_at_ms: Some(start_ms),
            ..definition
        })
        .await
    }

    /// Create schedules: once a day from their start, unless `change` modifies them.
    async fn make(
        &self,
        name: &str,
        count: u64,
        change: impl Fn(ScheduleDefinition) -> ScheduleDefinition,
    ) -> Result<(), BenchError> {
        let mut definitions = Vec::new();
        for number in 0..count {
            let name = format!("{name}-{number}").parse().map_err(tenure::Error::from)?;
            let when: ScheduleExpression = "every 1d from start".parse().map_err(helper)?;
            let target = ScheduleTarget::Event { topic: self.topic.name.clone(), key: None };
            let payload = PAYLOAD.parse::<RawJson>().unwrap_or_default();
            definitions
                .push(change(ScheduleDefinition { payload, ..ScheduleDefinition::new(name, when, target) }));
        }
        let by = "bench".to_owned();
        let namespace = self.namespace.clone();
        let sets = definitions.into_iter().map(|definition| SetScheduleRequest {
            namespace: namespace.clone(),
            definition,
            secret: None,
            precondition: Precondition::New,
            source: None,
            updated_by: by.clone(),
        });
        self.for_each_concurrently(sets.collect(), |store, set| async move {
            store.set_schedule(&set).await.map(drop)
        })
        .await
    }

    /// Apply an operation to all items concurrently.
    async fn for_each_concurrently<T, F, Fut>(&self, items: Vec<T>, act: F) -> Result<(), BenchError>
    where
        T: Send + 'static,
        F: Fn(Arc<dyn Store>, T) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = Result<(), StoreError>> + Send,
    {
        let queue = Arc::new(Mutex::new(items.into_iter()));
        let mut tasks = JoinSet::new();
        for _ in 0..self.concurrency {
            let (store, queue, act) = (self.store().clone(), queue.clone(), act.clone());
            tasks.spawn(async move {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some(item) = next else { return Ok::<_, BenchError>(()) };
                    act(store.clone(), item).await?;
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.map_err(helper)??;
        }
        Ok(())
    }

    /// Delete the schedules and the topic.
    async fn clear(&self) -> Result<(), BenchError> {
        let filter = ScheduleFilter {
            namespace: Some(self.namespace.clone()),
            limit: 10_000,
            ..ScheduleFilter::default()
        };
        loop {
            let page = self.store().schedules(&filter).await?;
            if page.is_empty() {
                break;
            }
            let keys = page.iter().map(ScheduleView::key).collect();
            let delete = |store: Arc<dyn Store>, key: ScheduleKey| async move {
                store.delete_schedule(&key, None).await.map(drop)
            };
            self.for_each_concurrently(keys, delete).await?;
        }
        self.store().delete_topic(&self.topic).await?;
        Ok(())
    }

    async fn end(self) -> Result<(), BenchError> {
        self.scheduler.stop().await?;
        Ok(self.tenure.close().await?)
    }
}

fn helper(error: impl std::fmt::Display) -> BenchError {
    BenchError::Helper(error.to_string())
}

/// Median of the figures.
fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
