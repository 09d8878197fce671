//! Claims about what workers say about their claims.

use std::time::Duration;

use tenure_core::Token;
use tenure_core::port::{
    ClaimedTask, DEPTH_MAX, FAILURES_KEPT, Json, NewTask, Outcome, PAYLOAD_MAX, Seat, Settled, TaskId,
    TaskState, Trouble,
};

use super::Subject;
use super::floor::{Floor, HOUR_MS, failure, ids, ordinary, seat};

/// Done, and this came of it.
pub async fn a_completed_task_keeps_its_output(subject: &Subject) {
    let floor = Floor::of(subject).await;
    floor.submit(ordinary(2)).await;
    let output: Json = r#"{"sum":42,"say":"o'k\\"}"#.parse().unwrap();
    let tasks = floor.claim(seat("w", 2)).await;
    for (task, output) in tasks.iter().zip([Some(output), None]) {
        let settled = floor.settle(task, Outcome::Complete(output.clone())).await;
        assert_eq!(settled, Settled::Now(TaskState::Completed));
        let view = floor.task(task.id).await;
        assert_eq!((view.state, view.output, view.attempt), (TaskState::Completed, output, 1));
        assert_eq!((view.worker.as_deref(), view.token, view.failures), (Some("w"), task.token, vec![]));
        assert!(view.finished_at_ms >= view.claimed_at_ms);
    }
    assert_eq!(floor.claim_all().await, []);
}

/// SQLite once kept outputs that PostgreSQL refuses, so that a worker that was moved to PostgreSQL failed there.
pub async fn an_output_that_is_too_deep_or_too_long_is_refused(subject: &Subject) {
    let floor = Floor::of(subject).await;
    floor.submit(ordinary(1)).await;
    let task = floor.claim_one().await;
    let nested = |depth: usize| ["[".repeat(depth), "]".repeat(depth)].concat();
    let output = |text: String| Outcome::Complete(Some(text.parse().expect("JSON")));
    for refused in [nested(DEPTH_MAX + 1), format!("\"{}\"", "x".repeat(PAYLOAD_MAX))] {
        let settlement = floor.settlement(task.id, task.token, output(refused));
        let error = floor.store.settle(&[settlement]).await.expect_err("it is refused");
        assert_eq!(error.kind, Trouble::Request, "{error}");
        assert_eq!(floor.state(task.id).await, TaskState::Claimed);
    }
    assert_eq!(floor.settle(&task, output(nested(100))).await, Settled::Now(TaskState::Completed));
}

/// An answer may be lost on the way, and the worker says it again.
pub async fn the_same_completion_may_be_said_again(subject: &Subject) {
    let floor = Floor::of(subject).await;
    floor.submit(ordinary(1)).await;
    let task = floor.claim_one().await;
    let output = |text: &str| Outcome::Complete(Some(Json::of(text).unwrap()));
    assert_eq!(floor.settle(&task, output("first")).await, Settled::Now(TaskState::Completed));
    assert_eq!(floor.settle(&task, output("second")).await, Settled::Now(TaskState::Completed));
    assert_eq!(floor.task(task.id).await.output.unwrap().as_str(), "\"first\"");
    for outcome in [failure(true, Duration::ZERO), Outcome::Release, progress(None, None)] {
        assert_eq!(floor.settle(&task, outcome).await, Settled::Lost);
    }
    let other = Token::from_u64(task.token.as_u64() + 1);
    assert_eq!(floor.settle_as(task.id, other, output("third")).await, Settled::Lost);
    assert_eq!(floor.state(task.id).await, TaskState::Completed);
}

/// At once or later, as the worker says; the attempt is counted and remembered.
pub async fn a_failed_task_is_tried_again(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let id = floor.submit_one(NewTask::default()).await;
    let first = floor.claim_one().await;
    assert_eq!(floor.settle(&first, failure(true, Duration::ZERO)).await, Settled::Now(TaskState::Ready));
    let second = floor.claim_one().await;
    assert_eq!((second.id, second.attempt), (id, 2));
    let hour = Duration::from_millis(HOUR_MS);
    assert_eq!(floor.settle(&second, failure(true, hour)).await, Settled::Now(TaskState::Scheduled));
    assert_eq!(floor.claim_all().await, []);
    let view = floor.task(id).await;
    assert_eq!((view.state, view.attempt, view.finished_at_ms), (TaskState::Scheduled, 2, None));
    let failures: Vec<_> =
        view.failures.iter().map(|it| (it.attempt, it.worker.as_str(), it.error.as_str())).collect();
    assert_eq!(failures, [(1, "w", "it broke"), (2, "w", "it broke")]);
    let waits = view.run_at_ms.unwrap() - view.failures[1].at_ms;
    assert!((waits - HOUR_MS.cast_signed()).abs() < 1000, "{waits} ms from the failure to the next attempt");
}

