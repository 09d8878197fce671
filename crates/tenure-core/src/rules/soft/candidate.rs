//! One candidate of a soft election.

use std::collections::{BTreeMap, BTreeSet};

use super::rank::{Rank, Rival, SoftCandidateState};
use super::timing::GossipTiming;
use crate::BootInstant;

/// The other candidates as this process observes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SoftObservation {
    /// Live candidates by id.
    pub rivals: BTreeMap<String, Rival>,
    /// Candidates that announced their withdrawal or departure. A candidate that is in neither set became silent and
    /// may still lead elsewhere.
    pub departed: BTreeSet<String>,
}

/// A candidate: it receives observations and decides about its own state.
///
/// ```
/// use tenure_core::BootInstant;
/// use tenure_core::rules::soft::{GossipTiming, Rank, SoftCandidate, SoftCandidateState, SoftObservation};
///
/// let rank = Rank { priority: 0, generation: 1, id: "a".into() };
/// let mut alone = SoftCandidate::new(rank, GossipTiming::default(), BootInstant::ZERO);
/// let mut now = BootInstant::ZERO;
/// while alone.observe(now, SoftObservation::default()) != SoftCandidateState::Leading {
///     now = alone.wake().unwrap();
/// }
/// assert_eq!(now, BootInstant::ZERO + GossipTiming::default().hold_down() + GossipTiming::default().settle());
/// ```
#[derive(Clone, Debug)]
pub struct SoftCandidate {
    rank: Rank,
    timing: GossipTiming,
    state: SoftCandidateState,
    observed: SoftObservation,
    /// When this candidate last observed anything uncertain.
    uncertain_at: BootInstant,
    /// Since when it has been ready, if nothing is uncertain.
    ready_since: Option<BootInstant>,
    /// Since when it has ranked first among the ready candidates.
    first_since: Option<BootInstant>,
    observed_at: BootInstant,
}

impl SoftCandidate {
    /// A new candidate, which does not know yet whether another one leads.
    pub fn new(rank: Rank, timing: GossipTiming, now: BootInstant) -> Self {
        SoftCandidate {
            rank,
            timing,
            state: SoftCandidateState::Candidate,
            observed: SoftObservation::default(),
            uncertain_at: now,
            ready_since: None,
            first_since: None,
            observed_at: now,
        }
    }

    /// State that it publishes.
    pub fn state(&self) -> SoftCandidateState {
        self.state
    }

    /// Its rank.
    pub fn rank(&self) -> &Rank {
        &self.rank
    }

    /// Until when its leadership may be trusted, if it leads.
    pub fn trusted_until(&self) -> Option<BootInstant> {
        (self.state == SoftCandidateState::Leading).then(|| self.observed_at + self.timing.trust())
    }

    /// Applies an observation. Must be called whenever the observation changes, at [`wake`](Self::wake), and at least
    /// once per gossip round.
    pub fn observe(&mut self, now: BootInstant, observation: SoftObservation) -> SoftCandidateState {
        if now.since(self.observed_at) > self.timing.trust() {
            // The process was suspended, so another candidate may lead by now.
            (self.uncertain_at, self.state) = (now, SoftCandidateState::Candidate);
        }
        self.observed_at = now;
        if self.observed.rivals.values().any(|rival| self.is_silent(rival, &observation)) {
            self.uncertain_at = now;
        }
        self.observed = observation;
        self.state = self.decide(now);
        self.state
    }

    /// When to call [`observe`](Self::observe) again if nothing changes.
    pub fn wake(&self) -> Option<BootInstant> {
        match self.state {
            SoftCandidateState::Leading => None,
            SoftCandidateState::Candidate => Some(self.uncertain_at + self.timing.hold_down()),
            SoftCandidateState::Ready => self.leads_at(),
        }
    }

    fn decide(&mut self, now: BootInstant) -> SoftCandidateState {
        let outranked = self
            .observed
            .rivals
            .values()
            .any(|r| r.rank < self.rank && r.state != SoftCandidateState::Candidate);
        if self.state == SoftCandidateState::Leading {
            if !outranked {
                return SoftCandidateState::Leading;
            }
            self.ready_since = Some(now);
        }
        if now < self.uncertain_at + self.timing.hold_down() {
            (self.ready_since, self.first_since) = (None, None);
            return SoftCandidateState::Candidate;
        }
        self.ready_since.get_or_insert(now);
        self.first_since = if outranked { None } else { self.first_since.or(Some(now)) };
        match self.leads_at() {
            Some(leads_at) if leads_at <= now => SoftCandidateState::Leading,
            _ => SoftCandidateState::Ready,
        }
    }

    /// When this candidate starts to lead if nothing changes. By then all members have received that it is ready, and a
    /// lower-ranked leader has stopped, unless that leader does not receive our messages. A leader that was suspended
    /// before it received them still trusts its leadership for a while, but it is detected as silent before the wait is
    /// over.
    fn leads_at(&self) -> Option<BootInstant> {
        let (ready_since, first_since) = (self.ready_since?, self.first_since?);
        let settled_at = ready_since + self.timing.settle();
        let yielded_at =
            first_since + self.timing.settle() + self.timing.silence_limit() + self.timing.hold_down();
        Some(if self.is_contested() { settled_at.max(yielded_at) } else { settled_at })
    }

    /// Whether another candidate reports that it leads.
    fn is_contested(&self) -> bool {
        self.observed.rivals.values().any(|rival| rival.state == SoftCandidateState::Leading)
    }

    /// Whether an observed candidate became silent without notice and may lead elsewhere.
    fn is_silent(&self, rival: &Rival, observation: &SoftObservation) -> bool {
        let relevant = rival.rank < self.rank || rival.state == SoftCandidateState::Leading;
        relevant
            && !observation.rivals.contains_key(&rival.rank.id)
            && !observation.departed.contains(&rival.rank.id)
    }
}
