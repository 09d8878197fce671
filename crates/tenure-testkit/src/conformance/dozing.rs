//! Claims about hints of work: who sleeps is woken, once, and nobody else is.
//!
//! Silence proves nothing, so each claim waits for a later hint, of a queue that is there for that, and counts what came
//! before it.

use std::time::Duration;

use tenure_core::port::{Fallback, NewTask, Order, Outcome, Parent, QueueKey, QueueSettings, Wake, Wakes};

use super::floor::{
    Floor, HOUR_MS, Keeper, failure, hints_until, listening, ordinary, pause, queue, seat, seat_on,
};
use super::modes::exclusive;
use super::{Actor, Subject};

/// A sleeper, what it hears, and the queue.
struct Scene {
    floor: Floor,
    sleeper: Actor,
    hints: Wakes,
}

impl Scene {
    async fn of(subject: &Subject) -> Scene {
        let sleeper = subject.actor("sleeper").await;
        let hints = listening(&sleeper).await;
        Scene { floor: Floor::of(subject).await, sleeper, hints }
    }

    async fn doze(&self, keys: &[QueueKey]) {
        self.sleeper.store.doze(&self.sleeper.id, keys).await.expect("doze");
    }

    /// How often the queue rang since the last time.
    async fn rang(&mut self) -> usize {
        let bell = queue("bell");
        self.doze(std::slice::from_ref(&bell)).await;
        self.floor.beside(bell.clone()).submit(ordinary(1)).await;
        let before = hints_until(&mut self.hints, &Wake::Work(bell)).await;
        let work = Wake::Work(self.floor.key.clone());
        before.into_iter().filter(|wake| *wake == work).count()
    }
}

/// The first submission rings, the next ones need not: whoever sleeps again says so again.
pub async fn a_submission_wakes_a_sleeper_once(subject: &Subject) {
    let mut scene = Scene::of(subject).await;
    let keys = [scene.floor.key.clone(), queue("other")];
    for _ in 0..3 {
        scene.doze(&keys).await;
        for _ in 0..3 {
            scene.floor.submit(ordinary(2)).await;
        }
        assert_eq!(scene.rang().await, 1);
    }
    scene.floor.submit(ordinary(1)).await;
    assert_eq!(scene.rang().await, 0);
}

/// Whoever goes to sleep says so, and then looks once more: that look must not take the word back.
pub async fn who_looks_and_finds_nothing_sleeps_on(subject: &Subject) {
    let mut scene = Scene::of(subject).await;
    let looker = Floor { store: scene.sleeper.store.clone(), key: scene.floor.key.clone() };
    // Twice: the first may find a store that has never heard of the queue.
    for _ in 0..2 {
        scene.doze(std::slice::from_ref(&looker.key)).await;
        for _ in 0..3 {
            assert_eq!(looker.claim(seat_on(&scene.sleeper, 1)).await, []);
        }
        scene.floor.submit(ordinary(1)).await;
        assert_eq!(scene.rang().await, 1);
        assert_eq!(looker.claim(seat_on(&scene.sleeper, 1)).await.len(), 1);
    }
}

/// Whoever sleeps may find something by itself; its word stands until it is rung for.
pub async fn who_finds_something_by_itself_sleeps_on(subject: &Subject) {
    let mut scene = Scene::of(subject).await;
    let looker = Floor { store: scene.sleeper.store.clone(), key: scene.floor.key.clone() };
    scene.floor.submit(ordinary(1)).await;
    scene.doze(std::slice::from_ref(&looker.key)).await;
    for found in [1, 0] {
        assert_eq!(looker.claim(seat_on(&scene.sleeper, 9)).await.len(), found);
    }
    scene.floor.submit(ordinary(1)).await;
    assert_eq!(scene.rang().await, 1);
}

/// While nobody sleeps, nobody is rung for; and what can not be claimed wakes nobody.
pub async fn nobody_is_woken_for_nothing(subject: &Subject) {
    let mut scene = Scene::of(subject).await;
    scene.floor.submit(ordinary(3)).await;
    assert_eq!(scene.rang().await, 0);
    let key = scene.floor.key.clone();
    let now = {
        let tasks = scene.floor.claim(seat("w", 9)).await;
        scene.floor.task(tasks[0].id).await.enqueued_at_ms
    };
    scene.doze(&[key]).await;
    let later = NewTask { run_at_ms: Some(now + HOUR_MS.cast_signed()), ..NewTask::default() };
    let child = NewTask { parents: vec![Parent::Index(0)], ..NewTask::default() };
    scene.floor.submit(vec![later, child]).await;
    scene.floor.beside(queue("third")).submit(ordinary(1)).await;
    assert_eq!(scene.rang().await, 0);
    scene.floor.submit(ordinary(1)).await;
    assert_eq!(scene.rang().await, 1);
}

