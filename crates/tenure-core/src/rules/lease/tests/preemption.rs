//! Calls that are lost, delayed or reordered. The simulator found most of these cases.

use super::*;

const IS_TAKE: fn(&StoreCommand) -> bool = |c| matches!(c, StoreCommand::Take(_));
const IS_READ: fn(&StoreCommand) -> bool = |c| matches!(c, StoreCommand::Observe(..));
const IS_RELEASE: fn(&StoreCommand) -> bool = |c| matches!(c, StoreCommand::Release(_));
const IS_LEAVE: fn(&StoreCommand) -> bool = |c| matches!(c, StoreCommand::Leave(..));
const IS_JOIN: fn(&StoreCommand) -> bool = |c| matches!(c, StoreCommand::Join(_));

/// One process whose take has not reached the store.
fn taking(options: CandidateOptions) -> (TestElections, Call) {
    let mut test = TestElections::of(1);
    (test.processes[0].link, test.notifications_enabled) = (Link::Held, false);
    test.feed(0, LeaseInput::Campaign(options));
    let join = test.delayed_call(0, IS_JOIN);
    test.deliver(0, &join);
    let observe = test.delayed_call(0, IS_READ);
    test.deliver(0, &observe);
    let take = test.delayed_call(0, IS_TAKE);
    (test, take)
}

/// A process that sees its own unconfirmed lease must not lead under it: a release of the lease may still be on its
/// way, and then two processes would lead.
#[test]
fn a_take_without_a_response_is_released_and_repeated() {
    let (mut test, take) = taking(options("a"));
    test.apply(&take.command);
    test.fail(0, &take);
    test.processes[0].link = Link::Up;
    test.run(LEASE);
    assert_eq!(test.leads(0), Some(Token::from_u64(2)));
}

#[test]
fn a_take_that_arrives_late_is_released_at_the_next_poll() {
    let (mut test, take) = taking(options("a"));
    test.fail(0, &take);
    let observe = test.delayed_call(0, IS_READ);
    test.deliver(0, &observe);
    test.apply(&take.command);
    test.processes[0].link = Link::Up;
    test.processes[0].calls.clear();
    test.run(Timing::default().poll() * 2);
    assert_eq!(test.leads(0), Some(Token::from_u64(2)));
}

#[test]
fn withdraw_during_take_releases() {
    let (mut test, take) = taking(options("a"));
    test.feed(0, LeaseInput::Withdraw(key()));
    test.deliver(0, &take);
    let release = test.delayed_call(0, IS_RELEASE);
    assert!(matches!(&release.command, StoreCommand::Release(r) if r.leave));
    test.deliver(0, &release);
    test.processes[0].link = Link::Up;
    test.settle();
    assert_eq!(test.event_count(0, |e| matches!(e, LeaseEvent::Elected { .. })), 0);
    assert_eq!(test.event_count(0, |e| matches!(e, LeaseEvent::Withdrawn(_))), 1);
    assert!(test.view().candidates.is_empty() && test.view().leases[0].holder.is_none());
}

#[test]
fn an_orphaned_lease_is_released() {
    let (mut test, take) = taking(options("a"));
    test.fail(0, &take);
    test.feed(0, LeaseInput::Withdraw(key()));
    test.apply(&take.command);
    test.processes[0].link = Link::Up;
    test.settle();
    assert!(test.view().leases[0].holder.is_some(), "there is no candidate, and the lease is held");
    test.run(LEASE * 3);
    assert!(test.view().leases[0].holder.is_none());
}

#[test]
fn an_outdated_read_does_not_revive_a_released_lease() {
    let mut test = TestElections::campaigning(1);
    test.processes[0].link = Link::Held;
    test.feed(0, LeaseInput::Notification(Notification::ElectionChanged(key())));
    let observe = test.delayed_call(0, IS_READ);
    let observation = test.apply(&observe.command);
    test.feed(0, LeaseInput::Resign(key()));
    let release = test.delayed_call(0, IS_RELEASE);
    test.deliver(0, &release);
    test.answer(0, &observe, observation);
    assert_eq!(test.leads(0), None);
}

/// A restarted campaign forgot its earlier commands and used an observation from before its restart.
#[test]
fn an_outdated_read_does_not_revive_a_lease_of_a_candidate_that_rejoined() {
    let mut test = TestElections::campaigning(1);
    test.processes[0].link = Link::Held;
    test.feed(0, LeaseInput::Notification(Notification::ElectionChanged(key())));
    let observe = test.delayed_call(0, IS_READ);
    let observation = test.apply(&observe.command);
    test.feed(0, LeaseInput::Withdraw(key()));
    test.feed(0, LeaseInput::Finished(key()));
    let release = test.delayed_call(0, IS_RELEASE);
    test.deliver(0, &release);
    let leave = test.delayed_call(0, IS_LEAVE);
    test.deliver(0, &leave);
    test.feed(0, LeaseInput::Campaign(options("a")));
    test.answer(0, &observe, observation);
    assert_eq!(test.leads(0), None);
}

