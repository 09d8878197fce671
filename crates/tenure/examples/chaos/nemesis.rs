//! The fault injector of the election scenarios: one or two faults at a time, drawn from a seeded deck, each healed
//! again.
//!
//! A second fault never has the same target as the first. A fault that could not be injected (the server was still
//! down, no leader) is not counted.

use std::time::Duration;

use tenure_core::{Entropy, SplitMix};
use tenure_testkit::rig::true_boottime_ns;

use crate::Failed;
use crate::fault_deck::{Deck, below, between, undo, wait};
use crate::faults::{ProcessFault, ServerFault};
use crate::oracles::Injected;
use crate::postgres::Servers;
use crate::report::Progress;
use crate::worker::{PAUSE_IN_TRANSACTION, PAUSED_IN_TRANSACTION};
use crate::worker_processes::WorkerProcesses;

/// Network faults that disconnect a member from all others.
pub(crate) const DISCONNECTED: &str = "disconnected";
pub(crate) const CANNOT_SEND: &str = "disconnected: cannot send";
pub(crate) const CANNOT_RECEIVE: &str = "disconnected: cannot receive";

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Worker(ProcessFault),
    SkewWorker,
    StopInTransaction,
    Server(ServerFault),
    CutResponses,
    WithholdResponses,
    Isolate,
    BlockSending,
    BlockReceiving,
    Resign,
    Transfer,
    Pause,
    FillDisk,
}

/// Target of a fault.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FaultTarget {
    Worker,
    Server,
    Network,
    Operator,
}

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Fault::Worker(process_fault) => {
                ["kill -9 worker", "SIGSTOP worker", "SIGTERM worker"][process_fault as usize]
            }
            Fault::SkewWorker => "clock skew",
            Fault::StopInTransaction => "SIGSTOP in transaction",
            Fault::Server(server_fault) => server_fault.name(),
            Fault::CutResponses => "one-way network fault",
            Fault::WithholdResponses => "responses withheld",
            Fault::Isolate => DISCONNECTED,
            Fault::BlockSending => CANNOT_SEND,
            Fault::BlockReceiving => CANNOT_RECEIVE,
            Fault::Resign => "operator: resign",
            Fault::Transfer => "operator: transfer",
            Fault::Pause => "operator: pause",
            Fault::FillDisk => "full disk",
        }
    }

    fn target(self) -> FaultTarget {
        match self {
            Fault::Worker(_) | Fault::SkewWorker | Fault::StopInTransaction => FaultTarget::Worker,
            Fault::CutResponses
            | Fault::WithholdResponses
            | Fault::Isolate
            | Fault::BlockSending
            | Fault::BlockReceiving => FaultTarget::Network,
            Fault::Resign | Fault::Transfer | Fault::Pause => FaultTarget::Operator,
            Fault::Server(_) | Fault::FillDisk => FaultTarget::Server,
        }
    }

    /// Operators need a responsive server, and faults with the same target may conflict.
    fn goes_with(self, other: Fault) -> bool {
        let realms = [self.target(), other.target()];
        realms[0] != realms[1]
            && !(realms.contains(&FaultTarget::Server) && realms.contains(&FaultTarget::Operator))
    }
}

/// Injects faults for a while.
pub(crate) struct Nemesis<'a> {
    pub(crate) workers: &'a mut WorkerProcesses,
    pub(crate) servers: Option<&'a Servers>,
    pub(crate) entropy: &'a mut SplitMix,
    pub(crate) progress: &'a mut Progress,
    pub(crate) lease: Duration,
    deck: Deck<Fault>,
    injected: Vec<Injected>,
}

/// A fault that is not healed yet.
struct Open {
    fault: Fault,
    worker: Option<usize>,
    record: usize,
}

impl<'a> Nemesis<'a> {
    pub(crate) fn new(
        workers: &'a mut WorkerProcesses,
        servers: Option<&'a Servers>,
        entropy: &'a mut SplitMix,
        progress: &'a mut Progress,
        lease: Duration,
        kinds: Vec<Fault>,
    ) -> Self {
        Self { workers, servers, entropy, progress, lease, deck: Deck::new(kinds), injected: Vec::new() }
    }

    /// Inject and heal faults until this time; returns the injected faults.
    pub(crate) fn run(mut self, until_ns: u64) -> Result<Vec<Injected>, Failed> {
        self.wait(self.lease.mul_f64(1.5));
        while true_boottime_ns() < until_ns {
            let first = self.draw(None);
            let first = first.and_then(|fault| self.inject(fault));
            let second = if self.entropy.next_u64().is_multiple_of(3) {
                self.wait_between(0, 400);
                let second = self.draw(first.as_ref().map(|it| it.fault));
                second.and_then(|fault| self.inject(fault))
            } else {
                None
            };
            for open in [second, first].into_iter().flatten() {
                let duration = self.duration(open.fault);
                self.wait(duration);
                self.heal(open)?;
            }
            self.wait_between(200, 1200);
        }
        Ok(self.injected)
    }

    fn draw(&mut self, with: Option<Fault>) -> Option<Fault> {
        self.deck.draw(self.entropy, |fault| with.is_none_or(|with| with.goes_with(*fault)))
    }

    fn inject(&mut self, fault: Fault) -> Option<Open> {
        self.progress.doing(fault.name());
        let from_ns = true_boottime_ns();
        let worker = match self.try_inject(fault) {
            Ok(worker) => worker,
            Err(why) => {
                self.progress.note(&format!("could not inject {}: {why}", fault.name()));
                return None;
            }
        };
        // A network fault counts from the instant at which all routes are blocked: the raft scenario checks that the
        // trust of the worker ends a fixed time after that.
        let is_network_fault = matches!(fault, Fault::Isolate | Fault::BlockSending | Fault::BlockReceiving);
        let from_ns = if is_network_fault { true_boottime_ns() } else { from_ns };
        self.injected.push(Injected { name: fault.name(), worker, from_ns, to_ns: u64::MAX });
        Some(Open { fault, worker, record: self.injected.len() - 1 })
    }

