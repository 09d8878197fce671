//! Limits per principal and in total.
//!
//! Every principal has an account: connections, requests, heartbeats, bodies being read, streams, bytes kept
//! for it, and rate limits. An unauthenticated client has the account of its address. A request beyond a
//! limit is rejected at once with the time after which to retry; only a few requests wait for a permit, and
//! only briefly.
//!
//! Permits come from three pools, so that one class of requests cannot starve another: unauthenticated
//! clients have a small pool, heartbeats have a pool of their own, and everything else has the rest.

mod bucket;
mod pool;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::StatusCode;
use tenure::BootInstant;
use tokio::sync::OwnedSemaphorePermit;

pub(crate) use self::bucket::RateBucket;
use self::pool::{Pool, busy};
use crate::metrics::{ActiveMetric, RejectReason, names, rejected};
use crate::problem::Problem;
use crate::settings::{Limits, Timeouts};

/// Number of accounts at which empty ones are removed for the first time.
const ACCOUNTS_KEPT: usize = 1024;

/// Limits, permit pools and accounts of all principals.
#[derive(Debug)]
pub(crate) struct Limiter {
    limits: Limits,
    requests: Pool,
    heartbeats: Pool,
    unauthenticated: Pool,
    large: Pool,
    large_answers: Pool,
    accounts: Mutex<Accounts>,
    streams: AtomicUsize,
}

#[derive(Debug, Default)]
struct Accounts {
    of: HashMap<Arc<str>, Account>,
    /// Bytes of all accounts, by [`Side`].
    bytes: [usize; 2],
    /// Number of accounts at which empty ones are removed; doubled each time, so that the cost per new
    /// account stays low.
    clear_at: usize,
}

#[derive(Debug, Default)]
struct Account {
    bucket: Option<RateBucket>,
    heartbeats: Option<RateBucket>,
    /// Number of objects of each [`Kind`].
    counts: [usize; KINDS],
    /// Bytes kept, by [`Side`].
    bytes: [usize; 2],
}

impl Account {
    fn holds_nothing(&self) -> bool {
        self.counts == [0; KINDS] && self.bytes == [0; 2]
    }
}

/// Kind of object that an account counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Connection,
    Request,
    Heartbeat,
    /// Body that is being read.
    Body,
    LargeBody,
    Stream,
}

const KINDS: usize = 6;

/// Pool from which a request takes its permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestLane {
    /// Requests of authenticated principals.
    Ordinary,
    /// Heartbeats of sessions and claims. A client that cannot send them loses its leases, so permits are
    /// reserved for them.
    Heartbeat,
    /// Requests of unauthenticated clients.
    Unauthenticated,
}

/// Direction of the bytes that the server keeps for a principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Request bodies, until the request is answered.
    Request,
    /// Responses that the client has not read yet.
    Response,
}

/// Object that is counted while it exists.
#[derive(Debug)]
pub(crate) struct Permit {
    limiter: Arc<Limiter>,
    name: Arc<str>,
    kind: Kind,
}

/// Permit of a request, from its start to the last byte of the response.
#[derive(Debug)]
pub(crate) struct RequestPermit {
    held: Permit,
    /// `None` once the request only waits and has returned its permit.
    permit: Option<OwnedSemaphorePermit>,
    _gauged: ActiveMetric,
}

/// Permit of a large body while it is in memory.
#[derive(Debug)]
pub(crate) struct LargeBody {
    _held: Permit,
    _place: OwnedSemaphorePermit,
}

/// Bytes charged to a principal's account, released on drop.
#[derive(Debug)]
pub(crate) struct Bytes {
    limiter: Arc<Limiter>,
    name: Arc<str>,
    side: Side,
    count: usize,
}

