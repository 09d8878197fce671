//! Limits per principal and in total.
//!
//! Every principal has an account: connections, requests, heartbeats, bodies that are being read, streams, bytes that the
//! server keeps for it, and buckets that limit how often it may ask. A client without a name has the account of its
//! address. A request beyond a limit is refused at once with the time after which to retry; only for a slot a few requests
//! wait, and not for long.
//!
//! Request slots come from three pools, so that one class of requests cannot starve another: clients that have not
//! authenticated have a small pool, heartbeats have a pool that nothing else uses, and everything else has the rest.

mod bucket;
mod pool;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::StatusCode;
use tenure::Moment;
use tokio::sync::OwnedSemaphorePermit;

pub(crate) use self::bucket::Bucket;
use self::pool::{Pool, busy};
use crate::metrics::{Gauged, Reason, names, refused};
use crate::problem::Problem;
use crate::settings::{Limits, Timeouts};

/// From how many accounts on those that hold nothing are cleared away.
const ACCOUNTS_KEPT: usize = 1024;

/// All accounts.
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
    /// The bytes of all accounts together, by [`Side`].
    bytes: [usize; 2],
    /// At how many accounts those that hold nothing are cleared away; doubled, so that clearing costs little for each new
    /// one.
    clear_at: usize,
}

#[derive(Debug, Default)]
struct Account {
    bucket: Option<Bucket>,
    heartbeats: Option<Bucket>,
    /// How many of each [`Kind`].
    counts: [usize; KINDS],
    /// How many bytes are kept, by [`Side`].
    bytes: [usize; 2],
}

impl Account {
    fn holds_nothing(&self) -> bool {
        self.counts == [0; KINDS] && self.bytes == [0; 2]
    }
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Connection,
    Request,
    Heartbeat,
    /// A body that is being read.
    Body,
    LargeBody,
    Stream,
}

const KINDS: usize = 6;

/// The pool from which a request takes its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Requests of known principals.
    Ordinary,
    /// Requests that renew a session or a claim. A client that cannot send them loses what it holds, so their slots are
    /// reserved.
    Heartbeat,
    /// Requests of clients that have not authenticated.
    Unauthenticated,
}

/// Bytes that the server keeps for a principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Bodies of requests, until the request is answered.
    Request,
    /// Answers that the client has not taken yet.
    Response,
}

/// Something that is counted while it lives.
#[derive(Debug)]
pub(crate) struct Permit {
    limiter: Arc<Limiter>,
    name: Arc<str>,
    kind: Kind,
}

/// A request's slot, from its beginning to the last byte of its answer.
#[derive(Debug)]
pub(crate) struct Turn {
    held: Permit,
    /// Given back by a request that only waits.
    turn: Option<OwnedSemaphorePermit>,
    _gauged: Gauged,
}

/// A large body's place, while it is in memory.
#[derive(Debug)]
pub(crate) struct LargeBody {
    _held: Permit,
    _place: OwnedSemaphorePermit,
}

/// Bytes on a principal's account. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Bytes {
    limiter: Arc<Limiter>,
    name: Arc<str>,
    side: Side,
    count: usize,
}

impl Limiter {
    pub(crate) fn new(limits: Limits, timeouts: &Timeouts) -> Arc<Limiter> {
        let pool = |slots, queue| Pool::new(slots, queue, timeouts.queue);
        Arc::new(Limiter {
            limits,
            requests: pool(limits.requests, limits.queue),
            heartbeats: pool(limits.heartbeats, limits.queue),
            unauthenticated: pool(limits.unauthenticated_requests, 0),
            large: pool(limits.large_bodies, limits.queue),
            large_answers: pool(limits.large_answers, limits.queue),
            accounts: Mutex::default(),
            streams: AtomicUsize::new(0),
        })
    }

