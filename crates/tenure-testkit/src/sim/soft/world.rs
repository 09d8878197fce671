//! The network between them, what befalls it, and what is held to.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use tenure_core::SplitMix;
use tenure_core::soft::Rank;

use super::node::{Node, Word};
use super::plan::{Plan, SoftMistake, SoftScenario};
use super::{HEALING, SoftFailure, SoftStats};
use crate::sim::failure::Diary;
use crate::sim::network::Draw as _;

/// Whom all know of from the start.
const SEEDS: usize = 2;

/// With how many others each gossips in a round.
const FANOUT: usize = 3;

enum Step {
    Round(usize, u64),
    Look(usize, u64),
    Arrive { to: usize, words: BTreeMap<String, Word>, answer_to: Option<usize> },
    Fault,
    Heal,
    Start(usize),
    End,
}

pub(super) struct World {
    scenario: SoftScenario,
    seed: u64,
    mistake: Option<SoftMistake>,
    plan: Plan,
    rng: SplitMix,
    now: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    steps: BTreeMap<u64, Step>,
    next_step: u64,
    /// By place; a place is empty while nothing runs there. With each, which start it is.
    nodes: Vec<Option<(u64, Node)>>,
    starts: u64,
    /// From where to where nothing gets through.
    cuts: Vec<(usize, usize)>,
    faults_left: u64,
    /// When the network was last made whole, or somebody was last disturbed.
    calm_since: u64,
    healed_at: Option<u64>,
    /// Two at once, after the last healing.
    dual_since_heal: u64,
    diary: Diary,
    stats: SoftStats,
}

impl World {
    pub(super) fn new(scenario: SoftScenario, seed: u64, mistake: Option<SoftMistake>, diary: bool) -> Self {
        let mut rng = SplitMix::new(seed ^ 0x50f7);
        let plan = Plan::draw(mistake, &mut rng);
        let mut world = World {
            scenario,
            seed,
            mistake,
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
            diary: Diary::new(diary),
            stats: SoftStats { days: 1, ..SoftStats::default() },
            plan,
        };
        for at in 0..world.plan.nodes {
            let when = world.rng.below(world.plan.round * 20);
            world.after(when, Step::Start(at));
        }
        let first = world.settled() + world.plan.round * 20;
        world.after(first, Step::Fault);
        world
    }

