//! The world of one day: who is there, and how it ends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::FutureExt as _;
use tenure::backend::raft::Raft;
use tenure::port::Directory as _;
use tenure_core::{Entropy as _, SplitMix};

use super::computer::Computer;
use super::member::Member;
use super::nemesis::{Later, Operation};
use super::oracle::Oracle;
use super::people::{Stage, stand};
use super::plan::{Plan, RaftMistake, RaftScenario};
use super::time::Time;
use super::wire::{Net, Weather};
use crate::sim::clock::Clock;
use crate::sim::network::Draw as _;

pub(super) const MS: u64 = 1_000_000;

/// Numbers that members may come to have.
const NUMBERS: u64 = 12;

/// How often everybody is looked at.
const LOOK: u64 = 100 * MS;

/// How long it may take until everything is right again.
const PATIENCE: u64 = 120_000 * MS;

pub(super) struct World {
    pub(super) stage: Stage,
    pub(super) rng: SplitMix,
    pub(super) members: BTreeMap<u64, Member>,
    pub(super) users: Vec<User>,
    /// Who asks for other members.
    pub(super) operator: Raft,
    pub(super) operation: Option<Operation>,
    /// The members that vote, as far as whoever changes them knows.
    pub(super) voters: BTreeSet<u64>,
    /// Whether that is certain: no change failed half way.
    pub(super) certain: bool,
    pub(super) next_member: u64,
    pub(super) is_cut: bool,
    /// What is to be done when.
    pub(super) agenda: BTreeMap<(u64, u64), Later>,
    pub(super) planned: u64,
}

/// A client.
pub(super) struct User {
    pub(super) name: String,
    pub(super) clock: Clock,
    pub(super) computer: Arc<Computer>,
}

impl World {
    pub(super) fn new(scenario: RaftScenario, seed: u64, mistake: Option<RaftMistake>, time: &Time) -> World {
        let mut rng = SplitMix::new(seed ^ 0x7a47 ^ ((scenario as u64) << 56));
        let plan = Plan::draw(scenario, mistake, &mut rng);
        let oracle = Oracle::new(time);
        let net = Net::new(time, rng.next_u64(), plan.weather);
        let places = (1..=NUMBERS).map(|node| (node, format!("m{node}"))).collect();
        let voters = 1..=plan.members;
        oracle.note(|| format!("{plan:?}"));
        let stage = Stage { time: time.clone(), net, oracle, plan: Arc::new(plan), places: Arc::new(places) };
        let office = Computer::new(time, Clock::new(0, MS), rng.next_u64(), true);
        World {
            operator: stage.client("office", &office),
            stage,
            rng,
            members: BTreeMap::new(),
            users: Vec::new(),
            operation: None,
            voters: voters.clone().collect(),
            certain: true,
            next_member: voters.end() + 1,
            is_cut: false,
            agenda: BTreeMap::new(),
            planned: 0,
        }
    }

    pub(super) fn oracle(&self) -> &Oracle {
        &self.stage.oracle
    }

    /// Lives the day: the faults, then the quiet after them.
    pub(super) async fn live(mut self) -> Oracle {
        for node in self.voters.clone() {
            self.add_member(node);
        }
        for number in 0..self.stage.plan.users {
            let clock = Clock::new(self.rng.below(1 << 40), self.stage.plan.rate(&mut self.rng));
            let name = format!("u{number}");
            let computer = self.start_user(&name, &clock);
            self.users.push(User { name, clock, computer });
        }
        // Let it begin.
        self.run_for(5_000 * MS).await;
        let end = self.stage.time.now() + self.stage.plan.chaos;
        self.members.values().for_each(|member| member.platter.set_fatal(self.stage.plan.fatal));
        while self.stage.time.now() < end && !self.oracle().is_broken() {
            self.fault();
            let pause = self.rng.below(self.stage.plan.fault_every * 2);
            self.run_for(pause).await;
        }
        if !self.oracle().is_broken() {
            self.settle().await;
        }
        self.oracle().history();
        let (time, messages) = (self.stage.time.now(), self.stage.net.stats());
        self.oracle().count(|stats| {
            stats.virtual_ms = time / MS;
            stats.add(&messages);
        });
        self.stage.oracle
    }

    /// Lets time go on, does what was planned, and looks at everybody meanwhile.
    pub(super) async fn run_for(&mut self, nanos: u64) {
        let end = self.stage.time.now() + nanos;
        while self.stage.time.now() < end && !self.oracle().is_broken() {
            let next = self.agenda.first_key_value().map_or(end, |((at, _), _)| *at);
            self.stage.time.until(next.min(end).min(self.stage.time.now() + LOOK)).await;
            self.look().await;
            while let Some(entry) = self.agenda.first_entry() {
                if entry.key().0 > self.stage.time.now() {
                    break;
                }
                let later = entry.remove();
                self.come_to(later);
            }
        }
    }

