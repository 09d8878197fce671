//! Ranking and eligibility of candidates, and the delay before a candidate takes a free lease.
//!
//! Candidates are ranked by priority (higher first), then name (lower first), then session, so the order is total
//! even if two processes share a name. The best-ranked candidate takes a free lease at once, and each lower rank
//! waits one step longer. If the best-ranked candidate is dead, the next one therefore takes the lease a fraction of a
//! second later, not a whole lease later. Only a higher *priority* preempts. The name decides only between equal
//! priorities, and only while the lease is free.

use std::cmp::{Ordering, Reverse};
use std::time::Duration;

use crate::port::{CandidateView, ElectionView, LeaseView};
use crate::{SessionId, Timing};

/// The order of candidates, best first.
pub fn by_rank(a: &CandidateView, b: &CandidateView) -> Ordering {
    let key = |c: &CandidateView| Reverse(c.priority);
    key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name)).then_with(|| a.session.id.cmp(&b.session.id))
}

/// Whether this candidate is eligible to lead.
pub fn is_eligible(candidate: &CandidateView, requires: &[String]) -> bool {
    !candidate.observer && requires.iter().all(|need| candidate.capabilities.contains(need))
}

/// How long `me` waits before it takes a free lease. `free` is the number of free slots; `rank` is the number of
/// candidates that rank before `me`.
pub fn take_delay(timing: &Timing, lease: &LeaseView, me: &SessionId, rank: usize, free: usize) -> Duration {
    match &lease.reserved_for {
        Some(successor) if successor == me => Duration::ZERO,
        Some(_) => timing.reserve() + steps(timing, rank, free),
        None => steps(timing, rank, free),
    }
}

fn steps(timing: &Timing, rank: usize, free: usize) -> Duration {
    let behind = u32::try_from((rank + 1).saturating_sub(free.max(1))).unwrap_or(u32::MAX).min(20);
    timing.rank_step() * behind
}

/// The leader that `me` may preempt: the lowest-ranked one of lower priority whose term was not chosen by an
/// operator.
pub fn preemption_target<'v>(view: &'v ElectionView, me: &CandidateView) -> Option<&'v LeaseView> {
    view.leases
        .iter()
        .filter(|lease| !lease.start_reason.is_operator_choice())
        .filter_map(|lease| Some((lease, view.candidate(&lease.holder.as_ref()?.id)?)))
        .filter(|(_, holder)| holder.priority < me.priority)
        .max_by(|(_, a), (_, b)| by_rank(a, b))
        .map(|(lease, _)| lease)
}

#[cfg(test)]
mod tests;
