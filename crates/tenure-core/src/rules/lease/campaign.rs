//! The life cycle of one campaign: join, take, lead, finish, release, leave.

use super::command::{CandidateOptions, LeaseEvent, StoreCommand};
use super::machine::{LeaseMachine, PendingCommand, SessionState};
use super::phase::{Campaign, CampaignPhase, HeldLease};
use super::timers::Timer;
use crate::port::{
    Candidacy, JoinElectionResponse, LeaderRequestKind, ReleaseLeaseRequest, StartReason, StoreError,
};
use crate::{BootInstant, ElectionKey, Entropy, SessionId, Token};

impl LeaseMachine {
    pub(super) fn campaign(&mut self, options: CandidateOptions) {
        let key = options.election.clone();
        match self.campaigns.get_mut(&key) {
            // The earlier campaign is still withdrawing and may hold a lease that is being released. Restart after it
            // has left.
            Some(campaign) if campaign.withdrawing => campaign.again = Some(options),
            Some(campaign) => (campaign.options, campaign.joined) = (options, false),
            None => {
                self.campaigns.insert(key.clone(), Campaign::new(options, self.step));
            }
        }
        self.join(&key);
    }

    pub(super) fn join(&mut self, key: &ElectionKey) {
        let (SessionState::Live(live), Some(campaign)) = (&self.session, self.campaigns.get_mut(key)) else {
            return;
        };
        if campaign.joined || campaign.withdrawing {
            return;
        }
        let options = &campaign.options;
        let candidacy = Candidacy {
            session: live.id.clone(),
            election: key.clone(),
            name: options.name.clone(),
            priority: options.priority,
            observer: options.observer,
            capabilities: options.capabilities.clone(),
            required_capabilities: options.required_capabilities.clone(),
            slots: options.slots,
            metadata: options.metadata.clone(),
        };
        let pending = PendingCommand::Join(live.id.clone(), key.clone());
        self.command(StoreCommand::Join(candidacy), pending);
    }

    pub(super) fn joined(
        &mut self,
        session: SessionId,
        key: ElectionKey,
        result: Result<JoinElectionResponse, StoreError>,
        now: BootInstant,
        entropy: &mut dyn Entropy,
    ) {
        if self.session() != Some(&session) {
            return;
        }
        let Some(campaign) = self.campaigns.get_mut(&key) else { return };
        campaign.touched = self.step;
        match result {
            Ok(JoinElectionResponse::Joined) => {
                campaign.joined = true;
                self.events.push_back(LeaseEvent::Joined(key.clone()));
                self.to_read.insert(key);
            }
            Ok(JoinElectionResponse::SlotsDiffer { slots }) => {
                // The current term and its work end first.
                campaign.withdrawing = true;
                if campaign.phase == CampaignPhase::Following {
                    self.campaigns.remove(&key);
                }
                self.events.push_back(LeaseEvent::Rejected { election: key, slots });
            }
            // The next heartbeat will detect that the session has ended.
            Ok(JoinElectionResponse::SessionEnded) => self.timers.set(Timer::Heartbeat, now),
            Err(error) => {
                self.timers.set(Timer::Election(key), now + entropy.jitter(self.config.timing.retry()));
                self.events.push_back(LeaseEvent::StoreFailed(error));
            }
        }
    }

    pub(super) fn withdraw(&mut self, key: &ElectionKey, now: BootInstant, entropy: &mut dyn Entropy) {
        let Some(campaign) = self.campaigns.get_mut(key) else { return };
        campaign.withdrawing = true;
        campaign.again = None;
        if campaign.phase == CampaignPhase::Following {
            self.leave(key, now, entropy);
        }
    }

