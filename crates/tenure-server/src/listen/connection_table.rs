//! Table of all connections: their number, addresses and timeouts.
//!
//! The number of connections without an authenticated request is limited. At the limit, a new connection
//! replaces the oldest one of the address that has the most of them, so silent clients cannot block others.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure::BootInstant;
use tenure::runtime::Runtime;
use tokio::sync::watch;

use super::activity::{ConnectionActivity, ConnectionCommand};
use crate::metrics::{ActiveMetric, names};
use crate::settings::{Limits, Settings, Timeouts};

/// How long a new unauthenticated connection is protected from replacement by one of the same address.
/// Without it, clients that connect together would close each other's connections before any of them could
/// send a request.
const GRACE: Duration = Duration::from_secs(1);

/// Table of all connections.
pub(crate) struct ConnectionTable {
    runtime: Arc<dyn Runtime>,
    limits: Limits,
    /// Maximum number of connections without an authenticated request.
    unauthenticated: usize,
    timeouts: Timeouts,
    next: AtomicU64,
    state: Mutex<TableState>,
    count: watch::Sender<usize>,
}

#[derive(Default)]
struct TableState {
    connections: HashMap<u64, Arc<ConnectionActivity>>,
    per_peer: HashMap<IpAddr, usize>,
    /// Connections without an authenticated request, by address and age.
    unauthenticated: HashMap<Option<IpAddr>, BTreeMap<u64, BootInstant>>,
    unauthenticated_count: usize,
    closing: bool,
}

impl TableState {
    /// Remove a connection from the unauthenticated ones.
    fn no_longer_unauthenticated(&mut self, peer: Option<IpAddr>, number: u64) {
        let Some(numbers) = self.unauthenticated.get_mut(&peer) else { return };
        if numbers.remove(&number).is_some() {
            self.unauthenticated_count -= 1;
        }
        if numbers.is_empty() {
            self.unauthenticated.remove(&peer);
        }
    }

    /// Close the oldest unauthenticated connection of the address that has the most of them, in favour of one
    /// from `peer`; `false` if none may be closed.
    fn evict(&mut self, peer: Option<IpAddr>, now: BootInstant) -> bool {
        let largest = self.unauthenticated.iter().max_by_key(|(_, numbers)| numbers.len());
        let oldest = largest.and_then(|(from, numbers)| {
            numbers.first_key_value().map(|(number, since)| (*from, *number, *since))
        });
        let Some((from, number, since)) = oldest else { return false };
        if from == peer && now.since(since) < GRACE {
            return false;
        }
        if let Some(activity) = self.connections.get(&number) {
            activity.send(ConnectionCommand::Stop);
        }
        self.no_longer_unauthenticated(from, number);
        true
    }
}

/// Entry of a connection, released on drop.
pub(crate) struct ConnectionPermit {
    pub(crate) auth: Arc<ConnectionAuth>,
    pub(crate) activity: Arc<ConnectionActivity>,
    _metric: ActiveMetric,
}

/// Whether a request on a connection has authenticated.
pub(crate) struct ConnectionAuth {
    table: Arc<ConnectionTable>,
    number: u64,
    peer: Option<IpAddr>,
    authenticated: AtomicBool,
}

impl ConnectionAuth {
    /// Record that a request has authenticated. The connection can no longer be replaced.
    pub(crate) fn authenticated(&self) {
        if !self.authenticated.swap(true, Ordering::Relaxed) {
            self.table.locked().no_longer_unauthenticated(self.peer, self.number);
        }
    }
}

impl std::fmt::Debug for ConnectionAuth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectionAuth").field("authenticated", &self.authenticated).finish_non_exhaustive()
    }
}

/// Reason for rejecting a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionRefusal {
    /// Too many connections.
    All,
    /// Too many connections from this address.
    Peer,
    /// Too many unauthenticated connections.
    Unauthenticated,
    /// The server is shutting down.
    Closing,
}

impl ConnectionTable {
    pub(crate) fn new(settings: &Settings) -> ConnectionTable {
        ConnectionTable {
            runtime: settings.runtime.clone(),
            limits: settings.limits,
            unauthenticated: match settings.auth {
                true => settings.limits.unauthenticated_connections.max(1),
                false => usize::MAX,
            },
            timeouts: settings.timeouts,
            next: AtomicU64::new(0),
            state: Mutex::default(),
            count: watch::Sender::new(0),
        }
    }

