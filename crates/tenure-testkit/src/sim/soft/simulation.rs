//! State of one soft simulation run: network, faults and guarantees.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use tenure_core::SplitMix;
use tenure_core::rules::soft::Rank;

use super::node::{GossipedState, SoftSimNode};
use super::plan::{SoftInjectedBug, SoftScenario, SoftSimPlan};
use super::{HEALING, SoftFailure, SoftStats};
use crate::sim::failure::TraceLog;
use crate::sim::network::RandomExt as _;

/// Number of seed nodes, which all processes know from the start. Seed nodes always run, because a process that knows
/// no other one correctly leads alone.
const SEEDS: usize = 2;

/// Number of gossip partners per round.
const FANOUT: usize = 3;

enum SoftSimEvent {
    Round(usize, u64),
    Observe(usize, u64),
    Receive { to: usize, states: BTreeMap<String, GossipedState>, respond_to: Option<usize> },
    Fault,
    Heal,
    Start(usize),
    End,
}

pub(super) struct SoftSimulation {
    scenario: SoftScenario,
    seed: u64,
    bug: Option<SoftInjectedBug>,
    plan: SoftSimPlan,
    rng: SplitMix,
    now: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    steps: BTreeMap<u64, SoftSimEvent>,
    next_step: u64,
    /// Processes by index, each with the number of its start; `None` while no process runs at that index.
    nodes: Vec<Option<(u64, SoftSimNode)>>,
    starts: u64,
    /// Directed links that are cut.
    cuts: Vec<(usize, usize)>,
    faults_left: u64,
    /// When the last fault ended.
    calm_since: u64,
    healed_at: Option<u64>,
    /// Time with two leaders since the last healing.
    dual_since_heal: u64,
    trace_log: TraceLog,
    stats: SoftStats,
}

impl SoftSimulation {
    pub(super) fn new(
        scenario: SoftScenario,
        seed: u64,
        bug: Option<SoftInjectedBug>,
        trace_log: bool,
    ) -> Self {
        let mut rng = SplitMix::new(seed ^ 0x50f7);
        let plan = SoftSimPlan::draw(bug, &mut rng);
        let mut simulation = SoftSimulation {
            scenario,
            seed,
            bug,
            rng,
            now: 0,
            queue: BinaryHeap::new(),
            steps: BTreeMap::new(),
            next_step: 0,
            nodes: (0..plan.nodes).map(|_| None).collect(),
            starts: 0,
            cuts: Vec::new(),
            faults_left: plan.faults,
            calm_since: 0,
            healed_at: None,
            dual_since_heal: 0,
            trace_log: TraceLog::new(trace_log),
            stats: SoftStats { run_count: 1, ..SoftStats::default() },
            plan,
        };
        for at in 0..simulation.plan.nodes {
            let when = if at < SEEDS { 0 } else { simulation.rng.below(simulation.plan.round * 20) };
            simulation.schedule(when, SoftSimEvent::Start(at));
        }
        let first = simulation.convergence_time() + simulation.plan.round * 20;
        simulation.schedule(first, SoftSimEvent::Fault);
        simulation
    }

    pub(super) fn run(mut self) -> Result<SoftStats, Box<SoftFailure>> {
        while let Some(Reverse((at, number))) = self.queue.pop() {
            let Some(step) = self.steps.remove(&number) else { continue };
            let elapsed = at - self.now;
            self.now = at;
            if matches!(step, SoftSimEvent::End) {
                return Ok(self.stats);
            }
            self.check(elapsed)?;
            self.step(step);
        }
        Ok(self.stats)
    }

    fn step(&mut self, step: SoftSimEvent) {
        match step {
            SoftSimEvent::Start(at) => self.start(at),
            SoftSimEvent::Round(at, start) => self.round(at, start),
            SoftSimEvent::Observe(at, start) => self.observe(at, start),
            SoftSimEvent::Receive { to, states, respond_to } => self.receive(to, &states, respond_to),
            SoftSimEvent::Fault => self.fault(),
            SoftSimEvent::Heal => self.heal(),
            SoftSimEvent::End => {}
        }
    }