    /// Leaves the election. The campaign must hold no lease.
    pub(super) fn leave(&mut self, key: &ElectionKey, now: BootInstant, entropy: &mut dyn Entropy) {
        let Some(campaign) = self.campaigns.get_mut(key) else { return };
        let SessionState::Live(live) = &self.session else {
            self.withdrawn(key);
            return;
        };
        campaign.phase = CampaignPhase::Leaving;
        campaign.touched = self.step;
        let command = StoreCommand::Leave(live.id.clone(), key.clone());
        self.command(command, PendingCommand::Leave(key.clone()));
        // Repeat the leave if no response arrives.
        let again = now + self.config.timing.request_timeout() + entropy.jitter(self.config.timing.retry());
        self.timers.set(Timer::Election(key.clone()), again);
    }

    pub(super) fn leaves(&self, key: &ElectionKey) -> bool {
        self.campaigns.get(key).is_some_and(|campaign| campaign.phase == CampaignPhase::Leaving)
    }

    pub(super) fn withdrawn(&mut self, key: &ElectionKey) {
        if let Some(campaign) = self.campaigns.remove(key) {
            self.timers.cancel(&Timer::Election(key.clone()));
            self.events.push_back(LeaseEvent::Withdrawn(key.clone()));
            campaign.again.into_iter().for_each(|options| self.campaign(options));
        }
    }

    /// Handles a request to the leader: from the store, which names a term, or from the process itself.
    pub(super) fn request(
        &mut self,
        key: &ElectionKey,
        term_requested: Option<(u32, Token)>,
        kind: LeaderRequestKind,
    ) {
        let Some(campaign) = self.campaigns.get_mut(key) else { return };
        let CampaignPhase::Leading { term, request } = &mut campaign.phase else { return };
        if term_requested.is_some_and(|request| request != (term.slot, term.token))
            || request.as_ref() == Some(&kind)
        {
            return;
        }
        // An operator's request replaces a candidate's, never the reverse.
        if request.is_some() && matches!(kind, LeaderRequestKind::Preempt(_)) {
            return;
        }
        *request = Some(kind.clone());
        self.events.push_back(LeaseEvent::Requested { election: key.clone(), kind });
    }

    pub(super) fn finished(&mut self, key: &ElectionKey, now: BootInstant, entropy: &mut dyn Entropy) {
        let timing = self.config.timing;
        let Some(campaign) = self.campaigns.get_mut(key) else { return };
        match std::mem::replace(&mut campaign.phase, CampaignPhase::Following) {
            CampaignPhase::Leading { term, request } => {
                let kind = request.unwrap_or(LeaderRequestKind::Resign);
                // After stepping down, let other candidates take the lease first.
                campaign.hold_off = now + timing.reserve() + timing.rank_step() * 2;
                let (successor, start_reason) = (kind.successor().cloned(), kind.start_reason());
                let start_reason = if campaign.withdrawing && start_reason == StartReason::Resign {
                    StartReason::Release
                } else {
                    start_reason
                };
                campaign.phase = CampaignPhase::Releasing { held: term, successor, start_reason };
                self.release(key);
            }
            CampaignPhase::Ending { held: Some(held) } => {
                campaign.phase =
                    CampaignPhase::Releasing { held, successor: None, start_reason: StartReason::Release };
                self.release(key);
            }
            CampaignPhase::Ending { held: None } if campaign.withdrawing => self.leave(key, now, entropy),
            CampaignPhase::Ending { held: None } => self.follow(key),
            other => campaign.phase = other,
        }
    }

    /// Follows the election after the lease is released: reads it, and joins it again, because the join of a session
    /// that was opened meanwhile may have failed.
    pub(super) fn follow(&mut self, key: &ElectionKey) {
        self.to_read.insert(key.clone());
        self.join(key);
    }

    pub(super) fn release(&mut self, key: &ElectionKey) {
        let Some(campaign) = self.campaigns.get_mut(key) else { return };
        let CampaignPhase::Releasing { held, successor, start_reason } = &campaign.phase else { return };
        campaign.touched = self.step;
        let release = ReleaseLeaseRequest {
            session: held.session.clone(),
            election: key.clone(),
            slot: held.slot,
            token: held.token,
            successor: successor.clone(),
            start_reason: *start_reason,
            leave: campaign.withdrawing,
        };
        let pending = PendingCommand::Release(key.clone(), release.slot, release.token);
        self.command(StoreCommand::Release(release), pending);
    }

