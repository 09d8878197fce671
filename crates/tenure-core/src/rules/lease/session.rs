//! The session: open, heartbeat, loss of trust, end.

use super::command::{LeaseEvent, LossReason, StoreCommand};
use super::machine::{END_TRIES, LeaseMachine, LiveSession, PendingCommand, SessionState};
use super::phase::CampaignPhase;
use super::timers::Timer;
use crate::port::{HeartbeatResponse, OpenSessionRequest, StoreError};
use crate::{BootInstant, Entropy, SessionId};

impl LeaseMachine {
    pub(super) fn open(&mut self, entropy: &mut dyn Entropy) {
        // Every attempt uses a new id. If the response is lost, the session expires by itself.
        let id = SessionId::generate(entropy);
        self.session = SessionState::Opening;
        let session = OpenSessionRequest {
            id: id.clone(),
            name: self.config.name.clone(),
            lease: self.config.timing.lease(),
            takeover: self.config.takeover,
            owner: None,
        };
        self.command(StoreCommand::Open(session), PendingCommand::Open(id));
    }

    pub(super) fn opened(
        &mut self,
        id: SessionId,
        sent_at: BootInstant,
        heartbeat_response: Result<HeartbeatResponse, StoreError>,
        now: BootInstant,
        entropy: &mut dyn Entropy,
    ) {
        if !matches!(self.session, SessionState::Opening) {
            return;
        }
        match heartbeat_response {
            Ok(HeartbeatResponse::Live { epoch, .. }) => {
                self.note_epoch(epoch, now);
                let deadline = sent_at + self.config.timing.trust();
                let live = LiveSession {
                    id: id.clone(),
                    epoch,
                    deadline,
                    is_untrusted: now >= deadline,
                    beating: false,
                    heartbeat_again: false,
                };
                self.session = SessionState::Live(live);
                self.timers.set(Timer::TrustExpiry, deadline);
                self.timers.set(Timer::Heartbeat, sent_at + self.config.timing.heartbeat_interval());
                self.timers.set(Timer::LeaderPoll, now + entropy.jitter(self.config.timing.leader_poll()));
                self.events.push_back(LeaseEvent::Opened(id));
                let keys: Vec<_> = self.campaigns.keys().cloned().collect();
                keys.iter().for_each(|key| self.join(key));
            }
            Ok(HeartbeatResponse::SessionEnded) => self.reopen_later(now, entropy),
            Err(error) => {
                self.events.push_back(LeaseEvent::StoreFailed(error));
                self.reopen_later(now, entropy);
            }
        }
    }

    pub(super) fn reopen_later(&mut self, now: BootInstant, entropy: &mut dyn Entropy) {
        self.session = SessionState::Closed;
        self.timers.set(Timer::Open, now + entropy.jitter(self.config.timing.retry()));
    }

    pub(super) fn send_heartbeat(&mut self) {
        if let SessionState::Live(live) = &mut self.session {
            if live.beating {
                live.heartbeat_again = true;
                return;
            }
            live.beating = true;
            let id = live.id.clone();
            self.command(StoreCommand::Heartbeat(id.clone()), PendingCommand::Heartbeat(id));
        }
    }

    pub(super) fn heartbeat_answered(
        &mut self,
        id: SessionId,
        sent_at: BootInstant,
        heartbeat_response: Result<HeartbeatResponse, StoreError>,
        now: BootInstant,
        entropy: &mut dyn Entropy,
    ) {
        let timing = self.config.timing;
        let SessionState::Live(live) = &mut self.session else { return };
        if live.id != id {
            return;
        }
        live.beating = false;
        match heartbeat_response {
            Ok(HeartbeatResponse::Live { epoch, .. }) if epoch != live.epoch => {
                self.lose_session(LossReason::EpochChanged, entropy);
            }
            Ok(HeartbeatResponse::Live { leader_requests: requests, .. }) => {
                // Trust is counted from before the heartbeat was sent, so that a slow response does not extend it.
                live.deadline = live.deadline.max(sent_at + timing.trust());
                let recovered = live.is_untrusted && now < live.deadline;
                live.is_untrusted &= !recovered;
                let next = if std::mem::take(&mut live.heartbeat_again) {
                    now
                } else {
                    sent_at + timing.heartbeat_interval()
                };
                if !live.is_untrusted {
                    self.timers.set(Timer::TrustExpiry, live.deadline);
                }
                self.timers.set(Timer::Heartbeat, next);
                for leader_request in requests {
                    self.request(
                        &leader_request.election,
                        Some((leader_request.slot, leader_request.token)),
                        leader_request.kind,
                    );
                }
                if recovered {
                    self.timers.set(Timer::LeaderPoll, now);
                }
            }
            Ok(HeartbeatResponse::SessionEnded) => self.lose_session(LossReason::SessionEnded, entropy),
            // The outcome is unknown, so trust is not extended.
            Err(error) => {
                self.timers.set(Timer::Heartbeat, now + entropy.jitter(timing.retry()));
                self.events.push_back(LeaseEvent::StoreFailed(error));
            }
        }
    }

