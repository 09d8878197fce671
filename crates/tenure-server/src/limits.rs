//! Who may do how much at once.
//!
//! Every principal has an account: connections, requests that are worked on or wait, streams, and a bucket that says how
//! often it may ask. Whoever has no name goes by their address. What is beyond a bound is refused at once and told when to
//! come back; only for the bound on all requests together a few may wait, and not for long.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::StatusCode;
use tenure::Moment;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::metrics::{Gauged, Reason, names, refused};
use crate::problem::Problem;
use crate::settings::{Limits, Timeouts};

/// From how many accounts on those that say nothing are cleared away.
const ACCOUNTS_KEPT: usize = 1024;

/// All accounts.
#[derive(Debug)]
pub(crate) struct Limiter {
    limits: Limits,
    patience: Duration,
    turns: Arc<Semaphore>,
    large: Arc<Semaphore>,
    queued: AtomicUsize,
    accounts: Mutex<Accounts>,
    streams: AtomicUsize,
}

#[derive(Debug, Default)]
struct Accounts {
    of: HashMap<Arc<str>, Account>,
    /// At how many those that say nothing are cleared away; doubled, so that clearing costs little for each new one.
    clear_at: usize,
}

#[derive(Debug, Default)]
struct Account {
    bucket: Option<Bucket>,
    /// How many of each [`Kind`].
    counts: [usize; 3],
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Connection,
    Request,
    Stream,
}

/// How often somebody may ask: `burst` at once, then `rate` in a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bucket {
    left: f64,
    at: Moment,
}

impl Bucket {
    /// A full one.
    pub(crate) fn full(burst: u32, now: Moment) -> Bucket {
        Bucket { left: f64::from(burst), at: now }
    }

    /// Takes one, or says how long to wait for it.
    pub(crate) fn take(&mut self, rate: u32, burst: u32, now: Moment) -> Result<(), Duration> {
        let rate = f64::from(rate.max(1));
        let refilled = self.left + now.since(self.at).as_secs_f64() * rate;
        self.left = refilled.min(f64::from(burst.max(1)));
        self.at = now;
        if self.left >= 1.0 {
            self.left -= 1.0;
            return Ok(());
        }
        Err(Duration::from_secs_f64((1.0 - self.left) / rate))
    }

    fn is_full(&self, rate: u32, burst: u32, now: Moment) -> bool {
        self.left + now.since(self.at).as_secs_f64() * f64::from(rate) >= f64::from(burst)
    }
}

/// Something that is counted while it lives.
#[derive(Debug)]
pub(crate) struct Permit {
    limiter: Arc<Limiter>,
    name: Arc<str>,
    kind: Kind,
}

/// A request's place, from its beginning to the last byte of its answer.
#[derive(Debug)]
pub(crate) struct Turn {
    held: Permit,
    /// Given back by what takes long without working.
    turn: Option<OwnedSemaphorePermit>,
    _gauged: Gauged,
}

impl Limiter {
    pub(crate) fn new(limits: Limits, timeouts: &Timeouts) -> Arc<Limiter> {
        Arc::new(Limiter {
            limits,
            patience: timeouts.queue,
            turns: Arc::new(Semaphore::new(limits.requests.clamp(1, Semaphore::MAX_PERMITS))),
            large: Arc::new(Semaphore::new(limits.large_bodies.clamp(1, Semaphore::MAX_PERMITS))),
            queued: AtomicUsize::new(0),
            accounts: Mutex::default(),
            streams: AtomicUsize::new(0),
        })
    }

    /// Counts a request against how often this principal may ask.
    pub(crate) fn ask(&self, name: &Arc<str>, now: Moment) -> Result<(), Problem> {
        let (rate, burst) = (self.limits.rate_per_principal, self.limits.burst_per_principal);
        let waited = self.with(name, now, |account| {
            account.bucket.get_or_insert_with(|| Bucket::full(burst, now)).take(rate, burst, now)
        });
        waited.map_err(|wait| {
            refused(Reason::Rate);
            let detail = format!("more than {rate} requests in a second came from {name}");
            too_many(detail, whole_seconds(wait))
                .remedy("ask less often, or watch instead of asking again and again")
        })
    }

    /// Puts a connection on an account.
    pub(crate) fn connection(self: &Arc<Self>, name: &Arc<str>, now: Moment) -> Result<Permit, Problem> {
        self.count(name, Kind::Connection, self.limits.connections_per_principal, now, || {
            too_many(format!("{name} has as many connections as one principal may have"), 1)
                .remedy("close some, or send several requests over one")
        })
    }

