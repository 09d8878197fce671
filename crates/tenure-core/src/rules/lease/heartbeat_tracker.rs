//! Heartbeats and epochs that one process observed on its own clock, and the conclusions it may draw.

use std::time::Duration;

use super::heartbeat_table::HeartbeatTable;
use crate::port::{
    CandidateView, ElectionView, ElectionsObservation, ExpireSessionRequest, LeaseView, SessionView,
    TakeLeaseRequest,
};
use crate::rules::election::{by_rank, is_eligible};
use crate::timing::silence_limit;
use crate::{BootInstant, SessionId, Token};

/// Observations of one process.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeartbeatTracker {
    pub(crate) heartbeats: HeartbeatTable,
    /// Epoch of the store, when it was first observed, and whether its change was observed.
    pub(super) epoch_state: Option<EpochState>,
}

/// An epoch of the store. A promoted, restored or copied store starts a new epoch and may have lost the last commits
/// of the old one.
#[derive(Clone, Copy, Debug)]
pub(super) struct EpochState {
    pub(super) epoch: u32,
    /// When this process first observed the epoch.
    pub(super) since: BootInstant,
    /// Whether this process observed an earlier epoch before. If so, it takes no lease for a while.
    pub(super) change_observed: bool,
}

impl HeartbeatTracker {
    /// Records the store's epoch. Heartbeat counts of another epoch are discarded, because they may repeat. Returns
    /// whether the epoch is new.
    pub(crate) fn note_epoch(&mut self, epoch: u32, now: BootInstant) -> bool {
        if self.epoch_state.is_some_and(|epoch_state| epoch_state.epoch == epoch) {
            return false;
        }
        self.epoch_state =
            Some(EpochState { epoch, since: now, change_observed: self.epoch_state.is_some() });
        self.heartbeats = HeartbeatTable::default();
        true
    }

    /// Records an observation that returned at `now`. If it is `complete`, sessions missing from it have ended.
    pub(super) fn note(&mut self, observation: &ElectionsObservation, now: BootInstant, complete: bool) {
        self.note_epoch(observation.epoch, now);
        self.heartbeats.note(observation, now, complete);
    }

    /// Records a partial observation as [`note`](Self::note) does, without removing any session.
    pub(super) fn note_partial(&mut self, observation: &ElectionsObservation, now: BootInstant) {
        self.note_epoch(observation.epoch, now);
        self.heartbeats.note_partial(observation, now);
    }

    pub(super) fn epoch(&self) -> u32 {
        self.epoch_state.map_or(0, |epoch_state| epoch_state.epoch)
    }

    /// Whether a lease may be taken: it is free, or its holder was silent for too long. `own` is the lease duration
    /// of the taker.
    pub(super) fn is_open(
        &self,
        view: &ElectionView,
        lease: &LeaseView,
        own: Duration,
        now: BootInstant,
    ) -> bool {
        let left = lease.is_free()
            || lease.holder.as_ref().is_some_and(|holder| self.heartbeats.is_silent(holder, now));
        left && self.promotion_over(view, lease, own).is_none_or(|at| now >= at)
    }

    /// Whether the waiting time after a promotion is over.
    ///
    /// A promoted or restored store may have lost its last commits. A lease that looks free may still be held, and a
    /// holder that looks silent may be alive. Such a holder loses trust within one lease, because its last confirmed
    /// heartbeat is older than the new epoch. A process therefore waits for one lease after it first observed the epoch
    /// before it takes a lease that was not granted in this epoch, even if the election looks new. Epochs 0 and 1 are the
    /// first epoch of a store and need no wait. This does not protect against an old primary that is still running;
    /// only fencing tokens do.
    fn promotion_over(&self, view: &ElectionView, lease: &LeaseView, own: Duration) -> Option<BootInstant> {
        let ungranted = |epoch_state: &EpochState| {
            epoch_state.epoch > 1 && lease.token <= Token::first(epoch_state.epoch)
        };
        let epoch_state =
            self.epoch_state.filter(|epoch_state| epoch_state.change_observed || ungranted(epoch_state))?;
        let sessions = view.candidates.iter().map(|candidate| &candidate.session).chain(&lease.holder);
        let longest = sessions.map(SessionView::lease).max().unwrap_or_default().max(own);
        Some(epoch_state.since + silence_limit(longest))
    }

    /// When the first holder will have been silent for too long, or when the waiting time after a promotion ends.
    pub(super) fn opens_at(
        &self,
        view: &ElectionView,
        own: Duration,
        now: BootInstant,
    ) -> Option<BootInstant> {
        let silent = view.holders().filter_map(|(_, holder)| self.heartbeats.silent_at(holder));
        let promoted = view.leases.iter().filter_map(|lease| self.promotion_over(view, lease, own));
        silent.chain(promoted.filter(|&at| at > now)).min()
    }

    /// Number of contenders that rank before `me`. Leaders, silent candidates and the candidate that just stepped
    /// down do not contend.
    pub(super) fn rank(
        &self,
        view: &ElectionView,
        me: &CandidateView,
        released_by: Option<&SessionId>,
        now: BootInstant,
    ) -> usize {
        let leads = |c: &CandidateView| view.holders().any(|(_, holder)| holder.id == c.session.id);
        let contends = |c: &&CandidateView| {
            is_eligible(c, &view.required_capabilities)
                && c.session.live
                && c.session.id != me.session.id
                && !leads(c)
                && released_by != Some(&c.session.id)
                && !self.heartbeats.is_silent(&c.session, now)
        };
        let stepped_down = released_by == Some(&me.session.id);
        view.candidates.iter().filter(contends).filter(|c| stepped_down || by_rank(c, me).is_lt()).count()
    }

    /// The request by which `me` takes this lease as observed, expiring its silent holder if there is one.
    pub(super) fn take_request(
        &self,
        view: &ElectionView,
        lease: &LeaseView,
        me: &SessionId,
    ) -> TakeLeaseRequest {
        let expire = lease.holder.as_ref().filter(|holder| holder.live).map(|holder| ExpireSessionRequest {
            session: holder.id.clone(),
            epoch: self.epoch(),
            heartbeat_count: (!self.heartbeats.is_dead(&holder.id)).then_some(holder.heartbeat_count),
        });
        TakeLeaseRequest {
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
