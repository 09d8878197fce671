//! A simulated machine: its clock, its random numbers and its state.

use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use tenure::BootInstant;
use tenure::runtime::Runtime;
use tenure::store::raft::env::{PollDecision, SimHost};
use tenure_core::{Entropy, SplitMix};

use super::time::SimTime;
use crate::sim::clock::SimClock;

/// Maximum duration of a sleep: longer than a run, and within the range of the clock.
const FAR: Duration = Duration::from_secs(3_600);

/// One run of a machine, from start to end.
pub(super) struct Computer {
    me: Weak<Computer>,
    time: SimTime,
    inner: Mutex<Inner>,
}

struct Inner {
    clock: SimClock,
    rng: SplitMix,
    turn: PollDecision,
    /// Whether the clock counts the time while the machine is suspended.
    counts: bool,
    waiting: Vec<Waker>,
}

impl Computer {
    pub(super) fn new(time: &SimTime, clock: SimClock, seed: u64, counts: bool) -> Arc<Computer> {
        let inner =
            Inner { clock, rng: SplitMix::new(seed), turn: PollDecision::Run, counts, waiting: Vec::new() };
        Arc::new_cyclic(|me| Computer { me: me.clone(), time: time.clone(), inner: Mutex::new(inner) })
    }

    /// Suspends the machine.
    pub(super) fn stop(&self) {
        let real = self.time.now();
        let mut inner = self.locked();
        if inner.turn == PollDecision::Run {
            inner.turn = PollDecision::Wait;
            if !inner.counts {
                inner.clock.stop(real);
            }
        }
    }

    /// Resumes the machine.
    pub(super) fn resume(&self) {
        let real = self.time.now();
        self.turn_to(|inner| {
            if inner.turn == PollDecision::Wait {
                inner.turn = PollDecision::Run;
                inner.clock.resume(real);
            }
        });
    }

    /// Ends the machine abruptly.
    pub(super) fn end(&self) {
        self.turn_to(|inner| inner.turn = PollDecision::Ended);
    }

    pub(super) fn is_over(&self) -> bool {
        self.locked().turn == PollDecision::Ended
    }

    pub(super) fn is_suspended(&self) -> bool {
        self.locked().turn == PollDecision::Wait
    }

    /// Waits until the machine runs; forever if it has ended.
    pub(super) fn awake(&self) -> impl Future<Output = ()> {
        poll_fn(|context| match self.poll_decision(context.waker()) {
            PollDecision::Run => Poll::Ready(()),
            PollDecision::Wait | PollDecision::Ended => Poll::Pending,
        })
    }

    /// Waits until the machine has ended.
    pub(super) fn over(&self) -> impl Future<Output = ()> {
        poll_fn(|context| {
            let mut inner = self.locked();
            if inner.turn == PollDecision::Ended {
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

impl SimHost for Computer {
    fn runtime(&self) -> Arc<dyn Runtime> {
        self.me.upgrade().expect("the lock is held")
    }

    fn poll_decision(&self, waker: &Waker) -> PollDecision {
        let mut inner = self.locked();
        if inner.turn == PollDecision::Wait {
            inner.waiting.push(waker.clone());
        }
        inner.turn
    }
}

impl Runtime for Computer {
    fn now(&self) -> BootInstant {
        let real = self.time.now();
        self.locked().clock.at(real)
    }

    fn wall_ms(&self) -> i64 {
        (self.time.now() / 1_000_000) as i64
    }

    fn sleep_until<'a>(&'a self, at: BootInstant) -> futures_core::future::BoxFuture<'a, ()> {
        Box::pin(async move {
            while self.now() < at {
                let soon = at.min(self.now() + FAR);
                let real = self.locked().clock.real(soon);
                // After a suspension the clock may be behind the expected reading, so wait at least one nanosecond and
                // compare again.
                self.time.until(real.max(self.time.now() + 1)).await;
                self.awake().await;
            }
        })
    }

    fn random(&self) -> u64 {
        self.locked().rng.next_u64()
    }
}
