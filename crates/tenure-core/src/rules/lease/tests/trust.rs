//! The rule of trust.

use super::super::LossReason;
use super::*;

#[test]
fn the_first_candidate_leads_at_once() {
    let mut test = TestElections::of(1);
    test.feed(0, LeaseInput::Campaign(options("a")));
    test.settle();
    assert_eq!(test.leads(0), Some(Token::ZERO.next(0)));
}

#[test]
fn a_slow_heartbeat_does_not_extend_trust() {
    let mut test = TestElections::campaigning(1);
    test.run(BEAT);
    test.processes[0].link = Link::Held;
    test.run(BEAT);
    let beat = test.delayed_call(0, |c| matches!(c, StoreCommand::Heartbeat(_)));
    test.now = beat.sent_at + LEASE / 2;
    test.deliver(0, &beat);
    assert_eq!(test.processes[0].machine.trusted_until(), beat.sent_at + LEASE * 2 / 3);
}

#[test]
fn an_error_never_extends_trust() {
    let mut test = TestElections::campaigning(1);
    let before = test.processes[0].machine.trusted_until();
    test.processes[0].link = Link::Down;
    test.run(LEASE / 2);
    assert_eq!(test.processes[0].machine.trusted_until(), before);
    assert!(test.leads(0).is_some());
    test.run(LEASE);
    assert_eq!(test.leads(0), None);
}

#[test]
fn trust_expires_by_itself() {
    let mut test = TestElections::campaigning(1);
    // The process is suspended: it gets no tick, no response and no event.
    test.now = test.processes[0].machine.trusted_until();
    assert_eq!(test.leads(0), None);
    assert_eq!(test.event_count(0, |e| matches!(e, LeaseEvent::Lost { .. })), 0);
}

#[test]
fn a_late_grant_without_trust_is_released() {
    let mut test = TestElections::of(1);
    (test.processes[0].link, test.notifications_enabled) = (Link::Held, false);
    test.feed(0, LeaseInput::Campaign(options("a")));
    let join = test.delayed_call(0, |c| matches!(c, StoreCommand::Join(_)));
    test.deliver(0, &join);
    let observe = test.delayed_call(0, |c| matches!(c, StoreCommand::Observe(..)));
    test.deliver(0, &observe);
    let take = test.delayed_call(0, |c| matches!(c, StoreCommand::Take(_)));
    let granted = test.apply(&take.command);
    test.now = test.processes[0].machine.trusted_until();
    test.answer(0, &take, granted);
    assert_eq!(test.event_count(0, |e| matches!(e, LeaseEvent::Elected { .. })), 0);
    assert!(
        matches!(test.delayed_call(0, |c| matches!(c, StoreCommand::Release(_))).command, StoreCommand::Release(r) if r.token == Token::ZERO.next(0))
    );
}

#[test]
fn a_silent_leader_is_taken_over_after_its_lease_and_not_before() {
    let mut test = TestElections::campaigning(2);
    test.run(BEAT * 3);
    test.processes[0].link = Link::Dead;
    test.run(LEASE - BEAT);
    assert_eq!(test.leads(1), None);
    test.run(LEASE / 2);
    assert_eq!(test.leads(1), Some(Token::from_u64(2)));
}

#[test]
fn a_reported_death_needs_no_wait() {
    let mut test = TestElections::campaigning(2);
    test.run(BEAT);
    let session = test.session(0);
    test.processes[0].link = Link::Dead;
    test.notify_all(&Notification::SessionExpired(session));
    test.settle();
    assert_eq!(test.leaders(), [1]);
}

#[test]
fn a_store_outage_of_a_minute_recovers() {
    let mut test = TestElections::campaigning(2);
    test.processes.iter_mut().for_each(|process| process.link = Link::Down);
    test.run(Duration::from_secs(60));
    assert!(test.leaders().is_empty());
    assert_eq!(
        test.event_count(0, |e| matches!(e, LeaseEvent::Lost { why: LossReason::TrustExpired, .. })),
        1
    );
    test.processes.iter_mut().for_each(|process| process.link = Link::Up);
    test.run(LEASE);
    assert_eq!(test.leaders().len(), 1);
    assert!(test.view().leases[0].token > Token::from_u64(1), "under a greater token");
}

#[test]
fn epoch_change_ends_trust() {
    let mut test = TestElections::campaigning(1);
    test.elections.promote();
    test.processes[0].finishes_at_once = false;
    test.run(BEAT + BEAT / 2);
    assert_eq!(
        test.event_count(0, |e| matches!(e, LeaseEvent::Lost { why: LossReason::EpochChanged, .. })),
        1
    );
    assert_eq!(test.leads(0), None);
    test.feed(0, LeaseInput::Finished(key()));
    test.run(LEASE);
    assert_eq!(test.leads(0).map(Token::epoch), Some(1));
}

#[test]
fn a_dead_follower_is_removed_and_a_live_one_never_is() {
    let mut test = TestElections::campaigning(3);
    test.processes[2].link = Link::Dead;
    test.run(LEASE * 10);
    let ids: Vec<_> = test.view().candidates.into_iter().map(|c| c.name).collect();
    assert_eq!(ids.len(), 2, "{ids:?}");
    assert_eq!(test.event_count(1, |e| matches!(e, LeaseEvent::Opened(_))), 1);
}
