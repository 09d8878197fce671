//! Common parts of all worker processes: each follows its plan until SIGTERM, and ends when its parent ends.

use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tenure::Tenure;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::Failed;
use crate::evaluation::logs;
use crate::worker_processes::{Job, WorkerProcesses};

/// Log lines for writes under an old token.
const REFUSED: &str = "rejected";
const ACCEPTED: &str = "accepted";

/// Role of the processes of a scenario.
pub(crate) trait Role: Serialize {
    /// First command-line argument that selects this kind of process.
    const ARGUMENT: &'static str;
}

/// Instructions of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan<R> {
    pub(crate) process: usize,
    pub(crate) role: R,
    pub(crate) url: String,
    pub(crate) log: PathBuf,
}

impl<R: Role> Job for Plan<R> {
    const ROLE: &'static str = R::ARGUMENT;

    fn log_to(&mut self, path: PathBuf) {
        self.log = path;
    }
}

/// Run a process until SIGTERM.
pub(crate) fn run_process<P: DeserializeOwned>(
    plan: &str,
    life: impl AsyncFnOnce(P, Signal) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let plan = serde_json::from_str(plan)?;
    std::thread::spawn(|| {
        // The parent holds the other end of the pipe, which closes when the parent ends for any reason.
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(3);
    });
    // The I/O driver makes timers work under a faked clock.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async { life(plan, signal(SignalKind::terminate())?).await })
}

/// Retry until success; the server may be down.
pub(crate) async fn retry<T, E>(act: impl AsyncFn() -> Result<T, E>) -> T {
    loop {
        match act().await {
            Ok(done) => return done,
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Open a session, with retries.
pub(crate) async fn open(url: &str, name: &str, lease: Duration) -> Tenure {
    retry(async || Tenure::builder().url(url).name(name).lease(lease).open().await).await
}

/// Log line for a write under an old token.
pub(crate) fn outcome_line(accepted: bool) -> &'static str {
    if accepted { ACCEPTED } else { REFUSED }
}

/// Counts of writes under old tokens, from the logs.
pub(crate) struct StaleWrites {
    pub(crate) processes: usize,
    pub(crate) accepted: usize,
    pub(crate) rejected: usize,
}

impl StaleWrites {
    /// Read the logs of all processes.
    pub(crate) fn of<J>(workers: &WorkerProcesses<J>) -> Result<StaleWrites, Failed> {
        let mut counts = StaleWrites { processes: 0, accepted: 0, rejected: 0 };
        for (_, log) in logs(workers)? {
            let log = std::fs::read_to_string(log)?;
            let count = |outcome_line: &str| log.lines().filter(|line| *line == outcome_line).count();
            counts.processes += 1;
            counts.accepted += count(ACCEPTED);
            counts.rejected += count(REFUSED);
        }
        Ok(counts)
    }
}
