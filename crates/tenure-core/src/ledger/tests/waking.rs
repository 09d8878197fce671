//! Who sleeps is woken by work, and by nothing else.

use super::*;

#[test]
fn a_submission_rings_once_and_only_if_somebody_sleeps() {
    let mut yard = Yard::new();
    yard.submit_one(task());
    assert_eq!(yard.ledger.drain_wakes(), [], "nobody sleeps");
    let sleeper = yard.session();
    yard.ledger.doze(&sleeper, &[queue()]);
    yard.submit(vec![task(); 3]);
    yard.submit_one(task());
    assert_eq!(yard.ledger.drain_wakes(), [Wake::Work(queue())]);
}

#[test]
fn what_makes_a_task_ready_rings_and_what_does_not_does_not() {
    let mut yard = Yard::new();
    assert!(yard.rings(|yard| yard.submit_one(task())));
    let later = NewTask { run_at_ms: Some(START + 3_600_000), ..task() };
    assert!(!yard.rings(|yard| yard.submit_one(later)));
    let claim = yard.claim_one();
    assert!(yard.rings(|yard| yard.settle(&claim, Outcome::Release)));
    let claim = yard.claim_one();
    let child = after(&[claim.id]);
    assert!(!yard.rings(|yard| yard.submit_one(child)));
    assert!(yard.rings(|yard| yard.complete(&claim)), "the child is ready");
    let claim = yard.claim_one();
    assert!(!yard.rings(|yard| yard.fail(&claim, false, 0)));
    assert!(yard.rings(|yard| yard.order(&[claim.id], Order::Retry)));
}

#[test]
fn a_dead_sleeper_is_cleared_away() {
    let mut yard = Yard::new();
    let sleeper = yard.session();
    yard.ledger.doze(&sleeper, &[queue()]);
    yard.book.end(&sleeper, yard.now);
    yard.tend();
    yard.submit_one(task());
    assert_eq!(yard.ledger.drain_wakes(), []);
}

#[test]
fn who_has_a_cancelled_task_is_told_and_refused() {
    let mut yard = Yard::new();
    let session = yard.session();
    yard.submit_one(task());
    let claim = yard.claim_as(Seat { session: Some(session.clone()), ..seat(1) }).0.remove(0);
    assert_eq!(yard.order(&[claim.id], Order::Cancel), [claim.id]);
    assert_eq!(yard.ledger.drain_wakes(), [Wake::Recalled(session.clone())]);
    assert_eq!(yard.ledger.held(&session), []);
    assert_eq!(yard.complete(&claim), Settled::Lost);
}
