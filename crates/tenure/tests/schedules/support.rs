//! Shared fixtures of the schedule tests.

use std::sync::Arc;
use std::time::Duration;

use tenure::port::*;
use tenure::rules::schedule::tick_of;
use tenure::store::memory::MemoryStore;
use tenure::{Name, ScheduleBuilder, Scheduler, Tenure};
use tenure_testkit::ManualClock;

use crate::instrumented_store::InstrumentedStore;

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// The lease of every process: shorter than the default, so that a test need not advance the clock as far.
pub(crate) const LEASE: Duration = Duration::from_secs(10);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);
pub(crate) const HOUR: Duration = Duration::from_secs(3_600);
pub(crate) const DAY: Duration = Duration::from_secs(86_400);

/// Start of the tests.
pub(crate) const START: &str = "2026-11-15T00:00:00Z";

/// A manual clock, and a memory store that uses it.
pub(crate) fn manual_clock() -> (ManualClock, MemoryStore) {
    let clock = ManualClock::new(7);
    clock.set_wall(START);
    // Start just after midnight: a tick that is due exactly at the start would count, too.
    clock.step_wall(1);
    let store = MemoryStore::with_runtime(Arc::new(clock.clone()));
    (clock, store)
}

/// A process with its own instrumented store.
pub(crate) async fn process(
    clock: &ManualClock,
    store: &MemoryStore,
    name: &str,
) -> (Tenure, InstrumentedStore) {
    leased(clock, store, name, Duration::from_secs(10)).await
}

pub(crate) async fn leased(
    clock: &ManualClock,
    store: &MemoryStore,
    name: &str,
    lease: Duration,
) -> (Tenure, InstrumentedStore) {
    let instrumented = InstrumentedStore::new(store.clone());
    let builder = Tenure::builder()
        .store(instrumented.clone())
        .name(name)
        .lease(LEASE)
        .runtime(Arc::new(clock.clone()));
    (builder.lease(lease).open().await.expect("the memory store opens"), instrumented)
}

/// Starts a process with a scheduler, and waits until the scheduler leads.
pub(crate) async fn firing(
    clock: &ManualClock,
    store: &MemoryStore,
    name: &str,
) -> (Tenure, InstrumentedStore, Scheduler) {
    let (tenure, instrumented) = process(clock, store, name).await;
    let scheduler = tenure.scheduler().start().await.expect("the scheduler starts");
    clock.settle().await;
    (tenure, instrumented, scheduler)
}

/// A schedule whose ticks are tasks.
pub(crate) fn tasks(name: &str, when: &str) -> ScheduleBuilder {
    ScheduleBuilder::new(name, when).task("work", "tick")
}

pub(crate) fn key(name: &str) -> ScheduleKey {
    ScheduleKey::new(Name::default_namespace(), name.parse().expect("a valid name"))
}

pub(crate) async fn view(store: &MemoryStore, name: &str) -> ScheduleView {
    store.schedule(&key(name)).await.expect("the memory store responds").expect("the schedule exists")
}

/// The ticks of a schedule with this outcome, oldest first.
pub(crate) async fn ticks(store: &MemoryStore, name: &str, state: TickOutcome) -> Vec<TickView> {
    let filter = TickFilter { key: key(name), before_ms: None, limit: 100_000 };
    let mut ticks = store.ticks(&filter).await.expect("the memory store responds");
    ticks.retain(|tick| tick.state == state);
    ticks.reverse();
    ticks
}

/// The instants of the fired ticks, in seconds since the start of the test.
pub(crate) async fn fired_s(store: &MemoryStore, name: &str) -> Vec<i64> {
    let start_ms = start_ms();
    let ticks = ticks(store, name, TickOutcome::Fired).await;
    ticks.iter().map(|tick| (tick.tick_at_ms - start_ms) / 1_000).collect()
}

pub(crate) fn start_ms() -> i64 {
    1_794_700_800_000
}

/// The ticks of a schedule that have tasks, oldest first.
pub(crate) async fn submitted(store: &MemoryStore, name: &str) -> Vec<i64> {
    let filter =
        TaskFilter { namespace: Some(Name::default_namespace()), limit: 100_000, ..TaskFilter::default() };
    let all = store.tasks(&filter).await.expect("the memory store responds");
    let of = |task: &TaskView| task.idempotency_key.as_deref().and_then(tick_of);
    let mut ticks: Vec<i64> =
        all.iter().filter_map(of).filter(|(its, _)| *its == key(name)).map(|(_, at)| at).collect();
    ticks.sort_unstable();
    ticks
}

/// Expires a session in the store, as maintenance does for a dead one.
pub(crate) async fn expire(store: &MemoryStore, session: &tenure::SessionId) {
    let sessions =
        store.sessions(Some(std::slice::from_ref(session))).await.expect("the memory store responds");
    let beat = sessions.first().map(|view| view.heartbeat_count);
    let scope = ObserveScope::Listed(vec![scheduler_election()]);
    let epoch = store.observe(session, &scope).await.expect("the memory store responds").epoch;
    let expire = ExpireSessionRequest { session: session.clone(), epoch, heartbeat_count: beat };
    store.expire_session(&expire).await.expect("the memory store responds");
}
