//! The server beside the bare statements behind it.

mod bare;
mod child;
mod load;

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use tenure::runtime::now;

pub(crate) use self::child::Served;
pub(crate) use self::load::Wire;
use self::load::{Load, Measured};
use crate::bare::Folder;
use crate::{BenchError, median_ms};

/// What to measure.
#[derive(Clone, Debug)]
pub struct ServerBench {
    /// `postgres://…` with Tenure's tables in it; without it only SQLite is measured.
    pub postgres: Option<String>,
    /// How many connections ask at once, on both sides.
    pub connections: usize,
    /// For how long each side is measured.
    pub window: Duration,
    /// How many idle watchers there are.
    pub watchers: usize,
    /// How often the server is started.
    pub starts: u32,
    /// The `tenure` program: the server is a process of its own.
    pub program: PathBuf,
}

/// Requests beside statements.
#[derive(Clone, Debug, Serialize)]
pub struct Rate {
    /// The store.
    pub store: &'static str,
    /// What was asked of the server.
    pub what: &'static str,
    /// What it is compared with.
    pub bare: &'static str,
    /// The server.
    pub tenure: Measured,
    /// The bare statement.
    pub beside: Measured,
    /// Requests per second to statements per second.
    pub ratio: f64,
    /// The ratio to reach, if there is one.
    pub aim: Option<f64>,
}

/// What idle watchers cost.
#[derive(Clone, Debug, Serialize)]
pub struct Watchers {
    /// How many.
    pub watchers: usize,
    /// Resident memory of the server without them, in MiB.
    pub before_mib: f64,
    /// With them.
    pub after_mib: f64,
    /// For each, in KiB.
    pub each_kib: f64,
    /// The resident memory to stay below, in MiB.
    pub aim_mib: f64,
}

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct ServerReport {
    /// Requests beside statements.
    pub rates: Vec<Rate>,
    /// Idle watchers.
    pub watchers: Watchers,
    /// From the start of the process to its first answer, on SQLite, in milliseconds.
    pub start_up_ms: f64,
    /// The start-up time to stay below, in milliseconds.
    pub start_up_aim_ms: f64,
}

/// Measures the server; `progress` is told what is being done.
pub async fn server(bench: &ServerBench, progress: &dyn Fn(&str)) -> Result<ServerReport, BenchError> {
    let folder = Folder::new()?;
    progress("starting the server");
    let start_up_ms = start_up(bench, &folder).await?;
    let mut rates = Vec::new();
    if let Some(url) = &bench.postgres {
        progress("reading and renewing on PostgreSQL");
        rates.extend(measure(bench, "postgres", url).await?);
    }
    progress("reading and renewing on SQLite");
    rates.extend(measure(bench, "sqlite", &folder.store("rates")).await?);
    progress(&format!("{} idle watchers", bench.watchers));
    let watchers = watch(bench, &folder).await?;
    Ok(ServerReport { rates, watchers, start_up_ms, start_up_aim_ms: 100.0 })
}

async fn start_up(bench: &ServerBench, folder: &Folder) -> Result<f64, BenchError> {
    let mut times = Vec::new();
    for round in 0..bench.starts {
        let start = now();
        let served = Served::start(&bench.program, &folder.store(&format!("start-{round}"))).await?;
        served.wire().await?.get("/healthz").await?;
        times.push(now().since(start));
        served.stop().await?;
    }
    Ok(median_ms(times))
}

async fn measure(bench: &ServerBench, store: &'static str, url: &str) -> Result<Vec<Rate>, BenchError> {
    let served = Served::start(&bench.program, url).await?;
    let sessions = sessions(&served, bench.connections).await?;
    let load = Load { connections: bench.connections, window: bench.window };

    let read = load
        .requests(&served, |_| {
            Wire::request("GET", "/v1/elections/bench-0/leader?namespace=tenure-bench", "")
        })
        .await?;
    let look = load.statements(|_| bare::Look::open(url)).await?;
    let key = load.statements(|_| bare::Read::open(url)).await?;
    let renew = |n: usize| Wire::request("POST", &format!("/v1/sessions/{}/renew", sessions[n]), "");
    let renewed = load.requests(&served, renew).await?;
    let beaten = load.statements(|n| bare::Beat::open(url, sessions[n].clone())).await?;
    served.stop().await?;

    let rate = |what, bare, tenure: &Measured, beside: Measured, aim| Rate {
        store,
        what,
        bare,
        ratio: tenure.per_second / beside.per_second,
        tenure: tenure.clone(),
        beside,
        aim,
    };
    Ok(vec![
        rate("read a leader", "the look behind it", &read, look, Some(20.0)),
        rate("read a leader", "a row by its key", &read, key, None),
        rate("renew", "the beat behind it", &renewed, beaten, None),
    ])
}

/// Candidates that lead an election each.
async fn sessions(served: &Served, count: usize) -> Result<Vec<String>, BenchError> {
    let mut wire = served.wire().await?;
    let mut sessions = Vec::new();
    for number in 0..count {
        let body = format!("{{\"id\":\"bench-{number}\",\"lease_ms\":600000,\"wait_ms\":2000}}");
        let answer = wire
            .post(&format!("/v1/elections/bench-{number}/campaign?namespace=tenure-bench"), &body)
            .await?;
        let answer: serde_json::Value = serde_json::from_slice(&answer)
            .map_err(|error| BenchError::Helper(format!("a campaign's answer: {error}")))?;
        let session = answer["session"].as_str().filter(|_| answer["leading"] == true);
        let session = session.ok_or_else(|| BenchError::Helper(format!("nobody was elected: {answer}")))?;
        sessions.push(session.to_owned());
    }
    Ok(sessions)
}

async fn watch(bench: &ServerBench, folder: &Folder) -> Result<Watchers, BenchError> {
    let served = Served::start(&bench.program, &folder.store("watchers")).await?;
    let _sessions = sessions(&served, 1).await?;
    let before_mib = served.resident_mib()?;
    let mut open = Vec::new();
    for _ in 0..bench.watchers {
        let mut wire = served.wire().await?;
        wire.stream("/v1/elections/bench-0/watch?namespace=tenure-bench").await?;
        open.push(wire);
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let after_mib = served.resident_mib()?;
    drop(open);
    served.stop().await?;
    let each_kib = (after_mib - before_mib) * 1024.0 / bench.watchers.max(1) as f64;
    Ok(Watchers { watchers: bench.watchers, before_mib, after_mib, each_kib, aim_mib: 40.0 })
}
