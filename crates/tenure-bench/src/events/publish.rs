//! Publishing: in SQL by many connections, through the library one by one and many at once.

use std::time::Duration;

use sqlx::{Connection, PgConnection};
use tenure::Publisher;
use tenure::runtime::now;

use super::{Bench, EventsBench, KIND, MANY, PAYLOAD, beside_first, counted, event, median};
use crate::BenchError;
use crate::bare::Folder;
use crate::claims::pgbench::{self, Load};
use crate::claims::{Compared, per_second};

const INSERT: &str = include_str!("bare/insert.sql");
const PUBLISH: &str = include_str!("bare/publish.sql");
const INSERT_MANY: &str = include_str!("bare/insert_many.sql");

/// The slots of a topic, unless they are what is measured.
const SLOTS: u32 = 64;

/// How many writers there are where slots are measured.
const WRITERS: u64 = 16;

pub(super) async fn rates(
    bench: &EventsBench,
    url: &str,
    folder: &Folder,
    progress: &dyn Fn(&str),
) -> Result<Vec<Compared>, BenchError> {
    let topic = Bench::topic(url, SLOTS).await?;
    let mut rows = Vec::new();
    for &writers in &bench.writers {
        progress(&format!("publishing, {writers} at once, beside a bare insert"));
        let (mut bare, mut sql, mut library) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..bench.repeats.max(1) {
            bare.push(by_pgbench(bench, url, folder, INSERT, writers as u64).await?);
            sql.push(by_pgbench(bench, url, folder, &script(&topic), writers as u64).await?);
            library.push(by_callers(&topic.publisher, writers, bench.window).await?);
        }
        let connections = counted(writers as u64, "connection");
        let (bare, insert) = (median(bare), format!("bare insert, {connections}"));
        let compared =
            |what: String, rate| Compared::new(what, rate, insert.clone(), bare, "events/s").at_least(0.85);
        rows.push(compared(format!("tenure.publish(…), {connections}"), median(sql)));
        rows.push(compared(format!("library, {}", counted(writers as u64, "caller")), median(library)));
    }
    progress(&format!("publishing {MANY} at once, beside a bare insert"));
    let (mut bare, mut many) = (Vec::new(), Vec::new());
    for _ in 0..bench.repeats.max(1) {
        bare.push(insert_many(url, bench.window).await?);
        many.push(by_thousands(&topic.publisher, bench.window).await?);
    }
    let what = format!("library, {MANY} at once");
    rows.push(
        Compared::new(what, median(many), format!("bare insert of {MANY} rows"), median(bare), "events/s")
            .at_least(0.85),
    );
    topic.end().await?;
    Ok(rows)
}

/// The same with few slots and with many: they must not cost anything.
pub(super) async fn by_slots(
    bench: &EventsBench,
    url: &str,
    folder: &Folder,
    progress: &dyn Fn(&str),
) -> Result<Vec<Compared>, BenchError> {
    let mut figures = Vec::new();
    for &slots in &bench.slots {
        progress(&format!("publishing into {}", counted(slots, "slot")));
        let topic = Bench::topic(url, slots).await?;
        let rate = by_pgbench(bench, url, folder, &script(&topic), WRITERS).await?;
        topic.end().await?;
        figures.push((format!("tenure.publish(…), {WRITERS} connections, {}", counted(slots, "slot")), rate));
    }
    Ok(beside_first(figures, "events/s", Some(0.95)))
}

fn script(topic: &Bench) -> String {
    PUBLISH.replace(":topic", topic.name().as_str())
}

async fn by_pgbench(
    bench: &EventsBench,
    url: &str,
    folder: &Folder,
    script: &str,
    writers: u64,
) -> Result<f64, BenchError> {
    let load = Load::Seconds(bench.window.as_secs().max(1));
    pgbench::run(url, folder, ("publish.sql", script), writers, load).await
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

pub(super) async fn sqlite(bench: &EventsBench, url: &str) -> Result<Vec<Compared>, BenchError> {
    let topic = Bench::topic(url, SLOTS).await?;
    let mut figures = Vec::new();
    for &writers in &bench.writers {
        let rate = by_callers(&topic.publisher, writers, bench.window).await?;
        figures.push((format!("library, {}", counted(writers as u64, "caller")), rate));
    }
    figures.push((format!("library, {MANY} at once"), by_thousands(&topic.publisher, bench.window).await?));
    topic.end().await?;
    Ok(beside_first(figures, "events/s", None))
}
