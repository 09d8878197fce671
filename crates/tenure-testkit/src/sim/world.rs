//! The world of one day: what is due when, and what becomes of it.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::Duration;

use tenure_core::lease::{Command, CommandId, Input, Stand};
use tenure_core::{ElectionKey, Moment, Name, SplitMix};

use super::failure::Diary;
use super::invariants::Violation;
use super::network::{Draw as _, Weather};
use super::node::{Arrival, Cut, NEVER, Node, State, Work};
use super::resource::{Grant, Resource};
use super::scenario::Plan;
use super::store::Store;
use super::{Mistake, Scenario, Stats};

pub(super) type Checked = Result<(), Violation>;

pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) mistake: Option<Mistake>,
    pub(super) rng: SplitMix,
    /// Real time, in nanoseconds.
    pub(super) now: u64,
    queue: BinaryHeap<Reverse<Due>>,
    queued: u64,
    pub(super) keys: Vec<ElectionKey>,
    pub(super) nodes: Vec<Node>,
    pub(super) store: Store,
    pub(super) store_up: bool,
    pub(super) promoted_at: Option<u64>,
    pub(super) resource: Resource,
    /// All grants ever made, in order.
    pub(super) grants: Vec<Grant>,
    /// The newest grant, by number, that has written to each place of the resource.
    pub(super) newest_writer: [usize; 8],
    pub(super) dead: Vec<tenure_core::SessionId>,
    pub(super) quiet: bool,
    pub(super) stats: Stats,
    pub(super) diary: Diary,
}

struct Due {
    at: u64,
    number: u64,
    what: What,
}

/// Something that is due.
pub(super) enum What {
    Tick { node: usize, at: u64 },
    Arrive { node: usize, epoch: u32, arrival: Box<Arrival> },
    Apply(Box<Request>),
    GuardedWrite(Box<Work>),
    Commit(Box<Work>),
    FencedWrite(Box<Work>),
    Start(usize),
    GoOn { node: usize, epoch: u32 },
    Mend(usize),
    StoreBack,
    Fault,
    Replicate,
}

/// A call on its way to the store.
pub(super) struct Request {
    pub(super) node: usize,
    pub(super) epoch: u32,
    pub(super) id: CommandId,
    pub(super) sent_at: Moment,
    /// When the process stops waiting for it.
    pub(super) give_up_at: u64,
    pub(super) gave_up: bool,
    pub(super) command: Command,
}

impl World {
    pub(super) fn new(scenario: Scenario, seed: u64, mistake: Option<Mistake>, diary: bool) -> Self {
        // Neighbouring seeds of different scenarios share nothing.
        let mut rng = SplitMix::new(seed ^ ((scenario as u64) << 56));
        let plan = Plan::draw(scenario, &mut rng);
        let key =
            |n: usize| ElectionKey::new(Name::default_namespace(), format!("e{n}").parse().expect("a name"));
        let keys: Vec<_> = (0..plan.elections).map(key).collect();
        let mut world = World {
            mistake,
            now: 0,
            queue: BinaryHeap::new(),
            queued: 0,
            nodes: Vec::new(),
            store: Store::new(mistake),
            store_up: true,
            promoted_at: None,
            resource: Resource::default(),
            grants: Vec::new(),
            newest_writer: [0; 8],
            dead: Vec::new(),
            quiet: false,
            stats: Stats { days: 1, ..Stats::default() },
            diary: Diary::new(diary),
            plan,
            rng,
            keys,
        };
        world.populate();
        world
    }

