//! Faults of the event scenarios: members, writers, and an operator that pauses the group.

use std::time::Duration;

use tenure::port::{GroupKey, Pause};
use tenure_core::SplitMix;
use tokio::runtime::Handle;

use super::chains::{GROUP, topic};
use super::plan::{Plan, Role};
use crate::Failed;
use crate::faults::{Fault, FaultDuration, FaultSource, LEASE_MS, ProcessFault};
use crate::postgres::LEASE;
use crate::process::{StaleWrites, open};
use crate::worker_processes::WorkerProcesses;

/// Kind of the affected process.
#[derive(Clone, Copy)]
pub(super) enum ProcessKind {
    Reader,
    Writer,
}

/// Operator actions.
#[derive(Clone, Copy)]
pub(super) enum Own {
    Pause,
}

/// The operator that pauses the group.
pub(super) struct Operator<'a> {
    pub(super) url: &'a str,
    pub(super) runtime: &'a Handle,
}

impl FaultSource for Operator<'_> {
    type Job = Plan;
    type ProcessKind = ProcessKind;
    type Own = Own;

    const PROCESS: &'static str = "member";
    const TEST: Fault<ProcessKind, Own> = Fault::Hit(ProcessFault::Stop, ProcessKind::Reader);

    fn kinds(&self) -> Vec<Fault<ProcessKind, Own>> {
        vec![
            Fault::Hit(ProcessFault::Kill, ProcessKind::Reader),
            Fault::Hit(ProcessFault::Stop, ProcessKind::Reader),
            Fault::Hit(ProcessFault::End, ProcessKind::Reader),
            Fault::Hit(ProcessFault::Kill, ProcessKind::Reader),
            Fault::Hit(ProcessFault::Stop, ProcessKind::Reader),
            Fault::Hit(ProcessFault::End, ProcessKind::Reader),
            Fault::Hit(ProcessFault::Kill, ProcessKind::Writer),
            Fault::Hit(ProcessFault::Stop, ProcessKind::Writer),
            Fault::Own(Own::Pause),
        ]
    }

    fn process_fault_names(kind: ProcessKind) -> [&'static str; 3] {
        match kind {
            ProcessKind::Reader => ["kill -9 member", "SIGSTOP member", "SIGTERM member"],
            ProcessKind::Writer => ["kill -9 writers", "SIGSTOP writers", "SIGTERM writers"],
        }
    }

    fn name(own: Own) -> &'static str {
        match own {
            Own::Pause => "operator: pause",
        }
    }

    fn duration(fault: Fault<ProcessKind, Own>) -> FaultDuration {
        match fault {
            Fault::Hit(ProcessFault::Stop, ProcessKind::Writer) => (LEASE_MS / 3, LEASE_MS * 3 / 2),
            Fault::Own(Own::Pause) => (200, 600),
            other => other.duration(),
        }
    }

    fn find(
        &self,
        kind: ProcessKind,
        workers: &WorkerProcesses<Plan>,
        entropy: &mut SplitMix,
    ) -> Result<usize, Failed> {
        let reads = matches!(kind, ProcessKind::Reader);
        Ok(workers.random_slot(entropy, |plan| (plan.role == Role::Reads) == reads))
    }

    fn begin(&mut self, own: Own, _: &mut SplitMix) -> Result<(), Failed> {
        match own {
            Own::Pause => self.pause(true),
        }
    }

    fn end(&mut self, own: Own) -> Result<(), Failed> {
        match own {
            Own::Pause => self.pause(false),
        }
    }

    fn is_tested(&self, workers: &WorkerProcesses<Plan>) -> Result<bool, Failed> {
        Ok(StaleWrites::of(workers)?.rejected > 0)
    }
}

impl Operator<'_> {
    /// Retries, because other processes write too.
    fn pause(&self, pause: bool) -> Result<(), Failed> {
        let group = GroupKey::new(topic()?, GROUP.parse()?);
        let why = Pause {
            paused_by: "chaos".into(),
            reason: String::new(),
            paused_at_ms: tenure::runtime::wall_ms(),
        };
        self.runtime.block_on(async {
            let tenure = open(self.url, "operator", LEASE * 4).await;
            let mut tries = 0;
            let done = loop {
                tries += 1;
                match tenure.store().set_group_paused(&group, pause.then_some(&why)).await {
                    Err(_) if tries < 20 => tokio::time::sleep(Duration::from_millis(100)).await,
                    done => break done,
                }
            };
            let _ = tenure.close().await;
            Ok(done.map(drop)?)
        })
    }
}
