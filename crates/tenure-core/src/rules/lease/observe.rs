//! Reading the store and applying the observation.

use std::collections::BTreeSet;

use super::command::{LeaseEvent, LossReason, StoreCommand};
use super::machine::{LeaseMachine, PendingCommand, SessionState};
use super::phase::{Campaign, CampaignPhase, HeldLease};
use super::timers::Timer;
use crate::port::{
    CandidateView, ElectionView, ElectionsObservation, ExpireSessionRequest, LeaderRequestKind, LeaseView,
    ObserveScope, ReleaseLeaseRequest, SessionView, StartReason, StoreError,
};
use crate::{BootInstant, ElectionKey, Entropy, SessionId, Token};

/// Maximum number of elections per read. The response must arrive within the request timeout, however many elections
/// a process takes part in, and all reads together must stay cheap for the store.
const READ_MAX: usize = 500;

impl LeaseMachine {
    pub(super) fn read(&mut self, scope: ObserveScope) {
        let SessionState::Live(live) = &self.session else { return };
        self.reading = true;
        let pending =
            PendingCommand::Read { session: live.id.clone(), scope: scope.clone(), step: self.step };
        self.command(StoreCommand::Observe(live.id.clone(), scope), pending);
    }

    pub(super) fn read_pending(&mut self) {
        if !self.reading && !self.to_read.is_empty() && matches!(self.session, SessionState::Live(_)) {
            let keys: Vec<_> = std::iter::from_fn(|| self.to_read.pop_first()).take(READ_MAX).collect();
            self.read(ObserveScope::Listed(keys));
        }
    }

    /// Reads all elections of a scope or, if there are many, the next part of them.
    pub(super) fn read_scope(&mut self, scope: ObserveScope, of: impl Fn(&Campaign) -> bool) {
        let all = || self.campaigns.iter().filter(|(_, campaign)| of(campaign)).map(|(key, _)| key);
        if all().nth(READ_MAX).is_none() {
            return self.read(scope);
        }
        // Reads of followers and of leaders each keep their own position. With a common position, one would skip
        // elections that the other has read.
        let round = usize::from(scope == ObserveScope::Own);
        let after = self.read_until[round].clone();
        let next = all().filter(|key| after.as_ref().is_none_or(|after| *key > after)).take(READ_MAX);
        let keys: Vec<_> = next.cloned().collect();
        // After the last part the next read starts from the beginning.
        self.read_until[round] = if keys.len() == READ_MAX { keys.last().cloned() } else { None };
        self.read(ObserveScope::Listed(keys));
    }

    pub(super) fn observed(
        &mut self,
        scope: &ObserveScope,
        requested_at: u64,
        result: Result<ElectionsObservation, StoreError>,
        now: BootInstant,
        entropy: &mut dyn Entropy,
    ) {
        self.reading = false;
        let complete = *scope == ObserveScope::Own;
        let observation = match result {
            Ok(observation) => observation,
            Err(error) => {
                let retry = now + entropy.jitter(self.config.timing.retry());
                self.timers.no_later_than(Timer::Read, retry);
                if complete {
                    self.timers.no_later_than(Timer::LeaderPoll, retry);
                }
                self.events.push_back(LeaseEvent::StoreFailed(error));
                return;
            }
        };
        if matches!(&self.session, SessionState::Live(live) if live.epoch != observation.epoch) {
            return self.lose_session(LossReason::EpochChanged, entropy);
        }
        self.tracker.note(&observation, now, complete);
        self.miss_absent(scope, &observation, requested_at);
        for (election, slot, token) in observation.orphaned_leases {
            self.release_orphaned(election, slot, token, requested_at);
        }
        for view in observation.elections {
            let Some(campaign) = self.campaigns.get_mut(&view.key) else {
                self.leave_orphaned(view);
                continue;
            };
            // The read was requested before our last command about the election, so it shows an outdated state.
            if campaign.touched > requested_at
                || matches!(campaign.phase, CampaignPhase::Taking | CampaignPhase::Releasing { .. })
            {
                if campaign.phase == CampaignPhase::Following {
                    self.to_read.insert(view.key);
                }
                continue;
            }
            self.apply_view(view, now, entropy);
        }
        self.watch_holders();
        self.timers.no_later_than(Timer::Read, now + entropy.jitter(self.config.timing.poll()));
    }

