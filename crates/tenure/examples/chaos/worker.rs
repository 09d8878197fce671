//! A worker process: it campaigns, and writes while it believes that it leads.
//!
//! The process is a candidate in each election of its plan. While `is_leader()` is true, a thread logs that about once
//! per millisecond, and a task writes under the guard. Another task writes with only the last token of this process,
//! long after leadership was lost: the fence must reject these stale writes. The process ends in order on SIGTERM, and
//! at once when its parent ends.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::port::TakeoverMode;
use tenure::{Elector, Leadership, Tenure, Token};
use tenure_testkit::rig::true_boottime_ns;
use tokio::signal::unix::Signal;

use crate::Failed;
use crate::log::{Kind, Log, Record};
use crate::process::retry;
use crate::tables::{Entry, Outcome, WriteTables};
use crate::worker_processes::{Job, stop_myself};

/// Instructions of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) worker: usize,
    pub(crate) url: String,
    pub(crate) direct_url: Option<String>,
    /// Location of the tables, if they are not in the store: then they are fenced by the token alone.
    pub(crate) tables: Option<String>,
    pub(crate) takeover: TakeoverMode,
    pub(crate) lease_ms: u64,
    pub(crate) priority: i32,
    pub(crate) elections: Vec<Election>,
    pub(crate) log: PathBuf,
    /// Injected bug: the process believes that it leads until a response of the store says otherwise.
    pub(crate) trust_is_a_flag: bool,
}

impl Job for Plan {
    const ROLE: &'static str = "worker";

    fn log_to(&mut self, path: PathBuf) {
        self.log = path;
    }
}

/// An election to campaign in.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Election {
    /// Index of the election in the log.
    pub(crate) index: u8,
    pub(crate) name: String,
    pub(crate) slots: u32,
}

/// File in the work directory that asks for a pause: the leader that removes it stops itself in the middle of a guarded
/// transaction.
pub(crate) const PAUSE_IN_TRANSACTION: &str = "pause-in-transaction";
/// File to which that leader writes its worker number before it stops.
pub(crate) const PAUSED_IN_TRANSACTION: &str = "paused-in-transaction";

struct CandidateState {
    election: Election,
    leading: Mutex<Option<Leadership>>,
    last: Mutex<Option<(u32, Token)>>,
}

struct Worker {
    plan: Plan,
    log: Log,
    tables: WriteTables,
    candidates: Vec<CandidateState>,
}

/// Run a worker.
pub(crate) async fn run_process(plan: Plan, mut terminate: Signal) -> Result<(), Failed> {
    let candidates = plan.elections.iter().cloned();
    let candidates = candidates.map(|election| CandidateState {
        election,
        leading: Mutex::default(),
        last: Mutex::default(),
    });
    let worker = Arc::new(Worker {
        log: Log::open(&plan.log)?,
        tables: match &plan.tables {
            Some(external) => WriteTables::external(external)?,
            None => WriteTables::open(&plan.url)?,
        },
        candidates: candidates.collect(),
        plan,
    });
    let sampler = worker.clone();
    std::thread::spawn(move || sampler.sample());
    let tenure = tokio::select! {
        tenure = worker.open() => tenure,
        _ = terminate.recv() => return Ok(()),
    };
    tokio::select! {
        campaigned = worker.clone().campaign_everywhere(&tenure) => campaigned?,
        _ = terminate.recv() => {}
    }
    worker.candidates.iter().for_each(|candidate| *locked(&candidate.leading) = None);
    let _ = tokio::time::timeout(Duration::from_secs(3), tenure.close()).await;
    Ok(())
}

impl Worker {
    /// Open a session, with retries.
    async fn open(&self) -> Tenure {
        retry(async || {
            let mut builder = Tenure::builder()
                .url(&self.plan.url)
                .name(format!("worker-{}", self.plan.worker))
                .lease(Duration::from_millis(self.plan.lease_ms))
                .takeover(self.plan.takeover);
            if let Some(direct) = &self.plan.direct_url {
                builder = builder.direct_url(direct);
            }
            builder.open().await
        })
        .await
    }

