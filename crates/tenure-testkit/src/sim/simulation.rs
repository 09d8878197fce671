//! State of one simulation run: the scheduled steps and their execution.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::Duration;

use tenure_core::rules::lease::{CandidateOptions, CommandId, LeaseInput, StoreCommand};
use tenure_core::{BootInstant, ElectionKey, Name, SplitMix};

use super::failure::TraceLog;
use super::invariants::Violation;
use super::network::{NetworkFaultRates, RandomExt as _};
use super::node::{LinkCut, NEVER, NodeInput, ProcessState, SimProcess, SimWork};
use super::resource::{FencedResource, LeaseGrant};
use super::scenario::SimPlan;
use super::store::SimStore;
use super::{InjectedBug, Scenario, Stats};

pub(super) type CheckResult = Result<(), Violation>;

pub(super) struct ElectionSimulation {
    pub(super) plan: SimPlan,
    pub(super) bug: Option<InjectedBug>,
    pub(super) rng: SplitMix,
    /// Real time in nanoseconds.
    pub(super) now: u64,
    queue: BinaryHeap<Reverse<QueuedStep>>,
    queued: u64,
    pub(super) keys: Vec<ElectionKey>,
    pub(super) nodes: Vec<SimProcess>,
    pub(super) store: SimStore,
    pub(super) store_up: bool,
    pub(super) promoted_at: Option<u64>,
    pub(super) resource: FencedResource,
    /// All grants, in order.
    pub(super) grants: Vec<LeaseGrant>,
    /// The newest grant, by number, that has written to each slot of the resource.
    pub(super) newest_writer: [usize; 8],
    pub(super) dead: Vec<tenure_core::SessionId>,
    pub(super) quiet: bool,
    pub(super) stats: Stats,
    pub(super) trace_log: TraceLog,
}

struct QueuedStep {
    at: u64,
    number: u64,
    what: SimStep,
}

/// A scheduled step.
pub(super) enum SimStep {
    Tick { node: usize, at: u64 },
    Arrive { node: usize, epoch: u32, arrival: Box<NodeInput> },
    Apply(Box<SimStoreCall>),
    GuardedWrite(Box<SimWork>),
    Commit(Box<SimWork>),
    FencedWrite(Box<SimWork>),
    Start(usize),
    GoOn { node: usize, epoch: u32 },
    Mend(usize),
    StoreBack,
    Fault,
    Replicate,
}

/// A call on its way to the store.
pub(super) struct SimStoreCall {
    pub(super) node: usize,
    pub(super) epoch: u32,
    pub(super) id: CommandId,
    pub(super) sent_at: BootInstant,
    /// When the process stops waiting for it.
    pub(super) give_up_at: u64,
    pub(super) gave_up: bool,
    pub(super) command: StoreCommand,
}

impl ElectionSimulation {
    pub(super) fn new(scenario: Scenario, seed: u64, bug: Option<InjectedBug>, trace_log: bool) -> Self {
        // The same seed gives unrelated runs in different scenarios.
        let mut rng = SplitMix::new(seed ^ ((scenario as u64) << 56));
        let plan = SimPlan::draw(scenario, &mut rng);
        let key =
            |n: usize| ElectionKey::new(Name::default_namespace(), format!("e{n}").parse().expect("a name"));
        let keys: Vec<_> = (0..plan.elections).map(key).collect();
        let mut simulation = ElectionSimulation {
            bug,
            now: 0,
            queue: BinaryHeap::new(),
            queued: 0,
            nodes: Vec::new(),
            store: SimStore::new(bug),
            store_up: true,
            promoted_at: None,
            resource: FencedResource::default(),
            grants: Vec::new(),
            newest_writer: [0; 8],
            dead: Vec::new(),
            quiet: false,
            stats: Stats { run_count: 1, ..Stats::default() },
            trace_log: TraceLog::new(trace_log),
            plan,
            rng,
            keys,
        };
        simulation.populate();
        simulation
    }