    /// Handles elections that are missing in an observation. Either the session is not a candidate there or, in a
    /// follower's read, it holds a lease there that this process does not know of.
    fn miss_absent(&mut self, scope: &ObserveScope, observation: &ElectionsObservation, requested_at: u64) {
        let shown: BTreeSet<&ElectionKey> = observation.elections.iter().map(|view| &view.key).collect();
        let expected: Vec<&ElectionKey> = match scope {
            ObserveScope::Listed(keys) => keys.iter().collect(),
            ObserveScope::Contested | ObserveScope::Own | ObserveScope::All => {
                self.campaigns.keys().collect()
            }
        };
        let absent: Vec<(ElectionKey, bool)> = expected
            .into_iter()
            .filter(|key| !shown.contains(key))
            .filter_map(|key| self.campaigns.get_key_value(key))
            .filter(|(_, campaign)| campaign.joined && campaign.touched <= requested_at)
            .map(|(key, campaign)| (key.clone(), campaign.phase == CampaignPhase::Following))
            .collect();
        for (key, follows) in absent {
            match scope {
                ObserveScope::Contested if follows => drop(self.to_read.insert(key)),
                ObserveScope::Contested => {}
                ObserveScope::Listed(_) | ObserveScope::Own | ObserveScope::All => self.rejoin(&key),
            }
        }
    }

    /// Joins again, because the store does not have this candidate with its current options. This happens when a late
    /// leave or an earlier join arrives after the last join.
    pub(super) fn rejoin(&mut self, key: &ElectionKey) {
        if let Some(campaign) = self.campaigns.get_mut(key).filter(|campaign| !campaign.withdrawing) {
            campaign.joined = false;
            self.join(key);
        }
    }

    pub(super) fn release_orphaned(
        &mut self,
        election: ElectionKey,
        slot: u32,
        token: Token,
        requested_at: u64,
    ) {
        let campaign = self.campaigns.get(&election);
        if campaign.is_none_or(|c| c.touched <= requested_at && c.phase == CampaignPhase::Following) {
            self.release_unused(election, slot, token);
        }
    }

    /// Releases a lease of this session for which no work runs.
    pub(super) fn release_unused(&mut self, election: ElectionKey, slot: u32, token: Token) {
        let SessionState::Live(live) = &self.session else { return };
        let session = live.id.clone();
        let release = ReleaseLeaseRequest {
            session,
            election,
            slot,
            token,
            successor: None,
            start_reason: StartReason::Release,
            leave: false,
        };
        self.command(StoreCommand::Release(release), PendingCommand::Nothing);
    }

    /// Leaves an election in which the store has a candidate but this process has no campaign. This happens when a join
    /// arrives after the leave that followed it.
    pub(super) fn leave_orphaned(&mut self, view: ElectionView) {
        let SessionState::Live(live) = &self.session else { return };
        if view.candidate(&live.id).is_some() {
            self.command(StoreCommand::Leave(live.id.clone(), view.key), PendingCommand::Nothing);
        }
    }

    /// Applies a new view of one election.
    pub(super) fn apply_view(&mut self, view: ElectionView, now: BootInstant, entropy: &mut dyn Entropy) {
        let key = view.key.clone();
        self.expire_stale(&view, now);
        let me = self.session().cloned();
        let Some(campaign) = self.campaigns.get_mut(&key) else { return };
        let changed = campaign.view.as_ref().is_none_or(|old| !alike(old, &view));
        if changed {
            self.events.push_back(LeaseEvent::Observed(view.clone()));
        }
        let paused = view.paused.is_some();
        let is_up_to_date =
            me.as_ref().and_then(|me| view.candidate(me)).is_some_and(|c| campaign.is_stored_as(c));
        let rejoin = campaign.joined && !is_up_to_date;
        let own_leases: Vec<(u32, Token)> = me.iter().flat_map(|me| view.held_by(me)).collect();
        campaign.view = Some(view);
        if rejoin {
            self.rejoin(&key);
        }
        let Some(campaign) = self.campaigns.get_mut(&key) else { return };
        match &campaign.phase {
            CampaignPhase::Following => match own_leases.split_first().zip(me) {
                // A take without a response has succeeded. Release the lease and do not use it, because a release of it
                // may still be on its way to the store.
                Some(((&(slot, token), others), session)) => {
                    self.release_held(&key, HeldLease { slot, token, session });
                    others.iter().for_each(|&(slot, token)| self.release_unused(key.clone(), slot, token));
                }
                None => self.consider(&key, now, entropy),
            },
            CampaignPhase::Leading { term, .. } => {
                let term = (term.slot, term.token);
                if !own_leases.contains(&term) {
                    campaign.phase = CampaignPhase::Ending { held: None };
                    campaign.touched = self.step;
                    self.events.push_back(LeaseEvent::Lost {
                        election: key,
                        token: term.1,
                        why: LossReason::EditedExternally,
                    });
                    // The session may have expired; a heartbeat at once will show it.
                    self.timers.set(Timer::Heartbeat, now);
                    return;
                }
                if paused {
                    self.request(&key, None, LeaderRequestKind::Pause);
                }
                // A late take may have granted a second slot. Release it.
                for (slot, token) in own_leases.into_iter().filter(|&lease| lease != term) {
                    self.release_unused(key.clone(), slot, token);
                }
            }
            _ => {}
        }
    }

