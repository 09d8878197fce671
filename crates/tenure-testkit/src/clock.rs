//! A manual clock.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::BootInstant;
use tenure::runtime::Runtime;
use tenure_core::{Entropy, SplitMix};
use tokio::sync::watch;

/// Number of times that the test yields so that every task can finish its work. All work between two instants of this
/// clock is in memory, so a task needs one turn per message.
const TURNS: usize = 200;

/// A manual clock with seeded randomness. Clones share it.
///
/// ```
/// # tenure_testkit::block_on(async {
/// use std::time::Duration;
/// use tenure::runtime::Runtime;
///
/// let clock = tenure_testkit::ManualClock::new(1);
/// let before = clock.now();
/// clock.advance(Duration::from_secs(60)).await;
/// assert_eq!(clock.now().since(before), Duration::from_secs(60));
/// # });
/// ```
///
/// The clock also has a wall clock, which an in-memory store and all schedules use. The clock stops at every heartbeat,
/// so use a long lease for long periods: a quarter of a year then takes milliseconds.
///
/// ```
/// # tenure_testkit::block_on(async {
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tenure::store::memory::MemoryStore;
/// use tenure::{ScheduleBuilder, Tenure};
/// use tenure_testkit::ManualClock;
///
/// const DAY: Duration = Duration::from_secs(86_400);
///
/// # async fn quarter() -> Result<(), tenure::Error> {
/// let clock = ManualClock::new(1);
/// clock.set_wall("2026-01-10T00:00:00Z");
/// let runtime = Arc::new(clock.clone());
/// let store = MemoryStore::with_runtime(runtime.clone());
/// let tenure = Tenure::builder().store(store).runtime(runtime).lease(DAY).open().await?;
/// let scheduler = tenure.scheduler().start().await?;
/// let nightly = ScheduleBuilder::new("nightly", "30 2 * * *").time_zone("Europe/Berlin").task("reports", "nightly");
/// scheduler.set(nightly).await?;
///
/// clock.advance(90 * DAY).await;
/// assert_eq!(scheduler.schedules().show("nightly").await?.fired_count, 90);
/// // Single ticks are kept for 30 days.
/// let ticks = scheduler.schedules().ticks("nightly", 100).await?;
/// // On 29 March 02:30 does not exist in Berlin.
/// let at: Vec<i64> = ticks.iter().rev().map(|tick| tick.tick_at_ms).collect();
/// let hours: Vec<i64> = at.windows(2).map(|two| (two[1] - two[0]) / 3_600_000).collect();
/// assert_eq!(hours.iter().filter(|hours| **hours != 24).collect::<Vec<_>>(), [&23]);
/// # Ok(()) }
/// # quarter().await.unwrap();
/// # });
/// ```
#[derive(Clone)]
pub struct ManualClock {
    inner: Arc<Inner>,
}

struct Inner {
    now: watch::Sender<BootInstant>,
    /// How far the wall clock is ahead of the clock, in milliseconds.
    wall_ahead_ms: AtomicI64,
    sleepers: Mutex<BTreeSet<(BootInstant, u64)>>,
    next_sleeper: AtomicU64,
    random: Mutex<SplitMix>,
}

impl ManualClock {
    /// A clock at its origin, with the randomness of this seed.
    pub fn new(seed: u64) -> Self {
        let inner = Inner {
            now: watch::Sender::new(BootInstant::from_nanos(1_000_000_000)),
            wall_ahead_ms: AtomicI64::new(0),
            sleepers: Mutex::default(),
            next_sleeper: AtomicU64::new(0),
            random: Mutex::new(SplitMix::new(seed)),
        };
        ManualClock { inner: Arc::new(inner) }
    }

    /// Advances the clock and stops at every instant for which a task sleeps, so that no task wakes late.
    pub async fn advance(&self, by: Duration) {
        let target = self.now() + by;
        loop {
            self.settle().await;
            let next = self.sleepers().first().map(|(at, _)| *at).filter(|at| *at <= target);
            let Some(next) = next else { break };
            self.inner.now.send_modify(|now| *now = next.max(*now));
        }
        self.inner.now.send_modify(|now| *now = target.max(*now));
        self.settle().await;
    }

    /// Sets the wall clock, for example to `2026-02-01T00:00:00Z`. Wakes no sleeping task, as when an operator sets the
    /// clock of a machine.
    ///
    /// # Panics
    ///
    /// If the text is not an instant.
    pub fn set_wall(&self, at: &str) {
        let at: jiff::Timestamp =
            at.parse().unwrap_or_else(|error| panic!("{at:?} is not an instant: {error}"));
        self.step_wall(at.as_millisecond() - self.wall_ms());
    }

    /// Moves the wall clock by this many milliseconds. Wakes no task.
    pub fn step_wall(&self, by_ms: i64) {
        self.inner.wall_ahead_ms.fetch_add(by_ms, Ordering::SeqCst);
    }

    /// Yields until every task has done its work at this instant.
    pub async fn settle(&self) {
        for _ in 0..TURNS {
            tokio::task::yield_now().await;
        }
    }

    fn sleepers(&self) -> MutexGuard<'_, BTreeSet<(BootInstant, u64)>> {
        self.inner.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Runtime for ManualClock {
    fn now(&self) -> BootInstant {
        *self.inner.now.borrow()
    }

    fn wall_ms(&self) -> i64 {
        let passed = i64::try_from(self.now().as_nanos() / 1_000_000).unwrap_or(i64::MAX);
        passed.saturating_add(self.inner.wall_ahead_ms.load(Ordering::SeqCst))
    }

    fn sleep_until<'a>(&'a self, at: BootInstant) -> futures_core::future::BoxFuture<'a, ()> {
        Box::pin(async move {
            let mut now = self.inner.now.subscribe();
            if *now.borrow_and_update() >= at {
                return;
            }
            let _sleeper = Sleeper::new(self, at);
            // The wait cannot fail, because the clock outlives its sleepers.
            let _ = now.wait_for(|now| *now >= at).await;
        })
    }

    fn random(&self) -> u64 {
        self.inner.random.lock().unwrap_or_else(PoisonError::into_inner).next_u64()
    }
}

/// A sleeping task; removed on drop.
struct Sleeper<'a> {
    clock: &'a ManualClock,
    entry: (BootInstant, u64),
}

impl<'a> Sleeper<'a> {
    fn new(clock: &'a ManualClock, at: BootInstant) -> Self {
        let entry = (at, clock.inner.next_sleeper.fetch_add(1, Ordering::Relaxed));
        clock.sleepers().insert(entry);
        Sleeper { clock, entry }
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        self.clock.sleepers().remove(&self.entry);
    }
}
