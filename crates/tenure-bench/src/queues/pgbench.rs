//! Baseline with PostgreSQL's `pgbench`: plain statements on a plain job table.

use std::path::PathBuf;
use std::process::Stdio;

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tokio::process::Command;

use crate::BenchError;
use crate::baseline::BenchDirectory;

const FILL: &str = include_str!("baseline/fill.sql");
const ONE: &str = include_str!("baseline/one.sql");
const HUNDRED: &str = include_str!("baseline/hundred.sql");

/// Tasks per transaction.
#[derive(Clone, Copy, Debug)]
pub(super) enum BatchSize {
    One,
    Hundred,
}

impl BatchSize {
    fn size(self) -> u64 {
        match self {
            BatchSize::One => 1,
            BatchSize::Hundred => 100,
        }
    }
}

/// Process `tasks` tasks with this many connections; returns tasks per second.
pub(super) async fn drain(
    url: &str,
    directory: &BenchDirectory,
    batch: BatchSize,
    clients: u64,
    tasks: u64,
) -> Result<f64, BenchError> {
    let each = (tasks / batch.size() / clients).max(1);
    // A margin, because `SKIP LOCKED` leaves rows to the last transactions.
    fill(url, each * clients * batch.size() + clients * batch.size()).await?;
    let (name, script) = match batch {
        BatchSize::One => ("one.sql", ONE),
        BatchSize::Hundred => ("hundred.sql", HUNDRED),
    };
    let rate = run(url, directory, (name, script), clients, PgbenchLoad::Transactions(each)).await?;
    Ok(rate * batch.size() as f64)
}

/// Load per client.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PgbenchLoad {
    Transactions(u64),
    Seconds(u64),
}

/// Run a script (name and text) with this many connections; returns transactions per second.
pub(crate) async fn run(
    url: &str,
    directory: &BenchDirectory,
    (name, script): (&str, &str),
    clients: u64,
    load: PgbenchLoad,
) -> Result<f64, BenchError> {
    let path = directory.path(name);
    std::fs::write(&path, script)?;
    let (option, amount) = match load {
        PgbenchLoad::Transactions(each) => ("--transactions", each),
        PgbenchLoad::Seconds(seconds) => ("--time", seconds),
    };
    let output = Command::new(program()?)
        .args(["--no-vacuum", "--protocol", "prepared", "--jobs", "1"])
        .args(["--client", &clients.to_string(), option, &amount.to_string()])
        .arg("--file")
        .arg(&path)
        .arg(url)
        .stdin(Stdio::null())
        .output()
        .await?;
    let output_text = String::from_utf8_lossy(&output.stdout);
    let rate = output_text
        .lines()
        .find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse::<f64>().ok());
    rate.filter(|_| output.status.success()).ok_or_else(|| {
        let error = String::from_utf8_lossy(&output.stderr);
        let error = if error.trim().is_empty() {
            "no transaction finished in time; use a longer window"
        } else {
            error.trim()
        };
        BenchError::Helper(format!("pgbench failed: {error}"))
    })
}

/// Drop the baseline tables.
pub(crate) async fn clear(url: &str) -> Result<(), BenchError> {
    let mut connection = PgConnection::connect(url).await?;
    connection.execute("DROP SCHEMA IF EXISTS tenure_bench CASCADE").await?;
    Ok(())
}

async fn fill(url: &str, tasks: u64) -> Result<(), BenchError> {
    prepare(url, &FILL.replace(":count", &tasks.to_string())).await
}

/// Execute statements one by one, because VACUUM cannot run in a transaction.
pub(crate) async fn prepare(url: &str, statements: &str) -> Result<(), BenchError> {
    let mut connection = PgConnection::connect(url).await?;
    for statement in statements.split(';').map(str::trim).filter(|statement| !statement.is_empty()) {
        connection.execute(AssertSqlSafe(statement)).await?;
    }
    connection.close().await?;
    Ok(())
}

/// Find `pgbench`: on the PATH, or in Debian's directory.
fn program() -> Result<PathBuf, BenchError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut directories: Vec<PathBuf> = std::env::split_paths(&path).collect();
    if let Ok(versions) = std::fs::read_dir("/usr/lib/postgresql") {
        directories.extend(versions.flatten().map(|version| version.path().join("bin")));
    }
    directories
        .into_iter()
        .map(|directory| directory.join("pgbench"))
        .find(|program| program.is_file())
        .ok_or_else(|| {
            BenchError::Helper(
                "pgbench was not found; install PostgreSQL's server package, or add it to the PATH".into(),
            )
        })
}
