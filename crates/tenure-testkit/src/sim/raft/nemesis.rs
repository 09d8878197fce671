//! What goes wrong, and what people do about members, at random.

use std::collections::BTreeSet;

use tenure::port::StoreError;
use tokio::task::JoinHandle;

use super::plan::RaftScenario;
use super::world::{MS, World};
use crate::sim::network::Draw as _;

/// Fewer members that vote are not left, and more not made.
const VOTERS: (usize, usize) = (3, 5);

/// Something that is to be done later.
pub(super) enum Later {
    Heal,
    GoOn(u64),
    Start(u64),
    UserGoesOn(usize),
    UserStarts(usize),
}

/// A change of the members that is under way.
pub(super) struct Operation {
    what: Wish,
    doing: JoinHandle<Result<(), StoreError>>,
}

#[derive(Clone, Copy, Debug)]
enum Wish {
    Admit(u64),
    Dismiss(u64),
    Transfer(u64),
}

impl World {
    /// One fault of today's kinds.
    pub(super) fn fault(&mut self) {
        let kinds: Vec<RaftScenario> = RaftScenario::ALL
            .into_iter()
            .filter(|kind| *kind != RaftScenario::Everything && self.stage.plan.scenario.has(*kind))
            .collect();
        match kinds[self.rng.below(kinds.len() as u64) as usize] {
            RaftScenario::Network => self.cut(),
            RaftScenario::Crashes => match self.rng.below(10) {
                0 => self.blackout(),
                1..4 => self.crash_user(),
                _ => {
                    let node = self.someone();
                    self.crash(node);
                }
            },
            RaftScenario::Pauses if self.rng.chance(500) => self.stop_user(),
            RaftScenario::Pauses => self.stop(),
            _ => self.change_members(),
        }
    }

    pub(super) fn come_to(&mut self, later: Later) {
        match later {
            Later::Heal => self.heal(),
            Later::GoOn(node) => {
                self.oracle().note(|| format!("m{node} goes on"));
                self.members.get(&node).and_then(|member| member.computer()).inspect(|it| it.go_on());
            }
            Later::Start(node) => {
                self.oracle().note(|| format!("m{node} starts"));
                if let Some(member) = self.members.get_mut(&node) {
                    member.start(&self.stage);
                }
            }
            Later::UserGoesOn(user) => {
                self.oracle().note(|| format!("u{user} goes on"));
                self.users[user].computer.go_on();
            }
            Later::UserStarts(user) => {
                let (name, clock) = (self.users[user].name.clone(), self.users[user].clock.clone());
                self.oracle().note(|| format!("{name} starts"));
                self.users[user].computer = self.start_user(&name, &clock);
            }
        }
    }

    fn a_while(&mut self) -> u64 {
        let longest = [1_000 * MS, 4_000 * MS, 12_000 * MS][self.rng.below(3) as usize];
        self.rng.between(50 * MS, longest)
    }

    fn someone(&mut self) -> u64 {
        let nodes: Vec<u64> = self.members.keys().copied().collect();
        nodes[self.rng.below(nodes.len() as u64) as usize]
    }

    /// Cuts the network in two: both ways, or one way only.
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
                self.stage.net.cut(a, b);
                if !one_way {
                    self.stage.net.cut(b, a);
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
        self.later(lasts, Later::Heal);
    }

    pub(super) fn heal(&mut self) {
        self.is_cut = false;
        self.oracle().set_minority(None);
        self.oracle().note(|| "healed".into());
        self.stage.net.heal();
    }

    fn stop(&mut self) {
        let node = self.someone();
        let Some(computer) = self.members[&node].computer().filter(|it| !it.stands_still()) else { return };
        computer.stop();
        self.oracle().count(|stats| stats.pauses += 1);
        self.oracle().note(|| format!("m{node} stands still"));
        let lasts = self.a_while();
        self.later(lasts, Later::GoOn(node));
    }

    pub(super) fn crash(&mut self, node: u64) {
        if self.members.get_mut(&node).is_some_and(|member| member.crash()) {
            self.oracle().count(|stats| stats.crashes += 1);
            self.oracle().note(|| format!("m{node} crashes"));
            let lasts = self.a_while();
            self.later(lasts, Later::Start(node));
        }
    }

    fn blackout(&mut self) {
        self.oracle().count(|stats| stats.blackouts += 1);
        self.members.keys().copied().collect::<Vec<_>>().into_iter().for_each(|node| self.crash(node));
    }

