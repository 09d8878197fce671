//! Delivery of store calls and responses.

use tenure_core::BootInstant;
use tenure_core::port::{ErrorKind, Notification};
use tenure_core::rules::lease::{CommandId, LeaseInput, StoreCommand, StoreResponse};

use super::invariants;
use super::network::RandomExt as _;
use super::node::{LinkCut, NodeInput, ProcessState};
use super::resource::{LeaseGrant, SlotId};
use super::simulation::{CheckResult, ElectionSimulation, SimStep, SimStoreCall};
use super::store::no_answer;
use super::trace_format::{answer_in_brief, command_in_brief};

impl ElectionSimulation {
    pub(super) fn send(
        &mut self,
        node: usize,
        sent_at: BootInstant,
        id: CommandId,
        command: StoreCommand,
    ) -> CheckResult {
        invariants::a_released_lease_was_not_in_use::check(self, node, &command)?;
        let it = &mut self.nodes[node];
        if let StoreCommand::Watch(sessions) = command {
            it.watched = sessions;
            let dead: Vec<_> = self.dead.iter().filter(|id| it.watched.contains(id)).cloned().collect();
            for session in dead {
                self.notification(node, &Notification::SessionExpired(session));
            }
            return Ok(());
        }
        self.stats.commands += 1;
        it.calls += 1;
        let cut = it.cut;
        let give_up_at = it.clock.real(sent_at + self.plan.timing.request_timeout());
        let arrives = self.now + self.plan.weather.delay(&mut self.rng, &self.plan.timing);
        let lost = cut == LinkCut::Requests || self.rng.chance(self.plan.weather.request_lost);
        let epoch = it.epoch;
        self.trace_log.note(self.now, || {
            let outcome = if lost { " (lost)" } else { "" };
            format!("n{node} → {}{outcome}", command_in_brief(&command))
        });
        let mut request = SimStoreCall { node, epoch, id, sent_at, give_up_at, gave_up: false, command };
        if lost || arrives >= give_up_at {
            self.give_up(&mut request);
        }
        if lost {
            self.stats.requests_lost += 1;
        } else {
            self.at(arrives, SimStep::Apply(Box::new(request)));
        }
        Ok(())
    }

    /// The process stops waiting for this call, which may still be applied.
    pub(super) fn give_up(&mut self, request: &mut SimStoreCall) {
        if let Some(answer) = no_answer(&request.command, ErrorKind::Timeout).filter(|_| !request.gave_up) {
            request.gave_up = true;
            self.answer_at(request.give_up_at, request, answer);
        }
    }

    pub(super) fn answer_at(&mut self, at: u64, request: &SimStoreCall, answer: StoreResponse) {
        let &SimStoreCall { node, epoch, id, sent_at, .. } = request;
        let arrival = Box::new(NodeInput::Answer { id, sent_at, answer });
        self.at(at, SimStep::Arrive { node, epoch, arrival });
    }

    pub(super) fn apply(&mut self, mut request: SimStoreCall) -> CheckResult {
        if !self.store_up {
            // The call fails at once, or no response arrives.
            let refused = self.rng.chance(500) && !request.gave_up;
            if let Some(answer) = no_answer(&request.command, ErrorKind::Unreachable).filter(|_| refused) {
                request.gave_up = true;
                self.answer_at(self.now, &request, answer);
            }
            self.give_up(&mut request);
            return Ok(());
        }
        self.stats.applied_late += u64::from(request.gave_up);
        self.trace_log.note(self.now, || {
            let late = if request.gave_up { " (after its timeout)" } else { "" };
            format!("store applies n{}'s {}{late}", request.node, command_in_brief(&request.command))
        });
        let wall_ms = (self.now / 1_000_000) as i64;
        let Some(answer) = self.store.call(&request.command, wall_ms) else { return Ok(()) };
        self.trace_log.note(self.now, || format!("store responds {}", answer_in_brief(&answer)));
        self.note_grant(&request, &answer)?;
        invariants::a_trusted_session_lives::after_expiry(self, &request.command)?;
        self.deliver_notifications();
        if request.gave_up {
            return Ok(());
        }
        let weather = &self.plan.weather;
        let back_at = self.now + weather.delay(&mut self.rng, &self.plan.timing);
        let cut = self.nodes[request.node].cut == LinkCut::Answers;
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

    pub(super) fn note_grant(&mut self, request: &SimStoreCall, answer: &StoreResponse) -> CheckResult {
        let (StoreCommand::Take(take), StoreResponse::Taken(Ok(Some(token)))) = (&request.command, answer)
        else {
            return Ok(());
        };
        let Some(election) = self.keys.iter().position(|key| *key == take.election) else { return Ok(()) };
        self.stats.takeovers += u64::from(take.expire.is_some());
        self.stats.granted_late += u64::from(request.gave_up);
        let place = SlotId { election, slot: take.slot };
        invariants::tokens_only_grow::check(&self.grants, place, *token)?;
        self.grants.push(LeaseGrant { place, token: *token, session: take.session.clone() });
        Ok(())
    }

    pub(super) fn deliver_notifications(&mut self) {
        for wake in self.store.elections.drain_notifications() {
            for node in 0..self.nodes.len() {
                self.notification(node, &wake);
            }
        }
    }

    pub(super) fn notification(&mut self, node: usize, wake: &Notification) {
        let weather = &self.plan.weather;
        let it = &self.nodes[node];
        let of_another =
            matches!(wake, Notification::LeaderRequested(session) if it.machine.session() != Some(session));
        if it.state == ProcessState::Down || of_another {
            return;
        }
        if it.cut != LinkCut::None || self.rng.chance(weather.notification_lost) {
            self.stats.notifications_lost += 1;
            return;
        }
        let epoch = it.epoch;
        for _ in 0..1 + u64::from(self.rng.chance(weather.notification_doubled)) {
            let at = self.now + self.plan.weather.delay(&mut self.rng, &self.plan.timing);
            let arrival = Box::new(NodeInput::Input(LeaseInput::Notification(wake.clone())));
            self.at(at, SimStep::Arrive { node, epoch, arrival });
        }
    }
}
