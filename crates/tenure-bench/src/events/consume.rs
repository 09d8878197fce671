//! Consuming: by one member and by many, from few slots and from many; and how long an event takes to its handler.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sqlx::{Connection, PgConnection, Row};
use tenure::port::{Backend, GroupKey, GroupSettings, Pause};
use tenure::runtime::{now, wall_ms};
use tenure::{Batch, Consumer, HandlerError, Tenure};
use tokio::sync::{Notify, mpsc};

use super::{Bench, EventsBench, beside_first, counted, event, median};
use crate::bare::Server;
use crate::claims::{Compared, per_second, pgbench};
use crate::{BenchError, REST, median_ms};

const FILL: &str = include_str!("bare/fill.sql");
const SCAN: &str = include_str!("bare/scan.sql");

/// The slots of a topic, unless they are what is measured.
const SLOTS: u32 = 64;

/// How often it is looked whether the members have shared the slots.
const GLANCE: Duration = Duration::from_millis(20);

/// How many events a second are enough, whatever a bare scan does.
const ENOUGH: f64 = 50_000.0;

pub(super) async fn rates(
    bench: &EventsBench,
    url: &str,
    progress: &dyn Fn(&str),
) -> Result<Vec<Compared>, BenchError> {
    let fill = FILL.replace(":slots", &SLOTS.to_string()).replace(":count", &bench.events.to_string());
    pgbench::prepare(url, &fill).await?;
    let (mut bare, mut plain, mut transactional) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=bench.repeats.max(1) {
        progress(&format!("consuming {} events beside a bare indexed scan, {round}", bench.events));
        bare.push(scan(url, bench.events).await?);
        plain.push(consume(url, SLOTS, 1, bench.events, Form::Plain).await?);
        transactional.push(consume(url, SLOTS, 1, bench.events, Form::Transactional).await?);
    }
    let (bare, scan) = (median(bare), "bare indexed scan, 1000 rows at a time");
    let compared = |what: &str, rate: f64| {
        Compared::new(what, rate, scan, bare, "events/s").at_least(0.6).or_enough(ENOUGH)
    };
    Ok(vec![
        compared("consumer, offsets committed per batch", median(plain)),
        compared("the same, in the handler's transaction", median(transactional)),
    ])
}

pub(super) async fn by_slots(
    bench: &EventsBench,
    url: &str,
    progress: &dyn Fn(&str),
) -> Result<Vec<Compared>, BenchError> {
    let mut figures = Vec::new();
    for &slots in &bench.slots {
        progress(&format!("consuming {} events from {}", bench.events, counted(slots, "slot")));
        let rate = consume(url, slots, 1, bench.events, Form::Plain).await?;
        figures.push((format!("consumer, {}", counted(slots, "slot")), rate));
    }
    Ok(beside_first(figures, "events/s", Some(0.95)))
}

pub(super) async fn by_members(
    bench: &EventsBench,
    url: &str,
    progress: &dyn Fn(&str),
) -> Result<Vec<Compared>, BenchError> {
    let mut figures = Vec::new();
    for &members in &bench.members {
        let by = counted(members as u64, "member");
        progress(&format!("consuming {} events by {by}", bench.events));
        let rate = consume(url, SLOTS, members, bench.events, Form::Plain).await?;
        figures.push((format!("{by}, {SLOTS} slots"), rate));
    }
    Ok(beside_first(figures, "events/s", None))
}

pub(super) async fn sqlite(bench: &EventsBench, url: &str) -> Result<Compared, BenchError> {
    let events = bench.events / 5;
    let one = consume(url, SLOTS, 1, events, Form::Plain).await?;
    let two = consume(url, SLOTS, 2, events, Form::Plain).await?;
    Ok(Compared::new("2 members", two, "1 member", one, "events/s"))
}

/// What the members' handlers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// What is done is said afterwards.
    Plain,
    /// It is said in the handler's own transaction.
    Transactional,
}

/// What has come to the handlers.
struct Count {
    seen: AtomicU64,
    all: u64,
    enough: Notify,
}

impl Count {
    fn saw(&self, batch: &Batch) {
        let before = self.seen.fetch_add(batch.len() as u64, Ordering::Relaxed);
        if before < self.all && before + batch.len() as u64 >= self.all {
            self.enough.notify_one();
        }
    }
}

