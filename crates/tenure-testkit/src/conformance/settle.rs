//! Settlement of claims.

use std::time::Duration;

use tenure_core::Token;
use tenure_core::port::{
    ClaimOutcome, ClaimRequest, ClaimedTask, DEPTH_MAX, ErrorKind, FAILURES_MAX, NewTask, PAYLOAD_MAX,
    RawJson, SettleResult, TaskId, TaskState,
};

use super::StoreUnderTest;
use super::test_queue::{HOUR_MS, TestQueue, claim_request, failure, ids, ordinary};

/// A completed task keeps the result that its worker reported.
pub async fn a_completed_task_keeps_its_result(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    test_queue.submit(ordinary(2)).await;
    let output: RawJson = r#"{"sum":42,"say":"o'k\\"}"#.parse().unwrap();
    let tasks = test_queue.claim(claim_request("w", 2)).await;
    for (task, output) in tasks.iter().zip([Some(output), None]) {
        let settled = test_queue.settle(task, ClaimOutcome::Complete(output.clone())).await;
        assert_eq!(settled, SettleResult::Applied(TaskState::Completed));
        let view = test_queue.task(task.id).await;
        assert_eq!((view.state, view.result, view.attempt), (TaskState::Completed, output, 1));
        assert_eq!((view.worker.as_deref(), view.token, view.failures), (Some("w"), task.token, vec![]));
        assert!(view.finished_at_ms >= view.claimed_at_ms);
    }
    assert_eq!(test_queue.claim_all().await, []);
}

/// SQLite once kept results that PostgreSQL rejects, so a worker that moved to PostgreSQL failed there.
pub async fn a_result_that_is_too_deep_or_too_large_is_rejected(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    test_queue.submit(ordinary(1)).await;
    let task = test_queue.claim_one().await;
    let nested = |depth: usize| ["[".repeat(depth), "]".repeat(depth)].concat();
    let output = |text: String| ClaimOutcome::Complete(Some(text.parse().expect("JSON")));
    for refused in [nested(DEPTH_MAX + 1), format!("\"{}\"", "x".repeat(PAYLOAD_MAX))] {
        let settlement = test_queue.settlement(task.id, task.token, output(refused));
        let error = test_queue.store.settle(&[settlement]).await.expect_err("it is rejected");
        assert_eq!(error.kind, ErrorKind::Request, "{error}");
        assert_eq!(test_queue.state(task.id).await, TaskState::Claimed);
    }
    assert_eq!(
        test_queue.settle(&task, output(nested(100))).await,
        SettleResult::Applied(TaskState::Completed)
    );
}

/// A response may be lost, and the worker repeats the call.
pub async fn a_completion_can_be_repeated(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    test_queue.submit(ordinary(1)).await;
    let task = test_queue.claim_one().await;
    let output = |text: &str| ClaimOutcome::Complete(Some(RawJson::of(text).unwrap()));
    assert_eq!(test_queue.settle(&task, output("first")).await, SettleResult::Applied(TaskState::Completed));
    assert_eq!(test_queue.settle(&task, output("second")).await, SettleResult::Applied(TaskState::Completed));
    assert_eq!(test_queue.task(task.id).await.result.unwrap().as_str(), "\"first\"");
    for outcome in [failure(true, Duration::ZERO), ClaimOutcome::Release, progress(None, None)] {
        assert_eq!(test_queue.settle(&task, outcome).await, SettleResult::ClaimLost);
    }
    let other = Token::from_u64(task.token.as_u64() + 1);
    assert_eq!(test_queue.settle_as(task.id, other, output("third")).await, SettleResult::ClaimLost);
    assert_eq!(test_queue.state(task.id).await, TaskState::Completed);
}

/// A failed task becomes ready at once or after the requested delay; the attempt is counted and recorded.
pub async fn a_failed_task_is_retried(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let id = test_queue.submit_one(NewTask::default()).await;
    let first = test_queue.claim_one().await;
    assert_eq!(
        test_queue.settle(&first, failure(true, Duration::ZERO)).await,
        SettleResult::Applied(TaskState::Ready)
    );
    let second = test_queue.claim_one().await;
    assert_eq!((second.id, second.attempt), (id, 2));
    let hour = Duration::from_millis(HOUR_MS);
    assert_eq!(
        test_queue.settle(&second, failure(true, hour)).await,
        SettleResult::Applied(TaskState::Scheduled)
    );
    assert_eq!(test_queue.claim_all().await, []);
    let view = test_queue.task(id).await;
    assert_eq!((view.state, view.attempt, view.finished_at_ms), (TaskState::Scheduled, 2, None));
    let failures: Vec<_> =
        view.failures.iter().map(|it| (it.attempt, it.worker.as_str(), it.error.as_str())).collect();
    assert_eq!(failures, [(1, "w", "it broke"), (2, "w", "it broke")]);
    let waits = view.run_at_ms.unwrap() - view.failures[1].failed_at_ms;
    assert!((waits - HOUR_MS.cast_signed()).abs() < 1000, "{waits} ms from the failure to the next attempt");
}