/// A campaign that was still releasing was replaced by a new one, which adopted the lease while the release was on
/// its way. The store then granted it to another process, and both led.
#[test]
fn a_candidate_that_rejoins_while_releasing_does_not_keep_the_lease() {
    let mut test = TestElections::campaigning(1);
    test.feed(0, LeaseInput::Withdraw(key()));
    test.processes[0].link = Link::Held;
    test.feed(0, LeaseInput::Finished(key()));
    let release = test.delayed_call(0, IS_RELEASE);
    test.feed(0, LeaseInput::Campaign(options("a")));
    let calls: Vec<_> = test.processes[0].calls.drain(..).collect();
    calls.iter().for_each(|call| test.deliver(0, call));
    assert_eq!(test.leads(0), None);
    test.deliver(0, &release);
    test.processes[0].link = Link::Up;
    test.run(LEASE / 2);
    assert_eq!(test.leads(0), Some(Token::from_u64(2)));
}

/// A leading campaign was replaced by a new one and was elected a second time under its current token.
#[test]
fn a_leader_that_changes_its_priority_keeps_leading() {
    let mut test = TestElections::campaigning(2);
    test.feed(0, LeaseInput::Campaign(CandidateOptions { priority: 3, ..options("a") }));
    test.run(LEASE);
    assert_eq!(test.leads(0), Some(Token::from_u64(1)));
    assert_eq!(test.event_count(0, |e| matches!(e, LeaseEvent::Elected { .. })), 1);
    assert_eq!(test.view().candidate(&test.session(0)).unwrap().priority, 3);
}

/// The release of an orphaned lease was still on its way when its election was joined again and the lease adopted.
#[test]
fn a_lease_that_is_being_released_is_not_adopted() {
    let (mut test, take) = taking(options("a"));
    test.fail(0, &take);
    let observe = test.delayed_call(0, IS_READ);
    test.deliver(0, &observe);
    test.feed(0, LeaseInput::Withdraw(key()));
    test.apply(&take.command);
    let leave = test.delayed_call(0, IS_LEAVE);
    test.deliver(0, &leave);
    // A later read finds the orphaned lease.
    test.feed(0, LeaseInput::Notification(Notification::Resync));
    let observe = test.delayed_call(0, IS_READ);
    test.deliver(0, &observe);
    let release = test.delayed_call(0, IS_RELEASE);
    test.feed(0, LeaseInput::Campaign(options("a")));
    let join = test.delayed_call(0, IS_JOIN);
    test.deliver(0, &join);
    let observe = test.delayed_call(0, IS_READ);
    test.deliver(0, &observe);
    assert_eq!(test.leads(0), None);
    test.deliver(0, &release);
    test.processes[0].link = Link::Up;
    test.run(LEASE);
    assert_eq!(test.leads(0), Some(Token::from_u64(2)));
}

/// A late take granted a second slot. The leader treated it as its own and assumed an external edit, and one slot
/// stayed held forever without a leader.
#[test]
fn a_second_slot_that_arrives_late_is_released() {
    let (mut test, take) = taking(CandidateOptions { slots: 2, ..options("a") });
    let StoreCommand::Take(mut other) = take.command.clone() else { unreachable!() };
    test.deliver(0, &take);
    other.slot = 1 - other.slot;
    test.apply(&StoreCommand::Take(other));
    test.processes[0].link = Link::Up;
    test.run(LEASE * 3);
    assert_eq!(test.leads(0), Some(Token::from_u64(1)));
    assert_eq!(test.view().holders().count(), 1);
    assert_eq!(test.event_count(0, |e| matches!(e, LeaseEvent::Lost { .. })), 0);
}

/// The machine took the response to the release of an earlier term for the response to the current release.
#[test]
fn an_old_release_confirms_nothing() {
    let mut test = TestElections::campaigning(1);
    test.processes[0].link = Link::Held;
    test.feed(0, LeaseInput::Resign(key()));
    let old = test.delayed_call(0, IS_RELEASE);
    test.apply(&old.command);
    // Before the first response arrives, the session is expired, and a new session leads again and resigns.
    let session = test.session(0);
    test.elections
        .expire_session(&crate::port::ExpireSessionRequest { session, epoch: 0, heartbeat_count: None }, 0);
    test.processes[0].calls.clear();
    test.processes[0].link = Link::Up;
    test.run(LEASE);
    assert_eq!(test.leads(0), Some(Token::from_u64(2)));
    test.processes[0].link = Link::Held;
    test.feed(0, LeaseInput::Resign(key()));
    test.answer(0, &old, StoreResponse::Done(Ok(())));
    assert_eq!(test.event_count(0, |e| matches!(e, LeaseEvent::Released { .. })), 1);
}
