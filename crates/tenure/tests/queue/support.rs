//! Shared fixtures of the queue tests.

use std::sync::Arc;
use std::time::Duration;

use tenure::port::*;
use tenure::store::memory::MemoryStore;
use tenure::{ClaimResult, Name, Tenure};
use tenure_testkit::ManualClock;

use crate::instrumented_store::InstrumentedStore;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// The lease of every process: shorter than the default, so that a test need not advance the clock as far.
pub(crate) const LEASE: Duration = Duration::from_secs(10);
pub(crate) const MS: Duration = Duration::from_millis(1);

/// A manual clock and a memory store that uses it.
pub(crate) fn manual_clock() -> (ManualClock, InstrumentedStore) {
    let clock = ManualClock::new(7);
    let memory = MemoryStore::with_runtime(Arc::new(clock.clone()));
    (clock, InstrumentedStore::new(memory))
}

pub(crate) async fn process(clock: &ManualClock, store: &InstrumentedStore, name: &str) -> Tenure {
    let builder =
        Tenure::builder().store(store.clone()).name(name).lease(LEASE).runtime(Arc::new(clock.clone()));
    builder.open().await.expect("the memory store opens")
}

/// A process on the system clock.
pub(crate) async fn real_process(store: &InstrumentedStore, name: &str) -> Tenure {
    Tenure::builder()
        .store(store.clone())
        .name(name)
        .lease(SECOND)
        .open()
        .await
        .expect("the memory store opens")
}

pub(crate) fn queue(name: &str) -> QueueKey {
    QueueKey::new(Name::default_namespace(), name.parse().expect("a valid name"))
}

pub(crate) fn claim_request(tenure: &Tenure, worker: &str, limit: u32) -> ClaimRequest {
    let worker = WorkerProfile { name: worker.into(), ..WorkerProfile::default() };
    ClaimRequest { worker, limit, session: tenure.session(), claim_timeout_ms: None }
}

pub(crate) fn tasks(claimed: ClaimResult) -> Vec<ClaimedTask> {
    match claimed {
        ClaimResult::Tasks(tasks) => tasks,
        other => panic!("not claimed: {other:?}"),
    }
}

pub(crate) fn complete(task: &ClaimedTask) -> Settlement {
    let namespace = Name::default_namespace();
    Settlement { namespace, task: task.id, token: task.token, outcome: ClaimOutcome::Complete(None) }
}

pub(crate) fn many(count: usize) -> Vec<NewTask> {
    (0..count)
        .map(|at| NewTask { payload: RawJson::of(&at).expect("a number serializes"), ..NewTask::new("k") })
        .collect()
}

pub(crate) async fn state_of(store: &InstrumentedStore, id: TaskId) -> TaskView {
    let task = store.store.task(&Name::default_namespace(), id).await.expect("the memory store responds");
    task.expect("the task exists")
}

pub(crate) async fn set_mode(
    store: &InstrumentedStore,
    queue: &QueueKey,
    mode: AssignmentMode,
    fallback: BrokerFallback,
) {
    let settings = QueueSettings { mode, fallback, ..QueueSettings::default() };
    store.store.set_queue(queue, &settings).await.expect("the memory store responds");
}

pub(crate) async fn counts(
    store: &InstrumentedStore,
    queue: &QueueKey,
) -> std::collections::BTreeMap<TaskState, u64> {
    let view = store.store.queue(queue).await.expect("the memory store responds");
    view.map(|view| view.counts).unwrap_or_default().into_iter().filter(|(_, count)| *count > 0).collect()
}

/// Waits on the system clock until a condition holds. The time limit depends on the machine, not on the test.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..3_000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(10 * MS).await;
    }
    panic!("never: {what}");
}