/// A task keeps its queue position across attempts.
pub async fn a_task_keeps_its_position_over_attempts(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let numbers = test_queue.submit(ordinary(3)).await;
    let before = test_queue.task(numbers[0]).await.effective_at_ms;
    let task = test_queue.claim(claim_request("w", 1)).await.remove(0);
    assert_eq!(task.id, numbers[0]);
    test_queue.settle(&task, failure(true, Duration::ZERO)).await;
    assert_eq!(test_queue.task(numbers[0]).await.effective_at_ms, before);
    assert_eq!(test_queue.claim_all().await, numbers);
}

/// A failure without a retry makes the task dead, even if attempts are left.
pub async fn a_permanent_failure_makes_a_task_dead(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let id = test_queue.submit_one(NewTask::default()).await;
    let task = test_queue.claim_one().await;
    assert_eq!(
        test_queue.settle(&task, failure(false, Duration::ZERO)).await,
        SettleResult::Applied(TaskState::Dead)
    );
    let view = test_queue.task(id).await;
    assert_eq!((view.state, view.attempt, view.failures.len()), (TaskState::Dead, 1, 1));
    assert!(view.finished_at_ms.is_some() && view.end_reason.is_some(), "{view:?}");
    assert_eq!(test_queue.claim_all().await, []);
    assert_eq!(test_queue.settle(&task, ClaimOutcome::Complete(None)).await, SettleResult::ClaimLost);
}

/// A task runs exactly the maximum number of times.
pub async fn the_number_of_attempts_is_limited(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let id = test_queue.submit_one(NewTask { max_attempts: 3, ..NewTask::default() }).await;
    for (attempt, state) in [(1, TaskState::Ready), (2, TaskState::Ready), (3, TaskState::Dead)] {
        let task = test_queue.claim_one().await;
        assert_eq!(task.attempt, attempt);
        assert_eq!(
            test_queue.settle(&task, failure(true, Duration::ZERO)).await,
            SettleResult::Applied(state)
        );
    }
    let view = test_queue.task(id).await;
    assert_eq!((view.state, view.attempt, view.failures.len()), (TaskState::Dead, 3, 3));
    assert_eq!(test_queue.claim_all().await, []);
}

/// A task keeps its latest failures, up to a maximum.
pub async fn the_latest_failures_are_kept(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let id = test_queue.submit_one(NewTask::default()).await;
    let tries = u32::try_from(FAILURES_MAX).unwrap() + 3;
    for n in 1..=tries {
        let task = test_queue.claim_one().await;
        let error = format!("error '{n}'");
        test_queue.settle(&task, ClaimOutcome::Fail { error, retry: true, retry_in: Duration::ZERO }).await;
    }
    let failures = test_queue.task(id).await.failures;
    let attempts: Vec<_> = failures.iter().map(|failure| failure.attempt).collect();
    assert_eq!(attempts, (4..=tries).collect::<Vec<_>>());
    assert_eq!(failures.last().unwrap().error, format!("error '{tries}'"));
}

/// An attempt that was not started does not count.
pub async fn a_released_task_does_not_count_as_an_attempt(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let id = test_queue.submit_one(NewTask { max_attempts: 1, ..NewTask::default() }).await;
    for _ in 0..3 {
        let task = test_queue.claim_one().await;
        assert_eq!(task.attempt, 1);
        assert_eq!(
            test_queue.settle(&task, ClaimOutcome::Release).await,
            SettleResult::Applied(TaskState::Ready)
        );
        let view = test_queue.task(id).await;
        assert_eq!((view.state, view.attempt, view.failures), (TaskState::Ready, 0, vec![]));
        assert_eq!((view.session, view.claim_expires_at_ms), (None, None));
    }
    assert_eq!(ids(&[test_queue.claim_one().await]), [id]);
}

