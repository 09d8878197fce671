//! Random faults and operator actions.

use std::collections::VecDeque;

use tenure_core::port::{LeaderRequest, LeaderRequestKind, Notification, Pause};
use tenure_core::rules::lease::LeaseInput;

use super::network::RandomExt as _;
use super::node::{LinkCut, NodeInput, ProcessState};
use super::simulation::{CheckResult, ElectionSimulation, SimStep};
use super::{InjectedBug, Scenario};

impl ElectionSimulation {
    /// Injects one fault of the scenario and schedules the next.
    pub(super) fn fault(&mut self) -> CheckResult {
        if self.quiet {
            return Ok(());
        }
        let next = self.now + self.rng.below(self.plan.fault_every * 2);
        self.at(next, SimStep::Fault);
        let node = self.rng.below(self.nodes.len() as u64) as usize;
        let kinds: Vec<Scenario> = Scenario::ALL.into_iter().filter(|&kind| self.plan.has(kind)).collect();
        match kinds[self.rng.below(kinds.len() as u64) as usize] {
            Scenario::Calm | Scenario::Everything => Ok(()),
            Scenario::Network => {
                self.cut(node);
                Ok(())
            }
            Scenario::Processes if self.rng.chance(500) => {
                self.pause(node);
                Ok(())
            }
            Scenario::Processes => {
                self.crash(node);
                Ok(())
            }
            Scenario::Store => {
                self.outage();
                Ok(())
            }
            Scenario::Operators => {
                self.operate();
                Ok(())
            }
            Scenario::Churn => self.churn(node),
            Scenario::Promotion => {
                self.promote();
                Ok(())
            }
        }
    }

    fn a_while(&mut self) -> u64 {
        let longest =
            [self.plan.lease / 4, self.plan.lease, self.plan.lease * 5 / 2][self.rng.below(3) as usize];
        self.now + self.rng.below(longest)
    }

    fn cut(&mut self, node: usize) {
        self.stats.cuts += 1;
        self.nodes[node].cut = if self.rng.chance(500) { LinkCut::Requests } else { LinkCut::Answers };
        self.trace_log.note(self.now, || format!("n{node} is cut off"));
        let at = self.a_while();
        self.at(at, SimStep::Mend(node));
    }

    fn pause(&mut self, node: usize) {
        if self.nodes[node].state != ProcessState::Up {
            return;
        }
        self.stats.pauses += 1;
        self.trace_log.note(self.now, || format!("n{node} stops"));
        let it = &mut self.nodes[node];
        it.state = ProcessState::Stopped;
        if self.bug == Some(InjectedBug::ClockStopsInSuspend) {
            it.clock.stop(self.now);
        }
        let epoch = it.epoch;
        let at = self.a_while();
        self.at(at, SimStep::GoOn { node, epoch });
    }

    fn crash(&mut self, node: usize) {
        if self.nodes[node].state == ProcessState::Down {
            return;
        }
        self.stats.crashes += 1;
        self.trace_log.note(self.now, || format!("n{node} crashes"));
        let session = self.nodes[node].machine.session().cloned();
        self.nodes[node].clock.resume(self.now);
        self.nodes[node].state = ProcessState::Down;
        self.nodes[node].epoch += 1;
        if let Some(session) = session.filter(|_| self.plan.certain_death) {
            for other in 0..self.nodes.len() {
                if self.nodes[other].watched.contains(&session) {
                    self.notification(other, &Notification::SessionExpired(session.clone()));
                }
            }
            self.dead.push(session);
        }
        self.nodes[node].ending = false;
        self.nodes[node].come_back();
        if self.rng.chance(800) {
            self.nodes[node].starting = true;
            let at = self.a_while();
            self.at(at, SimStep::Start(node));
        }
    }

    fn outage(&mut self) {
        if self.store_up {
            self.stats.outages += 1;
            self.trace_log.note(self.now, || "the store is down".into());
            self.store_up = false;
            let at = self.a_while();
            self.at(at, SimStep::StoreBack);
        }
    }

    pub(super) fn store_back(&mut self) {
        self.store_up = true;
        self.trace_log.note(self.now, || "the store is up".into());
        for node in 0..self.nodes.len() {
            if self.rng.chance(500) {
                self.notification(node, &Notification::Resync);
            }
        }
    }

