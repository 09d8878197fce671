//! Handling of inputs by the simulated processes.

use std::collections::VecDeque;

use tenure_core::rules::lease::{CandidateOptions, LeaseEvent, LeaseInput};
use tenure_core::{ElectionKey, SplitMix};

use super::InjectedBug;
use super::invariants;
use super::network::RandomExt as _;
use super::node::{NodeInput, ProcessState, SimWork};
use super::resource::SlotId;
use super::simulation::{CheckResult, ElectionSimulation, SimStep};
use super::trace_format::{event_in_brief, input_in_brief};

impl ElectionSimulation {
    pub(super) fn arrive(&mut self, node: usize, epoch: u32, arrival: NodeInput) -> CheckResult {
        let it = &mut self.nodes[node];
        match it.state {
            _ if it.epoch != epoch => Ok(()),
            ProcessState::Down => Ok(()),
            ProcessState::Stopped => {
                it.inbox.push(arrival);
                Ok(())
            }
            ProcessState::Up => self.take_in(node, arrival),
        }
    }

    pub(super) fn take_in(&mut self, node: usize, arrival: NodeInput) -> CheckResult {
        match arrival {
            NodeInput::Input(input) => self.feed(node, input),
            NodeInput::Answer { id, sent_at, answer } => {
                let late = self.bug == Some(InjectedBug::ClockReadAfterTheResponse);
                let sent_at = if late { self.nodes[node].clock.at(self.now) } else { sent_at };
                self.feed(node, LeaseInput::Response { id, sent_at, answer })
            }
            NodeInput::WorkDone(election, token) => {
                let work = &mut self.nodes[node].works[election];
                if work.as_ref().is_none_or(|work| work.token != token) {
                    return Ok(());
                }
                *work = None;
                if self.bug != Some(InjectedBug::ReleaseBeforeTheWorkEnded) {
                    self.feed(node, LeaseInput::Finished(self.keys[election].clone()))?;
                }
                self.end_if_idle(node)
            }
            NodeInput::Rejoin(election) => {
                let it = &mut self.nodes[node];
                let Some(stand) = it.returning[election].take().filter(|_| !it.ending) else { return Ok(()) };
                it.stands[election] = Some(stand.clone());
                self.feed(node, LeaseInput::Campaign(stand))
            }
        }
    }

    pub(super) fn start(&mut self, node: usize) -> CheckResult {
        let it = &mut self.nodes[node];
        if it.state != ProcessState::Down {
            return Ok(());
        }
        it.reset();
        it.state = ProcessState::Up;
        it.started_at = self.now;
        self.stats.restarts += u64::from(it.epoch > 1);
        self.trace_log.note(self.now, || format!("n{node} starts"));
        self.feed(node, LeaseInput::Start)?;
        let stands: Vec<CandidateOptions> = self.nodes[node].stands.iter().flatten().cloned().collect();
        stands.into_iter().try_for_each(|stand| self.feed(node, LeaseInput::Campaign(stand)))
    }

    pub(super) fn resume(&mut self, node: usize, epoch: u32) -> CheckResult {
        let it = &mut self.nodes[node];
        if it.state != ProcessState::Stopped || it.epoch != epoch {
            return Ok(());
        }
        it.state = ProcessState::Up;
        it.clock.resume(self.now);
        let waiting = std::mem::take(&mut it.inbox);
        self.trace_log.note(self.now, || format!("n{node} resumes; {} messages waited", waiting.len()));
        // A runtime may poll its timers or its sockets first, so choose at random.
        if self.rng.chance(500) {
            self.feed(node, LeaseInput::Tick)?;
        }
        for arrival in waiting {
            self.arrive(node, epoch, arrival)?;
        }
        self.feed(node, LeaseInput::Tick)
    }

