//! Schedules: many at the same second beside a bare insert of the same rows, how late they are at a steady rate, and what it costs to
//! have a hundred thousand of which none is due.
//!
//! All of it goes through a real [`Scheduler`], elected and fenced; what is measured is read off the store's own clock. The store
//! should be the bench's own: another scheduler on it would fire as well.

mod bare;
mod fire;
mod idle;
mod steady;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tenure::port::{
    Backend, Expect, Json, ScheduleFilter, ScheduleKey, ScheduleView, SetSchedule, StoreError, TopicKey,
    TopicSettings,
};
use tenure::schedule::{Definition, Target, When};
use tenure::{Name, Scheduler, Tenure};
use tokio::task::JoinSet;

pub use self::idle::Idle;
pub use self::steady::Lateness;
use crate::BenchError;
use crate::bare::Folder;
use crate::claims::{Compared, pgbench};

/// How many schedules are made or deleted at once: on a server, and in a file, which has one writer.
const HANDS: (usize, usize) = (16, 2);

/// What a tick carries.
const PAYLOAD: &str = r#"{"of": "yesterday", "full": true}"#;

/// What to measure.
#[derive(Clone, Debug)]
pub struct SchedulesBench {
    /// `postgres://…` with Tenure's tables in it; without it SQLite is measured.
    pub postgres: Option<String>,
    /// How many schedules there are.
    pub schedules: u64,
    /// How many of them are due in the same second.
    pub due: u64,
    /// How often, one side after the other; the median counts.
    pub repeats: u32,
    /// How many ticks per second are steady.
    pub rate: u32,
    /// For how long those are watched, and for how long nothing.
    pub window: Duration,
}

/// Everything that was measured.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SchedulesReport {
    /// Many at once, beside a bare insert.
    pub rows: Vec<Compared>,
    /// How late ticks are at a steady rate.
    pub lateness: Vec<Lateness>,
    /// What it costs when nothing is due.
    pub idle: Vec<Idle>,
}

/// Measures schedules; `progress` is told what is being done.
pub async fn schedules(
    bench: &SchedulesBench,
    progress: &dyn Fn(&str),
) -> Result<SchedulesReport, BenchError> {
    let folder = Folder::new()?;
    let url = bench.postgres.clone().unwrap_or_else(|| folder.store("schedules"));
    let mut report = SchedulesReport::default();
    let hands = if bench.postgres.is_some() { HANDS.0 } else { HANDS.1 };
    let yard = Yard::open(&url, hands).await?;
    let counted = bench.postgres.as_deref();
    progress("nothing is scheduled: what does waiting cost?");
    report.idle.push(idle::cost(counted, 0, bench.window).await?);
    progress(&format!("making {} schedules", bench.schedules));
    yard.fill(bench.schedules).await?;
    progress(&format!("{} schedules, none due: what does waiting cost?", bench.schedules));
    report.idle.push(idle::cost(counted, bench.schedules, bench.window).await?);
    report.rows.push(fire::many(&yard, bench, &folder, progress).await?);
    progress(&format!("{} ticks per second", bench.rate));
    report.lateness.push(steady::lateness(&yard, bench.rate, bench.window).await?);
    // A folder of our own goes as it is.
    if let Some(url) = &bench.postgres {
        progress("deleting them");
        yard.clear().await?;
        pgbench::clear(url).await?;
    }
    yard.end().await?;
    Ok(report)
}

/// A namespace of the bench's own, with a scheduler and a topic, cleared when it is done with.
struct Yard {
    tenure: Tenure,
    scheduler: Scheduler,
    namespace: Name,
    topic: TopicKey,
    hands: usize,
}

impl Yard {
    async fn open(url: &str, hands: usize) -> Result<Yard, BenchError> {
        let tenure = Tenure::open(url).await?;
        let namespace: Name =
            format!("bench-{:x}", tenure::runtime::random()).parse().map_err(tenure::Error::from)?;
        let topic = TopicKey::new(namespace.clone(), "ticks".parse().map_err(tenure::Error::from)?);
        tenure.store().set_topic(&topic, &TopicSettings::default()).await?;
        let scheduler = tenure.scheduler().start().await?;
        while !scheduler.fires() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(Yard { tenure, scheduler, namespace, topic, hands })
    }

    fn store(&self) -> &Arc<dyn Backend> {
        self.tenure.store()
    }

    /// The store's wall clock.
    async fn store_ms(&self) -> Result<i64, BenchError> {
        Ok(self.store().due(1).await?.store_ms)
    }

    /// Makes so many that are due in a year.
    async fn fill(&self, schedules: u64) -> Result<(), BenchError> {
        let start_ms = self.store_ms().await? + 365 * 86_400_000;
        self.make("idle", schedules, |definition| Definition { start_ms: Some(start_ms), ..definition }).await
    }

    /// Makes so many: once a day from their start, unless `change` says otherwise.
    async fn make(
        &self,
        name: &str,
        count: u64,
        change: impl Fn(Definition) -> Definition,
    ) -> Result<(), BenchError> {
        let mut definitions = Vec::new();
        for number in 0..count {
            let name = format!("{name}-{number}").parse().map_err(tenure::Error::from)?;
            let when: When = "every 1d from start".parse().map_err(helper)?;
            let target = Target::Event { topic: self.topic.name.clone(), key: None };
            let payload = PAYLOAD.parse::<Json>().unwrap_or_default();
            definitions.push(change(Definition { payload, ..Definition::new(name, when, target) }));
        }
        let by = "bench".to_owned();
        let namespace = self.namespace.clone();
        let sets = definitions.into_iter().map(|definition| SetSchedule {
            namespace: namespace.clone(),
            definition,
            secret: None,
            expect: Expect::New,
            source: None,
            by: by.clone(),
        });
        self.by_many_hands(
            sets.collect(),
            |store, set| async move { store.set_schedule(&set).await.map(drop) },
        )
        .await
    }

    /// Does it with each of them, many at once.
    async fn by_many_hands<T, F, Fut>(&self, items: Vec<T>, act: F) -> Result<(), BenchError>
    where
        T: Send + 'static,
        F: Fn(Arc<dyn Backend>, T) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = Result<(), StoreError>> + Send,
    {
        let queue = Arc::new(Mutex::new(items.into_iter()));
        let mut hands = JoinSet::new();
        for _ in 0..self.hands {
            let (store, queue, act) = (self.store().clone(), queue.clone(), act.clone());
            hands.spawn(async move {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some(item) = next else { return Ok::<_, BenchError>(()) };
                    act(store.clone(), item).await?;
                }
            });
        }
        while let Some(done) = hands.join_next().await {
            done.map_err(helper)??;
        }
        Ok(())
    }

    /// Deletes what there is.
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
            let delete = |store: Arc<dyn Backend>, key: ScheduleKey| async move {
                store.delete_schedule(&key, None).await.map(drop)
            };
            self.by_many_hands(keys, delete).await?;
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

/// The one in the middle.
fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
