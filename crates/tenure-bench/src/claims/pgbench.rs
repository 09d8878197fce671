//! The bare statements, by PostgreSQL's own `pgbench`: a job table written by hand, with nothing around it.

use std::path::PathBuf;
use std::process::Stdio;

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tokio::process::Command;

use crate::BenchError;
use crate::bare::Folder;

const FILL: &str = include_str!("bare/fill.sql");
const ONE: &str = include_str!("bare/one.sql");
const HUNDRED: &str = include_str!("bare/hundred.sql");

/// How many tasks a transaction claims and completes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Batch {
    One,
    Hundred,
}

impl Batch {
    fn size(self) -> u64 {
        match self {
            Batch::One => 1,
            Batch::Hundred => 100,
        }
    }
}

/// Drains `tasks` tasks with so many connections; tasks per second.
pub(super) async fn drain(
    url: &str,
    folder: &Folder,
    batch: Batch,
    clients: u64,
    tasks: u64,
) -> Result<f64, BenchError> {
    let each = (tasks / batch.size() / clients).max(1);
    // What `SKIP LOCKED` leaves over must not be what the last ones look for.
    fill(url, each * clients * batch.size() + clients * batch.size()).await?;
    let (name, script) = match batch {
        Batch::One => ("one.sql", ONE),
        Batch::Hundred => ("hundred.sql", HUNDRED),
    };
    let rate = run(url, folder, (name, script), clients, Load::Transactions(each)).await?;
    Ok(rate * batch.size() as f64)
}

/// How much each client does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Load {
    Transactions(u64),
    Seconds(u64),
}

/// Runs a script (its name, and its text) with so many connections; transactions per second.
pub(crate) async fn run(
    url: &str,
    folder: &Folder,
    (name, script): (&str, &str),
    clients: u64,
    load: Load,
) -> Result<f64, BenchError> {
    let path = folder.path(name);
    std::fs::write(&path, script)?;
    let (option, amount) = match load {
        Load::Transactions(each) => ("--transactions", each),
        Load::Seconds(seconds) => ("--time", seconds),
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
    let said = String::from_utf8_lossy(&output.stdout);
    let rate =
        said.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse::<f64>().ok());
    rate.filter(|_| output.status.success()).ok_or_else(|| {
        let error = String::from_utf8_lossy(&output.stderr);
        let error = if error.trim().is_empty() {
            "nothing was done in time; measure for longer"
        } else {
            error.trim()
        };
        BenchError::Helper(format!("pgbench gave no rate: {error}"))
    })
}

/// Removes what was filled.
pub(crate) async fn clear(url: &str) -> Result<(), BenchError> {
    let mut connection = PgConnection::connect(url).await?;
    connection.execute("DROP SCHEMA IF EXISTS tenure_bench CASCADE").await?;
    Ok(())
}

async fn fill(url: &str, tasks: u64) -> Result<(), BenchError> {
    prepare(url, &FILL.replace(":count", &tasks.to_string())).await
}

/// Executes statements, one by one: VACUUM is no part of a transaction.
pub(crate) async fn prepare(url: &str, statements: &str) -> Result<(), BenchError> {
    let mut connection = PgConnection::connect(url).await?;
    for statement in statements.split(';').map(str::trim).filter(|statement| !statement.is_empty()) {
        connection.execute(AssertSqlSafe(statement)).await?;
    }
    connection.close().await?;
    Ok(())
}

/// Where `pgbench` is: on the path, or where Debian puts it.
fn program() -> Result<PathBuf, BenchError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<PathBuf> = std::env::split_paths(&path).collect();
    if let Ok(versions) = std::fs::read_dir("/usr/lib/postgresql") {
        places.extend(versions.flatten().map(|version| version.path().join("bin")));
    }
    places.into_iter().map(|place| place.join("pgbench")).find(|program| program.is_file()).ok_or_else(|| {
        BenchError::Helper(
            "pgbench is not to be found; install PostgreSQL's server package, or put it on the PATH".into(),
        )
    })
}
