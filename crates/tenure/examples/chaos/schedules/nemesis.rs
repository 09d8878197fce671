//! Faults of the schedule scenarios: mostly the leader and the clock, and operator actions.
//!
//! The injector never reverts a clock step ahead. It follows a step back with a step ahead after a while, because no
//! tick is due for an hour after a step back, and a scenario without ticks would prove nothing.

use std::time::Duration;

use tenure::Tenure;
use tenure::port::{Pause, SetScheduleOutcome, SetScheduleRequest, scheduler_election};
use tenure_core::{Entropy, SplitMix};
use tenure_testkit::rig::SettableClock;
use tokio::runtime::Handle;

use super::clock::Clock;
use super::plan::{Plan, definitions, process_of};
use crate::Failed;
use crate::faults::{Fault, FaultDuration, FaultSource, LEASE_MS, ProcessFault};
use crate::process::StaleWrites;
use crate::worker_processes::WorkerProcesses;

/// Size of a clock step.
const STEP_S: i64 = 3_600;

/// Kind of the affected process.
#[derive(Clone, Copy)]
pub(super) enum ProcessKind {
    Leader,
    AnyProcess,
}

/// Clock faults and operator actions.
#[derive(Clone, Copy)]
pub(super) enum Own {
    ClockAhead,
    ClockBack,
    Pause,
    Change,
}

/// The operator that sets the clock, and pauses and changes schedules.
pub(super) struct Operator<'a> {
    pub(super) tenure: &'a Tenure,
    pub(super) runtime: &'a Handle,
    /// The clock, if libfaketime is available.
    pub(super) clock: Option<&'a SettableClock>,
    /// Current offset of the clock, and its history.
    pub(super) offset_s: i64,
    pub(super) shown: Clock,
}

impl FaultSource for Operator<'_> {
    type Job = Plan;
    type ProcessKind = ProcessKind;
    type Own = Own;

    const PROCESS: &'static str = "process";
    const PAUSE: FaultDuration = (150, 1_050);
    const TEST: Fault<ProcessKind, Own> = Fault::Hit(ProcessFault::Stop, ProcessKind::Leader);

    fn kinds(&self) -> Vec<Fault<ProcessKind, Own>> {
        let mut kinds = vec![
            Fault::Hit(ProcessFault::Kill, ProcessKind::Leader),
            Fault::Hit(ProcessFault::Kill, ProcessKind::Leader),
            Fault::Hit(ProcessFault::Stop, ProcessKind::Leader),
            Fault::Hit(ProcessFault::Stop, ProcessKind::Leader),
            Fault::Hit(ProcessFault::Stop, ProcessKind::Leader),
            Fault::Hit(ProcessFault::End, ProcessKind::Leader),
            Fault::Hit(ProcessFault::Kill, ProcessKind::AnyProcess),
            Fault::Own(Own::Pause),
            Fault::Own(Own::Change),
        ];
        kinds.extend(self.clock.iter().flat_map(|_| [Own::ClockAhead, Own::ClockBack].map(Fault::Own)));
        kinds
    }

    fn process_fault_names(kind: ProcessKind) -> [&'static str; 3] {
        match kind {
            ProcessKind::Leader => ["kill -9 leader", "SIGSTOP leader", "SIGTERM leader"],
            ProcessKind::AnyProcess => ["kill -9 process", "SIGSTOP process", "SIGTERM process"],
        }
    }

    fn name(own: Own) -> &'static str {
        match own {
            Own::ClockAhead => "clock one hour ahead",
            Own::ClockBack => "clock one hour back",
            Own::Pause => "operator: pause",
            Own::Change => "operator: change",
        }
    }

    fn duration(fault: Fault<ProcessKind, Own>) -> FaultDuration {
        match fault {
            Fault::Own(Own::ClockAhead) => (0, 1),
            Fault::Own(Own::ClockBack) => (LEASE_MS / 2, LEASE_MS * 2),
            Fault::Own(Own::Pause) => (500, 2_500),
            other => other.duration(),
        }
    }

    fn find(
        &self,
        kind: ProcessKind,
        workers: &WorkerProcesses<Plan>,
        entropy: &mut SplitMix,
    ) -> Result<usize, Failed> {
        let leader = match kind {
            ProcessKind::Leader => self.leader(),
            ProcessKind::AnyProcess => None,
        };
        Ok(leader.unwrap_or_else(|| workers.random_slot(entropy, |_| true)))
    }

    fn begin(&mut self, own: Own, entropy: &mut SplitMix) -> Result<(), Failed> {
        match own {
            Own::ClockAhead => self.step(STEP_S),
            Own::ClockBack => self.step(-STEP_S),
            Own::Pause => self.pause(true),
            Own::Change => self.change(entropy.next_u64()),
        }
    }

    fn end(&mut self, own: Own) -> Result<(), Failed> {
        match own {
            Own::ClockBack => self.step(STEP_S),
            Own::Pause => self.pause(false),
            Own::ClockAhead | Own::Change => Ok(()),
        }
    }

    fn is_tested(&self, workers: &WorkerProcesses<Plan>) -> Result<bool, Failed> {
        Ok(StaleWrites::of(workers)?.rejected > 0)
    }
}

