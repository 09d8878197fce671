//! State of one Raft simulation run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::FutureExt as _;
use tenure::port::ElectionAdmin as _;
use tenure::store::raft::RaftStore;
use tenure_core::{Entropy as _, SplitMix};

use super::clients::{RaftScenarioContext, stand};
use super::computer::Computer;
use super::member::SimRaftMember;
use super::nemesis::{Operation, ScheduledRepair};
use super::network::{Net, RaftNetworkFaultRates};
use super::oracle::Oracle;
use super::plan::{RaftInjectedBug, RaftScenario, RaftSimPlan};
use super::time::SimTime;
use crate::sim::clock::SimClock;
use crate::sim::network::RandomExt as _;

pub(super) const MS: u64 = 1_000_000;

/// Possible node ids.
const NUMBERS: u64 = 12;

/// Interval of the checks.
const LOOK: u64 = 100 * MS;

/// Maximum time to recover.
const PATIENCE: u64 = 120_000 * MS;

pub(super) struct RaftSimulation {
    pub(super) context: RaftScenarioContext,
    pub(super) rng: SplitMix,
    pub(super) members: BTreeMap<u64, SimRaftMember>,
    pub(super) users: Vec<SimClient>,
    /// Client of the operator that changes members.
    pub(super) operator: RaftStore,
    pub(super) operation: Option<Operation>,
    /// The voters as far as the operator knows them.
    pub(super) voters: BTreeSet<u64>,
    /// Whether the voters are certain: no membership change had an unknown outcome.
    pub(super) certain: bool,
    pub(super) next_member: u64,
    pub(super) is_cut: bool,
    /// Scheduled actions by time.
    pub(super) scheduled: BTreeMap<(u64, u64), ScheduledRepair>,
    pub(super) planned: u64,
}

/// A client.
pub(super) struct SimClient {
    pub(super) name: String,
    pub(super) clock: SimClock,
    pub(super) computer: Arc<Computer>,
}

impl RaftSimulation {
    pub(super) fn new(
        scenario: RaftScenario,
        seed: u64,
        bug: Option<RaftInjectedBug>,
        time: &SimTime,
    ) -> RaftSimulation {
        let mut rng = SplitMix::new(seed ^ 0x7a47 ^ ((scenario as u64) << 56));
        let plan = RaftSimPlan::draw(scenario, bug, &mut rng);
        let oracle = Oracle::new(time);
        let net = Net::new(time, rng.next_u64(), plan.weather);
        let places = (1..=NUMBERS).map(|node| (node, format!("m{node}"))).collect();
        let voters = 1..=plan.members;
        oracle.note(|| format!("{plan:?}"));
        let context = RaftScenarioContext {
            time: time.clone(),
            net,
            oracle,
            plan: Arc::new(plan),
            places: Arc::new(places),
        };
        let office = Computer::new(time, SimClock::new(0, MS), rng.next_u64(), true);
        RaftSimulation {
            operator: context.client("office", &office),
            context,
            rng,
            members: BTreeMap::new(),
            users: Vec::new(),
            operation: None,
            voters: voters.clone().collect(),
            certain: true,
            next_member: voters.end() + 1,
            is_cut: false,
            scheduled: BTreeMap::new(),
            planned: 0,
        }
    }

    pub(super) fn oracle(&self) -> &Oracle {
        &self.context.oracle
    }

    /// Runs the faults, then waits for recovery.
    pub(super) async fn run(mut self) -> Oracle {
        for node in self.voters.clone() {
            self.add_member(node);
        }
        for number in 0..self.context.plan.users {
            let clock = SimClock::new(self.rng.below(1 << 40), self.context.plan.rate(&mut self.rng));
            let name = format!("u{number}");
            let computer = self.start_client(&name, &clock);
            self.users.push(SimClient { name, clock, computer });
        }
        // Let the cluster start.
        self.run_for(5_000 * MS).await;
        let end = self.context.time.now() + self.context.plan.chaos;
        self.members.values().for_each(|member| member.platter.set_fatal(self.context.plan.fatal));
        while self.context.time.now() < end && !self.oracle().is_broken() {
            self.fault();
            let pause = self.rng.below(self.context.plan.fault_every * 2);
            self.run_for(pause).await;
        }
        if !self.oracle().is_broken() {
            self.settle().await;
        }
        self.oracle().history();
        let (time, messages) = (self.context.time.now(), self.context.net.stats());
        self.oracle().count(|stats| {
            stats.virtual_ms = time / MS;
            stats.add(&messages);
        });
        self.context.oracle
    }

    /// Advances time, executes scheduled actions and checks all members.
    pub(super) async fn run_for(&mut self, nanos: u64) {
        let end = self.context.time.now() + nanos;
        while self.context.time.now() < end && !self.oracle().is_broken() {
            let next = self.scheduled.first_key_value().map_or(end, |((at, _), _)| *at);
            self.context.time.until(next.min(end).min(self.context.time.now() + LOOK)).await;
            self.look().await;
            while let Some(entry) = self.scheduled.first_entry() {
                if entry.key().0 > self.context.time.now() {
                    break;
                }
                let later = entry.remove();
                self.execute(later);
            }
        }
    }