    /// Inject a fault and return the affected worker.
    fn try_inject(&mut self, fault: Fault) -> Result<Option<usize>, Failed> {
        let worker = self.below(self.workers.slots.len());
        let election = ["orders", "pool", "connection-mode"][self.below(3)];
        match (fault, self.servers) {
            (Fault::Worker(process_fault), _) => {
                process_fault.apply(self.workers, worker, "worker", self.progress)
            }
            (Fault::SkewWorker, _) => {
                // Rates between 0.92 and 1.08 are within the permitted ratio of 1.2.
                self.workers.slots[worker].rate = Some([0.92, 0.96, 1.0, 1.04, 1.08][self.below(5)]);
                self.workers.kill(worker);
                self.workers.start(worker)?;
            }
            (Fault::StopInTransaction, _) => return self.stop_in_transaction().map(Some),
            (Fault::Server(server_fault), Some(servers)) => server_fault.begin(&servers.cluster)?,
            (Fault::CutResponses, _) => {
                self.workers
                    .namespace
                    .as_ref()
                    .ok_or("this scenario has no network namespace")?
                    .cut_one_way()?;
                return Ok(self.workers.slots.iter().position(|slot| slot.inside));
            }
            (Fault::Isolate | Fault::BlockSending | Fault::BlockReceiving, _) => {
                let switch = self.workers.switch.as_ref().ok_or("this scenario has no network switch")?;
                match fault {
                    Fault::BlockSending => switch.mute(worker)?,
                    Fault::BlockReceiving => switch.deafen(worker)?,
                    _ => switch.isolate(worker)?,
                }
                return Ok(Some(worker));
            }
            (Fault::WithholdResponses, Some(servers)) => {
                servers.proxy.withhold_responses(true);
                return Ok(Some(servers.behind_proxy));
            }
            (Fault::Resign, Some(servers)) => servers.operator.resign(election)?,
            (Fault::Transfer, Some(servers)) => servers.operator.transfer(election, self.entropy)?,
            (Fault::Pause, Some(servers)) => servers.operator.pause("orders", true)?,
            (Fault::FillDisk, Some(servers)) => servers.disk.as_ref().ok_or("no small disk")?.fill()?,
            (_, None) => return Err("this scenario has no server".into()),
        }
        Ok((fault.target() == FaultTarget::Worker).then_some(worker))
    }

    /// Wait until a leader stops itself between its guard and its commit.
    fn stop_in_transaction(&mut self) -> Result<usize, Failed> {
        let directory = self.workers.directory.path().to_owned();
        let _ = std::fs::remove_file(directory.join(PAUSED_IN_TRANSACTION));
        std::fs::write(directory.join(PAUSE_IN_TRANSACTION), "")?;
        for _ in 0..100 {
            std::thread::sleep(Duration::from_millis(20));
            let paused_worker =
                std::fs::read_to_string(directory.join(PAUSED_IN_TRANSACTION)).unwrap_or_default();
            if let Ok(worker) = paused_worker.parse() {
                return Ok(worker);
            }
        }
        let _ = std::fs::remove_file(directory.join(PAUSE_IN_TRANSACTION));
        Err("no leader within two seconds".into())
    }

    fn heal(&mut self, open: Open) -> Result<(), Failed> {
        if let Some(worker) = open.worker {
            self.workers.bring_back(worker)?;
        }
        match (open.fault, self.servers) {
            (Fault::Server(server_fault), Some(servers)) => server_fault.end(&servers.cluster)?,
            (Fault::CutResponses, _) => self.workers.namespace.as_ref().map_or(Ok(()), |it| it.heal())?,
            (Fault::WithholdResponses, Some(servers)) => servers.proxy.withhold_responses(false),
            (Fault::Isolate | Fault::BlockSending | Fault::BlockReceiving, _) => {
                self.workers.switch.as_ref().map_or(Ok(()), |it| it.heal())?;
            }
            (Fault::Pause, Some(servers)) => undo(|| servers.operator.pause("orders", false))?,
            (Fault::FillDisk, Some(servers)) => servers.empty_disk()?,
            _ => {}
        }
        self.injected[open.record].to_ns = true_boottime_ns();
        Ok(())
    }

    /// Duration of a fault.
    fn duration(&mut self, fault: Fault) -> Duration {
        let lease = u64::try_from(self.lease.as_millis()).unwrap_or(1000);
        let (least, most) = match fault {
            Fault::Worker(ProcessFault::Stop) | Fault::StopInTransaction => (lease * 6 / 5, lease * 2),
            Fault::Worker(ProcessFault::Kill | ProcessFault::End) => (100, lease * 3 / 2),
            Fault::Server(server_fault) => server_fault.duration(),
            Fault::CutResponses | Fault::WithholdResponses => (lease / 2, lease * 2),
            Fault::Isolate | Fault::BlockSending | Fault::BlockReceiving => (lease * 3 / 2, lease * 5 / 2),
            Fault::Pause | Fault::FillDisk => (500, lease),
            _ => (50, 300),
        };
        between(self.entropy, (least, most))
    }

    fn below(&mut self, bound: usize) -> usize {
        below(self.entropy, bound)
    }

    fn wait_between(&mut self, least_ms: u64, most_ms: u64) {
        let time = between(self.entropy, (least_ms, most_ms));
        self.wait(time);
    }

    fn wait(&mut self, time: Duration) {
        wait(self.progress, time);
    }
}
