//! What a follower does about what it sees: take a free lease when its turn comes, take over from the silent, ask the
//! lesser to make way.

use super::machine::{Machine, Session};
use super::phase::{FreeSlot, Phase};
use super::timers::Timer;
use crate::election::{courtesy, may_lead, to_preempt};
use crate::port::{Ask, AskKind, CandidateView, ElectionView, LeaseView};
use crate::{ElectionKey, Entropy, Moment, SessionId, Timing};

impl Machine {
    /// Looks at one election with the eyes of a follower.
    pub(super) fn consider(&mut self, key: &ElectionKey, now: Moment, entropy: &mut dyn Entropy) {
        // In doubt, a grant could not be believed: do not ask for one.
        let Session::Live(live) = &self.session else { return };
        if now >= self.trusted_until() {
            return;
        }
        let my_session = live.id.clone();
        let Some(campaign) = self.campaigns.get_mut(key) else { return };
        if campaign.phase != Phase::Following || !campaign.standing || campaign.withdrawing {
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
        now: Moment,
        entropy: &mut dyn Entropy,
    ) {
        let Some(me) = view.candidate(my_session) else { return };
        if view.paused.is_some() || !may_lead(me, &view.requires) {
            return;
        }
        let own = self.config.timing.lease();
        let is_open = |lease: &&LeaseView| self.eyes.is_open(view, lease, own, now);
        let open: Vec<&LeaseView> = view.leases.iter().filter(is_open).collect();
        let Some(campaign) = self.campaigns.get_mut(&view.key) else { return };
        if open.is_empty() {
            // Somebody has had it since: who stepped down earlier stands like everybody else.
            campaign.released_by = None;
            campaign.hold_off = Moment::ZERO;
        }
        note_free(&mut campaign.free, &open, now, entropy);
        let rank = self.eyes.rank(view, me, campaign.released_by.as_ref(), now);
        if open.is_empty() {
            if let Some(at) = self.eyes.opens_at(view, own, now) {
                self.timers.set(Timer::Election(view.key.clone()), at);
            }
            if rank == 0 {
                self.preempt(view, me, now);
            }
            return;
        }
        let turn = turn(&self.config.timing, &campaign.free, &open, my_session, rank);
        let Some((lease, at)) = turn else { return };
        let at = at.max(campaign.hold_off);
        if now < at {
            self.timers.set(Timer::Election(view.key.clone()), at);
            return;
        }
        self.send_take(self.eyes.bid(view, lease, my_session));
    }

    pub(super) fn epoch(&self) -> u32 {
        self.eyes.epoch()
    }

    /// Asks the worst leader of lower priority to make way, once per term and again after a lease.
    fn preempt(&mut self, view: &ElectionView, me: &CandidateView, now: Moment) {
        let Some(lease) = to_preempt(view, me) else { return };
        let again = self.config.timing.lease();
        let Some(campaign) = self.campaigns.get_mut(&view.key) else { return };
        if campaign.preempted.is_some_and(|(token, at)| token == lease.token && now.since(at) < again) {
            return;
        }
        campaign.preempted = Some((lease.token, now));
        self.send_ask(Ask {
            election: view.key.clone(),
            slot: lease.slot,
            token: lease.token,
            kind: AskKind::Preempt(me.session.id.clone()),
            by: me.id.clone(),
        });
    }
}

/// Remembers since when each slot is free, and forgets those that are not.
pub(super) fn note_free(
    free: &mut Vec<FreeSlot>,
    open: &[&LeaseView],
    now: Moment,
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

/// Which of the open leases is for `me`, before whom `rank` others rank, and from when.
pub(super) fn turn<'v>(
    timing: &Timing,
    free: &[FreeSlot],
    open: &[&'v LeaseView],
    me: &SessionId,
    rank: usize,
) -> Option<(&'v LeaseView, Moment)> {
    // Spread over several free slots, so that equals do not all try the first one.
    let lease = *open.get(rank % open.len().max(1))?;
    let free = free.iter().find(|free| free.slot == lease.slot)?;
    let wait = courtesy(timing, lease, me, rank, open.len());
    let spread = u64::try_from(wait.as_nanos() / 4).unwrap_or(u64::MAX);
    let spread = std::time::Duration::from_nanos(if spread == 0 { 0 } else { free.draw % spread });
    Some((lease, free.since + wait + spread))
}
