//! Simulated time, which advances when no task is ready.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Real time in nanoseconds. Clones share it.
#[derive(Clone, Default)]
pub(super) struct SimTime(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    now: u64,
    next: u64,
    /// Sleeping tasks by wake-up time, in the order in which they started to sleep.
    sleepers: BTreeMap<(u64, u64), Waker>,
}

impl SimTime {
    pub(super) fn now(&self) -> u64 {
        self.locked().now
    }

    /// Sleeps until an instant.
    pub(super) fn until(&self, at: u64) -> SimSleeper {
        SimSleeper { time: self.clone(), at, number: None }
    }

    /// Sleeps for a duration.
    pub(super) fn sleep(&self, nanos: u64) -> SimSleeper {
        self.until(self.now().saturating_add(nanos))
    }

    /// Advances to the next wake-up.
    pub(super) fn resume(&self) {
        let woken = {
            let mut inner = self.locked();
            let Some(((at, _), waker)) = inner.sleepers.pop_first() else { return };
            inner.now = inner.now.max(at);
            waker
        };
        woken.wake();
    }

    fn locked(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A sleeping task.
pub(super) struct SimSleeper {
    time: SimTime,
    at: u64,
    number: Option<u64>,
}

impl Future for SimSleeper {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let time = self.time.clone();
        let mut inner = time.locked();
        if inner.now >= self.at {
            return Poll::Ready(());
        }
        let number = *self.number.get_or_insert_with(|| {
            inner.next += 1;
            inner.next
        });
        inner.sleepers.insert((self.at, number), context.waker().clone());
        Poll::Pending
    }
}

impl Drop for SimSleeper {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.time.locked().sleepers.remove(&(self.at, number));
        }
    }
}
