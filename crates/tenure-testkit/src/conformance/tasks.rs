//! Submission of tasks.

use std::collections::BTreeSet;

use tenure_core::port::{
    Backoff, NewTask, PRIORITY_STEP_MS, ParentRef, QueueKey, QueueSettings, SettleResult, Submission,
    TaskAction, TaskId, TaskState,
};
use tenure_core::{Name, Token};

use super::StoreUnderTest;
use super::test_queue::{HOUR_MS, TestQueue, claim_request, ordinary, queue, strings};

/// All fields are kept, whatever characters they contain.
pub async fn a_submitted_task_keeps_all_fields(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let parent = test_queue.submit_one(NewTask::new("parent")).await;
    let task = NewTask {
        kind: "send".into(),
        payload: r#"{"to":"o'neil","say":"\"hé\\llo\n\""}"#.parse().expect("JSON"),
        priority: -7,
        required_tags: strings(&["gpu", "zone-a"]),
        preferred_tags: strings(&["big", "near"]),
        allowed_workers: strings(&["w-1", "w-2"]),
        run_at_ms: Some(4_102_444_800_123),
        max_wait_ms: Some(1_234_567),
        max_run_ms: Some(7_654_321),
        max_attempts: 3,
        backoff: Backoff { initial_ms: 17, max_ms: 18 },
        parents: vec![ParentRef::Task(parent)],
        idempotency_key: Some("k'1".into()),
        concurrency_key: Some("c\"1".into()),
        concurrency_limit: 4,
        leader_token: Some(Token::from_u64((2 << 40) + 5)),
    };
    let id = test_queue.submit_one(task.clone()).await;
    let view = test_queue.task(id).await;
    assert_eq!(
        (view.id, &view.namespace, &view.queue),
        (id, &test_queue.key.namespace, &test_queue.key.name)
    );
    assert_eq!((view.kind, view.payload, view.result), (task.kind, task.payload, None));
    assert_eq!(
        (view.required_tags, view.preferred_tags, view.allowed_workers),
        (task.required_tags, task.preferred_tags, task.allowed_workers)
    );
    assert_eq!((view.priority, view.state), (-7, TaskState::Waiting));
    assert_eq!((view.attempt, view.max_attempts, view.worker, view.session), (0, 3, None, None));
    assert_eq!((view.run_at_ms, view.max_wait_ms), (task.run_at_ms, task.max_wait_ms));
    assert_eq!((view.max_run_ms, view.idempotency_key), (task.max_run_ms, task.idempotency_key));
    assert_eq!((view.concurrency_key, view.concurrency_limit), (task.concurrency_key, 4));
    assert_eq!((view.parents, view.children), (vec![parent], vec![]));
    assert_eq!((view.leader_token, view.claim_seq), (task.leader_token, None));
    assert_eq!(view.backoff, task.backoff);
    assert_eq!((view.failures, view.end_reason, view.progress), (vec![], None, None));
    assert_eq!((view.claimed_at_ms, view.claim_expires_at_ms, view.finished_at_ms), (None, None, None));
    assert_eq!(test_queue.task(parent).await.children, [id]);
}

/// Each point of priority moves a task forward by one minute; the position is fixed at submission.
pub async fn priority_moves_a_task_by_minutes(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    for priority in [0, 1, -1, 1_000_000, -1_000_000] {
        let view =
            test_queue.task(test_queue.submit_one(NewTask { priority, ..NewTask::default() }).await).await;
        assert_eq!(
            view.effective_at_ms,
            view.submitted_at_ms - i64::from(priority) * PRIORITY_STEP_MS,
            "priority {priority}"
        );
    }
}

/// The first submission creates the queue.
pub async fn a_queue_is_created_by_its_first_submission(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    assert_eq!(test_queue.store.queue(&test_queue.key).await, Ok(None));
    test_queue.submit(ordinary(2)).await;
    let view = test_queue.view().await;
    assert_eq!(
        (view.key.clone(), view.settings, view.paused.clone()),
        (test_queue.key.clone(), QueueSettings::default(), None)
    );
    assert_eq!((view.count(TaskState::Ready), view.counts.values().sum::<u64>()), (2, 2));
    assert!(view.oldest_ready_age_ms.is_some());
}

