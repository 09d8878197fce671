//! Publishing: in SQL by many connections, and through the library one by one and in batches.

use std::time::Duration;

use sqlx::{Connection, PgConnection};
use tenure::Publisher;
use tenure::runtime::now;

use super::{BenchTopic, EventsBench, KIND, MANY, PAYLOAD, compare_with_first, counted, event, median};
use crate::BenchError;
use crate::baseline::BenchDirectory;
use crate::queues::pgbench::{self, PgbenchLoad};
use crate::queues::{ComparisonRow, per_second};

const INSERT: &str = include_str!("baseline/insert.sql");
const PUBLISH: &str = include_str!("baseline/publish.sql");
const INSERT_MANY: &str = include_str!("baseline/insert_many.sql");

/// Partitions of a topic, unless they are measured.
const PARTITIONS: u32 = 64;

/// Number of publishers while partitions are measured.
const WRITERS: u64 = 16;

pub(super) async fn rates(
    bench: &EventsBench,
    url: &str,
    directory: &BenchDirectory,
    progress: &dyn Fn(&str),
) -> Result<Vec<ComparisonRow>, BenchError> {
    let topic = BenchTopic::topic(url, PARTITIONS).await?;
    let mut rows = Vec::new();
    for &writers in &bench.writers {
        progress(&format!("publishing with {writers} publishers, baseline: plain insert"));
        let (mut baseline, mut sql, mut library) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..bench.repeats.max(1) {
            baseline.push(by_pgbench(bench, url, directory, INSERT, writers as u64).await?);
            sql.push(by_pgbench(bench, url, directory, &script(&topic), writers as u64).await?);
            library.push(by_callers(&topic.publisher, writers, bench.window).await?);
        }
        let connections = counted(writers as u64, "connection");
        let (baseline, insert) = (median(baseline), format!("plain insert, {connections}"));
        let compared = |what: String, rate| {
            ComparisonRow::new(what, rate, insert.clone(), baseline, "events/s").at_least(0.85)
        };
        rows.push(compared(format!("tenure.publish(…), {connections}"), median(sql)));
        rows.push(compared(format!("library, {}", counted(writers as u64, "caller")), median(library)));
    }
    progress(&format!("publishing {MANY} events per call, baseline: plain insert"));
    let (mut baseline, mut many) = (Vec::new(), Vec::new());
    for _ in 0..bench.repeats.max(1) {
        baseline.push(insert_many(url, bench.window).await?);
        many.push(by_thousands(&topic.publisher, bench.window).await?);
    }
    let what = format!("library, {MANY} events per call");
    rows.push(
        ComparisonRow::new(
            what,
            median(many),
            format!("plain insert of {MANY} rows"),
            median(baseline),
            "events/s",
        )
        .at_least(0.85),
    );
    topic.end().await?;
    Ok(rows)
}

/// Measure the publish rate with few and with many partitions. The number of partitions must not change it.
pub(super) async fn by_partitions(
    bench: &EventsBench,
    url: &str,
    directory: &BenchDirectory,
    progress: &dyn Fn(&str),
) -> Result<Vec<ComparisonRow>, BenchError> {
    let mut figures = Vec::new();
    for &partitions in &bench.partitions {
        progress(&format!("publishing into {}", counted(partitions, "partition")));
        let topic = BenchTopic::topic(url, partitions).await?;
        let rate = by_pgbench(bench, url, directory, &script(&topic), WRITERS).await?;
        topic.end().await?;
        figures.push((
            format!("tenure.publish(…), {WRITERS} connections, {}", counted(partitions, "partition")),
            rate,
        ));
    }
    Ok(compare_with_first(figures, "events/s", Some(0.95)))
}

fn script(topic: &BenchTopic) -> String {
    PUBLISH.replace(":topic", topic.name().as_str())
}

async fn by_pgbench(
    bench: &EventsBench,
    url: &str,
    directory: &BenchDirectory,
    script: &str,
    writers: u64,
) -> Result<f64, BenchError> {
    let load = PgbenchLoad::Seconds(bench.window.as_secs().max(1));
    pgbench::run(url, directory, ("publish.sql", script), writers, load).await
}

/// Callers that each publish one event after the other.
async fn by_callers(publisher: &Publisher, callers: usize, window: Duration) -> Result<f64, BenchError> {
    let start = now();
    let running: Vec<_> = (0..callers as u64)
        .map(|caller| {
            let publisher = publisher.clone();
            tokio::spawn(async move {
                let mut done = 0;
                while now().since(start) < window {
                    publisher.publish(event(caller * 7_919 + done)).await?;
                    done += 1;
                }
                Ok::<_, BenchError>(done)
            })
        })
        .collect();
    let mut done = 0;
    for caller in running {
        done += caller.await.map_err(|error| BenchError::Helper(error.to_string()))??;
    }
    Ok(per_second(done, now().since(start)))
}

async fn by_thousands(publisher: &Publisher, window: Duration) -> Result<f64, BenchError> {
    let events: Vec<_> = (0..MANY).map(event).collect();
    let (start, mut done) = (now(), 0);
    while now().since(start) < window {
        publisher.publish_all(&events).await?;
        done += MANY;
    }
    Ok(per_second(done, now().since(start)))
}

async fn insert_many(url: &str, window: Duration) -> Result<f64, BenchError> {
    let mut connection = PgConnection::connect(url).await?;
    let keys: Vec<String> = (0..MANY).map(|n| event(n).key.unwrap_or_default()).collect();
    let (kinds, payloads) = (vec![KIND; MANY as usize], vec![PAYLOAD; MANY as usize]);
    let (start, mut done) = (now(), 0);
    while now().since(start) < window {
        sqlx::query(INSERT_MANY).bind(&keys).bind(&kinds).bind(&payloads).execute(&mut connection).await?;
        done += MANY;
    }
    let rate = per_second(done, now().since(start));
    connection.close().await?;
    Ok(rate)
}

pub(super) async fn sqlite(bench: &EventsBench, url: &str) -> Result<Vec<ComparisonRow>, BenchError> {
    let topic = BenchTopic::topic(url, PARTITIONS).await?;
    let mut figures = Vec::new();
    for &writers in &bench.writers {
        let rate = by_callers(&topic.publisher, writers, bench.window).await?;
        figures.push((format!("library, {}", counted(writers as u64, "caller")), rate));
    }
    figures.push((
        format!("library, {MANY} events per call"),
        by_thousands(&topic.publisher, bench.window).await?,
    ));
    topic.end().await?;
    Ok(compare_with_first(figures, "events/s", None))
}