/// Whatever makes a task ready rings.
pub async fn whatever_makes_a_task_ready_wakes_a_sleeper(subject: &Subject) {
    let mut scene = Scene::of(subject).await;
    let (floor, key) = (scene.floor.clone(), scene.floor.key.clone());
    let keyed = || NewTask { concurrency_key: Some("k".into()), ..NewTask::default() };
    // Released, failed, retried.
    let id = floor.submit_one(NewTask::default()).await;
    let task = floor.claim_one().await;
    scene.doze(std::slice::from_ref(&key)).await;
    floor.settle(&task, Outcome::Release).await;
    assert_eq!(scene.rang().await, 1, "released");
    let task = floor.claim_one().await;
    scene.doze(std::slice::from_ref(&key)).await;
    floor.settle(&task, failure(true, Duration::ZERO)).await;
    assert_eq!(scene.rang().await, 1, "failed");
    let task = floor.claim_one().await;
    floor.kill(&task).await;
    scene.doze(std::slice::from_ref(&key)).await;
    floor.order(id, Order::Retry).await;
    assert_eq!(scene.rang().await, 1, "retried");
    // A child whose parent is done.
    let task = floor.claim_one().await;
    floor.submit_one(NewTask { parents: vec![Parent::Task(id)], ..NewTask::default() }).await;
    scene.doze(std::slice::from_ref(&key)).await;
    floor.complete(&task).await;
    assert_eq!(scene.rang().await, 1, "a child");
    let task = floor.claim_one().await;
    floor.complete(&task).await;
    // One that was held.
    floor.submit(vec![keyed(), keyed()]).await;
    let task = floor.claim_one().await;
    scene.doze(std::slice::from_ref(&key)).await;
    floor.complete(&task).await;
    assert_eq!(scene.rang().await, 1, "held");
}

/// A queue that goes on.
pub async fn whatever_lets_a_queue_go_on_wakes_a_sleeper(subject: &Subject) {
    let mut scene = Scene::of(subject).await;
    let (floor, key) = (scene.floor.clone(), scene.floor.key.clone());
    floor.submit(ordinary(1)).await;
    for name in [Some(&key.name), None] {
        floor.store.set_queue_paused(&key.namespace, name, Some(&pause())).await.unwrap();
        scene.doze(std::slice::from_ref(&key)).await;
        floor.store.set_queue_paused(&key.namespace, name, None).await.unwrap();
        assert_eq!(scene.rang().await, 1, "resumed: {name:?}");
    }
    for settings in [exclusive(Fallback::None), QueueSettings::default()] {
        scene.doze(std::slice::from_ref(&key)).await;
        floor.set(settings).await;
        assert_eq!(scene.rang().await, 1, "switched to {:?}", settings.mode);
    }
}

/// What the keeper brings back, or finds due.
pub async fn what_the_keeper_makes_ready_wakes_a_sleeper(subject: &Subject) {
    let (mut scene, keeper) = (Scene::of(subject).await, Keeper::of(subject).await);
    let (floor, key) = (scene.floor.clone(), scene.floor.key.clone());
    let gone = subject.actor("gone").await;
    let id = floor.submit_one(NewTask::default()).await;
    floor.claim(seat_on(&gone, 1)).await;
    gone.store.end(&gone.id).await.unwrap();
    scene.doze(std::slice::from_ref(&key)).await;
    assert_eq!(keeper.tend().await.returned, 1);
    assert_eq!(scene.rang().await, 1, "returned");
    let task = floor.claim_one().await;
    scene.doze(std::slice::from_ref(&key)).await;
    floor.settle(&task, failure(true, Duration::from_millis(3))).await;
    while floor.state(id).await == tenure_core::port::TaskState::Scheduled {
        keeper.tend().await;
    }
    assert_eq!(scene.rang().await, 1, "due");
}

/// Who has a task that was called off is told.
pub async fn a_cancelled_claim_is_recalled(subject: &Subject) {
    let mut scene = Scene::of(subject).await;
    let floor = scene.floor.clone();
    let parent = floor.submit_one(NewTask::default()).await;
    floor.claim(seat_on(&scene.sleeper, 1)).await;
    floor.order(parent, Order::Cancel).await;
    hints_until(&mut scene.hints, &Wake::Recalled(scene.sleeper.id.clone())).await;
    assert_eq!(scene.sleeper.store.held(&scene.sleeper.id).await, Ok(vec![]));
}
