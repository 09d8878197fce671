//! What the processes of a world do with what reaches them.

use std::collections::VecDeque;

use tenure_core::lease::{Event, Input, Stand};
use tenure_core::{ElectionKey, SplitMix};

use super::Mistake;
use super::brief::{event_in_brief, input_in_brief};
use super::invariants;
use super::network::Draw as _;
use super::node::{Arrival, State, Work};
use super::resource::Place;
use super::world::{Checked, What, World};

impl World {
    pub(super) fn arrive(&mut self, node: usize, epoch: u32, arrival: Arrival) -> Checked {
        let it = &mut self.nodes[node];
        match it.state {
            _ if it.epoch != epoch => Ok(()),
            State::Down => Ok(()),
            State::Stopped => {
                it.inbox.push(arrival);
                Ok(())
            }
            State::Up => self.take_in(node, arrival),
        }
    }

    pub(super) fn take_in(&mut self, node: usize, arrival: Arrival) -> Checked {
        match arrival {
            Arrival::Input(input) => self.feed(node, input),
            Arrival::Answer { id, sent_at, answer } => {
                let late = self.mistake == Some(Mistake::ClockReadAfterTheAnswer);
                let sent_at = if late { self.nodes[node].clock.at(self.now) } else { sent_at };
                self.feed(node, Input::Answer { id, sent_at, answer })
            }
            Arrival::WorkDone(election, token) => {
                let work = &mut self.nodes[node].works[election];
                if work.as_ref().is_none_or(|work| work.token != token) {
                    return Ok(());
                }
                *work = None;
                if self.mistake != Some(Mistake::ReleaseBeforeTheWorkEnded) {
                    self.feed(node, Input::Finished(self.keys[election].clone()))?;
                }
                self.end_if_idle(node)
            }
            Arrival::Rejoin(election) => {
                let it = &mut self.nodes[node];
                let Some(stand) = it.returning[election].take().filter(|_| !it.ending) else { return Ok(()) };
                it.stands[election] = Some(stand.clone());
                self.feed(node, Input::Campaign(stand))
            }
        }
    }

    pub(super) fn start(&mut self, node: usize) -> Checked {
        let it = &mut self.nodes[node];
        if it.state != State::Down {
            return Ok(());
        }
        it.reset();
        it.state = State::Up;
        it.started_at = self.now;
        self.stats.restarts += u64::from(it.epoch > 1);
        self.diary.note(self.now, || format!("n{node} starts"));
        self.feed(node, Input::Start)?;
        let stands: Vec<Stand> = self.nodes[node].stands.iter().flatten().cloned().collect();
        stands.into_iter().try_for_each(|stand| self.feed(node, Input::Campaign(stand)))
    }

    pub(super) fn go_on(&mut self, node: usize, epoch: u32) -> Checked {
        let it = &mut self.nodes[node];
        if it.state != State::Stopped || it.epoch != epoch {
            return Ok(());
        }
        it.state = State::Up;
        it.clock.go_on(self.now);
        let waiting = std::mem::take(&mut it.inbox);
        self.diary.note(self.now, || format!("n{node} goes on; {} messages waited", waiting.len()));
        // Which a runtime polls first, its timers or its sockets, is its own affair.
        if self.rng.chance(500) {
            self.feed(node, Input::Tick)?;
        }
        for arrival in waiting {
            self.arrive(node, epoch, arrival)?;
        }
        self.feed(node, Input::Tick)
    }

    /// Lets a machine take something in, and does what it says.
    pub(super) fn feed(&mut self, node: usize, input: Input) -> Checked {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            self.stats.steps += 1;
            let it = &mut self.nodes[node];
            let local = it.clock.at(self.now);
            self.diary.note(self.now, || format!("n{node} ← {}", input_in_brief(&input)));
            let mut one_for_all = SplitMix::new(42);
            let shared = self.mistake == Some(Mistake::HostnameAsSessionId) && input == Input::Start;
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
        let Some(wanted) = it.machine.poll_timeout().filter(|_| it.state == State::Up) else { return };
        if wanted >= it.tick_for {
            return;
        }
        // Timers fire a little late, and sometimes much.
        let late = if self.rng.chance(20) { self.plan.lease / 20 } else { 300_000 };
        let at = it.clock.real(wanted).max(self.now) + if self.quiet { 0 } else { self.rng.below(late) };
        (it.tick_for, it.tick_at) = (wanted, at);
        self.at(at, What::Tick { node, at });
    }

    pub(super) fn react(&mut self, node: usize, event: Event, inputs: &mut VecDeque<Input>) -> Checked {
        let number = |key: &ElectionKey| self.keys.iter().position(|k| k == key);
        if !matches!(event, Event::Seen(_) | Event::Trouble(_)) {
            self.diary.note(self.now, || format!("n{node} ! {}", event_in_brief(&event)));
        }
        match event {
            Event::Elected { election, slot, token } => {
                let Some(number) = number(&election) else { return Ok(()) };
                self.stats.elected += 1;
                let it = &mut self.nodes[node];
                let Some(session) = it.machine.session().cloned() else { return Ok(()) };
                invariants::terms_do_not_overlap::check(it.works[number].as_ref(), node, token)?;
                let place = Place { election: number, slot };
                it.works[number] = Some(Work { place, token, session, finishing: false, lost: false });
                // An elector that was told to go while it was being elected.
                if it.stands[number].is_none() || it.ending {
                    self.finish(node, number, inputs);
                }
            }
            Event::Lost { election, token, .. } => {
                self.stats.lost += 1;
                let Some(number) = number(&election) else { return Ok(()) };
                if let Some(work) = self.nodes[node].works[number].as_mut().filter(|w| w.token == token) {
                    work.lost = true;
                }
                self.finish(node, number, inputs);
            }
            Event::Asked { election, .. } => {
                self.stats.asked += 1;
                if let Some(number) = number(&election) {
                    self.finish(node, number, inputs);
                }
            }
            Event::Released { .. } => self.stats.released += 1,
            Event::Stopped => {
                self.nodes[node].state = State::Down;
                (self.nodes[node].ending, self.nodes[node].starting) = (false, true);
                let back = self.now + self.rng.below(self.plan.lease);
                self.at(back, What::Start(node));
            }
            _ => {}
        }
        Ok(())
    }

    /// Brings the work of a term to an end, which takes a while.
    pub(super) fn finish(&mut self, node: usize, election: usize, inputs: &mut VecDeque<Input>) {
        let it = &mut self.nodes[node];
        let Some(work) = it.works[election].as_mut().filter(|work| !work.finishing) else { return };
        work.finishing = true;
        let (token, epoch) = (work.token, it.epoch);
        if self.mistake == Some(Mistake::ReleaseBeforeTheWorkEnded) {
            inputs.push_back(Input::Finished(self.keys[election].clone()));
        }
        let takes = [0, 1_000_000, self.plan.lease / 4][self.rng.below(3) as usize];
        let arrival = Box::new(Arrival::WorkDone(election, token));
        let at = self.now + self.rng.below(takes.max(1));
        self.at(at, What::Arrive { node, epoch, arrival });
    }

    /// An orderly end: first the work, then the session.
    pub(super) fn end_if_idle(&mut self, node: usize) -> Checked {
        let it = &self.nodes[node];
        if it.ending && it.works.iter().all(Option::is_none) {
            self.feed(node, Input::Stop)?;
        }
        Ok(())
    }
}
