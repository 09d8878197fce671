//! Claims about *why*: each condition that keeps a task from being claimed is named.

use std::time::Duration;

use tenure_core::port::{
    Fallback, NewTask, NewWorker, Parent, QueueSettings, RateLimit, TaskId, TaskState, Why,
};

use super::Subject;
use super::floor::{Floor, HOUR_MS, Keeper, failure, ordinary, pause, seat, strings};
use super::modes::exclusive;

async fn why(floor: &Floor, id: TaskId) -> Vec<Why> {
    floor.store.why(&floor.key.namespace, id).await.expect("why").expect("there is such a task")
}

async fn register(floor: &Floor, name: &str, tags: &[&str], kinds: &[&str]) {
    let worker = NewWorker {
        name: name.into(),
        kind: String::new(),
        tags: strings(tags),
        kinds: strings(kinds),
        queues: vec![floor.key.name.clone()],
        location: String::new(),
        capacity: 1,
        session: None,
    };
    floor.store.register(&floor.key.namespace, &worker).await.unwrap();
}

/// What could be claimed says how many could, and what stands before it.
pub async fn what_can_be_claimed_says_so(subject: &Subject) {
    let floor = Floor::of(subject).await;
    register(&floor, "a", &[], &[]).await;
    register(&floor, "b", &[], &[]).await;
    let numbers = floor.submit(ordinary(3)).await;
    assert_eq!(why(&floor, numbers[2]).await, [Why::Claimable { workers: 2, ahead: 2 }]);
    assert_eq!(floor.store.why(&floor.key.namespace, TaskId(1 << 40)).await, Ok(None));
}

/// What is claimed or over waits for nothing.
pub async fn what_does_not_wait_says_so(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let id = floor.submit_one(NewTask::default()).await;
    let task = floor.claim_one().await;
    assert_eq!(why(&floor, id).await, [Why::NotWaiting { state: TaskState::Claimed }]);
    floor.complete(&task).await;
    assert_eq!(why(&floor, id).await, [Why::NotWaiting { state: TaskState::Completed }]);
}

/// A pause of the queue or of the namespace.
pub async fn a_pause_is_a_reason(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let id = floor.submit_one(NewTask::default()).await;
    for queue in [Some(&floor.key.name), None] {
        let namespace = &floor.key.namespace;
        floor.store.set_queue_paused(namespace, queue, Some(&pause())).await.unwrap();
        let said = why(&floor, id).await;
        let paused = |why: &Why| matches!(why, Why::Paused { pause } if pause.by == "o'ps" && !pause.reason.is_empty());
        assert!(said.iter().any(paused), "{said:?}");
        floor.store.set_queue_paused(namespace, queue, None).await.unwrap();
        assert!(!why(&floor, id).await.iter().any(paused));
    }
}

/// A time that has not come, at first or after a failure.
pub async fn a_time_to_come_is_a_reason(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let id = floor.submit_one(NewTask::default()).await;
    let run_at_ms = floor.task(id).await.enqueued_at_ms + HOUR_MS.cast_signed();
    let later = floor.submit_one(NewTask { run_at_ms: Some(run_at_ms), ..NewTask::default() }).await;
    assert!(why(&floor, later).await.contains(&Why::NotDue { run_at_ms }));
    let task = floor.claim_one().await;
    floor.settle(&task, failure(true, Duration::from_millis(HOUR_MS))).await;
    let run_at_ms = floor.task(id).await.run_at_ms.expect("the next attempt");
    assert!(why(&floor, id).await.contains(&Why::NotDue { run_at_ms }));
}

/// Those parents that are not completed.
pub async fn parents_are_a_reason(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let child = NewTask { parents: vec![Parent::Index(0), Parent::Index(1)], ..NewTask::default() };
    let numbers = floor.submit(vec![NewTask::default(), NewTask::default(), child]).await;
    let tasks = floor.claim(seat("w", 1)).await;
    floor.complete(&tasks[0]).await;
    let open = numbers[..2].iter().copied().find(|id| *id != tasks[0].id).unwrap();
    assert!(why(&floor, numbers[2]).await.contains(&Why::Parents { tasks: vec![open] }));
}

