//! Calls that are lost, late, or overtake each other. Most of these were found by the simulator.

use super::*;

const IS_TAKE: fn(&Command) -> bool = |c| matches!(c, Command::Take(_));
const IS_LOOK: fn(&Command) -> bool = |c| matches!(c, Command::Observe(..));
const IS_RELEASE: fn(&Command) -> bool = |c| matches!(c, Command::Release(_));
const IS_LEAVE: fn(&Command) -> bool = |c| matches!(c, Command::Leave(..));
const IS_JOIN: fn(&Command) -> bool = |c| matches!(c, Command::Join(_));

/// One process whose take is on its way.
fn taking(stand: Stand) -> (Town, Call) {
    let mut town = Town::of(1);
    (town.peers[0].link, town.hints) = (Link::Held, false);
    town.feed(0, Input::Campaign(stand));
    let join = town.held(0, IS_JOIN);
    town.deliver(0, &join);
    let look = town.held(0, IS_LOOK);
    town.deliver(0, &look);
    let take = town.held(0, IS_TAKE);
    (town, take)
}

/// Somewhere a release of it may still be under way: going on under the same token would give two leaders.
#[test]
fn a_take_whose_answer_was_lost_is_given_back_and_taken_anew() {
    let (mut town, take) = taking(stand("a"));
    town.apply(&take.command);
    town.fail(0, &take);
    town.peers[0].link = Link::Up;
    town.run(LEASE);
    assert_eq!(town.leads(0), Some(Token::from_u64(2)));
}

#[test]
fn a_take_that_arrives_late_is_given_back_at_the_next_poll() {
    let (mut town, take) = taking(stand("a"));
    town.fail(0, &take);
    let look = town.held(0, IS_LOOK);
    town.deliver(0, &look);
    town.apply(&take.command);
    town.peers[0].link = Link::Up;
    town.peers[0].calls.clear();
    town.run(Timing::default().poll() * 2);
    assert_eq!(town.leads(0), Some(Token::from_u64(2)));
}

#[test]
fn withdraw_during_take_releases() {
    let (mut town, take) = taking(stand("a"));
    town.feed(0, Input::Withdraw(key()));
    town.deliver(0, &take);
    let release = town.held(0, IS_RELEASE);
    assert!(matches!(&release.command, Command::Release(r) if r.leave));
    town.deliver(0, &release);
    town.peers[0].link = Link::Up;
    town.settle();
    assert_eq!(town.heard(0, |e| matches!(e, Event::Elected { .. })), 0);
    assert_eq!(town.heard(0, |e| matches!(e, Event::Withdrawn(_))), 1);
    assert!(town.view().candidates.is_empty() && town.view().leases[0].holder.is_none());
}

#[test]
fn a_stray_lease_is_released() {
    let (mut town, take) = taking(stand("a"));
    town.fail(0, &take);
    town.feed(0, Input::Withdraw(key()));
    town.apply(&take.command);
    town.peers[0].link = Link::Up;
    town.settle();
    assert!(town.view().leases[0].holder.is_some(), "nobody stands, and it is held");
    town.run(LEASE * 3);
    assert!(town.view().leases[0].holder.is_none());
}

#[test]
fn a_stale_look_does_not_resurrect_a_released_lease() {
    let mut town = Town::standing(1);
    town.peers[0].link = Link::Held;
    town.feed(0, Input::Wake(Wake::Changed(key())));
    let look = town.held(0, IS_LOOK);
    let seen = town.apply(&look.command);
    town.feed(0, Input::Resign(key()));
    let release = town.held(0, IS_RELEASE);
    town.deliver(0, &release);
    town.answer(0, &look, seen);
    assert_eq!(town.leads(0), None);
}

/// A campaign began as if nothing had been asked before it, and believed a look from its former life.
#[test]
fn a_stale_look_does_not_resurrect_a_lease_for_a_candidate_that_came_back() {
    let mut town = Town::standing(1);
    town.peers[0].link = Link::Held;
    town.feed(0, Input::Wake(Wake::Changed(key())));
    let look = town.held(0, IS_LOOK);
    let seen = town.apply(&look.command);
    town.feed(0, Input::Withdraw(key()));
    town.feed(0, Input::Finished(key()));
    let release = town.held(0, IS_RELEASE);
    town.deliver(0, &release);
    let leave = town.held(0, IS_LEAVE);
    town.deliver(0, &leave);
    town.feed(0, Input::Campaign(stand("a")));
    town.answer(0, &look, seen);
    assert_eq!(town.leads(0), None);
}