    /// Add a connection, if the limits allow it.
    pub(crate) fn accept(
        self: &Arc<Self>,
        peer: Option<IpAddr>,
    ) -> Result<ConnectionPermit, ConnectionRefusal> {
        let mut state = self.locked();
        if state.closing {
            return Err(ConnectionRefusal::Closing);
        }
        if state.connections.len() >= self.limits.connections {
            return Err(ConnectionRefusal::All);
        }
        let now = self.runtime.now();
        if let Some(ip) = peer
            && state.per_peer.get(&ip).is_some_and(|count| *count >= self.limits.connections_per_peer)
        {
            return Err(ConnectionRefusal::Peer);
        }
        if state.unauthenticated_count >= self.unauthenticated && !state.evict(peer, now) {
            return Err(ConnectionRefusal::Unauthenticated);
        }
        if let Some(ip) = peer {
            *state.per_peer.entry(ip).or_default() += 1;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let activity = ConnectionActivity::new(self.runtime.clone());
        state.connections.insert(number, activity.clone());
        state.unauthenticated.entry(peer).or_default().insert(number, now);
        state.unauthenticated_count += 1;
        self.count.send_replace(state.connections.len());
        let auth = Arc::new(ConnectionAuth {
            table: self.clone(),
            number,
            peer,
            authenticated: AtomicBool::new(false),
        });
        Ok(ConnectionPermit { auth, activity, _metric: ActiveMetric::new(names::OPEN_CONNECTIONS) })
    }

    /// Close connections that wait too long, until aborted.
    pub(crate) async fn sweep(self: Arc<Self>) {
        let shortest = [self.timeouts.header, self.timeouts.idle, self.timeouts.write].into_iter().min();
        let every =
            (shortest.unwrap_or_default() / 4).clamp(Duration::from_millis(20), Duration::from_secs(1));
        loop {
            tokio::time::sleep(every).await;
            let now = self.runtime.now();
            self.each(|activity| activity.judge(now, &self.timeouts));
        }
    }

    /// Accept no more connections, and let all finish their current requests.
    pub(crate) fn finish(&self) {
        self.locked().closing = true;
        self.each(|activity| activity.send(ConnectionCommand::Finish));
    }

    /// Close all connections now.
    pub(crate) fn stop(&self) {
        self.locked().closing = true;
        self.each(|activity| activity.send(ConnectionCommand::Stop));
    }

    /// Wait until there are no connections.
    pub(crate) async fn empty(&self) {
        // The sender is part of this value, so the wait cannot fail.
        let _ = self.count.subscribe().wait_for(|count| *count == 0).await;
    }

    fn each(&self, act: impl Fn(&ConnectionActivity)) {
        self.locked().connections.values().for_each(|activity| act(activity));
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, TableState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let ConnectionAuth { table, number, peer, .. } = &*self.auth;
        let mut state = table.locked();
        state.connections.remove(number);
        state.no_longer_unauthenticated(*peer, *number);
        if let Some(ip) = peer
            && let Some(count) = state.per_peer.get_mut(ip)
        {
            *count -= 1;
            if *count == 0 {
                state.per_peer.remove(ip);
            }
        }
        table.count.send_replace(state.connections.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(unauthenticated: usize, auth: bool) -> Arc<ConnectionTable> {
        let limits = Limits { unauthenticated_connections: unauthenticated, ..Limits::default() };
        Arc::new(ConnectionTable::new(&Settings { limits, auth, ..Settings::default() }))
    }

    fn ip(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([192, 0, 2, last]))
    }

    fn is_closed(place: &ConnectionPermit) -> bool {
        *place.activity.commands().borrow() == ConnectionCommand::Stop
    }

    /// Regression: Silent connections took every permit, and later clients were rejected.
    #[test]
    fn silent_connections_are_replaced_by_new_ones() {
        let table = table(3, true);
        let crowd: Vec<_> = (0..3).map(|_| table.accept(ip(1)).expect("a permit")).collect();
        let one = table.accept(ip(2)).expect("the oldest of the crowd makes room");
        assert!(is_closed(&crowd[0]) && !is_closed(&crowd[1]));
        assert!(
            matches!(table.accept(ip(1)), Err(ConnectionRefusal::Unauthenticated)),
            "the crowd does not grow"
        );
        one.auth.authenticated();
        let _two = table.accept(ip(2)).expect("its permit is free again");
        let _three = table.accept(ip(3)).expect("room is made by the crowd, not by others");
        assert!(is_closed(&crowd[1]) && !is_closed(&one));
        drop(crowd);
        assert_eq!(table.locked().unauthenticated_count, 2);
    }

    #[test]
    fn without_access_control_connections_are_not_limited_by_authentication() {
        let table = table(1, false);
        let places: Vec<_> = (0..10).map(|_| table.accept(ip(1)).expect("a permit")).collect();
        assert!(!places.iter().any(is_closed));
    }
}
