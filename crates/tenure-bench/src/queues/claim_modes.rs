//! Cost of strict order: the same tasks, claimed one by one through several replicas in both modes.

use std::path::PathBuf;
use std::process::Stdio;

use serde::Serialize;
use tenure::Tenure;
use tenure::port::{AssignmentMode, QueueSettings, TaskAdmin};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::pgbench::{self, BatchSize};
use super::replica::ReplicaResult;
use super::{fill, queue};
use crate::BenchError;
use crate::baseline::BenchDirectory;

/// Options of the claim mode benchmark.
#[derive(Clone, Debug)]
pub struct ClaimModesBench {
    /// Store URL.
    pub store: String,
    /// `store` again, if it is PostgreSQL: enables the baselines.
    pub postgres: Option<String>,
    /// Numbers of replicas.
    pub replicas: Vec<usize>,
    /// Modes to measure.
    pub modes: Vec<AssignmentMode>,
    /// Number of tasks.
    pub tasks: u64,
    /// Number of callers, divided among the replicas.
    pub callers: usize,
    /// The `tenure` program, run by each replica.
    pub program: PathBuf,
}

/// Result of one mode with one number of replicas.
#[derive(Clone, Debug, Serialize)]
pub struct ClaimModesRow {
    /// Assignment mode.
    pub mode: AssignmentMode,
    /// Number of replicas.
    pub replicas: usize,
    /// Number of claimed tasks.
    pub successful: u64,
    /// Number of failed claims.
    pub failed: u64,
    /// Average duration of a claim in milliseconds.
    pub average_ms: f64,
    /// 95th percentile.
    pub p95_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Claims per second of all replicas.
    pub per_second: f64,
}

/// Results of the claim mode benchmark.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ClaimModesReport {
    /// Results by mode and number of replicas.
    pub rows: Vec<ClaimModesRow>,
    /// Baseline: tasks per second claimed and completed one at a time, with as many connections as callers.
    pub baseline_one: Option<f64>,
    /// Baseline with one hundred tasks at a time.
    pub baseline_hundred: Option<f64>,
}

impl ClaimModesReport {
    /// Result of a mode and a number of replicas.
    pub fn row(&self, mode: AssignmentMode, replicas: usize) -> Option<&ClaimModesRow> {
        self.rows.iter().find(|row| row.mode == mode && row.replicas == replicas)
    }
}

/// Run the claim mode benchmark; `progress` receives the current step.
pub async fn claim_modes(
    bench: &ClaimModesBench,
    progress: &dyn Fn(&str),
) -> Result<ClaimModesReport, BenchError> {
    let mut report = ClaimModesReport::default();
    if let Some(url) = &bench.postgres {
        progress("baseline: plain statements");
        let directory = BenchDirectory::new()?;
        let drain =
            async |batch| pgbench::drain(url, &directory, batch, bench.callers as u64, bench.tasks).await;
        report.baseline_one = Some(drain(BatchSize::One).await?);
        report.baseline_hundred = Some(drain(BatchSize::Hundred).await?);
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

async fn measure(
    bench: &ClaimModesBench,
    mode: AssignmentMode,
    replicas: usize,
) -> Result<ClaimModesRow, BenchError> {
    let name = format!("bench-{}-{replicas}-{:x}", mode.as_str(), tenure::runtime::random());
    let tenure = Tenure::open(&bench.store).await?;
    let settings = QueueSettings { mode, ..QueueSettings::default() };
    for key in [queue(&name), queue(&format!("{name}-warm"))] {
        TaskAdmin::set_queue(tenure.store().as_ref(), &key, &settings).await?;
    }
    fill(&tenure, &queue(&name), bench.tasks).await?;
    tenure.close().await?;

    let mut children = Vec::new();
    for number in 0..replicas {
        // Divide the callers evenly.
        let callers = bench.callers / replicas + usize::from(number < bench.callers % replicas);
        children.push(ReplicaProcess::start(bench, &name, callers).await?);
    }
    for child in &mut children {
        child.read_line().await?;
    }
    for child in &mut children {
        child.write_line().await?;
    }
    let mut all = ReplicaResult::default();
    for child in &mut children {
        let line = child.read_line().await?;
        let measured: ReplicaResult = serde_json::from_str(&line).map_err(|error| {
            BenchError::Helper(format!("cannot decode the result of a replica: {error}: {line}"))
        })?;
        all.micros.extend(measured.micros);
        all.failed += measured.failed;
        all.took_micros = all.took_micros.max(measured.took_micros);
    }
    for mut child in children {
        child.write_line().await?;
        child.child.wait().await?;
    }
    Ok(row(mode, replicas, all))
}

fn row(mode: AssignmentMode, replicas: usize, mut all: ReplicaResult) -> ClaimModesRow {
    all.micros.sort_unstable();
    let count = all.micros.len();
    let at = |part: f64| {
        let index = ((count as f64 * part) as usize).min(count.saturating_sub(1));
        all.micros.get(index).map_or(f64::NAN, |&micros| micros as f64 / 1e3)
    };
    ClaimModesRow {
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

/// A running replica process.
struct ReplicaProcess {
    child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl ReplicaProcess {
    async fn start(
        bench: &ClaimModesBench,
        queue: &str,
        callers: usize,
    ) -> Result<ReplicaProcess, BenchError> {
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
        Ok(ReplicaProcess { child, input, lines })
    }

    async fn read_line(&mut self) -> Result<String, BenchError> {
        let line = self.lines.next_line().await?;
        line.ok_or_else(|| BenchError::Helper("a replica ended early; see its error above".into()))
    }

    async fn write_line(&mut self) -> Result<(), BenchError> {
        Ok(self.input.write_all(b"go\n").await?)
    }
}
