//! What one process has seen of the others, on its own clock, and what may be concluded from it.

use std::time::Duration;

use super::sightings::Sightings;
use crate::election::{by_rank, may_lead};
use crate::port::{CandidateView, ElectionView, Expire, LeaseView, Observation, SessionView, Take};
use crate::timing::patience;
use crate::{Moment, SessionId, Token};

/// What one process has seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Eyes {
    pub(crate) sightings: Sightings,
    /// The store's epoch, when it was first seen, and whether we saw it change.
    pub(super) era: Option<Era>,
}

/// One epoch of the store: a store that was promoted, restored or copied begins a new one, and may have lost the last commits of
/// the old.
#[derive(Clone, Copy, Debug)]
pub(super) struct Era {
    pub(super) epoch: u32,
    /// When this process first heard of it.
    pub(super) since: Moment,
    /// Whether this process knew an earlier one: then nothing may be taken for a while.
    pub(super) witnessed: bool,
}

impl Eyes {
    /// The store is in this epoch. Beats seen on another say nothing: they may repeat. Whether it is a new one.
    pub(crate) fn note_epoch(&mut self, epoch: u32, now: Moment) -> bool {
        if self.era.is_some_and(|era| era.epoch == epoch) {
            return false;
        }
        self.era = Some(Era { epoch, since: now, witnessed: self.era.is_some() });
        self.sightings = Sightings::default();
        true
    }

    /// Takes in what was seen, by an observation that returned `now`. `complete`: whoever is not in it is nobody.
    pub(super) fn note(&mut self, observation: &Observation, now: Moment, complete: bool) {
        self.note_epoch(observation.epoch, now);
        self.sightings.note(observation, now, complete);
    }

    /// As [`note`](Self::note), of a look at a few, without forgetting anybody.
    pub(super) fn glimpse(&mut self, observation: &Observation, now: Moment) {
        self.note_epoch(observation.epoch, now);
        self.sightings.glimpse(observation, now);
    }

    pub(super) fn epoch(&self) -> u32 {
        self.era.map_or(0, |era| era.epoch)
    }

    /// Whether a lease may be taken: it is free, or its holder was seen silent for too long. `own` is the taker's lease.
    pub(super) fn is_open(&self, view: &ElectionView, lease: &LeaseView, own: Duration, now: Moment) -> bool {
        let left = lease.is_free()
            || lease.holder.as_ref().is_some_and(|holder| self.sightings.is_silent(holder, now));
        left && self.promotion_over(view, lease, own).is_none_or(|at| now >= at)
    }

    /// A standby that was promoted, or a store that was restored, may have lost the last grant, so that what looks free is led
    /// under it, or the beat that would show a holder alive. Whoever it was stops believing within the lease, since its last counted beat is
    /// older than the new epoch. So a lease that nobody was granted in this epoch is left alone for as long, from when
    /// we first heard of it; even one that looks new, since the whole election may be among what was lost. A first
    /// epoch (0 or 1) follows none. (An old primary that lives on is another matter: there only tokens help.)
    fn promotion_over(&self, view: &ElectionView, lease: &LeaseView, own: Duration) -> Option<Moment> {
        let ungranted = |era: &Era| era.epoch > 1 && lease.token <= Token::first(era.epoch);
        let era = self.era.filter(|era| era.witnessed || ungranted(era))?;
        let sessions = view.candidates.iter().map(|candidate| &candidate.session).chain(&lease.holder);
        let longest = sessions.map(SessionView::lease).max().unwrap_or_default().max(own);
        Some(era.since + patience(longest))
    }

    /// The moment when the first holder will have been silent for too long, or a promotion is over.
    pub(super) fn opens_at(&self, view: &ElectionView, own: Duration, now: Moment) -> Option<Moment> {
        let silent = view.holders().filter_map(|(_, holder)| self.sightings.silent_at(holder));
        let promoted = view.leases.iter().filter_map(|lease| self.promotion_over(view, lease, own));
        silent.chain(promoted.filter(|&at| at > now)).min()
    }

    /// How many contenders rank before `me`. Who leads, is silent, or has just stepped down does not contend.
    pub(super) fn rank(
        &self,
        view: &ElectionView,
        me: &CandidateView,
        released_by: Option<&SessionId>,
        now: Moment,
    ) -> usize {
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

    /// What `me` says to take this lease as it was seen, declaring dead whom it was seen to be held by.
    pub(super) fn bid(&self, view: &ElectionView, lease: &LeaseView, me: &SessionId) -> Take {
        let expire = lease.holder.as_ref().filter(|holder| holder.live).map(|holder| Expire {
            session: holder.id.clone(),
            epoch: self.epoch(),
            beat: (!self.sightings.is_dead(&holder.id)).then_some(holder.beat),
        });
        Take {
            session: me.clone(),
            epoch: self.epoch(),
            election: view.key.clone(),
            slot: lease.slot,
            token: lease.token,
            holder: lease.holder.as_ref().map(|holder| holder.id.clone()),
            expire,
        }
    }
}