impl Limiter {
    pub(crate) fn new(limits: Limits, timeouts: &Timeouts) -> Arc<Limiter> {
        let pool = |permits, queue| Pool::new(permits, queue, timeouts.queue);
        Arc::new(Limiter {
            limits,
            requests: pool(limits.requests, limits.queue),
            heartbeats: pool(limits.heartbeats, limits.queue),
            unauthenticated: pool(limits.unauthenticated_requests, 0),
            large: pool(limits.large_bodies, limits.queue),
            large_answers: pool(limits.large_responses, limits.queue),
            accounts: Mutex::default(),
            streams: AtomicUsize::new(0),
        })
    }

    /// Count a request against the principal's rate limit. Heartbeats have their own limit, so that other
    /// requests do not exhaust it.
    pub(crate) fn count_request(
        &self,
        name: &Arc<str>,
        heartbeat: bool,
        now: BootInstant,
    ) -> Result<(), Problem> {
        let (rate, burst) = (self.limits.rate_per_principal, self.limits.burst_per_principal);
        let waited = self.with(name, now, |account| {
            let bucket = if heartbeat { &mut account.heartbeats } else { &mut account.bucket };
            bucket.get_or_insert_with(|| RateBucket::full(burst, now)).take(rate, burst, now)
        });
        waited.map_err(|wait| {
            rejected(RejectReason::Rate);
            let detail = format!("{name} sent more than {rate} requests per second");
            too_many(detail, whole_seconds(wait)).remedy("send fewer requests, or watch instead of polling")
        })
    }

    /// Count a connection of an account.
    pub(crate) fn connection(self: &Arc<Self>, name: &Arc<str>, now: BootInstant) -> Result<Permit, Problem> {
        self.count(name, Kind::Connection, self.limits.connections_per_principal, now, || {
            too_many(format!("{name} has reached the maximum number of connections"), 1)
                .remedy("close some, or reuse connections")
        })
    }

    /// Take a permit from the pool of a lane.
    pub(crate) async fn request(
        self: &Arc<Self>,
        name: &Arc<str>,
        lane: RequestLane,
        now: BootInstant,
    ) -> Result<RequestPermit, Problem> {
        let (kind, most, pool) = match lane {
            RequestLane::Ordinary => (Kind::Request, self.limits.requests_per_principal, &self.requests),
            RequestLane::Heartbeat => {
                (Kind::Heartbeat, self.limits.heartbeats_per_principal, &self.heartbeats)
            }
            RequestLane::Unauthenticated => {
                (Kind::Request, self.limits.unauthenticated_requests_per_peer, &self.unauthenticated)
            }
        };
        let held = self.count(name, kind, most, now, || {
            too_many(format!("{name} has reached the maximum number of concurrent requests"), 1)
                .remedy("wait for responses before sending more")
        })?;
        let permit = Some(pool.take().await?);
        Ok(RequestPermit { held, permit, _gauged: ActiveMetric::new(names::IN_FLIGHT) })
    }

    /// Count a body that is being read.
    pub(crate) fn body(self: &Arc<Self>, name: &Arc<str>, now: BootInstant) -> Result<Permit, Problem> {
        self.count(name, Kind::Body, self.limits.bodies_per_principal, now, || {
            too_many(format!("{name} has reached the maximum number of concurrent bodies"), 1)
                .remedy("finish sending some first")
        })
    }

    /// Take a permit for a large body in memory.
    pub(crate) async fn large_body(
        self: &Arc<Self>,
        name: &Arc<str>,
        now: BootInstant,
    ) -> Result<LargeBody, Problem> {
        let most = self.limits.large_bodies_per_principal;
        let held = self.count(name, Kind::LargeBody, most, now, || {
            too_many(format!("{name} already sends {most} large bodies"), 1).remedy("send fewer at once")
        })?;
        Ok(LargeBody { _held: held, _place: self.large.take().await? })
    }

    /// Create an empty byte counter of an account.
    pub(crate) fn bytes(self: &Arc<Self>, name: &Arc<str>, side: Side) -> Bytes {
        Bytes { limiter: self.clone(), name: name.clone(), side, count: 0 }
    }

