//! What processes of all stages have in common: each lives as its plan says, until it is told to end, and not longer than the one who started it.

use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tenure::Tenure;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::Failed;
use crate::crew::{Crew, Job};
use crate::verdict::logs;

/// What a log says of what was said under an old token.
const REFUSED: &str = "refused";
const ACCEPTED: &str = "accepted";

/// What processes of a stage do.
pub(crate) trait Role: Serialize {
    /// By which word this program is told that it is such a process.
    const WORD: &'static str;
}

/// What a process is told to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan<R> {
    pub(crate) hand: usize,
    pub(crate) role: R,
    pub(crate) url: String,
    pub(crate) log: PathBuf,
}

impl<R: Role> Job for Plan<R> {
    const ROLE: &'static str = R::WORD;

    fn log_to(&mut self, path: PathBuf) {
        self.log = path;
    }
}

/// Lives the life of a process. SIGTERM tells it to end.
pub(crate) fn live<P: DeserializeOwned>(
    plan: &str,
    life: impl AsyncFnOnce(P, Signal) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let plan = serde_json::from_str(plan)?;
    std::thread::spawn(|| {
        // Our parent holds the other end: it closes however the parent ends.
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(3);
    });
    // The I/O driver is what lets timers work under a faked clock.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async { life(plan, signal(SignalKind::terminate())?).await })
}

/// Does it as often as it takes: the server may be down just now.
pub(crate) async fn insist<T, E>(act: impl AsyncFn() -> Result<T, E>) -> T {
    loop {
        match act().await {
            Ok(done) => return done,
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Opens a session, as often as it takes.
pub(crate) async fn open(url: &str, name: &str, lease: Duration) -> Tenure {
    insist(async || Tenure::builder().url(url).name(name).lease(lease).open().await).await
}

/// How a log says whether something counted that was said under an old token.
pub(crate) fn word(accepted: bool) -> &'static str {
    if accepted { ACCEPTED } else { REFUSED }
}

/// What processes wrote down of what they said under old tokens.
pub(crate) struct Heard {
    pub(crate) processes: usize,
    pub(crate) accepted: usize,
    pub(crate) refused: usize,
}

impl Heard {
    /// From all processes there were.
    pub(crate) fn of<J>(crew: &Crew<J>) -> Result<Heard, Failed> {
        let mut heard = Heard { processes: 0, accepted: 0, refused: 0 };
        for (_, log) in logs(crew)? {
            let log = std::fs::read_to_string(log)?;
            let count = |word: &str| log.lines().filter(|line| *line == word).count();
            heard.processes += 1;
            heard.accepted += count(ACCEPTED);
            heard.refused += count(REFUSED);
        }
        Ok(heard)
    }
}