/// A place in the queue is kept over attempts.
pub async fn a_task_keeps_its_place_over_attempts(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let numbers = floor.submit(ordinary(3)).await;
    let before = floor.task(numbers[0]).await.effective_at_ms;
    let task = floor.claim(seat("w", 1)).await.remove(0);
    assert_eq!(task.id, numbers[0]);
    floor.settle(&task, failure(true, Duration::ZERO)).await;
    assert_eq!(floor.task(numbers[0]).await.effective_at_ms, before);
    assert_eq!(floor.claim_all().await, numbers);
}

/// Not worth another attempt.
pub async fn a_failure_for_good_is_the_end(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let id = floor.submit_one(NewTask::default()).await;
    let task = floor.claim_one().await;
    assert_eq!(floor.settle(&task, failure(false, Duration::ZERO)).await, Settled::Now(TaskState::Dead));
    let view = floor.task(id).await;
    assert_eq!((view.state, view.attempt, view.failures.len()), (TaskState::Dead, 1, 1));
    assert!(view.finished_at_ms.is_some() && view.reason.is_some(), "{view:?}");
    assert_eq!(floor.claim_all().await, []);
    assert_eq!(floor.settle(&task, Outcome::Complete(None)).await, Settled::Lost);
}

/// As many as were asked for, and no more.
pub async fn the_last_attempt_is_the_last(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let id = floor.submit_one(NewTask { max_attempts: 3, ..NewTask::default() }).await;
    for (attempt, state) in [(1, TaskState::Ready), (2, TaskState::Ready), (3, TaskState::Dead)] {
        let task = floor.claim_one().await;
        assert_eq!(task.attempt, attempt);
        assert_eq!(floor.settle(&task, failure(true, Duration::ZERO)).await, Settled::Now(state));
    }
    let view = floor.task(id).await;
    assert_eq!((view.state, view.attempt, view.failures.len()), (TaskState::Dead, 3, 3));
    assert_eq!(floor.claim_all().await, []);
}

/// Enough to see what is wrong, and not more.
pub async fn the_last_failures_are_remembered(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let id = floor.submit_one(NewTask::default()).await;
    let tries = u32::try_from(FAILURES_KEPT).unwrap() + 3;
    for n in 1..=tries {
        let task = floor.claim_one().await;
        let error = format!("error '{n}'");
        floor.settle(&task, Outcome::Fail { error, retry: true, after: Duration::ZERO }).await;
    }
    let failures = floor.task(id).await.failures;
    let attempts: Vec<_> = failures.iter().map(|failure| failure.attempt).collect();
    assert_eq!(attempts, (4..=tries).collect::<Vec<_>>());
    assert_eq!(failures.last().unwrap().error, format!("error '{tries}'"));
}

/// What was not begun does not count.
pub async fn a_released_task_was_not_tried(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let id = floor.submit_one(NewTask { max_attempts: 1, ..NewTask::default() }).await;
    for _ in 0..3 {
        let task = floor.claim_one().await;
        assert_eq!(task.attempt, 1);
        assert_eq!(floor.settle(&task, Outcome::Release).await, Settled::Now(TaskState::Ready));
        let view = floor.task(id).await;
        assert_eq!((view.state, view.attempt, view.failures), (TaskState::Ready, 0, vec![]));
        assert_eq!((view.session, view.deadline_ms), (None, None));
    }
    assert_eq!(ids(&[floor.claim_one().await]), [id]);
}

