//! Queues, emptied.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::{Connection, Executor, PgConnection};
use tenure::port::{Outcome, Pause, QueueKey, Settled, Settlement, TaskId};
use tenure::runtime::now;
use tenure::{Claimed, Tenure, Token};
use tokio::sync::{Notify, mpsc};

use super::pgbench::{self, Batch};
use super::{Compared, fill, per_second, queue, seat, task};
use crate::bare::{Folder, Server};
use crate::server::{Served, Wire};
use crate::{BenchError, REST, median_ms};

/// The connections with which the bare side is tried: its best counts.
const BARE_CLIENTS: [u64; 3] = [1, 8, 32];

/// How many tasks lie ready while a steady stream is measured.
const STEADY: u64 = 20_000;

/// How long a rate is watched beside a transaction that is held open.
const WATCHED: Duration = Duration::from_secs(10);

/// What to measure.
#[derive(Clone, Debug)]
pub struct DrainBench {
    /// `postgres://…` with Tenure's tables in it; without it only SQLite is measured, and nothing stands beside it.
    pub postgres: Option<String>,
    /// How many tasks a worker drains.
    pub tasks: u64,
    /// How many tasks it runs at once, and how many callers claim one by one.
    pub concurrency: usize,
    /// Backlogs, of each of which the same number is drained.
    pub backlogs: Vec<u64>,
    /// How long a transaction is held open beside the work.
    pub held_open: Duration,
    /// How many tasks are timed from submission to start.
    pub rounds: u32,
    /// The `tenure` program: the server is a process of its own.
    pub program: PathBuf,
}

/// Everything that was measured.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DrainReport {
    /// Comparisons.
    pub rows: Vec<Compared>,
}

/// Drains queues; `progress` is told what is being done.
pub async fn drain(bench: &DrainBench, progress: &dyn Fn(&str)) -> Result<DrainReport, BenchError> {
    let folder = Folder::new()?;
    let mut rows = Vec::new();
    match &bench.postgres {
        Some(url) => {
            rows.extend(rates(bench, url, &folder, progress).await?);
            rows.extend(backlogs(bench, url, progress).await?);
            progress("from submission to start, beside bare NOTIFY");
            rows.extend(idle(bench, url).await?);
            if !bench.held_open.is_zero() {
                progress(&format!("beside a transaction that is held open for {:?}", bench.held_open));
                rows.push(held_open(bench, url).await?);
            }
        }
        None => {
            progress("a worker and callers on SQLite");
            rows.extend(sqlite(bench, &folder.store("drain")).await?);
        }
    }
    Ok(DrainReport { rows })
}

async fn rates(
    bench: &DrainBench,
    url: &str,
    folder: &Folder,
    progress: &dyn Fn(&str),
) -> Result<Vec<Compared>, BenchError> {
    let (tasks, concurrency) = (bench.tasks, bench.concurrency);
    progress("bare: claim 100, complete 100");
    let mut best = (0.0, 0);
    for clients in BARE_CLIENTS {
        let rate = pgbench::drain(url, folder, Batch::Hundred, clients, tasks).await?;
        if rate > best.0 {
            best = (rate, clients);
        }
    }
    progress(&format!("a worker drains {tasks} tasks"));
    let worker = by_worker(url, "bench-worker", tasks, tasks, concurrency).await?;

    let few = tasks / 5;
    progress("bare: claim one, complete one");
    let one = pgbench::drain(url, folder, Batch::One, concurrency as u64, few).await?;
    pgbench::clear(url).await?;
    progress(&format!("{concurrency} callers, one by one, in the library"));
    let callers = by_callers(url, "bench-callers", tasks, concurrency).await?;
    progress(&format!("{concurrency} callers, one by one, over HTTP"));
    let http = over_http(bench, url, "bench-http", few).await?;

    let hundred = format!("claim 100, complete 100; {} connections, its best", best.1);
    let single = format!("claim one, complete one; {concurrency} connections");
    Ok(vec![
        Compared::new(format!("worker, concurrency {concurrency}"), worker, hundred, best.0, "tasks/s")
            .at_least(0.7),
        Compared::new(format!("{concurrency} callers, library"), callers, single.clone(), one, "tasks/s")
            .at_least(3.0),
        Compared::new(format!("{concurrency} callers, HTTP"), http, single, one, "tasks/s").at_least(3.0),
    ])
}

