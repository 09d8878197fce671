//! Timing of gossip.

use std::time::Duration;

/// The timing of gossip, the same for all members of a cluster.
///
/// ```
/// use std::time::Duration;
/// use tenure_core::rules::soft::GossipTiming;
///
/// let timing = GossipTiming::default();
/// assert!(timing.trust() < timing.silence_limit() + timing.hold_down());
/// assert!(GossipTiming::new(Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(2)).is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GossipTiming {
    round: Duration,
    silence_limit: Duration,
    hold_down: Duration,
}

/// Why a gossip timing is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GossipTimingError {
    /// The round is out of range.
    #[error("a round of {0:?} is out of range; use 10ms to 1 minute")]
    Round(Duration),
    /// The silence limit is too short: a few lost datagrams would be mistaken for a death.
    #[error("a silence limit of {silence_limit:?} is shorter than five rounds of {round:?}; use at least {:?}", *round * 5)]
    Patience {
        /// Requested silence limit.
        silence_limit: Duration,
        /// The round.
        round: Duration,
    },
    /// The hold-down is too short: a live member that was taken for dead would be replaced before it is observed again.
    #[error("a hold-down of {hold_down:?} is shorter than five rounds of {round:?}; use at least {:?}", *round * 5)]
    HoldDown {
        /// Requested hold-down.
        hold_down: Duration,
        /// The round.
        round: Duration,
    },
}

impl GossipTiming {
    /// Creates a timing from the gossip round, the silence limit of a member, and the hold-down before a new leader.
    pub fn new(
        round: Duration,
        silence_limit: Duration,
        hold_down: Duration,
    ) -> Result<GossipTiming, GossipTimingError> {
        if !(Duration::from_millis(10)..=Duration::from_secs(60)).contains(&round) {
            return Err(GossipTimingError::Round(round));
        }
        if silence_limit < round * 5 {
            return Err(GossipTimingError::Patience { silence_limit, round });
        }
        if hold_down < round * 5 {
            return Err(GossipTimingError::HoldDown { hold_down, round });
        }
        Ok(GossipTiming { round, silence_limit, hold_down })
    }

    /// How often each member gossips.
    pub fn round(&self) -> Duration {
        self.round
    }

    /// How long a member may be silent before it counts as dead.
    pub fn silence_limit(&self) -> Duration {
        self.silence_limit
    }

    /// How long a candidate must observe nothing uncertain before it may lead.
    pub fn hold_down(&self) -> Duration {
        self.hold_down
    }

    /// Time until all members have received an update, while the network is intact.
    pub fn settle(&self) -> Duration {
        self.round * 4
    }

    /// How long a leader trusts its leadership after its last observation. Another member leads at the earliest after
    /// the silence limit and the hold-down, so a suspended leader has lost its trust when it resumes.
    pub fn trust(&self) -> Duration {
        self.silence_limit
    }
}

impl Default for GossipTiming {
    fn default() -> Self {
        GossipTiming {
            round: Duration::from_millis(200),
            silence_limit: Duration::from_secs(2),
            hold_down: Duration::from_secs(2),
        }
    }
}
