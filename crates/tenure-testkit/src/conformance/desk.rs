//! Claims about what people see of queues, tasks and workers, and do with them.

use std::time::Duration;

use tenure_core::Name;
use tenure_core::port::{
    Fallback, Mode, NewTask, NewWorker, Order, Outcome, Parent, QueueKey, QueueSettings, RateLimit, Settled,
    TaskFilter, TaskId, TaskState, WorkerView,
};

use super::Subject;
use super::floor::{Floor, HOUR_MS, failure, ids, ordinary, profile, queue, seat, seat_of, seat_on, strings};

/// Whatever is set is kept; what is in the queue stays.
pub async fn settings_are_kept_whole(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let settings = QueueSettings {
        mode: Mode::Exclusive,
        fallback: Fallback::Distributed,
        approval: true,
        rate: Some(RateLimit { count: 7, per_ms: 1_500 }),
        max_claimed: Some(11),
        prefer_ms: 12,
        keep_ms: 13_000_000_000,
        keep_dead_ms: 14,
    };
    floor.set(settings).await;
    assert_eq!(floor.view().await.settings, settings);
    floor.submit(ordinary(2)).await;
    assert_eq!(floor.view().await.settings, settings, "a submission leaves them alone");
    floor.set(QueueSettings::default()).await;
    let view = floor.view().await;
    assert_eq!((view.settings, view.count(TaskState::Ready)), (QueueSettings::default(), 2));
}

/// Of one namespace, or of all.
pub async fn queues_are_listed_by_namespace(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let elsewhere: Name = "else".parse().unwrap();
    let foreign = floor.beside(QueueKey::new(elsewhere.clone(), "q".parse().unwrap()));
    assert_eq!(floor.store.queues(None).await, Ok(vec![]));
    floor.submit(ordinary(3)).await;
    floor.claim(seat("w", 1)).await;
    floor.beside(queue("a")).submit(ordinary(1)).await;
    foreign.submit(ordinary(1)).await;
    let names = async |namespace: Option<&Name>| {
        let mut keys: Vec<_> =
            floor.store.queues(namespace).await.unwrap().iter().map(|view| view.key.to_string()).collect();
        keys.sort();
        keys
    };
    assert_eq!(names(None).await, ["a", "else/q", "q"]);
    assert_eq!(names(Some(&floor.key.namespace)).await, ["a", "q"]);
    assert_eq!(names(Some(&elsewhere)).await, ["else/q"]);
    assert_eq!(names(Some(&"none".parse().unwrap())).await, [""; 0]);
    let all = floor.store.queues(Some(&floor.key.namespace)).await.unwrap();
    let mine = all.iter().find(|view| view.key == floor.key).unwrap();
    assert_eq!((mine.count(TaskState::Ready), mine.count(TaskState::Claimed)), (2, 1));
}

/// How many stand where.
pub async fn a_queue_counts_its_tasks_by_state(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let now = floor.task(floor.submit_one(NewTask::default()).await).await.enqueued_at_ms;
    let later = NewTask { run_at_ms: Some(now + HOUR_MS.cast_signed()), ..NewTask::default() };
    let child = NewTask { parents: vec![Parent::Index(0)], ..NewTask::default() };
    let numbers = floor.submit(vec![later, child]).await;
    floor.submit(ordinary(4)).await;
    let tasks = floor.claim(seat("w", 4)).await;
    floor.complete(&tasks[0]).await;
    floor.kill(&tasks[1]).await;
    floor.order(tasks[2].id, Order::Cancel).await;
    let counts = floor.view().await.counts;
    let counts: Vec<_> = counts.into_iter().filter(|(_, count)| *count > 0).collect();
    use TaskState::{Cancelled, Claimed, Completed, Dead, Ready, Scheduled, Waiting};
    let expected =
        [(Waiting, 1), (Scheduled, 1), (Ready, 1), (Claimed, 1), (Completed, 1), (Dead, 1), (Cancelled, 1)];
    assert_eq!(counts, expected);
    assert_eq!(floor.states(&numbers).await, [Scheduled, Waiting]);
}