    pub(super) fn later(&mut self, nanos: u64, what: ScheduledRepair) {
        self.planned += 1;
        self.scheduled.insert((self.context.time.now() + nanos, self.planned), what);
    }

    async fn look(&mut self) {
        for (node, raft) in self.members.iter().filter_map(|(node, member)| Some((node, member.raft()?))) {
            if let Ok(status) = raft.status().await {
                self.oracle().status(&status);
            }
            // Disks fail only together with their machine, so a running member has no reason to fail.
            if let Some(why) = raft.failed().now_or_never() {
                self.oracle().broken("members_do_not_stop", format!("m{node}: {why}"));
            }
        }
        self.fall_over();
        self.conclude().await;
    }

    /// Handles members whose power failed during a write: they are off and restart later.
    fn fall_over(&mut self) {
        let down: Vec<u64> =
            self.members.iter().filter(|(_, member)| member.has_failed()).map(|(node, _)| *node).collect();
        for node in down {
            self.oracle().count(|stats| stats.writes_torn += 1);
            self.oracle().note(|| format!("the power of m{node} fails during a write"));
            self.crash(node);
        }
    }

    pub(super) fn add_member(&mut self, node: u64) {
        let lies = self.context.plan.bug == Some(RaftInjectedBug::NothingIsSynced);
        let clock = SimClock::new(self.rng.below(1 << 40), self.rng.between(920_000, 1_090_000));
        let mut peers = self.voters.clone();
        peers.insert(node);
        let mut member = SimRaftMember::new(node, peers, clock, self.rng.next_u64(), lies);
        member.start(&self.context);
        self.members.insert(node, member);
    }

    pub(super) fn start_client(&mut self, name: &str, clock: &SimClock) -> Arc<Computer> {
        let counts = self.context.plan.bug != Some(RaftInjectedBug::ClockStopsInSuspend);
        let computer = Computer::new(&self.context.time, clock.clone(), self.rng.next_u64(), counts);
        tokio::spawn(stand(self.context.clone(), name.to_owned(), computer.clone()));
        computer
    }

    /// Ends the faults and waits for recovery.
    async fn settle(&mut self) {
        self.context.net.set_weather(RaftNetworkFaultRates::default());
        self.members.values().for_each(|member| member.platter.set_fatal(0));
        self.heal();
        for later in std::mem::take(&mut self.scheduled).into_values() {
            self.execute(later);
        }
        let limit = self.context.time.now() + PATIENCE;
        loop {
            self.run_for(500 * MS).await;
            if self.oracle().is_broken() {
                return;
            }
            match self.is_settled().await {
                Ok(()) => return,
                Err(what) if self.context.time.now() >= limit => {
                    self.oracle().broken("everything_comes_right", what);
                    return;
                }
                Err(_) => {}
            }
        }
    }

    /// Whether all members follow one leader, every election has a leader, and a written value can be read.
    async fn is_settled(&mut self) -> Result<(), String> {
        if self.operation.is_some() {
            return Err("a membership change is in progress".into());
        }
        let mut statuses = BTreeMap::new();
        for (node, member) in self.members.iter().filter(|(_, member)| !member.is_lost) {
            let Some(raft) = member.raft() else { return Err(format!("m{node} is not running")) };
            statuses.insert(*node, raft.status().await.map_err(|error| error.to_string())?);
        }
        let leading = statuses.values().filter(|status| status.leader == Some(status.reported_by));
        let Some(leader) = leading.max_by_key(|status| status.term) else {
            return Err("the cluster has no leader".into());
        };
        let voters = leader.members.iter().filter(|member| member.voter);
        let mut followed =
            voters.filter_map(|member| statuses.get(&member.node_id)).map(|status| status.leader);
        if !followed.all(|followed| followed == leader.leader) {
            let seen = statuses.values().map(|seen| {
                let follows = seen.leader.map_or("no leader".into(), |leader| format!("m{leader}"));
                format!("m{} follows {follows} in term {} at {}", seen.reported_by, seen.term, seen.index)
            });
            let seen = seen.collect::<Vec<_>>().join("; ");
            return Err(format!("not all members follow m{}: {seen}", leader.reported_by));
        }
        if let Some(election) =
            (0..self.context.plan.elections).find(|election| !self.oracle().is_led(*election))
        {
            return Err(format!("e{election} has no leader"));
        }
        // Write a new value each time, because each value is written at most once.
        let word = format!("word {}", self.context.time.now());
        let op = self.oracle().begins("office", "last", Some(word.clone()));
        let written = self.operator.put("last", Some(&word), None).await;
        written.map_err(|error| format!("a write failed: {error}"))?;
        self.oracle().wrote(op);
        for key in ["last", "k0", "k1"] {
            let op = self.oracle().begins("office", key, None);
            let read = self.operator.get(key).await;
            let read = read.map_err(|error| format!("a read failed: {error}"))?;
            self.oracle().read(op, read);
        }
        Ok(())
    }
}
