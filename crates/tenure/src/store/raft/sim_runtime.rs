//! The async runtime of openraft, on the system or on a simulated host.
//!
//! Openraft requests time, randomness and tasks through static functions ([`AsyncRuntime`]). A task therefore carries
//! its host: while it is polled, the host is stored in a thread-local variable, and tasks that it spawns inherit it.
//! Outside of a simulator there is no host, and the system runtime is used.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_core::future::BoxFuture;
use openraft::{AsyncRuntime, TokioRuntime};
use tenure_core::BootInstant;
use tokio::task::{JoinError, JoinHandle};

use crate::runtime::{Runtime, SystemRuntime};

/// A simulated machine that a simulator can pause, resume and end.
pub trait SimHost: Send + Sync + 'static {
    /// Clock and random numbers of the host.
    fn runtime(&self) -> Arc<dyn Runtime>;

    /// Whether a task of the host may run now. If it must wait, the host wakes `waker` when the task may run again.
    fn poll_decision(&self, waker: &Waker) -> PollDecision;
}

/// Whether a task may run now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollDecision {
    /// The task may run.
    Run,
    /// The host is paused.
    Wait,
    /// The host has ended; the task never runs again.
    Ended,
}

thread_local! {
    /// Host of the task that is being polled.
    static HOST: RefCell<Option<Arc<dyn SimHost>>> = const { RefCell::new(None) };
}

/// Run a future, and everything it spawns, on a host. When the host ends, the future is dropped and never completes.
pub fn run_on_host<F: Future>(host: Arc<dyn SimHost>, future: F) -> impl Future<Output = F::Output> {
    SimTask { host: Some(host), future: Some(Box::pin(future)) }
}

/// Spawn a task on the current host.
pub(super) fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(SimTask { host: HOST.with_borrow(Clone::clone), future: Some(Box::pin(future)) })
}

fn runtime() -> Arc<dyn Runtime> {
    HOST.with_borrow(|host| host.as_ref().map_or_else(|| Arc::new(SystemRuntime) as _, |host| host.runtime()))
}

struct SimTask<F> {
    host: Option<Arc<dyn SimHost>>,
    /// `None` once the host has ended.
    future: Option<Pin<Box<F>>>,
}

impl<F: Future> Future for SimTask<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let SimTask { host, future } = &mut *self;
        let turn = host.as_ref().map_or(PollDecision::Run, |host| host.poll_decision(context.waker()));
        let _here = host.clone().map(CurrentHostGuard::new);
        match (turn, &mut *future) {
            (PollDecision::Run, Some(future)) => future.as_mut().poll(context),
            (PollDecision::Ended, _) => {
                *future = None;
                Poll::Pending
            }
            _ => Poll::Pending,
        }
    }
}

/// Marks the current host of the thread while this value exists.
struct CurrentHostGuard(Option<Arc<dyn SimHost>>);

impl CurrentHostGuard {
    fn new(host: Arc<dyn SimHost>) -> CurrentHostGuard {
        CurrentHostGuard(HOST.replace(Some(host)))
    }
}

impl Drop for CurrentHostGuard {
    fn drop(&mut self) {
        HOST.set(self.0.take());
    }
}

/// The openraft runtime.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SimRuntime;

impl AsyncRuntime for SimRuntime {
    type JoinError = JoinError;
    type JoinHandle<T: Send + 'static> = JoinHandle<T>;
    type Sleep = SimSleep;
    type Instant = Instant;
    type TimeoutError = TimeoutElapsed;
    type Timeout<R, T: Future<Output = R> + Send> = Timeout<T>;
    type ThreadLocalRng = SimRng;
    type OneshotSender<T: Send> = <TokioRuntime as AsyncRuntime>::OneshotSender<T>;
    type OneshotReceiver<T: Send> = <TokioRuntime as AsyncRuntime>::OneshotReceiver<T>;
    type OneshotReceiverError = <TokioRuntime as AsyncRuntime>::OneshotReceiverError;

    fn spawn<T>(future: T) -> JoinHandle<T::Output>
    where
        T: Future + Send + 'static,
        T::Output: Send + 'static,
    {
        spawn(future)
    }

    fn sleep(duration: Duration) -> SimSleep {
        SimSleep::until(<Instant as openraft::Instant>::now() + duration)
    }

    fn sleep_until(deadline: Instant) -> SimSleep {
        SimSleep::until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + Send>(duration: Duration, future: F) -> Timeout<F> {
        Timeout { future: Box::pin(future), limit: Self::sleep(duration) }
    }

    fn timeout_at<R, F: Future<Output = R> + Send>(deadline: Instant, future: F) -> Timeout<F> {
        Timeout { future: Box::pin(future), limit: SimSleep::until(deadline) }
    }

    fn is_panic(join_error: &JoinError) -> bool {
        join_error.is_panic()
    }

    fn thread_rng() -> SimRng {
        SimRng(runtime())
    }

    fn oneshot<T: Send>() -> (Self::OneshotSender<T>, Self::OneshotReceiver<T>) {
        TokioRuntime::oneshot()
    }
}

/// An instant of the host's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Instant(BootInstant);

impl openraft::Instant for Instant {
    fn now() -> Instant {
        Instant(runtime().now())
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, by: Duration) -> Instant {
        Instant(self.0 + by)
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, by: Duration) {
        *self = *self + by;
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;
    fn sub(self, by: Duration) -> Instant {
        let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        Instant(BootInstant::from_nanos(self.0.as_nanos().saturating_sub(nanos)))
    }
}

impl SubAssign<Duration> for Instant {
    fn sub_assign(&mut self, by: Duration) {
        *self = *self - by;
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        self.0.since(earlier.0)
    }
}

/// A sleep. The mutex is never contended; it only makes the future `Sync`, which openraft requires.
pub(super) struct SimSleep(Mutex<BoxFuture<'static, ()>>);

impl SimSleep {
    fn until(deadline: Instant) -> SimSleep {
        let runtime = runtime();
        SimSleep(Mutex::new(Box::pin(async move { runtime.sleep_until(deadline.0).await })))
    }
}

impl Future for SimSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner).as_mut().poll(context)
    }
}

/// A future with a time limit.
pub(super) struct Timeout<F> {
    future: Pin<Box<F>>,
    limit: SimSleep,
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, TimeoutElapsed>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(done) = self.future.as_mut().poll(context) {
            return Poll::Ready(Ok(done));
        }
        Pin::new(&mut self.limit).poll(context).map(|()| Err(TimeoutElapsed))
    }
}

/// The time limit elapsed.
#[derive(Debug)]
pub(super) struct TimeoutElapsed;

impl fmt::Display for TimeoutElapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("time limit elapsed")
    }
}

/// Random numbers of the host.
pub(super) struct SimRng(Arc<dyn Runtime>);

impl rand_core::RngCore for SimRng {
    fn next_u32(&mut self) -> u32 {
        self.0.random() as u32
    }

    fn next_u64(&mut self) -> u64 {
        self.0.random()
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        rand_core::impls::fill_bytes_via_next(self, bytes);
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), rand_core::Error> {
        self.fill_bytes(bytes);
        Ok(())
    }
}
