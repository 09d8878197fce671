//! openraft by our clock and our dice, and the tasks of a member as those of one host.
//!
//! openraft asks for time, randomness and tasks by functions that are told nothing ([`AsyncRuntime`]). So a task knows the host that it runs on: while it is
//! polled, that is the thread's, and what it spawns runs there as well. Outside of a simulator there is no host, and everything is the machine's own.

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
use tenure_core::Moment;
use tokio::task::{JoinError, JoinHandle};

use crate::runtime::{Runtime, System};

/// A machine that a simulator stops, lets go on, and ends.
pub trait Host: Send + Sync + 'static {
    /// Its clock and its dice.
    fn runtime(&self) -> Arc<dyn Runtime>;

    /// Whether one of its tasks may run now; if it must wait, `waker` is woken when it need not any more.
    fn turn(&self, waker: &Waker) -> Turn;
}

/// Whether a task may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It may.
    Go,
    /// Its host stands still.
    Wait,
    /// Its host is no more, and it never will.
    Over,
}

thread_local! {
    /// On which host the task runs that is being polled.
    static HOST: RefCell<Option<Arc<dyn Host>>> = const { RefCell::new(None) };
}

/// Something that runs on a host, with all that it spawns. When the host is over, it is dropped, and never ready.
pub fn hosted<F: Future>(host: Arc<dyn Host>, doing: F) -> impl Future<Output = F::Output> {
    Hosted { host: Some(host), doing: Some(Box::pin(doing)) }
}

/// Spawns a task on the host of who spawns it.
pub(super) fn spawn<F>(doing: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(Hosted { host: HOST.with_borrow(Clone::clone), doing: Some(Box::pin(doing)) })
}

fn runtime() -> Arc<dyn Runtime> {
    HOST.with_borrow(|host| host.as_ref().map_or_else(|| Arc::new(System) as _, |host| host.runtime()))
}

struct Hosted<F> {
    host: Option<Arc<dyn Host>>,
    /// `None` once its host is over.
    doing: Option<Pin<Box<F>>>,
}

impl<F: Future> Future for Hosted<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Hosted { host, doing } = &mut *self;
        let turn = host.as_ref().map_or(Turn::Go, |host| host.turn(context.waker()));
        let _here = host.clone().map(Here::new);
        match (turn, &mut *doing) {
            (Turn::Go, Some(doing)) => doing.as_mut().poll(context),
            (Turn::Over, _) => {
                *doing = None;
                Poll::Pending
            }
            _ => Poll::Pending,
        }
    }
}

/// The thread is a host's for as long as this lives.
struct Here(Option<Arc<dyn Host>>);

impl Here {
    fn new(host: Arc<dyn Host>) -> Here {
        Here(HOST.replace(Some(host)))
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        HOST.set(self.0.take());
    }
}

/// What openraft runs on.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct OnHost;

impl AsyncRuntime for OnHost {
    type JoinError = JoinError;
    type JoinHandle<T: Send + 'static> = JoinHandle<T>;
    type Sleep = Nap;
    type Instant = Instant;
    type TimeoutError = Late;
    type Timeout<R, T: Future<Output = R> + Send> = Timeout<T>;
    type ThreadLocalRng = Dice;
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

    fn sleep(duration: Duration) -> Nap {
        Nap::until(<Instant as openraft::Instant>::now() + duration)
    }

    fn sleep_until(deadline: Instant) -> Nap {
        Nap::until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + Send>(duration: Duration, future: F) -> Timeout<F> {
        Timeout { doing: Box::pin(future), limit: Self::sleep(duration) }
    }

    fn timeout_at<R, F: Future<Output = R> + Send>(deadline: Instant, future: F) -> Timeout<F> {
        Timeout { doing: Box::pin(future), limit: Nap::until(deadline) }
    }

    fn is_panic(join_error: &JoinError) -> bool {
        join_error.is_panic()
    }

    fn thread_rng() -> Dice {
        Dice(runtime())
    }

    fn oneshot<T: Send>() -> (Self::OneshotSender<T>, Self::OneshotReceiver<T>) {
        TokioRuntime::oneshot()
    }
}

/// A moment of the host's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Instant(Moment);

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
        Instant(Moment::from_nanos(self.0.as_nanos().saturating_sub(nanos)))
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

/// A sleep. In a lock that nobody ever waits for: openraft wants to share what it sleeps by.
pub(super) struct Nap(Mutex<BoxFuture<'static, ()>>);

impl Nap {
    fn until(deadline: Instant) -> Nap {
        let runtime = runtime();
        Nap(Mutex::new(Box::pin(async move { runtime.sleep_until(deadline.0).await })))
    }
}

impl Future for Nap {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner).as_mut().poll(context)
    }
}

/// Something with a limit.
pub(super) struct Timeout<F> {
    doing: Pin<Box<F>>,
    limit: Nap,
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Late>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(done) = self.doing.as_mut().poll(context) {
            return Poll::Ready(Ok(done));
        }
        Pin::new(&mut self.limit).poll(context).map(|()| Err(Late))
    }
}

/// It took too long.
#[derive(Debug)]
pub(super) struct Late;

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it took too long")
    }
}

/// The host's dice.
pub(super) struct Dice(Arc<dyn Runtime>);

impl rand_core::RngCore for Dice {
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