/// The same number of tasks, taken from the head of backlogs of different lengths.
async fn backlogs(
    bench: &DrainBench,
    url: &str,
    progress: &dyn Fn(&str),
) -> Result<Vec<Compared>, BenchError> {
    let Some(&shortest) = bench.backlogs.iter().min() else { return Ok(Vec::new()) };
    let mut first = None;
    let mut rows = Vec::new();
    for &backlog in &bench.backlogs {
        progress(&format!("{shortest} tasks from the head of {backlog}"));
        let rate =
            by_worker(url, &format!("bench-backlog-{backlog}"), backlog, shortest, bench.concurrency).await?;
        match first {
            None => first = Some((rate, backlog)),
            Some((beside, length)) => rows.push(
                Compared::new(
                    format!("worker, backlog of {backlog}"),
                    rate,
                    format!("the same, backlog of {length}"),
                    beside,
                    "tasks/s",
                )
                .at_least(0.9),
            ),
        }
    }
    Ok(rows)
}

/// Tasks per second of a worker that finds `backlog` tasks and is stopped once it has run `tasks` of them and everything that
/// it did is acknowledged.
async fn by_worker(
    url: &str,
    name: &str,
    backlog: u64,
    tasks: u64,
    concurrency: usize,
) -> Result<f64, BenchError> {
    let tenure = Tenure::open(url).await?;
    let queue = queue(name);
    fill(&tenure, &queue, backlog).await?;
    let (run, enough) = (Arc::new(AtomicU64::new(0)), Arc::new(Notify::new()));
    let handler = {
        let (run, enough) = (run.clone(), enough.clone());
        move |_| {
            if run.fetch_add(1, Ordering::Relaxed) + 1 == tasks {
                enough.notify_one();
            }
            async {}
        }
    };
    let start = now();
    let worker = tenure
        .worker(name)
        .namespace(crate::NAMESPACE)
        .concurrency(concurrency)
        .handler(handler)
        .start()
        .await?;
    enough.notified().await;
    worker.drain().await?;
    let rate = per_second(run.load(Ordering::Relaxed), now().since(start));
    leave(&tenure, &queue).await?;
    tenure.close().await?;
    Ok(rate)
}

/// What is left over stays where it is, and nobody trips over it.
async fn leave(tenure: &Tenure, queue: &QueueKey) -> Result<(), BenchError> {
    let pause = Pause { by: "bench".into(), reason: "left over".into(), at_ms: 0 };
    tenure.store().set_queue_paused(&queue.namespace, Some(&queue.name), Some(&pause)).await?;
    Ok(())
}

/// Tasks per second of callers that each claim one task, complete it, and claim the next.
async fn by_callers(url: &str, name: &str, tasks: u64, callers: usize) -> Result<f64, BenchError> {
    let tenure = Tenure::open(url).await?;
    let queue = queue(name);
    fill(&tenure, &queue, tasks).await?;
    let start = now();
    let running: Vec<_> = (0..callers)
        .map(|_| {
            let (tenure, queue) = (tenure.clone(), queue.clone());
            tokio::spawn(async move {
                let claims = tenure.claims();
                let mut done = 0u64;
                loop {
                    let claimed = claims.claim(&queue, seat(&tenure), Duration::ZERO).await?;
                    let Claimed::Tasks(tasks) = claimed else {
                        return Err(BenchError::Helper(format!("a claim was refused: {claimed:?}")));
                    };
                    let Some(task) = tasks.into_iter().next() else { return Ok(done) };
                    let settled = claims.settle(complete(task.id, task.token)).await?;
                    if settled == Settled::Lost {
                        return Err(BenchError::Helper(format!("the claim of task {} was lost", task.id)));
                    }
                    done += 1;
                }
            })
        })
        .collect();
    let mut done = 0;
    for caller in running {
        done += caller.await.map_err(|error| BenchError::Helper(error.to_string()))??;
    }
    let rate = per_second(done, now().since(start));
    tenure.close().await?;
    Ok(rate)
}

fn complete(task: TaskId, token: Token) -> Settlement {
    Settlement { namespace: super::namespace(), task, token, outcome: Outcome::Complete(None) }
}

/// The same over HTTP, each caller on a connection of its own.
async fn over_http(bench: &DrainBench, url: &str, name: &str, tasks: u64) -> Result<f64, BenchError> {
    #[derive(Deserialize)]
    struct Answer {
        tasks: Vec<Task>,
    }
    #[derive(Deserialize)]
    struct Task {
        id: u64,
        token: serde_json::Value,
    }
    let tenure = Tenure::open(url).await?;
    fill(&tenure, &queue(name), tasks).await?;
    tenure.close().await?;
    let served = Served::start(&bench.program, url).await?;
    let mut wires = Vec::new();
    for _ in 0..bench.concurrency {
        wires.push(served.wire().await?);
    }
    let claim = Wire::request("POST", &format!("/v1/queues/{name}/claim"), "{\"worker\":\"bench\"}");
    let start = now();
    let running: Vec<_> = wires
        .into_iter()
        .map(|mut wire| {
            let claim = claim.clone();
            tokio::spawn(async move {
                let mut done = 0u64;
                loop {
                    let answer = wire.round(&claim).await?;
                    let answer: Answer = serde_json::from_slice(&answer).map_err(|error| {
                        let answer = String::from_utf8_lossy(&answer);
                        BenchError::Helper(format!("a claim's answer: {error}: {answer}"))
                    })?;
                    let Some(task) = answer.tasks.first() else { return Ok::<_, BenchError>(done) };
                    let body = format!("{{\"token\":{}}}", task.token);
                    wire.post(&format!("/v1/tasks/{}/complete", task.id), &body).await?;
                    done += 1;
                }
            })
        })
        .collect();
    let mut done = 0;
    for caller in running {
        done += caller.await.map_err(|error| BenchError::Helper(error.to_string()))??;
    }
    let rate = per_second(done, now().since(start));
    served.stop().await?;
    Ok(rate)
}

