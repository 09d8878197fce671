//! Wait reasons: each condition that keeps a task from being claimed is reported.

use std::time::Duration;

use tenure_core::port::{
    BrokerFallback, NewTask, NewWorker, ParentRef, QueueSettings, RateLimit, TaskId, TaskState, WaitReason,
};

use super::StoreUnderTest;
use super::modes::exclusive;
use super::test_queue::{
    HOUR_MS, TestMaintenance, TestQueue, claim_request, failure, ordinary, pause, strings,
};

async fn why(test_queue: &TestQueue, id: TaskId) -> Vec<WaitReason> {
    test_queue.store.wait_reasons(&test_queue.key.namespace, id).await.expect("why").expect("the task exists")
}

async fn register(test_queue: &TestQueue, name: &str, tags: &[&str], kinds: &[&str]) {
    let worker = NewWorker {
        name: name.into(),
        description: String::new(),
        tags: strings(tags),
        task_kinds: strings(kinds),
        queues: vec![test_queue.key.name.clone()],
        location: String::new(),
        capacity: 1,
        session: None,
    };
    test_queue.store.register_worker(&test_queue.key.namespace, &worker).await.unwrap();
}

/// The reason has the number of matching workers and of tasks ahead.
pub async fn a_claimable_task_is_reported_as_claimable(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    register(&test_queue, "a", &[], &[]).await;
    register(&test_queue, "b", &[], &[]).await;
    let numbers = test_queue.submit(ordinary(3)).await;
    assert_eq!(
        why(&test_queue, numbers[2]).await,
        [WaitReason::Claimable { matching_workers: 2, tasks_ahead: 2 }]
    );
    assert_eq!(test_queue.store.wait_reasons(&test_queue.key.namespace, TaskId(1 << 40)).await, Ok(None));
}

/// The reason for a claimed or finished task is its state.
pub async fn a_claimed_or_finished_task_is_not_pending(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let id = test_queue.submit_one(NewTask::default()).await;
    let task = test_queue.claim_one().await;
    assert_eq!(why(&test_queue, id).await, [WaitReason::NotPending { state: TaskState::Claimed }]);
    test_queue.complete(&task).await;
    assert_eq!(why(&test_queue, id).await, [WaitReason::NotPending { state: TaskState::Completed }]);
}

/// A pause of the queue and a pause of the namespace are reasons.
pub async fn a_pause_is_a_reason(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let id = test_queue.submit_one(NewTask::default()).await;
    for queue in [Some(&test_queue.key.name), None] {
        let namespace = &test_queue.key.namespace;
        test_queue.store.set_queue_paused(namespace, queue, Some(&pause())).await.unwrap();
        let message = why(&test_queue, id).await;
        let paused = |why: &WaitReason| matches!(why, WaitReason::Paused { pause } if pause.paused_by == "o'ps" && !pause.reason.is_empty());
        assert!(message.iter().any(paused), "{message:?}");
        test_queue.store.set_queue_paused(namespace, queue, None).await.unwrap();
        assert!(!why(&test_queue, id).await.iter().any(paused));
    }
}

/// A start time in the future is a reason, whether it was submitted or set by a failed attempt.
pub async fn a_future_start_time_is_a_reason(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let id = test_queue.submit_one(NewTask::default()).await;
    let run_at_ms = test_queue.task(id).await.submitted_at_ms + HOUR_MS.cast_signed();
    let later = test_queue.submit_one(NewTask { run_at_ms: Some(run_at_ms), ..NewTask::default() }).await;
    assert!(why(&test_queue, later).await.contains(&WaitReason::NotDue { run_at_ms }));
    let task = test_queue.claim_one().await;
    test_queue.settle(&task, failure(true, Duration::from_millis(HOUR_MS))).await;
    let run_at_ms = test_queue.task(id).await.run_at_ms.expect("the next attempt");
    assert!(why(&test_queue, id).await.contains(&WaitReason::NotDue { run_at_ms }));
}

/// The reason lists the parents that are not completed.
pub async fn parents_are_a_reason(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let child = NewTask { parents: vec![ParentRef::Index(0), ParentRef::Index(1)], ..NewTask::default() };
    let numbers = test_queue.submit(vec![NewTask::default(), NewTask::default(), child]).await;
    let tasks = test_queue.claim(claim_request("w", 1)).await;
    test_queue.complete(&tasks[0]).await;
    let open = numbers[..2].iter().copied().find(|id| *id != tasks[0].id).unwrap();
    assert!(why(&test_queue, numbers[2]).await.contains(&WaitReason::PendingParents { tasks: vec![open] }));
}

