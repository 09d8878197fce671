//! Waiters are notified of work, and only of work.

use super::*;

#[test]
fn a_submission_notifies_once_and_only_a_registered_waiter() {
    let mut fixture = TestQueue::new();
    fixture.submit_one(task());
    assert_eq!(fixture.work.drain_notifications(), [], "no waiter is registered");
    let waiter = fixture.session();
    fixture.work.register_queue_waiter(&waiter, &[queue()]);
    fixture.submit(vec![task(); 3]);
    fixture.submit_one(task());
    assert_eq!(fixture.work.drain_notifications(), [Notification::QueueReady(queue())]);
}

#[test]
fn only_tasks_that_become_ready_notify_waiters() {
    let mut fixture = TestQueue::new();
    assert!(fixture.notifies(|fixture| fixture.submit_one(task())));
    let later = NewTask { run_at_ms: Some(START + 3_600_000), ..task() };
    assert!(!fixture.notifies(|fixture| fixture.submit_one(later)));
    let claim = fixture.claim_one();
    assert!(fixture.notifies(|fixture| fixture.settle(&claim, ClaimOutcome::Release)));
    let claim = fixture.claim_one();
    let child = after(&[claim.id]);
    assert!(!fixture.notifies(|fixture| fixture.submit_one(child)));
    assert!(fixture.notifies(|fixture| fixture.complete(&claim)), "the child is ready");
    let claim = fixture.claim_one();
    assert!(!fixture.notifies(|fixture| fixture.fail(&claim, false, 0)));
    assert!(fixture.notifies(|fixture| fixture.apply_action(&[claim.id], TaskAction::Retry)));
}

#[test]
fn a_dead_waiter_is_removed() {
    let mut fixture = TestQueue::new();
    let waiter = fixture.session();
    fixture.work.register_queue_waiter(&waiter, &[queue()]);
    fixture.elections.end_session(&waiter, fixture.now);
    fixture.maintain();
    fixture.submit_one(task());
    assert_eq!(fixture.work.drain_notifications(), []);
}

#[test]
fn a_worker_of_a_cancelled_task_is_notified_and_rejected() {
    let mut fixture = TestQueue::new();
    let session = fixture.session();
    fixture.submit_one(task());
    let claim =
        fixture.claim_as(ClaimRequest { session: Some(session.clone()), ..claim_request(1) }).0.remove(0);
    assert_eq!(fixture.apply_action(&[claim.id], TaskAction::Cancel), [claim.id]);
    assert_eq!(fixture.work.drain_notifications(), [Notification::ClaimCancelled(session.clone())]);
    assert_eq!(fixture.work.held_claims(&session), []);
    assert_eq!(fixture.complete(&claim), SettleResult::ClaimLost);
}
