//! Known bugs that can be injected, to prove that the simulator finds them.
//!
//! None of them needs a hook in the rules. Each is a plausible bug of a driver, store or clock.

use std::fmt;
use std::str::FromStr;

/// A deliberate bug, known from other systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InjectedBug {
    /// The clock is read after the response, not before sending.
    ClockReadAfterTheResponse,
    /// Leadership is a flag that events set, not a comparison with the clock.
    TrustWithoutDeadline,
    /// A take overwrites the lease unconditionally.
    TakeWithoutCompareAndSwap,
    /// A heartbeat counts even if the session was expired.
    HeartbeatRevivesAnExpiredSession,
    /// A session is expired without comparing its heartbeat count.
    ExpiryIgnoresTheHeartbeat,
    /// The guard checks the lease, but the write comes later.
    GuardTakesNoLock,
    /// The lease is released while the work still runs.
    ReleaseBeforeTheWorkEnded,
    /// After a promotion tokens continue from the older copy.
    TokensForgetTheEpoch,
    /// All replicas share one session id, and opening it again succeeds.
    HostnameAsSessionId,
    /// The clock stops while the machine is suspended.
    ClockStopsInSuspend,
}

impl InjectedBug {
    /// All bugs.
    pub const ALL: [InjectedBug; 10] = [
        InjectedBug::ClockReadAfterTheResponse,
        InjectedBug::TrustWithoutDeadline,
        InjectedBug::TakeWithoutCompareAndSwap,
        InjectedBug::HeartbeatRevivesAnExpiredSession,
        InjectedBug::ExpiryIgnoresTheHeartbeat,
        InjectedBug::GuardTakesNoLock,
        InjectedBug::ReleaseBeforeTheWorkEnded,
        InjectedBug::TokensForgetTheEpoch,
        InjectedBug::HostnameAsSessionId,
        InjectedBug::ClockStopsInSuspend,
    ];
}

impl fmt::Display for InjectedBug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl FromStr for InjectedBug {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        let known = || Self::ALL.map(|bug| bug.to_string()).join(", ");
        Self::ALL
            .into_iter()
            .find(|bug| bug.to_string() == s)
            .ok_or_else(|| format!("unknown bug {s:?}; use one of {}", known()))
    }
}
