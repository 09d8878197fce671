//! What the keeper returns, gives up and forgets.

use super::*;

use TaskState::{Claimed, Dead, Ready};

#[test]
fn only_who_leads_tends() {
    let mut yard = Yard::new();
    yard.submit_one(task());
    yard.claim_one();
    yard.now += 60_001;
    let old = yard.keeper.clone();
    yard.elect();
    let new = std::mem::replace(&mut yard.keeper, old);
    assert_eq!(yard.tend(), Tended { store_ms: yard.now, ..Tended::default() });
    yard.keeper = new;
    let tended = yard.tend();
    assert_eq!((tended.leads, tended.returned), (true, 1));
    assert_eq!(yard.tend().returned, 0, "it is safe to repeat");
}

#[test]
fn a_claim_whose_session_is_over_returns_with_its_attempt_counted() {
    let mut yard = Yard::new();
    let session = yard.session();
    let id = yard.submit_one(NewTask { max_attempts: 2, ..task() });
    let hang = Seat { session: Some(session.clone()), hold_ms: None, ..seat(1) };
    let claim = yard.claim_as(hang.clone()).0.remove(0);
    assert_eq!(yard.ledger.held(&session), [(id, claim.token)]);
    yard.now += 1_000_000_000;
    assert_eq!(yard.tend().returned, 0, "it lives on the session's beat");
    yard.book.end(&session, yard.now);
    assert_eq!(yard.tend().returned, 1);
    let view = yard.view(id);
    assert_eq!((view.state, view.attempt), (Ready, 1));
    assert_eq!(view.failures[0].error, "lost: its session ended");
    assert_eq!(yard.complete(&claim), Settled::Lost);
    assert_eq!(yard.refusal(Authority::Direct, hang), Some(ClaimRefusal::Gone(session)));
}

#[test]
fn a_claim_past_its_deadline_returns_once_and_the_last_attempt_is_dead() {
    let mut yard = Yard::new();
    let id = yard.submit_one(NewTask { max_attempts: 2, max_run_ms: Some(100), ..task() });
    let child = yard.submit_one(after(&[id]));
    for (attempt, state) in [(1, Ready), (2, Dead)] {
        yard.claim_one();
        yard.now += 100;
        assert_eq!(yard.tend().returned, 0, "it has until its deadline");
        assert_eq!(yard.tend().next_in, Some(Duration::from_millis(1)));
        yard.now += 1;
        let tended = yard.tend();
        assert_eq!((tended.returned, tended.dead), (1, u64::from(attempt == 2)));
        assert_eq!((yard.state(id), yard.view(id).attempt), (state, attempt));
    }
    assert_eq!(yard.view(id).reason.as_deref(), Some("attempt 2 of 2 was lost: run time is over"));
    assert_eq!(yard.state(child), Dead);
}

#[test]
fn a_step_of_the_clock_expires_nothing() {
    let mut yard = Yard::new();
    let id = yard.submit_one(NewTask { max_wait_ms: Some(1_000), ..task() });
    let claim = yard.claim_one();
    let waits = yard.submit_one(NewTask { max_wait_ms: Some(1_000), ..task() });
    yard.now += 3_600_000;
    let tended = yard.tend_by(Some(START + 10), 1_000);
    assert_eq!((tended.returned, tended.dead), (0, 0));
    assert_eq!(yard.states(&[id, waits]), [Claimed, Ready]);
    assert_eq!(yard.tend_by(Some(i64::MAX), 1_000).returned, 1, "the lesser of the two counts");
    assert_eq!(yard.complete(&claim), Settled::Lost);
}

#[test]
fn a_task_that_nobody_claims_for_too_long_is_dead_with_its_children() {
    let mut yard = Yard::new();
    let impatient = NewTask { max_wait_ms: Some(100), ..task() };
    let id = yard.submit_one(impatient.clone());
    let child = yard.submit_one(after(&[id]));
    let later = yard.submit_one(NewTask { run_at_ms: Some(START + 50), ..impatient.clone() });
    yard.now += 101;
    let tended = yard.tend();
    assert_eq!((tended.dead, tended.due), (2, 1));
    assert_eq!(yard.states(&[id, child, later]), [Dead, Dead, Ready]);
    assert!(yard.view(id).reason.unwrap().contains("longest wait of 100 ms"));
    // One that was claimed in time begins to wait anew when it comes back.
    let claim = yard.claim_one();
    assert_eq!(claim.id, later);
    yard.now += 1_000;
    yard.settle(&claim, Outcome::Release);
    assert_eq!(yard.tend().dead, 0);
    yard.now += 101;
    assert_eq!(yard.tend().dead, 1);
}

