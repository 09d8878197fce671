//! Random faults and membership changes.

use std::collections::BTreeSet;

use tenure::port::StoreError;
use tokio::task::JoinHandle;

use super::plan::RaftScenario;
use super::simulation::{MS, RaftSimulation};
use crate::sim::network::RandomExt as _;

/// Minimum and maximum number of voters.
const VOTERS: (usize, usize) = (3, 5);

/// An action scheduled for later.
pub(super) enum ScheduledRepair {
    Heal,
    Resume(u64),
    Start(u64),
    ResumeClient(usize),
    StartClient(usize),
}

/// A membership change in progress.
pub(super) struct Operation {
    action: MembershipAction,
    task: JoinHandle<Result<(), StoreError>>,
}

#[derive(Clone, Copy, Debug)]
enum MembershipAction {
    Add(u64),
    Remove(u64),
    Transfer(u64),
}

impl RaftSimulation {
    /// Injects one fault of the scenario.
    pub(super) fn fault(&mut self) {
        let kinds: Vec<RaftScenario> = RaftScenario::ALL
            .into_iter()
            .filter(|kind| *kind != RaftScenario::Everything && self.context.plan.scenario.has(*kind))
            .collect();
        match kinds[self.rng.below(kinds.len() as u64) as usize] {
            RaftScenario::Network => self.cut(),
            RaftScenario::Crashes => match self.rng.below(10) {
                0 => self.crash_all(),
                1..4 => self.crash_client(),
                _ => {
                    let node = self.chosen();
                    self.crash(node);
                }
            },
            RaftScenario::Pauses if self.rng.chance(500) => self.suspend_client(),
            RaftScenario::Pauses => self.stop(),
            _ => self.change_members(),
        }
    }

    pub(super) fn execute(&mut self, later: ScheduledRepair) {
        match later {
            ScheduledRepair::Heal => self.heal(),
            ScheduledRepair::Resume(node) => {
                self.oracle().note(|| format!("m{node} resumes"));
                self.members.get(&node).and_then(|member| member.computer()).inspect(|it| it.resume());
            }
            ScheduledRepair::Start(node) => {
                self.oracle().note(|| format!("m{node} starts"));
                if let Some(member) = self.members.get_mut(&node) {
                    member.start(&self.context);
                }
            }
            ScheduledRepair::ResumeClient(user) => {
                self.oracle().note(|| format!("u{user} resumes"));
                self.users[user].computer.resume();
            }
            ScheduledRepair::StartClient(user) => {
                let (name, clock) = (self.users[user].name.clone(), self.users[user].clock.clone());
                self.oracle().note(|| format!("{name} starts"));
                self.users[user].computer = self.start_client(&name, &clock);
            }
        }
    }

    fn a_while(&mut self) -> u64 {
        let longest = [1_000 * MS, 4_000 * MS, 12_000 * MS][self.rng.below(3) as usize];
        self.rng.between(50 * MS, longest)
    }

    fn chosen(&mut self) -> u64 {
        let nodes: Vec<u64> = self.members.keys().copied().collect();
        nodes[self.rng.below(nodes.len() as u64) as usize]
    }

    /// Cuts the network in two, in one or both directions.
    fn cut(&mut self) {
        if self.is_cut {
            return;
        }
        let members: Vec<u64> = self.members.keys().copied().collect();
        let places: Vec<String> = members
            .iter()
            .map(|node| format!("m{node}"))
            .chain(self.users.iter().map(|user| user.name.clone()))
            .collect();
        let here: BTreeSet<&String> = places.iter().filter(|_| self.rng.chance(400)).collect();
        let one_way = self.rng.chance(400);
        for a in places.iter().filter(|place| here.contains(place)) {
            for b in places.iter().filter(|place| !here.contains(place)) {
                self.context.net.cut(a, b);
                if !one_way {
                    self.context.net.cut(b, a);
                }
            }
        }
        self.is_cut = true;
        let kind = if one_way { "one way" } else { "both ways" };
        self.oracle().note(|| format!("cut {kind}: {here:?} from the others"));
        if !one_way && self.certain && self.operation.is_none() {
            let side = |is_here: bool| {
                let all = self.voters.iter().copied();
                let side: BTreeSet<u64> =
                    all.filter(|node| here.contains(&format!("m{node}")) == is_here).collect();
                if side.len() * 2 <= self.voters.len() { side } else { BTreeSet::new() }
            };
            let minority = side(true).union(&side(false)).copied().collect();
            self.oracle().set_minority(Some(minority));
        }
        self.oracle().count(|stats| match one_way {
            true => stats.cuts_one_way += 1,
            false => stats.cuts_both_ways += 1,
        });
        let lasts = self.a_while();
        self.later(lasts, ScheduledRepair::Heal);
    }

    pub(super) fn heal(&mut self) {
        self.is_cut = false;
        self.oracle().set_minority(None);
        self.oracle().note(|| "healed".into());
        self.context.net.heal();
    }

    fn stop(&mut self) {
        let node = self.chosen();
        let Some(computer) = self.members[&node].computer().filter(|it| !it.is_suspended()) else { return };
        computer.stop();
        self.oracle().count(|stats| stats.pauses += 1);
        self.oracle().note(|| format!("m{node} is suspended"));
        let lasts = self.a_while();
        self.later(lasts, ScheduledRepair::Resume(node));
    }