    pub(super) fn later(&mut self, nanos: u64, what: Later) {
        self.planned += 1;
        self.agenda.insert((self.stage.time.now() + nanos, self.planned), what);
    }

    async fn look(&mut self) {
        for (node, raft) in self.members.iter().filter_map(|(node, member)| Some((node, member.raft()?))) {
            if let Ok(status) = raft.status().await {
                self.oracle().status(&status);
            }
            // No disk fails here but by its machine's crash, so nothing gives it a reason to.
            if let Some(why) = raft.failed().now_or_never() {
                self.oracle().broken("members_do_not_stop", format!("m{node}: {why}"));
            }
        }
        self.fall_over();
        self.conclude().await;
    }

    /// Those whose power failed in a write are off, and come back later.
    fn fall_over(&mut self) {
        let down: Vec<u64> =
            self.members.iter().filter(|(_, member)| member.has_failed()).map(|(node, _)| *node).collect();
        for node in down {
            self.oracle().count(|stats| stats.writes_torn += 1);
            self.oracle().note(|| format!("the power of m{node} fails in a write"));
            self.crash(node);
        }
    }

    pub(super) fn add_member(&mut self, node: u64) {
        let lies = self.stage.plan.mistake == Some(RaftMistake::NothingIsSynced);
        let clock = Clock::new(self.rng.below(1 << 40), self.rng.between(920_000, 1_090_000));
        let mut peers = self.voters.clone();
        peers.insert(node);
        let mut member = Member::new(node, peers, clock, self.rng.next_u64(), lies);
        member.start(&self.stage);
        self.members.insert(node, member);
    }

    pub(super) fn start_user(&mut self, name: &str, clock: &Clock) -> Arc<Computer> {
        let counts = self.stage.plan.mistake != Some(RaftMistake::ClockStopsInSuspend);
        let computer = Computer::new(&self.stage.time, clock.clone(), self.rng.next_u64(), counts);
        tokio::spawn(stand(self.stage.clone(), name.to_owned(), computer.clone()));
        computer
    }

    /// From now on nothing goes wrong, and everything must come right.
    async fn settle(&mut self) {
        self.stage.net.set_weather(Weather::default());
        self.members.values().for_each(|member| member.platter.set_fatal(0));
        self.heal();
        for later in std::mem::take(&mut self.agenda).into_values() {
            self.come_to(later);
        }
        let limit = self.stage.time.now() + PATIENCE;
        loop {
            self.run_for(500 * MS).await;
            if self.oracle().is_broken() {
                return;
            }
            match self.is_settled().await {
                Ok(()) => return,
                Err(what) if self.stage.time.now() >= limit => {
                    self.oracle().broken("everything_comes_right", what);
                    return;
                }
                Err(_) => {}
            }
        }
    }

    /// All members that take part follow one leader, somebody leads each election, and what is written is read.
    async fn is_settled(&mut self) -> Result<(), String> {
        if self.operation.is_some() {
            return Err("members are still being changed".into());
        }
        let mut statuses = BTreeMap::new();
        for (node, member) in self.members.iter().filter(|(_, member)| !member.is_lost) {
            let Some(raft) = member.raft() else { return Err(format!("m{node} is not there")) };
            statuses.insert(*node, raft.status().await.map_err(|error| error.to_string())?);
        }
        let leading = statuses.values().filter(|status| status.leader == Some(status.node));
        let Some(leader) = leading.max_by_key(|status| status.term) else {
            return Err("the cluster has no leader".into());
        };
        let voters = leader.members.iter().filter(|member| member.votes);
        let mut followed = voters.filter_map(|member| statuses.get(&member.node)).map(|status| status.leader);
        if !followed.all(|followed| followed == leader.leader) {
            let seen = statuses.values().map(|seen| {
                let follows = seen.leader.map_or("nobody".into(), |leader| format!("m{leader}"));
                format!("m{} follows {follows} in term {} at {}", seen.node, seen.term, seen.index)
            });
            let seen = seen.collect::<Vec<_>>().join("; ");
            return Err(format!("not all members follow m{}: {seen}", leader.node));
        }
        if let Some(election) =
            (0..self.stage.plan.elections).find(|election| !self.oracle().is_led(*election))
        {
            return Err(format!("nobody leads e{election}"));
        }
        // Another word each time: each value is written once at most.
        let word = format!("word {}", self.stage.time.now());
        let deed = self.oracle().begins("office", "last", Some(word.clone()));
        let written = self.operator.put("last", Some(&word), None).await;
        written.map_err(|error| format!("nothing can be written: {error}"))?;
        self.oracle().wrote(deed);
        for key in ["last", "k0", "k1"] {
            let deed = self.oracle().begins("office", key, None);
            let read = self.operator.get(key).await;
            let read = read.map_err(|error| format!("nothing can be read: {error}"))?;
            self.oracle().read(deed, read);
        }
        Ok(())
    }
}
