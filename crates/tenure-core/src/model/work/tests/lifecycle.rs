//! The life cycle of a task.

use super::*;
use crate::port::FAILURES_MAX;

#[test]
fn a_task_is_submitted_claimed_and_completed() {
    let mut fixture = TestQueue::new();
    let id = fixture.submit_one(NewTask { payload: json("[1]"), ..task() });
    assert_eq!(fixture.state(id), TaskState::Ready);
    fixture.now += 5;
    let claim = fixture.claim_one();
    assert_eq!((claim.id, claim.attempt, claim.payload.as_str()), (id, 1, "[1]"));
    let view = fixture.view(id);
    assert_eq!((view.state, view.worker.as_deref()), (TaskState::Claimed, Some("w")));
    assert_eq!(view.claim_expires_at_ms, Some(fixture.now + 60_000));
    fixture.now += 7;
    assert_eq!(
        fixture.settle(&claim, ClaimOutcome::Complete(Some(json("2")))),
        SettleResult::Applied(TaskState::Completed)
    );
    let view = fixture.view(id);
    assert_eq!((view.result, view.finished_at_ms), (Some(json("2")), Some(START + 12)));
    assert_eq!((view.session, view.claim_expires_at_ms), (None, None));
    let finished = &fixture.work.finished_tasks(&queue(), 10)[0];
    assert_eq!((finished.wait_ms, finished.run_ms, finished.completed), (5, 7, true));
}

#[test]
fn a_completion_can_be_repeated_and_not_changed() {
    let mut fixture = TestQueue::new();
    fixture.submit_one(task());
    let claim = fixture.claim_one();
    assert_eq!(fixture.complete(&claim), SettleResult::Applied(TaskState::Completed));
    assert_eq!(fixture.complete(&claim), SettleResult::Applied(TaskState::Completed));
    assert_eq!(fixture.fail(&claim, true, 0), SettleResult::ClaimLost);
    assert_eq!(fixture.settle(&claim, ClaimOutcome::Release), SettleResult::ClaimLost);
}

#[test]
fn a_claim_under_another_token_or_namespace_is_lost() {
    let mut fixture = TestQueue::new();
    let id = fixture.submit_one(task());
    let first = fixture.claim_one();
    assert_eq!(fixture.settle(&first, ClaimOutcome::Release), SettleResult::Applied(TaskState::Ready));
    let second = fixture.claim_one();
    assert!(second.token > first.token && second.id == id);
    assert_eq!(fixture.complete(&first), SettleResult::ClaimLost);
    let namespace = name("other");
    let outcome = ClaimOutcome::Complete(None);
    let strange = Settlement { namespace, task: id, token: second.token, outcome };
    assert_eq!(fixture.work.settle(&[strange], fixture.now), [SettleResult::ClaimLost]);
    assert_eq!(fixture.state(id), TaskState::Claimed);
}

#[test]
fn a_failed_attempt_is_retried_up_to_the_maximum() {
    let mut fixture = TestQueue::new();
    let id = fixture.submit_one(NewTask { max_attempts: 2, ..task() });
    let claim = fixture.claim_one();
    assert_eq!(fixture.fail(&claim, true, 1_000), SettleResult::Applied(TaskState::Scheduled));
    assert_eq!(fixture.claim_as(claim_request(1)), (vec![], Some(Duration::from_secs(1))));
    fixture.now += 1_000;
    let claim = fixture.claim_one();
    assert_eq!(claim.attempt, 2);
    assert_eq!(fixture.fail(&claim, true, 0), SettleResult::Applied(TaskState::Dead));
    let view = fixture.view(id);
    assert_eq!(view.end_reason.as_deref(), Some("attempt 2 of 2 failed: boom"));
    let failures: Vec<_> = view.failures.iter().map(|it| (it.attempt, it.worker.as_str())).collect();
    assert_eq!(failures, [(1, "w"), (2, "w")]);
}

#[test]
fn a_failure_without_delay_is_ready_at_once_and_a_permanent_one_is_dead() {
    let mut fixture = TestQueue::new();
    let id = fixture.submit_one(task());
    let claim = fixture.claim_one();
    assert_eq!(fixture.fail(&claim, true, 0), SettleResult::Applied(TaskState::Ready));
    assert_eq!(fixture.kill_next(), id);
    assert_eq!(fixture.view(id).end_reason.as_deref(), Some("failed permanently: boom"));
}

#[test]
fn only_the_latest_failures_are_kept_and_shortened() {
    let mut fixture = TestQueue::new();
    let id = fixture.submit_one(NewTask { max_attempts: 100, ..task() });
    for _ in 0..FAILURES_MAX + 3 {
        let claim = fixture.claim_one();
        let (error, after) = ("x".repeat(100_000), Duration::ZERO);
        fixture.settle(&claim, ClaimOutcome::Fail { error, retry: true, retry_in: after });
    }
    let failures = fixture.view(id).failures;
    assert_eq!((failures.len(), failures[0].attempt, failures[0].error.len()), (FAILURES_MAX, 4, 8_192));
}