/// Events per second of members that find so many: from when they may read until all are handled and said to be. The slots are shared
/// out before.
async fn consume(url: &str, slots: u32, members: usize, events: u64, form: Form) -> Result<f64, BenchError> {
    let topic = Bench::topic(url, slots).await?;
    topic.fill(events).await?;
    let group = GroupKey::new(topic.key.clone(), "bench".parse().map_err(tenure::Error::from)?);
    let store = topic.tenure.store().clone();
    store.set_group(&group, &GroupSettings::default(), tenure::port::Begin::Earliest).await?;
    let pause = Pause { by: "bench".into(), reason: String::new(), at_ms: wall_ms() };
    store.set_group_paused(&group, Some(&pause)).await?;
    let count = Arc::new(Count { seen: AtomicU64::new(0), all: events, enough: Notify::new() });
    let mut running = Vec::new();
    for _ in 0..members {
        let tenure = Tenure::open(url).await?;
        let consumer = member(&tenure, url, &group, form, count.clone()).await?;
        running.push((tenure, consumer));
    }
    shared_out(store.as_ref(), &group, slots as usize, members).await?;
    let start = now();
    store.set_group_paused(&group, None).await?;
    count.enough.notified().await;
    // Until what was handled is committed, too.
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
    form: Form,
    count: Arc<Count>,
) -> Result<Consumer, BenchError> {
    let builder = tenure.consumer(group.topic.name.as_str(), group.name.as_str()).namespace(crate::NAMESPACE);
    let builder = match form {
        Form::Plain => builder.handler(move |batch: Batch| {
            count.saw(&batch);
            async {}
        }),
        Form::Transactional => {
            let pool = sqlx::PgPool::connect(url).await?;
            builder.transactional(&pool, move |batch: Batch, tx| {
                count.saw(&batch);
                drop(tx);
                async { Ok::<_, HandlerError>(()) }
            })
        }
    };
    Ok(builder.start().await?)
}

/// Until each member has its part.
async fn shared_out(
    store: &dyn Backend,
    group: &GroupKey,
    slots: usize,
    members: usize,
) -> Result<(), BenchError> {
    loop {
        let Some(view) = store.group(group).await? else {
            return Err(BenchError::Helper("the group of the bench is gone".into()));
        };
        let of = |session: &tenure::SessionId| {
            view.slots.iter().filter(|slot| slot.share.holder.as_ref() == Some(session)).count()
        };
        let parts: Vec<usize> = view.members.iter().map(|member| of(&member.session)).collect();
        let even = |part: &usize| (slots / members..=slots.div_ceil(members)).contains(part);
        if parts.len() == members && parts.iter().sum::<usize>() == slots && parts.iter().all(even) {
            return Ok(());
        }
        tokio::time::sleep(GLANCE).await;
    }
}

/// Rows per second of one connection that reads slot after slot, and takes every row apart.
async fn scan(url: &str, events: u64) -> Result<f64, BenchError> {
    let mut connection = PgConnection::connect(url).await?;
    let (start, mut read) = (now(), 0);
    for slot in 0..SLOTS {
        let mut after = 0_i64;
        loop {
            let rows = sqlx::query(SCAN)
                .bind(i32::try_from(slot).unwrap_or(i32::MAX))
                .bind(after)
                .fetch_all(&mut connection)
                .await?;
            for row in &rows {
                let event: (i64, i32, i64, Option<String>, String, String, i64) = (
                    row.try_get("id")?,
                    row.try_get("slot")?,
                    row.try_get("position")?,
                    row.try_get("key")?,
                    row.try_get("kind")?,
                    row.try_get("payload")?,
                    row.try_get("at_ms")?,
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
        false => Err(BenchError::Helper(format!("the bare scan read {read} of {events} rows"))),
    }
}

/// From a publication to an idle topic until the handler has begun.
pub(super) async fn latency(bench: &EventsBench, url: &str) -> Result<Vec<Compared>, BenchError> {
    let mut bare = Server::connect(url).await?;
    let topic = Bench::topic(url, SLOTS).await?;
    let reader = Tenure::open(url).await?;
    let (begun, mut begins) = mpsc::unbounded_channel();
    let handler = move |_: Batch| {
        // Nobody listens any more once the measurement is over.
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
        trips.push(bare.there_and_back().await?);
        durable.push(bare.there_and_durably_back().await?);
        // It goes to sleep again.
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
    let what = "idle: published to handler, p50";
    Ok(vec![
        Compared::new(what, times, "NOTIFY there and back", trips, "ms").at_most(3.0),
        Compared::new(what, times, "the same, the answer on the disk", durable, "ms"),
    ])
}