/// One receipt per task, in order; ids are never reused.
pub async fn submit_receipts_are_in_request_order(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let kinds: Vec<String> = (0..40).map(|n| format!("kind-{n}")).collect();
    let numbers = test_queue.submit(kinds.iter().map(NewTask::new).collect()).await;
    assert_eq!(numbers.iter().collect::<BTreeSet<_>>().len(), 40);
    for (kind, id) in kinds.iter().zip(&numbers) {
        assert_eq!(test_queue.task(*id).await.kind, *kind);
    }
    let more = test_queue.submit(ordinary(3)).await;
    assert!(more.iter().all(|id| !numbers.contains(id)));
    // Ids grow, so the newest tasks come first in lists.
    assert!(numbers.is_sorted() && more.iter().min() > numbers.iter().max());
}

/// A repeated submission returns the first task: in the same call, in a later call, or after the task finished.
pub async fn an_idempotency_key_identifies_a_task(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let keyed = |kind: &str| NewTask { idempotency_key: Some("once".into()), ..NewTask::new(kind) };
    let tasks = vec![keyed("first"), NewTask::new("other"), keyed("second")];
    let submission = Submission { queue: test_queue.key.clone(), tasks };
    let first = test_queue.store.submit(&submission).await.unwrap();
    assert_eq!(first.iter().map(|it| it.created).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(first[2].id, first[0].id);
    let again = test_queue.store.submit(&submission).await.unwrap();
    assert_eq!(again.iter().map(|it| it.created).collect::<Vec<_>>(), [false, true, false]);
    assert_eq!((again[0].id, again[2].id), (first[0].id, first[0].id));
    assert_eq!(test_queue.task(first[0].id).await.kind, "first");
    assert_eq!(test_queue.view().await.counts.values().sum::<u64>(), 3);
    for task in test_queue.claim(claim_request("w", 10)).await {
        test_queue.complete(&task).await;
    }
    let late = test_queue.store.submit(&submission).await.unwrap();
    assert_eq!((late[0].id, late[0].created), (first[0].id, false));
}

/// The same idempotency key in another queue or namespace identifies another task.
pub async fn an_idempotency_key_belongs_to_its_queue(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let elsewhere = QueueKey::new("else".parse().unwrap(), "q".parse().unwrap());
    let keyed = || NewTask { idempotency_key: Some("once".into()), ..NewTask::default() };
    let mut observed = BTreeSet::new();
    for key in [test_queue.key.clone(), queue("r"), elsewhere] {
        let submission = Submission { queue: key, tasks: vec![keyed()] };
        let submitted = test_queue.store.submit(&submission).await.unwrap()[0];
        assert!(submitted.created && observed.insert(submitted.id));
    }
}

/// Of several concurrent submissions with the same idempotency key, one is stored.
pub async fn of_concurrent_submissions_with_one_key_one_is_stored(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(test_queue.reopen(subject).await);
    }
    for round in 0..5 {
        let submits: Vec<_> = clients
            .iter()
            .cloned()
            .map(|test_queue| {
                let task = NewTask { idempotency_key: Some(format!("k{round}")), ..NewTask::default() };
                let submission = Submission { queue: test_queue.key.clone(), tasks: vec![task] };
                tokio::spawn(async move { test_queue.store.submit(&submission).await.expect("submit")[0] })
            })
            .collect();
        let mut results = Vec::new();
        for submit in submits {
            results.push(submit.await.expect("no panic"));
        }
        assert_eq!(results.iter().filter(|it| it.created).count(), 1, "{results:?}");
        assert_eq!(results.iter().map(|it| it.id).collect::<BTreeSet<_>>().len(), 1, "{results:?}");
    }
    assert_eq!(test_queue.view().await.count(TaskState::Ready), 5);
}

