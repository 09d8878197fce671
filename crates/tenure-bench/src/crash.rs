//! Takeover after `kill -9` of the leader.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{Connection, Executor};
use tenure::Tenure;
use tenure::port::TakeoverMode;
use tenure::runtime::now;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::baseline::{BenchDirectory, DURABLE_WRITE, SqliteWriter};
use crate::{BaselineRow, BenchError, ElectionsBench, lock_holder, median_ms, row};

pub(crate) async fn postgres(bench: &ElectionsBench, url: &str) -> Result<[BaselineRow; 2], BenchError> {
    let (mut baseline, mut measured) = (Vec::new(), Vec::new());
    for round in 0..bench.rounds {
        baseline.push(advisory(bench, url).await?);
        let holder = HolderSpec { program: &bench.program, lease: None, takeover: TakeoverMode::Connection };
        measured.push(takeover(&holder, url, round).await?);
    }
    let what = "crash takeover, PostgreSQL by connection";
    Ok(compare(what, "a blocked pg_advisory_lock", measured, baseline))
}

pub(crate) async fn sqlite(
    bench: &ElectionsBench,
    directory: &BenchDirectory,
) -> Result<[BaselineRow; 2], BenchError> {
    let url = directory.store("crash");
    // One writer for all rounds: the first write to an unopened file creates its log and takes far longer.
    let mut writer = SqliteWriter::open(directory).await?;
    let (mut baseline, mut measured) = (Vec::new(), Vec::new());
    for round in 0..bench.rounds {
        baseline.push(flock(bench, directory, &mut writer).await?);
        let holder = HolderSpec { program: &bench.program, lease: None, takeover: TakeoverMode::Lease };
        measured.push(takeover(&holder, &url, round).await?);
    }
    Ok(compare("crash takeover, SQLite", "a blocked kernel lock", measured, baseline))
}

/// Compare the takeover with two baselines: the lock alone, and the lock with a durable write after it. A lock does not
/// wait for a disk, but a grant must.
fn compare(
    what: &str,
    lock: &str,
    measured: Vec<Duration>,
    baseline: Vec<CrashBaseline>,
) -> [BaselineRow; 2] {
    let measured = median_ms(measured);
    let (locked, written) = baseline.into_iter().map(|baseline| (baseline.locked, baseline.written)).unzip();
    [
        row(what, lock, measured, median_ms(locked), Some(2.0)),
        row(what, &format!("{lock}, a durable write"), measured, median_ms(written), Some(2.0)),
    ]
}

/// Times from the death of the lock holder.
struct CrashBaseline {
    /// Until the lock was acquired.
    locked: Duration,
    /// Until a later write was durable.
    written: Duration,
}

/// Options of the leader and its successor.
pub(crate) struct HolderSpec<'a> {
    pub(crate) program: &'a Path,
    /// Lease duration; `None` is the default.
    pub(crate) lease: Option<Duration>,
    pub(crate) takeover: TakeoverMode,
}

/// Kill a leader and return the time until its successor leads.
pub(crate) async fn takeover(how: &HolderSpec<'_>, url: &str, round: u32) -> Result<Duration, BenchError> {
    let election = format!("crash-{}-{round}", std::process::id());
    let mode = if how.takeover == TakeoverMode::Connection { "connection" } else { "lease" };
    let mut args =
        vec!["campaign", &election, "--namespace", crate::NAMESPACE, "--takeover", mode, "-o", "json"];
    let lease = how.lease.map(|lease| format!("{}ms", lease.as_millis()));
    args.extend(lease.iter().flat_map(|lease| ["--lease", lease]));
    let mut holder = helper(how.program, &args, url, "leading").await?;
    let mut builder = Tenure::builder().url(url).name("next").takeover(how.takeover);
    if let Some(lease) = how.lease {
        builder = builder.lease(lease);
    }
    let tenure = builder.open().await?;
    let elector = tenure.elector(&election).namespace(crate::NAMESPACE).start().await?;
    // Wait until the successor has seen the leader.
    while elector.view().is_none_or(|view| view.holders().next().is_none()) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let start = now();
    holder.start_kill()?;
    let leadership = elector.elected().await?;
    let time = now().since(start);
    holder.wait().await?;
    drop(leadership);
    drop(elector);
    tenure.close().await?;
    Ok(time)
}

async fn advisory(bench: &ElectionsBench, url: &str) -> Result<CrashBaseline, BenchError> {
    let mut holder = helper(&bench.program, &["bench", "hold-advisory"], url, lock_holder::HELD).await?;
    let mut connection = PgConnection::connect(url).await?;
    // Warm up: the server process of a candidate has planned its statements before too.
    connection.execute(DURABLE_WRITE).await?;
    let wait = tokio::spawn(async move {
        connection.execute(lock_holder::ADVISORY_LOCK).await?;
        let locked = now();
        connection.execute(DURABLE_WRITE).await?;
        let written = now();
        connection.close().await?;
        Ok::<_, sqlx::Error>((locked, written))
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let start = now();
    holder.start_kill()?;
    let (locked, written) = wait.await.map_err(|error| BenchError::Helper(error.to_string()))??;
    holder.wait().await?;
    Ok(CrashBaseline { locked: locked.since(start), written: written.since(start) })
}

async fn flock(
    bench: &ElectionsBench,
    directory: &BenchDirectory,
    writer: &mut SqliteWriter,
) -> Result<CrashBaseline, BenchError> {
    let path = directory.path("baseline.lock");
    let argument = path.display().to_string();
    let mut holder =
        helper(&bench.program, &["bench", "hold-flock", &argument], "memory:", lock_holder::HELD).await?;
    writer.write().await?;
    let (sender, lock) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || sender.send(lock_holder::flock(&path).map(|file| (file, now()))));
    tokio::time::sleep(Duration::from_millis(200)).await;
    let start = now();
    holder.start_kill()?;
    let lost = |_| BenchError::Helper("the thread that waits for the kernel lock failed".into());
    let (_file, locked) = lock.await.map_err(lost)??;
    writer.write().await?;
    let written = now();
    holder.wait().await?;
    Ok(CrashBaseline { locked: locked.since(start), written: written.since(start) })
}

/// Start a lock holder and wait until it reports that it holds the lock.
pub(crate) async fn helper(
    program: &Path,
    args: &[&str],
    store: &str,
    word: &str,
) -> Result<Child, BenchError> {
    let mut child = Command::new(program)
        .args(args)
        .env("TENURE_STORE", store)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let lost = || BenchError::Helper(format!("the helper {args:?} ended before it reported its lock"));
    let mut lines = BufReader::new(child.stdout.take().ok_or_else(lost)?).lines();
    while let Some(line) = lines.next_line().await? {
        if line.contains(word) {
            // Keep reading, so that the helper's pipe does not close.
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return Ok(child);
        }
    }
    Err(lost())
}
