//! Faults of the queue scenarios: workers, submitters, the broker, and operator actions.

use tenure::port::TaskAction;
use tenure_core::SplitMix;

use super::notes;
use super::operator::Operator;
use super::oracles::holdings;
use super::plan::{MIXED, Plan, Role};
use crate::Failed;
use crate::evaluation::logs;
use crate::fault_deck::undo;
use crate::faults::{Fault, FaultDuration, FaultSource, ProcessFault};
use crate::worker_processes::WorkerProcesses;

/// Kind of the affected process.
#[derive(Clone, Copy)]
pub(crate) enum ProcessKind {
    Worker,
    Leader,
    Submitter,
}

/// Operator actions.
#[derive(Clone, Copy)]
pub(crate) enum Own {
    Flip,
    Pause,
    Cancel,
    Retry,
    Resign,
}

impl FaultSource for Operator {
    type Job = Plan;
    type ProcessKind = ProcessKind;
    type Own = Own;

    const PROCESS: &'static str = "worker";
    const TEST: Fault<ProcessKind, Own> = Fault::Hit(ProcessFault::Kill, ProcessKind::Worker);

    fn kinds(&self) -> Vec<Fault<ProcessKind, Own>> {
        vec![
            Fault::Own(Own::Flip),
            Fault::Hit(ProcessFault::Kill, ProcessKind::Worker),
            Fault::Hit(ProcessFault::Stop, ProcessKind::Worker),
            Fault::Own(Own::Flip),
            Fault::Hit(ProcessFault::End, ProcessKind::Worker),
            Fault::Hit(ProcessFault::Kill, ProcessKind::Leader),
            Fault::Hit(ProcessFault::Stop, ProcessKind::Leader),
            Fault::Own(Own::Flip),
            Fault::Hit(ProcessFault::Kill, ProcessKind::Submitter),
            Fault::Own(Own::Pause),
            Fault::Own(Own::Cancel),
            Fault::Own(Own::Cancel),
            Fault::Own(Own::Retry),
            Fault::Own(Own::Resign),
        ]
    }

    fn process_fault_names(kind: ProcessKind) -> [&'static str; 3] {
        match kind {
            ProcessKind::Worker => ["kill -9 worker", "SIGSTOP worker", "SIGTERM worker"],
            ProcessKind::Leader => ["kill -9 broker", "SIGSTOP broker", "SIGTERM broker"],
            ProcessKind::Submitter => ["kill -9 submitter", "SIGSTOP submitter", "SIGTERM submitter"],
        }
    }

    fn name(own: Own) -> &'static str {
        match own {
            Own::Flip => "operator: change mode",
            Own::Pause => "operator: pause",
            Own::Cancel => "operator: cancel",
            Own::Retry => "operator: retry",
            Own::Resign => "operator: resign",
        }
    }

    fn duration(fault: Fault<ProcessKind, Own>) -> FaultDuration {
        match fault {
            // Long enough for some claims in the new mode.
            Fault::Own(Own::Flip) => (600, 1500),
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
        match kind {
            ProcessKind::Worker => Ok(workers.random_slot(entropy, |plan| plan.role == Role::Works)),
            ProcessKind::Submitter => Ok(workers.random_slot(entropy, |plan| plan.role == Role::Submits)),
            ProcessKind::Leader => {
                let name = self.leader()?;
                Ok(name
                    .rsplit('-')
                    .next()
                    .and_then(|n| n.parse().ok())
                    .ok_or("the broker is not a process of this run")?)
            }
        }
    }

    fn begin(&mut self, own: Own, entropy: &mut SplitMix) -> Result<(), Failed> {
        match own {
            Own::Flip => self.flip(),
            Own::Pause => self.pause(MIXED, true),
            Own::Cancel => self.order(TaskAction::Cancel, entropy),
            Own::Retry => self.order(TaskAction::Retry, entropy),
            Own::Resign => self.resign(),
        }
    }

    fn end(&mut self, own: Own) -> Result<(), Failed> {
        match own {
            Own::Pause => undo(|| self.pause(MIXED, false)),
            _ => Ok(()),
        }
    }

    /// Whether a process died during a run.
    fn is_tested(&self, workers: &WorkerProcesses<Plan>) -> Result<bool, Failed> {
        for (process, log) in logs(workers)? {
            let has_ended = workers.slots[process].plan.log != log;
            if has_ended && holdings(process, &notes::read(&log)?).iter().any(|it| !it.ended) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
