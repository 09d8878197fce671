use std::time::Duration;

use super::*;
use crate::Moment;

const STEP: Duration = Duration::from_millis(100);

fn rank(priority: i32, generation: u64) -> Rank {
    Rank { priority, generation, id: format!("{priority}-{generation}") }
}

fn sight(rivals: &[(Rank, Stance)]) -> SoftSight {
    let rivals =
        rivals.iter().map(|(rank, stance)| (rank.id.clone(), Rival { rank: rank.clone(), stance: *stance }));
    SoftSight { rivals: rivals.collect(), ..SoftSight::default() }
}

/// Looks again and again at the same, for so long.
fn watch(candidate: &mut SoftCandidate, now: &mut Moment, time: Duration, sight: &SoftSight) -> Stance {
    let end = *now + time;
    loop {
        let stance = candidate.observe(*now, sight.clone());
        if *now >= end {
            return stance;
        }
        *now = *now + STEP;
    }
}

fn ready_behind(leader: &Rank) -> (SoftCandidate, Moment) {
    let mut now = Moment::ZERO;
    let mut candidate = SoftCandidate::new(rank(0, 9), Pace::default(), now);
    let pace = Pace::default();
    let led = sight(&[(leader.clone(), Stance::Leading)]);
    assert_eq!(watch(&mut candidate, &mut now, pace.hold_down() + pace.settle(), &led), Stance::Ready);
    (candidate, now)
}

#[test]
fn a_newcomer_that_hears_of_a_better_leader_never_leads() {
    let (mut candidate, mut now) = ready_behind(&rank(0, 1));
    let led = sight(&[(rank(0, 1), Stance::Leading)]);
    assert_eq!(watch(&mut candidate, &mut now, Duration::from_secs(60), &led), Stance::Ready);
    assert_eq!(candidate.wake(), None);
}

#[test]
fn a_leader_that_goes_silent_is_followed_after_a_hold_down() {
    let (mut candidate, mut now) = ready_behind(&rank(0, 1));
    let pace = Pace::default();
    let gone = SoftSight::default();
    assert_eq!(watch(&mut candidate, &mut now, pace.hold_down() - STEP, &gone), Stance::Standing);
    assert_eq!(watch(&mut candidate, &mut now, pace.settle() + STEP, &gone), Stance::Leading);
}

#[test]
fn a_leader_that_says_goodbye_is_followed_at_once() {
    let (mut candidate, now) = ready_behind(&rank(0, 1));
    let parted = SoftSight { parted: [rank(0, 1).id].into(), ..SoftSight::default() };
    assert_eq!(candidate.observe(now, parted), Stance::Leading);
}

#[test]
fn a_leader_gives_way_to_a_better_one_that_is_ready_and_not_before() {
    let mut now = Moment::ZERO;
    let mut leader = SoftCandidate::new(rank(0, 1), Pace::default(), now);
    let alone = SoftSight::default();
    assert_eq!(watch(&mut leader, &mut now, Duration::from_secs(3), &alone), Stance::Leading);
    let coming = sight(&[(rank(5, 2), Stance::Standing)]);
    assert_eq!(watch(&mut leader, &mut now, Duration::from_secs(3), &coming), Stance::Leading);
    assert_eq!(leader.observe(now, sight(&[(rank(5, 2), Stance::Ready)])), Stance::Ready);
}

#[test]
fn a_better_one_waits_until_the_leader_has_stopped() {
    let mut now = Moment::ZERO;
    let pace = Pace::default();
    let mut better = SoftCandidate::new(rank(5, 2), pace, now);
    let led = sight(&[(rank(0, 1), Stance::Leading)]);
    let almost = pace.hold_down() + pace.settle() + STEP;
    assert_eq!(watch(&mut better, &mut now, almost, &led), Stance::Ready);
    assert_eq!(better.observe(now, sight(&[(rank(0, 1), Stance::Ready)])), Stance::Leading);
}

#[test]
fn a_worse_leader_that_does_not_hear_us_is_waited_for_a_hold_down_and_no_longer() {
    let mut now = Moment::ZERO;
    let pace = Pace::default();
    let mut better = SoftCandidate::new(rank(5, 2), pace, now);
    let led = sight(&[(rank(0, 1), Stance::Leading)]);
    assert_eq!(watch(&mut better, &mut now, pace.hold_down() * 2 + STEP, &led), Stance::Leading);
}

#[test]
fn two_leaders_that_meet_are_one_at_once() {
    let mut now = Moment::ZERO;
    let alone = SoftSight::default();
    let mut a = SoftCandidate::new(rank(0, 1), Pace::default(), now);
    let mut b = SoftCandidate::new(rank(0, 2), Pace::default(), now);
    let mut also = now;
    assert_eq!(watch(&mut a, &mut now, Duration::from_secs(3), &alone), Stance::Leading);
    assert_eq!(watch(&mut b, &mut also, Duration::from_secs(3), &alone), Stance::Leading);
    assert_eq!(b.observe(now, sight(&[(rank(0, 1), Stance::Leading)])), Stance::Ready);
    assert_eq!(a.observe(now, sight(&[(rank(0, 2), Stance::Leading)])), Stance::Leading);
}

#[test]
fn a_leader_that_was_stopped_believes_nothing_when_it_goes_on() {
    let mut now = Moment::ZERO;
    let pace = Pace::default();
    let mut leader = SoftCandidate::new(rank(0, 1), pace, now);
    assert_eq!(watch(&mut leader, &mut now, Duration::from_secs(3), &SoftSight::default()), Stance::Leading);
    let until = leader.trusted_until().unwrap();
    assert!(until < now + pace.patience() + pace.hold_down());
    assert_eq!(leader.observe(until + STEP, SoftSight::default()), Stance::Standing);
    assert_eq!(leader.trusted_until(), None);
}

#[test]
fn a_link_that_flaps_faster_than_the_hold_down_makes_no_leader() {
    let (mut candidate, mut now) = ready_behind(&rank(0, 1));
    let led = sight(&[(rank(0, 1), Stance::Leading)]);
    for _ in 0..20 {
        assert_ne!(
            watch(&mut candidate, &mut now, Duration::from_secs(1), &SoftSight::default()),
            Stance::Leading
        );
        assert_ne!(watch(&mut candidate, &mut now, Duration::from_secs(1), &led), Stance::Leading);
    }
}

#[test]
fn who_slept_does_not_think_the_others_dead() {
    let patience = Duration::from_secs(2);
    let mut pulses = Pulses::new(patience);
    pulses.observe(Moment::ZERO, [("a", 1), ("ghost", 5)]);
    assert!(!pulses.observe(Moment::ZERO + STEP, [("a", 2), ("ghost", 5)]));
    let late = Moment::ZERO + Duration::from_secs(3600);
    assert!(pulses.observe(late, [("a", 2), ("ghost", 5)]));
    assert!(pulses.is_live("a") && !pulses.is_live("ghost"));
    pulses.observe(late + patience, [("a", 2), ("ghost", 5)]);
    assert!(!pulses.is_live("a"));
}

#[test]
fn who_is_forgotten_begins_anew() {
    let mut pulses = Pulses::new(Duration::from_secs(2));
    pulses.observe(Moment::ZERO, [("a", 1)]);
    pulses.observe(Moment::ZERO + STEP, [("a", 2)]);
    pulses.observe(Moment::ZERO + STEP * 2, []);
    assert!(!pulses.is_live("a") && pulses.moved("a").is_none());
    pulses.observe(Moment::ZERO + STEP * 3, [("a", 2)]);
    assert!(!pulses.is_live("a"));
}
