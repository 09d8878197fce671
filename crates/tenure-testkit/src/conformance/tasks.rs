//! Claims about submitting tasks.

use std::collections::BTreeSet;

use tenure_core::port::{
    Backoff, NewTask, Order, PRIORITY_STEP_MS, Parent, QueueKey, QueueSettings, Settled, Submission, TaskId,
    TaskState,
};
use tenure_core::{Name, Token};

use super::Subject;
use super::floor::{Floor, HOUR_MS, ordinary, queue, seat, strings};

/// Nothing of what was asked for is lost on the way, however it is spelled.
pub async fn a_submitted_task_is_kept_whole(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let parent = floor.submit_one(NewTask::new("parent")).await;
    let task = NewTask {
        kind: "send".into(),
        payload: r#"{"to":"o'neil","say":"\"hé\\llo\n\""}"#.parse().expect("JSON"),
        priority: -7,
        requires: strings(&["gpu", "zone-a"]),
        prefers: strings(&["big", "near"]),
        workers: strings(&["w-1", "w-2"]),
        run_at_ms: Some(4_102_444_800_123),
        max_wait_ms: Some(1_234_567),
        max_run_ms: Some(7_654_321),
        max_attempts: 3,
        backoff: Backoff { first_ms: 17, most_ms: 18 },
        parents: vec![Parent::Task(parent)],
        key: Some("k'1".into()),
        concurrency_key: Some("c\"1".into()),
        concurrency_limit: 4,
        leader_token: Some(Token::from_u64((2 << 40) + 5)),
    };
    let id = floor.submit_one(task.clone()).await;
    let view = floor.task(id).await;
    assert_eq!((view.id, &view.namespace, &view.queue), (id, &floor.key.namespace, &floor.key.name));
    assert_eq!((view.kind, view.payload, view.output), (task.kind, task.payload, None));
    assert_eq!((view.requires, view.prefers, view.workers), (task.requires, task.prefers, task.workers));
    assert_eq!((view.priority, view.state), (-7, TaskState::Waiting));
    assert_eq!((view.attempt, view.max_attempts, view.worker, view.session), (0, 3, None, None));
    assert_eq!((view.run_at_ms, view.max_wait_ms), (task.run_at_ms, task.max_wait_ms));
    assert_eq!((view.max_run_ms, view.key), (task.max_run_ms, task.key));
    assert_eq!((view.concurrency_key, view.concurrency_limit), (task.concurrency_key, 4));
    assert_eq!((view.parents, view.children), (vec![parent], vec![]));
    assert_eq!((view.leader_token, view.turn), (task.leader_token, None));
    assert_eq!(view.backoff, task.backoff);
    assert_eq!((view.failures, view.reason, view.progress), (vec![], None, None));
    assert_eq!((view.claimed_at_ms, view.deadline_ms, view.finished_at_ms), (None, None, None));
    assert_eq!(floor.task(parent).await.children, [id]);
}

/// Each point of priority is worth a minute, once and for all.
pub async fn priority_moves_a_task_by_minutes(subject: &Subject) {
    let floor = Floor::of(subject).await;
    for priority in [0, 1, -1, 1_000_000, -1_000_000] {
        let view = floor.task(floor.submit_one(NewTask { priority, ..NewTask::default() }).await).await;
        assert_eq!(
            view.effective_at_ms,
            view.enqueued_at_ms - i64::from(priority) * PRIORITY_STEP_MS,
            "priority {priority}"
        );
    }
}

/// Nobody has to make a queue.
pub async fn a_queue_is_made_by_its_first_submission(subject: &Subject) {
    let floor = Floor::of(subject).await;
    assert_eq!(floor.store.queue(&floor.key).await, Ok(None));
    floor.submit(ordinary(2)).await;
    let view = floor.view().await;
    assert_eq!(
        (view.key.clone(), view.settings, view.paused.clone()),
        (floor.key.clone(), QueueSettings::default(), None)
    );
    assert_eq!((view.count(TaskState::Ready), view.counts.values().sum::<u64>()), (2, 2));
    assert!(view.oldest_ready_ms.is_some());
}

/// One result for each, in their order; numbers are given once.
pub async fn results_come_in_the_order_of_the_tasks(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let kinds: Vec<String> = (0..40).map(|n| format!("kind-{n}")).collect();
    let numbers = floor.submit(kinds.iter().map(NewTask::new).collect()).await;
    assert_eq!(numbers.iter().collect::<BTreeSet<_>>().len(), 40);
    for (kind, id) in kinds.iter().zip(&numbers) {
        assert_eq!(floor.task(*id).await.kind, *kind);
    }
    let more = floor.submit(ordinary(3)).await;
    assert!(more.iter().all(|id| !numbers.contains(id)));
    // As numbers grow, the newest come first where they are listed.
    assert!(numbers.is_sorted() && more.iter().min() > numbers.iter().max());
}