/// From a submission to an idle queue until the handler has begun.
async fn idle(bench: &DrainBench, url: &str) -> Result<Vec<Compared>, BenchError> {
    let mut bare = Server::connect(url).await?;
    let (submitter, runner) = (Tenure::open(url).await?, Tenure::open(url).await?);
    let (begun, mut begins) = mpsc::unbounded_channel();
    let handler = move |_| {
        // Nobody listens any more once the measurement is over.
        let _ = begun.send(now());
        async {}
    };
    let worker = runner.worker("bench-idle").namespace(crate::NAMESPACE).handler(handler).start().await?;
    let key = queue("bench-idle");
    let (mut times, mut trips, mut durable) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        trips.push(bare.there_and_back().await?);
        durable.push(bare.there_and_durably_back().await?);
        // It goes to sleep again.
        tokio::time::sleep(REST * 3).await;
        let start = now();
        submitter.claims().submit(&key, vec![task()]).await?;
        let at = begins.recv().await.ok_or_else(|| BenchError::Helper("the worker ended".into()))?;
        times.push(at.since(start));
    }
    worker.drain().await?;
    runner.close().await?;
    submitter.close().await?;
    let (times, trips, durable) = (median_ms(times), median_ms(trips), median_ms(durable));
    let what = "idle: submitted to started";
    Ok(vec![
        Compared::new(what, times, "NOTIFY there and back", trips, "ms").at_most(2.0),
        Compared::new(what, times, "the same, the answer on the disk", durable, "ms"),
    ])
}

/// A steady stream, and the same at the end of a long transaction that keeps every dead row in place.
async fn held_open(bench: &DrainBench, url: &str) -> Result<Compared, BenchError> {
    let tenure = Tenure::open(url).await?;
    let key = queue("bench-held-open");
    let run = Arc::new(AtomicU64::new(0));
    let handler = {
        let run = run.clone();
        move |_| {
            run.fetch_add(1, Ordering::Relaxed);
            async {}
        }
    };
    fill(&tenure, &key, STEADY).await?;
    let feeder = tokio::spawn({
        let (tenure, key, run) = (tenure.clone(), key.clone(), run.clone());
        async move {
            let mut submitted = STEADY;
            loop {
                if submitted.saturating_sub(run.load(Ordering::Relaxed)) < STEADY {
                    if fill(&tenure, &key, super::SUBMIT).await.is_err() {
                        return;
                    }
                    submitted += super::SUBMIT;
                } else {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        }
    });
    let worker = tenure
        .worker("bench-held-open")
        .namespace(crate::NAMESPACE)
        .concurrency(bench.concurrency)
        .handler(handler)
        .start()
        .await?;
    let rate = async |window: Duration| {
        let (before, start) = (run.load(Ordering::Relaxed), now());
        tokio::time::sleep(window).await;
        per_second(run.load(Ordering::Relaxed) - before, now().since(start))
    };
    rate(Duration::from_secs(2)).await;
    let free = rate(WATCHED).await;
    let mut holder = PgConnection::connect(url).await?;
    holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM tenure.queues").await?;
    tokio::time::sleep(bench.held_open.saturating_sub(WATCHED)).await;
    let held = rate(WATCHED).await;
    holder.execute("ROLLBACK").await?;
    feeder.abort();
    worker.drain().await?;
    leave(&tenure, &key).await?;
    tenure.close().await?;
    let what = format!("steady stream, a transaction open for {:?}", bench.held_open);
    Ok(Compared::new(what, held, "the same without it", free, "tasks/s").at_least(0.5))
}

async fn sqlite(bench: &DrainBench, url: &str) -> Result<Vec<Compared>, BenchError> {
    let tasks = bench.tasks / 5;
    let callers = by_callers(url, "bench-callers", tasks, bench.concurrency).await?;
    let worker = by_worker(url, "bench-worker", tasks, tasks, bench.concurrency).await?;
    let what = format!("worker, concurrency {}", bench.concurrency);
    let beside = format!("{} callers, one by one", bench.concurrency);
    Ok(vec![Compared::new(what, worker, beside, callers, "tasks/s")])
}
