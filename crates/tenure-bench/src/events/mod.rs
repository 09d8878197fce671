//! Events beside the bare statements behind them: publishing beside a bare insert of the same rows, consuming beside a bare indexed
//! scan, the way of one event beside a bare `NOTIFY` there and back, and what more slots and more members do to the rates.

mod consume;
mod publish;

use std::time::Duration;

use serde::Serialize;
use tenure::port::{Json, NewEvent, Payload, TopicKey, TopicSettings};
use tenure::{Name, Publisher, Tenure};

use crate::BenchError;
use crate::bare::Folder;
use crate::claims::{Compared, pgbench};

const TABLES: &str = include_str!("bare/tables.sql");

/// How many keys there are.
const KEYS: u64 = 10_000;

/// How many events are published at once.
const MANY: u64 = 1_000;

/// What an event carries.
const PAYLOAD: &str = r#"{"cents": 4200, "to": "ada"}"#;

/// What its type is.
const KIND: &str = "bench.made";

/// What to measure.
#[derive(Clone, Debug)]
pub struct EventsBench {
    /// `postgres://…` with Tenure's tables in it; without it only SQLite is measured, and nothing stands beside it.
    pub postgres: Option<String>,
    /// How many writers publish at once.
    pub writers: Vec<usize>,
    /// For how long a rate of publishing is measured, on both sides.
    pub window: Duration,
    /// How often, one side after the other; the median counts.
    pub repeats: u32,
    /// How many events are consumed.
    pub events: u64,
    /// Into how many slots.
    pub slots: Vec<u32>,
    /// By how many members.
    pub members: Vec<usize>,
    /// How many events are timed from their publication to their handler.
    pub rounds: u32,
}

/// Everything that was measured.
#[derive(Clone, Debug, Default, Serialize)]
pub struct EventsReport {
    /// Comparisons.
    pub rows: Vec<Compared>,
}

/// Measures events; `progress` is told what is being done.
pub async fn events(bench: &EventsBench, progress: &dyn Fn(&str)) -> Result<EventsReport, BenchError> {
    let folder = Folder::new()?;
    let mut rows = Vec::new();
    match &bench.postgres {
        Some(url) => {
            pgbench::prepare(url, TABLES).await?;
            rows.extend(publish::rates(bench, url, &folder, progress).await?);
            rows.extend(consume::rates(bench, url, progress).await?);
            progress("from publication to handler, beside bare NOTIFY");
            rows.extend(consume::latency(bench, url).await?);
            rows.extend(publish::by_slots(bench, url, &folder, progress).await?);
            rows.extend(consume::by_slots(bench, url, progress).await?);
            rows.extend(consume::by_members(bench, url, progress).await?);
            pgbench::clear(url).await?;
        }
        None => {
            let url = folder.store("events");
            progress("publishing and consuming on SQLite");
            rows.extend(publish::sqlite(bench, &url).await?);
            rows.push(consume::sqlite(bench, &url).await?);
        }
    }
    Ok(EventsReport { rows })
}

/// A topic of the bench's own, deleted when it is done with.
struct Bench {
    tenure: Tenure,
    publisher: Publisher,
    key: TopicKey,
}

impl Bench {
    async fn topic(url: &str, slots: u32) -> Result<Bench, BenchError> {
        let tenure = Tenure::open(url).await?;
        let name = format!("bench-{:x}", tenure::runtime::random());
        let publisher = tenure.publisher(&name)?.namespace(crate::NAMESPACE)?;
        publisher.create_topic(&TopicSettings { slots, ..TopicSettings::default() }).await?;
        let key = publisher.topic().clone();
        Ok(Bench { tenure, publisher, key })
    }

    fn name(&self) -> &Name {
        &self.key.name
    }

    /// Publishes so many, of different keys.
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

/// The event of this number: a small one, of one of ten thousand keys.
fn event(n: u64) -> NewEvent {
    let payload = Payload::Json(PAYLOAD.parse::<Json>().unwrap_or_default());
    NewEvent { key: Some(format!("key-{}", n % KEYS)), payload, ..NewEvent::new(KIND) }
}

/// `1 slot`, `8 slots`.
fn counted(count: impl Into<u64>, thing: &str) -> String {
    let count = count.into();
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// The one in the middle.
fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Each figure beside the first: it must not fall.
fn beside_first(figures: Vec<(String, f64)>, unit: &'static str, at_least: Option<f64>) -> Vec<Compared> {
    let Some((first, beside)) = figures.first().cloned() else { return Vec::new() };
    let compare = |(what, figure): (String, f64)| {
        let row = Compared::new(what, figure, first.clone(), beside, unit);
        match at_least {
            Some(ratio) => row.at_least(ratio),
            None => row,
        }
    };
    figures.into_iter().skip(1).map(compare).collect()
}
