//! What the tests of claims share.

use std::sync::Arc;
use std::time::Duration;

use tenure::backend::memory::Memory;
use tenure::port::*;
use tenure::{Claimed, Name, Tenure};
use tenure_testkit::Clock;

use crate::spy::Spy;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// The lease of every process here: shorter than the usual one, so that a test need not drive the clock as far.
pub(crate) const LEASE: Duration = Duration::from_secs(10);
pub(crate) const MS: Duration = Duration::from_millis(1);

/// A hand-driven clock and a store in memory that goes by it.
pub(crate) fn hand_driven() -> (Clock, Spy) {
    let clock = Clock::new(7);
    let memory = Memory::with_runtime(Arc::new(clock.clone()));
    (clock, Spy::new(memory))
}

pub(crate) async fn process(clock: &Clock, store: &Spy, name: &str) -> Tenure {
    let builder =
        Tenure::builder().store(store.clone()).name(name).lease(LEASE).runtime(Arc::new(clock.clone()));
    builder.open().await.expect("a store in memory opens")
}

/// A process on the machine's own clock.
pub(crate) async fn real_process(store: &Spy, name: &str) -> Tenure {
    Tenure::builder()
        .store(store.clone())
        .name(name)
        .lease(SECOND)
        .open()
        .await
        .expect("a store in memory opens")
}

pub(crate) fn queue(name: &str) -> QueueKey {
    QueueKey::new(Name::default_namespace(), name.parse().expect("a name"))
}

pub(crate) fn seat(tenure: &Tenure, worker: &str, limit: u32) -> Seat {
    let worker = Profile { name: worker.into(), ..Profile::default() };
    Seat { worker, limit, session: tenure.session(), hold_ms: None }
}

pub(crate) fn tasks(claimed: Claimed) -> Vec<ClaimedTask> {
    match claimed {
        Claimed::Tasks(tasks) => tasks,
        other => panic!("not claimed: {other:?}"),
    }
}

pub(crate) fn complete(task: &ClaimedTask) -> Settlement {
    let namespace = Name::default_namespace();
    Settlement { namespace, task: task.id, token: task.token, outcome: Outcome::Complete(None) }
}

pub(crate) fn many(count: usize) -> Vec<NewTask> {
    (0..count)
        .map(|at| NewTask { payload: Json::of(&at).expect("a number is JSON"), ..NewTask::new("k") })
        .collect()
}

pub(crate) async fn state_of(store: &Spy, id: TaskId) -> TaskView {
    let task = store.store.task(&Name::default_namespace(), id).await.expect("memory answers");
    task.expect("the task is remembered")
}

pub(crate) async fn set_mode(store: &Spy, queue: &QueueKey, mode: Mode, fallback: Fallback) {
    let settings = QueueSettings { mode, fallback, ..QueueSettings::default() };
    store.store.set_queue(queue, &settings).await.expect("memory answers");
}

pub(crate) async fn counts(store: &Spy, queue: &QueueKey) -> std::collections::BTreeMap<TaskState, u64> {
    let view = store.store.queue(queue).await.expect("memory answers");
    view.map(|view| view.counts).unwrap_or_default().into_iter().filter(|(_, count)| *count > 0).collect()
}

/// Waits, on the machine's own clock, until something is so. How long is a matter of the machine, not of the test.
pub(crate) async fn until(what: &str, mut so: impl AsyncFnMut() -> bool) {
    for _ in 0..3_000 {
        if so().await {
            return;
        }
        tokio::time::sleep(10 * MS).await;
    }
    panic!("never: {what}");
}