/// Submitting again is no harm, whether it is at once, together, or after the task was done.
pub async fn the_same_key_is_the_same_task(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let keyed = |kind: &str| NewTask { key: Some("once".into()), ..NewTask::new(kind) };
    let tasks = vec![keyed("first"), NewTask::new("other"), keyed("second")];
    let submission = Submission { queue: floor.key.clone(), tasks };
    let first = floor.store.submit(&submission).await.unwrap();
    assert_eq!(first.iter().map(|it| it.new).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(first[2].id, first[0].id);
    let again = floor.store.submit(&submission).await.unwrap();
    assert_eq!(again.iter().map(|it| it.new).collect::<Vec<_>>(), [false, true, false]);
    assert_eq!((again[0].id, again[2].id), (first[0].id, first[0].id));
    assert_eq!(floor.task(first[0].id).await.kind, "first");
    assert_eq!(floor.view().await.counts.values().sum::<u64>(), 3);
    for task in floor.claim(seat("w", 10)).await {
        floor.complete(&task).await;
    }
    let late = floor.store.submit(&submission).await.unwrap();
    assert_eq!((late[0].id, late[0].new), (first[0].id, false));
}

/// A key says nothing about other queues and other namespaces.
pub async fn a_key_is_of_its_queue(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let elsewhere = QueueKey::new("else".parse().unwrap(), "q".parse().unwrap());
    let keyed = || NewTask { key: Some("once".into()), ..NewTask::default() };
    let mut seen = BTreeSet::new();
    for key in [floor.key.clone(), queue("r"), elsewhere] {
        let submission = Submission { queue: key, tasks: vec![keyed()] };
        let submitted = floor.store.submit(&submission).await.unwrap()[0];
        assert!(submitted.new && seen.insert(submitted.id));
    }
}

/// Many submit the same at once.
pub async fn of_concurrent_submissions_with_one_key_one_counts(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(floor.again(subject).await);
    }
    for round in 0..5 {
        let submits: Vec<_> = clients
            .iter()
            .cloned()
            .map(|floor| {
                let task = NewTask { key: Some(format!("k{round}")), ..NewTask::default() };
                let submission = Submission { queue: floor.key.clone(), tasks: vec![task] };
                tokio::spawn(async move { floor.store.submit(&submission).await.expect("submit")[0] })
            })
            .collect();
        let mut results = Vec::new();
        for submit in submits {
            results.push(submit.await.expect("no panic"));
        }
        assert_eq!(results.iter().filter(|it| it.new).count(), 1, "{results:?}");
        assert_eq!(results.iter().map(|it| it.id).collect::<BTreeSet<_>>().len(), 1, "{results:?}");
    }
    assert_eq!(floor.view().await.count(TaskState::Ready), 5);
}

/// Who refers to what is not there is told to what; a task of another namespace is not there.
pub async fn an_unknown_parent_is_refused_by_name(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let foreign = floor.beside(QueueKey::new("else".parse().unwrap(), "q".parse().unwrap()));
    let stranger = foreign.submit_one(NewTask::default()).await;
    for unknown in [TaskId(987_654_321), stranger] {
        let child = NewTask { parents: vec![Parent::Task(unknown)], ..NewTask::default() };
        let said = floor.refused(vec![NewTask::default(), child]).await;
        assert!(said.contains(&unknown.to_string()), "it names {unknown}: {said}");
    }
    // All or nothing.
    let left = floor.store.queue(&floor.key).await.unwrap();
    assert_eq!(left.map_or(0, |view| view.counts.values().sum()), 0);
    assert_eq!(foreign.task(stranger).await.children, []);
}

/// A child of what will never be done would wait for ever.
pub async fn a_dead_or_cancelled_parent_is_refused(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let dead = floor.submit_one(NewTask::default()).await;
    let claimed = floor.claim_one().await;
    floor.kill(&claimed).await;
    let cancelled = floor.submit_one(NewTask::default()).await;
    assert_eq!(floor.order(cancelled, Order::Cancel).await, [cancelled]);
    for parent in [dead, cancelled] {
        let child = NewTask { parents: vec![Parent::Task(parent)], ..NewTask::default() };
        let said = floor.refused(vec![child]).await;
        assert!(said.contains(&parent.to_string()) && said.contains("retry"), "{said}");
    }
    assert_eq!(floor.view().await.counts.values().sum::<u64>(), 2);
}

/// What was done already is nothing to wait for.
pub async fn a_completed_parent_is_no_hindrance(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let parent = floor.submit_one(NewTask::default()).await;
    let claimed = floor.claim_one().await;
    floor.complete(&claimed).await;
    let child = NewTask { parents: vec![Parent::Task(parent)], ..NewTask::default() };
    let child = floor.submit_one(child).await;
    assert_eq!(floor.state(child).await, TaskState::Ready);
    assert_eq!(floor.claim_all().await, [child]);
}

/// `run_at` in the future waits, in the past does not.
pub async fn what_is_for_later_is_scheduled(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let now = floor.task(floor.submit_one(NewTask::default()).await).await.enqueued_at_ms;
    let at = |run_at_ms| NewTask { run_at_ms: Some(run_at_ms), ..NewTask::default() };
    let tasks = vec![at(now + HOUR_MS.cast_signed()), at(now - 1), at(0)];
    let numbers = floor.submit(tasks).await;
    let states = floor.states(&numbers).await;
    assert_eq!(states, [TaskState::Scheduled, TaskState::Ready, TaskState::Ready]);
    assert_eq!(floor.task(numbers[0]).await.run_at_ms, Some(now + HOUR_MS.cast_signed()));
}

/// Nobody sees, claims or settles a task by way of another namespace.
pub async fn a_task_is_of_its_namespace(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let elsewhere: Name = "else".parse().unwrap();
    let foreign = floor.beside(QueueKey::new(elsewhere.clone(), floor.key.name.clone()));
    let id = floor.submit_one(NewTask::default()).await;
    assert_eq!(floor.store.task(&elsewhere, id).await, Ok(None));
    assert_eq!(floor.store.why(&elsewhere, id).await, Ok(None));
    assert_eq!(foreign.claim_all().await, []);
    let claimed = floor.claim_one().await;
    let lost = foreign.settle(&claimed, tenure_core::port::Outcome::Complete(None)).await;
    assert_eq!(lost, Settled::Lost);
    assert_eq!(floor.store.order(&elsewhere, &[id], Order::Cancel).await, Ok(vec![]));
    assert_eq!(floor.state(id).await, TaskState::Claimed);
}
