//! Faults of processes and servers, and the fault injector of the queue, event and schedule scenarios.

use tenure_core::SplitMix;
use tenure_testkit::rig::{PgCluster, true_boottime_ns};

use crate::Failed;
use crate::fault_deck::{Deck, EXTRA_FAULTS, between, wait};
use crate::oracles::Injected;
use crate::postgres::LEASE;
use crate::report::Progress;
use crate::scenario_context::ScenarioContext;
use crate::worker_processes::{Job, WorkerProcesses};

/// Minimum and maximum duration of a fault in milliseconds.
pub(crate) type FaultDuration = (u64, u64);

/// The lease in milliseconds; durations of faults depend on it.
pub(crate) const LEASE_MS: u64 = LEASE.as_millis() as u64;

/// A fault of a process. Arrays of fault names have this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessFault {
    /// `kill -9`.
    Kill,
    /// SIGSTOP.
    Stop,
    /// SIGTERM.
    End,
}

impl ProcessFault {
    /// Apply the fault to a process; `kind` names it in messages.
    pub(crate) fn apply<J>(
        self,
        workers: &mut WorkerProcesses<J>,
        process: usize,
        kind: &str,
        progress: &mut Progress,
    ) {
        match self {
            ProcessFault::Kill => workers.kill(process),
            ProcessFault::Stop => workers.stop(process),
            ProcessFault::End => {
                if !workers.end(process) {
                    progress.note(&format!("a {kind} did not end within 5 s of SIGTERM"));
                }
            }
        }
    }
}

/// A fault of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerFault {
    Restart,
    Kill,
    Freeze,
    EndConnections,
}

impl ServerFault {
    pub(crate) const ALL: [ServerFault; 4] =
        [ServerFault::Restart, ServerFault::Kill, ServerFault::Freeze, ServerFault::EndConnections];

    pub(crate) fn name(self) -> &'static str {
        match self {
            ServerFault::Restart => "restart server",
            ServerFault::Kill => "kill -9 server",
            ServerFault::Freeze => "freeze server",
            ServerFault::EndConnections => "end connections",
        }
    }

    pub(crate) fn begin(self, cluster: &PgCluster) -> Result<(), Failed> {
        match self {
            ServerFault::Restart => cluster.restart()?,
            ServerFault::Kill => cluster.kill9()?,
            ServerFault::Freeze => cluster.freeze()?,
            ServerFault::EndConnections => drop(cluster.terminate_backends("postgres")?),
        }
        Ok(())
    }

    pub(crate) fn end(self, cluster: &PgCluster) -> Result<(), Failed> {
        match self {
            ServerFault::Kill => cluster.start_again()?,
            ServerFault::Freeze => cluster.thaw()?,
            ServerFault::Restart | ServerFault::EndConnections => {}
        }
        Ok(())
    }

    pub(crate) fn duration(self) -> FaultDuration {
        match self {
            ServerFault::Freeze => (LEASE_MS / 3, LEASE_MS * 3 / 2),
            _ => (50, 300),
        }
    }
}

/// A fault during a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault<W, O> {
    /// A process of this kind is affected.
    Hit(ProcessFault, W),
    Server(ServerFault),
    /// A fault specific to the scenario.
    Own(O),
}

impl<W, O> Fault<W, O> {
    /// Default duration of the fault.
    pub(crate) fn duration(&self) -> FaultDuration {
        match self {
            Fault::Hit(ProcessFault::Stop, _) => (LEASE_MS * 6 / 5, LEASE_MS * 2),
            Fault::Hit(ProcessFault::Kill | ProcessFault::End, _) => (100, LEASE_MS),
            Fault::Server(server_fault) => server_fault.duration(),
            Fault::Own(_) => (50, 300),
        }
    }
}

/// Scenario-specific parts of the fault injection.
pub(crate) trait FaultSource {
    type Job: Job;
    /// Kinds of processes.
    type ProcessKind: Copy;
    /// Scenario-specific faults.
    type Own: Copy;

    /// Name of a process in messages.
    const PROCESS: &'static str;
    /// Pause between two faults in milliseconds.
    const PAUSE: FaultDuration = (150, 750);
    /// Fault that hits a process in the middle of its work. The injector repeats it at the end of a scenario until
    /// [`is_tested`](FaultSource::is_tested) returns true.
    const TEST: Fault<Self::ProcessKind, Self::Own>;

    /// Faults of the deck, without those of a server.
    fn kinds(&self) -> Vec<Fault<Self::ProcessKind, Self::Own>>;

