//! A clock that moves when the test says so.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::Moment;
use tenure::runtime::Runtime;
use tenure_core::{Entropy, SplitMix};
use tokio::sync::watch;

/// How often the test yields so that every task that has something to do has done it. All work between two moments of
/// this clock is in memory, so a task needs a turn for each message it passes on, and no more.
const TURNS: usize = 200;

/// A hand-driven clock, and the randomness of a seed. Clones share it.
///
/// ```
/// # tenure_testkit::block_on(async {
/// use std::time::Duration;
/// use tenure::runtime::Runtime;
///
/// let clock = tenure_testkit::Clock::new(1);
/// let before = clock.now();
/// clock.advance(Duration::from_secs(60)).await;
/// assert_eq!(clock.now().since(before), Duration::from_secs(60));
/// # });
/// ```
///
/// It has a wall, too, which a store in memory goes by, and with it all schedules. A quarter of a year passes in milliseconds, if the
/// lease is long: the clock stops at every beat.
///
/// ```
/// # tenure_testkit::block_on(async {
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tenure::backend::memory::Memory;
/// use tenure::{ScheduleBuilder, Tenure};
/// use tenure_testkit::Clock;
///
/// const DAY: Duration = Duration::from_secs(86_400);
///
/// # async fn quarter() -> Result<(), tenure::Error> {
/// let clock = Clock::new(1);
/// clock.set_wall("2026-01-10T00:00:00Z");
/// let runtime = Arc::new(clock.clone());
/// let store = Memory::with_runtime(runtime.clone());
/// let tenure = Tenure::builder().store(store).runtime(runtime).lease(DAY).open().await?;
/// let scheduler = tenure.scheduler().start().await?;
/// let nightly = ScheduleBuilder::new("nightly", "30 2 * * *").zone("Europe/Berlin").task("reports", "nightly");
/// scheduler.set(nightly).await?;
///
/// clock.advance(90 * DAY).await;
/// assert_eq!(scheduler.schedules().show("nightly").await?.fired, 90);
/// // Of the last thirty days, ticks are remembered one by one.
/// let ticks = scheduler.schedules().ticks("nightly", 100).await?;
/// // On the 29th of March there was no 02:30 in Berlin.
/// let at: Vec<i64> = ticks.iter().rev().map(|tick| tick.at_ms).collect();
/// let hours: Vec<i64> = at.windows(2).map(|two| (two[1] - two[0]) / 3_600_000).collect();
/// assert_eq!(hours.iter().filter(|hours| **hours != 24).collect::<Vec<_>>(), [&23]);
/// # Ok(()) }
/// # quarter().await.unwrap();
/// # });
/// ```
#[derive(Clone)]
pub struct Clock {
    inner: Arc<Inner>,
}

struct Inner {
    now: watch::Sender<Moment>,
    /// How much the wall clock is ahead, in milliseconds.
    wall_ahead_ms: AtomicI64,
    sleepers: Mutex<BTreeSet<(Moment, u64)>>,
    next_sleeper: AtomicU64,
    random: Mutex<SplitMix>,
}

impl Clock {
    /// A clock at its start, with the randomness of this seed.
    pub fn new(seed: u64) -> Self {
        let inner = Inner {
            now: watch::Sender::new(Moment::from_nanos(1_000_000_000)),
            wall_ahead_ms: AtomicI64::new(0),
            sleepers: Mutex::default(),
            next_sleeper: AtomicU64::new(0),
            random: Mutex::new(SplitMix::new(seed)),
        };
        Clock { inner: Arc::new(inner) }
    }

    /// Moves the clock on, stopping at every moment for which somebody sleeps, so that nothing happens late.
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

    /// Sets what the wall clock shows: `2026-02-01T00:00:00Z`. Nobody is woken by that, as on a machine whose clock is set.
    ///
    /// # Panics
    ///
    /// If that is no instant.
    pub fn set_wall(&self, at: &str) {
        let at: jiff::Timestamp = at.parse().unwrap_or_else(|error| panic!("{at:?} is no instant: {error}"));
        self.step_wall(at.as_millisecond() - self.wall_ms());
    }

    /// Steps the wall clock by so many milliseconds, ahead or back. Nobody is woken by that.
    pub fn step_wall(&self, by_ms: i64) {
        self.inner.wall_ahead_ms.fetch_add(by_ms, Ordering::SeqCst);
    }

    /// Lets every task do what it has to do at this moment.
    pub async fn settle(&self) {
        for _ in 0..TURNS {
            tokio::task::yield_now().await;
        }
    }

    fn sleepers(&self) -> MutexGuard<'_, BTreeSet<(Moment, u64)>> {
        self.inner.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Runtime for Clock {
    fn now(&self) -> Moment {
        *self.inner.now.borrow()
    }

    fn wall_ms(&self) -> i64 {
        let passed = i64::try_from(self.now().as_nanos() / 1_000_000).unwrap_or(i64::MAX);
        passed.saturating_add(self.inner.wall_ahead_ms.load(Ordering::SeqCst))
    }

    fn sleep_until<'a>(&'a self, at: Moment) -> futures_core::future::BoxFuture<'a, ()> {
        Box::pin(async move {
            let mut now = self.inner.now.subscribe();
            if *now.borrow_and_update() >= at {
                return;
            }
            let _sleeper = Sleeper::new(self, at);
            // The clock outlives its sleepers.
            let _ = now.wait_for(|now| *now >= at).await;
        })
    }

    fn random(&self) -> u64 {
        self.inner.random.lock().unwrap_or_else(PoisonError::into_inner).next_u64()
    }
}

/// Somebody who sleeps; no longer so when dropped.
struct Sleeper<'a> {
    clock: &'a Clock,
    entry: (Moment, u64),
}

impl<'a> Sleeper<'a> {
    fn new(clock: &'a Clock, at: Moment) -> Self {
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
