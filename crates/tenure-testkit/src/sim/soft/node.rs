//! A simulated process and everything it received by gossip.

use std::collections::BTreeMap;

use tenure_core::BootInstant;
use tenure_core::rules::soft::{
    GossipHeartbeatTracker, Rank, Rival, SoftCandidate, SoftCandidateState, SoftObservation,
};

use super::plan::{SoftInjectedBug, SoftSimPlan};

/// Known state of a process. A greater heartbeat and a greater version are newer.
#[derive(Clone, Debug)]
pub(super) struct GossipedState {
    pub(super) at: usize,
    pub(super) heartbeat: u64,
    pub(super) version: u64,
    pub(super) rank: Rank,
    /// State of the candidate; `None` if it has left.
    pub(super) candidate_state: Option<SoftCandidateState>,
}

/// One start of a process.
pub(super) struct SoftSimNode {
    pub(super) candidate: SoftCandidate,
    pub(super) known_states: BTreeMap<String, GossipedState>,
    heartbeats: GossipHeartbeatTracker,
    pub(super) paused_until: u64,
    /// Rate of its clock in millionths.
    rate: u64,
    bug: Option<SoftInjectedBug>,
}

impl SoftSimNode {
    pub(super) fn new(
        plan: &SoftSimPlan,
        at: usize,
        rank: Rank,
        rate: u64,
        now: u64,
        bug: Option<SoftInjectedBug>,
    ) -> Self {
        let gossiped = GossipedState {
            at,
            heartbeat: 1,
            version: 1,
            rank: rank.clone(),
            candidate_state: Some(SoftCandidateState::Candidate),
        };
        SoftSimNode {
            candidate: SoftCandidate::new(rank.clone(), plan.candidate_timing, local(now, rate)),
            known_states: [(rank.id, gossiped)].into(),
            heartbeats: GossipHeartbeatTracker::new(plan.timing.silence_limit()),
            paused_until: 0,
            rate,
            bug,
        }
    }

    pub(super) fn id(&self) -> &str {
        &self.candidate.rank().id
    }

    /// Whether it trusts its leadership at this real time.
    pub(super) fn trusts_leadership(&self, now: u64) -> bool {
        match (self.candidate.trusted_until(), self.bug) {
            (until, Some(SoftInjectedBug::TrustWithoutDeadline)) => until.is_some(),
            (until, _) => until.is_some_and(|until| local(now, self.rate) < until),
        }
    }

    /// Increments its heartbeat before a round.
    pub(super) fn heartbeat(&mut self) {
        self.update_own(|gossiped| gossiped.heartbeat += 1);
    }

    pub(super) fn leave(&mut self) {
        self.update_own(|gossiped| {
            (gossiped.version, gossiped.candidate_state) = (gossiped.version + 1, None)
        });
    }

    pub(super) fn merge(&mut self, states: &BTreeMap<String, GossipedState>) {
        let me = self.id().to_owned();
        for (id, gossiped) in states.iter().filter(|(id, _)| **id != me) {
            let known = self.known_states.entry(id.clone()).or_insert_with(|| gossiped.clone());
            known.heartbeat = known.heartbeat.max(gossiped.heartbeat);
            if gossiped.version > known.version {
                (known.version, known.candidate_state) = (gossiped.version, gossiped.candidate_state);
            }
        }
    }

    /// Applies its observations. Returns whether it has just become leader.
    pub(super) fn observe(&mut self, now: u64) -> bool {
        let now = local(now, self.rate);
        let me = self.id().to_owned();
        self.heartbeats
            .observe(now, self.known_states.iter().map(|(id, gossiped)| (id.as_str(), gossiped.heartbeat)));
        let mut observation = SoftObservation::default();
        for (id, gossiped) in self.known_states.iter().filter(|(id, _)| **id != me) {
            match gossiped.candidate_state {
                None => {
                    observation.departed.insert(id.clone());
                }
                Some(candidate_state) if self.counts_as_alive(id) => {
                    observation
                        .rivals
                        .insert(id.clone(), Rival { rank: gossiped.rank.clone(), state: candidate_state });
                }
                Some(_) => {}
            }
        }
        let before = self.candidate.state();
        let candidate_state = self.candidate.observe(now, observation);
        if before != candidate_state {
            self.update_own(|gossiped| {
                (gossiped.version, gossiped.candidate_state) = (gossiped.version + 1, Some(candidate_state))
            });
        }
        before != SoftCandidateState::Leading && candidate_state == SoftCandidateState::Leading
    }

    /// Possible gossip partners: the live ones, and the others.
    pub(super) fn peers(&self) -> (Vec<usize>, Vec<usize>) {
        let others = self
            .known_states
            .iter()
            .filter(|(id, gossiped)| *id != self.id() && gossiped.candidate_state.is_some());
        let (live, dead): (Vec<_>, Vec<_>) = others.partition(|(id, _)| self.heartbeats.is_live(id));
        let at = |found: Vec<(&String, &GossipedState)>| {
            found.into_iter().map(|(_, gossiped)| gossiped.at).collect()
        };
        (at(live), at(dead))
    }

    fn counts_as_alive(&self, id: &str) -> bool {
        let never_moved = self.heartbeats.advanced_at(id).is_none();
        self.heartbeats.is_live(id)
            || (self.bug == Some(SoftInjectedBug::FirstHeartbeatCountsAsLive) && never_moved)
    }

    fn update_own(&mut self, change: impl FnOnce(&mut GossipedState)) {
        let me = self.id().to_owned();
        if let Some(gossiped) = self.known_states.get_mut(&me) {
            change(gossiped);
        }
    }
}

/// Reading of a clock with this rate.
fn local(now: u64, rate: u64) -> BootInstant {
    BootInstant::from_nanos((u128::from(now) * u128::from(rate) / 1_000_000) as u64)
}