    /// Maximum time to converge after the last fault.
    fn convergence_time(&self) -> u64 {
        let timing = &self.plan.timing;
        let waits = timing.silence_limit() * 2 + timing.hold_down() * 2 + timing.settle() * 3;
        // Clocks may be 10 % slow.
        waits.as_nanos() as u64 * 12 / 10 + self.plan.round * u64::from(HEALING)
    }

    /// Checks the guarantees at every step.
    fn check(&mut self, elapsed: u64) -> Result<(), Box<SoftFailure>> {
        let trusting_leaders: Vec<usize> =
            (0..self.nodes.len()).filter(|at| self.trusts_leadership(*at)).collect();
        let dual = trusting_leaders.len() > 1;
        let cut = !self.cuts.is_empty();
        if dual && self.scenario.is_network_intact() {
            return self.violated(
                "one leader while the network is intact",
                format!("{trusting_leaders:?} lead at the same time"),
            );
        }
        if dual && cut {
            self.stats.dual_cut += Duration::from_nanos(elapsed);
        } else if dual && self.healed_at.is_some() {
            self.dual_since_heal += elapsed;
            self.stats.dual_healed += Duration::from_nanos(elapsed);
            let most = Duration::from_nanos(self.dual_since_heal);
            self.stats.dual_healed_most = self.stats.dual_healed_most.max(most);
            let rounds = self.dual_since_heal.div_ceil(self.plan.round);
            self.stats.dual_healed_rounds = self.stats.dual_healed_rounds.max(rounds);
            if rounds > u64::from(HEALING) {
                return self.violated(
                    "one leader soon after healing",
                    format!("{trusting_leaders:?} lead for {rounds} rounds"),
                );
            }
        }
        let calm = self.now.saturating_sub(self.calm_since);
        if !cut && trusting_leaders.is_empty() {
            self.stats.vacant_most = self.stats.vacant_most.max(Duration::from_nanos(calm));
        }
        if calm < self.convergence_time() || self.nodes.iter().all(Option::is_none) {
            return Ok(());
        }
        if !cut && trusting_leaders.len() != 1 {
            return self.violated("one leader after the faults", format!("{trusting_leaders:?} lead"));
        }
        if !cut && !self.is_best(trusting_leaders[0]) {
            return self.violated(
                "the best candidate leads after the faults",
                format!("{trusting_leaders:?} leads"),
            );
        }
        for side in self.sides() {
            let leaders = side.iter().filter(|at| trusting_leaders.contains(at)).count();
            if leaders != 1 {
                return self.violated("one leader on each side", format!("{leaders} lead among {side:?}"));
            }
        }
        Ok(())
    }

    /// The two sides of a network that is cut in two, as far as processes run there. Empty if the network is intact or
    /// cut in another way.
    fn sides(&self) -> Vec<Vec<usize>> {
        let is_cut = |a: usize, b: usize| self.cuts.contains(&(a, b)) && self.cuts.contains(&(b, a));
        let running: Vec<usize> = (0..self.nodes.len()).filter(|at| self.nodes[*at].is_some()).collect();
        let both = self.cuts.iter().all(|(a, b)| self.cuts.contains(&(*b, *a)));
        let Some(first) = running.first().filter(|_| both && !self.cuts.is_empty()) else {
            return Vec::new();
        };
        let (inside, outside): (Vec<_>, Vec<_>) = running.iter().partition(|at| !is_cut(*first, **at));
        [inside, outside].into_iter().filter(|side: &Vec<usize>| !side.is_empty()).collect()
    }

    fn trusts_leadership(&self, at: usize) -> bool {
        self.nodes[at].as_ref().is_some_and(|(_, node)| node.trusts_leadership(self.now))
    }

    fn is_best(&self, at: usize) -> bool {
        let rank = |at: usize| self.nodes[at].as_ref().map(|(_, node)| node.candidate.rank());
        (0..self.nodes.len()).filter_map(rank).min() == rank(at)
    }

    fn violated(&mut self, guarantee: &'static str, what: String) -> Result<(), Box<SoftFailure>> {
        Err(Box::new(SoftFailure {
            scenario: self.scenario,
            seed: self.seed,
            bug: self.bug,
            guarantee,
            what,
            at: Duration::from_nanos(self.now),
            trace: std::mem::take(&mut self.trace_log).into_lines(),
        }))
    }

