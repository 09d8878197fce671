//! Decisions of a follower: take a free lease, take over from a silent holder, or preempt a leader of lower priority.

use super::machine::{LeaseMachine, SessionState};
use super::phase::{CampaignPhase, FreeSlot};
use super::timers::Timer;
use crate::port::{CandidateView, ElectionView, LeaderRequest, LeaderRequestKind, LeaseView};
use crate::rules::election::{is_eligible, preemption_target, take_delay};
use crate::{BootInstant, ElectionKey, Entropy, SessionId, Timing};

impl LeaseMachine {
    /// Decides what to do in one election as a follower.
    pub(super) fn consider(&mut self, key: &ElectionKey, now: BootInstant, entropy: &mut dyn Entropy) {
        // Request no lease without trust, because a new grant could not be used.
        let SessionState::Live(live) = &self.session else { return };
        if now >= self.trusted_until() {
            return;
        }
        let my_session = live.id.clone();
        let Some(campaign) = self.campaigns.get_mut(key) else { return };
        if campaign.phase != CampaignPhase::Following || !campaign.joined || campaign.withdrawing {
            return;
        }
        let Some(view) = campaign.view.take() else { return };
        self.consider_view(&view, &my_session, now, entropy);
        if let Some(campaign) = self.campaigns.get_mut(key) {
            campaign.view = Some(view);
        }
    }

    fn consider_view(
        &mut self,
        view: &ElectionView,
        my_session: &SessionId,
        now: BootInstant,
        entropy: &mut dyn Entropy,
    ) {
        let Some(me) = view.candidate(my_session) else { return };
        if view.paused.is_some() || !is_eligible(me, &view.required_capabilities) {
            return;
        }
        let own = self.config.timing.lease();
        let is_open = |lease: &&LeaseView| self.tracker.is_open(view, lease, own, now);
        let open: Vec<&LeaseView> = view.leases.iter().filter(is_open).collect();
        let Some(campaign) = self.campaigns.get_mut(&view.key) else { return };
        if open.is_empty() {
            // Another candidate has held the lease since, so the candidate that stepped down contends again like all
            // others.
            campaign.released_by = None;
            campaign.hold_off = BootInstant::ZERO;
        }
        note_free(&mut campaign.free, &open, now, entropy);
        let rank = self.tracker.rank(view, me, campaign.released_by.as_ref(), now);
        if open.is_empty() {
            if let Some(at) = self.tracker.opens_at(view, own, now) {
                self.timers.set(Timer::Election(view.key.clone()), at);
            }
            if rank == 0 {
                self.preempt(view, me, now);
            }
            return;
        }
        let plan_take = plan_take(&self.config.timing, &campaign.free, &open, my_session, rank);
        let Some((lease, at)) = plan_take else { return };
        let at = at.max(campaign.hold_off);
        if now < at {
            self.timers.set(Timer::Election(view.key.clone()), at);
            return;
        }
        self.send_take(self.tracker.take_request(view, lease, my_session));
    }

    pub(super) fn epoch(&self) -> u32 {
        self.tracker.epoch()
    }

    /// Asks the lowest-ranked leader of lower priority to release its lease: once per term, and again after each lease
    /// duration.
    fn preempt(&mut self, view: &ElectionView, me: &CandidateView, now: BootInstant) {
        let Some(lease) = preemption_target(view, me) else { return };
        let again = self.config.timing.lease();
        let Some(campaign) = self.campaigns.get_mut(&view.key) else { return };
        if campaign.preempted.is_some_and(|(token, at)| token == lease.token && now.since(at) < again) {
            return;
        }
        campaign.preempted = Some((lease.token, now));
        self.send_leader_request(LeaderRequest {
            election: view.key.clone(),
            slot: lease.slot,
            token: lease.token,
            kind: LeaderRequestKind::Preempt(me.session.id.clone()),
            requested_by: me.name.clone(),
        });
    }
}

/// Records since when each slot has been free, and forgets slots that are no longer free.
pub(super) fn note_free(
    free: &mut Vec<FreeSlot>,
    open: &[&LeaseView],
    now: BootInstant,
    entropy: &mut dyn Entropy,
) {
    let old = std::mem::take(free);
    let known = |lease: &LeaseView| {
        old.iter().find(|free| (free.slot, free.token) == (lease.slot, lease.token)).cloned()
    };
    *free = open
        .iter()
        .map(|lease| {
            let fresh = |draw| FreeSlot { slot: lease.slot, token: lease.token, since: now, draw };
            known(lease).unwrap_or_else(|| fresh(entropy.next_u64()))
        })
        .collect();
}

/// The open lease that `me` may take, and the instant from which it may take it. `rank` is the number of contenders
/// that rank before `me`.
pub(super) fn plan_take<'v>(
    timing: &Timing,
    free: &[FreeSlot],
    open: &[&'v LeaseView],
    me: &SessionId,
    rank: usize,
) -> Option<(&'v LeaseView, BootInstant)> {
    // Candidates of different rank choose different free slots.
    let lease = *open.get(rank % open.len().max(1))?;
    let free = free.iter().find(|free| free.slot == lease.slot)?;
    let wait = take_delay(timing, lease, me, rank, open.len());
    let spread = u64::try_from(wait.as_nanos() / 4).unwrap_or(u64::MAX);
    let spread = std::time::Duration::from_nanos(if spread == 0 { 0 } else { free.draw % spread });
    Some((lease, free.since + wait + spread))
}
