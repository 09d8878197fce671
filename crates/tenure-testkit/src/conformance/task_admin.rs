//! Administration of queues, tasks and workers.

use std::time::Duration;

use tenure_core::Name;
use tenure_core::port::{
    AssignmentMode, BrokerFallback, ClaimOutcome, NewTask, NewWorker, ParentRef, QueueKey, QueueSettings,
    RateLimit, SettleResult, TaskAction, TaskFilter, TaskId, TaskState, WorkerView,
};

use super::StoreUnderTest;
use super::test_queue::{
    HOUR_MS, TestQueue, claim_request, claim_request_of, claim_request_on, failure, ids, ordinary, profile,
    queue, strings,
};

/// All settings are kept; tasks stay in the queue.
pub async fn a_queue_keeps_all_settings(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let settings = QueueSettings {
        mode: AssignmentMode::Exclusive,
        fallback: BrokerFallback::Distributed,
        require_approval: true,
        rate: Some(RateLimit { count: 7, per_ms: 1_500 }),
        max_claimed: Some(11),
        preference_window_ms: 12,
        retention_ms: 13_000_000_000,
        dead_retention_ms: 14,
    };
    test_queue.set(settings).await;
    assert_eq!(test_queue.view().await.settings, settings);
    test_queue.submit(ordinary(2)).await;
    assert_eq!(test_queue.view().await.settings, settings, "a submission does not change them");
    test_queue.set(QueueSettings::default()).await;
    let view = test_queue.view().await;
    assert_eq!((view.settings, view.count(TaskState::Ready)), (QueueSettings::default(), 2));
}

/// Queues are listed for one namespace or for all.
pub async fn queues_are_listed_by_namespace(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let elsewhere: Name = "else".parse().unwrap();
    let foreign = test_queue.other_queue(QueueKey::new(elsewhere.clone(), "q".parse().unwrap()));
    assert_eq!(test_queue.store.queues(None).await, Ok(vec![]));
    test_queue.submit(ordinary(3)).await;
    test_queue.claim(claim_request("w", 1)).await;
    test_queue.other_queue(queue("a")).submit(ordinary(1)).await;
    foreign.submit(ordinary(1)).await;
    let names = async |namespace: Option<&Name>| {
        let mut keys: Vec<_> = test_queue
            .store
            .queues(namespace)
            .await
            .unwrap()
            .iter()
            .map(|view| view.key.to_string())
            .collect();
        keys.sort();
        keys
    };
    assert_eq!(names(None).await, ["a", "else/q", "q"]);
    assert_eq!(names(Some(&test_queue.key.namespace)).await, ["a", "q"]);
    assert_eq!(names(Some(&elsewhere)).await, ["else/q"]);
    assert_eq!(names(Some(&"none".parse().unwrap())).await, [""; 0]);
    let all = test_queue.store.queues(Some(&test_queue.key.namespace)).await.unwrap();
    let mine = all.iter().find(|view| view.key == test_queue.key).unwrap();
    assert_eq!((mine.count(TaskState::Ready), mine.count(TaskState::Claimed)), (2, 1));
}

/// A queue view has the number of tasks per state.
pub async fn a_queue_counts_its_tasks_by_state(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let now = test_queue.task(test_queue.submit_one(NewTask::default()).await).await.submitted_at_ms;
    let later = NewTask { run_at_ms: Some(now + HOUR_MS.cast_signed()), ..NewTask::default() };
    let child = NewTask { parents: vec![ParentRef::Index(0)], ..NewTask::default() };
    let numbers = test_queue.submit(vec![later, child]).await;
    test_queue.submit(ordinary(4)).await;
    let tasks = test_queue.claim(claim_request("w", 4)).await;
    test_queue.complete(&tasks[0]).await;
    test_queue.kill(&tasks[1]).await;
    test_queue.apply_action(tasks[2].id, TaskAction::Cancel).await;
    let counts = test_queue.view().await.counts;
    let counts: Vec<_> = counts.into_iter().filter(|(_, count)| *count > 0).collect();
    use TaskState::{Cancelled, Claimed, Completed, Dead, Ready, Scheduled, Waiting};
    let expected =
        [(Waiting, 1), (Scheduled, 1), (Ready, 1), (Claimed, 1), (Completed, 1), (Dead, 1), (Cancelled, 1)];
    assert_eq!(counts, expected);
    assert_eq!(test_queue.states(&numbers).await, [Scheduled, Waiting]);
}

