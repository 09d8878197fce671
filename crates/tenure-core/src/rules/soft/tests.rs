use std::time::Duration;

use super::*;
use crate::BootInstant;

const STEP: Duration = Duration::from_millis(100);

fn rank(priority: i32, generation: u64) -> Rank {
    Rank { priority, generation, id: format!("{priority}-{generation}") }
}

fn observation(rivals: &[(Rank, SoftCandidateState)]) -> SoftObservation {
    let rivals =
        rivals.iter().map(|(rank, state)| (rank.id.clone(), Rival { rank: rank.clone(), state: *state }));
    SoftObservation { rivals: rivals.collect(), ..SoftObservation::default() }
}

/// Repeats the same observation for a while.
fn observe_for(
    candidate: &mut SoftCandidate,
    now: &mut BootInstant,
    time: Duration,
    observation: &SoftObservation,
) -> SoftCandidateState {
    let end = *now + time;
    loop {
        let state = candidate.observe(*now, observation.clone());
        if *now >= end {
            return state;
        }
        *now = *now + STEP;
    }
}

fn ready_behind(leader: &Rank) -> (SoftCandidate, BootInstant) {
    let mut now = BootInstant::ZERO;
    let mut candidate = SoftCandidate::new(rank(0, 9), GossipTiming::default(), now);
    let timing = GossipTiming::default();
    let with_leader = observation(&[(leader.clone(), SoftCandidateState::Leading)]);
    assert_eq!(
        observe_for(&mut candidate, &mut now, timing.hold_down() + timing.settle(), &with_leader),
        SoftCandidateState::Ready
    );
    (candidate, now)
}

#[test]
fn a_new_candidate_that_knows_a_better_leader_never_leads() {
    let (mut candidate, mut now) = ready_behind(&rank(0, 1));
    let with_leader = observation(&[(rank(0, 1), SoftCandidateState::Leading)]);
    assert_eq!(
        observe_for(&mut candidate, &mut now, Duration::from_secs(60), &with_leader),
        SoftCandidateState::Ready
    );
    assert_eq!(candidate.wake(), None);
}

#[test]
fn a_silent_leader_is_succeeded_after_a_hold_down() {
    let (mut candidate, mut now) = ready_behind(&rank(0, 1));
    let timing = GossipTiming::default();
    let silence = SoftObservation::default();
    assert_eq!(
        observe_for(&mut candidate, &mut now, timing.hold_down() - STEP, &silence),
        SoftCandidateState::Candidate
    );
    assert_eq!(
        observe_for(&mut candidate, &mut now, timing.settle() + STEP, &silence),
        SoftCandidateState::Leading
    );
}

#[test]
fn a_leaving_leader_is_succeeded_at_once() {
    let (mut candidate, now) = ready_behind(&rank(0, 1));
    let departure = SoftObservation { departed: [rank(0, 1).id].into(), ..SoftObservation::default() };
    assert_eq!(candidate.observe(now, departure), SoftCandidateState::Leading);
}

#[test]
fn a_leader_yields_only_to_a_better_ready_candidate() {
    let mut now = BootInstant::ZERO;
    let mut leader = SoftCandidate::new(rank(0, 1), GossipTiming::default(), now);
    let alone = SoftObservation::default();
    assert_eq!(
        observe_for(&mut leader, &mut now, Duration::from_secs(3), &alone),
        SoftCandidateState::Leading
    );
    let newcomer = observation(&[(rank(5, 2), SoftCandidateState::Candidate)]);
    assert_eq!(
        observe_for(&mut leader, &mut now, Duration::from_secs(3), &newcomer),
        SoftCandidateState::Leading
    );
    assert_eq!(
        leader.observe(now, observation(&[(rank(5, 2), SoftCandidateState::Ready)])),
        SoftCandidateState::Ready
    );
}

#[test]
fn a_better_candidate_waits_until_the_leader_has_stopped() {
    let mut now = BootInstant::ZERO;
    let timing = GossipTiming::default();
    let mut better = SoftCandidate::new(rank(5, 2), timing, now);
    let with_leader = observation(&[(rank(0, 1), SoftCandidateState::Leading)]);
    let before_takeover = timing.hold_down() + timing.settle() + STEP;
    assert_eq!(observe_for(&mut better, &mut now, before_takeover, &with_leader), SoftCandidateState::Ready);
    assert_eq!(
        better.observe(now, observation(&[(rank(0, 1), SoftCandidateState::Ready)])),
        SoftCandidateState::Leading
    );
}