    /// Expires sessions that have been silent for much longer than their lease, both candidates and holders.
    pub(super) fn expire_stale(&mut self, view: &ElectionView, now: BootInstant) {
        let holders = view.leases.iter().filter_map(|lease| lease.holder.as_ref());
        let stale: Vec<_> = holders
            .chain(view.candidates.iter().map(|candidate| &candidate.session))
            .filter(|session| session.live && self.tracker.heartbeats.is_stale(session, now))
            .map(|session| (session.id.clone(), session.heartbeat_count))
            .collect();
        for (session, heartbeat_count) in stale {
            if self.session() != Some(&session) && self.expiring.insert((session.clone(), heartbeat_count)) {
                let expire = ExpireSessionRequest {
                    session: session.clone(),
                    epoch: self.epoch(),
                    heartbeat_count: Some(heartbeat_count),
                };
                self.command(StoreCommand::Expire(expire), PendingCommand::Expire(session, heartbeat_count));
            }
        }
    }

    pub(super) fn watch_holders(&mut self) {
        let me = self.session().cloned();
        let holders: BTreeSet<SessionId> = self
            .campaigns
            .values()
            .filter(|campaign| !matches!(campaign.phase, CampaignPhase::Leading { .. }))
            .flat_map(|campaign| campaign.view.iter().flat_map(|view| view.holders()))
            .map(|(_, holder)| holder.id.clone())
            .filter(|id| Some(id) != me.as_ref())
            .collect();
        let holders: Vec<_> = holders.into_iter().collect();
        if holders != self.watched {
            self.watched.clone_from(&holders);
            self.command(StoreCommand::Watch(holders), PendingCommand::Nothing);
        }
    }
}

/// Whether two views differ only in heartbeats.
fn alike(a: &ElectionView, b: &ElectionView) -> bool {
    let session = |a: &SessionView, b: &SessionView| {
        (&a.id, &a.name, a.lease_ms, a.live) == (&b.id, &b.name, b.lease_ms, b.live)
    };
    let holder = |a: &LeaseView, b: &LeaseView| match (&a.holder, &b.holder) {
        (Some(a), Some(b)) => session(a, b),
        (a, b) => a.is_none() && b.is_none(),
    };
    let lease = |(a, b): (&LeaseView, &LeaseView)| {
        let term = |l: &LeaseView| (l.slot, l.token, l.start_reason, l.granted_at_ms);
        term(a) == term(b) && a.reserved_for == b.reserved_for && holder(a, b)
    };
    let candidate = |(a, b): (&CandidateView, &CandidateView)| {
        let how = |c: &CandidateView| (c.priority, c.observer, c.joined_at_ms);
        how(a) == how(b)
            && (&a.name, &a.capabilities, &a.metadata) == (&b.name, &b.capabilities, &b.metadata)
            && session(&a.session, &b.session)
    };
    (&a.key, a.slots, &a.required_capabilities, &a.paused)
        == (&b.key, b.slots, &b.required_capabilities, &b.paused)
        && (a.leases.len(), a.candidates.len()) == (b.leases.len(), b.candidates.len())
        && a.leases.iter().zip(&b.leases).all(lease)
        && a.candidates.iter().zip(&b.candidates).all(candidate)
}
