//! Coming, going and coming back as a candidate.

use super::*;
use crate::port::Joined;

/// A leave that arrived after the join that followed it left a candidate that nobody knew was missing: it never led again.
#[test]
fn a_candidate_removed_by_a_late_leave_stands_again() {
    let mut town = Town::standing(2);
    let session = town.session(1);
    town.apply(&Command::Leave(session.clone(), key()));
    town.run(LEASE);
    assert!(town.view().candidate(&session).is_some());
}

#[test]
fn a_leader_removed_by_a_late_leave_stands_again_and_leads_on() {
    let mut town = Town::standing(1);
    let session = town.session(0);
    town.apply(&Command::Leave(session.clone(), key()));
    town.run(LEASE * 3);
    assert!(town.view().candidate(&session).is_some());
    assert_eq!(town.leads(0), Some(Token::from_u64(1)));
}

/// Two joins changed places on their way, and the store kept the priority that was given up.
#[test]
fn an_earlier_join_that_arrives_last_does_not_stay() {
    let mut town = Town::standing(2);
    let old = town.view().candidate(&town.session(1)).unwrap().priority;
    town.peers[1].link = Link::Held;
    town.feed(1, Input::Campaign(stand("b")));
    let first = town.held(1, |c| matches!(c, Command::Join(_)));
    town.feed(1, Input::Campaign(Stand { priority: old + 5, ..stand("b") }));
    let second = town.held(1, |c| matches!(c, Command::Join(_)));
    town.deliver(1, &second);
    town.deliver(1, &first);
    town.peers[1].link = Link::Up;
    town.run(LEASE);
    assert_eq!(town.leaders(), [1]);
}

/// A join that failed while the old term's work was still ending was never tried again.
#[test]
fn a_join_that_fails_while_the_work_ends_is_repeated() {
    let mut town = Town::standing(1);
    town.peers[0].diligent = false;
    let session = town.session(0);
    town.book.expire(&crate::port::Expire { session, epoch: 0, beat: None }, 0);
    town.peers[0].link = Link::Held;
    town.run(BEAT * 2);
    let beat = town.held(0, |c| matches!(c, Command::Beat(_)));
    town.deliver(0, &beat);
    let open = town.held(0, |c| matches!(c, Command::Open(_)));
    town.deliver(0, &open);
    let join = town.held(0, |c| matches!(c, Command::Join(_)));
    town.fail(0, &join);
    town.peers[0].calls.clear();
    town.run(BEAT);
    town.peers[0].link = Link::Up;
    town.feed(0, Input::Finished(key()));
    town.run(LEASE);
    assert!(town.leads(0).is_some());
}

#[test]
fn another_number_of_slots_is_rejected() {
    let mut town = Town::of(2);
    town.feed(0, Input::Campaign(stand("a")));
    town.settle();
    town.feed(1, Input::Campaign(Stand { slots: 2, ..stand("b") }));
    town.settle();
    assert!(town.peers[1].events.contains(&Event::Rejected { election: key(), slots: 1 }));
    assert_eq!(town.leaders(), [0]);
}

#[test]
fn a_withdrawal_before_the_session_is_open_is_done_at_once() {
    let mut town = Town::of(1);
    town.peers[0].link = Link::Held;
    town.feed(0, Input::Wake(Wake::Severed(town.session(0))));
    town.feed(0, Input::Campaign(stand("a")));
    town.feed(0, Input::Withdraw(key()));
    assert_eq!(town.heard(0, |e| matches!(e, Event::Withdrawn(_))), 1);
}

#[test]
fn a_join_that_overtakes_its_leave_is_undone() {
    let mut town = Town::of(1);
    town.peers[0].link = Link::Held;
    town.feed(0, Input::Campaign(stand("a")));
    let join = town.held(0, |c| matches!(c, Command::Join(_)));
    town.feed(0, Input::Withdraw(key()));
    let leave = town.held(0, |c| matches!(c, Command::Leave(..)));
    town.deliver(0, &leave);
    assert_eq!(town.apply(&join.command), Answer::Joined(Ok(Joined::Standing)));
    town.peers[0].link = Link::Up;
    town.run(LEASE * 3);
    assert!(town.view().candidates.is_empty());
}

#[test]
fn coming_back_at_once_ends_in_standing() {
    let mut town = Town::standing(2);
    for _ in 0..3 {
        town.feed(0, Input::Withdraw(key()));
        town.feed(0, Input::Campaign(stand("a")));
        town.feed(0, Input::Finished(key()));
        town.run(BEAT);
    }
    assert_eq!(town.view().candidates.len(), 2);
    assert_eq!(town.leaders().len(), 1);
}

#[test]
fn quiet_followers_poll_and_do_no_more() {
    let mut town = Town::standing(3);
    town.run(LEASE);
    let before = town.peers[2].events.len();
    town.run(LEASE);
    assert_eq!(town.peers[2].events.len(), before, "nothing changed, nothing is told");
}

/// Ten thousand elections in one look took longer than an answer may take, so that there was never one.
#[test]
fn many_elections_are_looked_at_some_at_a_time_and_none_is_left_out() {
    let mut town = Town::of(1);
    let name =
        |n: usize| ElectionKey::new(crate::Name::default_namespace(), format!("e{n}").parse().unwrap());
    for n in 0..1_200 {
        town.feed(0, Input::Campaign(Stand::new(name(n), "a")));
        town.settle();
    }
    let session = town.session(0);
    assert!((0..1_200).all(|n| town.peers[0].machine.leads(&name(n), town.now).is_some()));

    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..200 {
        town.now = town.now + BEAT / 2;
        town.feed(0, Input::Tick);
        for call in town.peers[0].calls.clone() {
            if let Command::Observe(_, scope) = &call.command {
                let elections = town.book.observe(&session, scope).elections;
                assert!(elections.len() <= 500, "{} in one look", elections.len());
                seen.extend(elections.into_iter().map(|view| view.key));
            }
        }
        town.settle();
    }
    assert_eq!(seen.len(), 1_200);
}
