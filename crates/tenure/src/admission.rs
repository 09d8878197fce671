//! Connection limits of a listener whose clients authenticate with a shared secret.
//!
//! Any host that reaches the port can open a connection, so unauthenticated connections get a small pool with a
//! short deadline ([`Admitted::handshake`]). When the pool is full, a new connection replaces the oldest one
//! from the address with the most connections. So silent connections evict each other, and a client that
//! authenticates at once succeeds during a flood, even from the same address.
//!
//! Authenticated connections are limited in total and per address; more are rejected.
//!
//! The number of open sockets is bounded at every moment: a place in the pool becomes free when its connection
//! is closed, not when closing was requested ([`Admission::admit`] waits for it).

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::BootInstant;
use tokio::sync::{Notify, oneshot};

use crate::runtime::Runtime;

/// Minimum time between two log lines of one listener about rejected connections.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// The limits of one listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionLimits {
    /// Open connections, authenticated or not.
    pub(crate) total: usize,
    /// Authenticated connections from one address.
    pub(crate) per_address: usize,
    /// Unauthenticated connections.
    pub(crate) handshakes: usize,
}

impl ConnectionLimits {
    /// Limits for a process that may open this many files: connections get half of them, at most 1,024.
    pub(crate) fn for_open_files(files: u64) -> ConnectionLimits {
        let total = usize::try_from(files / 2).unwrap_or(usize::MAX).clamp(16, 1_024);
        ConnectionLimits { total, per_address: total * 3 / 4, handshakes: (total / 8).clamp(4, 128) }
    }
}

/// The connections of a listener.
pub(crate) struct Admission {
    /// The listener's name in log lines.
    listener: &'static str,
    limits: ConnectionLimits,
    runtime: Arc<dyn Runtime>,
    state: Mutex<State>,
    /// Signals that a place in the pool of handshakes is free.
    released: Notify,
}

#[derive(Default)]
struct State {
    next: u64,
    /// Unauthenticated connections, oldest first.
    handshakes: BTreeMap<u64, Handshake>,
    /// Number of authenticated connections by address.
    authenticated: HashMap<IpAddr, usize>,
    warned: Option<BootInstant>,
}

struct Handshake {
    address: IpAddr,
    /// Taken when another connection gets the place.
    evict: Option<oneshot::Sender<()>>,
}

impl Admission {
    pub(crate) fn new(
        listener: &'static str,
        limits: ConnectionLimits,
        runtime: Arc<dyn Runtime>,
    ) -> Arc<Admission> {
        Arc::new(Admission { listener, limits, runtime, state: Mutex::default(), released: Notify::new() })
    }

    /// Returns a place for an accepted connection. If the pool is full, waits until another connection is
    /// closed.
    pub(crate) async fn admit(self: &Arc<Self>, from: IpAddr) -> Admitted {
        let address = network_of(from);
        loop {
            let released = self.released.notified();
            {
                let mut state = self.locked();
                if state.handshakes.len() < self.limits.handshakes {
                    return self.enter(&mut state, address);
                }
                self.warn(&mut state, "too many unauthenticated connections; closing the oldest");
                state.evict();
            }
            released.await;
        }
    }

    fn enter(self: &Arc<Self>, state: &mut State, address: IpAddr) -> Admitted {
        let (evict, evicted) = oneshot::channel();
        let number = state.next;
        state.next += 1;
        state.handshakes.insert(number, Handshake { address, evict: Some(evict) });
        Admitted { admission: self.clone(), number, address, evicted, is_authenticated: false }
    }

    /// Moves a connection from the pool of handshakes to the authenticated ones.
    fn authenticate(&self, number: u64, address: IpAddr) -> io::Result<()> {
        let mut state = self.locked();
        let of_address = state.authenticated.get(&address).copied().unwrap_or(0);
        let of_all: usize = state.authenticated.values().sum();
        let reason = if of_all >= self.limits.total.saturating_sub(self.limits.handshakes) {
            "too many authenticated connections; rejecting new ones"
        } else if of_address >= self.limits.per_address {
            "too many authenticated connections from one address; rejecting new ones"
        } else {
            *state.authenticated.entry(address).or_default() += 1;
            state.handshakes.remove(&number);
            drop(state);
            self.released.notify_one();
            return Ok(());
        };
        self.warn(&mut state, reason);
        Err(io::Error::new(io::ErrorKind::ConnectionRefused, reason))
    }

    fn leave(&self, number: u64, address: IpAddr, is_authenticated: bool) {
        let mut state = self.locked();
        if !is_authenticated {
            state.handshakes.remove(&number);
            drop(state);
            self.released.notify_one();
        } else if let Some(count) = state.authenticated.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                state.authenticated.remove(&address);
            }
        }
    }

    fn warn(&self, state: &mut State, reason: &str) {
        let now = self.runtime.now();
        if state.warned.is_none_or(|last| now.since(last) >= WARN_EVERY) {
            state.warned = Some(now);
            let ConnectionLimits { total, per_address, handshakes } = self.limits;
            tracing::warn!(listener = self.listener, total, per_address, handshakes, "{reason}");
        }
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Evicts the oldest connection from the address with the most connections, unless an eviction is in
    /// progress.
    fn evict(&mut self) {
        if self.handshakes.values().any(|handshake| handshake.evict.is_none()) {
            return;
        }
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for handshake in self.handshakes.values() {
            *counts.entry(handshake.address).or_default() += 1;
        }
        let most = counts.values().max().copied().unwrap_or(0);
        let oldest = self.handshakes.values_mut().find(|it| counts.get(&it.address) == Some(&most));
        // Dropping the sender notifies the connection.
        drop(oldest.and_then(|handshake| handshake.evict.take()));
    }
}

/// The place of one connection. The owner closes the connection before it drops this.
pub(crate) struct Admitted {
    admission: Arc<Admission>,
    number: u64,
    address: IpAddr,
    evicted: oneshot::Receiver<()>,
    is_authenticated: bool,
}

impl Admitted {
    /// Runs `handshake`, which authenticates the other end, within `limit`. Fails if another connection takes
    /// the place meanwhile, or if there are too many authenticated connections.
    pub(crate) async fn handshake<T>(
        &mut self,
        limit: Duration,
        handshake: impl Future<Output = io::Result<T>>,
    ) -> io::Result<T> {
        let runtime = self.admission.runtime.clone();
        let done = tokio::select! {
            biased;
            done = handshake => done?,
            _ = &mut self.evicted => {
                return Err(io::Error::new(
                    io::ErrorKind::ConnectionAborted,
                    "evicted by a newer connection before authentication",
                ));
            }
            () = runtime.sleep_until(runtime.now() + limit) => return Err(io::ErrorKind::TimedOut.into()),
        };
        self.admission.authenticate(self.number, self.address)?;
        self.is_authenticated = true;
        Ok(done)
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.admission.leave(self.number, self.address, self.is_authenticated);
    }
}

/// The unit that counts as one address: an IPv4 address, or the /64 network that an IPv6 host can choose
/// addresses from.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        address => address,
    }
}

#[cfg(test)]
#[path = "admission_tests.rs"]
mod tests;