    /// Reject a request of a client that does not read its responses, before any work is done.
    pub(crate) fn check_unread_responses(&self, name: &Arc<str>) -> Result<(), Problem> {
        let unread = self.unread(name);
        match unread < self.limits.response_bytes_per_principal {
            true => Ok(()),
            false => Err(unread_answers(name, unread, self.limits.response_bytes_per_principal)),
        }
    }

    /// Bytes of responses that a principal has not read yet.
    pub(crate) fn unread(&self, name: &str) -> usize {
        self.accounts().of.get(name).map_or(0, |account| account.bytes[Side::Response as usize])
    }

    /// Wait for a permit to build a large response.
    pub(crate) async fn large_response(&self) -> Result<OwnedSemaphorePermit, Problem> {
        self.large_answers.take().await
    }

    /// Maximum bytes of one account, and of all accounts.
    fn most_bytes(&self, side: Side) -> (usize, usize) {
        let limits = &self.limits;
        match side {
            Side::Request => (limits.request_bytes_per_principal, limits.request_bytes),
            Side::Response => (limits.response_bytes_per_principal, limits.response_bytes),
        }
    }

    fn count(
        self: &Arc<Self>,
        name: &Arc<str>,
        kind: Kind,
        limit: usize,
        now: BootInstant,
        problem: impl FnOnce() -> Problem,
    ) -> Result<Permit, Problem> {
        let free = self.with(name, now, |account| {
            let count = &mut account.counts[kind as usize];
            let free = *count < limit;
            *count += usize::from(free);
            free
        });
        if !free {
            rejected(RejectReason::Principal);
            return Err(problem());
        }
        Ok(Permit { limiter: self.clone(), name: name.clone(), kind })
    }

    fn accounts(&self) -> MutexGuard<'_, Accounts> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, name: &Arc<str>, now: BootInstant, act: impl FnOnce(&mut Account) -> T) -> T {
        let mut accounts = self.accounts();
        if accounts.of.len() >= accounts.clear_at.max(ACCOUNTS_KEPT) && !accounts.of.contains_key(name) {
            let (rate, burst) = (self.limits.rate_per_principal, self.limits.burst_per_principal);
            let spent = |bucket: Option<RateBucket>| bucket.is_some_and(|b| !b.is_full(rate, burst, now));
            accounts.of.retain(|_, account| {
                !account.holds_nothing() || spent(account.bucket) || spent(account.heartbeats)
            });
            accounts.clear_at = accounts.of.len() * 2;
        }
        act(accounts.of.entry(name.clone()).or_default())
    }
}

impl Accounts {
    /// Remove an empty account.
    fn tidy(&mut self, name: &Arc<str>) {
        let idle = |account: &Account| {
            account.holds_nothing() && account.bucket.is_none() && account.heartbeats.is_none()
        };
        if self.of.get(name).is_some_and(idle) {
            self.of.remove(name);
        }
    }
}

impl Bytes {
    /// Add bytes, unless the account or all accounts then exceed their maximum. An empty account may always
    /// hold one piece: each piece has its own limit.
    pub(crate) fn grow(&mut self, by: usize) -> Result<(), Problem> {
        let side = self.side as usize;
        let (most, most_in_all) = self.limiter.most_bytes(self.side);
        let mut accounts = self.limiter.accounts();
        let in_all = accounts.bytes[side];
        let account = accounts.of.entry(self.name.clone()).or_default();
        let before = account.bytes[side];
        if before > 0 && before + by > most {
            drop(accounts);
            rejected(RejectReason::Principal);
            return Err(match self.side {
                Side::Request => {
                    let detail = format!("{} sends more than {most} bytes of bodies concurrently", self.name);
                    too_many(detail, 1).remedy("send fewer bytes at once")
                }
                Side::Response => unread_answers(&self.name, before, most),
            });
        }
        if in_all > 0 && in_all + by > most_in_all {
            accounts.tidy(&self.name);
            drop(accounts);
            return Err(busy());
        }
        account.bytes[side] += by;
        accounts.bytes[side] += by;
        self.count += by;
        Ok(())
    }

