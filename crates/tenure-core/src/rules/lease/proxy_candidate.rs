//! Decisions for candidates that campaign through a server.

use std::collections::BTreeMap;

use super::follower::{note_free, plan_take};
use super::heartbeat_tracker::HeartbeatTracker;
use super::phase::FreeSlot;
use crate::port::{
    CandidateView, ElectionView, ElectionsObservation, LeaderRequest, LeaderRequestKind, LeaseView,
    SessionView, TakeLeaseRequest,
};
use crate::rules::election::{is_eligible, preemption_target};
use crate::{BootInstant, ElectionKey, Entropy, SessionId, Timing, Token};

/// Watches elections for candidates that send single HTTP requests and cannot watch by themselves.
///
/// It applies the rules of [`LeaseMachine`](super::LeaseMachine) on its own clock: it takes no lease from a holder that
/// it has not itself observed silent for a whole lease. Losing its observations is safe: a new instance observes from
/// the start, which only delays takeovers.
///
/// It never reports that a candidate *is trusted*. The candidate computes its trust itself, from a clock reading before
/// it sent the confirmed heartbeat.
///
/// ```
/// use tenure_core::model::Elections;
/// use tenure_core::rules::lease::{CandidateDecision, ProxyCandidate};
/// use tenure_core::port::{Candidacy, ObserveScope, OpenSessionRequest};
/// use tenure_core::{BootInstant, ElectionKey, Name, SessionId, SplitMix};
///
/// let (mut elections, mut entropy) = (Elections::default(), SplitMix::new(1));
/// let me = SessionId::generate(&mut entropy);
/// let lease = std::time::Duration::from_secs(10);
/// elections.open_session(&OpenSessionRequest { id: me.clone(), name: "curl".into(), lease, takeover: Default::default(), owner: None }, 0);
/// let key = ElectionKey::new(Name::default_namespace(), "nightly".parse().unwrap());
/// elections.join_election(&Candidacy::new(me.clone(), key), 0);
///
/// let mut proxy = ProxyCandidate::default();
/// let observation = elections.observe(&me, &ObserveScope::All);
/// proxy.observe_all(&observation, BootInstant::ZERO, true);
/// let decision = proxy.decide(&observation.elections[0], &me, BootInstant::ZERO, &mut entropy);
/// let CandidateDecision::Take(take) = decision else { panic!("there is no other candidate") };
/// assert!(elections.take_lease(&take, 0).is_some());
/// ```
#[derive(Clone, Debug, Default)]
pub struct ProxyCandidate {
    tracker: HeartbeatTracker,
    free: BTreeMap<ElectionKey, Vec<FreeSlot>>,
    /// Token of the term that was asked to release, and the time of the request, by election.
    request: BTreeMap<ElectionKey, (Token, BootInstant)>,
}

/// The next action of a proxied candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CandidateDecision {
    /// Its session holds this lease.
    Holds {
        /// Slot number.
        slot: u32,
        /// Token of the term.
        token: Token,
    },
    /// Take this lease.
    Take(TakeLeaseRequest),
    /// Wait for a change or until an instant; optionally send a request to a leader first.
    Wait {
        /// When to decide again if nothing changes before.
        until: Option<BootInstant>,
        /// Request to a leader of lower priority to release.
        ask: Option<LeaderRequest>,
    },
    /// It cannot lead in the current state.
    Ineligible(Ineligibility),
}

/// Why a candidate cannot lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ineligibility {
    /// It is not a candidate, or its session has ended.
    NotCandidate,
    /// The election is paused.
    Paused,
    /// It is an observer.
    Observer,
    /// It lacks a required capability.
    NotCapable,
}

impl ProxyCandidate {
    /// Records an observation that returned at `now`. If it is `complete`, it covers all elections, and sessions
    /// missing from it have ended.
    pub fn observe_all(&mut self, observation: &ElectionsObservation, now: BootInstant, complete: bool) {
        self.tracker.note(observation, now, complete);
        if complete {
            let there = |key: &ElectionKey| observation.elections.iter().any(|view| view.key == *key);
            self.free.retain(|key, _| there(key));
            self.request.retain(|key, _| there(key));
        }
    }

    /// Records a partial observation that returned at `now`. Its cost does not depend on the number of known
    /// sessions.
    pub fn observe_some(&mut self, observation: &ElectionsObservation, now: BootInstant) {
        self.tracker.note_partial(observation, now);
    }

    /// Whether the heartbeat of this session, as just read in this epoch, was unchanged for its whole lease.
    pub fn is_silent(&self, session: &SessionView, epoch: u32, now: BootInstant) -> bool {
        self.tracker.epoch() == epoch && self.tracker.heartbeats.is_silent(session, now)
    }

    /// Records that the store knows for certain that this session's process has exited.
    pub fn died(&mut self, session: SessionId) {
        self.tracker.heartbeats.died(session);
    }

    /// Decides what the candidate of this session must do in an election as just observed.
    pub fn decide(
        &mut self,
        view: &ElectionView,
        session: &SessionId,
        now: BootInstant,
        entropy: &mut dyn Entropy,
    ) -> CandidateDecision {
        if let Some((slot, token)) = view.held_by(session).next() {
            return CandidateDecision::Holds { slot, token };
        }
        let Some(me) = view.candidate(session).filter(|me| me.session.live) else {
            return CandidateDecision::Ineligible(Ineligibility::NotCandidate);
        };
        if me.observer {
            return CandidateDecision::Ineligible(Ineligibility::Observer);
        }
        if !is_eligible(me, &view.required_capabilities) {
            return CandidateDecision::Ineligible(Ineligibility::NotCapable);
        }
        if view.paused.is_some() {
            return CandidateDecision::Ineligible(Ineligibility::Paused);
        }
        let own = me.session.lease();
        // The lease is in range, because the store rejects others when the session is opened.
        let timing = Timing::new(own, None).unwrap_or_default();
        let is_open = |lease: &&LeaseView| self.tracker.is_open(view, lease, own, now);
        let open: Vec<&LeaseView> = view.leases.iter().filter(is_open).collect();
        let free = self.free.entry(view.key.clone()).or_default();
        note_free(free, &open, now, entropy);
        let rank = self.tracker.rank(view, me, None, now);
        match plan_take(&timing, free, &open, session, rank) {
            Some((lease, at)) if now >= at => {
                CandidateDecision::Take(self.tracker.take_request(view, lease, session))
            }
            Some((_, at)) => CandidateDecision::Wait { until: Some(at), ask: None },
            None => {
                let ask = if rank == 0 { self.preempt(view, me, &timing, now) } else { None };
                CandidateDecision::Wait { until: self.tracker.opens_at(view, own, now), ask }
            }
        }
    }

    /// Asks the lowest-ranked leader of lower priority to release its lease: once per term, and again after each lease
    /// duration.
    fn preempt(
        &mut self,
        view: &ElectionView,
        me: &CandidateView,
        timing: &Timing,
        now: BootInstant,
    ) -> Option<LeaderRequest> {
        let lease = preemption_target(view, me)?;
        let request = self.request.get(&view.key);
        if request.is_some_and(|(token, at)| *token == lease.token && now.since(*at) < timing.lease()) {
            return None;
        }
        self.request.insert(view.key.clone(), (lease.token, now));
        Some(LeaderRequest {
            election: view.key.clone(),
            slot: lease.slot,
            token: lease.token,
            kind: LeaderRequestKind::Preempt(me.session.id.clone()),
            requested_by: me.name.clone(),
        })
    }
}
