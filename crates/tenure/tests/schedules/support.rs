//! What the tests of schedules share.

use std::sync::Arc;
use std::time::Duration;

use tenure::backend::memory::Memory;
use tenure::port::*;
use tenure::schedule::tick_of;
use tenure::{Name, ScheduleBuilder, Scheduler, Tenure};
use tenure_testkit::Clock;

use crate::spy::Spy;

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// The lease of every process here: shorter than the usual one, so that a test need not drive the clock as far.
pub(crate) const LEASE: Duration = Duration::from_secs(10);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);
pub(crate) const HOUR: Duration = Duration::from_secs(3_600);
pub(crate) const DAY: Duration = Duration::from_secs(86_400);

/// When the tests begin.
pub(crate) const START: &str = "2026-11-15T00:00:00Z";

/// A hand-driven clock, and a store in memory that goes by it.
pub(crate) fn hand_driven() -> (Clock, Memory) {
    let clock = Clock::new(7);
    clock.set_wall(START);
    // A tick at this very moment would count.
    clock.step_wall(1);
    let store = Memory::with_runtime(Arc::new(clock.clone()));
    (clock, store)
}

/// A process, and its own view of the store.
pub(crate) async fn process(clock: &Clock, store: &Memory, name: &str) -> (Tenure, Spy) {
    leased(clock, store, name, Duration::from_secs(10)).await
}

pub(crate) async fn leased(clock: &Clock, store: &Memory, name: &str, lease: Duration) -> (Tenure, Spy) {
    let spy = Spy::new(store.clone());
    let builder =
        Tenure::builder().store(spy.clone()).name(name).lease(LEASE).runtime(Arc::new(clock.clone()));
    (builder.lease(lease).open().await.expect("a store in memory opens"), spy)
}

/// A process that fires, and leads by now.
pub(crate) async fn firing(clock: &Clock, store: &Memory, name: &str) -> (Tenure, Spy, Scheduler) {
    let (tenure, spy) = process(clock, store, name).await;
    let scheduler = tenure.scheduler().start().await.expect("it starts");
    clock.settle().await;
    (tenure, spy, scheduler)
}

/// A schedule whose ticks are tasks.
pub(crate) fn tasks(name: &str, when: &str) -> ScheduleBuilder {
    ScheduleBuilder::new(name, when).task("work", "tick")
}

pub(crate) fn key(name: &str) -> ScheduleKey {
    ScheduleKey::new(Name::default_namespace(), name.parse().expect("a name"))
}

pub(crate) async fn view(store: &Memory, name: &str) -> ScheduleView {
    store.schedule(&key(name)).await.expect("memory answers").expect("the schedule is there")
}

/// Its ticks of this state, the oldest first.
pub(crate) async fn ticks(store: &Memory, name: &str, state: TickState) -> Vec<TickView> {
    let filter = TickFilter { key: key(name), before_ms: None, limit: 100_000 };
    let mut ticks = store.ticks(&filter).await.expect("memory answers");
    ticks.retain(|tick| tick.state == state);
    ticks.reverse();
    ticks
}

/// The instants of those that fired, in seconds since the tests began.
pub(crate) async fn fired_s(store: &Memory, name: &str) -> Vec<i64> {
    let start_ms = start_ms();
    let ticks = ticks(store, name, TickState::Fired).await;
    ticks.iter().map(|tick| (tick.at_ms - start_ms) / 1_000).collect()
}

pub(crate) fn start_ms() -> i64 {
    1_794_700_800_000
}

/// The ticks of a schedule for which there are tasks, the oldest first.
pub(crate) async fn submitted(store: &Memory, name: &str) -> Vec<i64> {
    let filter =
        TaskFilter { namespace: Some(Name::default_namespace()), limit: 100_000, ..TaskFilter::default() };
    let all = store.tasks(&filter).await.expect("memory answers");
    let of = |task: &TaskView| task.key.as_deref().and_then(tick_of);
    let mut ticks: Vec<i64> =
        all.iter().filter_map(of).filter(|(its, _)| *its == key(name)).map(|(_, at)| at).collect();
    ticks.sort_unstable();
    ticks
}

/// Ends a session in the store, as whoever finds it dead does.
pub(crate) async fn expire(store: &Memory, session: &tenure::SessionId) {
    let sessions = store.sessions(Some(std::slice::from_ref(session))).await.expect("memory answers");
    let beat = sessions.first().map(|view| view.beat);
    let scope = Scope::Only(vec![scheduler_election()]);
    let epoch = store.observe(session, &scope).await.expect("memory answers").epoch;
    let expire = Expire { session: session.clone(), epoch, beat };
    store.expire(&expire).await.expect("memory answers");
}