    fn promote(&mut self) {
        self.stats.promotions += 1;
        self.trace_log.note(self.now, || "an older copy of the store is promoted".into());
        self.store.promote();
        self.promoted_at = Some(self.now);
        self.store_back();
    }

    /// Sends an operator's request directly to the store.
    fn operate(&mut self) {
        let key = self.keys[self.rng.below(self.keys.len() as u64) as usize].clone();
        let Some(view) = self.store.elections.election(&key).filter(|_| self.store_up) else { return };
        self.stats.operator_requests += 1;
        if self.rng.chance(300) || view.paused.is_some() {
            let pause = Pause { paused_by: "operator".into(), reason: String::new(), paused_at_ms: 0 };
            let pause = view.paused.is_none().then_some(pause);
            self.trace_log.note(self.now, || format!("operator: paused = {}", pause.is_some()));
            self.store.elections.set_election_paused(&key, pause.as_ref());
        } else if let Some((lease, _)) = view.holders().nth(self.rng.below(u64::from(view.slots)) as usize) {
            let to = self.rng.below(view.candidates.len() as u64 + 1) as usize;
            let kind = match view.candidates.get(to) {
                Some(candidate) => LeaderRequestKind::Transfer(candidate.session.id.clone()),
                None => LeaderRequestKind::Resign,
            };
            self.trace_log.note(self.now, || format!("operator: {}/{} {kind:?}", key, lease.slot));
            let (slot, token) = (lease.slot, lease.token);
            self.store.elections.request_leader(&LeaderRequest {
                election: key,
                slot,
                token,
                kind,
                requested_by: "operator".into(),
            });
        }
        self.deliver_notifications();
    }

    /// A candidate leaves, rejoins or changes; a process resigns or shuts down.
    fn churn(&mut self, node: usize) -> CheckResult {
        let election = self.rng.below(self.keys.len() as u64) as usize;
        let key = self.keys[election].clone();
        if self.nodes[node].state != ProcessState::Up || self.nodes[node].ending {
            return Ok(());
        }
        self.stats.withdrawals += 1;
        let Some(mut stand) = self.nodes[node].stands[election].clone() else { return Ok(()) };
        stand.priority = self.rng.below(3) as i32;
        match self.rng.below(5) {
            // The candidate changes its options.
            0 => {
                self.nodes[node].stands[election] = Some(stand.clone());
                self.feed(node, LeaseInput::Campaign(stand))
            }
            // The candidate resigns.
            1 => self.feed(node, LeaseInput::Resign(key)),
            2 => {
                self.stats.ends += 1;
                self.nodes[node].ending = true;
                for election in 0..self.keys.len() {
                    self.finish(node, election, &mut VecDeque::new());
                }
                self.end_if_idle(node)
            }
            _ => {
                self.nodes[node].stands[election] = None;
                self.feed(node, LeaseInput::Withdraw(key))?;
                let mut inputs = VecDeque::new();
                self.finish(node, election, &mut inputs);
                while let Some(input) = inputs.pop_front() {
                    self.feed(node, input)?;
                }
                // The candidate rejoins at once or later.
                let epoch = self.nodes[node].epoch;
                let at = if self.rng.chance(300) { self.now } else { self.a_while() };
                self.nodes[node].returning[election] = Some(stand);
                self.at(at, SimStep::Arrive { node, epoch, arrival: Box::new(NodeInput::Rejoin(election)) });
                Ok(())
            }
        }
    }

    /// Ends the faults: suspended processes resume, links are restored, and some crashed processes restart.
    pub(super) fn end_of_faults(&mut self) -> CheckResult {
        self.trace_log.note(self.now, || "the faults end".into());
        self.calm_down();
        if !self.store_up {
            self.store_back();
        }
        for key in self.keys.clone() {
            self.store.elections.set_election_paused(&key, None);
        }
        self.deliver_notifications();
        for node in 0..self.nodes.len() {
            self.nodes[node].cut = LinkCut::None;
            let epoch = self.nodes[node].epoch;
            self.resume(node, epoch)?;
            if self.nodes[node].state == ProcessState::Down && self.rng.chance(600) {
                self.start(node)?;
            }
        }
        Ok(())
    }
}
