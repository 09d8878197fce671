//! Who leads next.

use super::*;
use crate::port::Via;

#[test]
fn priority_preempts_by_request() {
    let mut town = Town::of(2);
    town.feed(0, Input::Campaign(stand("a")));
    town.settle();
    town.feed(1, Input::Campaign(Stand { priority: 5, ..stand("b") }));
    town.settle();
    assert_eq!(town.leaders(), [1]);
    assert_eq!(town.heard(0, |e| matches!(e, Event::Asked { kind: AskKind::Preempt(_), .. })), 1);
    assert_eq!(town.view().leases[0].via, Via::Preempt);
}

#[test]
fn a_lower_id_never_unseats_an_equal() {
    let mut town = Town::of(2);
    town.feed(0, Input::Campaign(stand("b")));
    town.settle();
    town.feed(1, Input::Campaign(stand("a")));
    town.run(LEASE * 3);
    assert_eq!(town.leaders(), [0]);
}

#[test]
fn transfer_is_not_undone_by_priority() {
    let mut town = Town::of(2);
    town.feed(0, Input::Campaign(Stand { priority: 5, ..stand("a") }));
    town.feed(1, Input::Campaign(stand("b")));
    town.settle();
    assert_eq!(town.leaders(), [0]);
    let to = town.session(1);
    town.ask(AskKind::Transfer(to));
    town.run(LEASE * 5);
    assert_eq!(town.leaders(), [1]);
}

#[test]
fn resign_lets_another_lead() {
    let mut town = Town::standing(2);
    assert_eq!(town.leaders(), [0]);
    town.feed(0, Input::Resign(key()));
    town.run(BEAT / 2);
    assert_eq!(town.leaders(), [1]);
}

#[test]
fn who_resigns_alone_leads_again_under_a_greater_token() {
    let mut town = Town::standing(1);
    town.feed(0, Input::Resign(key()));
    town.run(LEASE / 2);
    assert_eq!(town.leads(0), Some(Token::from_u64(2)));
}

#[test]
fn pause_stops_and_resume_restarts() {
    let mut town = Town::standing(2);
    town.pause(true);
    town.run(LEASE * 2);
    assert!(town.leaders().is_empty());
    town.pause(false);
    town.run(LEASE / 5);
    assert_eq!(town.leaders().len(), 1);
}

#[test]
fn observers_never_lead() {
    let mut town = Town::of(1);
    town.feed(0, Input::Campaign(Stand { observer: true, ..stand("a") }));
    town.run(LEASE * 3);
    assert!(town.leaders().is_empty());
}

#[test]
fn incapable_candidates_never_lead() {
    let mut town = Town::of(2);
    let requires = vec!["disk".to_owned()];
    town.feed(0, Input::Campaign(Stand { requires: requires.clone(), priority: 9, ..stand("a") }));
    town.run(LEASE);
    assert!(town.leaders().is_empty());
    town.feed(1, Input::Campaign(Stand { capabilities: requires.clone(), requires, ..stand("b") }));
    town.run(LEASE);
    assert_eq!(town.leaders(), [1]);
}

#[test]
fn three_slots_have_three_holders() {
    let mut town = Town::of(4);
    for n in 0..4 {
        town.feed(n, Input::Campaign(Stand { slots: 3, ..stand(["a", "b", "c", "d"][n]) }));
    }
    town.run(LEASE);
    assert_eq!(town.leaders().len(), 3);
    let holders: Vec<_> = town.view().holders().map(|(_, h)| h.id.clone()).collect();
    let distinct: std::collections::BTreeSet<_> = holders.iter().collect();
    assert_eq!((holders.len(), distinct.len()), (3, 3));
}

#[test]
fn a_dead_favourite_costs_rank_steps_not_a_lease() {
    let mut town = Town::standing(3);
    assert_eq!(town.leaders(), [0]);
    town.run(BEAT);
    // b ranks next and dies unseen; a resigns.
    town.peers[1].link = Link::Dead;
    town.feed(0, Input::Resign(key()));
    town.run(Timing::default().rank_step() * 3);
    assert_eq!(town.leaders(), [2]);
}

#[test]
fn an_orderly_end_hands_over_in_no_time() {
    let mut town = Town::standing(2);
    town.feed(0, Input::Stop);
    town.settle();
    assert_eq!(town.leaders(), [1]);
    assert_eq!(town.heard(0, |e| matches!(e, Event::Stopped)), 1);
}

#[test]
fn a_lease_is_given_back_only_when_the_work_has_ended() {
    let mut town = Town::standing(2);
    town.peers[0].diligent = false;
    town.feed(0, Input::Resign(key()));
    town.run(BEAT * 2);
    assert_eq!(town.leaders(), [0]);
    town.feed(0, Input::Finished(key()));
    town.run(BEAT / 2);
    assert_eq!(town.leaders(), [1]);
}