    /// Passes an input to a machine and executes its commands.
    pub(super) fn feed(&mut self, node: usize, input: LeaseInput) -> CheckResult {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            self.stats.steps += 1;
            let it = &mut self.nodes[node];
            let local = it.clock.at(self.now);
            self.trace_log.note(self.now, || format!("n{node} ← {}", input_in_brief(&input)));
            let mut one_for_all = SplitMix::new(42);
            let shared = self.bug == Some(InjectedBug::HostnameAsSessionId) && input == LeaseInput::Start;
            it.machine.handle(local, input, if shared { &mut one_for_all } else { &mut it.entropy });
            while let Some(event) = self.nodes[node].machine.poll_event() {
                self.react(node, event, &mut inputs)?;
            }
            while let Some((id, command)) = self.nodes[node].machine.poll_command() {
                self.send(node, local, id, command)?;
            }
        }
        self.keep_ticking(node);
        self.write_as_leader(node);
        invariants::after_step(self, node)
    }

    pub(super) fn keep_ticking(&mut self, node: usize) {
        let it = &mut self.nodes[node];
        let Some(expected) = it.machine.poll_timeout().filter(|_| it.state == ProcessState::Up) else {
            return;
        };
        if expected >= it.tick_for {
            return;
        }
        // Timers fire slightly late, and sometimes very late.
        let late = if self.rng.chance(20) { self.plan.lease / 20 } else { 300_000 };
        let at = it.clock.real(expected).max(self.now) + if self.quiet { 0 } else { self.rng.below(late) };
        (it.tick_for, it.tick_at) = (expected, at);
        self.at(at, SimStep::Tick { node, at });
    }

    pub(super) fn react(
        &mut self,
        node: usize,
        event: LeaseEvent,
        inputs: &mut VecDeque<LeaseInput>,
    ) -> CheckResult {
        let number = |key: &ElectionKey| self.keys.iter().position(|k| k == key);
        if !matches!(event, LeaseEvent::Observed(_) | LeaseEvent::StoreFailed(_)) {
            self.trace_log.note(self.now, || format!("n{node} ! {}", event_in_brief(&event)));
        }
        match event {
            LeaseEvent::Elected { election, slot, token } => {
                let Some(number) = number(&election) else { return Ok(()) };
                self.stats.elected += 1;
                let it = &mut self.nodes[node];
                let Some(session) = it.machine.session().cloned() else { return Ok(()) };
                invariants::terms_do_not_overlap::check(it.works[number].as_ref(), node, token)?;
                let place = SlotId { election: number, slot };
                it.works[number] = Some(SimWork { place, token, session, finishing: false, lost: false });
                // The process was told to withdraw or to stop while it was being elected.
                if it.stands[number].is_none() || it.ending {
                    self.finish(node, number, inputs);
                }
            }
            LeaseEvent::Lost { election, token, .. } => {
                self.stats.lost += 1;
                let Some(number) = number(&election) else { return Ok(()) };
                if let Some(work) = self.nodes[node].works[number].as_mut().filter(|w| w.token == token) {
                    work.lost = true;
                }
                self.finish(node, number, inputs);
            }
            LeaseEvent::Requested { election, .. } => {
                self.stats.leader_requests += 1;
                if let Some(number) = number(&election) {
                    self.finish(node, number, inputs);
                }
            }
            LeaseEvent::Released { .. } => self.stats.released += 1,
            LeaseEvent::Stopped => {
                self.nodes[node].state = ProcessState::Down;
                (self.nodes[node].ending, self.nodes[node].starting) = (false, true);
                let back = self.now + self.rng.below(self.plan.lease);
                self.at(back, SimStep::Start(node));
            }
            _ => {}
        }
        Ok(())
    }

    /// Ends the work of a term, which takes a while.
    pub(super) fn finish(&mut self, node: usize, election: usize, inputs: &mut VecDeque<LeaseInput>) {
        let it = &mut self.nodes[node];
        let Some(work) = it.works[election].as_mut().filter(|work| !work.finishing) else { return };
        work.finishing = true;
        let (token, epoch) = (work.token, it.epoch);
        if self.bug == Some(InjectedBug::ReleaseBeforeTheWorkEnded) {
            inputs.push_back(LeaseInput::Finished(self.keys[election].clone()));
        }
        let takes = [0, 1_000_000, self.plan.lease / 4][self.rng.below(3) as usize];
        let arrival = Box::new(NodeInput::WorkDone(election, token));
        let at = self.now + self.rng.below(takes.max(1));
        self.at(at, SimStep::Arrive { node, epoch, arrival });
    }

    /// Graceful shutdown: first the work, then the session.
    pub(super) fn end_if_idle(&mut self, node: usize) -> CheckResult {
        let it = &self.nodes[node];
        if it.ending && it.works.iter().all(Option::is_none) {
            self.feed(node, LeaseInput::Stop)?;
        }
        Ok(())
    }
}