    /// Add bytes that are in memory already, regardless of the limits.
    pub(crate) fn grow_anyway(&mut self, by: usize) {
        let side = self.side as usize;
        let mut accounts = self.limiter.accounts();
        accounts.of.entry(self.name.clone()).or_default().bytes[side] += by;
        accounts.bytes[side] += by;
        self.count += by;
    }

    /// Release all bytes.
    pub(crate) fn clear(&mut self) {
        if self.count == 0 {
            return;
        }
        let side = self.side as usize;
        let mut accounts = self.limiter.accounts();
        if let Some(account) = accounts.of.get_mut(&self.name) {
            account.bytes[side] -= self.count;
        }
        accounts.bytes[side] -= self.count;
        accounts.tidy(&self.name);
        self.count = 0;
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        self.clear();
    }
}

impl RequestPermit {
    /// Mark the request as a stream or long poll: it counts among the streams and returns its permit.
    pub(crate) fn mark_as_stream(&mut self, now: BootInstant) -> Result<(), Problem> {
        if self.permit.is_none() {
            return Ok(());
        }
        let limiter = self.held.limiter.clone();
        let before = limiter.streams.fetch_add(1, Ordering::Relaxed);
        let most = limiter.limits.streams;
        let stream = if before >= most {
            rejected(RejectReason::Streams);
            Err(Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "too-many-streams",
                format!("the server has {most} open streams, the maximum"),
            )
            .remedy("use another replica")
            .retry_after(5))
        } else {
            let name = self.held.name.clone();
            limiter.count(&name, Kind::Stream, limiter.limits.streams_per_principal, now, || {
                too_many(format!("{name} has reached the maximum number of streams"), 5)
                    .remedy("close some of the streams")
            })
        };
        // On failure there is no permit that would release this count.
        self.held = stream.inspect_err(|_| {
            limiter.streams.fetch_sub(1, Ordering::Relaxed);
        })?;
        self.permit = None;
        self._gauged = ActiveMetric::new(names::OPEN_STREAMS);
        Ok(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.kind == Kind::Stream {
            self.limiter.streams.fetch_sub(1, Ordering::Relaxed);
        }
        let mut accounts = self.limiter.accounts();
        if let Some(account) = accounts.of.get_mut(&self.name) {
            account.counts[self.kind as usize] -= 1;
        }
        accounts.tidy(&self.name);
    }
}

