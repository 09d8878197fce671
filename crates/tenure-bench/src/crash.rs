//! From `kill -9` of the holder to the next one.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{Connection, Executor};
use tenure::Tenure;
use tenure::port::Takeover;
use tenure::runtime::now;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::bare::{DURABLE_WRITE, Folder, Writer};
use crate::{BenchError, ElectionBench, Row, hold, median_ms, row};

pub(crate) async fn postgres(bench: &ElectionBench, url: &str) -> Result<[Row; 2], BenchError> {
    let (mut bare, mut ours) = (Vec::new(), Vec::new());
    for round in 0..bench.rounds {
        bare.push(advisory(bench, url).await?);
        let holder = Holder { program: &bench.program, lease: None, takeover: Takeover::Connection };
        ours.push(takeover(&holder, url, round).await?);
    }
    let what = "crash take-over, PostgreSQL by connection";
    Ok(beside(what, "a blocked pg_advisory_lock", ours, bare))
}

pub(crate) async fn sqlite(bench: &ElectionBench, folder: &Folder) -> Result<[Row; 2], BenchError> {
    let url = folder.store("crash");
    // One for all rounds: the first write to a file that nobody has open makes its log, and takes far longer.
    let mut writer = Writer::open(folder).await?;
    let (mut bare, mut ours) = (Vec::new(), Vec::new());
    for round in 0..bench.rounds {
        bare.push(flock(bench, folder, &mut writer).await?);
        let holder = Holder { program: &bench.program, lease: None, takeover: Takeover::Lease };
        ours.push(takeover(&holder, &url, round).await?);
    }
    Ok(beside("crash take-over, SQLite", "a blocked kernel lock", ours, bare))
}

/// A lock waits for no disk, and a grant must: so beside the lock alone, and beside the lock and a durable write after it.
fn beside(what: &str, lock: &str, ours: Vec<Duration>, bare: Vec<Bare>) -> [Row; 2] {
    let ours = median_ms(ours);
    let (locked, written) = bare.into_iter().map(|bare| (bare.locked, bare.written)).unzip();
    [
        row(what, lock, ours, median_ms(locked), Some(2.0)),
        row(what, &format!("{lock}, a durable write"), ours, median_ms(written), Some(2.0)),
    ]
}

/// From the death of the holder.
struct Bare {
    /// Until the lock was had.
    locked: Duration,
    /// Until something that was written after that was on the disk.
    written: Duration,
}

/// How the holder and the next one are to be.
pub(crate) struct Holder<'a> {
    pub(crate) program: &'a Path,
    /// Not the usual lease.
    pub(crate) lease: Option<Duration>,
    pub(crate) takeover: Takeover,
}

/// A holder of Tenure's is killed; the time until the next one leads.
pub(crate) async fn takeover(how: &Holder<'_>, url: &str, round: u32) -> Result<Duration, BenchError> {
    let election = format!("crash-{}-{round}", std::process::id());
    let mode = if how.takeover == Takeover::Connection { "connection" } else { "lease" };
    let mut args =
        vec!["elect", &election, "--namespace", crate::NAMESPACE, "--takeover", mode, "-o", "json"];
    let lease = how.lease.map(|lease| format!("{}ms", lease.as_millis()));
    args.extend(lease.iter().flat_map(|lease| ["--lease", lease]));
    let mut holder = helper(how.program, &args, url, "leading").await?;
    let mut builder = Tenure::builder().url(url).name("next").takeover(how.takeover);
    if let Some(lease) = how.lease {
        builder = builder.lease(lease);
    }
    let tenure = builder.open().await?;
    let elector = tenure.elector(&election).namespace(crate::NAMESPACE).start().await?;
    // It has seen the holder, and waits for its end.
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

async fn advisory(bench: &ElectionBench, url: &str) -> Result<Bare, BenchError> {
    let mut holder = helper(&bench.program, &["bench", "hold-advisory"], url, hold::HELD).await?;
    let mut connection = PgConnection::connect(url).await?;
    // Once before, so that the server process knows how: a candidate's knows its statements, too.
    connection.execute(DURABLE_WRITE).await?;
    let wait = tokio::spawn(async move {
        connection.execute(hold::ADVISORY_LOCK).await?;
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
    Ok(Bare { locked: locked.since(start), written: written.since(start) })
}

async fn flock(bench: &ElectionBench, folder: &Folder, writer: &mut Writer) -> Result<Bare, BenchError> {
    let path = folder.path("bare.lock");
    let argument = path.display().to_string();
    let mut holder =
        helper(&bench.program, &["bench", "hold-flock", &argument], "memory:", hold::HELD).await?;
    writer.write().await?;
    let (sender, lock) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || sender.send(hold::flock(&path).map(|file| (file, now()))));
    tokio::time::sleep(Duration::from_millis(200)).await;
    let start = now();
    holder.start_kill()?;
    let lost = |_| BenchError::Helper("the kernel lock could not be waited for".into());
    let (_file, locked) = lock.await.map_err(lost)??;
    writer.write().await?;
    let written = now();
    holder.wait().await?;
    Ok(Bare { locked: locked.since(start), written: written.since(start) })
}

/// Starts a holder and waits until it says that it holds.
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
    let lost = || BenchError::Helper(format!("the helper {args:?} ended before it held anything"));
    let mut lines = BufReader::new(child.stdout.take().ok_or_else(lost)?).lines();
    while let Some(line) = lines.next_line().await? {
        if line.contains(word) {
            // Somebody goes on reading, or the helper would have nobody to write to.
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return Ok(child);
        }
    }
    Err(lost())
}