    /// A place among the requests that are worked on.
    pub(crate) async fn request(self: &Arc<Self>, name: &Arc<str>, now: Moment) -> Result<Turn, Problem> {
        let held = self.count(name, Kind::Request, self.limits.requests_per_principal, now, || {
            too_many(format!("{name} has as many requests under way as one principal may have"), 1)
                .remedy("wait for their answers")
        })?;
        let turn = Some(self.turn().await?);
        Ok(Turn { held, turn, _gauged: Gauged::new(names::IN_FLIGHT) })
    }

    /// A place among the large bodies that are in memory.
    pub(crate) async fn large_body(&self) -> Result<OwnedSemaphorePermit, Problem> {
        self.place(&self.large).await
    }

    async fn turn(&self) -> Result<OwnedSemaphorePermit, Problem> {
        self.place(&self.turns).await
    }

    /// One of so many places, at once or after a short wait.
    async fn place(&self, places: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Problem> {
        if let Ok(place) = places.clone().try_acquire_owned() {
            return Ok(place);
        }
        let busy = || {
            refused(Reason::Overload);
            Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "overloaded",
                "this server has more to do than it can",
            )
            .remedy("try again, or ask another replica")
            .retry_after(1)
        };
        let _queued = Queued::enter(&self.queued, self.limits.queue).ok_or_else(busy)?;
        let waited = tokio::time::timeout(self.patience, places.clone().acquire_owned()).await;
        // The semaphore is never closed.
        waited.ok().and_then(Result::ok).ok_or_else(busy)
    }

    fn count(
        self: &Arc<Self>,
        name: &Arc<str>,
        kind: Kind,
        limit: usize,
        now: Moment,
        problem: impl FnOnce() -> Problem,
    ) -> Result<Permit, Problem> {
        let free = self.with(name, now, |account| {
            let count = &mut account.counts[kind as usize];
            let free = *count < limit;
            *count += usize::from(free);
            free
        });
        if !free {
            refused(Reason::Principal);
            return Err(problem());
        }
        Ok(Permit { limiter: self.clone(), name: name.clone(), kind })
    }

    fn with<T>(&self, name: &Arc<str>, now: Moment, act: impl FnOnce(&mut Account) -> T) -> T {
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        if accounts.of.len() >= accounts.clear_at.max(ACCOUNTS_KEPT) && !accounts.of.contains_key(name) {
            let (rate, burst) = (self.limits.rate_per_principal, self.limits.burst_per_principal);
            accounts.of.retain(|_, account| {
                account.counts != [0; 3]
                    || account.bucket.is_some_and(|bucket| !bucket.is_full(rate, burst, now))
            });
            accounts.clear_at = accounts.of.len() * 2;
        }
        act(accounts.of.entry(name.clone()).or_default())
    }
}

impl Turn {
    /// From now on this takes long without working: a stream, or a wait. Counted apart, with a bound of its own.
    pub(crate) fn lengthen(&mut self, now: Moment) -> Result<(), Problem> {
        if self.turn.is_none() {
            return Ok(());
        }
        let limiter = self.held.limiter.clone();
        let before = limiter.streams.fetch_add(1, Ordering::Relaxed);
        let most = limiter.limits.streams;
        let stream = if before >= most {
            refused(Reason::Streams);
            Err(Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "too-many-watchers",
                format!("{most} watch already"),
            )
            .remedy("ask another replica")
            .retry_after(5))
        } else {
            let name = self.held.name.clone();
            limiter.count(&name, Kind::Stream, limiter.limits.streams_per_principal, now, || {
                too_many(format!("{name} watches as much as one principal may"), 5)
                    .remedy("close some of the streams")
            })
        };
        // Either the permit gives this back, or there is none.
        self.held = stream.inspect_err(|_| {
            limiter.streams.fetch_sub(1, Ordering::Relaxed);
        })?;
        self.turn = None;
        self._gauged = Gauged::new(names::STREAMS);
        Ok(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.kind == Kind::Stream {
            self.limiter.streams.fetch_sub(1, Ordering::Relaxed);
        }
        let mut accounts = self.limiter.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(account) = accounts.of.get_mut(&self.name) {
            account.counts[self.kind as usize] -= 1;
            if account.counts == [0; 3] && account.bucket.is_none() {
                accounts.of.remove(&self.name);
            }
        }
    }
}

