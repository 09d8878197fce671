//! Notifications of queue waiters: a registered waiter is notified once per registration, and no other session is.
//!
//! The absence of a notification cannot be awaited. Each test therefore triggers a later notification for another queue
//! and counts the notifications that arrive before it.

use std::time::Duration;

use tenure_core::port::{
    BoxNotificationSource, BrokerFallback, ClaimOutcome, NewTask, Notification, ParentRef, QueueKey,
    QueueSettings, TaskAction,
};

use super::modes::exclusive;
use super::test_queue::{
    HOUR_MS, TestMaintenance, TestQueue, claim_request, claim_request_on, failure, listening,
    notifications_until, ordinary, pause, queue,
};
use super::{StoreUnderTest, TestSession};

/// A waiter, its notifications, and the queue.
struct QueueWaiterFixture {
    test_queue: TestQueue,
    waiter: TestSession,
    notifications: BoxNotificationSource,
}

impl QueueWaiterFixture {
    async fn of(subject: &StoreUnderTest) -> QueueWaiterFixture {
        let waiter = subject.session("waiter").await;
        let notifications = listening(&waiter).await;
        QueueWaiterFixture { test_queue: TestQueue::of(subject).await, waiter, notifications }
    }

    async fn register(&self, keys: &[QueueKey]) {
        self.waiter.store.register_queue_waiter(&self.waiter.id, keys).await.expect("register");
    }

    /// Number of notifications of the queue since the last call.
    async fn notified(&mut self) -> usize {
        let other_queue = queue("marker");
        self.register(std::slice::from_ref(&other_queue)).await;
        self.test_queue.other_queue(other_queue.clone()).submit(ordinary(1)).await;
        let before =
            notifications_until(&mut self.notifications, &Notification::QueueReady(other_queue)).await;
        let work = Notification::QueueReady(self.test_queue.key.clone());
        before.into_iter().filter(|wake| *wake == work).count()
    }
}

/// The first submission notifies the waiter and removes its registration; the waiter must register again.
pub async fn a_submission_notifies_a_waiter_once(subject: &StoreUnderTest) {
    let mut fixture = QueueWaiterFixture::of(subject).await;
    let keys = [fixture.test_queue.key.clone(), queue("other")];
    for _ in 0..3 {
        fixture.register(&keys).await;
        for _ in 0..3 {
            fixture.test_queue.submit(ordinary(2)).await;
        }
        assert_eq!(fixture.notified().await, 1);
    }
    fixture.test_queue.submit(ordinary(1)).await;
    assert_eq!(fixture.notified().await, 0);
}

/// A waiter registers and then claims once more. If that claim finds nothing, the registration stays.
pub async fn an_empty_claim_keeps_the_waiter_registered(subject: &StoreUnderTest) {
    let mut fixture = QueueWaiterFixture::of(subject).await;
    let second_client =
        TestQueue { store: fixture.waiter.store.clone(), key: fixture.test_queue.key.clone() };
    // Claim twice: at the first claim the queue may not exist.
    for _ in 0..2 {
        fixture.register(std::slice::from_ref(&second_client.key)).await;
        for _ in 0..3 {
            assert_eq!(second_client.claim(claim_request_on(&fixture.waiter, 1)).await, []);
        }
        fixture.test_queue.submit(ordinary(1)).await;
        assert_eq!(fixture.notified().await, 1);
        assert_eq!(second_client.claim(claim_request_on(&fixture.waiter, 1)).await.len(), 1);
    }
}

/// If the claim after a registration finds tasks, the registration also stays until the waiter is notified.
pub async fn a_successful_claim_keeps_the_waiter_registered(subject: &StoreUnderTest) {
    let mut fixture = QueueWaiterFixture::of(subject).await;
    let second_client =
        TestQueue { store: fixture.waiter.store.clone(), key: fixture.test_queue.key.clone() };
    fixture.test_queue.submit(ordinary(1)).await;
    fixture.register(std::slice::from_ref(&second_client.key)).await;
    for found in [1, 0] {
        assert_eq!(second_client.claim(claim_request_on(&fixture.waiter, 9)).await.len(), found);
    }
    fixture.test_queue.submit(ordinary(1)).await;
    assert_eq!(fixture.notified().await, 1);
}

/// No notification is sent without a registered waiter or for a task that cannot be claimed.
pub async fn a_queue_waiter_is_not_notified_without_ready_tasks(subject: &StoreUnderTest) {
    let mut fixture = QueueWaiterFixture::of(subject).await;
    fixture.test_queue.submit(ordinary(3)).await;
    assert_eq!(fixture.notified().await, 0);
    let key = fixture.test_queue.key.clone();
    let now = {
        let tasks = fixture.test_queue.claim(claim_request("w", 9)).await;
        fixture.test_queue.task(tasks[0].id).await.submitted_at_ms
    };
    fixture.register(&[key]).await;
    let later = NewTask { run_at_ms: Some(now + HOUR_MS.cast_signed()), ..NewTask::default() };
    let child = NewTask { parents: vec![ParentRef::Index(0)], ..NewTask::default() };
    fixture.test_queue.submit(vec![later, child]).await;
    fixture.test_queue.other_queue(queue("third")).submit(ordinary(1)).await;
    assert_eq!(fixture.notified().await, 0);
    fixture.test_queue.submit(ordinary(1)).await;
    assert_eq!(fixture.notified().await, 1);
}

