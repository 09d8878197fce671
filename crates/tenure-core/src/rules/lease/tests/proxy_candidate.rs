//! Decisions for candidates that campaign through a server.

use std::time::Duration;

use crate::model::elections::Elections;
use crate::port::{Candidacy, ElectionView, LeaderRequestKind, ObserveScope, OpenSessionRequest};
use crate::rules::lease::{CandidateDecision, Ineligibility, ProxyCandidate};
use crate::{BootInstant, ElectionKey, Name, SessionId, SplitMix, Token};

const LEASE: Duration = Duration::from_secs(10);

struct ProxyTest {
    elections: Elections,
    proxy: ProxyCandidate,
    entropy: SplitMix,
    now: BootInstant,
    key: ElectionKey,
}

impl ProxyTest {
    fn new() -> ProxyTest {
        let key = ElectionKey::new(Name::default_namespace(), "nightly".parse().unwrap());
        let (elections, proxy) = (Elections::default(), ProxyCandidate::default());
        ProxyTest { elections, proxy, entropy: SplitMix::new(7), now: BootInstant::ZERO, key }
    }

    fn candidate(&mut self, id: &str, priority: i32) -> SessionId {
        let session = SessionId::generate(&mut self.entropy);
        let new = OpenSessionRequest {
            id: session.clone(),
            name: id.into(),
            lease: LEASE,
            takeover: Default::default(),
            owner: Some("alice".into()),
        };
        self.elections.open_session(&new, 0);
        let candidacy = Candidacy::new(session.clone(), self.key.clone());
        self.elections.join_election(&Candidacy { name: id.into(), priority, ..candidacy }, 0);
        session
    }

    fn observe(&mut self) -> ElectionView {
        let observation = self.elections.observe(&SessionId::from_stored("unknown"), &ObserveScope::All);
        self.proxy.observe_all(&observation, self.now, true);
        observation.elections.into_iter().next().unwrap()
    }

    fn decision(&mut self, session: &SessionId) -> CandidateDecision {
        let view = self.observe();
        self.proxy.decide(&view, session, self.now, &mut self.entropy)
    }

    fn take(&mut self, session: &SessionId) -> Option<Token> {
        match self.decision(session) {
            CandidateDecision::Take(take) => self.elections.take_lease(&take, 0),
            decision => panic!("expected a take, got {decision:?}"),
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
    }
}

#[test]
fn a_free_lease_goes_to_the_best_candidate_and_later_to_the_next() {
    let mut test = ProxyTest::new();
    let (first, second) = (test.candidate("a", 10), test.candidate("b", 0));
    let CandidateDecision::Wait { until: Some(at), .. } = test.decision(&second) else {
        panic!("the better candidate goes first")
    };
    assert!(matches!(test.decision(&first), CandidateDecision::Take(_)));
    // A better-ranked candidate that never sends a request delays the take by only a fraction of a second.
    test.now = at;
    assert!(test.take(&second).is_some());
    assert!(matches!(test.decision(&second), CandidateDecision::Holds { slot: 0, .. }));
}

#[test]
fn a_holder_is_replaced_only_after_it_was_silent_for_its_lease() {
    let mut test = ProxyTest::new();
    let (holder, next) = (test.candidate("a", 0), test.candidate("b", 0));
    let token = test.take(&holder).unwrap();
    test.pass(LEASE * 3);
    // A new instance has not observed the heartbeat before, so it must wait, however long the session has been silent.
    test.proxy = ProxyCandidate::default();
    let CandidateDecision::Wait { until: Some(at), ask: None } = test.decision(&next) else {
        panic!("it was not observed yet")
    };
    assert!(at >= test.now + LEASE);
    test.pass(LEASE);
    test.elections.heartbeat(&holder, 0);
    assert!(
        matches!(test.decision(&next), CandidateDecision::Wait { .. }),
        "a heartbeat restarts the waiting time"
    );
    test.pass(LEASE + LEASE / 10);
    assert!(test.take(&next).unwrap() > token);
}

#[test]
fn a_heartbeat_between_observation_and_take_keeps_the_lease() {
    let mut test = ProxyTest::new();
    let (holder, next) = (test.candidate("a", 0), test.candidate("b", 0));
    test.take(&holder).unwrap();
    test.observe();
    test.pass(LEASE * 2);
    let CandidateDecision::Take(take) = test.decision(&next) else { panic!("it was silent for two leases") };
    test.elections.heartbeat(&holder, 0);
    assert_eq!(test.elections.take_lease(&take, 0), None);
}

#[test]
fn a_session_reported_dead_is_not_waited_for() {
    let mut test = ProxyTest::new();
    let (holder, next) = (test.candidate("a", 0), test.candidate("b", 0));
    test.take(&holder).unwrap();
    test.observe();
    test.proxy.died(holder);
    assert!(test.take(&next).is_some());
}

#[test]
fn a_higher_priority_preempts_once_per_term() {
    let mut test = ProxyTest::new();
    let holder = test.candidate("a", 0);
    let token = test.take(&holder).unwrap();
    let better = test.candidate("b", 10);
    let CandidateDecision::Wait { ask: Some(ask), .. } = test.decision(&better) else {
        panic!("it may send a request")
    };
    assert_eq!((ask.token, ask.kind), (token, LeaderRequestKind::Preempt(better.clone())));
    assert!(matches!(test.decision(&better), CandidateDecision::Wait { ask: None, .. }));
    test.pass(LEASE);
    assert!(matches!(test.decision(&better), CandidateDecision::Wait { ask: Some(_), .. }));
}

#[test]
fn after_a_promotion_nothing_is_taken_for_a_lease() {
    let mut test = ProxyTest::new();
    let next = test.candidate("a", 0);
    test.observe();
    test.elections.promote();
    let CandidateDecision::Wait { until: Some(at), .. } = test.decision(&next) else {
        panic!("the last grant may be lost")
    };
    test.now = at;
    assert!(test.take(&next).is_some());
}

#[test]
fn an_ineligible_candidate_gets_the_reason() {
    let mut test = ProxyTest::new();
    let candidate = test.candidate("a", 0);
    assert_eq!(
        test.decision(&SessionId::from_stored("unknown")),
        CandidateDecision::Ineligible(Ineligibility::NotCandidate)
    );
    let observer = Candidacy { observer: true, ..Candidacy::new(candidate.clone(), test.key.clone()) };
    test.elections.join_election(&observer, 0);
    assert_eq!(test.decision(&candidate), CandidateDecision::Ineligible(Ineligibility::Observer));
    let incapable = Candidacy {
        required_capabilities: vec!["gpu".into()],
        ..Candidacy::new(candidate.clone(), test.key.clone())
    };
    test.elections.join_election(&incapable, 0);
    assert_eq!(test.decision(&candidate), CandidateDecision::Ineligible(Ineligibility::NotCapable));
}