/// Tasks are listed newest first, filtered and paged.
pub async fn tasks_are_filtered_and_paged(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let other = test_queue.other_queue(queue("other"));
    let elsewhere: Name = "else".parse().unwrap();
    let foreign = test_queue.other_queue(QueueKey::new(elsewhere.clone(), "q".parse().unwrap()));
    let mine = test_queue.submit(["a", "b", "a", "b"].map(NewTask::new).into()).await;
    let theirs = other.submit(vec![NewTask::new("a")]).await;
    let strange = foreign.submit(vec![NewTask::new("a")]).await;
    let done = test_queue.claim(claim_request_of(profile("ada"), 1)).await.remove(0);
    test_queue.complete(&done).await;
    test_queue.claim(claim_request_of(profile("bob"), 1)).await;
    let base =
        TaskFilter { namespace: Some(test_queue.key.namespace.clone()), limit: 100, ..Default::default() };
    let list = async |filter: TaskFilter| {
        test_queue.store.tasks(&filter).await.unwrap().iter().map(|task| task.id).collect::<Vec<_>>()
    };
    let newest = |ids: &[TaskId]| ids.iter().rev().copied().collect::<Vec<_>>();
    let all = [&mine[..], &theirs].concat();
    assert_eq!(list(base.clone()).await, newest(&all));
    assert_eq!(list(TaskFilter { limit: 2, ..base.clone() }).await, newest(&all)[..2]);
    let before = Some(newest(&all)[1]);
    assert_eq!(list(TaskFilter { before, limit: 2, ..base.clone() }).await, newest(&all)[2..4]);
    let of_queue = TaskFilter { queue: Some(test_queue.key.name.clone()), ..base.clone() };
    assert_eq!(list(of_queue.clone()).await, newest(&mine));
    assert_eq!(list(TaskFilter { kind: Some("a".into()), ..of_queue.clone() }).await, [mine[2], mine[0]]);
    let states = vec![TaskState::Completed, TaskState::Claimed];
    assert_eq!(list(TaskFilter { states, ..base.clone() }).await, [mine[1], mine[0]]);
    assert_eq!(list(TaskFilter { worker: Some("bob".into()), ..base.clone() }).await, [mine[1]]);
    let foreigners = TaskFilter { namespace: Some(elsewhere), ..base.clone() };
    assert_eq!(list(foreigners).await, strange);
    assert_eq!(list(TaskFilter { namespace: None, ..base.clone() }).await.len(), 6);
    assert_eq!(list(TaskFilter { kind: Some("z".into()), ..base }).await, []);
}

/// A task has the same fields in a list and when it is read alone.
pub async fn a_listed_task_equals_the_shown_task(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let numbers = test_queue
        .submit(vec![
            NewTask { required_tags: strings(&["x"]), ..NewTask::new("a") },
            NewTask { parents: vec![ParentRef::Index(0)], ..NewTask::new("b") },
        ])
        .await;
    let listed = test_queue.store.tasks(&TaskFilter { limit: 9, ..Default::default() }).await.unwrap();
    assert_eq!(listed, [test_queue.task(numbers[1]).await, test_queue.task(numbers[0]).await]);
}

/// A task in any unfinished state can be cancelled; finished tasks stay unchanged.
pub async fn every_unfinished_task_can_be_cancelled(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let now = test_queue.task(test_queue.submit_one(NewTask::default()).await).await.submitted_at_ms;
    test_queue.claim_one().await;
    let held = || NewTask { concurrency_key: Some("c".into()), ..NewTask::default() };
    let later = NewTask { run_at_ms: Some(now + HOUR_MS.cast_signed()), ..NewTask::default() };
    let child = NewTask { parents: vec![ParentRef::Index(2)], ..NewTask::default() };
    let numbers = test_queue.submit(vec![held(), held(), later, child]).await;
    let claimed = test_queue.claim_one().await;
    use TaskState::{Blocked, Cancelled, Claimed, Completed, Dead, Ready, Scheduled, Waiting};
    let ready = test_queue.submit_one(NewTask::default()).await;
    assert_eq!(test_queue.states(&numbers).await, [Claimed, Blocked, Scheduled, Waiting]);
    // The child comes before its parent, because the response contains only tasks that the call changed.
    for (id, effect) in [
        (numbers[3], vec![numbers[3]]),
        (numbers[2], vec![numbers[2]]),
        (numbers[1], vec![numbers[1]]),
        (numbers[0], vec![numbers[0]]),
        (ready, vec![ready]),
    ] {
        assert_eq!(test_queue.apply_action(id, TaskAction::Cancel).await, effect);
        assert_eq!(test_queue.apply_action(id, TaskAction::Cancel).await, []);
        let view = test_queue.task(id).await;
        assert_eq!(
            (view.state, view.end_reason.is_some(), view.finished_at_ms.is_some()),
            (Cancelled, true, true)
        );
    }
    assert_eq!(test_queue.settle(&claimed, ClaimOutcome::Complete(None)).await, SettleResult::ClaimLost);
    assert_eq!(test_queue.claim_all().await, []);
    let over = test_queue.submit(ordinary(2)).await;
    let tasks = test_queue.claim(claim_request("w", 2)).await;
    test_queue.complete(&tasks[0]).await;
    test_queue.kill(&tasks[1]).await;
    let namespace = &test_queue.key.namespace;
    assert_eq!(test_queue.store.apply_task_action(namespace, &over, TaskAction::Cancel).await, Ok(vec![]));
    assert_eq!(test_queue.states(&over).await, [Completed, Dead]);
    let unknown = [TaskId(u64::from(u32::MAX))];
    assert_eq!(test_queue.store.apply_task_action(namespace, &unknown, TaskAction::Cancel).await, Ok(vec![]));
    assert_ne!(test_queue.state(ready).await, Ready);
}

