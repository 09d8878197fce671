//! Servers that know the same: which one is asked.
//!
//! Those that did not fail since they last answered come first, then those whose failure is the longest ago. So a server
//! that works is kept to, and one that fails is left by every call at once: by those that found out, and by those that
//! come after. A call that is given up unanswered (the machine gives a beat half a beat's time) counts as a failure.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::{Base, Endpoint};
use crate::runtime;

/// All servers that we know of.
pub(in crate::backend) struct Ring {
    servers: RwLock<Vec<Arc<Endpoint>>>,
    failures: AtomicU64,
}

impl Ring {
    pub(in crate::backend) fn new(servers: Vec<Arc<Endpoint>>) -> Ring {
        Ring { servers: RwLock::new(servers), failures: AtomicU64::new(0) }
    }

    /// The servers, the best first.
    pub(in crate::backend) fn in_order(&self) -> Vec<Arc<Endpoint>> {
        let mut servers = self.servers.read().unwrap_or_else(PoisonError::into_inner).clone();
        servers.sort_by_key(|server| server.failed());
        servers
    }

    /// From now on these; those that are known stay what they are.
    pub(in crate::backend) fn become_those(&self, bases: Vec<Base>, make: impl Fn(Base) -> Endpoint) {
        let mut servers = self.servers.write().unwrap_or_else(PoisonError::into_inner);
        let known = |base: &Base| servers.iter().find(|server| server.base == *base).cloned();
        let next = bases.into_iter().map(|base| known(&base).unwrap_or_else(|| Arc::new(make(base))));
        let next = next.collect();
        *servers = next;
    }

    /// A server did not answer.
    pub(in crate::backend) fn failed(&self, server: &Endpoint) {
        server.fails(self.failures.fetch_add(1, Ordering::Relaxed) + 1);
    }

    /// Watches over a call: unless it is said to be answered, it counts as a failure, also if it is dropped while it waits.
    pub(in crate::backend) fn watch<'a>(&'a self, server: &'a Endpoint) -> Watch<'a> {
        Watch { ring: self, server, answered: false }
    }
}

/// In another order for each process, so that the clients of one address do not all crowd around the first.
pub(in crate::backend) fn rotated(mut bases: Vec<Base>) -> Vec<Base> {
    let first = usize::try_from(runtime::random() % bases.len().max(1) as u64).unwrap_or(0);
    bases.rotate_left(first);
    bases
}

/// A call that is under way.
pub(in crate::backend) struct Watch<'a> {
    ring: &'a Ring,
    server: &'a Endpoint,
    answered: bool,
}

impl Watch<'_> {
    /// It was answered.
    pub(in crate::backend) fn answered(&mut self) {
        self.answered = true;
        self.server.answers();
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.ring.failed(self.server);
        }
    }
}
