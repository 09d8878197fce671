//! The rule of trust.

use super::super::Loss;
use super::*;

#[test]
fn the_first_candidate_leads_at_once() {
    let mut town = Town::of(1);
    town.feed(0, Input::Campaign(stand("a")));
    town.settle();
    assert_eq!(town.leads(0), Some(Token::ZERO.next(0)));
}

#[test]
fn slow_beat_does_not_extend_trust() {
    let mut town = Town::standing(1);
    town.run(BEAT);
    town.peers[0].link = Link::Held;
    town.run(BEAT);
    let beat = town.held(0, |c| matches!(c, Command::Beat(_)));
    town.now = beat.sent_at + LEASE / 2;
    town.deliver(0, &beat);
    assert_eq!(town.peers[0].machine.trusted_until(), beat.sent_at + LEASE * 2 / 3);
}

#[test]
fn an_error_never_extends_trust() {
    let mut town = Town::standing(1);
    let before = town.peers[0].machine.trusted_until();
    town.peers[0].link = Link::Down;
    town.run(LEASE / 2);
    assert_eq!(town.peers[0].machine.trusted_until(), before);
    assert!(town.leads(0).is_some());
    town.run(LEASE);
    assert_eq!(town.leads(0), None);
}

#[test]
fn trust_runs_out_without_anybody_saying_so() {
    let mut town = Town::standing(1);
    // No tick, no answer, no event: the process is stopped.
    town.now = town.peers[0].machine.trusted_until();
    assert_eq!(town.leads(0), None);
    assert_eq!(town.heard(0, |e| matches!(e, Event::Lost { .. })), 0);
}

#[test]
fn a_late_grant_in_doubt_is_given_back() {
    let mut town = Town::of(1);
    (town.peers[0].link, town.hints) = (Link::Held, false);
    town.feed(0, Input::Campaign(stand("a")));
    let join = town.held(0, |c| matches!(c, Command::Join(_)));
    town.deliver(0, &join);
    let look = town.held(0, |c| matches!(c, Command::Observe(..)));
    town.deliver(0, &look);
    let take = town.held(0, |c| matches!(c, Command::Take(_)));
    let granted = town.apply(&take.command);
    town.now = town.peers[0].machine.trusted_until();
    town.answer(0, &take, granted);
    assert_eq!(town.heard(0, |e| matches!(e, Event::Elected { .. })), 0);
    assert!(
        matches!(town.held(0, |c| matches!(c, Command::Release(_))).command, Command::Release(r) if r.token == Token::ZERO.next(0))
    );
}

#[test]
fn a_silent_leader_is_followed_after_its_lease_and_not_before() {
    let mut town = Town::standing(2);
    town.run(BEAT * 3);
    town.peers[0].link = Link::Dead;
    town.run(LEASE - BEAT);
    assert_eq!(town.leads(1), None);
    town.run(LEASE / 2);
    assert_eq!(town.leads(1), Some(Token::from_u64(2)));
}

#[test]
fn a_certain_death_costs_no_lease() {
    let mut town = Town::standing(2);
    town.run(BEAT);
    let session = town.session(0);
    town.peers[0].link = Link::Dead;
    town.hint(&Wake::Died(session));
    town.settle();
    assert_eq!(town.leaders(), [1]);
}

#[test]
fn store_away_for_a_minute_then_back() {
    let mut town = Town::standing(2);
    town.peers.iter_mut().for_each(|peer| peer.link = Link::Down);
    town.run(Duration::from_secs(60));
    assert!(town.leaders().is_empty());
    assert_eq!(town.heard(0, |e| matches!(e, Event::Lost { why: Loss::Doubt, .. })), 1);
    town.peers.iter_mut().for_each(|peer| peer.link = Link::Up);
    town.run(LEASE);
    assert_eq!(town.leaders().len(), 1);
    assert!(town.view().leases[0].token > Token::from_u64(1), "under a greater token");
}

#[test]
fn epoch_change_ends_trust() {
    let mut town = Town::standing(1);
    town.book.promote();
    town.peers[0].diligent = false;
    town.run(BEAT + BEAT / 2);
    assert_eq!(town.heard(0, |e| matches!(e, Event::Lost { why: Loss::EpochChanged, .. })), 1);
    assert_eq!(town.leads(0), None);
    town.feed(0, Input::Finished(key()));
    town.run(LEASE);
    assert_eq!(town.leads(0).map(Token::epoch), Some(1));
}

#[test]
fn a_dead_follower_is_cleared_away_and_a_live_one_never_is() {
    let mut town = Town::standing(3);
    town.peers[2].link = Link::Dead;
    town.run(LEASE * 10);
    let ids: Vec<_> = town.view().candidates.into_iter().map(|c| c.id).collect();
    assert_eq!(ids.len(), 2, "{ids:?}");
    assert_eq!(town.heard(1, |e| matches!(e, Event::Opened(_))), 1);
}