/// A place in the queue.
struct Queued<'a>(&'a AtomicUsize);

impl Queued<'_> {
    fn enter(queue: &AtomicUsize, most: usize) -> Option<Queued<'_>> {
        let before = queue.fetch_add(1, Ordering::Relaxed);
        let queued = Queued(queue);
        (before < most).then_some(queued)
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn too_many(detail: String, retry_after: u32) -> Problem {
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "too-many-requests", detail).retry_after(retry_after)
}

fn whole_seconds(wait: Duration) -> u32 {
    u32::try_from(wait.as_millis().div_ceil(1000)).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    fn limiter(limits: Limits) -> Arc<Limiter> {
        let timeouts = Timeouts { queue: Duration::ZERO, ..Timeouts::default() };
        Limiter::new(limits, &timeouts)
    }

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let mut bucket = Bucket::full(3, at(0));
        for _ in 0..3 {
            assert_eq!(bucket.take(10, 3, at(0)), Ok(()));
        }
        assert_eq!(bucket.take(10, 3, at(0)), Err(Duration::from_millis(100)));
        assert_eq!(bucket.take(10, 3, at(50)), Err(Duration::from_millis(50)));
        assert_eq!(bucket.take(10, 3, at(100)), Ok(()));
        // A long pause fills it up to its burst and no further.
        for _ in 0..3 {
            assert_eq!(bucket.take(10, 3, at(100_000)), Ok(()));
        }
        assert!(bucket.take(10, 3, at(100_000)).is_err());
    }

    #[test]
    fn a_clock_that_stands_still_or_goes_back_gives_nothing() {
        let mut bucket = Bucket::full(1, at(500));
        assert_eq!(bucket.take(10, 1, at(500)), Ok(()));
        assert!(bucket.take(10, 1, at(400)).is_err());
        assert!(bucket.take(10, 1, at(400)).is_err());
    }

    #[test]
    fn rates_are_counted_for_each_principal() {
        let limits = Limits { rate_per_principal: 1, burst_per_principal: 1, ..Limits::default() };
        let (limiter, a, b) = (limiter(limits), "a".into(), "b".into());
        assert!(limiter.ask(&a, at(0)).is_ok());
        let problem = limiter.ask(&a, at(0)).expect_err("too often");
        assert_eq!((problem.status.as_u16(), problem.retry_after), (429, Some(1)));
        assert!(limiter.ask(&b, at(0)).is_ok(), "one principal must not use up another's");
        assert!(limiter.ask(&a, at(1000)).is_ok());
    }

    #[test]
    fn accounts_of_strangers_are_cleared_away() {
        let limiter =
            limiter(Limits { rate_per_principal: 10, burst_per_principal: 10, ..Limits::default() });
        for n in 0..100_000u32 {
            let _ = limiter.ask(&format!("10.0.0.{n}").into(), at(u64::from(n)));
        }
        let kept = limiter.accounts.lock().expect("sound").of.len();
        assert!(kept <= 2 * ACCOUNTS_KEPT, "{kept} accounts are kept");
    }

    #[tokio::test]
    async fn requests_of_one_principal_are_bounded_until_they_end() {
        let limiter = limiter(Limits { requests_per_principal: 1, ..Limits::default() });
        let (a, b) = ("a".into(), "b".into());
        let first = limiter.request(&a, at(0)).await.expect("a place");
        assert_eq!(limiter.request(&a, at(0)).await.expect_err("refused").status.as_u16(), 429);
        assert!(limiter.request(&b, at(0)).await.is_ok());
        drop(first);
        assert!(limiter.request(&a, at(0)).await.is_ok());
    }

    #[tokio::test]
    async fn all_requests_together_are_bounded_and_streams_give_their_turn_back() {
        let limiter = limiter(Limits { requests: 1, streams: 1, ..Limits::default() });
        let a = "a".into();
        let mut first = limiter.request(&a, at(0)).await.expect("a place");
        let problem = limiter.request(&a, at(0)).await.expect_err("refused");
        assert_eq!((problem.status.as_u16(), problem.code), (503, "overloaded"));
        first.lengthen(at(0)).expect("a stream");
        first.lengthen(at(0)).expect("is one already");
        let mut second = limiter.request(&a, at(0)).await.expect("the turn was given back");
        assert_eq!(second.lengthen(at(0)).expect_err("full").code, "too-many-watchers");
        drop(first);
        second.lengthen(at(0)).expect("the stream's place was given back");
    }
}
