//! Consuming: with one member or many, from few partitions or many; and the latency from publication to handler.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sqlx::{Connection, PgConnection, Row};
use tenure::port::{GroupKey, GroupSettings, Pause, Store};
use tenure::runtime::{now, wall_ms};
use tenure::{Consumer, EventBatch, HandlerError, Tenure};
use tokio::sync::{Notify, mpsc};

use super::{BenchTopic, EventsBench, compare_with_first, counted, event, median};
use crate::baseline::NotifyRoundTrip;
use crate::queues::{ComparisonRow, per_second, pgbench};
use crate::{BenchError, REST, median_ms};

const FILL: &str = include_str!("baseline/fill.sql");
const SCAN: &str = include_str!("baseline/scan.sql");

/// Partitions of a topic, unless they are measured.
const PARTITIONS: u32 = 64;

/// Poll interval while the members divide the partitions.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Rate that is sufficient, independent of the baseline.
const SUFFICIENT_RATE: f64 = 50_000.0;

pub(super) async fn rates(
    bench: &EventsBench,
    url: &str,
    progress: &dyn Fn(&str),
) -> Result<Vec<ComparisonRow>, BenchError> {
    let fill =
        FILL.replace(":partitions", &PARTITIONS.to_string()).replace(":count", &bench.events.to_string());
    pgbench::prepare(url, &fill).await?;
    let (mut baseline, mut plain, mut transactional) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=bench.repeats.max(1) {
        progress(&format!("consuming {} events, baseline: plain indexed scan, round {round}", bench.events));
        baseline.push(scan(url, bench.events).await?);
        plain.push(consume(url, PARTITIONS, 1, bench.events, HandlerForm::Plain).await?);
        transactional.push(consume(url, PARTITIONS, 1, bench.events, HandlerForm::Transactional).await?);
    }
    let (baseline, scan) = (median(baseline), "plain indexed scan, 1000 rows at a time");
    let compared = |what: &str, rate: f64| {
        ComparisonRow::new(what, rate, scan, baseline, "events/s").at_least(0.6).or_enough(SUFFICIENT_RATE)
    };
    Ok(vec![
        compared("consumer, offsets committed per batch", median(plain)),
        compared("consumer, offsets committed in the handler's transaction", median(transactional)),
    ])
}

pub(super) async fn by_partitions(
    bench: &EventsBench,
    url: &str,
    progress: &dyn Fn(&str),
) -> Result<Vec<ComparisonRow>, BenchError> {
    let mut figures = Vec::new();
    for &partitions in &bench.partitions {
        progress(&format!("consuming {} events from {}", bench.events, counted(partitions, "partition")));
        let rate = consume(url, partitions, 1, bench.events, HandlerForm::Plain).await?;
        figures.push((format!("consumer, {}", counted(partitions, "partition")), rate));
    }
    Ok(compare_with_first(figures, "events/s", Some(0.95)))
}

pub(super) async fn by_members(
    bench: &EventsBench,
    url: &str,
    progress: &dyn Fn(&str),
) -> Result<Vec<ComparisonRow>, BenchError> {
    let mut figures = Vec::new();
    for &members in &bench.members {
        let by = counted(members as u64, "member");
        progress(&format!("consuming {} events by {by}", bench.events));
        let rate = consume(url, PARTITIONS, members, bench.events, HandlerForm::Plain).await?;
        figures.push((format!("{by}, {PARTITIONS} partitions"), rate));
    }
    Ok(compare_with_first(figures, "events/s", None))
}

pub(super) async fn sqlite(bench: &EventsBench, url: &str) -> Result<ComparisonRow, BenchError> {
    let events = bench.events / 5;
    let one = consume(url, PARTITIONS, 1, events, HandlerForm::Plain).await?;
    let two = consume(url, PARTITIONS, 2, events, HandlerForm::Plain).await?;
    Ok(ComparisonRow::new("2 members", two, "1 member", one, "events/s"))
}

/// Form of the handlers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HandlerForm {
    /// Offsets are committed after the handler.
    Plain,
    /// Offsets are committed in the handler's transaction.
    Transactional,
}

/// Events received by the handlers.
struct Count {
    received: AtomicU64,
    all: u64,
    enough: Notify,
}

impl Count {
    fn count_batch(&self, batch: &EventBatch) {
        let before = self.received.fetch_add(batch.len() as u64, Ordering::Relaxed);
        if before < self.all && before + batch.len() as u64 >= self.all {
            self.enough.notify_one();
        }
    }
}

/// Events per second of members that find a filled topic: from the start of reading until all events are handled and
/// committed. The partitions are divided before.
async fn consume(
    url: &str,
    partitions: u32,
    members: usize,
    events: u64,
    form: HandlerForm,
) -> Result<f64, BenchError> {
    let topic = BenchTopic::topic(url, partitions).await?;
    topic.fill(events).await?;
    let group = GroupKey::new(topic.key.clone(), "bench".parse().map_err(tenure::Error::from)?);
    let store = topic.tenure.store().clone();
    store.set_group(&group, &GroupSettings::default(), tenure::port::StartOffset::Earliest).await?;
    let pause = Pause { paused_by: "bench".into(), reason: String::new(), paused_at_ms: wall_ms() };
    store.set_group_paused(&group, Some(&pause)).await?;
    let count = Arc::new(Count { received: AtomicU64::new(0), all: events, enough: Notify::new() });
    let mut running = Vec::new();
    for _ in 0..members {
        let tenure = Tenure::open(url).await?;
        let consumer = member(&tenure, url, &group, form, count.clone()).await?;
        running.push((tenure, consumer));
    }
    wait_until_divided(store.as_ref(), &group, partitions as usize, members).await?;
    let start = now();
    store.set_group_paused(&group, None).await?;
    count.enough.notified().await;
    // Also wait until all offsets are committed.
    while store.group(&group).await?.is_some_and(|view| view.lag().0 > 0) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let rate = per_second(events, now().since(start));
    for (tenure, consumer) in running {
        consumer.drain().await?;
        tenure.close().await?;
    }
    topic.end().await?;
    Ok(rate)
}

