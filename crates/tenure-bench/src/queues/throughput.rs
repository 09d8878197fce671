//! Throughput and latency of queues.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::{Connection, Executor, PgConnection};
use tenure::port::{ClaimOutcome, Pause, QueueKey, SettleResult, Settlement, TaskId};
use tenure::runtime::now;
use tenure::{ClaimResult, Tenure, Token};
use tokio::sync::{Notify, mpsc};

use super::pgbench::{self, BatchSize};
use super::{ComparisonRow, claim_request, fill, per_second, queue, task};
use crate::baseline::{BenchDirectory, NotifyRoundTrip};
use crate::server::{RawConnection, ServerProcess};
use crate::{BenchError, REST, median_ms};

/// Numbers of connections tried for the baseline; the best result counts.
const BASELINE_CLIENTS: [u64; 3] = [1, 8, 32];

/// Number of ready tasks while a steady stream is measured.
const STEADY: u64 = 20_000;

/// Measurement window while a transaction is open.
const WATCHED: Duration = Duration::from_secs(10);

/// Options of the queue benchmark.
#[derive(Clone, Debug)]
pub struct QueuesBench {
    /// `postgres://…` with Tenure's schema; without it only SQLite is measured, without a baseline.
    pub postgres: Option<String>,
    /// Number of tasks that one worker processes.
    pub tasks: u64,
    /// Number of tasks that the worker runs at once; also the number of callers that claim one task at a time.
    pub concurrency: usize,
    /// Backlog sizes; each run processes as many tasks as the smallest backlog has.
    pub backlogs: Vec<u64>,
    /// How long a second transaction is kept open during the run.
    pub open_transaction: Duration,
    /// Number of tasks whose time from submission to start is measured.
    pub rounds: u32,
    /// The `tenure` program, which runs the server.
    pub program: PathBuf,
}

/// Results of the queue benchmark.
#[derive(Clone, Debug, Default, Serialize)]
pub struct QueuesReport {
    /// Comparisons.
    pub rows: Vec<ComparisonRow>,
}

/// Run the queue benchmark; `progress` receives the current step.
pub async fn queues(bench: &QueuesBench, progress: &dyn Fn(&str)) -> Result<QueuesReport, BenchError> {
    let directory = BenchDirectory::new()?;
    let mut rows = Vec::new();
    match &bench.postgres {
        Some(url) => {
            rows.extend(rates(bench, url, &directory, progress).await?);
            rows.extend(backlogs(bench, url, progress).await?);
            progress("latency from submission to start, baseline: NOTIFY");
            rows.extend(idle(bench, url).await?);
            if !bench.open_transaction.is_zero() {
                progress(&format!("with a transaction open for {:?}", bench.open_transaction));
                rows.push(with_open_transaction(bench, url).await?);
            }
        }
        None => {
            progress("worker and callers on SQLite");
            rows.extend(sqlite(bench, &directory.store("drain")).await?);
        }
    }
    Ok(QueuesReport { rows })
}

async fn rates(
    bench: &QueuesBench,
    url: &str,
    directory: &BenchDirectory,
    progress: &dyn Fn(&str),
) -> Result<Vec<ComparisonRow>, BenchError> {
    let (tasks, concurrency) = (bench.tasks, bench.concurrency);
    progress("baseline: claim 100, complete 100");
    let mut best = (0.0, 0);
    for clients in BASELINE_CLIENTS {
        let rate = pgbench::drain(url, directory, BatchSize::Hundred, clients, tasks).await?;
        if rate > best.0 {
            best = (rate, clients);
        }
    }
    progress(&format!("worker processes {tasks} tasks"));
    let worker = by_worker(url, "bench-worker", tasks, tasks, concurrency).await?;

    let few = tasks / 5;
    progress("baseline: claim one, complete one");
    let one = pgbench::drain(url, directory, BatchSize::One, concurrency as u64, few).await?;
    pgbench::clear(url).await?;
    progress(&format!("{concurrency} callers, one task at a time, library"));
    let callers = by_callers(url, "bench-callers", tasks, concurrency).await?;
    progress(&format!("{concurrency} callers, one task at a time, HTTP"));
    let http = callers_over_http(bench, url, "bench-http", few).await?;

    let hundred = format!("claim 100, complete 100; best of {} connections", best.1);
    let single = format!("claim one, complete one; {concurrency} connections");
    Ok(vec![
        ComparisonRow::new(format!("worker, concurrency {concurrency}"), worker, hundred, best.0, "tasks/s")
            .at_least(0.7),
        ComparisonRow::new(
            format!("{concurrency} callers, library"),
            callers,
            single.clone(),
            one,
            "tasks/s",
        )
        .at_least(3.0),
        ComparisonRow::new(format!("{concurrency} callers, HTTP"), http, single, one, "tasks/s")
            .at_least(3.0),
    ])
}

/// Process the same number of tasks from backlogs of different sizes.
async fn backlogs(
    bench: &QueuesBench,
    url: &str,
    progress: &dyn Fn(&str),
) -> Result<Vec<ComparisonRow>, BenchError> {
    let Some(&shortest) = bench.backlogs.iter().min() else { return Ok(Vec::new()) };
    let mut first = None;
    let mut rows = Vec::new();
    for &backlog in &bench.backlogs {
        progress(&format!("{shortest} tasks from a backlog of {backlog}"));
        let rate =
            by_worker(url, &format!("bench-backlog-{backlog}"), backlog, shortest, bench.concurrency).await?;
        match first {
            None => first = Some((rate, backlog)),
            Some((baseline_value, length)) => rows.push(
                ComparisonRow::new(
                    format!("worker, backlog of {backlog}"),
                    rate,
                    format!("worker, backlog of {length}"),
                    baseline_value,
                    "tasks/s",
                )
                .at_least(0.9),
            ),
        }
    }
    Ok(rows)
}

