//! List of equivalent servers, in order of preference.
//!
//! Servers without a failure since their last response come first, then those with the oldest failure. So a
//! working server is used again, and a failing one is avoided by all calls at once. A call that is cancelled
//! without a response counts as a failure (the lease machine cancels a heartbeat after half its interval).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::{Endpoint, ServerAddress};
use crate::runtime;

/// Known servers.
pub(in crate::store) struct ServerList {
    servers: RwLock<Vec<Arc<Endpoint>>>,
    failures: AtomicU64,
}

impl ServerList {
    pub(in crate::store) fn new(servers: Vec<Arc<Endpoint>>) -> ServerList {
        ServerList { servers: RwLock::new(servers), failures: AtomicU64::new(0) }
    }

    /// Servers, best first.
    pub(in crate::store) fn in_order(&self) -> Vec<Arc<Endpoint>> {
        let mut servers = self.servers.read().unwrap_or_else(PoisonError::into_inner).clone();
        servers.sort_by_key(|server| server.failed());
        servers
    }

    /// Replace the servers; known ones keep their state.
    pub(in crate::store) fn replace(
        &self,
        bases: Vec<ServerAddress>,
        make: impl Fn(ServerAddress) -> Endpoint,
    ) {
        let mut servers = self.servers.write().unwrap_or_else(PoisonError::into_inner);
        let known = |base: &ServerAddress| servers.iter().find(|server| server.base == *base).cloned();
        let next = bases.into_iter().map(|base| known(&base).unwrap_or_else(|| Arc::new(make(base))));
        let next = next.collect();
        *servers = next;
    }

    /// Record that a server did not respond.
    pub(in crate::store) fn failed(&self, server: &Endpoint) {
        server.fails(self.failures.fetch_add(1, Ordering::Relaxed) + 1);
    }

    /// Guard a call: it counts as a failure unless it is marked as answered, also if it is dropped.
    pub(in crate::store) fn watch<'a>(&'a self, server: &'a Endpoint) -> RequestGuard<'a> {
        RequestGuard { list: self, server, answered: false }
    }
}

/// Rotate by a random offset, so that the clients of one address do not all use the first server.
pub(in crate::store) fn rotated(mut bases: Vec<ServerAddress>) -> Vec<ServerAddress> {
    let first = usize::try_from(runtime::random() % bases.len().max(1) as u64).unwrap_or(0);
    bases.rotate_left(first);
    bases
}

/// Call in progress.
pub(in crate::store) struct RequestGuard<'a> {
    list: &'a ServerList,
    server: &'a Endpoint,
    answered: bool,
}

impl RequestGuard<'_> {
    /// Mark the call as answered.
    pub(in crate::store) fn answered(&mut self) {
        self.answered = true;
        self.server.answers();
    }
}

impl Drop for RequestGuard<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.list.failed(self.server);
        }
    }
}