async fn member(
    tenure: &Tenure,
    url: &str,
    group: &GroupKey,
    form: HandlerForm,
    count: Arc<Count>,
) -> Result<Consumer, BenchError> {
    let builder = tenure.consumer(group.topic.name.as_str(), group.name.as_str()).namespace(crate::NAMESPACE);
    let builder = match form {
        HandlerForm::Plain => builder.handler(move |batch: EventBatch| {
            count.count_batch(&batch);
            async {}
        }),
        HandlerForm::Transactional => {
            let pool = sqlx::PgPool::connect(url).await?;
            builder.transactional(&pool, move |batch: EventBatch, tx| {
                count.count_batch(&batch);
                drop(tx);
                async { Ok::<_, HandlerError>(()) }
            })
        }
    };
    Ok(builder.start().await?)
}

/// Wait until each member has its share of the partitions.
async fn wait_until_divided(
    store: &dyn Store,
    group: &GroupKey,
    partitions: usize,
    members: usize,
) -> Result<(), BenchError> {
    loop {
        let Some(view) = store.group(group).await? else {
            return Err(BenchError::Helper("the group of the benchmark was deleted".into()));
        };
        let of = |session: &tenure::SessionId| {
            view.partitions
                .iter()
                .filter(|partition| partition.partition_lease.holder.as_ref() == Some(session))
                .count()
        };
        let parts: Vec<usize> = view.members.iter().map(|member| of(&member.session)).collect();
        let even = |part: &usize| (partitions / members..=partitions.div_ceil(members)).contains(part);
        if parts.len() == members && parts.iter().sum::<usize>() == partitions && parts.iter().all(even) {
            return Ok(());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Rows per second of one connection that reads partition after partition and decodes every row.
async fn scan(url: &str, events: u64) -> Result<f64, BenchError> {
    let mut connection = PgConnection::connect(url).await?;
    let (start, mut read) = (now(), 0);
    for partition in 0..PARTITIONS {
        let mut after = 0_i64;
        loop {
            let rows = sqlx::query(SCAN)
                .bind(i32::try_from(partition).unwrap_or(i32::MAX))
                .bind(after)
                .fetch_all(&mut connection)
                .await?;
            for row in &rows {
                let event: (i64, i32, i64, Option<String>, String, String, i64) = (
                    row.try_get("id")?,
                    row.try_get("partition")?,
                    row.try_get("offset")?,
                    row.try_get("key")?,
                    row.try_get("type")?,
                    row.try_get("payload")?,
                    row.try_get("published_at_ms")?,
                );
                after = std::hint::black_box(event).2;
            }
            read += rows.len() as u64;
            if rows.is_empty() {
                break;
            }
        }
    }
    let rate = per_second(read, now().since(start));
    connection.close().await?;
    match read == events {
        true => Ok(rate),
        false => Err(BenchError::Helper(format!("the plain scan read {read} of {events} rows"))),
    }
}

/// Latency from a publication to an idle topic until its handler starts.
pub(super) async fn latency(bench: &EventsBench, url: &str) -> Result<Vec<ComparisonRow>, BenchError> {
    let mut baseline = NotifyRoundTrip::connect(url).await?;
    let topic = BenchTopic::topic(url, PARTITIONS).await?;
    let reader = Tenure::open(url).await?;
    let (begun, mut begins) = mpsc::unbounded_channel();
    let handler = move |_: EventBatch| {
        // The receiver is gone after the measurement.
        let _ = begun.send(now());
        async {}
    };
    let consumer = reader
        .consumer(topic.name().as_str(), "bench")
        .namespace(crate::NAMESPACE)
        .handler(handler)
        .start()
        .await?;
    let (mut times, mut trips, mut durable) = (Vec::new(), Vec::new(), Vec::new());
    for n in 0..u64::from(bench.rounds) {
        trips.push(baseline.round_trip().await?);
        durable.push(baseline.durable_round_trip().await?);
        // Wait until the consumer is idle again.
        tokio::time::sleep(REST * 3).await;
        let start = now();
        topic.publisher.publish(event(n)).await?;
        let at = begins.recv().await.ok_or_else(|| BenchError::Helper("the consumer ended".into()))?;
        times.push(at.since(start));
    }
    consumer.drain().await?;
    reader.close().await?;
    topic.end().await?;
    let (times, trips, durable) = (median_ms(times), median_ms(trips), median_ms(durable));
    let what = "idle consumer: publication to handler, p50";
    Ok(vec![
        ComparisonRow::new(what, times, "NOTIFY round trip", trips, "ms").at_most(3.0),
        ComparisonRow::new(what, times, "NOTIFY round trip with a durable reply", durable, "ms"),
    ])
}