/// A retried task is ready at once with all its attempts; its earlier failures are kept.
pub async fn a_finished_task_can_be_retried(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let task = || NewTask { max_attempts: 2, ..NewTask::default() };
    let numbers = test_queue.submit(vec![task(), task(), task(), task()]).await;
    let tasks = test_queue.claim(claim_request("w", 9)).await;
    test_queue.kill(&tasks[0]).await;
    test_queue.apply_action(tasks[1].id, TaskAction::Cancel).await;
    test_queue.settle(&tasks[2], failure(true, Duration::from_millis(HOUR_MS))).await;
    test_queue.complete(&tasks[3]).await;
    let namespace = &test_queue.key.namespace;
    let mut back = test_queue.store.apply_task_action(namespace, &numbers, TaskAction::Retry).await.unwrap();
    back.sort_unstable();
    assert_eq!(back, numbers[..3]);
    for id in &numbers[..3] {
        let view = test_queue.task(*id).await;
        assert_eq!((view.state, view.end_reason, view.finished_at_ms), (TaskState::Ready, None, None));
    }
    for (n, failures) in [(0, 1), (1, 0), (2, 1)] {
        let view = test_queue.task(numbers[n]).await;
        assert_eq!((view.failures.len(), view.attempt), (failures, 0), "task {n}");
    }
    assert_eq!(test_queue.state(numbers[3]).await, TaskState::Completed, "a completed task stays completed");
    let again = test_queue.claim(claim_request("w", 9)).await;
    assert_eq!(ids(&again), numbers[..3]);
    for (old, new) in tasks.iter().zip(&again) {
        assert!(new.token > old.token);
        assert_eq!(test_queue.settle(old, ClaimOutcome::Complete(None)).await, SettleResult::ClaimLost);
        assert_eq!(
            test_queue.settle(new, failure(true, Duration::ZERO)).await,
            SettleResult::Applied(TaskState::Ready)
        );
    }
}

/// Retrying a ready or claimed task changes nothing.
pub async fn a_ready_or_claimed_task_is_not_retried(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let numbers = test_queue.submit(ordinary(2)).await;
    let claimed = test_queue.claim(claim_request("w", 1)).await.remove(0);
    assert_eq!(test_queue.apply_action(claimed.id, TaskAction::Retry).await, []);
    let ready = if numbers[0] == claimed.id { numbers[1] } else { numbers[0] };
    test_queue.apply_action(ready, TaskAction::Retry).await;
    assert_eq!(test_queue.states(&[claimed.id, ready]).await, [TaskState::Claimed, TaskState::Ready]);
    test_queue.complete(&claimed).await;
}

/// Finished tasks have wait and run times, from which statistics are computed.
pub async fn finished_tasks_have_wait_and_run_times(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let other = test_queue.other_queue(queue("other"));
    assert_eq!(test_queue.store.finished_tasks(&test_queue.key, 9).await, Ok(vec![]));
    test_queue.submit(["a", "b", "c", "d"].map(NewTask::new).into()).await;
    other.submit(vec![NewTask::new("x")]).await;
    let tasks = test_queue.claim(claim_request("w", 3)).await;
    test_queue.complete(&tasks[0]).await;
    test_queue.kill(&tasks[1]).await;
    test_queue.apply_action(tasks[2].id, TaskAction::Cancel).await;
    let task = other.claim_one().await;
    other.complete(&task).await;
    let mut finished: Vec<_> = test_queue
        .store
        .finished_tasks(&test_queue.key, 9)
        .await
        .unwrap()
        .into_iter()
        .filter(|it| it.kind != "c")
        .map(|it| {
            assert!(it.wait_ms < HOUR_MS && it.run_ms < HOUR_MS && it.finished_at_ms > 0, "{it:?}");
            (it.kind, it.completed)
        })
        .collect();
    finished.sort();
    assert_eq!(finished, [("a".to_owned(), true), ("b".to_owned(), false)]);
    assert_eq!(test_queue.store.finished_tasks(&test_queue.key, 1).await.unwrap().len(), 1);
}

