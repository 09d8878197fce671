//! Joining, leaving and rejoining an election.

use super::*;
use crate::port::JoinElectionResponse;

/// A leave arrived after the join that followed it and removed the candidate. The process did not notice and never led
/// again.
#[test]
fn a_candidate_removed_by_a_late_leave_rejoins() {
    let mut test = TestElections::campaigning(2);
    let session = test.session(1);
    test.apply(&StoreCommand::Leave(session.clone(), key()));
    test.run(LEASE);
    assert!(test.view().candidate(&session).is_some());
}

#[test]
fn a_leader_removed_by_a_late_leave_rejoins_and_keeps_leading() {
    let mut test = TestElections::campaigning(1);
    let session = test.session(0);
    test.apply(&StoreCommand::Leave(session.clone(), key()));
    test.run(LEASE * 3);
    assert!(test.view().candidate(&session).is_some());
    assert_eq!(test.leads(0), Some(Token::from_u64(1)));
}

/// Two joins were reordered, and the store kept the outdated priority.
#[test]
fn an_earlier_join_that_arrives_last_is_corrected() {
    let mut test = TestElections::campaigning(2);
    let old = test.view().candidate(&test.session(1)).unwrap().priority;
    test.processes[1].link = Link::Held;
    test.feed(1, LeaseInput::Campaign(options("b")));
    let first = test.delayed_call(1, |c| matches!(c, StoreCommand::Join(_)));
    test.feed(1, LeaseInput::Campaign(CandidateOptions { priority: old + 5, ..options("b") }));
    let second = test.delayed_call(1, |c| matches!(c, StoreCommand::Join(_)));
    test.deliver(1, &second);
    test.deliver(1, &first);
    test.processes[1].link = Link::Up;
    test.run(LEASE);
    assert_eq!(test.leaders(), [1]);
}

/// A join that failed while the work of the old term was still ending was never repeated.
#[test]
fn a_join_that_fails_while_the_work_ends_is_repeated() {
    let mut test = TestElections::campaigning(1);
    test.processes[0].finishes_at_once = false;
    let session = test.session(0);
    test.elections
        .expire_session(&crate::port::ExpireSessionRequest { session, epoch: 0, heartbeat_count: None }, 0);
    test.processes[0].link = Link::Held;
    test.run(BEAT * 2);
    let beat = test.delayed_call(0, |c| matches!(c, StoreCommand::Heartbeat(_)));
    test.deliver(0, &beat);
    let open = test.delayed_call(0, |c| matches!(c, StoreCommand::Open(_)));
    test.deliver(0, &open);
    let join = test.delayed_call(0, |c| matches!(c, StoreCommand::Join(_)));
    test.fail(0, &join);
    test.processes[0].calls.clear();
    test.run(BEAT);
    test.processes[0].link = Link::Up;
    test.feed(0, LeaseInput::Finished(key()));
    test.run(LEASE);
    assert!(test.leads(0).is_some());
}

#[test]
fn another_number_of_slots_is_rejected() {
    let mut test = TestElections::of(2);
    test.feed(0, LeaseInput::Campaign(options("a")));
    test.settle();
    test.feed(1, LeaseInput::Campaign(CandidateOptions { slots: 2, ..options("b") }));
    test.settle();
    assert!(test.processes[1].events.contains(&LeaseEvent::Rejected { election: key(), slots: 1 }));
    assert_eq!(test.leaders(), [0]);
}

#[test]
fn a_withdrawal_before_the_session_is_open_completes_at_once() {
    let mut test = TestElections::of(1);
    test.processes[0].link = Link::Held;
    test.feed(0, LeaseInput::Notification(Notification::ConnectionLost(test.session(0))));
    test.feed(0, LeaseInput::Campaign(options("a")));
    test.feed(0, LeaseInput::Withdraw(key()));
    assert_eq!(test.event_count(0, |e| matches!(e, LeaseEvent::Withdrawn(_))), 1);
}

#[test]
fn a_join_that_overtakes_its_leave_is_undone() {
    let mut test = TestElections::of(1);
    test.processes[0].link = Link::Held;
    test.feed(0, LeaseInput::Campaign(options("a")));
    let join = test.delayed_call(0, |c| matches!(c, StoreCommand::Join(_)));
    test.feed(0, LeaseInput::Withdraw(key()));
    let leave = test.delayed_call(0, |c| matches!(c, StoreCommand::Leave(..)));
    test.deliver(0, &leave);
    assert_eq!(test.apply(&join.command), StoreResponse::Joined(Ok(JoinElectionResponse::Joined)));
    test.processes[0].link = Link::Up;
    test.run(LEASE * 3);
    assert!(test.view().candidates.is_empty());
}

#[test]
fn rejoining_at_once_ends_as_a_candidate() {
    let mut test = TestElections::campaigning(2);
    for _ in 0..3 {
        test.feed(0, LeaseInput::Withdraw(key()));
        test.feed(0, LeaseInput::Campaign(options("a")));
        test.feed(0, LeaseInput::Finished(key()));
        test.run(BEAT);
    }
    assert_eq!(test.view().candidates.len(), 2);
    assert_eq!(test.leaders().len(), 1);
}

#[test]
fn idle_followers_only_poll() {
    let mut test = TestElections::campaigning(3);
    test.run(LEASE);
    let before = test.processes[2].events.len();
    test.run(LEASE);
    assert_eq!(test.processes[2].events.len(), before, "without a change there is no event");
}

/// A read of ten thousand elections took longer than the request timeout, so it never succeeded.
#[test]
fn many_elections_are_read_in_parts_and_none_is_left_out() {
    let mut test = TestElections::of(1);
    let name =
        |n: usize| ElectionKey::new(crate::Name::default_namespace(), format!("e{n}").parse().unwrap());
    for n in 0..1_200 {
        test.feed(0, LeaseInput::Campaign(CandidateOptions::new(name(n), "a")));
        test.settle();
    }
    let session = test.session(0);
    assert!((0..1_200).all(|n| test.processes[0].machine.leads(&name(n), test.now).is_some()));

    let mut observation = std::collections::BTreeSet::new();
    for _ in 0..200 {
        test.now = test.now + BEAT / 2;
        test.feed(0, LeaseInput::Tick);
        for call in test.processes[0].calls.clone() {
            if let StoreCommand::Observe(_, scope) = &call.command {
                let elections = test.elections.observe(&session, scope).elections;
                assert!(elections.len() <= 500, "{} in one read", elections.len());
                observation.extend(elections.into_iter().map(|view| view.key));
            }
        }
        test.settle();
    }
    assert_eq!(observation.len(), 1_200);
}
