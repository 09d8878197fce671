//! Requests and answers on their way between the processes of a world and its store.

use tenure_core::Moment;
use tenure_core::lease::{Answer, Command, CommandId, Input};
use tenure_core::port::{Trouble, Wake};

use super::brief::{answer_in_brief, command_in_brief};
use super::invariants;
use super::network::Draw as _;
use super::node::{Arrival, Cut, State};
use super::resource::{Grant, Place};
use super::store::no_answer;
use super::world::{Checked, Request, What, World};

impl World {
    pub(super) fn send(&mut self, node: usize, sent_at: Moment, id: CommandId, command: Command) -> Checked {
        invariants::a_released_lease_was_not_in_use::check(self, node, &command)?;
        let it = &mut self.nodes[node];
        if let Command::Watch(sessions) = command {
            it.watched = sessions;
            let dead: Vec<_> = self.dead.iter().filter(|id| it.watched.contains(id)).cloned().collect();
            for session in dead {
                self.hint(node, &Wake::Died(session));
            }
            return Ok(());
        }
        self.stats.commands += 1;
        it.calls += 1;
        let cut = it.cut;
        let give_up_at = it.clock.real(sent_at + self.plan.timing.request_timeout());
        let arrives = self.now + self.plan.weather.delay(&mut self.rng, &self.plan.timing);
        let lost = cut == Cut::Requests || self.rng.chance(self.plan.weather.request_lost);
        let epoch = it.epoch;
        self.diary.note(self.now, || {
            let fate = if lost { " (lost)" } else { "" };
            format!("n{node} → {}{fate}", command_in_brief(&command))
        });
        let mut request = Request { node, epoch, id, sent_at, give_up_at, gave_up: false, command };
        if lost || arrives >= give_up_at {
            self.give_up(&mut request);
        }
        if lost {
            self.stats.requests_lost += 1;
        } else {
            self.at(arrives, What::Apply(Box::new(request)));
        }
        Ok(())
    }

    /// The process will stop waiting for this call; it may still be done.
    pub(super) fn give_up(&mut self, request: &mut Request) {
        if let Some(answer) = no_answer(&request.command, Trouble::Timeout).filter(|_| !request.gave_up) {
            request.gave_up = true;
            self.answer_at(request.give_up_at, request, answer);
        }
    }

    pub(super) fn answer_at(&mut self, at: u64, request: &Request, answer: Answer) {
        let &Request { node, epoch, id, sent_at, .. } = request;
        let arrival = Box::new(Arrival::Answer { id, sent_at, answer });
        self.at(at, What::Arrive { node, epoch, arrival });
    }

    pub(super) fn apply(&mut self, mut request: Request) -> Checked {
        if !self.store_up {
            // Refused at once, or nobody answers.
            let refused = self.rng.chance(500) && !request.gave_up;
            if let Some(answer) = no_answer(&request.command, Trouble::Unreachable).filter(|_| refused) {
                request.gave_up = true;
                self.answer_at(self.now, &request, answer);
            }
            self.give_up(&mut request);
            return Ok(());
        }
        self.stats.applied_late += u64::from(request.gave_up);
        self.diary.note(self.now, || {
            let late = if request.gave_up { " (after its time-out)" } else { "" };
            format!("store does n{}'s {}{late}", request.node, command_in_brief(&request.command))
        });
        let wall_ms = (self.now / 1_000_000) as i64;
        let Some(answer) = self.store.call(&request.command, wall_ms) else { return Ok(()) };
        self.diary.note(self.now, || format!("store says {}", answer_in_brief(&answer)));
        self.note_grant(&request, &answer)?;
        invariants::a_trusted_session_lives::after_expiry(self, &request.command)?;
        self.pass_on_hints();
        if request.gave_up {
            return Ok(());
        }
        let weather = &self.plan.weather;
        let back_at = self.now + weather.delay(&mut self.rng, &self.plan.timing);
        let cut = self.nodes[request.node].cut == Cut::Answers;
        if cut || self.rng.chance(self.plan.weather.answer_lost) {
            self.stats.answers_lost += 1;
            self.give_up(&mut request);
        } else if back_at >= request.give_up_at {
            self.give_up(&mut request);
        } else {
            self.answer_at(back_at, &request, answer);
        }
        Ok(())
    }

    pub(super) fn note_grant(&mut self, request: &Request, answer: &Answer) -> Checked {
        let (Command::Take(take), Answer::Taken(Ok(Some(token)))) = (&request.command, answer) else {
            return Ok(());
        };
        let Some(election) = self.keys.iter().position(|key| *key == take.election) else { return Ok(()) };
        self.stats.takeovers += u64::from(take.expire.is_some());
        self.stats.granted_late += u64::from(request.gave_up);
        let place = Place { election, slot: take.slot };
        invariants::tokens_only_grow::check(&self.grants, place, *token)?;
        self.grants.push(Grant { place, token: *token, session: take.session.clone() });
        Ok(())
    }

    pub(super) fn pass_on_hints(&mut self) {
        for wake in self.store.book.drain_wakes() {
            for node in 0..self.nodes.len() {
                self.hint(node, &wake);
            }
        }
    }

    pub(super) fn hint(&mut self, node: usize, wake: &Wake) {
        let weather = &self.plan.weather;
        let it = &self.nodes[node];
        let of_another = matches!(wake, Wake::Asked(session) if it.machine.session() != Some(session));
        if it.state == State::Down || of_another {
            return;
        }
        if it.cut != Cut::None || self.rng.chance(weather.hint_lost) {
            self.stats.hints_lost += 1;
            return;
        }
        let epoch = it.epoch;
        for _ in 0..1 + u64::from(self.rng.chance(weather.hint_doubled)) {
            let at = self.now + self.plan.weather.delay(&mut self.rng, &self.plan.timing);
            let arrival = Box::new(Arrival::Input(Input::Wake(wake.clone())));
            self.at(at, What::Arrive { node, epoch, arrival });
        }
    }
}