    /// Counts a request against how often this principal may ask. Heartbeats have a bucket of their own, so that other
    /// requests of the principal do not use it up.
    pub(crate) fn ask(&self, name: &Arc<str>, heartbeat: bool, now: Moment) -> Result<(), Problem> {
        let (rate, burst) = (self.limits.rate_per_principal, self.limits.burst_per_principal);
        let waited = self.with(name, now, |account| {
            let bucket = if heartbeat { &mut account.heartbeats } else { &mut account.bucket };
            bucket.get_or_insert_with(|| Bucket::full(burst, now)).take(rate, burst, now)
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

    /// Takes a request slot from the pool of its lane.
    pub(crate) async fn request(
        self: &Arc<Self>,
        name: &Arc<str>,
        lane: Lane,
        now: Moment,
    ) -> Result<Turn, Problem> {
        let (kind, most, pool) = match lane {
            Lane::Ordinary => (Kind::Request, self.limits.requests_per_principal, &self.requests),
            Lane::Heartbeat => (Kind::Heartbeat, self.limits.heartbeats_per_principal, &self.heartbeats),
            Lane::Unauthenticated => {
                (Kind::Request, self.limits.unauthenticated_requests_per_peer, &self.unauthenticated)
            }
        };
        let held = self.count(name, kind, most, now, || {
            too_many(format!("{name} has as many requests under way as one principal may have"), 1)
                .remedy("wait for their answers")
        })?;
        let turn = Some(pool.take().await?);
        Ok(Turn { held, turn, _gauged: Gauged::new(names::IN_FLIGHT) })
    }

    /// Counts a body that is being read.
    pub(crate) fn body(self: &Arc<Self>, name: &Arc<str>, now: Moment) -> Result<Permit, Problem> {
        self.count(name, Kind::Body, self.limits.bodies_per_principal, now, || {
            too_many(format!("{name} sends as many bodies at once as one principal may"), 1)
                .remedy("finish sending some of them first")
        })
    }

    /// Takes a place among the large bodies that are in memory.
    pub(crate) async fn large_body(
        self: &Arc<Self>,
        name: &Arc<str>,
        now: Moment,
    ) -> Result<LargeBody, Problem> {
        let most = self.limits.large_bodies_per_principal;
        let held = self.count(name, Kind::LargeBody, most, now, || {
            too_many(format!("{name} sends {most} large bodies already"), 1)
                .remedy("send fewer of them at once")
        })?;
        Ok(LargeBody { _held: held, _place: self.large.take().await? })
    }

    /// An empty count of bytes on a principal's account.
    pub(crate) fn bytes(self: &Arc<Self>, name: &Arc<str>, side: Side) -> Bytes {
        Bytes { limiter: self.clone(), name: name.clone(), side, count: 0 }
    }

    /// Refuses a request of a client that leaves its answers unread, before anything is done for it.
    pub(crate) fn reads_its_answers(&self, name: &Arc<str>) -> Result<(), Problem> {
        let unread = self.unread(name);
        match unread < self.limits.response_bytes_per_principal {
            true => Ok(()),
            false => Err(unread_answers(name, unread, self.limits.response_bytes_per_principal)),
        }
    }

    /// How many bytes of answers a principal has not read yet.
    pub(crate) fn unread(&self, name: &str) -> usize {
        self.accounts().of.get(name).map_or(0, |account| account.bytes[Side::Response as usize])
    }

    /// Waits for a place among the large answers that are being made.
    pub(crate) async fn large_answer(&self) -> Result<OwnedSemaphorePermit, Problem> {
        self.large_answers.take().await
    }

    /// How many bytes a principal's account may have, and all accounts together.
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

    fn accounts(&self) -> MutexGuard<'_, Accounts> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, name: &Arc<str>, now: Moment, act: impl FnOnce(&mut Account) -> T) -> T {
        let mut accounts = self.accounts();
        if accounts.of.len() >= accounts.clear_at.max(ACCOUNTS_KEPT) && !accounts.of.contains_key(name) {
            let (rate, burst) = (self.limits.rate_per_principal, self.limits.burst_per_principal);
            let spent = |bucket: Option<Bucket>| bucket.is_some_and(|b| !b.is_full(rate, burst, now));
            accounts.of.retain(|_, account| {
                !account.holds_nothing() || spent(account.bucket) || spent(account.heartbeats)
            });
            accounts.clear_at = accounts.of.len() * 2;
        }
        act(accounts.of.entry(name.clone()).or_default())
    }
}

impl Accounts {
    /// Forgets an account that says nothing.
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
    /// Adds bytes, unless the principal or all principals together then have too many. An account that has none may
    /// always have one piece, however large: each piece has a limit of its own.
    pub(crate) fn grow(&mut self, by: usize) -> Result<(), Problem> {
        let side = self.side as usize;
        let (most, most_in_all) = self.limiter.most_bytes(self.side);
        let mut accounts = self.limiter.accounts();
        let in_all = accounts.bytes[side];
        let account = accounts.of.entry(self.name.clone()).or_default();
        let before = account.bytes[side];
        if before > 0 && before + by > most {
            drop(accounts);
            refused(Reason::Principal);
            return Err(match self.side {
                Side::Request => {
                    let detail = format!("{} sends more than {most} bytes of bodies at once", self.name);
                    too_many(detail, 1).remedy("send less at once")
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

    /// Adds bytes whatever the limits say: they are in memory already, and cannot be refused any more.
    pub(crate) fn grow_anyway(&mut self, by: usize) {
        let side = self.side as usize;
        let mut accounts = self.limiter.accounts();
        accounts.of.entry(self.name.clone()).or_default().bytes[side] += by;
        accounts.bytes[side] += by;
        self.count += by;
    }

    /// Gives all bytes back.
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

impl Turn {
    /// Declares that the request only waits from now on: a stream, or a long poll. It is counted among the streams, which
    /// have a limit of their own, and gives its slot back.
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
        let mut accounts = self.limiter.accounts();
        if let Some(account) = accounts.of.get_mut(&self.name) {
            account.counts[self.kind as usize] -= 1;
        }
        accounts.tidy(&self.name);
    }
}

fn unread_answers(name: &str, unread: usize, most: usize) -> Problem {
    let detail = format!("{name} has {unread} bytes of answers that it has not read; {most} are the most");
    too_many(detail, 1).remedy("read the answers, or ask for less at once")
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

    async fn ordinary(limiter: &Arc<Limiter>, name: &Arc<str>) -> Result<Turn, Problem> {
        limiter.request(name, Lane::Ordinary, at(0)).await
    }

    #[test]
    fn rates_are_counted_for_each_principal() {
        let limits = Limits { rate_per_principal: 1, burst_per_principal: 1, ..Limits::default() };
        let (limiter, a, b) = (limiter(limits), "a".into(), "b".into());
        assert!(limiter.ask(&a, false, at(0)).is_ok());
        let problem = limiter.ask(&a, false, at(0)).expect_err("too often");
        assert_eq!((problem.status.as_u16(), problem.retry_after), (429, Some(1)));
        assert!(limiter.ask(&b, false, at(0)).is_ok(), "one principal must not use up another's");
        assert!(limiter.ask(&a, true, at(0)).is_ok(), "heartbeats are counted apart");
        assert!(limiter.ask(&a, false, at(1000)).is_ok());
    }

    #[test]
    fn accounts_of_strangers_are_cleared_away() {
        let limiter =
            limiter(Limits { rate_per_principal: 10, burst_per_principal: 10, ..Limits::default() });
        for n in 0..100_000u32 {
            let _ = limiter.ask(&format!("10.0.0.{n}").into(), false, at(u64::from(n)));
        }
        let kept = limiter.accounts.lock().expect("sound").of.len();
        assert!(kept <= 2 * ACCOUNTS_KEPT, "{kept} accounts are kept");
    }

    #[tokio::test]
    async fn requests_of_one_principal_are_bounded_until_they_end() {
        let limiter = limiter(Limits { requests_per_principal: 1, ..Limits::default() });
        let (a, b) = ("a".into(), "b".into());
        let first = ordinary(&limiter, &a).await.expect("a slot");
        assert_eq!(ordinary(&limiter, &a).await.expect_err("refused").status.as_u16(), 429);
        assert!(ordinary(&limiter, &b).await.is_ok());
        drop(first);
        assert!(ordinary(&limiter, &a).await.is_ok());
    }

    #[tokio::test]
    async fn all_requests_together_are_bounded_and_streams_give_their_turn_back() {
        let limiter = limiter(Limits { requests: 1, streams: 1, ..Limits::default() });
        let a = "a".into();
        let mut first = ordinary(&limiter, &a).await.expect("a slot");
        let problem = ordinary(&limiter, &a).await.expect_err("refused");
        assert_eq!((problem.status.as_u16(), problem.code), (503, "overloaded"));
        first.lengthen(at(0)).expect("a stream");
        first.lengthen(at(0)).expect("is one already");
        let mut second = ordinary(&limiter, &a).await.expect("the slot was given back");
        assert_eq!(second.lengthen(at(0)).expect_err("full").code, "too-many-watchers");
        drop(first);
        second.lengthen(at(0)).expect("the stream's place was given back");
    }

    #[tokio::test]
    async fn no_lane_takes_the_slots_of_another() {
        let limits = Limits {
            requests: 1,
            requests_per_principal: 1,
            heartbeats: 1,
            unauthenticated_requests: 1,
            ..Limits::default()
        };
        let limiter = limiter(limits);
        let (a, stranger) = ("a".into(), "strangers from 192.0.2.7".into());
        let _login = limiter.request(&stranger, Lane::Unauthenticated, at(0)).await.expect("a slot");
        assert!(limiter.request(&stranger, Lane::Unauthenticated, at(0)).await.is_err());
        let _ordinary = ordinary(&limiter, &a).await.expect("logins take no slot of others");
        assert!(ordinary(&limiter, &a).await.is_err());
        limiter.request(&a, Lane::Heartbeat, at(0)).await.expect("a slot is reserved for heartbeats");
    }

    #[test]
    fn bytes_are_bounded_for_each_principal_and_in_total() {
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
        limiter.bytes(&a, Side::Response).grow(100).expect("given back");
        drop(other);
        assert!(limiter.accounts.lock().expect("sound").of.is_empty(), "nothing is left behind");
    }
}