/// Limits of a key, of a queue, of its rate.
pub async fn limits_are_reasons(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let keyed = || NewTask { concurrency_key: Some("k".into()), concurrency_limit: 1, ..NewTask::default() };
    let numbers = floor.submit(vec![keyed(), keyed()]).await;
    let claimed = floor.claim_one().await;
    assert_eq!(claimed.id, numbers[0]);
    let said = why(&floor, numbers[1]).await;
    assert!(said.contains(&Why::Concurrency { key: "k".into(), limit: 1 }), "{said:?}");
    floor.set(QueueSettings { max_claimed: Some(1), ..QueueSettings::default() }).await;
    let plain = floor.submit_one(NewTask::default()).await;
    let said = why(&floor, plain).await;
    assert!(said.contains(&Why::QueueLimit { limit: 1 }), "{said:?}");
    let rate = Some(RateLimit { count: 1, per_ms: HOUR_MS });
    floor.set(QueueSettings { rate, ..QueueSettings::default() }).await;
    floor.submit(ordinary(1)).await;
    assert_eq!(floor.claim(seat("w", 9)).await.len(), 1);
    let last = floor.submit_one(NewTask::default()).await;
    let said = why(&floor, last).await;
    let told = said.iter().any(|why| matches!(why, Why::Rate { next_in_ms } if *next_in_ms <= HOUR_MS));
    assert!(told, "{said:?}");
}

/// Nobody there, or nobody that fits, and what is missing.
pub async fn missing_workers_are_reasons(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let requires = |tags: &[&str]| NewTask { requires: strings(tags), ..NewTask::new("send") };
    let plain = floor.submit_one(requires(&[])).await;
    assert!(why(&floor, plain).await.contains(&Why::NoWorkers));
    register(&floor, "a", &["x"], &["receive"]).await;
    assert!(why(&floor, plain).await.contains(&Why::NoWorkerForKind { kind: "send".into() }));
    register(&floor, "b", &["y"], &[]).await;
    let said = why(&floor, plain).await;
    assert!(matches!(said[..], [Why::Claimable { workers: 1, .. }]), "{said:?}");
    let gpu = floor.submit_one(requires(&["y", "gpu"])).await;
    let said = why(&floor, gpu).await;
    assert!(said.contains(&Why::NoWorkerWithTags { tags: strings(&["gpu"]) }), "{said:?}");
    let both = floor.submit_one(NewTask { kind: String::new(), ..requires(&["x", "y"]) }).await;
    let said = why(&floor, both).await;
    assert!(said.contains(&Why::NoWorkerWithTags { tags: strings(&["x", "y"]) }), "{said:?}");
    let meant = floor.submit_one(NewTask { workers: strings(&["zoe"]), ..NewTask::default() }).await;
    let said = why(&floor, meant).await;
    assert!(said.contains(&Why::NamedWorkersAway { workers: strings(&["zoe"]) }), "{said:?}");
}

/// Who would fit must be approved first.
pub async fn a_missing_approval_is_a_reason(subject: &Subject) {
    let floor = Floor::of(subject).await;
    floor.set(QueueSettings { approval: true, ..QueueSettings::default() }).await;
    register(&floor, "new", &[], &[]).await;
    let id = floor.submit_one(NewTask::default()).await;
    let said = why(&floor, id).await;
    assert!(said.contains(&Why::NoApprovedWorker { pending: strings(&["new"]) }), "{said:?}");
    floor.store.approve(&floor.key.namespace, "new", Some("ops")).await.unwrap();
    let said = why(&floor, id).await;
    assert!(matches!(said[..], [Why::Claimable { workers: 1, ahead: 0 }]), "{said:?}");
}

/// An exclusive queue needs a leader.
pub async fn a_missing_leader_is_a_reason(subject: &Subject) {
    let floor = Floor::of(subject).await;
    floor.set(exclusive(Fallback::None)).await;
    register(&floor, "w", &[], &[]).await;
    let id = floor.submit_one(NewTask::default()).await;
    assert!(why(&floor, id).await.contains(&Why::NoLeader));
    let keeper = Keeper::of(subject).await;
    let said = why(&floor, id).await;
    assert!(matches!(said[..], [Why::Claimable { .. }]), "{said:?}");
    let answer = floor.ask(keeper.authority(), vec![seat("w", 1)]).await;
    assert_eq!(super::floor::one_seat(answer).len(), 1);
}
