//! Connection limits of a listener whose clients prove by a shared secret who they are.
//!
//! Anybody who reaches the port can open a connection, so connections that have not authenticated get a small pool of their own with a short
//! deadline ([`Admitted::handshake`]). When the pool is full, a new connection takes the place of an old one: of the oldest one of
//! the address that has the most. So silent connections push out each other, and a client that authenticates at once gets in during a flood,
//! even from the same address.
//!
//! Authenticated connections are limited in total and per address. What is beyond that is refused.
//!
//! The number of open sockets is bounded at every moment: a place in the pool is free again when its connection is closed, not when
//! that was asked for ([`Admission::admit`] waits for it).

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::Moment;
use tokio::sync::{Notify, oneshot};

use crate::runtime::Runtime;

/// How often, at most, one listener logs that it refuses connections.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// The limits of one listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionLimits {
    /// Open connections, authenticated or not.
    pub(crate) total: usize,
    /// Authenticated connections from one address.
    pub(crate) per_address: usize,
    /// Connections that have not authenticated yet.
    pub(crate) handshakes: usize,
}

impl ConnectionLimits {
    /// The limits for a process that may have this many files open: connections get half of them, and at most 1,024.
    pub(crate) fn for_open_files(files: u64) -> ConnectionLimits {
        let total = usize::try_from(files / 2).unwrap_or(usize::MAX).clamp(16, 1_024);
        ConnectionLimits { total, per_address: total * 3 / 4, handshakes: (total / 8).clamp(4, 128) }
    }
}

/// Who is connected to a listener.
pub(crate) struct Admission {
    /// The listener's name in log lines.
    listener: &'static str,
    limits: ConnectionLimits,
    runtime: Arc<dyn Runtime>,
    state: Mutex<State>,
    /// A place in the pool of handshakes is free again.
    released: Notify,
}

#[derive(Default)]
struct State {
    next: u64,
    /// The connections that have not authenticated, oldest first.
    handshakes: BTreeMap<u64, Handshake>,
    /// The number of authenticated connections, by address.
    authenticated: HashMap<IpAddr, usize>,
    warned: Option<Moment>,
}

struct Handshake {
    address: IpAddr,
    /// Taken when another connection gets its place.
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

    /// A place for a connection that was accepted. If there is none, the connection that has it is closed first.
    pub(crate) async fn admit(self: &Arc<Self>, from: IpAddr) -> Admitted {
        let address = network_of(from);
        loop {
            let released = self.released.notified();
            {
                let mut state = self.locked();
                if state.handshakes.len() < self.limits.handshakes {
                    return self.enter(&mut state, address);
                }
                self.warn(&mut state, "too many connections have not authenticated; the oldest are closed");
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
            "too many authenticated connections; new ones are refused"
        } else if of_address >= self.limits.per_address {
            "too many authenticated connections from one address; new ones are refused"
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
    /// Has the oldest connection closed of the address that has the most, unless one is being closed already.
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
        // Dropping the sender tells the connection.
        drop(oldest.and_then(|handshake| handshake.evict.take()));
    }
}

/// The place of one connection. Its owner closes the connection before it drops this.
pub(crate) struct Admitted {
    admission: Arc<Admission>,
    number: u64,
    address: IpAddr,
    evicted: oneshot::Receiver<()>,
    is_authenticated: bool,
}

impl Admitted {
    /// Runs what authenticates the other end, within `limit`. Fails as well if another connection takes the place meanwhile, or if there
    /// are too many authenticated connections.
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
                    "a newer connection took the place of this one, which had not authenticated",
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

/// What counts as one address: an IPv4 address, or the network of 64 bits that an IPv6 host can choose its address from.
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