    pub(super) fn release_answered(
        &mut self,
        key: ElectionKey,
        (slot, token): (u32, Token),
        result: Result<(), StoreError>,
        now: BootInstant,
        entropy: &mut dyn Entropy,
    ) {
        let Some(campaign) = self.campaigns.get_mut(&key) else { return };
        campaign.touched = self.step;
        // Ignore the response to a release of an earlier term.
        let is_same = |held: &HeldLease| (held.slot, held.token) == (slot, token);
        if !matches!(&campaign.phase, CampaignPhase::Releasing { held, .. } if is_same(held)) {
            return;
        }
        match result {
            Ok(()) => {
                self.released(&key, token);
                if self.campaigns.get(&key).is_some_and(|c| c.withdrawing) {
                    self.leave(&key, now, entropy);
                } else {
                    self.follow(&key);
                }
            }
            Err(error) => {
                self.timers.set(Timer::Election(key), now + entropy.jitter(self.config.timing.retry()));
                self.events.push_back(LeaseEvent::StoreFailed(error));
            }
        }
    }

    pub(super) fn released(&mut self, key: &ElectionKey, token: Token) {
        let me = self.session().cloned();
        let Some(campaign) = self.campaigns.get_mut(key) else { return };
        campaign.phase = CampaignPhase::Following;
        campaign.touched = self.step;
        campaign.released_by = me;
        self.events.push_back(LeaseEvent::Released { election: key.clone(), token });
    }

    pub(super) fn taken(
        &mut self,
        session: SessionId,
        key: ElectionKey,
        slot: u32,
        result: Result<Option<Token>, StoreError>,
        now: BootInstant,
        entropy: &mut dyn Entropy,
    ) {
        let timing = self.config.timing;
        if self.session() != Some(&session) {
            return;
        }
        let Some(campaign) = self.campaigns.get_mut(&key) else { return };
        if campaign.phase != CampaignPhase::Taking {
            return;
        }
        campaign.phase = CampaignPhase::Following;
        campaign.touched = self.step;
        match result {
            Ok(Some(token)) => return self.granted(&key, HeldLease { slot, token, session }, now),
            Ok(None) => campaign.hold_off = now + entropy.jitter(timing.rank_step()),
            // The outcome is unknown; the next read shows whether the lease was granted.
            Err(error) => {
                campaign.hold_off = now + entropy.jitter(timing.retry());
                self.events.push_back(LeaseEvent::StoreFailed(error));
            }
        }
        if self.campaigns.get(&key).is_some_and(|c| c.withdrawing) {
            self.leave(&key, now, entropy);
        } else {
            self.to_read.insert(key);
        }
    }

    /// Starts a term after the store granted the lease to our live session.
    pub(super) fn granted(&mut self, key: &ElectionKey, term: HeldLease, now: BootInstant) {
        let trusted = now < self.trusted_until();
        let Some(campaign) = self.campaigns.get_mut(key) else { return };
        campaign.touched = self.step;
        campaign.free.clear();
        campaign.released_by = None;
        if campaign.withdrawing || !trusted {
            self.release_held(key, term);
        } else {
            let (slot, token) = (term.slot, term.token);
            campaign.phase = CampaignPhase::Leading { term, request: None };
            self.events.push_back(LeaseEvent::Elected { election: key.clone(), slot, token });
        }
    }

    /// Releases a lease without running work, and repeats the call until the store confirms it.
    pub(super) fn release_held(&mut self, key: &ElectionKey, held: HeldLease) {
        let Some(campaign) = self.campaigns.get_mut(key) else { return };
        campaign.phase =
            CampaignPhase::Releasing { held, successor: None, start_reason: StartReason::Release };
        self.release(key);
    }
}
