//! Known bugs that can be injected, to prove that the simulator finds them.
//!
//! None of them needs a hook in the rules: each is a plausible bug of a driver, a store or a clock.

use std::fmt;
use std::str::FromStr;

/// A deliberate bug, known from other systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InjectedBug {
    /// The driver reads the clock after the response arrives and not before it sends the heartbeat.
    ClockReadAfterTheResponse,
    /// The driver keeps leadership as a flag that events set and does not compare the clock with the deadline.
    TrustWithoutDeadline,
    /// The store applies a take without comparing token and holder.
    TakeWithoutCompareAndSwap,
    /// The store accepts a heartbeat of an expired session.
    HeartbeatRevivesAnExpiredSession,
    /// The store expires a session without comparing its heartbeat count.
    ExpiryIgnoresTheHeartbeat,
    /// The guard checks the lease but takes no lock, and the write follows later.
    GuardTakesNoLock,
    /// The driver releases the lease while the work still runs.
    ReleaseBeforeTheWorkEnded,
    /// After a promotion, tokens continue from the older copy without a new epoch.
    TokensForgetTheEpoch,
    /// All replicas share one session id, and the store opens it again.
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