fn worker(name: &str) -> NewWorker {
    NewWorker {
        name: name.into(),
        description: "docker'd".into(),
        tags: strings(&["gpu", "a\"b"]),
        task_kinds: strings(&["send", "receive"]),
        queues: vec!["q".parse().unwrap(), "r".parse().unwrap()],
        location: "rack 7\\b".into(),
        capacity: 32,
        session: None,
    }
}

async fn observed(test_queue: &TestQueue, name: &str) -> WorkerView {
    let all = test_queue.store.workers(Some(&test_queue.key.namespace)).await.unwrap();
    all.into_iter().find(|view| view.worker.name == name).expect("it is known")
}

/// A registration is returned; a second one replaces it.
pub async fn a_registered_worker_is_shown(subject: &StoreUnderTest) {
    let (test_queue, session) = (TestQueue::of(subject).await, subject.session("a").await);
    let namespace = test_queue.key.namespace.clone();
    assert_eq!(test_queue.store.workers(None).await, Ok(vec![]));
    let first = NewWorker { session: Some(session.id.clone()), ..worker("ada") };
    test_queue.store.register_worker(&namespace, &first).await.unwrap();
    let view = observed(&test_queue, "ada").await;
    assert_eq!((view.worker, view.namespace), (first, namespace.clone()));
    assert_eq!((view.online, view.claimed_count, view.approved_by), (true, 0, None));
    let second = NewWorker { tags: vec![], capacity: 1, ..worker("ada") };
    test_queue.store.register_worker(&namespace, &second).await.unwrap();
    test_queue.store.register_worker(&"else".parse().unwrap(), &worker("bob")).await.unwrap();
    assert_eq!(observed(&test_queue, "ada").await.worker, second);
    assert_eq!(test_queue.store.workers(Some(&namespace)).await.unwrap().len(), 1);
    let mut names: Vec<_> =
        test_queue.store.workers(None).await.unwrap().into_iter().map(|view| view.worker.name).collect();
    names.sort();
    assert_eq!(names, ["ada", "bob"]);
}

/// A worker is online while its session is live.
pub async fn a_worker_is_online_while_its_session_is_live(subject: &StoreUnderTest) {
    let (test_queue, session) = (TestQueue::of(subject).await, subject.session("a").await);
    let with_session = NewWorker { session: Some(session.id.clone()), ..worker("w") };
    test_queue.store.register_worker(&test_queue.key.namespace, &with_session).await.unwrap();
    test_queue.submit(ordinary(3)).await;
    test_queue.claim(claim_request_on(&session, 2)).await;
    let view = observed(&test_queue, "w").await;
    assert_eq!((view.online, view.claimed_count), (true, 2));
    session.store.end_session(&session.id).await.unwrap();
    assert!(!observed(&test_queue, "w").await.online);
    let without = worker("x");
    test_queue.store.register_worker(&test_queue.key.namespace, &without).await.unwrap();
    let view = observed(&test_queue, "x").await;
    assert!(view.online && view.last_seen_at_ms > 0, "it was seen just now");
}

/// A worker can be approved before it registers.
pub async fn an_approval_is_shown(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let namespace = test_queue.key.namespace.clone();
    assert_eq!(test_queue.store.set_worker_approval(&namespace, "ada", Some("o'ps")).await, Ok(true));
    test_queue.store.register_worker(&namespace, &worker("ada")).await.unwrap();
    assert_eq!(observed(&test_queue, "ada").await.approved_by.as_deref(), Some("o'ps"));
    test_queue.store.register_worker(&namespace, &worker("bob")).await.unwrap();
    assert_eq!(observed(&test_queue, "bob").await.approved_by, None);
    assert_eq!(test_queue.store.set_worker_approval(&namespace, "ada", None).await, Ok(true));
    assert_eq!(observed(&test_queue, "ada").await.approved_by, None);
}