#[test]
fn a_released_task_keeps_its_attempts_and_position() {
    let mut fixture = TestQueue::new();
    let ids = fixture.submit(vec![task(), task()]);
    let claim = fixture.claim_one();
    assert_eq!(fixture.settle(&claim, ClaimOutcome::Release), SettleResult::Applied(TaskState::Ready));
    assert_eq!(fixture.view(ids[0]).attempt, 0);
    assert_eq!(fixture.claimed_ids(2), ids);
}

#[test]
fn a_heartbeat_stores_progress_and_extends_the_claim() {
    let mut fixture = TestQueue::new();
    let id = fixture.submit_one(NewTask { max_run_ms: Some(1_000), ..task() });
    let claim = fixture.claim_one();
    assert_eq!(claim.claim_expires_at_ms, Some(START + 1_000), "the earlier of the two");
    let note = Some("half".to_string());
    let hold = Some(Duration::from_millis(500));
    fixture.settle(&claim, ClaimOutcome::Heartbeat { progress: None, claim_timeout: hold });
    assert_eq!(fixture.view(id).claim_expires_at_ms, Some(START + 500));
    let hold = Some(Duration::from_secs(5));
    let results = fixture.settle(&claim, ClaimOutcome::Heartbeat { progress: note, claim_timeout: hold });
    assert_eq!(results, SettleResult::Applied(TaskState::Claimed));
    fixture.settle(&claim, ClaimOutcome::Heartbeat { progress: None, claim_timeout: None });
    let view = fixture.view(id);
    assert_eq!(
        (view.progress.as_deref(), view.claim_expires_at_ms),
        (Some("half"), Some(START + 1_000)),
        "the maximum run time"
    );
}

#[test]
fn a_future_task_is_scheduled_until_its_start() {
    let mut fixture = TestQueue::new();
    let id = fixture.submit_one(NewTask { run_at_ms: Some(START + 10), ..task() });
    assert_eq!(fixture.state(id), TaskState::Scheduled);
    assert_eq!(fixture.claim_as(claim_request(1)), (vec![], Some(Duration::from_millis(10))));
    fixture.now += 30;
    assert_eq!(fixture.claim_one().id, id);
    assert_eq!(fixture.view(id).ready_at_ms, Some(START + 10));
    let past = fixture.submit_one(NewTask { run_at_ms: Some(START), ..task() });
    assert_eq!(fixture.state(past), TaskState::Ready);
}

#[test]
fn an_idempotency_key_is_one_task_also_within_a_submission() {
    let mut fixture = TestQueue::new();
    let once = NewTask { idempotency_key: Some("k".into()), ..task() };
    let got = fixture.try_submit(vec![once.clone(), task(), once.clone()]).unwrap();
    assert_eq!(got.iter().map(|it| it.created).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(got[0].id, got[2].id);
    assert_eq!(
        fixture.try_submit(vec![once.clone()]).unwrap(),
        [SubmitReceipt { id: got[0].id, created: false }]
    );
    // Another queue is independent.
    let elsewhere = QueueKey::new(Name::default_namespace(), name("other"));
    let other =
        fixture.work.submit(&Submission { queue: elsewhere, tasks: vec![once] }, fixture.now).unwrap();
    assert!(other[0].created);
    assert_eq!(fixture.work.queue(&queue(), fixture.now).unwrap().count(TaskState::Ready), 2);
}

#[test]
fn tasks_are_ordered_by_priority_age_and_id() {
    let mut fixture = TestQueue::new();
    let old = fixture.submit_one(task());
    fixture.now += 119_000;
    let low = fixture.submit_one(NewTask { priority: -1, ..task() });
    let ids = fixture.submit(vec![task(), NewTask { priority: 2, ..task() }, task()]);
    assert_eq!(fixture.claimed_ids(9), [ids[1], old, ids[0], ids[2], low]);
}

#[test]
fn a_task_keeps_its_queue_position_over_attempts() {
    let mut fixture = TestQueue::new();
    let first = fixture.submit_one(task());
    fixture.now += 10;
    let second = fixture.submit_one(task());
    let claim = fixture.claim_one();
    fixture.fail(&claim, true, 1_000);
    fixture.now += 1_000;
    assert_eq!(fixture.claimed_ids(2), [first, second]);
}

#[test]
fn an_invalid_submission_changes_nothing() {
    let mut fixture = TestQueue::new();
    let mut tasks = vec![task(), NewTask { max_attempts: 0, ..task() }];
    assert!(fixture.try_submit(tasks.clone()).unwrap_err().message.contains("task 1: "));
    tasks[1] = after(&[TaskId(99)]);
    let error = fixture.try_submit(tasks).unwrap_err();
    assert!(error.message.contains("parent 99 does not exist"), "{error}");
    assert_eq!(fixture.work.queue(&queue(), fixture.now), None);
}

#[test]
fn tokens_grow_with_the_epoch() {
    let mut fixture = TestQueue::new();
    fixture.submit_one(task());
    let claim = fixture.claim_one();
    fixture.settle(&claim, ClaimOutcome::Release);
    fixture.elections.promote();
    assert_eq!(fixture.claim_one().token, Token::first(1).next(1));
}
