//! A machine: its clock, its dice, and whether it runs.

use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use tenure::Moment;
use tenure::backend::raft::ground::{Host, Turn};
use tenure::runtime::Runtime;
use tenure_core::{Entropy, SplitMix};

use super::time::Time;
use crate::sim::clock::Clock;

/// Nobody sleeps for longer at a time: days are shorter, and `for ever` is beyond what a clock can reckon with.
const FAR: Duration = Duration::from_secs(3_600);

/// One run of a machine, from its start to its end.
pub(super) struct Computer {
    me: Weak<Computer>,
    time: Time,
    inner: Mutex<Inner>,
}

struct Inner {
    clock: Clock,
    rng: SplitMix,
    turn: Turn,
    /// Whether the clock counts the time in which the machine stands still.
    counts: bool,
    waiting: Vec<Waker>,
}

impl Computer {
    pub(super) fn new(time: &Time, clock: Clock, seed: u64, counts: bool) -> Arc<Computer> {
        let inner = Inner { clock, rng: SplitMix::new(seed), turn: Turn::Go, counts, waiting: Vec::new() };
        Arc::new_cyclic(|me| Computer { me: me.clone(), time: time.clone(), inner: Mutex::new(inner) })
    }

    /// Stands still.
    pub(super) fn stop(&self) {
        let real = self.time.now();
        let mut inner = self.locked();
        if inner.turn == Turn::Go {
            inner.turn = Turn::Wait;
            if !inner.counts {
                inner.clock.stop(real);
            }
        }
    }

    /// Goes on after it stood still.
    pub(super) fn go_on(&self) {
        let real = self.time.now();
        self.turn_to(|inner| {
            if inner.turn == Turn::Wait {
                inner.turn = Turn::Go;
                inner.clock.go_on(real);
            }
        });
    }

    /// Ends, in the middle of whatever it does.
    pub(super) fn end(&self) {
        self.turn_to(|inner| inner.turn = Turn::Over);
    }

    pub(super) fn is_over(&self) -> bool {
        self.locked().turn == Turn::Over
    }

    pub(super) fn stands_still(&self) -> bool {
        self.locked().turn == Turn::Wait
    }

    /// Waits until it runs; for ever if it is over.
    pub(super) fn awake(&self) -> impl Future<Output = ()> {
        poll_fn(|context| match self.turn(context.waker()) {
            Turn::Go => Poll::Ready(()),
            Turn::Wait | Turn::Over => Poll::Pending,
        })
    }

    /// Waits until it is over.
    pub(super) fn over(&self) -> impl Future<Output = ()> {
        poll_fn(|context| {
            let mut inner = self.locked();
            if inner.turn == Turn::Over {
                return Poll::Ready(());
            }
            inner.waiting.push(context.waker().clone());
            Poll::Pending
        })
    }

    fn turn_to(&self, act: impl FnOnce(&mut Inner)) {
        let waiting = {
            let mut inner = self.locked();
            act(&mut inner);
            std::mem::take(&mut inner.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    fn locked(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Host for Computer {
    fn runtime(&self) -> Arc<dyn Runtime> {
        self.me.upgrade().expect("it is borrowed")
    }

    fn turn(&self, waker: &Waker) -> Turn {
        let mut inner = self.locked();
        if inner.turn == Turn::Wait {
            inner.waiting.push(waker.clone());
        }
        inner.turn
    }
}

impl Runtime for Computer {
    fn now(&self) -> Moment {
        let real = self.time.now();
        self.locked().clock.at(real)
    }

    fn wall_ms(&self) -> i64 {
        (self.time.now() / 1_000_000) as i64
    }

    fn sleep_until<'a>(&'a self, at: Moment) -> futures_core::future::BoxFuture<'a, ()> {
        Box::pin(async move {
            while self.now() < at {
                let soon = at.min(self.now() + FAR);
                let real = self.locked().clock.real(soon);
                // A clock that stood still is behind what it was to show by then.
                self.time.until(real.max(self.time.now() + 1)).await;
                self.awake().await;
            }
        })
    }

    fn random(&self) -> u64 {
        self.locked().rng.next_u64()
    }
}