    fn start(&mut self, at: usize) {
        self.starts += 1;
        let start = self.starts;
        let priority = [0, 0, 0, 5][self.rng.below(4) as usize];
        // Wall clocks differ by more than processes live, so generations are random.
        let generation = self.rng.below(1000);
        let rank = Rank { priority, generation, id: format!("{at}.{start}") };
        let rate = self.rng.between(950_000, 1_050_000);
        let mut node = SoftSimNode::new(&self.plan, at, rank, rate, self.now, self.bug);
        self.trace_log.note(self.now, || format!("{} starts, {:?}", node.id(), node.candidate.rank()));
        node.observe(self.now);
        self.nodes[at] = Some((start, node));
        self.calm_since = self.now;
        let first = self.rng.below(self.plan.round);
        self.schedule(first, SoftSimEvent::Round(at, start));
        self.schedule(0, SoftSimEvent::Observe(at, start));
    }

    fn round(&mut self, at: usize, start: u64) {
        if !self.is_running(at, start) {
            return;
        }
        let jitter = self.rng.below(self.plan.round / 8);
        self.schedule(self.plan.round * 15 / 16 + jitter, SoftSimEvent::Round(at, start));
        let now = self.now;
        let Some(node) = self.running_node(at, start, now) else { return };
        node.heartbeat();
        let (live, dead) = node.peers();
        let states = node.known_states.clone();
        let mut targets = self.pick(if live.is_empty() { &dead } else { &live }, FANOUT);
        if !dead.is_empty() && self.rng.below(live.len() as u64 + 1) < dead.len() as u64 {
            targets.extend(self.pick(&dead, 1));
        }
        let seed = self.rng.below(SEEDS as u64) as usize;
        if targets.is_empty() || self.rng.chance(300) {
            targets.push(seed);
        }
        targets.sort_unstable();
        targets.dedup();
        for to in targets.into_iter().filter(|to| *to != at) {
            self.send(at, to, states.clone(), Some(at));
        }
    }

    fn observe(&mut self, at: usize, start: u64) {
        if !self.is_running(at, start) {
            return;
        }
        self.schedule(self.plan.round / 2, SoftSimEvent::Observe(at, start));
        let now = self.now;
        let Some(node) = self.running_node(at, start, now) else { return };
        let before = node.candidate.state();
        let elected = node.observe(now);
        let (id, new_state) = (node.id().to_owned(), node.candidate.state());
        if before != new_state {
            self.trace_log.note(now, || format!("{id} is {}", new_state.as_str()));
        }
        self.stats.elected += u64::from(elected);
    }

    fn receive(&mut self, to: usize, states: &BTreeMap<String, GossipedState>, respond_to: Option<usize>) {
        let now = self.now;
        let Some((_, node)) = self.nodes[to].as_mut() else { return };
        // Apply messages that arrived while the process was suspended before it decides.
        node.merge(states);
        if node.paused_until > now {
            return;
        }
        let known_states = node.known_states.clone();
        if let Some(from) = respond_to {
            self.send(to, from, known_states, None);
        }
    }

    fn send(
        &mut self,
        from: usize,
        to: usize,
        states: BTreeMap<String, GossipedState>,
        respond_to: Option<usize>,
    ) {
        if self.rng.chance(self.plan.lost_per_mille) || self.cuts.contains(&(from, to)) {
            return;
        }
        let delay = self.rng.between(200_000, 5_000_000);
        self.schedule(delay, SoftSimEvent::Receive { to, states, respond_to });
    }

    fn fault(&mut self) {
        if self.faults_left == 0 {
            return self.schedule(self.convergence_time() + self.plan.round * 5, SoftSimEvent::End);
        }
        self.faults_left -= 1;
        let mut kinds = vec![SoftScenario::Churn];
        for kind in [SoftScenario::Stopped, SoftScenario::Netsplit, SoftScenario::OneWay] {
            if self.scenario.has(kind) {
                kinds.extend([kind; 3]);
            }
        }
        let kind = kinds[self.rng.below(kinds.len() as u64) as usize];
        // Sometimes inject the next fault before the effects of the last one are over.
        let gap = self.rng.between(self.plan.round, self.convergence_time() * 3 / 2);
        self.calm_since = self.now;
        match kind {
            SoftScenario::Netsplit => self.split(false),
            SoftScenario::OneWay => self.split(true),
            SoftScenario::Stopped => self.stop(),
            _ => self.churn(),
        }
        if !matches!(kind, SoftScenario::Netsplit | SoftScenario::OneWay) {
            self.schedule(gap, SoftSimEvent::Fault);
        }
    }