/// A heartbeat stores the progress text and the new claim timeout.
pub async fn a_heartbeat_stores_progress_and_extends_the_claim(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let id = test_queue.submit_one(NewTask { max_run_ms: Some(99 * HOUR_MS), ..NewTask::default() }).await;
    let task = test_queue
        .claim(ClaimRequest { claim_timeout_ms: Some(HOUR_MS), ..claim_request("w", 1) })
        .await
        .remove(0);
    let deadline = test_queue.task(id).await.claim_expires_at_ms.expect("it has one");
    assert_eq!(
        test_queue.settle(&task, progress(Some("half o'f it"), None)).await,
        SettleResult::Applied(TaskState::Claimed)
    );
    let view = test_queue.task(id).await;
    assert_eq!((view.progress.as_deref(), view.claim_expires_at_ms), (Some("half o'f it"), Some(deadline)));
    let longer = Some(Duration::from_millis(9 * HOUR_MS));
    assert_eq!(
        test_queue.settle(&task, progress(None, longer)).await,
        SettleResult::Applied(TaskState::Claimed)
    );
    let view = test_queue.task(id).await;
    assert_eq!(view.progress.as_deref(), Some("half o'f it"), "no progress text, no change");
    assert!(view.claim_expires_at_ms >= Some(deadline + 8 * HOUR_MS.cast_signed() - 1));
    assert_eq!((view.state, view.token, view.attempt), (TaskState::Claimed, task.token, 1));
    test_queue.complete(&task).await;
}

/// A delay beyond the maximum is shortened to the maximum and not rejected.
pub async fn the_longest_delays_are_accepted(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    test_queue.submit(ordinary(2)).await;
    let tasks = test_queue.claim(claim_request("w", 2)).await;
    let on = progress(None, Some(Duration::MAX));
    assert_eq!(test_queue.settle(&tasks[0], on).await, SettleResult::Applied(TaskState::Claimed));
    let never = failure(true, Duration::MAX);
    assert_eq!(test_queue.settle(&tasks[1], never).await, SettleResult::Applied(TaskState::Scheduled));
}

/// Heartbeats never extend a claim beyond the maximum run time.
pub async fn a_heartbeat_does_not_exceed_the_maximum_run_time(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let id = test_queue.submit_one(NewTask { max_run_ms: Some(2 * HOUR_MS), ..NewTask::default() }).await;
    let task = test_queue
        .claim(ClaimRequest { claim_timeout_ms: Some(HOUR_MS), ..claim_request("w", 1) })
        .await
        .remove(0);
    let claimed = test_queue.task(id).await.claimed_at_ms.expect("claimed");
    for hours in [9, 3] {
        let longer = Some(Duration::from_millis(hours * HOUR_MS));
        assert_eq!(
            test_queue.settle(&task, progress(None, longer)).await,
            SettleResult::Applied(TaskState::Claimed)
        );
        assert_eq!(test_queue.task(id).await.claim_expires_at_ms, Some(claimed + 2 * HOUR_MS.cast_signed()));
    }
    let shorter = Some(Duration::from_millis(HOUR_MS / 2));
    assert_eq!(
        test_queue.settle(&task, progress(None, shorter)).await,
        SettleResult::Applied(TaskState::Claimed)
    );
    assert!(test_queue.task(id).await.claim_expires_at_ms < Some(claimed + 2 * HOUR_MS.cast_signed()));
    assert_eq!(
        test_queue.settle(&task, progress(Some("on"), None)).await,
        SettleResult::Applied(TaskState::Claimed)
    );
    assert!(test_queue.task(id).await.claim_expires_at_ms < Some(claimed + 2 * HOUR_MS.cast_signed()));
}

/// A settlement under an old token changes nothing.
pub async fn a_stale_token_changes_nothing(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let id = test_queue.submit_one(NewTask::default()).await;
    let old = test_queue.claim_one().await;
    test_queue.settle(&old, ClaimOutcome::Release).await;
    let ready = test_queue.task(id).await;
    say_all(&test_queue, id, old.token).await;
    assert_eq!(test_queue.task(id).await, ready);
    let new = test_queue.claim_one().await;
    let claimed = test_queue.task(id).await;
    for token in [old.token, Token::ZERO, Token::from_u64(new.token.as_u64() + 1)] {
        say_all(&test_queue, id, token).await;
        assert_eq!(test_queue.task(id).await, claimed, "under {token}");
    }
    say_all(&test_queue, TaskId(id.0 + 1000), new.token).await;
    test_queue.complete(&new).await;
}

async fn say_all(test_queue: &TestQueue, id: TaskId, token: Token) {
    let outcomes = [
        ClaimOutcome::Complete(None),
        failure(true, Duration::ZERO),
        failure(false, Duration::ZERO),
        ClaimOutcome::Release,
        progress(Some("still running"), Some(Duration::from_secs(9))),
    ];
    for outcome in outcomes {
        assert_eq!(
            test_queue.settle_as(id, token, outcome.clone()).await,
            SettleResult::ClaimLost,
            "{outcome:?}"
        );
    }
}