    pub(super) fn crash(&mut self, node: u64) {
        if self.members.get_mut(&node).is_some_and(|member| member.crash()) {
            self.oracle().count(|stats| stats.crashes += 1);
            self.oracle().note(|| format!("m{node} crashes"));
            let lasts = self.a_while();
            self.later(lasts, ScheduledRepair::Start(node));
        }
    }

    fn crash_all(&mut self) {
        self.oracle().count(|stats| stats.blackouts += 1);
        self.members.keys().copied().collect::<Vec<_>>().into_iter().for_each(|node| self.crash(node));
    }

    fn suspend_client(&mut self) {
        let user = self.rng.below(self.users.len() as u64) as usize;
        if self.users[user].computer.is_over() || self.users[user].computer.is_suspended() {
            return;
        }
        self.users[user].computer.stop();
        self.oracle().count(|stats| stats.users_paused += 1);
        self.oracle().note(|| format!("u{user} is suspended"));
        let lasts = self.a_while();
        self.later(lasts, ScheduledRepair::ResumeClient(user));
    }

    fn crash_client(&mut self) {
        let user = self.rng.below(self.users.len() as u64) as usize;
        if self.users[user].computer.is_over() {
            return;
        }
        self.users[user].computer.end();
        self.oracle().count(|stats| stats.users_crashed += 1);
        self.oracle().note(|| format!("u{user} crashes"));
        let lasts = self.a_while();
        self.later(lasts, ScheduledRepair::StartClient(user));
    }

    /// Loses a disk or changes the members. Only one change runs at a time, and none while the set of voters is
    /// uncertain.
    fn change_members(&mut self) {
        if self.operation.is_some() || self.is_cut {
            return;
        }
        let lost = self.voters.iter().copied().find(|node| self.members[node].is_lost);
        let voters: Vec<u64> = self.voters.iter().copied().collect();
        let some = voters[self.rng.below(voters.len() as u64) as usize];
        match (lost, self.rng.below(4)) {
            (Some(lost), _) if voters.len() > VOTERS.0 => self.ask(MembershipAction::Remove(lost)),
            (Some(_), _) | (None, 0)
                if voters.len() < VOTERS.1 && self.context.places.contains_key(&self.next_member) =>
            {
                let node = self.next_member;
                self.next_member += 1;
                self.add_member(node);
                self.ask(MembershipAction::Add(node));
            }
            (None, 1) if voters.len() > VOTERS.0 => self.ask(MembershipAction::Remove(some)),
            (None, 2) => self.lose_disk(some),
            (None, _) => self.ask(MembershipAction::Transfer(some)),
            _ => {}
        }
    }

    fn ask(&mut self, action: MembershipAction) {
        let operator = self.operator.clone();
        self.oracle().note(|| format!("requested: {action:?}"));
        let task = tokio::spawn(async move {
            match action {
                MembershipAction::Add(node) => operator.add_member(node, &format!("m{node}")).await,
                MembershipAction::Remove(node) => operator.remove_member(node).await,
                MembershipAction::Transfer(node) => operator.transfer_leader(node).await,
            }
        });
        self.operation = Some(Operation { action, task });
    }

    /// Applies the result of the change.
    pub(super) async fn conclude(&mut self) {
        let Some(Operation { action, task }) = self.operation.take_if(|it| it.task.is_finished()) else {
            return;
        };
        let done = task.await.unwrap_or_else(|error| panic!("an operator panicked: {error}"));
        self.oracle().note(|| format!("{action:?}: {done:?}"));
        match (action, done) {
            (MembershipAction::Add(node), Ok(())) => {
                self.voters.insert(node);
                self.oracle().count(|stats| stats.admitted += 1);
            }
            (MembershipAction::Remove(node), Ok(())) => {
                self.voters.remove(&node);
                if let Some(mut member) = self.members.remove(&node) {
                    member.crash();
                }
                self.oracle().count(|stats| stats.dismissed += 1);
            }
            (MembershipAction::Transfer(_), Ok(())) => self.oracle().count(|stats| stats.transfers += 1),
            (MembershipAction::Transfer(_), Err(_)) => {}
            // The change may have been applied, or may still be.
            (MembershipAction::Add(_) | MembershipAction::Remove(_), Err(_)) => self.certain = false,
        }
    }

    /// Loses the disk of a member, or resets it to the copy before its last start. The other members can detect this
    /// only if they know of the lost data: the last start must be committed, and an old copy is detected only while
    /// they run.
    fn lose_disk(&mut self, node: u64) {
        let others_do = self.voters.iter().filter(|voter| !self.members[voter].is_lost).count()
            > self.voters.len() / 2 + 1;
        let is_known = self.oracle().registered(node) == self.members[&node].runs;
        if !(others_do && is_known && self.certain) {
            return;
        }
        let all = self.context.plan.scenario.has(RaftScenario::Crashes) || self.rng.chance(500);
        let Some(member) = self.members.get_mut(&node).filter(|member| !member.is_lost) else { return };
        member.lose_disk(all);
        self.oracle().count(|stats| stats.disks_lost += 1);
        self.oracle().note(|| format!("m{node} lost its disk"));
        let lasts = self.a_while();
        self.later(lasts, ScheduledRepair::Start(node));
    }
}