/// How far, and for how much longer.
pub async fn progress_is_noted_and_extends_the_claim(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let id = floor.submit_one(NewTask { max_run_ms: Some(99 * HOUR_MS), ..NewTask::default() }).await;
    let task = floor.claim(Seat { hold_ms: Some(HOUR_MS), ..seat("w", 1) }).await.remove(0);
    let deadline = floor.task(id).await.deadline_ms.expect("it has one");
    assert_eq!(
        floor.settle(&task, progress(Some("half o'f it"), None)).await,
        Settled::Now(TaskState::Claimed)
    );
    let view = floor.task(id).await;
    assert_eq!((view.progress.as_deref(), view.deadline_ms), (Some("half o'f it"), Some(deadline)));
    let longer = Some(Duration::from_millis(9 * HOUR_MS));
    assert_eq!(floor.settle(&task, progress(None, longer)).await, Settled::Now(TaskState::Claimed));
    let view = floor.task(id).await;
    assert_eq!(view.progress.as_deref(), Some("half o'f it"), "no news is no change");
    assert!(view.deadline_ms >= Some(deadline + 8 * HOUR_MS.cast_signed() - 1));
    assert_eq!((view.state, view.token, view.attempt), (TaskState::Claimed, task.token, 1));
    floor.complete(&task).await;
}

/// A time that never comes is a long one, and nothing else.
pub async fn the_longest_times_are_taken(subject: &Subject) {
    let floor = Floor::of(subject).await;
    floor.submit(ordinary(2)).await;
    let tasks = floor.claim(seat("w", 2)).await;
    let on = progress(None, Some(Duration::MAX));
    assert_eq!(floor.settle(&tasks[0], on).await, Settled::Now(TaskState::Claimed));
    let never = failure(true, Duration::MAX);
    assert_eq!(floor.settle(&tasks[1], never).await, Settled::Now(TaskState::Scheduled));
}

/// However often somebody says that it goes on, and for however long: its longest run is its longest.
pub async fn progress_does_not_outlast_the_longest_run(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let id = floor.submit_one(NewTask { max_run_ms: Some(2 * HOUR_MS), ..NewTask::default() }).await;
    let task = floor.claim(Seat { hold_ms: Some(HOUR_MS), ..seat("w", 1) }).await.remove(0);
    let claimed = floor.task(id).await.claimed_at_ms.expect("claimed");
    for hours in [9, 3] {
        let longer = Some(Duration::from_millis(hours * HOUR_MS));
        assert_eq!(floor.settle(&task, progress(None, longer)).await, Settled::Now(TaskState::Claimed));
        assert_eq!(floor.task(id).await.deadline_ms, Some(claimed + 2 * HOUR_MS.cast_signed()));
    }
    let shorter = Some(Duration::from_millis(HOUR_MS / 2));
    assert_eq!(floor.settle(&task, progress(None, shorter)).await, Settled::Now(TaskState::Claimed));
    assert!(floor.task(id).await.deadline_ms < Some(claimed + 2 * HOUR_MS.cast_signed()));
    assert_eq!(floor.settle(&task, progress(Some("on"), None)).await, Settled::Now(TaskState::Claimed));
    assert!(floor.task(id).await.deadline_ms < Some(claimed + 2 * HOUR_MS.cast_signed()));
}

/// A claim that was lost is lost, whatever is said under its token, and nothing changes.
pub async fn a_stale_token_changes_nothing(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let id = floor.submit_one(NewTask::default()).await;
    let old = floor.claim_one().await;
    floor.settle(&old, Outcome::Release).await;
    let ready = floor.task(id).await;
    say_all(&floor, id, old.token).await;
    assert_eq!(floor.task(id).await, ready);
    let new = floor.claim_one().await;
    let claimed = floor.task(id).await;
    for token in [old.token, Token::ZERO, Token::from_u64(new.token.as_u64() + 1)] {
        say_all(&floor, id, token).await;
        assert_eq!(floor.task(id).await, claimed, "under {token}");
    }
    say_all(&floor, TaskId(id.0 + 1000), new.token).await;
    floor.complete(&new).await;
}

async fn say_all(floor: &Floor, id: TaskId, token: Token) {
    let outcomes = [
        Outcome::Complete(None),
        failure(true, Duration::ZERO),
        failure(false, Duration::ZERO),
        Outcome::Release,
        progress(Some("still here"), Some(Duration::from_secs(9))),
    ];
    for outcome in outcomes {
        assert_eq!(floor.settle_as(id, token, outcome.clone()).await, Settled::Lost, "{outcome:?}");
    }
}