/// One call settles many claims in different ways and returns one result per settlement, in order.
pub async fn settlement_results_are_in_request_order(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    test_queue.submit(ordinary(6)).await;
    let tasks = test_queue.claim(claim_request("w", 6)).await;
    let settlement_of = |task: &ClaimedTask, outcome| test_queue.settlement(task.id, task.token, outcome);
    let mut stale = tasks[2].clone();
    stale.token = Token::ZERO;
    let settlements = [
        settlement_of(&tasks[5], ClaimOutcome::Complete(None)),
        settlement_of(&stale, ClaimOutcome::Complete(None)),
        settlement_of(&tasks[0], failure(true, Duration::ZERO)),
        settlement_of(&tasks[1], failure(false, Duration::ZERO)),
        settlement_of(&tasks[3], ClaimOutcome::Release),
        settlement_of(&tasks[4], progress(Some("on"), None)),
        settlement_of(&tasks[2], failure(true, Duration::from_millis(HOUR_MS))),
    ];
    use TaskState::{Claimed, Completed, Dead, Ready, Scheduled};
    let expected = [
        SettleResult::Applied(Completed),
        SettleResult::ClaimLost,
        SettleResult::Applied(Ready),
        SettleResult::Applied(Dead),
        SettleResult::Applied(Ready),
        SettleResult::Applied(Claimed),
        SettleResult::Applied(Scheduled),
    ];
    assert_eq!(test_queue.store.settle(&settlements).await.unwrap(), expected);
    assert_eq!(test_queue.states(&ids(&tasks)).await, [Ready, Dead, Scheduled, Ready, Claimed, Completed]);
    assert_eq!(test_queue.store.settle(&[]).await, Ok(vec![]));
}

/// Calls of one process share a statement, so a heartbeat and the completion of one claim may arrive together.
pub async fn settlements_of_one_claim_are_applied_in_order(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    test_queue.submit(ordinary(3)).await;
    let tasks = test_queue.claim(claim_request("w", 3)).await;
    let settlement_of = |task: &ClaimedTask, outcome| test_queue.settlement(task.id, task.token, outcome);
    let settlements = [
        settlement_of(&tasks[0], progress(Some("nearly"), None)),
        settlement_of(&tasks[1], ClaimOutcome::Release),
        settlement_of(&tasks[2], ClaimOutcome::Complete(None)),
        settlement_of(&tasks[0], ClaimOutcome::Complete(None)),
        settlement_of(&tasks[1], ClaimOutcome::Complete(None)),
        settlement_of(&tasks[2], ClaimOutcome::Complete(None)),
    ];
    use TaskState::{Claimed, Completed, Ready};
    let expected = [
        SettleResult::Applied(Claimed),
        SettleResult::Applied(Ready),
        SettleResult::Applied(Completed),
        SettleResult::Applied(Completed),
        SettleResult::ClaimLost,
        SettleResult::Applied(Completed),
    ];
    assert_eq!(test_queue.store.settle(&settlements).await.unwrap(), expected);
    assert_eq!(test_queue.states(&ids(&tasks)).await, [Completed, Ready, Completed]);
    assert_eq!(test_queue.task(tasks[0].id).await.progress.as_deref(), Some("nearly"));
}

/// Of several concurrent settlements of one claim, one is applied.
pub async fn of_concurrent_settlements_one_is_applied(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(test_queue.reopen(subject).await);
    }
    for _ in 0..6 {
        let id = test_queue.submit_one(NewTask::default()).await;
        let task = test_queue.claim_one().await;
        let outcomes = [ClaimOutcome::Complete(None), failure(false, Duration::ZERO), ClaimOutcome::Release];
        let saying: Vec<_> = clients
            .iter()
            .cloned()
            .zip(outcomes)
            .map(|(test_queue, outcome)| {
                let task = task.clone();
                tokio::spawn(async move { test_queue.settle(&task, outcome).await })
            })
            .collect();
        let mut counted = Vec::new();
        for message in saying {
            counted.extend(match message.await.expect("no panic") {
                SettleResult::Applied(state) => Some(state),
                SettleResult::ClaimLost => None,
            });
        }
        assert_eq!(counted, [test_queue.state(id).await], "exactly one is applied");
        for task in test_queue.claim(claim_request("w", 9)).await {
            test_queue.complete(&task).await;
        }
    }
}

/// A heartbeat.
pub(super) fn progress(note: Option<&str>, hold: Option<Duration>) -> ClaimOutcome {
    ClaimOutcome::Heartbeat { progress: note.map(str::to_owned), claim_timeout: hold }
}