    fn split(&mut self, one_way: bool) {
        let count = self.plan.nodes as u64;
        let side = 1 + self.rng.below((1 << count) - 2);
        let inside = |at: usize| side & (1 << at) != 0;
        for a in 0..self.plan.nodes {
            for b in (0..self.plan.nodes).filter(|b| inside(a) && !inside(*b)) {
                self.cuts.push((a, b));
                if !one_way {
                    self.cuts.push((b, a));
                }
            }
        }
        self.stats.splits += 1;
        let cuts = self.cuts.clone();
        self.trace_log.note(self.now, || format!("cut: {cuts:?}"));
        let duration = self.rng.between(self.plan.round * 5, self.convergence_time() * 2);
        self.schedule(duration, SoftSimEvent::Heal);
    }

    fn heal(&mut self) {
        self.cuts.clear();
        self.trace_log.note(self.now, || "healed".to_owned());
        (self.calm_since, self.healed_at, self.dual_since_heal) = (self.now, Some(self.now), 0);
        let gap = self.rng.between(self.plan.round, self.convergence_time() * 3 / 2);
        self.schedule(gap, SoftSimEvent::Fault);
    }

    fn stop(&mut self) {
        let at = self.pick_process();
        let duration = self.rng.between(self.plan.round, self.convergence_time() / 2);
        let until = self.now + duration;
        if let Some((_, node)) = self.nodes[at].as_mut() {
            node.paused_until = until;
            // The fault lasts until the process resumes.
            self.calm_since = until;
            self.stats.ends += 1;
            self.trace_log
                .note(self.now, || format!("{at} is suspended for {:?}", Duration::from_nanos(duration)));
        }
    }

    /// A process crashes or leaves, and usually restarts.
    fn churn(&mut self) {
        let at = self.pick_process();
        let Some((_, mut node)) = self.nodes[at].take() else { return };
        self.stats.ends += 1;
        let leaves = self.rng.chance(400) && node.paused_until <= self.now;
        self.trace_log
            .note(self.now, || format!("{} {}", node.id(), if leaves { "leaves" } else { "crashes" }));
        if leaves {
            node.leave();
            for to in (0..self.plan.nodes).filter(|to| *to != at) {
                self.send(at, to, node.known_states.clone(), None);
            }
        }
        if self.rng.chance(800) {
            let restart_delay = self.rng.between(self.plan.round, self.convergence_time());
            self.schedule(restart_delay, SoftSimEvent::Start(at));
        }
    }

    fn pick_process(&mut self) -> usize {
        self.rng.between(SEEDS as u64, self.plan.nodes as u64) as usize
    }

    fn is_running(&self, at: usize, start: u64) -> bool {
        self.nodes[at].as_ref().is_some_and(|(running, _)| *running == start)
    }

    fn running_node(&mut self, at: usize, start: u64, now: u64) -> Option<&mut SoftSimNode> {
        let (running, node) = self.nodes[at].as_mut()?;
        (*running == start && node.paused_until <= now).then_some(node)
    }

    fn pick(&mut self, nodes: &[usize], most: usize) -> Vec<usize> {
        let mut remaining = nodes.to_vec();
        let mut chosen = Vec::new();
        while chosen.len() < most && !remaining.is_empty() {
            let at = self.rng.below(remaining.len() as u64) as usize;
            chosen.push(remaining.swap_remove(at));
        }
        chosen
    }

    fn schedule(&mut self, delay: u64, step: SoftSimEvent) {
        self.next_step += 1;
        self.queue.push(Reverse((self.now + delay, self.next_step)));
        self.steps.insert(self.next_step, step);
    }
}