/// Checks every way in which a task becomes ready.
pub async fn a_task_that_becomes_ready_notifies_a_waiter(subject: &StoreUnderTest) {
    let mut fixture = QueueWaiterFixture::of(subject).await;
    let (test_queue, key) = (fixture.test_queue.clone(), fixture.test_queue.key.clone());
    let keyed = || NewTask { concurrency_key: Some("k".into()), ..NewTask::default() };
    // A released, a failed and a retried task.
    let id = test_queue.submit_one(NewTask::default()).await;
    let task = test_queue.claim_one().await;
    fixture.register(std::slice::from_ref(&key)).await;
    test_queue.settle(&task, ClaimOutcome::Release).await;
    assert_eq!(fixture.notified().await, 1, "released");
    let task = test_queue.claim_one().await;
    fixture.register(std::slice::from_ref(&key)).await;
    test_queue.settle(&task, failure(true, Duration::ZERO)).await;
    assert_eq!(fixture.notified().await, 1, "failed");
    let task = test_queue.claim_one().await;
    test_queue.kill(&task).await;
    fixture.register(std::slice::from_ref(&key)).await;
    test_queue.apply_action(id, TaskAction::Retry).await;
    assert_eq!(fixture.notified().await, 1, "retried");
    // A child whose parent completed.
    let task = test_queue.claim_one().await;
    test_queue.submit_one(NewTask { parents: vec![ParentRef::Task(id)], ..NewTask::default() }).await;
    fixture.register(std::slice::from_ref(&key)).await;
    test_queue.complete(&task).await;
    assert_eq!(fixture.notified().await, 1, "a child");
    let task = test_queue.claim_one().await;
    test_queue.complete(&task).await;
    // A task that was blocked.
    test_queue.submit(vec![keyed(), keyed()]).await;
    let task = test_queue.claim_one().await;
    fixture.register(std::slice::from_ref(&key)).await;
    test_queue.complete(&task).await;
    assert_eq!(fixture.notified().await, 1, "held");
}

/// Resuming a queue notifies its waiters.
pub async fn a_resumed_queue_notifies_a_waiter(subject: &StoreUnderTest) {
    let mut fixture = QueueWaiterFixture::of(subject).await;
    let (test_queue, key) = (fixture.test_queue.clone(), fixture.test_queue.key.clone());
    test_queue.submit(ordinary(1)).await;
    for name in [Some(&key.name), None] {
        test_queue.store.set_queue_paused(&key.namespace, name, Some(&pause())).await.unwrap();
        fixture.register(std::slice::from_ref(&key)).await;
        test_queue.store.set_queue_paused(&key.namespace, name, None).await.unwrap();
        assert_eq!(fixture.notified().await, 1, "resumed: {name:?}");
    }
    for settings in [exclusive(BrokerFallback::None), QueueSettings::default()] {
        fixture.register(std::slice::from_ref(&key)).await;
        test_queue.set(settings).await;
        assert_eq!(fixture.notified().await, 1, "switched to {:?}", settings.mode);
    }
}

/// Maintenance notifies the waiter when it recovers a task or makes a due task ready.
pub async fn a_task_that_maintenance_makes_ready_notifies_a_waiter(subject: &StoreUnderTest) {
    let (mut fixture, maintenance) =
        (QueueWaiterFixture::of(subject).await, TestMaintenance::of(subject).await);
    let (test_queue, key) = (fixture.test_queue.clone(), fixture.test_queue.key.clone());
    let ended = subject.session("gone").await;
    let id = test_queue.submit_one(NewTask::default()).await;
    test_queue.claim(claim_request_on(&ended, 1)).await;
    ended.store.end_session(&ended.id).await.unwrap();
    fixture.register(std::slice::from_ref(&key)).await;
    assert_eq!(maintenance.run().await.recovered, 1);
    assert_eq!(fixture.notified().await, 1, "returned");
    let task = test_queue.claim_one().await;
    fixture.register(std::slice::from_ref(&key)).await;
    test_queue.settle(&task, failure(true, Duration::from_millis(3))).await;
    while test_queue.state(id).await == tenure_core::port::TaskState::Scheduled {
        maintenance.run().await;
    }
    assert_eq!(fixture.notified().await, 1, "due");
}

/// The worker that claimed a cancelled task is notified.
pub async fn a_worker_is_notified_of_a_cancelled_claim(subject: &StoreUnderTest) {
    let mut fixture = QueueWaiterFixture::of(subject).await;
    let test_queue = fixture.test_queue.clone();
    let parent = test_queue.submit_one(NewTask::default()).await;
    test_queue.claim(claim_request_on(&fixture.waiter, 1)).await;
    test_queue.apply_action(parent, TaskAction::Cancel).await;
    notifications_until(&mut fixture.notifications, &Notification::ClaimCancelled(fixture.waiter.id.clone()))
        .await;
    assert_eq!(fixture.waiter.store.held_claims(&fixture.waiter.id).await, Ok(vec![]));
}