/// The newest first, page by page, and only what was asked for.
pub async fn tasks_are_listed_as_asked_for(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let other = floor.beside(queue("other"));
    let elsewhere: Name = "else".parse().unwrap();
    let foreign = floor.beside(QueueKey::new(elsewhere.clone(), "q".parse().unwrap()));
    let mine = floor.submit(["a", "b", "a", "b"].map(NewTask::new).into()).await;
    let theirs = other.submit(vec![NewTask::new("a")]).await;
    let strange = foreign.submit(vec![NewTask::new("a")]).await;
    let done = floor.claim(seat_of(profile("ada"), 1)).await.remove(0);
    floor.complete(&done).await;
    floor.claim(seat_of(profile("bob"), 1)).await;
    let base = TaskFilter { namespace: Some(floor.key.namespace.clone()), limit: 100, ..Default::default() };
    let list = async |filter: TaskFilter| {
        floor.store.tasks(&filter).await.unwrap().iter().map(|task| task.id).collect::<Vec<_>>()
    };
    let newest = |ids: &[TaskId]| ids.iter().rev().copied().collect::<Vec<_>>();
    let all = [&mine[..], &theirs].concat();
    assert_eq!(list(base.clone()).await, newest(&all));
    assert_eq!(list(TaskFilter { limit: 2, ..base.clone() }).await, newest(&all)[..2]);
    let before = Some(newest(&all)[1]);
    assert_eq!(list(TaskFilter { before, limit: 2, ..base.clone() }).await, newest(&all)[2..4]);
    let of_queue = TaskFilter { queue: Some(floor.key.name.clone()), ..base.clone() };
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

/// What is listed is what is shown.
pub async fn a_listed_task_is_the_task(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let numbers = floor
        .submit(vec![
            NewTask { requires: strings(&["x"]), ..NewTask::new("a") },
            NewTask { parents: vec![Parent::Index(0)], ..NewTask::new("b") },
        ])
        .await;
    let listed = floor.store.tasks(&TaskFilter { limit: 9, ..Default::default() }).await.unwrap();
    assert_eq!(listed, [floor.task(numbers[1]).await, floor.task(numbers[0]).await]);
}

/// Whatever it waits for; what is over stays as it is.
pub async fn whatever_is_not_over_can_be_cancelled(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let now = floor.task(floor.submit_one(NewTask::default()).await).await.enqueued_at_ms;
    floor.claim_one().await;
    let held = || NewTask { concurrency_key: Some("c".into()), ..NewTask::default() };
    let later = NewTask { run_at_ms: Some(now + HOUR_MS.cast_signed()), ..NewTask::default() };
    let child = NewTask { parents: vec![Parent::Index(2)], ..NewTask::default() };
    let numbers = floor.submit(vec![held(), held(), later, child]).await;
    let claimed = floor.claim_one().await;
    use TaskState::{Cancelled, Claimed, Completed, Dead, Held, Ready, Scheduled, Waiting};
    let ready = floor.submit_one(NewTask::default()).await;
    assert_eq!(floor.states(&numbers).await, [Claimed, Held, Scheduled, Waiting]);
    // The child first: the order is told of those on which it had an effect.
    for (id, effect) in [
        (numbers[3], vec![numbers[3]]),
        (numbers[2], vec![numbers[2]]),
        (numbers[1], vec![numbers[1]]),
        (numbers[0], vec![numbers[0]]),
        (ready, vec![ready]),
    ] {
        assert_eq!(floor.order(id, Order::Cancel).await, effect);
        assert_eq!(floor.order(id, Order::Cancel).await, []);
        let view = floor.task(id).await;
        assert_eq!(
            (view.state, view.reason.is_some(), view.finished_at_ms.is_some()),
            (Cancelled, true, true)
        );
    }
    assert_eq!(floor.settle(&claimed, Outcome::Complete(None)).await, Settled::Lost);
    assert_eq!(floor.claim_all().await, []);
    let over = floor.submit(ordinary(2)).await;
    let tasks = floor.claim(seat("w", 2)).await;
    floor.complete(&tasks[0]).await;
    floor.kill(&tasks[1]).await;
    let namespace = &floor.key.namespace;
    assert_eq!(floor.store.order(namespace, &over, Order::Cancel).await, Ok(vec![]));
    assert_eq!(floor.states(&over).await, [Completed, Dead]);
    let unknown = [TaskId(u64::from(u32::MAX))];
    assert_eq!(floor.store.order(namespace, &unknown, Order::Cancel).await, Ok(vec![]));
    assert_ne!(floor.state(ready).await, Ready);
}

/// At once, with as many attempts as at first; what went wrong is remembered.
pub async fn what_is_over_can_be_retried(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let task = || NewTask { max_attempts: 2, ..NewTask::default() };
    let numbers = floor.submit(vec![task(), task(), task(), task()]).await;
    let tasks = floor.claim(seat("w", 9)).await;
    floor.kill(&tasks[0]).await;
    floor.order(tasks[1].id, Order::Cancel).await;
    floor.settle(&tasks[2], failure(true, Duration::from_millis(HOUR_MS))).await;
    floor.complete(&tasks[3]).await;
    let namespace = &floor.key.namespace;
    let mut back = floor.store.order(namespace, &numbers, Order::Retry).await.unwrap();
    back.sort_unstable();
    assert_eq!(back, numbers[..3]);
    for id in &numbers[..3] {
        let view = floor.task(*id).await;
        assert_eq!((view.state, view.reason, view.finished_at_ms), (TaskState::Ready, None, None));
    }
    for (n, failures) in [(0, 1), (1, 0), (2, 1)] {
        let view = floor.task(numbers[n]).await;
        assert_eq!((view.failures.len(), view.attempt), (failures, 0), "task {n}");
    }
    assert_eq!(floor.state(numbers[3]).await, TaskState::Completed, "done is done");
    let again = floor.claim(seat("w", 9)).await;
    assert_eq!(ids(&again), numbers[..3]);
    for (old, new) in tasks.iter().zip(&again) {
        assert!(new.token > old.token);
        assert_eq!(floor.settle(old, Outcome::Complete(None)).await, Settled::Lost);
        assert_eq!(floor.settle(new, failure(true, Duration::ZERO)).await, Settled::Now(TaskState::Ready));
    }
}

/// What stands ready or is claimed needs no other attempt.
pub async fn what_is_under_way_is_not_retried(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let numbers = floor.submit(ordinary(2)).await;
    let claimed = floor.claim(seat("w", 1)).await.remove(0);
    assert_eq!(floor.order(claimed.id, Order::Retry).await, []);
    let ready = if numbers[0] == claimed.id { numbers[1] } else { numbers[0] };
    floor.order(ready, Order::Retry).await;
    assert_eq!(floor.states(&[claimed.id, ready]).await, [TaskState::Claimed, TaskState::Ready]);
    floor.complete(&claimed).await;
}

/// The material of statistics: how long they waited and ran.
pub async fn finished_tasks_tell_how_long_they_took(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let other = floor.beside(queue("other"));
    assert_eq!(floor.store.finished(&floor.key, 9).await, Ok(vec![]));
    floor.submit(["a", "b", "c", "d"].map(NewTask::new).into()).await;
    other.submit(vec![NewTask::new("x")]).await;
    let tasks = floor.claim(seat("w", 3)).await;
    floor.complete(&tasks[0]).await;
    floor.kill(&tasks[1]).await;
    floor.order(tasks[2].id, Order::Cancel).await;
    let task = other.claim_one().await;
    other.complete(&task).await;
    let mut finished: Vec<_> = floor
        .store
        .finished(&floor.key, 9)
        .await
        .unwrap()
        .into_iter()
        .filter(|it| it.kind != "c")
        .map(|it| {
            assert!(it.wait_ms < HOUR_MS && it.run_ms < HOUR_MS && it.at_ms > 0, "{it:?}");
            (it.kind, it.completed)
        })
        .collect();
    finished.sort();
    assert_eq!(finished, [("a".to_owned(), true), ("b".to_owned(), false)]);
    assert_eq!(floor.store.finished(&floor.key, 1).await.unwrap().len(), 1);
}

fn worker(name: &str) -> NewWorker {
    NewWorker {
        name: name.into(),
        kind: "docker'd".into(),
        tags: strings(&["gpu", "a\"b"]),
        kinds: strings(&["send", "receive"]),
        queues: vec!["q".parse().unwrap(), "r".parse().unwrap()],
        location: "rack 7\\b".into(),
        capacity: 32,
        session: None,
    }
}

async fn seen(floor: &Floor, name: &str) -> WorkerView {
    let all = floor.store.workers(Some(&floor.key.namespace)).await.unwrap();
    all.into_iter().find(|view| view.worker.name == name).expect("it is known")
}

/// What a worker says of itself is shown; saying it again changes it.
pub async fn a_worker_is_shown_as_it_says(subject: &Subject) {
    let (floor, actor) = (Floor::of(subject).await, subject.actor("a").await);
    let namespace = floor.key.namespace.clone();
    assert_eq!(floor.store.workers(None).await, Ok(vec![]));
    let first = NewWorker { session: Some(actor.id.clone()), ..worker("ada") };
    floor.store.register(&namespace, &first).await.unwrap();
    let view = seen(&floor, "ada").await;
    assert_eq!((view.worker, view.namespace), (first, namespace.clone()));
    assert_eq!((view.live, view.claimed, view.approved_by), (true, 0, None));
    let second = NewWorker { tags: vec![], capacity: 1, ..worker("ada") };
    floor.store.register(&namespace, &second).await.unwrap();
    floor.store.register(&"else".parse().unwrap(), &worker("bob")).await.unwrap();
    assert_eq!(seen(&floor, "ada").await.worker, second);
    assert_eq!(floor.store.workers(Some(&namespace)).await.unwrap().len(), 1);
    let mut names: Vec<_> =
        floor.store.workers(None).await.unwrap().into_iter().map(|view| view.worker.name).collect();
    names.sort();
    assert_eq!(names, ["ada", "bob"]);
}

/// A worker lives while its session does.
pub async fn a_worker_lives_with_its_session(subject: &Subject) {
    let (floor, actor) = (Floor::of(subject).await, subject.actor("a").await);
    let with_session = NewWorker { session: Some(actor.id.clone()), ..worker("w") };
    floor.store.register(&floor.key.namespace, &with_session).await.unwrap();
    floor.submit(ordinary(3)).await;
    floor.claim(seat_on(&actor, 2)).await;
    let view = seen(&floor, "w").await;
    assert_eq!((view.live, view.claimed), (true, 2));
    actor.store.end(&actor.id).await.unwrap();
    assert!(!seen(&floor, "w").await.live);
    let without = worker("x");
    floor.store.register(&floor.key.namespace, &without).await.unwrap();
    let view = seen(&floor, "x").await;
    assert!(view.live && view.seen_at_ms > 0, "it was seen just now");
}

/// Also one that nobody knows yet; and it stays so when the worker comes.
pub async fn an_approval_is_shown(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let namespace = floor.key.namespace.clone();
    assert_eq!(floor.store.approve(&namespace, "ada", Some("o'ps")).await, Ok(true));
    floor.store.register(&namespace, &worker("ada")).await.unwrap();
    assert_eq!(seen(&floor, "ada").await.approved_by.as_deref(), Some("o'ps"));
    floor.store.register(&namespace, &worker("bob")).await.unwrap();
    assert_eq!(seen(&floor, "bob").await.approved_by, None);
    assert_eq!(floor.store.approve(&namespace, "ada", None).await, Ok(true));
    assert_eq!(seen(&floor, "ada").await.approved_by, None);
}
