//! Succession of leaders.

use super::*;
use crate::port::StartReason;

#[test]
fn a_higher_priority_preempts_by_request() {
    let mut test = TestElections::of(2);
    test.feed(0, LeaseInput::Campaign(options("a")));
    test.settle();
    test.feed(1, LeaseInput::Campaign(CandidateOptions { priority: 5, ..options("b") }));
    test.settle();
    assert_eq!(test.leaders(), [1]);
    assert_eq!(
        test.event_count(0, |e| matches!(
            e,
            LeaseEvent::Requested { kind: LeaderRequestKind::Preempt(_), .. }
        )),
        1
    );
    assert_eq!(test.view().leases[0].start_reason, StartReason::Preempt);
}

#[test]
fn a_lower_name_never_replaces_an_equal_leader() {
    let mut test = TestElections::of(2);
    test.feed(0, LeaseInput::Campaign(options("b")));
    test.settle();
    test.feed(1, LeaseInput::Campaign(options("a")));
    test.run(LEASE * 3);
    assert_eq!(test.leaders(), [0]);
}

#[test]
fn transfer_is_not_undone_by_priority() {
    let mut test = TestElections::of(2);
    test.feed(0, LeaseInput::Campaign(CandidateOptions { priority: 5, ..options("a") }));
    test.feed(1, LeaseInput::Campaign(options("b")));
    test.settle();
    assert_eq!(test.leaders(), [0]);
    let to = test.session(1);
    test.ask(LeaderRequestKind::Transfer(to));
    test.run(LEASE * 5);
    assert_eq!(test.leaders(), [1]);
}

#[test]
fn resign_lets_another_lead() {
    let mut test = TestElections::campaigning(2);
    assert_eq!(test.leaders(), [0]);
    test.feed(0, LeaseInput::Resign(key()));
    test.run(BEAT / 2);
    assert_eq!(test.leaders(), [1]);
}

#[test]
fn a_lone_candidate_that_resigns_leads_again_under_a_greater_token() {
    let mut test = TestElections::campaigning(1);
    test.feed(0, LeaseInput::Resign(key()));
    test.run(LEASE / 2);
    assert_eq!(test.leads(0), Some(Token::from_u64(2)));
}

#[test]
fn pause_stops_and_resume_restarts() {
    let mut test = TestElections::campaigning(2);
    test.pause(true);
    test.run(LEASE * 2);
    assert!(test.leaders().is_empty());
    test.pause(false);
    test.run(LEASE / 5);
    assert_eq!(test.leaders().len(), 1);
}

#[test]
fn observers_never_lead() {
    let mut test = TestElections::of(1);
    test.feed(0, LeaseInput::Campaign(CandidateOptions { observer: true, ..options("a") }));
    test.run(LEASE * 3);
    assert!(test.leaders().is_empty());
}

#[test]
fn incapable_candidates_never_lead() {
    let mut test = TestElections::of(2);
    let requires = vec!["disk".to_owned()];
    test.feed(
        0,
        LeaseInput::Campaign(CandidateOptions {
            required_capabilities: requires.clone(),
            priority: 9,
            ..options("a")
        }),
    );
    test.run(LEASE);
    assert!(test.leaders().is_empty());
    test.feed(
        1,
        LeaseInput::Campaign(CandidateOptions {
            capabilities: requires.clone(),
            required_capabilities: requires,
            ..options("b")
        }),
    );
    test.run(LEASE);
    assert_eq!(test.leaders(), [1]);
}

#[test]
fn three_slots_have_three_holders() {
    let mut test = TestElections::of(4);
    for n in 0..4 {
        test.feed(n, LeaseInput::Campaign(CandidateOptions { slots: 3, ..options(["a", "b", "c", "d"][n]) }));
    }
    test.run(LEASE);
    assert_eq!(test.leaders().len(), 3);
    let holders: Vec<_> = test.view().holders().map(|(_, h)| h.id.clone()).collect();
    let distinct: std::collections::BTreeSet<_> = holders.iter().collect();
    assert_eq!((holders.len(), distinct.len()), (3, 3));
}

#[test]
fn a_dead_best_candidate_costs_rank_steps_not_a_lease() {
    let mut test = TestElections::campaigning(3);
    assert_eq!(test.leaders(), [0]);
    test.run(BEAT);
    // `b` ranks next and dies, but the store still shows it as live. Then `a` resigns.
    test.processes[1].link = Link::Dead;
    test.feed(0, LeaseInput::Resign(key()));
    test.run(Timing::default().rank_step() * 3);
    assert_eq!(test.leaders(), [2]);
}

#[test]
fn a_graceful_shutdown_hands_over_at_once() {
    let mut test = TestElections::campaigning(2);
    test.feed(0, LeaseInput::Stop);
    test.settle();
    assert_eq!(test.leaders(), [1]);
    assert_eq!(test.event_count(0, |e| matches!(e, LeaseEvent::Stopped)), 1);
}

#[test]
fn a_lease_is_released_only_after_the_work_has_ended() {
    let mut test = TestElections::campaigning(2);
    test.processes[0].finishes_at_once = false;
    test.feed(0, LeaseInput::Resign(key()));
    test.run(BEAT * 2);
    assert_eq!(test.leaders(), [0]);
    test.feed(0, LeaseInput::Finished(key()));
    test.run(BEAT / 2);
    assert_eq!(test.leaders(), [1]);
}