    fn populate(&mut self) {
        let rng = &mut self.rng;
        let slots: Vec<u32> = self.keys.iter().map(|_| [1, 1, 1, 2, 3][rng.below(5) as usize]).collect();
        let picky: Vec<bool> = self.keys.iter().map(|_| rng.chance(200)).collect();
        for number in 0..self.plan.nodes {
            let mut stands = Vec::new();
            for ((key, &slots), &picky) in self.keys.iter().zip(&slots).zip(&picky) {
                let mut stand = CandidateOptions::new(key.clone(), format!("n{number}"));
                stand.slots = slots;
                stand.priority = [0, 0, 0, 1, 5][rng.below(5) as usize];
                stand.observer = rng.chance(80);
                stand.required_capabilities = if picky { vec!["disk".into()] } else { Vec::new() };
                stand.capabilities = if rng.chance(700) { vec!["disk".into()] } else { Vec::new() };
                stands.push(rng.chance(920).then_some(stand));
            }
            self.nodes.push(SimProcess::new(number, self.plan.timing, stands, rng));
        }
        for node in 0..self.nodes.len() {
            let at = self.rng.below(self.plan.lease);
            self.at(at, SimStep::Start(node));
        }
        if self.plan.scenario != Scenario::Calm {
            self.at(self.plan.lease / 2, SimStep::Fault);
        }
        if self.plan.scenario == Scenario::Promotion {
            self.at(self.plan.lease / 2, SimStep::Replicate);
        }
    }

    /// Runs the faults, then waits for convergence.
    pub(super) fn run(mut self) -> (Result<Stats, (Violation, Duration)>, TraceLog) {
        let result = self.faults_then_quiet();
        let at = Duration::from_nanos(self.now);
        self.stats.virtual_ms = at.as_millis() as u64;
        (result.map(|()| self.stats).map_err(|violation| (violation, at)), self.trace_log)
    }

    fn faults_then_quiet(&mut self) -> CheckResult {
        self.run_until(self.plan.chaos)?;
        self.end_of_faults()?;
        self.settle()
    }

    pub(super) fn run_until(&mut self, until: u64) -> CheckResult {
        while self.queue.peek().is_some_and(|Reverse(due)| due.at <= until) {
            let Some(Reverse(due)) = self.queue.pop() else { break };
            self.now = due.at;
            self.happen(due.what)?;
        }
        self.now = until;
        Ok(())
    }

    pub(super) fn at(&mut self, at: u64, what: SimStep) {
        self.queued += 1;
        self.queue.push(Reverse(QueuedStep { at: at.max(self.now), number: self.queued, what }));
    }

    fn happen(&mut self, what: SimStep) -> CheckResult {
        match what {
            SimStep::Tick { node, at } => {
                let it = &mut self.nodes[node];
                if it.tick_at != at {
                    return Ok(());
                }
                it.tick_for = NEVER;
                if it.state == ProcessState::Up { self.feed(node, LeaseInput::Tick) } else { Ok(()) }
            }
            SimStep::Arrive { node, epoch, arrival } => self.arrive(node, epoch, *arrival),
            SimStep::Apply(request) => self.apply(*request),
            SimStep::GuardedWrite(work) => self.guarded_write(*work),
            SimStep::Commit(work) => self.commit(&work),
            SimStep::FencedWrite(work) => self.fenced_write(&work),
            SimStep::Start(node) => self.start(node),
            SimStep::GoOn { node, epoch } => self.resume(node, epoch),
            SimStep::Mend(node) => {
                self.nodes[node].cut = LinkCut::None;
                Ok(())
            }
            SimStep::StoreBack => {
                self.store_back();
                Ok(())
            }
            SimStep::Fault => self.fault(),
            SimStep::Replicate => {
                self.store.replicate();
                let next = self.now + self.rng.below(self.plan.lease);
                self.at(next, SimStep::Replicate);
                Ok(())
            }
        }
    }

    /// Ends the faults; delayed messages arrive soon.
    pub(super) fn calm_down(&mut self) {
        self.quiet = true;
        self.plan.weather = NetworkFaultRates::calm();
        let soon = self.now + self.plan.lease / 10;
        let mut queue = std::mem::take(&mut self.queue).into_vec();
        for Reverse(due) in &mut queue {
            if matches!(due.what, SimStep::Apply(_) | SimStep::GuardedWrite(_) | SimStep::FencedWrite(_)) {
                due.at = due.at.min(soon);
            }
        }
        self.queue = queue.into();
    }
}

impl PartialEq for QueuedStep {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for QueuedStep {}

impl PartialOrd for QueuedStep {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for QueuedStep {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}