    fn stop_user(&mut self) {
        let user = self.rng.below(self.users.len() as u64) as usize;
        if self.users[user].computer.is_over() || self.users[user].computer.stands_still() {
            return;
        }
        self.users[user].computer.stop();
        self.oracle().count(|stats| stats.users_paused += 1);
        self.oracle().note(|| format!("u{user} stands still"));
        let lasts = self.a_while();
        self.later(lasts, Later::UserGoesOn(user));
    }

    fn crash_user(&mut self) {
        let user = self.rng.below(self.users.len() as u64) as usize;
        if self.users[user].computer.is_over() {
            return;
        }
        self.users[user].computer.end();
        self.oracle().count(|stats| stats.users_crashed += 1);
        self.oracle().note(|| format!("u{user} crashes"));
        let lasts = self.a_while();
        self.later(lasts, Later::UserStarts(user));
    }

    /// A disk is lost, or somebody asks for other members. One thing at a time, and not while nobody knows who can be reached.
    fn change_members(&mut self) {
        if self.operation.is_some() || self.is_cut {
            return;
        }
        let lost = self.voters.iter().copied().find(|node| self.members[node].is_lost);
        let voters: Vec<u64> = self.voters.iter().copied().collect();
        let some = voters[self.rng.below(voters.len() as u64) as usize];
        match (lost, self.rng.below(4)) {
            (Some(lost), _) if voters.len() > VOTERS.0 => self.ask(Wish::Dismiss(lost)),
            (Some(_), _) | (None, 0)
                if voters.len() < VOTERS.1 && self.stage.places.contains_key(&self.next_member) =>
            {
                let node = self.next_member;
                self.next_member += 1;
                self.add_member(node);
                self.ask(Wish::Admit(node));
            }
            (None, 1) if voters.len() > VOTERS.0 => self.ask(Wish::Dismiss(some)),
            (None, 2) => self.lose_disk(some),
            (None, _) => self.ask(Wish::Transfer(some)),
            _ => {}
        }
    }

    fn ask(&mut self, what: Wish) {
        let operator = self.operator.clone();
        self.oracle().note(|| format!("asked for: {what:?}"));
        let doing = tokio::spawn(async move {
            match what {
                Wish::Admit(node) => operator.admit(node, &format!("m{node}")).await,
                Wish::Dismiss(node) => operator.dismiss(node).await,
                Wish::Transfer(node) => operator.transfer(node).await,
            }
        });
        self.operation = Some(Operation { what, doing });
    }

    /// What came of it.
    pub(super) async fn conclude(&mut self) {
        let Some(Operation { what, doing }) = self.operation.take_if(|it| it.doing.is_finished()) else {
            return;
        };
        let done = doing.await.unwrap_or_else(|error| panic!("an operator panicked: {error}"));
        self.oracle().note(|| format!("{what:?}: {done:?}"));
        match (what, done) {
            (Wish::Admit(node), Ok(())) => {
                self.voters.insert(node);
                self.oracle().count(|stats| stats.admitted += 1);
            }
            (Wish::Dismiss(node), Ok(())) => {
                self.voters.remove(&node);
                if let Some(mut member) = self.members.remove(&node) {
                    member.crash();
                }
                self.oracle().count(|stats| stats.dismissed += 1);
            }
            (Wish::Transfer(_), Ok(())) => self.oracle().count(|stats| stats.transfers += 1),
            (Wish::Transfer(_), Err(_)) => {}
            // It may have been done, or be done yet.
            (Wish::Admit(_) | Wish::Dismiss(_), Err(_)) => self.certain = false,
        }
    }

    /// The disk of a member is lost, or put back as it was before its last start. The others can tell only if they have heard of what is lost: if its last start
    /// is agreed on; and of an old copy only while they run.
    fn lose_disk(&mut self, node: u64) {
        let others_do = self.voters.iter().filter(|voter| !self.members[voter].is_lost).count()
            > self.voters.len() / 2 + 1;
        let is_known = self.oracle().registered(node) == self.members[&node].runs;
        if !(others_do && is_known && self.certain) {
            return;
        }
        let all = self.stage.plan.scenario.has(RaftScenario::Crashes) || self.rng.chance(500);
        let Some(member) = self.members.get_mut(&node).filter(|member| !member.is_lost) else { return };
        member.lose_disk(all);
        self.oracle().count(|stats| stats.disks_lost += 1);
        self.oracle().note(|| format!("m{node} has lost its disk"));
        let lasts = self.a_while();
        self.later(lasts, Later::Start(node));
    }
}