#[test]
fn one_that_is_held_back_waits_too() {
    let mut yard = Yard::new();
    yard.submit_one(keyed("t", 1));
    let held = yard.submit_one(NewTask { max_wait_ms: Some(100), ..keyed("t", 1) });
    yard.claim(9);
    assert_eq!(yard.state(held), TaskState::Held);
    yard.now += 101;
    assert_eq!(yard.tend().dead, 1);
    assert_eq!(yard.state(held), Dead);
}

#[test]
fn what_is_due_becomes_ready_and_rings() {
    let mut yard = Yard::new();
    let id = yard.submit_one(NewTask { run_at_ms: Some(START + 100), ..task() });
    assert_eq!(yard.tend().next_in, Some(Duration::from_millis(100)));
    yard.now += 100;
    assert!(yard.rings(|yard| assert_eq!(yard.tend().due, 1)));
    assert_eq!(yard.state(id), Ready);
}

#[test]
fn finished_tasks_are_forgotten_in_their_time_and_their_keys_with_them() {
    let mut yard = Yard::new();
    yard.set(QueueSettings { keep_ms: 100, keep_dead_ms: 200, ..Default::default() });
    let once = NewTask { key: Some("k".into()), ..task() };
    let done = yard.submit_one(once.clone());
    let claim = yard.claim_one();
    yard.complete(&claim);
    let dead = yard.submit_one(task());
    yard.kill_next();
    let cancelled = yard.submit_one(task());
    yard.order(&[cancelled], Order::Cancel);
    yard.now += 100;
    assert_eq!(yard.tend().forgotten, 0);
    yard.now += 1;
    assert_eq!(yard.tend().forgotten, 2);
    assert_eq!(yard.ledger.task(&Name::default_namespace(), done), None);
    assert_eq!(yard.state(dead), Dead);
    assert!(yard.try_submit(vec![once]).unwrap()[0].new);
    yard.now += 100;
    assert_eq!(yard.tend().forgotten, 1);
}

#[test]
fn no_more_is_done_at_once_than_the_limit_and_more_is_said() {
    let mut yard = Yard::new();
    yard.set(QueueSettings { keep_dead_ms: 0, ..Default::default() });
    let once = NewTask { max_attempts: 1, ..task() };
    yard.submit(vec![once; 5]);
    yard.claim(9);
    yard.submit(vec![NewTask { run_at_ms: Some(START + 1), ..task() }; 5]);
    yard.submit(vec![NewTask { max_wait_ms: Some(0), ..task() }; 5]);
    yard.now += 60_001;
    let mut sums = (0, 0, 0, 0);
    for round in 0..20 {
        let it = yard.tend_by(Some(i64::MAX), 2);
        assert!(it.returned <= 2 && it.dead <= 2 && it.due <= 2 && it.forgotten <= 2);
        sums = (sums.0 + it.returned, sums.1 + it.dead, sums.2 + it.due, sums.3 + it.forgotten);
        if !it.more {
            assert!(round > 1);
            break;
        }
        yard.now += 1;
    }
    yard.now += 1;
    sums.3 += yard.tend().forgotten;
    assert_eq!(sums, (5, 5, 5, 10));
}

#[test]
fn where_the_leader_is_to_be_reached_is_known_while_it_leads() {
    use crate::port::Post;
    let mut yard = Yard::new();
    let (session, token) = yard.keeper.clone();
    let post = Post { token, session, address: "h:1".into(), secret: vec![1] };
    assert!(yard.ledger.put_post(&post, &yard.book));
    assert!(yard.ledger.post(&yard.book) == Some(post.clone()));
    yard.elect();
    assert!(yard.ledger.post(&yard.book).is_none());
    assert!(!yard.ledger.put_post(&post, &yard.book));
}