#[test]
fn an_unreachable_lower_ranked_leader_is_waited_for_until_its_trust_ends() {
    let mut now = BootInstant::ZERO;
    let timing = GossipTiming::default();
    let mut better = SoftCandidate::new(rank(5, 2), timing, now);
    let with_leader = observation(&[(rank(0, 1), SoftCandidateState::Leading)]);
    let wait = timing.hold_down() * 2 + timing.settle() + timing.silence_limit();
    assert_eq!(observe_for(&mut better, &mut now, wait - STEP, &with_leader), SoftCandidateState::Ready);
    assert_eq!(observe_for(&mut better, &mut now, STEP * 2, &with_leader), SoftCandidateState::Leading);
}

#[test]
fn two_leaders_that_meet_become_one_at_once() {
    let mut now = BootInstant::ZERO;
    let alone = SoftObservation::default();
    let mut a = SoftCandidate::new(rank(0, 1), GossipTiming::default(), now);
    let mut b = SoftCandidate::new(rank(0, 2), GossipTiming::default(), now);
    let mut now_of_b = now;
    assert_eq!(observe_for(&mut a, &mut now, Duration::from_secs(3), &alone), SoftCandidateState::Leading);
    assert_eq!(
        observe_for(&mut b, &mut now_of_b, Duration::from_secs(3), &alone),
        SoftCandidateState::Leading
    );
    assert_eq!(
        b.observe(now, observation(&[(rank(0, 1), SoftCandidateState::Leading)])),
        SoftCandidateState::Ready
    );
    assert_eq!(
        a.observe(now, observation(&[(rank(0, 2), SoftCandidateState::Leading)])),
        SoftCandidateState::Leading
    );
}

#[test]
fn a_suspended_leader_has_no_trust_when_it_resumes() {
    let mut now = BootInstant::ZERO;
    let timing = GossipTiming::default();
    let mut leader = SoftCandidate::new(rank(0, 1), timing, now);
    assert_eq!(
        observe_for(&mut leader, &mut now, Duration::from_secs(3), &SoftObservation::default()),
        SoftCandidateState::Leading
    );
    let until = leader.trusted_until().unwrap();
    assert!(until < now + timing.silence_limit() + timing.hold_down());
    assert_eq!(leader.observe(until + STEP, SoftObservation::default()), SoftCandidateState::Candidate);
    assert_eq!(leader.trusted_until(), None);
}

#[test]
fn a_link_that_flaps_faster_than_the_hold_down_makes_no_leader() {
    let (mut candidate, mut now) = ready_behind(&rank(0, 1));
    let with_leader = observation(&[(rank(0, 1), SoftCandidateState::Leading)]);
    for _ in 0..20 {
        assert_ne!(
            observe_for(&mut candidate, &mut now, Duration::from_secs(1), &SoftObservation::default()),
            SoftCandidateState::Leading
        );
        assert_ne!(
            observe_for(&mut candidate, &mut now, Duration::from_secs(1), &with_leader),
            SoftCandidateState::Leading
        );
    }
}

#[test]
fn a_suspended_process_does_not_count_others_as_dead() {
    let silence_limit = Duration::from_secs(2);
    let mut tracker = GossipHeartbeatTracker::new(silence_limit);
    tracker.observe(BootInstant::ZERO, [("a", 1), ("ghost", 5)]);
    assert!(!tracker.observe(BootInstant::ZERO + STEP, [("a", 2), ("ghost", 5)]));
    let late = BootInstant::ZERO + Duration::from_secs(3600);
    assert!(tracker.observe(late, [("a", 2), ("ghost", 5)]));
    assert!(tracker.is_live("a") && !tracker.is_live("ghost"));
    tracker.observe(late + silence_limit, [("a", 2), ("ghost", 5)]);
    assert!(!tracker.is_live("a"));
}

#[test]
fn a_removed_member_starts_from_the_beginning() {
    let mut tracker = GossipHeartbeatTracker::new(Duration::from_secs(2));
    tracker.observe(BootInstant::ZERO, [("a", 1)]);
    tracker.observe(BootInstant::ZERO + STEP, [("a", 2)]);
    tracker.observe(BootInstant::ZERO + STEP * 2, []);
    assert!(!tracker.is_live("a") && tracker.advanced_at("a").is_none());
    tracker.observe(BootInstant::ZERO + STEP * 3, [("a", 2)]);
    assert!(!tracker.is_live("a"));
}