    fn populate(&mut self) {
        let rng = &mut self.rng;
        let slots: Vec<u32> = self.keys.iter().map(|_| [1, 1, 1, 2, 3][rng.below(5) as usize]).collect();
        let picky: Vec<bool> = self.keys.iter().map(|_| rng.chance(200)).collect();
        for number in 0..self.plan.nodes {
            let mut stands = Vec::new();
            for ((key, &slots), &picky) in self.keys.iter().zip(&slots).zip(&picky) {
                let mut stand = Stand::new(key.clone(), format!("n{number}"));
                stand.slots = slots;
                stand.priority = [0, 0, 0, 1, 5][rng.below(5) as usize];
                stand.observer = rng.chance(80);
                stand.requires = if picky { vec!["disk".into()] } else { Vec::new() };
                stand.capabilities = if rng.chance(700) { vec!["disk".into()] } else { Vec::new() };
                stands.push(rng.chance(920).then_some(stand));
            }
            self.nodes.push(Node::new(number, self.plan.timing, stands, rng));
        }
        for node in 0..self.nodes.len() {
            let at = self.rng.below(self.plan.lease);
            self.at(at, What::Start(node));
        }
        if self.plan.scenario != Scenario::Calm {
            self.at(self.plan.lease / 2, What::Fault);
        }
        if self.plan.scenario == Scenario::Promotion {
            self.at(self.plan.lease / 2, What::Replicate);
        }
    }

    /// Lives the day: the faults, then the quiet after them.
    pub(super) fn live(mut self) -> (Result<Stats, (Violation, Duration)>, Diary) {
        let result = self.faults_then_quiet();
        let at = Duration::from_nanos(self.now);
        self.stats.virtual_ms = at.as_millis() as u64;
        (result.map(|()| self.stats).map_err(|violation| (violation, at)), self.diary)
    }

    fn faults_then_quiet(&mut self) -> Checked {
        self.run_until(self.plan.chaos)?;
        self.end_of_faults()?;
        self.settle()
    }

    pub(super) fn run_until(&mut self, until: u64) -> Checked {
        while self.queue.peek().is_some_and(|Reverse(due)| due.at <= until) {
            let Some(Reverse(due)) = self.queue.pop() else { break };
            self.now = due.at;
            self.happen(due.what)?;
        }
        self.now = until;
        Ok(())
    }

    pub(super) fn at(&mut self, at: u64, what: What) {
        self.queued += 1;
        self.queue.push(Reverse(Due { at: at.max(self.now), number: self.queued, what }));
    }

    fn happen(&mut self, what: What) -> Checked {
        match what {
            What::Tick { node, at } => {
                let it = &mut self.nodes[node];
                if it.tick_at != at {
                    return Ok(());
                }
                it.tick_for = NEVER;
                if it.state == State::Up { self.feed(node, Input::Tick) } else { Ok(()) }
            }
            What::Arrive { node, epoch, arrival } => self.arrive(node, epoch, *arrival),
            What::Apply(request) => self.apply(*request),
            What::GuardedWrite(work) => self.guarded_write(*work),
            What::Commit(work) => self.commit(&work),
            What::FencedWrite(work) => self.fenced_write(&work),
            What::Start(node) => self.start(node),
            What::GoOn { node, epoch } => self.go_on(node, epoch),
            What::Mend(node) => {
                self.nodes[node].cut = Cut::None;
                Ok(())
            }
            What::StoreBack => {
                self.store_back();
                Ok(())
            }
            What::Fault => self.fault(),
            What::Replicate => {
                self.store.replicate();
                let next = self.now + self.rng.below(self.plan.lease);
                self.at(next, What::Replicate);
                Ok(())
            }
        }
    }

    /// From now on there are no faults, and what was long under way arrives soon.
    pub(super) fn calm_down(&mut self) {
        self.quiet = true;
        self.plan.weather = Weather::calm();
        let soon = self.now + self.plan.lease / 10;
        let mut queue = std::mem::take(&mut self.queue).into_vec();
        for Reverse(due) in &mut queue {
            if matches!(due.what, What::Apply(_) | What::GuardedWrite(_) | What::FencedWrite(_)) {
                due.at = due.at.min(soon);
            }
        }
        self.queue = queue.into();
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}