/// The error names the missing parent; a task of another namespace does not exist.
pub async fn an_unknown_parent_is_rejected_by_name(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let foreign = test_queue.other_queue(QueueKey::new("else".parse().unwrap(), "q".parse().unwrap()));
    let stranger = foreign.submit_one(NewTask::default()).await;
    for unknown in [TaskId(987_654_321), stranger] {
        let child = NewTask { parents: vec![ParentRef::Task(unknown)], ..NewTask::default() };
        let message = test_queue.submit_rejected(vec![NewTask::default(), child]).await;
        assert!(message.contains(&unknown.to_string()), "it names {unknown}: {message}");
    }
    // The submission is rejected as a whole.
    let left = test_queue.store.queue(&test_queue.key).await.unwrap();
    assert_eq!(left.map_or(0, |view| view.counts.values().sum()), 0);
    assert_eq!(foreign.task(stranger).await.children, []);
}

/// A task whose parent is dead or cancelled is rejected, because it would wait forever.
pub async fn a_dead_or_cancelled_parent_is_rejected(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let dead = test_queue.submit_one(NewTask::default()).await;
    let claimed = test_queue.claim_one().await;
    test_queue.kill(&claimed).await;
    let cancelled = test_queue.submit_one(NewTask::default()).await;
    assert_eq!(test_queue.apply_action(cancelled, TaskAction::Cancel).await, [cancelled]);
    for parent in [dead, cancelled] {
        let child = NewTask { parents: vec![ParentRef::Task(parent)], ..NewTask::default() };
        let message = test_queue.submit_rejected(vec![child]).await;
        assert!(message.contains(&parent.to_string()) && message.contains("retry"), "{message}");
    }
    assert_eq!(test_queue.view().await.counts.values().sum::<u64>(), 2);
}

/// A task whose parents are all completed is ready at once.
pub async fn a_completed_parent_does_not_delay_a_child(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let parent = test_queue.submit_one(NewTask::default()).await;
    let claimed = test_queue.claim_one().await;
    test_queue.complete(&claimed).await;
    let child = NewTask { parents: vec![ParentRef::Task(parent)], ..NewTask::default() };
    let child = test_queue.submit_one(child).await;
    assert_eq!(test_queue.state(child).await, TaskState::Ready);
    assert_eq!(test_queue.claim_all().await, [child]);
}

/// A `run_at` in the future delays the task, one in the past does not.
pub async fn a_task_with_a_future_start_is_scheduled(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let now = test_queue.task(test_queue.submit_one(NewTask::default()).await).await.submitted_at_ms;
    let at = |run_at_ms| NewTask { run_at_ms: Some(run_at_ms), ..NewTask::default() };
    let tasks = vec![at(now + HOUR_MS.cast_signed()), at(now - 1), at(0)];
    let numbers = test_queue.submit(tasks).await;
    let states = test_queue.states(&numbers).await;
    assert_eq!(states, [TaskState::Scheduled, TaskState::Ready, TaskState::Ready]);
    assert_eq!(test_queue.task(numbers[0]).await.run_at_ms, Some(now + HOUR_MS.cast_signed()));
}

/// A task cannot be seen, claimed or settled through another namespace.
pub async fn a_task_belongs_to_its_namespace(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let elsewhere: Name = "else".parse().unwrap();
    let foreign = test_queue.other_queue(QueueKey::new(elsewhere.clone(), test_queue.key.name.clone()));
    let id = test_queue.submit_one(NewTask::default()).await;
    assert_eq!(test_queue.store.task(&elsewhere, id).await, Ok(None));
    assert_eq!(test_queue.store.wait_reasons(&elsewhere, id).await, Ok(None));
    assert_eq!(foreign.claim_all().await, []);
    let claimed = test_queue.claim_one().await;
    let lost = foreign.settle(&claimed, tenure_core::port::ClaimOutcome::Complete(None)).await;
    assert_eq!(lost, SettleResult::ClaimLost);
    assert_eq!(test_queue.store.apply_task_action(&elsewhere, &[id], TaskAction::Cancel).await, Ok(vec![]));
    assert_eq!(test_queue.state(id).await, TaskState::Claimed);
}
