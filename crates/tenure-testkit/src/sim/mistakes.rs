//! Known mistakes, to be put back in: a simulator that does not find them finds nothing.
//!
//! None of them needs a hook in the rules. Each is what a careless driver, store or clock would do.

use std::fmt;
use std::str::FromStr;

/// A mistake that others shipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mistake {
    /// The clock is read after the answer, not before sending.
    ClockReadAfterTheAnswer,
    /// Leadership is a flag that events switch, not a comparison.
    TrustKeptAsAFlag,
    /// A take overwrites whatever is there.
    TakeWithoutCompareAndSwap,
    /// A beat counts even if the session was expired.
    BeatRevivesAnExpiredSession,
    /// A session is expired without looking whether its beat has moved.
    ExpiryIgnoresTheBeat,
    /// The guard looks, and the write comes later.
    GuardTakesNoLock,
    /// The lease is given back while the work goes on.
    ReleaseBeforeTheWorkEnded,
    /// After a promotion tokens go on from what the older copy knew.
    TokensForgetTheEpoch,
    /// Every replica carries one identity, and opening it again is no trouble.
    HostnameAsSessionId,
    /// The clock stands still while the machine is suspended.
    ClockStopsInSuspend,
}

impl Mistake {
    /// All of them.
    pub const ALL: [Mistake; 10] = [
        Mistake::ClockReadAfterTheAnswer,
        Mistake::TrustKeptAsAFlag,
        Mistake::TakeWithoutCompareAndSwap,
        Mistake::BeatRevivesAnExpiredSession,
        Mistake::ExpiryIgnoresTheBeat,
        Mistake::GuardTakesNoLock,
        Mistake::ReleaseBeforeTheWorkEnded,
        Mistake::TokensForgetTheEpoch,
        Mistake::HostnameAsSessionId,
        Mistake::ClockStopsInSuspend,
    ];
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl FromStr for Mistake {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        let known = || Self::ALL.map(|mistake| mistake.to_string()).join(", ");
        Self::ALL
            .into_iter()
            .find(|mistake| mistake.to_string() == s)
            .ok_or_else(|| format!("there is no mistake {s:?}; choose one of {}", known()))
    }
}