/// Tasks per second of a worker that finds `backlog` tasks and is stopped once it has run `tasks` of them and all
/// results are confirmed.
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

/// Pause a queue with remaining tasks, so that they are not processed later.
async fn leave(tenure: &Tenure, queue: &QueueKey) -> Result<(), BenchError> {
    let pause = Pause { paused_by: "bench".into(), reason: "benchmark finished".into(), paused_at_ms: 0 };
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
                let claims = tenure.tasks();
                let mut done = 0u64;
                loop {
                    let claimed = claims.claim(&queue, claim_request(&tenure), Duration::ZERO).await?;
                    let ClaimResult::Tasks(tasks) = claimed else {
                        return Err(BenchError::Helper(format!("a claim was rejected: {claimed:?}")));
                    };
                    let Some(task) = tasks.into_iter().next() else { return Ok(done) };
                    let settled = claims.settle(complete(task.id, task.token)).await?;
                    if settled == SettleResult::ClaimLost {
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
    Settlement { namespace: super::namespace(), task, token, outcome: ClaimOutcome::Complete(None) }
}

/// As [`by_callers`], over HTTP with one connection per caller.
async fn callers_over_http(
    bench: &QueuesBench,
    url: &str,
    name: &str,
    tasks: u64,
) -> Result<f64, BenchError> {
    #[derive(Deserialize)]
    struct ClaimReply {
        tasks: Vec<ClaimReplyTask>,
    }
    #[derive(Deserialize)]
    struct ClaimReplyTask {
        id: u64,
        token: serde_json::Value,
    }
    let tenure = Tenure::open(url).await?;
    fill(&tenure, &queue(name), tasks).await?;
    tenure.close().await?;
    let served = ServerProcess::start(&bench.program, url).await?;
    let mut connections = Vec::new();
    for _ in 0..bench.concurrency {
        connections.push(served.connect().await?);
    }
    let claim = RawConnection::request("POST", &format!("/v1/queues/{name}/claim"), "{\"worker\":\"bench\"}");
    let start = now();
    let running: Vec<_> = connections
        .into_iter()
        .map(|mut connection| {
            let claim = claim.clone();
            tokio::spawn(async move {
                let mut done = 0u64;
                loop {
                    let answer = connection.round(&claim).await?;
                    let answer: ClaimReply = serde_json::from_slice(&answer).map_err(|error| {
                        let answer = String::from_utf8_lossy(&answer);
                        BenchError::Helper(format!("cannot decode a claim response: {error}: {answer}"))
                    })?;
                    let Some(task) = answer.tasks.first() else { return Ok::<_, BenchError>(done) };
                    let body = format!("{{\"token\":{}}}", task.token);
                    connection.post(&format!("/v1/tasks/{}/complete", task.id), &body).await?;
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

/// Latency from a submission to an idle queue until its handler starts.
async fn idle(bench: &QueuesBench, url: &str) -> Result<Vec<ComparisonRow>, BenchError> {
    let mut baseline = NotifyRoundTrip::connect(url).await?;
    let (submitter, runner) = (Tenure::open(url).await?, Tenure::open(url).await?);
    let (begun, mut begins) = mpsc::unbounded_channel();
    let handler = move |_| {
        // The receiver is gone after the measurement.
        let _ = begun.send(now());
        async {}
    };
    let worker = runner.worker("bench-idle").namespace(crate::NAMESPACE).handler(handler).start().await?;
    let key = queue("bench-idle");
    let (mut times, mut trips, mut durable) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        trips.push(baseline.round_trip().await?);
        durable.push(baseline.durable_round_trip().await?);
        // Wait until the worker is idle again.
        tokio::time::sleep(REST * 3).await;
        let start = now();
        submitter.tasks().submit(&key, vec![task()]).await?;
        let at = begins.recv().await.ok_or_else(|| BenchError::Helper("the worker ended".into()))?;
        times.push(at.since(start));
    }
    worker.drain().await?;
    runner.close().await?;
    submitter.close().await?;
    let (times, trips, durable) = (median_ms(times), median_ms(trips), median_ms(durable));
    let what = "idle worker: submission to start";
    Ok(vec![
        ComparisonRow::new(what, times, "NOTIFY round trip", trips, "ms").at_most(2.0),
        ComparisonRow::new(what, times, "NOTIFY round trip with a durable reply", durable, "ms"),
    ])
}

/// Compare a steady stream of tasks without and with a long open transaction, which prevents vacuum of dead rows.
async fn with_open_transaction(bench: &QueuesBench, url: &str) -> Result<ComparisonRow, BenchError> {
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
    tokio::time::sleep(bench.open_transaction.saturating_sub(WATCHED)).await;
    let held = rate(WATCHED).await;
    holder.execute("ROLLBACK").await?;
    feeder.abort();
    worker.drain().await?;
    leave(&tenure, &key).await?;
    tenure.close().await?;
    let what = format!("steady stream with a transaction open for {:?}", bench.open_transaction);
    Ok(ComparisonRow::new(what, held, "steady stream", free, "tasks/s").at_least(0.5))
}

async fn sqlite(bench: &QueuesBench, url: &str) -> Result<Vec<ComparisonRow>, BenchError> {
    let tasks = bench.tasks / 5;
    let callers = by_callers(url, "bench-callers", tasks, bench.concurrency).await?;
    let worker = by_worker(url, "bench-worker", tasks, tasks, bench.concurrency).await?;
    let what = format!("worker, concurrency {}", bench.concurrency);
    let baseline = format!("{} callers, one task at a time", bench.concurrency);
    Ok(vec![ComparisonRow::new(what, worker, baseline, callers, "tasks/s")])
}