    /// Names of the faults of a process of this kind, in the order of [`ProcessFault`].
    fn process_fault_names(kind: Self::ProcessKind) -> [&'static str; 3];

    fn name(own: Self::Own) -> &'static str;

    fn duration(fault: Fault<Self::ProcessKind, Self::Own>) -> FaultDuration;

    /// Find a process of this kind.
    fn find(
        &self,
        kind: Self::ProcessKind,
        workers: &WorkerProcesses<Self::Job>,
        entropy: &mut SplitMix,
    ) -> Result<usize, Failed>;

    fn begin(&mut self, own: Self::Own, entropy: &mut SplitMix) -> Result<(), Failed>;

    fn end(&mut self, own: Self::Own) -> Result<(), Failed>;

    /// Whether the tested situation has occurred: work of an affected process was recovered.
    fn is_tested(&self, workers: &WorkerProcesses<Self::Job>) -> Result<bool, Failed>;
}

/// Injects one fault at a time, drawn from a seeded deck, and heals it.
pub(crate) struct Nemesis<'a, 's, M: FaultSource> {
    pub(crate) context: &'a mut ScenarioContext<'s>,
    pub(crate) workers: &'a mut WorkerProcesses<M::Job>,
    pub(crate) source: &'a mut M,
}

impl<M: FaultSource> Nemesis<'_, '_, M> {
    /// Inject and heal faults for the duration of the scenario; returns the injected faults.
    pub(crate) fn run(mut self) -> Result<Vec<Injected>, Failed> {
        let until_ns = true_boottime_ns() + (self.context.seconds * 1e9) as u64;
        let mut kinds = self.source.kinds();
        kinds.extend(self.context.cluster.iter().flat_map(|_| ServerFault::ALL.map(Fault::Server)));
        let mut deck = Deck::new(kinds);
        let mut injected = Vec::new();
        wait(self.context.progress, LEASE.mul_f64(1.5));
        while true_boottime_ns() < until_ns {
            if let Some(fault) = deck.draw(self.context.entropy, |_| true) {
                injected.extend(self.break_and_heal(fault)?);
            }
            self.wait_between(M::PAUSE);
        }
        for _ in 0..EXTRA_FAULTS {
            if self.source.is_tested(self.workers)? {
                break;
            }
            injected.extend(self.break_and_heal(M::TEST)?);
            self.wait_between(M::PAUSE);
        }
        Ok(injected)
    }

    /// Inject a fault, wait, and heal it. Returns `None` if it could not be injected, for example because the server
    /// was still down or there was no leader.
    fn break_and_heal(&mut self, fault: Fault<M::ProcessKind, M::Own>) -> Result<Option<Injected>, Failed> {
        let name = match fault {
            Fault::Hit(process_fault, kind) => M::process_fault_names(kind)[process_fault as usize],
            Fault::Server(server_fault) => server_fault.name(),
            Fault::Own(own) => M::name(own),
        };
        self.context.progress.doing(name);
        let from_ns = true_boottime_ns();
        let worker = match self.begin(fault) {
            Ok(worker) => worker,
            Err(why) => {
                self.context.progress.note(&format!("could not inject {name}: {why}"));
                return Ok(None);
            }
        };
        self.wait_between(M::duration(fault));
        self.end(fault, worker)?;
        Ok(Some(Injected { name, worker, from_ns, to_ns: true_boottime_ns() }))
    }

    /// Inject a fault and return the affected process, if the fault affects one.
    fn begin(&mut self, fault: Fault<M::ProcessKind, M::Own>) -> Result<Option<usize>, Failed> {
        match fault {
            Fault::Hit(process_fault, kind) => {
                let process = self.source.find(kind, self.workers, self.context.entropy)?;
                process_fault.apply(self.workers, process, M::PROCESS, self.context.progress);
                return Ok(Some(process));
            }
            Fault::Server(server_fault) => {
                server_fault.begin(self.context.cluster.ok_or("this scenario has no server")?)?
            }
            Fault::Own(own) => self.source.begin(own, self.context.entropy)?,
        }
        Ok(None)
    }

    fn end(&mut self, fault: Fault<M::ProcessKind, M::Own>, hit: Option<usize>) -> Result<(), Failed> {
        hit.map_or(Ok(()), |process| self.workers.bring_back(process))?;
        match fault {
            Fault::Hit(..) => Ok(()),
            Fault::Server(server_fault) => {
                self.context.cluster.map_or(Ok(()), |cluster| server_fault.end(cluster))
            }
            Fault::Own(own) => self.source.end(own),
        }
    }

    fn wait_between(&mut self, bounds: FaultDuration) {
        let time = between(self.context.entropy, bounds);
        wait(self.context.progress, time);
    }
}
