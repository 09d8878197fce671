//! Who ranks before whom, who may lead, and who waits how long.
//!
//! Rank is priority (higher first), then id (lower first), then session, so that it is total even where two processes
//! share an id. When a lease is free, the best-ranked candidate takes it at once and each lower rank waits one step
//! longer: a dead favourite costs a fraction of a second, not a lease. Only a higher *priority* preempts; a lower id
//! decides between equals when the lease is free, and never unseats anybody.

use std::cmp::{Ordering, Reverse};
use std::time::Duration;

use crate::port::{CandidateView, ElectionView, LeaseView};
use crate::{SessionId, Timing};

/// The order of candidates: the best first.
pub fn by_rank(a: &CandidateView, b: &CandidateView) -> Ordering {
    let key = |c: &CandidateView| Reverse(c.priority);
    key(a).cmp(&key(b)).then_with(|| a.id.cmp(&b.id)).then_with(|| a.session.id.cmp(&b.session.id))
}

/// Whether this candidate may lead at all.
pub fn may_lead(candidate: &CandidateView, requires: &[String]) -> bool {
    !candidate.observer && requires.iter().all(|need| candidate.capabilities.contains(need))
}

/// How long `me` leaves a free lease to others. `free` slots are free, `rank` contenders rank before me.
pub fn courtesy(timing: &Timing, lease: &LeaseView, me: &SessionId, rank: usize, free: usize) -> Duration {
    match &lease.reserved {
        Some(successor) if successor == me => Duration::ZERO,
        Some(_) => timing.reserve() + steps(timing, rank, free),
        None => steps(timing, rank, free),
    }
}

fn steps(timing: &Timing, rank: usize, free: usize) -> Duration {
    let behind = u32::try_from((rank + 1).saturating_sub(free.max(1))).unwrap_or(u32::MAX).min(20);
    timing.rank_step() * behind
}

/// The holder that `me` may ask to make way: the worst-ranked one of lower priority whose term no operator pinned.
pub fn to_preempt<'v>(view: &'v ElectionView, me: &CandidateView) -> Option<&'v LeaseView> {
    view.leases
        .iter()
        .filter(|lease| !lease.via.is_pinned())
        .filter_map(|lease| Some((lease, view.candidate(&lease.holder.as_ref()?.id)?)))
        .filter(|(_, holder)| holder.priority < me.priority)
        .max_by(|(_, a), (_, b)| by_rank(a, b))
        .map(|(lease, _)| lease)
}

#[cfg(test)]
mod tests;