/// Many at once, of every sort, each with its own answer.
pub async fn many_settlements_are_answered_in_their_order(subject: &Subject) {
    let floor = Floor::of(subject).await;
    floor.submit(ordinary(6)).await;
    let tasks = floor.claim(seat("w", 6)).await;
    let say = |task: &ClaimedTask, outcome| floor.settlement(task.id, task.token, outcome);
    let mut stale = tasks[2].clone();
    stale.token = Token::ZERO;
    let settlements = [
        say(&tasks[5], Outcome::Complete(None)),
        say(&stale, Outcome::Complete(None)),
        say(&tasks[0], failure(true, Duration::ZERO)),
        say(&tasks[1], failure(false, Duration::ZERO)),
        say(&tasks[3], Outcome::Release),
        say(&tasks[4], progress(Some("on"), None)),
        say(&tasks[2], failure(true, Duration::from_millis(HOUR_MS))),
    ];
    use TaskState::{Claimed, Completed, Dead, Ready, Scheduled};
    let expected = [
        Settled::Now(Completed),
        Settled::Lost,
        Settled::Now(Ready),
        Settled::Now(Dead),
        Settled::Now(Ready),
        Settled::Now(Claimed),
        Settled::Now(Scheduled),
    ];
    assert_eq!(floor.store.settle(&settlements).await.unwrap(), expected);
    assert_eq!(floor.states(&ids(&tasks)).await, [Ready, Dead, Scheduled, Ready, Claimed, Completed]);
    assert_eq!(floor.store.settle(&[]).await, Ok(vec![]));
}

/// Calls of one process share a statement: a worker's last progress and its completion may come together.
pub async fn what_is_said_of_one_claim_is_heard_in_its_order(subject: &Subject) {
    let floor = Floor::of(subject).await;
    floor.submit(ordinary(3)).await;
    let tasks = floor.claim(seat("w", 3)).await;
    let say = |task: &ClaimedTask, outcome| floor.settlement(task.id, task.token, outcome);
    let settlements = [
        say(&tasks[0], progress(Some("nearly"), None)),
        say(&tasks[1], Outcome::Release),
        say(&tasks[2], Outcome::Complete(None)),
        say(&tasks[0], Outcome::Complete(None)),
        say(&tasks[1], Outcome::Complete(None)),
        say(&tasks[2], Outcome::Complete(None)),
    ];
    use TaskState::{Claimed, Completed, Ready};
    let expected = [
        Settled::Now(Claimed),
        Settled::Now(Ready),
        Settled::Now(Completed),
        Settled::Now(Completed),
        Settled::Lost,
        Settled::Now(Completed),
    ];
    assert_eq!(floor.store.settle(&settlements).await.unwrap(), expected);
    assert_eq!(floor.states(&ids(&tasks)).await, [Completed, Ready, Completed]);
    assert_eq!(floor.task(tasks[0].id).await.progress.as_deref(), Some("nearly"));
}

/// Several say several things about one claim at once.
pub async fn of_concurrent_settlements_one_counts(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(floor.again(subject).await);
    }
    for _ in 0..6 {
        let id = floor.submit_one(NewTask::default()).await;
        let task = floor.claim_one().await;
        let outcomes = [Outcome::Complete(None), failure(false, Duration::ZERO), Outcome::Release];
        let saying: Vec<_> = clients
            .iter()
            .cloned()
            .zip(outcomes)
            .map(|(floor, outcome)| {
                let task = task.clone();
                tokio::spawn(async move { floor.settle(&task, outcome).await })
            })
            .collect();
        let mut counted = Vec::new();
        for said in saying {
            counted.extend(match said.await.expect("no panic") {
                Settled::Now(state) => Some(state),
                Settled::Lost => None,
            });
        }
        assert_eq!(counted, [floor.state(id).await], "exactly one counts");
        for task in floor.claim(seat("w", 9)).await {
            floor.complete(&task).await;
        }
    }
}

/// Progress.
pub(super) fn progress(note: Option<&str>, hold: Option<Duration>) -> Outcome {
    Outcome::Progress { note: note.map(str::to_owned), hold }
}