/// The limits of a concurrency key, of claimed tasks and of the rate are reasons.
pub async fn limits_are_reasons(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let keyed = || NewTask { concurrency_key: Some("k".into()), concurrency_limit: 1, ..NewTask::default() };
    let numbers = test_queue.submit(vec![keyed(), keyed()]).await;
    let claimed = test_queue.claim_one().await;
    assert_eq!(claimed.id, numbers[0]);
    let message = why(&test_queue, numbers[1]).await;
    assert!(message.contains(&WaitReason::ConcurrencyLimit { key: "k".into(), limit: 1 }), "{message:?}");
    test_queue.set(QueueSettings { max_claimed: Some(1), ..QueueSettings::default() }).await;
    let plain = test_queue.submit_one(NewTask::default()).await;
    let message = why(&test_queue, plain).await;
    assert!(message.contains(&WaitReason::QueueLimit { limit: 1 }), "{message:?}");
    let rate = Some(RateLimit { count: 1, per_ms: HOUR_MS });
    test_queue.set(QueueSettings { rate, ..QueueSettings::default() }).await;
    test_queue.submit(ordinary(1)).await;
    assert_eq!(test_queue.claim(claim_request("w", 9)).await.len(), 1);
    let last = test_queue.submit_one(NewTask::default()).await;
    let message = why(&test_queue, last).await;
    let reported = message
        .iter()
        .any(|why| matches!(why, WaitReason::RateLimit { next_in_ms } if *next_in_ms <= HOUR_MS));
    assert!(reported, "{message:?}");
}

/// The reason tells that there is no worker, or what the existing workers lack.
pub async fn missing_workers_are_reasons(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let requires = |tags: &[&str]| NewTask { required_tags: strings(tags), ..NewTask::new("send") };
    let plain = test_queue.submit_one(requires(&[])).await;
    assert!(why(&test_queue, plain).await.contains(&WaitReason::NoWorkers));
    register(&test_queue, "a", &["x"], &["receive"]).await;
    assert!(why(&test_queue, plain).await.contains(&WaitReason::NoWorkerForKind { kind: "send".into() }));
    register(&test_queue, "b", &["y"], &[]).await;
    let message = why(&test_queue, plain).await;
    assert!(matches!(message[..], [WaitReason::Claimable { matching_workers: 1, .. }]), "{message:?}");
    let gpu = test_queue.submit_one(requires(&["y", "gpu"])).await;
    let message = why(&test_queue, gpu).await;
    assert!(message.contains(&WaitReason::NoWorkerWithTags { tags: strings(&["gpu"]) }), "{message:?}");
    let both = test_queue.submit_one(NewTask { kind: String::new(), ..requires(&["x", "y"]) }).await;
    let message = why(&test_queue, both).await;
    assert!(message.contains(&WaitReason::NoWorkerWithTags { tags: strings(&["x", "y"]) }), "{message:?}");
    let meant =
        test_queue.submit_one(NewTask { allowed_workers: strings(&["zoe"]), ..NewTask::default() }).await;
    let message = why(&test_queue, meant).await;
    assert!(
        message.contains(&WaitReason::AllowedWorkersOffline { matching_workers: strings(&["zoe"]) }),
        "{message:?}"
    );
}

/// If matching workers lack approval, the reason lists them.
pub async fn a_missing_approval_is_a_reason(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    test_queue.set(QueueSettings { require_approval: true, ..QueueSettings::default() }).await;
    register(&test_queue, "new", &[], &[]).await;
    let id = test_queue.submit_one(NewTask::default()).await;
    let message = why(&test_queue, id).await;
    assert!(
        message.contains(&WaitReason::NoApprovedWorker { unapproved_workers: strings(&["new"]) }),
        "{message:?}"
    );
    test_queue.store.set_worker_approval(&test_queue.key.namespace, "new", Some("ops")).await.unwrap();
    let message = why(&test_queue, id).await;
    assert!(
        matches!(message[..], [WaitReason::Claimable { matching_workers: 1, tasks_ahead: 0 }]),
        "{message:?}"
    );
}

/// An exclusive queue without a broker is a reason.
pub async fn a_missing_leader_is_a_reason(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    test_queue.set(exclusive(BrokerFallback::None)).await;
    register(&test_queue, "w", &[], &[]).await;
    let id = test_queue.submit_one(NewTask::default()).await;
    assert!(why(&test_queue, id).await.contains(&WaitReason::NoBroker));
    let maintenance = TestMaintenance::of(subject).await;
    let message = why(&test_queue, id).await;
    assert!(matches!(message[..], [WaitReason::Claimable { .. }]), "{message:?}");
    let response = test_queue.claim_batch(maintenance.authority(), vec![claim_request("w", 1)]).await;
    assert_eq!(super::test_queue::only_request(response).len(), 1);
}