fn unread_answers(name: &str, unread: usize, most: usize) -> Problem {
    let detail = format!("{name} has {unread} bytes of unread responses; the maximum is {most}");
    too_many(detail, 1).remedy("read the responses, or request less at once")
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

    fn at(ms: u64) -> BootInstant {
        BootInstant::from_nanos(ms * 1_000_000)
    }

    fn limiter(limits: Limits) -> Arc<Limiter> {
        let timeouts = Timeouts { queue: Duration::ZERO, ..Timeouts::default() };
        Limiter::new(limits, &timeouts)
    }

    async fn ordinary(limiter: &Arc<Limiter>, name: &Arc<str>) -> Result<RequestPermit, Problem> {
        limiter.request(name, RequestLane::Ordinary, at(0)).await
    }

    #[test]
    fn rate_limits_are_per_principal() {
        let limits = Limits { rate_per_principal: 1, burst_per_principal: 1, ..Limits::default() };
        let (limiter, a, b) = (limiter(limits), "a".into(), "b".into());
        assert!(limiter.count_request(&a, false, at(0)).is_ok());
        let problem = limiter.count_request(&a, false, at(0)).expect_err("too often");
        assert_eq!((problem.status.as_u16(), problem.retry_after_ms), (429, Some(1000)));
        assert!(limiter.count_request(&b, false, at(0)).is_ok(), "one principal must not use up another's");
        assert!(limiter.count_request(&a, true, at(0)).is_ok(), "heartbeats are counted apart");
        assert!(limiter.count_request(&a, false, at(1000)).is_ok());
    }

    #[test]
    fn empty_accounts_are_removed() {
        let limiter =
            limiter(Limits { rate_per_principal: 10, burst_per_principal: 10, ..Limits::default() });
        for n in 0..100_000u32 {
            let _ = limiter.count_request(&format!("10.0.0.{n}").into(), false, at(u64::from(n)));
        }
        let kept = limiter.accounts.lock().expect("sound").of.len();
        assert!(kept <= 2 * ACCOUNTS_KEPT, "{kept} accounts are kept");
    }

    #[tokio::test]
    async fn concurrent_requests_are_limited_per_principal() {
        let limiter = limiter(Limits { requests_per_principal: 1, ..Limits::default() });
        let (a, b) = ("a".into(), "b".into());
        let first = ordinary(&limiter, &a).await.expect("a permit");
        assert_eq!(ordinary(&limiter, &a).await.expect_err("refused").status.as_u16(), 429);
        assert!(ordinary(&limiter, &b).await.is_ok());
        drop(first);
        assert!(ordinary(&limiter, &a).await.is_ok());
    }

    #[tokio::test]
    async fn concurrent_requests_are_limited_and_streams_return_their_permit() {
        let limiter = limiter(Limits { requests: 1, streams: 1, ..Limits::default() });
        let a = "a".into();
        let mut first = ordinary(&limiter, &a).await.expect("a permit");
        let problem = ordinary(&limiter, &a).await.expect_err("refused");
        assert_eq!((problem.status.as_u16(), problem.code), (503, "overloaded"));
        first.mark_as_stream(at(0)).expect("a stream");
        first.mark_as_stream(at(0)).expect("is one already");
        let mut second = ordinary(&limiter, &a).await.expect("the permit was returned");
        assert_eq!(second.mark_as_stream(at(0)).expect_err("full").code, "too-many-streams");
        drop(first);
        second.mark_as_stream(at(0)).expect("the stream permit was released");
    }

    #[tokio::test]
    async fn lanes_do_not_share_permits() {
        let limits = Limits {
            requests: 1,
            requests_per_principal: 1,
            heartbeats: 1,
            unauthenticated_requests: 1,
            ..Limits::default()
        };
        let limiter = limiter(limits);
        let (a, anonymous) = ("a".into(), "anonymous from 192.0.2.7".into());
        let _login =
            limiter.request(&anonymous, RequestLane::Unauthenticated, at(0)).await.expect("a permit");
        assert!(limiter.request(&anonymous, RequestLane::Unauthenticated, at(0)).await.is_err());
        let _ordinary = ordinary(&limiter, &a).await.expect("logins take no permit of others");
        assert!(ordinary(&limiter, &a).await.is_err());
        limiter
            .request(&a, RequestLane::Heartbeat, at(0))
            .await
            .expect("a permit is reserved for heartbeats");
    }

    #[test]
    fn bytes_are_limited_per_principal_and_in_total() {
        let limits = Limits { response_bytes_per_principal: 100, response_bytes: 150, ..Limits::default() };
        let limiter = limiter(limits);
        let (a, b, c) = ("a".into(), "b".into(), "c".into());
        let mut large = limiter.bytes(&a, Side::Response);
        large.grow(120).expect("one piece, however large");
        assert_eq!(limiter.bytes(&a, Side::Response).grow(1).expect_err("full").status.as_u16(), 429);
        limiter.bytes(&a, Side::Request).grow(1).expect("counted apart");
        let mut other = limiter.bytes(&b, Side::Response);
        other.grow(30).expect("another's account");
        assert_eq!(limiter.bytes(&c, Side::Response).grow(1).expect_err("full").status.as_u16(), 503);
        drop(large);
        limiter.bytes(&a, Side::Response).grow(100).expect("released");
        drop(other);
        assert!(limiter.accounts.lock().expect("sound").of.is_empty(), "nothing is left behind");
    }
}