    pub(super) fn live(mut self) -> Result<SoftStats, Box<SoftFailure>> {
        while let Some(Reverse((at, number))) = self.queue.pop() {
            let Some(step) = self.steps.remove(&number) else { continue };
            let passed = at - self.now;
            self.now = at;
            if matches!(step, Step::End) {
                return Ok(self.stats);
            }
            self.check(passed)?;
            self.step(step);
        }
        Ok(self.stats)
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Start(at) => self.start(at),
            Step::Round(at, start) => self.round(at, start),
            Step::Look(at, start) => self.look(at, start),
            Step::Arrive { to, words, answer_to } => self.arrive(to, &words, answer_to),
            Step::Fault => self.fault(),
            Step::Heal => self.heal(),
            Step::End => {}
        }
    }

    /// How long everything takes to be as it should, once nothing is disturbed any more.
    fn settled(&self) -> u64 {
        let pace = &self.plan.pace;
        let waits = pace.patience() + pace.hold_down() * 2 + pace.settle() * 2;
        // Clocks may be a tenth slow.
        waits.as_nanos() as u64 * 12 / 10 + self.plan.round * u64::from(HEALING)
    }

    /// What is held to, at every step.
    fn check(&mut self, passed: u64) -> Result<(), Box<SoftFailure>> {
        let believers: Vec<usize> = (0..self.nodes.len()).filter(|at| self.believes(*at)).collect();
        let dual = believers.len() > 1;
        let cut = !self.cuts.is_empty();
        if dual && self.scenario.holds() {
            return self.broken("one while the network holds", format!("{believers:?} lead at once"));
        }
        if dual && cut {
            self.stats.dual_cut += Duration::from_nanos(passed);
        } else if dual && self.healed_at.is_some() {
            self.dual_since_heal += passed;
            self.stats.dual_healed += Duration::from_nanos(passed);
            let most = Duration::from_nanos(self.dual_since_heal);
            self.stats.dual_healed_most = self.stats.dual_healed_most.max(most);
            let rounds = self.dual_since_heal.div_ceil(self.plan.round);
            self.stats.dual_healed_rounds = self.stats.dual_healed_rounds.max(rounds);
            if rounds > u64::from(HEALING) {
                return self
                    .broken("one soon after healing", format!("{believers:?} lead for {rounds} rounds"));
            }
        }
        let calm = self.now - self.calm_since;
        if !cut && believers.is_empty() {
            self.stats.vacant_most = self.stats.vacant_most.max(Duration::from_nanos(calm));
        }
        if calm < self.settled() || self.nodes.iter().all(Option::is_none) {
            return Ok(());
        }
        if !cut && believers.len() != 1 {
            return self.broken("one when all is calm", format!("{believers:?} lead"));
        }
        if !cut && !self.is_best(believers[0]) {
            return self.broken("the best leads when all is calm", format!("{believers:?} leads"));
        }
        for side in self.sides() {
            let leaders = side.iter().filter(|at| believers.contains(at)).count();
            if leaders != 1 {
                return self.broken("one on each side", format!("{leaders} lead among {side:?}"));
            }
        }
        Ok(())
    }

    /// The sides of a network that is cut in two, as far as somebody runs there; empty if it is cut otherwise, or not at all.
    fn sides(&self) -> Vec<Vec<usize>> {
        let apart = |a: usize, b: usize| self.cuts.contains(&(a, b)) && self.cuts.contains(&(b, a));
        let running: Vec<usize> = (0..self.nodes.len()).filter(|at| self.nodes[*at].is_some()).collect();
        let both = self.cuts.iter().all(|(a, b)| self.cuts.contains(&(*b, *a)));
        let Some(first) = running.first().filter(|_| both && !self.cuts.is_empty()) else {
            return Vec::new();
        };
        let (here, there): (Vec<_>, Vec<_>) = running.iter().partition(|at| !apart(*first, **at));
        [here, there].into_iter().filter(|side: &Vec<usize>| !side.is_empty()).collect()
    }

    fn believes(&self, at: usize) -> bool {
        self.nodes[at].as_ref().is_some_and(|(_, node)| node.believes(self.now))
    }

    fn is_best(&self, at: usize) -> bool {
        let rank = |at: usize| self.nodes[at].as_ref().map(|(_, node)| node.candidate.rank());
        (0..self.nodes.len()).filter_map(rank).min() == rank(at)
    }

    fn broken(&mut self, promise: &'static str, what: String) -> Result<(), Box<SoftFailure>> {
        Err(Box::new(SoftFailure {
            scenario: self.scenario,
            seed: self.seed,
            mistake: self.mistake,
            promise,
            what,
            at: Duration::from_nanos(self.now),
            trace: std::mem::take(&mut self.diary).into_lines(),
        }))
    }

    fn start(&mut self, at: usize) {
        self.starts += 1;
        let start = self.starts;
        let priority = [0, 0, 0, 5][self.rng.below(4) as usize];
        // Clocks of people differ by more than processes live.
        let generation = self.rng.below(1000);
        let rank = Rank { priority, generation, id: format!("{at}.{start}") };
        let rate = self.rng.between(950_000, 1_050_000);
        let mut node = Node::new(&self.plan, at, rank, rate, self.now, self.mistake);
        self.diary.note(self.now, || format!("{} starts, {:?}", node.id(), node.candidate.rank()));
        node.look(self.now);
        self.nodes[at] = Some((start, node));
        self.calm_since = self.now;
        let first = self.rng.below(self.plan.round);
        self.after(first, Step::Round(at, start));
        self.after(0, Step::Look(at, start));
    }

    fn round(&mut self, at: usize, start: u64) {
        if !self.runs(at, start) {
            return;
        }
        let jitter = self.rng.below(self.plan.round / 8);
        self.after(self.plan.round * 15 / 16 + jitter, Step::Round(at, start));
        let now = self.now;
        let Some(node) = self.awake(at, start, now) else { return };
        node.beat();
        let (live, dead) = node.peers();
        let words = node.heard.clone();
        let mut targets = self.some_of(if live.is_empty() { &dead } else { &live }, FANOUT);
        if !dead.is_empty() && self.rng.below(live.len() as u64 + 1) < dead.len() as u64 {
            targets.extend(self.some_of(&dead, 1));
        }
        let seed = self.rng.below(SEEDS as u64) as usize;
        if targets.is_empty() || self.rng.chance(300) {
            targets.push(seed.min(self.plan.nodes - 1));
        }
        targets.sort_unstable();
        targets.dedup();
        for to in targets.into_iter().filter(|to| *to != at) {
            self.send(at, to, words.clone(), Some(at));
        }
    }

    fn look(&mut self, at: usize, start: u64) {
        if !self.runs(at, start) {
            return;
        }
        self.after(self.plan.round / 2, Step::Look(at, start));
        let now = self.now;
        let Some(node) = self.awake(at, start, now) else { return };
        let before = node.candidate.stance();
        let elected = node.look(now);
        let (id, after) = (node.id().to_owned(), node.candidate.stance());
        if before != after {
            self.diary.note(now, || format!("{id} is {}", after.as_str()));
        }
        self.stats.elected += u64::from(elected);
    }

    fn arrive(&mut self, to: usize, words: &BTreeMap<String, Word>, answer_to: Option<usize>) {
        let now = self.now;
        let Some((_, node)) = self.nodes[to].as_mut() else { return };
        // What arrives while it is stopped waits for it; it is taken in before it looks.
        node.hear(words);
        if node.paused_until > now {
            return;
        }
        let heard = node.heard.clone();
        if let Some(from) = answer_to {
            self.send(to, from, heard, None);
        }
    }

    fn send(&mut self, from: usize, to: usize, words: BTreeMap<String, Word>, answer_to: Option<usize>) {
        if self.rng.chance(self.plan.lost) || self.cuts.contains(&(from, to)) {
            return;
        }
        let delay = self.rng.between(200_000, 5_000_000);
        self.after(delay, Step::Arrive { to, words, answer_to });
    }

    fn fault(&mut self) {
        if self.faults_left == 0 {
            return self.after(self.settled() + self.plan.round * 5, Step::End);
        }
        self.faults_left -= 1;
        let mut kinds = vec![SoftScenario::Churn];
        for kind in [SoftScenario::Stopped, SoftScenario::Netsplit, SoftScenario::OneWay] {
            if self.scenario.has(kind) {
                kinds.extend([kind; 3]);
            }
        }
        let kind = kinds[self.rng.below(kinds.len() as u64) as usize];
        // Some faults come while the last one is still felt.
        let gap = self.rng.between(self.plan.round, self.settled() * 3 / 2);
        self.calm_since = self.now;
        match kind {
            SoftScenario::Netsplit => self.split(false),
            SoftScenario::OneWay => self.split(true),
            SoftScenario::Stopped => self.stop(),
            _ => self.churn(),
        }
        if !matches!(kind, SoftScenario::Netsplit | SoftScenario::OneWay) {
            self.after(gap, Step::Fault);
        }
    }

    fn split(&mut self, one_way: bool) {
        let count = self.plan.nodes as u64;
        let side = 1 + self.rng.below((1 << count) - 2);
        let here = |at: usize| side & (1 << at) != 0;
        for a in 0..self.plan.nodes {
            for b in (0..self.plan.nodes).filter(|b| here(a) && !here(*b)) {
                self.cuts.push((a, b));
                if !one_way {
                    self.cuts.push((b, a));
                }
            }
        }
        self.stats.splits += 1;
        let cuts = self.cuts.clone();
        self.diary.note(self.now, || format!("cut: {cuts:?}"));
        let lasts = self.rng.between(self.plan.round * 5, self.settled() * 2);
        self.after(lasts, Step::Heal);
    }

    fn heal(&mut self) {
        self.cuts.clear();
        self.diary.note(self.now, || "healed".to_owned());
        (self.calm_since, self.healed_at, self.dual_since_heal) = (self.now, Some(self.now), 0);
        let gap = self.rng.between(self.plan.round, self.settled() * 3 / 2);
        self.after(gap, Step::Fault);
    }

    fn stop(&mut self) {
        let at = self.rng.below(self.plan.nodes as u64) as usize;
        let lasts = self.rng.between(self.plan.round, self.settled() / 2);
        let until = self.now + lasts;
        if let Some((_, node)) = self.nodes[at].as_mut() {
            node.paused_until = until;
            // It is disturbed until it goes on.
            self.calm_since = until;
            self.stats.ends += 1;
            self.diary.note(self.now, || format!("{at} is stopped for {:?}", Duration::from_nanos(lasts)));
        }
    }

    /// Crashes or leaves, and most come back.
    fn churn(&mut self) {
        let at = self.rng.below(self.plan.nodes as u64) as usize;
        let Some((_, mut node)) = self.nodes[at].take() else { return };
        self.stats.ends += 1;
        let leaves = self.rng.chance(400) && node.paused_until <= self.now;
        self.diary.note(self.now, || format!("{} {}", node.id(), if leaves { "leaves" } else { "crashes" }));
        if leaves {
            node.leave();
            for to in (0..self.plan.nodes).filter(|to| *to != at) {
                self.send(at, to, node.heard.clone(), None);
            }
        }
        if self.rng.chance(800) {
            let back = self.rng.between(self.plan.round, self.settled());
            self.after(back, Step::Start(at));
        }
    }

    fn runs(&self, at: usize, start: u64) -> bool {
        self.nodes[at].as_ref().is_some_and(|(running, _)| *running == start)
    }

    fn awake(&mut self, at: usize, start: u64, now: u64) -> Option<&mut Node> {
        let (running, node) = self.nodes[at].as_mut()?;
        (*running == start && node.paused_until <= now).then_some(node)
    }

    fn some_of(&mut self, places: &[usize], most: usize) -> Vec<usize> {
        let mut left = places.to_vec();
        let mut chosen = Vec::new();
        while chosen.len() < most && !left.is_empty() {
            let at = self.rng.below(left.len() as u64) as usize;
            chosen.push(left.swap_remove(at));
        }
        chosen
    }

    fn after(&mut self, delay: u64, step: Step) {
        self.next_step += 1;
        self.queue.push(Reverse((self.now + delay, self.next_step)));
        self.steps.insert(self.next_step, step);
    }
}
