//! A worker process: it campaigns, and for as long as it believes it writes.
//!
//! Per election there is a *seat*. While `is_leader()` is true, a thread of its own writes that down about once per
//! millisecond, and a task writes under the guard. Another task writes with nothing but the last token this process had,
//! long after it lost leadership: those are the stale writes that the fence must refuse. The process ends in good order
//! on SIGTERM, and at once when the process that started it is gone.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::port::Takeover;
use tenure::{Elector, Leadership, Tenure, Token};
use tenure_testkit::rig::true_boottime_ns;
use tokio::signal::unix::Signal;

use crate::Failed;
use crate::crew::{Job, stop_myself};
use crate::ledger::{Entry, Ledger, Outcome};
use crate::log::{Kind, Log, Record};
use crate::process::insist;

/// What a worker is told to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) worker: usize,
    pub(crate) url: String,
    pub(crate) direct_url: Option<String>,
    /// Where the tables are, if they are not in the store: then they are fenced by the token alone.
    pub(crate) ledger: Option<String>,
    pub(crate) takeover: Takeover,
    pub(crate) lease_ms: u64,
    pub(crate) priority: i32,
    pub(crate) elections: Vec<Election>,
    pub(crate) log: PathBuf,
    /// A mistake put back in: belief is a flag that only the store's word clears.
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
    /// What the log calls it.
    pub(crate) index: u8,
    pub(crate) name: String,
    pub(crate) slots: u32,
}

/// Whoever removes this file from the workplace stops itself in the middle of a guarded transaction...
pub(crate) const DALLY: &str = "dally";
/// ...and leaves its worker number here.
pub(crate) const DALLYING: &str = "dallying";

struct Seat {
    election: Election,
    leading: Mutex<Option<Leadership>>,
    last: Mutex<Option<(u32, Token)>>,
}

struct Worker {
    plan: Plan,
    log: Log,
    ledger: Ledger,
    seats: Vec<Seat>,
}

/// Lives a worker's life.
pub(crate) async fn live(plan: Plan, mut terminate: Signal) -> Result<(), Failed> {
    let seats = plan.elections.iter().cloned();
    let seats = seats.map(|election| Seat { election, leading: Mutex::default(), last: Mutex::default() });
    let worker = Arc::new(Worker {
        log: Log::open(&plan.log)?,
        ledger: match &plan.ledger {
            Some(elsewhere) => Ledger::elsewhere(elsewhere)?,
            None => Ledger::open(&plan.url)?,
        },
        seats: seats.collect(),
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
    worker.seats.iter().for_each(|seat| *locked(&seat.leading) = None);
    let _ = tokio::time::timeout(Duration::from_secs(3), tenure.close()).await;
    Ok(())
}

impl Worker {
    /// Opens a session, as often as it takes.
    async fn open(&self) -> Tenure {
        insist(async || {
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
        for index in 0..self.seats.len() {
            let election = &self.seats[index].election;
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
            tasks.spawn(async move { worker.write_carelessly(index).await });
        }
        while tasks.join_next().await.is_some() {}
        Ok(())
    }

    async fn campaign(&self, index: usize, elector: Elector, tenure: Tenure) {
        let seat = &self.seats[index];
        while let Ok(leadership) = elector.elected().await {
            *locked(&seat.last) = Some((leadership.slot(), leadership.token()));
            *locked(&seat.leading) = Some(leadership.clone());
            if self.plan.trust_is_a_flag {
                while tenure.session().as_ref() == Some(leadership.session()) {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            } else {
                tokio::select! {
                    _ = leadership.lost() => {}
                    _ = leadership.asked() => {}
                    () = self.write_as_leader(seat, &leadership) => {}
                }
            }
            *locked(&seat.leading) = None;
        }
    }

    /// Guarded writes, one after the other, while it is believed.
    async fn write_as_leader(&self, seat: &Seat, leadership: &Leadership) {
        while leadership.is_leader() {
            let entry = self.entry(seat, leadership.slot(), leadership.token());
            let dally = std::fs::remove_file(DALLY).is_ok();
            let before = true_boottime_ns();
            let midway = || {
                if dally && std::fs::write(DALLYING, self.plan.worker.to_string()).is_ok() {
                    stop_myself();
                }
            };
            let kind = match self.ledger.guarded(leadership, &entry, midway).await {
                Outcome::Done => Kind::Guarded,
                Outcome::Refused => Kind::GuardRefused,
                Outcome::Unknown => Kind::Unknown,
            };
            self.tell(kind, seat, &entry, before);
            tokio::time::sleep(Duration::from_millis(15)).await;
        }
    }

    /// Writes under the last token that this process had, as long as it lives.
    async fn write_carelessly(&self, index: usize) {
        let seat = &self.seats[index];
        loop {
            let last = *locked(&seat.last);
            if let Some((slot, token)) = last {
                let entry = self.entry(seat, slot, token);
                let before = true_boottime_ns();
                let kind = match self.ledger.careless(&entry).await {
                    Outcome::Done => Kind::Fenced,
                    Outcome::Refused => Kind::FenceRefused,
                    Outcome::Unknown => Kind::Unknown,
                };
                self.tell(kind, seat, &entry, before);
            }
            tokio::time::sleep(Duration::from_millis(70)).await;
        }
    }

    /// Writes down what is believed, in a thread of its own: a busy runtime must not hide belief.
    fn sample(&self) {
        let mut believed: Vec<Option<(u32, Token)>> = vec![None; self.seats.len()];
        loop {
            for (seat, believed) in self.seats.iter().zip(&mut believed) {
                let leading = locked(&seat.leading);
                let before = true_boottime_ns();
                let believes = leading.as_ref().filter(|it| self.plan.trust_is_a_flag || it.is_leader());
                let now = believes.map(|leadership| (leadership.slot(), leadership.token()));
                if let Some((slot, token)) = now {
                    self.tell(Kind::Believes, seat, &self.entry(seat, slot, token), before);
                } else if let Some((slot, token)) = *believed {
                    self.tell(Kind::Doubts, seat, &self.entry(seat, slot, token), before);
                }
                *believed = now;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn entry(&self, seat: &Seat, slot: u32, token: Token) -> Entry {
        Entry { election: seat.election.name.clone(), slot, token, worker: self.plan.worker }
    }

    fn tell(&self, kind: Kind, seat: &Seat, entry: &Entry, before: u64) {
        self.log.write(Record {
            kind,
            election: seat.election.index,
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