    async fn campaign_everywhere(self: Arc<Self>, tenure: &Tenure) -> Result<(), tenure::Error> {
        let mut tasks = tokio::task::JoinSet::new();
        for index in 0..self.candidates.len() {
            let election = &self.candidates[index].election;
            let elector = loop {
                let elector = tenure
                    .elector(&election.name)
                    .slots(election.slots)
                    .priority(self.plan.priority)
                    .grace(Duration::from_millis(500));
                match elector.start().await {
                    Ok(elector) => break elector,
                    Err(tenure::Error::Closed) => return Err(tenure::Error::Closed),
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                }
            };
            let (worker, tenure) = (self.clone(), tenure.clone());
            tasks.spawn(async move { worker.campaign(index, elector, tenure).await });
            let worker = self.clone();
            tasks.spawn(async move { worker.write_stale(index).await });
        }
        while tasks.join_next().await.is_some() {}
        Ok(())
    }

    async fn campaign(&self, index: usize, elector: Elector, tenure: Tenure) {
        let candidate = &self.candidates[index];
        while let Ok(leadership) = elector.elected().await {
            *locked(&candidate.last) = Some((leadership.slot(), leadership.token()));
            *locked(&candidate.leading) = Some(leadership.clone());
            if self.plan.trust_is_a_flag {
                while tenure.session().as_ref() == Some(leadership.session()) {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            } else {
                tokio::select! {
                    _ = leadership.lost() => {}
                    _ = leadership.leader_request() => {}
                    () = self.write_as_leader(candidate, &leadership) => {}
                }
            }
            *locked(&candidate.leading) = None;
        }
    }

    /// Write under the guard repeatedly while this process believes that it leads.
    async fn write_as_leader(&self, candidate: &CandidateState, leadership: &Leadership) {
        while leadership.is_leader() {
            let entry = self.entry(candidate, leadership.slot(), leadership.token());
            let pauses = std::fs::remove_file(PAUSE_IN_TRANSACTION).is_ok();
            let before = true_boottime_ns();
            let midway = || {
                if pauses && std::fs::write(PAUSED_IN_TRANSACTION, self.plan.worker.to_string()).is_ok() {
                    stop_myself();
                }
            };
            let kind = match self.tables.guarded(leadership, &entry, midway).await {
                Outcome::Done => Kind::Guarded,
                Outcome::Refused => Kind::GuardRefused,
                Outcome::Unknown => Kind::Unknown,
            };
            self.log_record(kind, candidate, &entry, before);
            tokio::time::sleep(Duration::from_millis(15)).await;
        }
    }

    /// Write under the last token of this process, for as long as it runs.
    async fn write_stale(&self, index: usize) {
        let candidate = &self.candidates[index];
        loop {
            let last = *locked(&candidate.last);
            if let Some((slot, token)) = last {
                let entry = self.entry(candidate, slot, token);
                let before = true_boottime_ns();
                let kind = match self.tables.write_with_token(&entry).await {
                    Outcome::Done => Kind::Fenced,
                    Outcome::Refused => Kind::FenceRefused,
                    Outcome::Unknown => Kind::Unknown,
                };
                self.log_record(kind, candidate, &entry, before);
            }
            tokio::time::sleep(Duration::from_millis(70)).await;
        }
    }

    /// Log about once per millisecond whether this process believes that it leads. Runs in a separate thread, so that a
    /// busy runtime does not delay it.
    fn sample(&self) {
        let mut believed: Vec<Option<(u32, Token)>> = vec![None; self.candidates.len()];
        loop {
            for (candidate, believed) in self.candidates.iter().zip(&mut believed) {
                let leading = locked(&candidate.leading);
                let before = true_boottime_ns();
                let believes = leading.as_ref().filter(|it| self.plan.trust_is_a_flag || it.is_leader());
                let now = believes.map(|leadership| (leadership.slot(), leadership.token()));
                if let Some((slot, token)) = now {
                    self.log_record(Kind::Believes, candidate, &self.entry(candidate, slot, token), before);
                } else if let Some((slot, token)) = *believed {
                    self.log_record(
                        Kind::StopsBelieving,
                        candidate,
                        &self.entry(candidate, slot, token),
                        before,
                    );
                }
                *believed = now;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn entry(&self, candidate: &CandidateState, slot: u32, token: Token) -> Entry {
        Entry { election: candidate.election.name.clone(), slot, token, worker: self.plan.worker }
    }

    fn log_record(&self, kind: Kind, candidate: &CandidateState, entry: &Entry, before: u64) {
        self.log.write(Record {
            kind,
            election: candidate.election.index,
            slot: u16::try_from(entry.slot).unwrap_or(u16::MAX),
            token: entry.token.as_u64(),
            before,
            after: true_boottime_ns(),
        });
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