impl Operator<'_> {
    fn step(&mut self, by_s: i64) -> Result<(), Failed> {
        self.offset_s += by_s;
        let before_ms = tenure::runtime::wall_ms();
        self.clock.ok_or("this scenario has no settable clock")?.set(self.offset_s)?;
        self.shown.set((before_ms, tenure::runtime::wall_ms()), self.offset_s * 1_000);
        Ok(())
    }

    /// The process that fires, if the store answers.
    fn leader(&self) -> Option<usize> {
        let store = self.tenure.store();
        let (limit, election) = (Duration::from_secs(1), scheduler_election());
        let read = async { tokio::time::timeout(limit, store.election(&election)).await };
        let view = self.runtime.block_on(read).ok()?.ok()??;
        tenure::leaders(&view).first().and_then(|leader| process_of(&leader.name))
    }

    /// Pause or resume every schedule, with retries.
    fn pause(&self, pause: bool) -> Result<(), Failed> {
        let store = self.tenure.store();
        let why = Pause {
            paused_by: "chaos".into(),
            reason: String::new(),
            paused_at_ms: tenure::runtime::wall_ms(),
        };
        for definition in definitions()? {
            let key = self.tenure.schedules().key(definition.name.as_str())?;
            self.retry(async || store.set_schedule_paused(&key, pause.then_some(&why)).await.map(drop))?;
        }
        Ok(())
    }

    /// Change the payload of every schedule: a new version with the same ticks.
    fn change(&self, number: u64) -> Result<(), Failed> {
        let store = self.tenure.store();
        for mut definition in definitions()? {
            definition.payload = tenure::port::RawJson::of(&number)?;
            let request = SetScheduleRequest {
                namespace: tenure::Name::default_namespace(),
                definition,
                secret: None,
                precondition: Default::default(),
                source: None,
                updated_by: "chaos".into(),
            };
            self.retry(async || match store.set_schedule(&request).await? {
                SetScheduleOutcome::Updated(_) | SetScheduleOutcome::Unchanged(_) => Ok(()),
                other => panic!("unexpected outcome {other:?}: the schedule exists"),
            })?;
        }
        Ok(())
    }

    /// Retries, because other processes write too.
    fn retry(&self, act: impl AsyncFn() -> Result<(), tenure::port::StoreError>) -> Result<(), Failed> {
        self.runtime.block_on(async {
            let mut tries = 0;
            loop {
                tries += 1;
                match act().await {
                    Err(_) if tries < 50 => tokio::time::sleep(Duration::from_millis(100)).await,
                    done => break Ok(done?),
                }
            }
        })
    }
}
