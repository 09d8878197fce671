//! What a follower does about what it sees: take a free lease when its turn comes, take over from the silent, ask the
//! lesser to make way.

use super::machine::{Era, Machine, Session};
use super::phase::{FreeSlot, Phase};
use super::timers::Timer;
use crate::election::{by_rank, courtesy, may_lead, to_preempt};
use crate::port::{Ask, AskKind, CandidateView, ElectionView, Expire, LeaseView, SessionView, Take};
use crate::timing::patience;
use crate::{ElectionKey, Entropy, Moment, SessionId, Token};

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
        let open: Vec<&LeaseView> =
            view.leases.iter().filter(|lease| self.is_open(view, lease, now)).collect();
        self.note_free(&view.key, &open, now, entropy);
        let rank = self.my_rank(view, me, now);
        if open.is_empty() {
            self.await_silence(view, now);
            if rank == 0 {
                self.preempt(view, me, now);
            }
            return;
        }
        // Spread over several free slots, so that equals do not all try the first one.
        let lease = open[rank % open.len()];
        let Some(campaign) = self.campaigns.get(&view.key) else { return };
        let Some(free) = campaign.free.iter().find(|free| free.slot == lease.slot) else { return };
        let wait = courtesy(&self.config.timing, lease, my_session, rank, open.len());
        let spread = u64::try_from(wait.as_nanos() / 4).unwrap_or(u64::MAX);
        let spread = std::time::Duration::from_nanos(if spread == 0 { 0 } else { free.draw % spread });
        let turn = (free.since + wait + spread).max(campaign.hold_off);
        if now < turn {
            self.timers.set(Timer::Election(view.key.clone()), turn);
            return;
        }
        let expire = lease.holder.as_ref().filter(|holder| holder.live).map(|holder| Expire {
            session: holder.id.clone(),
            timeline: self.timeline(),
            beat: (!self.sightings.is_dead(&holder.id)).then_some(holder.beat),
        });
        self.send_take(Take {
            session: my_session.clone(),
            timeline: self.timeline(),
            election: view.key.clone(),
            slot: lease.slot,
            token: lease.token,
            holder: lease.holder.as_ref().map(|holder| holder.id.clone()),
            expire,
        });
    }

    fn is_open(&self, view: &ElectionView, lease: &LeaseView, now: Moment) -> bool {
        let left = lease.is_free()
            || lease.holder.as_ref().is_some_and(|holder| self.sightings.is_silent(holder, now));
        left && self.promotion_over(view, lease).is_none_or(|at| now >= at)
    }

    /// A standby that was promoted may have lost the last grant, so that what looks free is led under it, or the beat
    /// that would show a holder alive. Whoever it was stops believing within the lease, since its last counted beat is
    /// older than the promotion. So a lease that nobody was granted on this timeline is left alone for as long, from when
    /// we first heard of it; even one that looks new, since the whole election may be among what was lost. A first
    /// timeline follows no promotion. (An old primary that lives on is another matter: there only tokens help.)
    fn promotion_over(&self, view: &ElectionView, lease: &LeaseView) -> Option<Moment> {
        let ungranted = |era: &Era| era.timeline > 1 && lease.token <= Token::first(era.timeline);
        let era = self.era.filter(|era| era.witnessed || ungranted(era))?;
        let sessions = view.candidates.iter().map(|candidate| &candidate.session).chain(&lease.holder);
        let longest =
            sessions.map(SessionView::lease).max().unwrap_or_default().max(self.config.timing.lease());
        Some(era.since + patience(longest))
    }

    pub(super) fn timeline(&self) -> u32 {
        self.era.map_or(0, |era| era.timeline)
    }

    /// Remembers since when each slot is free, and forgets those that are not.
    fn note_free(&mut self, key: &ElectionKey, open: &[&LeaseView], now: Moment, entropy: &mut dyn Entropy) {
        let Some(campaign) = self.campaigns.get_mut(key) else { return };
        if open.is_empty() {
            // Somebody has had it since: who stepped down earlier stands like everybody else.
            campaign.released_by = None;
            campaign.hold_off = Moment::ZERO;
        }
        let old = std::mem::take(&mut campaign.free);
        campaign.free = open
            .iter()
            .map(|lease| {
                let known = old.iter().find(|free| (free.slot, free.token) == (lease.slot, lease.token));
                known.cloned().unwrap_or_else(|| FreeSlot {
                    slot: lease.slot,
                    token: lease.token,
                    since: now,
                    draw: entropy.next_u64(),
                })
            })
            .collect();
    }

    /// How many contenders rank before me. Who leads, is silent, or has just stepped down does not contend.
    fn my_rank(&self, view: &ElectionView, me: &CandidateView, now: Moment) -> usize {
        let released_by = self.campaigns.get(&view.key).and_then(|campaign| campaign.released_by.as_ref());
        let leads = |c: &CandidateView| view.holders().any(|(_, holder)| holder.id == c.session.id);
        let contends = |c: &&CandidateView| {
            may_lead(c, &view.requires)
                && c.session.live
                && c.session.id != me.session.id
                && !leads(c)
                && released_by != Some(&c.session.id)
                && !self.sightings.is_silent(&c.session, now)
        };
        let stepped_down = released_by == Some(&me.session.id);
        view.candidates.iter().filter(contends).filter(|c| stepped_down || by_rank(c, me).is_lt()).count()
    }

    /// Comes back at the moment when the first holder will have been silent for too long, or a promotion is over.
    fn await_silence(&mut self, view: &ElectionView, now: Moment) {
        let silent = view.holders().filter_map(|(_, holder)| self.sightings.silent_at(holder));
        let promoted = view.leases.iter().filter_map(|lease| self.promotion_over(view, lease));
        if let Some(at) = silent.chain(promoted.filter(|&at| at > now)).min() {
            self.timers.set(Timer::Election(view.key.clone()), at);
        }
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