/// A campaign that was still releasing was replaced by a fresh one, which adopted the lease while its release was under
/// way: the store then gave it to another, and both led.
#[test]
fn who_comes_back_while_releasing_does_not_keep_what_it_releases() {
    let mut town = Town::standing(1);
    town.feed(0, Input::Withdraw(key()));
    town.peers[0].link = Link::Held;
    town.feed(0, Input::Finished(key()));
    let release = town.held(0, IS_RELEASE);
    town.feed(0, Input::Campaign(stand("a")));
    let calls: Vec<_> = town.peers[0].calls.drain(..).collect();
    calls.iter().for_each(|call| town.deliver(0, call));
    assert_eq!(town.leads(0), None);
    town.deliver(0, &release);
    town.peers[0].link = Link::Up;
    town.run(LEASE / 2);
    assert_eq!(town.leads(0), Some(Token::from_u64(2)));
}

/// A campaign that led was replaced by a fresh one, and was elected a second time under the token it worked under.
#[test]
fn a_leader_that_changes_its_priority_leads_on() {
    let mut town = Town::standing(2);
    town.feed(0, Input::Campaign(Stand { priority: 3, ..stand("a") }));
    town.run(LEASE);
    assert_eq!(town.leads(0), Some(Token::from_u64(1)));
    assert_eq!(town.heard(0, |e| matches!(e, Event::Elected { .. })), 1);
    assert_eq!(town.view().candidate(&town.session(0)).unwrap().priority, 3);
}

/// A stray's release was still under way when its election was joined again and the lease adopted.
#[test]
fn a_lease_that_is_being_given_back_is_not_adopted() {
    let (mut town, take) = taking(stand("a"));
    town.fail(0, &take);
    let look = town.held(0, IS_LOOK);
    town.deliver(0, &look);
    town.feed(0, Input::Withdraw(key()));
    town.apply(&take.command);
    let leave = town.held(0, IS_LEAVE);
    town.deliver(0, &leave);
    // A later look finds the stray.
    town.feed(0, Input::Wake(Wake::Resync));
    let look = town.held(0, IS_LOOK);
    town.deliver(0, &look);
    let release = town.held(0, IS_RELEASE);
    town.feed(0, Input::Campaign(stand("a")));
    let join = town.held(0, IS_JOIN);
    town.deliver(0, &join);
    let look = town.held(0, IS_LOOK);
    town.deliver(0, &look);
    assert_eq!(town.leads(0), None);
    town.deliver(0, &release);
    town.peers[0].link = Link::Up;
    town.run(LEASE);
    assert_eq!(town.leads(0), Some(Token::from_u64(2)));
}

/// A late take brought a second slot: the leader took it for its own, declared itself overruled, and one slot was
/// held by nobody for ever.
#[test]
fn a_second_slot_that_arrives_late_is_given_back() {
    let (mut town, take) = taking(Stand { slots: 2, ..stand("a") });
    let Command::Take(mut other) = take.command.clone() else { unreachable!() };
    town.deliver(0, &take);
    other.slot = 1 - other.slot;
    town.apply(&Command::Take(other));
    town.peers[0].link = Link::Up;
    town.run(LEASE * 3);
    assert_eq!(town.leads(0), Some(Token::from_u64(1)));
    assert_eq!(town.view().holders().count(), 1);
    assert_eq!(town.heard(0, |e| matches!(e, Event::Lost { .. })), 0);
}

/// The answer to an earlier term's release was taken for the answer to this one's.
#[test]
fn an_old_release_confirms_nothing() {
    let mut town = Town::standing(1);
    town.peers[0].link = Link::Held;
    town.feed(0, Input::Resign(key()));
    let old = town.held(0, IS_RELEASE);
    town.apply(&old.command);
    // The session is expired, a new one leads again and resigns, before the first answer comes.
    let session = town.session(0);
    town.book.expire(&crate::port::Expire { session, epoch: 0, beat: None }, 0);
    town.peers[0].calls.clear();
    town.peers[0].link = Link::Up;
    town.run(LEASE);
    assert_eq!(town.leads(0), Some(Token::from_u64(2)));
    town.peers[0].link = Link::Held;
    town.feed(0, Input::Resign(key()));
    town.answer(0, &old, Answer::Done(Ok(())));
    assert_eq!(town.heard(0, |e| matches!(e, Event::Released { .. })), 1);
}
