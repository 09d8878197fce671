//! How fast gossip goes, and how patient those are who listen.

use std::time::Duration;

/// The times of gossip: one set for all members of a cluster.
///
/// ```
/// use std::time::Duration;
/// use tenure_core::soft::Pace;
///
/// let pace = Pace::default();
/// assert!(pace.trust() < pace.patience() + pace.hold_down());
/// assert!(Pace::new(Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(2)).is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    round: Duration,
    patience: Duration,
    hold_down: Duration,
}

/// Why a pace was refused. Nothing was done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PaceError {
    /// Rounds so short are not kept, and so long are of no use.
    #[error("a round of {0:?} is out of range; choose between 10ms and 1 minute")]
    Round(Duration),
    /// A few lost datagrams would pass for a death.
    #[error("a patience of {patience:?} is shorter than five rounds of {round:?}; lengthen it to at least {:?}", *round * 5)]
    Patience {
        /// The patience asked for.
        patience: Duration,
        /// The round.
        round: Duration,
    },
    /// Who was only thought dead would be followed before it could be heard again.
    #[error("a hold-down of {hold_down:?} is shorter than five rounds of {round:?}; lengthen it to at least {:?}", *round * 5)]
    HoldDown {
        /// The hold-down asked for.
        hold_down: Duration,
        /// The round.
        round: Duration,
    },
}

impl Pace {
    /// A round of gossip; how long a member may be silent; how long nothing may be in doubt before somebody new leads.
    pub fn new(round: Duration, patience: Duration, hold_down: Duration) -> Result<Pace, PaceError> {
        if !(Duration::from_millis(10)..=Duration::from_secs(60)).contains(&round) {
            return Err(PaceError::Round(round));
        }
        if patience < round * 5 {
            return Err(PaceError::Patience { patience, round });
        }
        if hold_down < round * 5 {
            return Err(PaceError::HoldDown { hold_down, round });
        }
        Ok(Pace { round, patience, hold_down })
    }

    /// How often each member gossips.
    pub fn round(&self) -> Duration {
        self.round
    }

    /// How long a member may be silent before it counts as dead.
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// How long nothing may have been in doubt before somebody new leads.
    pub fn hold_down(&self) -> Duration {
        self.hold_down
    }

    /// How long it takes until all have heard what somebody says, while the network holds.
    pub fn settle(&self) -> Duration {
        self.round * 4
    }

    /// How long a leader believes after it last looked. Others follow it at the earliest after patience and hold-down, so one that
    /// was stopped believes nothing when it goes on.
    pub fn trust(&self) -> Duration {
        self.patience
    }
}

impl Default for Pace {
    fn default() -> Self {
        Pace {
            round: Duration::from_millis(200),
            patience: Duration::from_secs(2),
            hold_down: Duration::from_secs(2),
        }
    }
}