    pub(super) fn expire_trust(&mut self, now: BootInstant) {
        if let SessionState::Live(live) = &mut self.session
            && !live.is_untrusted
            && now >= live.deadline
        {
            live.is_untrusted = true;
            self.lose_all(LossReason::TrustExpired);
        }
    }

    /// Ends all terms. Leases that the store may still record for this session are released once the work has ended.
    pub(super) fn lose_all(&mut self, why: LossReason) {
        for (key, campaign) in &mut self.campaigns {
            if let CampaignPhase::Leading { term, .. } = &campaign.phase {
                let (token, held) = (term.token, (why != LossReason::SessionEnded).then(|| term.clone()));
                self.events.push_back(LeaseEvent::Lost { election: key.clone(), token, why });
                campaign.phase = CampaignPhase::Ending { held };
                campaign.touched = self.step;
            }
        }
    }

    /// Handles an ended session and opens a new one at once.
    pub(super) fn lose_session(&mut self, why: LossReason, entropy: &mut dyn Entropy) {
        self.lose_all(why);
        self.session = SessionState::Closed;
        let session_ended = why == LossReason::SessionEnded;
        let keys: Vec<_> = self.campaigns.keys().cloned().collect();
        for key in keys {
            let Some(campaign) = self.campaigns.get_mut(&key) else { continue };
            campaign.joined = false;
            campaign.free.clear();
            campaign.touched = self.step;
            match &mut campaign.phase {
                CampaignPhase::Taking => campaign.phase = CampaignPhase::Following,
                // The store has already released the leases of an expired session.
                CampaignPhase::Ending { held } if session_ended => *held = None,
                CampaignPhase::Releasing { held, .. } if session_ended => {
                    let token = held.token;
                    self.released(&key, token);
                }
                CampaignPhase::Leaving => self.withdrawn(&key),
                _ => {}
            }
            if self.campaigns.get(&key).is_some_and(|c| c.withdrawing && c.phase == CampaignPhase::Following)
            {
                self.withdrawn(&key);
            }
        }
        self.timers.cancel(&Timer::TrustExpiry);
        self.timers.cancel(&Timer::Heartbeat);
        self.timers.cancel(&Timer::Read);
        self.timers.cancel(&Timer::LeaderPoll);
        self.reading = false;
        self.to_read.clear();
        self.open(entropy);
    }

    pub(super) fn stop(&mut self) {
        self.timers.clear();
        self.to_read.clear();
        match &self.session {
            SessionState::Live(live) => {
                let id = live.id.clone();
                self.session = SessionState::Ending { id: id.clone(), tries: 1 };
                self.command(StoreCommand::End(id), PendingCommand::End);
            }
            _ => self.stopped(),
        }
    }

    pub(super) fn end_answered(
        &mut self,
        result: Result<(), StoreError>,
        now: BootInstant,
        entropy: &mut dyn Entropy,
    ) {
        match (&self.session, result) {
            (SessionState::Ending { tries, .. }, Err(_)) if *tries < END_TRIES => {
                self.timers.set(Timer::End, now + entropy.jitter(self.config.timing.retry()));
            }
            (SessionState::Ending { .. }, _) => self.stopped(),
            _ => {}
        }
    }

    pub(super) fn stopped(&mut self) {
        self.session = SessionState::Ended;
        self.events.push_back(LeaseEvent::Stopped);
    }

    /// Records the epoch of a response. In a new epoch heartbeat counts may repeat and grants may be lost, so
    /// everything is observed from the start.
    fn note_epoch(&mut self, epoch: u32, now: BootInstant) {
        if !self.tracker.note_epoch(epoch, now) {
            return;
        }
        for campaign in self.campaigns.values_mut() {
            campaign.view = None;
            campaign.free.clear();
        }
    }
}
