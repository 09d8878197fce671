//! What strict order costs: the same tasks, claimed one by one through one replica and through nine, in both modes.

use std::path::PathBuf;
use std::process::Stdio;

use serde::Serialize;
use tenure::Tenure;
use tenure::port::{Desk, Mode, QueueSettings};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::pgbench::{self, Batch};
use super::replica::Measured;
use super::{fill, queue};
use crate::BenchError;
use crate::bare::Folder;

/// What to measure.
#[derive(Clone, Debug)]
pub struct AssignBench {
    /// The store.
    pub store: String,
    /// `store` again, if it is PostgreSQL: then the bare statements stand beside the tables.
    pub postgres: Option<String>,
    /// How many replicas.
    pub replicas: Vec<usize>,
    /// In which modes.
    pub modes: Vec<Mode>,
    /// How many tasks.
    pub tasks: u64,
    /// How many callers, shared out among the replicas.
    pub callers: usize,
    /// The `tenure` program: each replica runs it.
    pub program: PathBuf,
}

/// One line of a table.
#[derive(Clone, Debug, Serialize)]
pub struct AssignRow {
    /// The mode.
    pub mode: Mode,
    /// How many replicas.
    pub replicas: usize,
    /// How many tasks were claimed.
    pub successful: u64,
    /// How many claims went wrong.
    pub failed: u64,
    /// How long a claim took on average, in milliseconds.
    pub average_ms: f64,
    /// 95 of 100 took no longer.
    pub p95_ms: f64,
    /// 99 of 100.
    pub p99_ms: f64,
    /// Claims per second, all replicas together.
    pub per_second: f64,
}

/// Everything that was measured.
#[derive(Clone, Debug, Default, Serialize)]
pub struct AssignReport {
    /// The tables.
    pub rows: Vec<AssignRow>,
    /// The bare statement, claim and complete, one at a time with as many connections as callers, per second.
    pub bare_one: Option<f64>,
    /// The same, a hundred at a time.
    pub bare_hundred: Option<f64>,
}

impl AssignReport {
    /// The line of a mode and a number of replicas.
    pub fn row(&self, mode: Mode, replicas: usize) -> Option<&AssignRow> {
        self.rows.iter().find(|row| row.mode == mode && row.replicas == replicas)
    }
}

/// Measures both modes; `progress` is told what is being done.
pub async fn assign(bench: &AssignBench, progress: &dyn Fn(&str)) -> Result<AssignReport, BenchError> {
    let mut report = AssignReport::default();
    if let Some(url) = &bench.postgres {
        progress("the bare statements");
        let folder = Folder::new()?;
        let drain =
            async |batch| pgbench::drain(url, &folder, batch, bench.callers as u64, bench.tasks).await;
        report.bare_one = Some(drain(Batch::One).await?);
        report.bare_hundred = Some(drain(Batch::Hundred).await?);
        pgbench::clear(url).await?;
    }
    for &mode in &bench.modes {
        for &replicas in &bench.replicas {
            progress(&format!("{}, {replicas} replicas", mode.as_str()));
            report.rows.push(measure(bench, mode, replicas).await?);
        }
    }
    Ok(report)
}

async fn measure(bench: &AssignBench, mode: Mode, replicas: usize) -> Result<AssignRow, BenchError> {
    let name = format!("bench-{}-{replicas}-{:x}", mode.as_str(), tenure::runtime::random());
    let tenure = Tenure::open(&bench.store).await?;
    let settings = QueueSettings { mode, ..QueueSettings::default() };
    for key in [queue(&name), queue(&format!("{name}-warm"))] {
        Desk::set_queue(tenure.store().as_ref(), &key, &settings).await?;
    }
    fill(&tenure, &queue(&name), bench.tasks).await?;
    tenure.close().await?;

    let mut children = Vec::new();
    for number in 0..replicas {
        // Shared out as evenly as it goes.
        let callers = bench.callers / replicas + usize::from(number < bench.callers % replicas);
        children.push(Running::start(bench, &name, callers).await?);
    }
    for child in &mut children {
        child.hear().await?;
    }
    for child in &mut children {
        child.say().await?;
    }
    let mut all = Measured::default();
    for child in &mut children {
        let line = child.hear().await?;
        let measured: Measured = serde_json::from_str(&line)
            .map_err(|error| BenchError::Helper(format!("a replica's answer: {error}: {line}")))?;
        all.micros.extend(measured.micros);
        all.failed += measured.failed;
        all.took_micros = all.took_micros.max(measured.took_micros);
    }
    for mut child in children {
        child.say().await?;
        child.child.wait().await?;
    }
    Ok(row(mode, replicas, all))
}

fn row(mode: Mode, replicas: usize, mut all: Measured) -> AssignRow {
    all.micros.sort_unstable();
    let count = all.micros.len();
    let at = |part: f64| {
        let place = ((count as f64 * part) as usize).min(count.saturating_sub(1));
        all.micros.get(place).map_or(f64::NAN, |&micros| micros as f64 / 1e3)
    };
    AssignRow {
        mode,
        replicas,
        successful: count as u64,
        failed: all.failed,
        average_ms: all.micros.iter().sum::<u64>() as f64 / count.max(1) as f64 / 1e3,
        p95_ms: at(0.95),
        p99_ms: at(0.99),
        per_second: count as f64 * 1e6 / all.took_micros.max(1) as f64,
    }
}

/// A replica that runs.
struct Running {
    child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    async fn start(bench: &AssignBench, queue: &str, callers: usize) -> Result<Running, BenchError> {
        let mut child = Command::new(&bench.program)
            .args(["bench", "replica", "--queue", queue, "--callers", &callers.to_string()])
            .env("TENURE_STORE", &bench.store)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let lost = || BenchError::Helper("a replica has no standard streams".into());
        let input = child.stdin.take().ok_or_else(lost)?;
        let lines = BufReader::new(child.stdout.take().ok_or_else(lost)?).lines();
        Ok(Running { child, input, lines })
    }

    async fn hear(&mut self) -> Result<String, BenchError> {
        let line = self.lines.next_line().await?;
        line.ok_or_else(|| BenchError::Helper("a replica ended before its time; it said why above".into()))
    }

    async fn say(&mut self) -> Result<(), BenchError> {
        Ok(self.input.write_all(b"go\n").await?)
    }
}
