//! Server benchmarks, compared with the plain statements.

mod baseline;
mod child;
mod load;

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use tenure::runtime::now;

pub(crate) use self::child::ServerProcess;
pub(crate) use self::load::RawConnection;
use self::load::{LoadResult, LoadSpec};
use crate::baseline::BenchDirectory;
use crate::{BenchError, median_ms};

/// Options of the server benchmark.
#[derive(Clone, Debug)]
pub struct ServerBench {
    /// `postgres://…` with Tenure's schema; without it only SQLite is measured.
    pub postgres: Option<String>,
    /// Number of concurrent connections.
    pub connections: usize,
    /// Measurement window.
    pub window: Duration,
    /// Number of idle streams.
    pub streams: usize,
    /// Number of server starts.
    pub starts: u32,
    /// The `tenure` program, which runs the server.
    pub program: PathBuf,
}

/// Request rate with its baseline.
#[derive(Clone, Debug, Serialize)]
pub struct RateRow {
    /// Store.
    pub store: &'static str,
    /// Request.
    pub operation: &'static str,
    /// Baseline operation.
    pub baseline: &'static str,
    /// Figures of the server.
    pub tenure: LoadResult,
    /// Figures of the baseline.
    pub baseline_value: LoadResult,
    /// Requests per second divided by statements per second.
    pub ratio: f64,
    /// Minimum ratio, if there is one.
    pub min_ratio: Option<f64>,
}

/// Cost of idle streams.
#[derive(Clone, Debug, Serialize)]
pub struct StreamCost {
    /// Number of streams.
    pub streams: usize,
    /// Resident memory of the server without streams in MiB.
    pub before_mib: f64,
    /// Resident memory with streams in MiB.
    pub after_mib: f64,
    /// Memory per stream in KiB.
    pub each_kib: f64,
    /// Maximum resident memory in MiB.
    pub max_mib: f64,
}

/// Results of the server benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct ServerReport {
    /// Request rates.
    pub rates: Vec<RateRow>,
    /// Idle streams.
    pub streams: StreamCost,
    /// Time from the process start to the first response on SQLite in milliseconds.
    pub startup_ms: f64,
    /// Maximum startup time in milliseconds.
    pub max_startup_ms: f64,
}

/// Run the server benchmark; `progress` receives the current step.
pub async fn server(bench: &ServerBench, progress: &dyn Fn(&str)) -> Result<ServerReport, BenchError> {
    let directory = BenchDirectory::new()?;
    progress("starting the server");
    let start_up_ms = start_up(bench, &directory).await?;
    let mut rates = Vec::new();
    if let Some(url) = &bench.postgres {
        progress("reads and heartbeats on PostgreSQL");
        rates.extend(measure(bench, "postgres", url).await?);
    }
    progress("reads and heartbeats on SQLite");
    rates.extend(measure(bench, "sqlite", &directory.store("rates")).await?);
    progress(&format!("{} idle streams", bench.streams));
    let watchers = watch(bench, &directory).await?;
    Ok(ServerReport { rates, streams: watchers, startup_ms: start_up_ms, max_startup_ms: 100.0 })
}

async fn start_up(bench: &ServerBench, directory: &BenchDirectory) -> Result<f64, BenchError> {
    let mut times = Vec::new();
    for round in 0..bench.starts {
        let start = now();
        let served =
            ServerProcess::start(&bench.program, &directory.store(&format!("start-{round}"))).await?;
        served.connect().await?.get("/healthz").await?;
        times.push(now().since(start));
        served.stop().await?;
    }
    Ok(median_ms(times))
}

async fn measure(bench: &ServerBench, store: &'static str, url: &str) -> Result<Vec<RateRow>, BenchError> {
    let served = ServerProcess::start(&bench.program, url).await?;
    let sessions = sessions(&served, bench.connections).await?;
    let load = LoadSpec { connections: bench.connections, window: bench.window };

    let read = load
        .requests(&served, |_| {
            RawConnection::request("GET", "/v1/elections/bench-0/leader?namespace=tenure-bench", "")
        })
        .await?;
    let library_read = load.statements(|_| baseline::ElectionReadBaseline::open(url)).await?;
    let key = load.statements(|_| baseline::RowReadBaseline::open(url)).await?;
    let heartbeat =
        |n: usize| RawConnection::request("POST", &format!("/v1/sessions/{}/heartbeat", sessions[n]), "");
    let heartbeats = load.requests(&served, heartbeat).await?;
    let heartbeat_statements =
        load.statements(|n| baseline::HeartbeatBaseline::open(url, sessions[n].clone())).await?;
    served.stop().await?;

    let rate = |operation, baseline, tenure: &LoadResult, baseline_value: LoadResult, min_ratio| RateRow {
        store,
        operation,
        baseline,
        ratio: tenure.per_second / baseline_value.per_second,
        tenure: tenure.clone(),
        baseline_value,
        min_ratio,
    };
    Ok(vec![
        rate("read a leader", "library read", &read, library_read, Some(20.0)),
        rate("read a leader", "one row by key", &read, key, None),
        rate("heartbeat", "heartbeat statement", &heartbeats, heartbeat_statements, None),
    ])
}

/// Start candidates that lead one election each.
async fn sessions(served: &ServerProcess, count: usize) -> Result<Vec<String>, BenchError> {
    let mut connection = served.connect().await?;
    let mut sessions = Vec::new();
    for number in 0..count {
        let body = format!("{{\"name\":\"bench-{number}\",\"lease_ms\":600000,\"wait_ms\":2000}}");
        let answer = connection
            .post(&format!("/v1/elections/bench-{number}/campaign?namespace=tenure-bench"), &body)
            .await?;
        let answer: serde_json::Value = serde_json::from_slice(&answer)
            .map_err(|error| BenchError::Helper(format!("cannot decode a campaign response: {error}")))?;
        let session = answer["session"].as_str().filter(|_| answer["leading"] == true);
        let session =
            session.ok_or_else(|| BenchError::Helper(format!("the candidate was not elected: {answer}")))?;
        sessions.push(session.to_owned());
    }
    Ok(sessions)
}

async fn watch(bench: &ServerBench, directory: &BenchDirectory) -> Result<StreamCost, BenchError> {
    let served = ServerProcess::start(&bench.program, &directory.store("watchers")).await?;
    let _sessions = sessions(&served, 1).await?;
    let before_mib = served.resident_mib()?;
    let mut open = Vec::new();
    for _ in 0..bench.streams {
        let mut connection = served.connect().await?;
        connection.stream("/v1/elections/bench-0/watch?namespace=tenure-bench").await?;
        open.push(connection);
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let after_mib = served.resident_mib()?;
    drop(open);
    served.stop().await?;
    let each_kib = (after_mib - before_mib) * 1024.0 / bench.streams.max(1) as f64;
    Ok(StreamCost { streams: bench.streams, before_mib, after_mib, each_kib, max_mib: 40.0 })
}
