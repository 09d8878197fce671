//! One time for all, which goes on when nobody has anything to do.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Real time, in nanoseconds. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Time(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    now: u64,
    next: u64,
    /// Who sleeps until when, in the order in which they lay down.
    sleepers: BTreeMap<(u64, u64), Waker>,
}

impl Time {
    pub(super) fn now(&self) -> u64 {
        self.locked().now
    }

    /// Sleeps until then.
    pub(super) fn until(&self, at: u64) -> Sleep {
        Sleep { time: self.clone(), at, number: None }
    }

    /// Sleeps for so long.
    pub(super) fn sleep(&self, nanos: u64) -> Sleep {
        self.until(self.now().saturating_add(nanos))
    }

    /// Goes on to when the next one wakes up.
    pub(super) fn go_on(&self) {
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

/// Somebody who sleeps.
pub(super) struct Sleep {
    time: Time,
    at: u64,
    number: Option<u64>,
}

impl Future for Sleep {
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

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.time.locked().sleepers.remove(&(self.at, number));
        }
    }
}
