//! A task's life, from its submission to its end.

use super::*;
use crate::port::FAILURES_KEPT;

#[test]
fn a_task_is_submitted_claimed_and_completed() {
    let mut yard = Yard::new();
    let id = yard.submit_one(NewTask { payload: json("[1]"), ..task() });
    assert_eq!(yard.state(id), TaskState::Ready);
    yard.now += 5;
    let claim = yard.claim_one();
    assert_eq!((claim.id, claim.attempt, claim.payload.as_str()), (id, 1, "[1]"));
    let view = yard.view(id);
    assert_eq!((view.state, view.worker.as_deref()), (TaskState::Claimed, Some("w")));
    assert_eq!(view.deadline_ms, Some(yard.now + 60_000));
    yard.now += 7;
    assert_eq!(yard.settle(&claim, Outcome::Complete(Some(json("2")))), Settled::Now(TaskState::Completed));
    let view = yard.view(id);
    assert_eq!((view.output, view.finished_at_ms), (Some(json("2")), Some(START + 12)));
    assert_eq!((view.session, view.deadline_ms), (None, None));
    let finished = &yard.ledger.finished(&queue(), 10)[0];
    assert_eq!((finished.wait_ms, finished.run_ms, finished.completed), (5, 7, true));
}

#[test]
fn the_same_completion_counts_again_and_another_word_does_not() {
    let mut yard = Yard::new();
    yard.submit_one(task());
    let claim = yard.claim_one();
    assert_eq!(yard.complete(&claim), Settled::Now(TaskState::Completed));
    assert_eq!(yard.complete(&claim), Settled::Now(TaskState::Completed));
    assert_eq!(yard.fail(&claim, true, 0), Settled::Lost);
    assert_eq!(yard.settle(&claim, Outcome::Release), Settled::Lost);
}

#[test]
fn a_claim_under_another_token_or_namespace_is_lost() {
    let mut yard = Yard::new();
    let id = yard.submit_one(task());
    let first = yard.claim_one();
    assert_eq!(yard.settle(&first, Outcome::Release), Settled::Now(TaskState::Ready));
    let second = yard.claim_one();
    assert!(second.token > first.token && second.id == id);
    assert_eq!(yard.complete(&first), Settled::Lost);
    let namespace = name("other");
    let outcome = Outcome::Complete(None);
    let strange = Settlement { namespace, task: id, token: second.token, outcome };
    assert_eq!(yard.ledger.settle(&[strange], yard.now), [Settled::Lost]);
    assert_eq!(yard.state(id), TaskState::Claimed);
}

#[test]
fn a_failed_attempt_is_tried_again_later_until_there_are_no_more() {
    let mut yard = Yard::new();
    let id = yard.submit_one(NewTask { max_attempts: 2, ..task() });
    let claim = yard.claim_one();
    assert_eq!(yard.fail(&claim, true, 1_000), Settled::Now(TaskState::Scheduled));
    assert_eq!(yard.claim_as(seat(1)), (vec![], Some(Duration::from_secs(1))));
    yard.now += 1_000;
    let claim = yard.claim_one();
    assert_eq!(claim.attempt, 2);
    assert_eq!(yard.fail(&claim, true, 0), Settled::Now(TaskState::Dead));
    let view = yard.view(id);
    assert_eq!(view.reason.as_deref(), Some("attempt 2 of 2 failed: boom"));
    let failures: Vec<_> = view.failures.iter().map(|it| (it.attempt, it.worker.as_str())).collect();
    assert_eq!(failures, [(1, "w"), (2, "w")]);
}

#[test]
fn a_failure_without_delay_is_ready_at_once_and_one_for_good_is_dead() {
    let mut yard = Yard::new();
    let id = yard.submit_one(task());
    let claim = yard.claim_one();
    assert_eq!(yard.fail(&claim, true, 0), Settled::Now(TaskState::Ready));
    assert_eq!(yard.kill_next(), id);
    assert_eq!(yard.view(id).reason.as_deref(), Some("failed for good: boom"));
}

#[test]
fn only_the_last_failures_are_kept_and_clipped() {
    let mut yard = Yard::new();
    let id = yard.submit_one(NewTask { max_attempts: 100, ..task() });
    for _ in 0..FAILURES_KEPT + 3 {
        let claim = yard.claim_one();
        let (error, after) = ("x".repeat(100_000), Duration::ZERO);
        yard.settle(&claim, Outcome::Fail { error, retry: true, after });
    }
    let failures = yard.view(id).failures;
    assert_eq!((failures.len(), failures[0].attempt, failures[0].error.len()), (FAILURES_KEPT, 4, 8_192));
}

