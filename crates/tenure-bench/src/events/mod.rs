//! Event benchmarks: publishing compared with plain inserts of the same rows, consuming compared with a plain indexed
//! scan, latency compared with a `NOTIFY` round trip, and the effect of more partitions and members on the rates.

mod consume;
mod publish;

use std::time::Duration;

use serde::Serialize;
use tenure::port::{NewEvent, Payload, RawJson, TopicKey, TopicSettings};
use tenure::{Name, Publisher, Tenure};

use crate::BenchError;
use crate::baseline::BenchDirectory;
use crate::queues::{ComparisonRow, pgbench};

const TABLES: &str = include_str!("baseline/tables.sql");

/// Number of distinct keys.
const KEYS: u64 = 10_000;

/// Number of events per batch publication.
const MANY: u64 = 1_000;

/// Payload of an event.
const PAYLOAD: &str = r#"{"cents": 4200, "to": "ada"}"#;

/// Type of an event.
const KIND: &str = "bench.made";

/// Options of the event benchmark.
#[derive(Clone, Debug)]
pub struct EventsBench {
    /// `postgres://…` with Tenure's schema; without it only SQLite is measured, without a baseline.
    pub postgres: Option<String>,
    /// Numbers of concurrent publishers.
    pub writers: Vec<usize>,
    /// Measurement window for the publish rate.
    pub window: Duration,
    /// Number of repetitions; the median counts.
    pub repeats: u32,
    /// Number of events to consume.
    pub events: u64,
    /// Numbers of partitions.
    pub partitions: Vec<u32>,
    /// Numbers of members.
    pub members: Vec<usize>,
    /// Number of events measured from publication to handler.
    pub rounds: u32,
}

/// Results of the event benchmark.
#[derive(Clone, Debug, Default, Serialize)]
pub struct EventsReport {
    /// Comparisons.
    pub rows: Vec<ComparisonRow>,
}

/// Run the event benchmark; `progress` receives the current step.
pub async fn events(bench: &EventsBench, progress: &dyn Fn(&str)) -> Result<EventsReport, BenchError> {
    let directory = BenchDirectory::new()?;
    let mut rows = Vec::new();
    match &bench.postgres {
        Some(url) => {
            pgbench::prepare(url, TABLES).await?;
            rows.extend(publish::rates(bench, url, &directory, progress).await?);
            rows.extend(consume::rates(bench, url, progress).await?);
            progress("latency from publication to handler, baseline: NOTIFY");
            rows.extend(consume::latency(bench, url).await?);
            rows.extend(publish::by_partitions(bench, url, &directory, progress).await?);
            rows.extend(consume::by_partitions(bench, url, progress).await?);
            rows.extend(consume::by_members(bench, url, progress).await?);
            pgbench::clear(url).await?;
        }
        None => {
            let url = directory.store("events");
            progress("publishing and consuming on SQLite");
            rows.extend(publish::sqlite(bench, &url).await?);
            rows.push(consume::sqlite(bench, &url).await?);
        }
    }
    Ok(EventsReport { rows })
}

/// A topic of the benchmark, deleted afterwards.
struct BenchTopic {
    tenure: Tenure,
    publisher: Publisher,
    key: TopicKey,
}

impl BenchTopic {
    async fn topic(url: &str, partitions: u32) -> Result<BenchTopic, BenchError> {
        let tenure = Tenure::open(url).await?;
        let name = format!("bench-{:x}", tenure::runtime::random());
        let publisher = tenure.publisher(&name)?.namespace(crate::NAMESPACE)?;
        publisher.create_topic(&TopicSettings { partitions, ..TopicSettings::default() }).await?;
        let key = publisher.topic().clone();
        Ok(BenchTopic { tenure, publisher, key })
    }

    fn name(&self) -> &Name {
        &self.key.name
    }

    /// Publish events with different keys.
    async fn fill(&self, events: u64) -> Result<(), BenchError> {
        let mut published = 0;
        while published < events {
            let some = (events - published).min(MANY);
            let events: Vec<NewEvent> = (published..published + some).map(event).collect();
            self.publisher.publish_all(&events).await?;
            published += some;
        }
        Ok(())
    }

    async fn end(self) -> Result<(), BenchError> {
        self.tenure.store().delete_topic(&self.key).await?;
        Ok(self.tenure.close().await?)
    }
}

/// A small event with one of ten thousand keys.
fn event(n: u64) -> NewEvent {
    let payload = Payload::Json(PAYLOAD.parse::<RawJson>().unwrap_or_default());
    NewEvent { key: Some(format!("key-{}", n % KEYS)), payload, ..NewEvent::new(KIND) }
}

/// Format a count: `1 partition`, `8 partitions`.
fn counted(count: impl Into<u64>, thing: &str) -> String {
    let count = count.into();
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// Median of the figures.
fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Compare each figure with the first.
fn compare_with_first(
    figures: Vec<(String, f64)>,
    unit: &'static str,
    at_least: Option<f64>,
) -> Vec<ComparisonRow> {
    let Some((first, baseline_value)) = figures.first().cloned() else { return Vec::new() };
    let compare = |(what, figure): (String, f64)| {
        let row = ComparisonRow::new(what, figure, first.clone(), baseline_value, unit);
        match at_least {
            Some(ratio) => row.at_least(ratio),
            None => row,
        }
    };
    figures.into_iter().skip(1).map(compare).collect()
}