#[test]
fn a_release_does_not_count_and_keeps_its_place() {
    let mut yard = Yard::new();
    let ids = yard.submit(vec![task(), task()]);
    let claim = yard.claim_one();
    assert_eq!(yard.settle(&claim, Outcome::Release), Settled::Now(TaskState::Ready));
    assert_eq!(yard.view(ids[0]).attempt, 0);
    assert_eq!(yard.claimed_ids(2), ids);
}

#[test]
fn progress_is_noted_and_extends_the_claim() {
    let mut yard = Yard::new();
    let id = yard.submit_one(NewTask { max_run_ms: Some(1_000), ..task() });
    let claim = yard.claim_one();
    assert_eq!(claim.deadline_ms, Some(START + 1_000), "the sooner of the two");
    let note = Some("half".to_string());
    let hold = Some(Duration::from_millis(500));
    yard.settle(&claim, Outcome::Progress { note: None, hold });
    assert_eq!(yard.view(id).deadline_ms, Some(START + 500));
    let hold = Some(Duration::from_secs(5));
    let told = yard.settle(&claim, Outcome::Progress { note, hold });
    assert_eq!(told, Settled::Now(TaskState::Claimed));
    yard.settle(&claim, Outcome::Progress { note: None, hold: None });
    let view = yard.view(id);
    assert_eq!(
        (view.progress.as_deref(), view.deadline_ms),
        (Some("half"), Some(START + 1_000)),
        "its longest run"
    );
}

#[test]
fn a_task_for_later_is_scheduled_until_then() {
    let mut yard = Yard::new();
    let id = yard.submit_one(NewTask { run_at_ms: Some(START + 10), ..task() });
    assert_eq!(yard.state(id), TaskState::Scheduled);
    assert_eq!(yard.claim_as(seat(1)), (vec![], Some(Duration::from_millis(10))));
    yard.now += 30;
    assert_eq!(yard.claim_one().id, id);
    assert_eq!(yard.view(id).ready_at_ms, Some(START + 10));
    let past = yard.submit_one(NewTask { run_at_ms: Some(START), ..task() });
    assert_eq!(yard.state(past), TaskState::Ready);
}

#[test]
fn one_key_is_one_task_also_twice_in_one_submission() {
    let mut yard = Yard::new();
    let once = NewTask { key: Some("k".into()), ..task() };
    let got = yard.try_submit(vec![once.clone(), task(), once.clone()]).unwrap();
    assert_eq!(got.iter().map(|it| it.new).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(got[0].id, got[2].id);
    assert_eq!(yard.try_submit(vec![once.clone()]).unwrap(), [Submitted { id: got[0].id, new: false }]);
    // Another queue is another matter.
    let elsewhere = QueueKey::new(Name::default_namespace(), name("other"));
    let other = yard.ledger.submit(&Submission { queue: elsewhere, tasks: vec![once] }, yard.now).unwrap();
    assert!(other[0].new);
    assert_eq!(yard.ledger.queue(&queue(), yard.now).unwrap().count(TaskState::Ready), 2);
}

#[test]
fn priority_goes_first_then_age_then_number() {
    let mut yard = Yard::new();
    let old = yard.submit_one(task());
    yard.now += 119_000;
    let low = yard.submit_one(NewTask { priority: -1, ..task() });
    let ids = yard.submit(vec![task(), NewTask { priority: 2, ..task() }, task()]);
    assert_eq!(yard.claimed_ids(9), [ids[1], old, ids[0], ids[2], low]);
}

#[test]
fn the_place_is_kept_over_attempts() {
    let mut yard = Yard::new();
    let first = yard.submit_one(task());
    yard.now += 10;
    let second = yard.submit_one(task());
    let claim = yard.claim_one();
    yard.fail(&claim, true, 1_000);
    yard.now += 1_000;
    assert_eq!(yard.claimed_ids(2), [first, second]);
}

#[test]
fn a_submission_that_makes_no_sense_changes_nothing() {
    let mut yard = Yard::new();
    let mut tasks = vec![task(), NewTask { max_attempts: 0, ..task() }];
    assert!(yard.try_submit(tasks.clone()).unwrap_err().message.contains("task 1: "));
    tasks[1] = after(&[TaskId(99)]);
    let error = yard.try_submit(tasks).unwrap_err();
    assert!(error.message.contains("no task 99"), "{error}");
    assert_eq!(yard.ledger.queue(&queue(), yard.now), None);
}

#[test]
fn tokens_grow_with_the_epoch() {
    let mut yard = Yard::new();
    yard.submit_one(task());
    let claim = yard.claim_one();
    yard.settle(&claim, Outcome::Release);
    yard.book.promote();
    assert_eq!(yard.claim_one().token, Token::first(1).next(1));
}
