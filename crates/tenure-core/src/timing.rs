//! The arithmetic of trust, in one place.
//!
//! Let the holder's clock run at rate `h` and the candidate's at `c`. The holder believes for at most `⅔·lease` of its
//! own time after it *sent* its last counted beat: `⅔·lease / h` of real time. A candidate that saw that beat waits
//! [`Timing::patience`] of its own time after its read *returned*, which is later than the beat was sent:
//! `1.05·lease / c` of real time. There is never a moment with two believers while `c / h < 1.575`; what we promise
//! is 1.2, and the rest is room for the holder to stop its work.

use std::time::Duration;

/// The lease that applies unless another one is set: in the library, in every command of the CLI, and for HTTP clients.
///
/// It is long enough for a restart of the database. A program that stops its work within [`DEFAULT_KILL_AFTER`]
/// keeps working for `⅔ · lease − heartbeat − kill-after` = 20 s − 2 s − 5 s = 13 s after the database stopped answering.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// The heartbeat interval of the default lease. A heartbeat may be this old when the database stops, so a longer one shortens
/// the outage that a lease survives.
pub const DEFAULT_HEARTBEAT: Duration = Duration::from_secs(2);

/// The time between SIGTERM and SIGKILL that a command gets unless another one is set.
pub const DEFAULT_KILL_AFTER: Duration = Duration::from_secs(5);

/// How long a lease lasts and how often its session beats.
///
/// ```
/// use std::time::Duration;
/// use tenure_core::Timing;
///
/// let timing = Timing::new(Duration::from_secs(10), None).unwrap();
/// assert_eq!(timing.beat(), Duration::from_secs(2));
/// assert_eq!(Timing::default().lease(), Duration::from_secs(30));
/// assert!(timing.trust() < timing.patience());
/// assert!(Timing::new(Duration::from_secs(1), Some(Duration::from_secs(1))).is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    lease: Duration,
    beat: Duration,
}

/// Why a timing was refused. Nothing was done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TimingError {
    /// Fewer than three beats fit into the lease: one lost packet would cost the leadership.
    #[error(
        "a lease of {lease:?} is shorter than three beats of {beat:?}; \
         lengthen the lease to at least {:?} or beat more often", *beat * 3
    )]
    TooFewBeats {
        /// The lease asked for.
        lease: Duration,
        /// The beat asked for.
        beat: Duration,
    },
    /// The lease is outside of what makes sense.
    #[error("a lease of {0:?} is out of range; choose between 200ms and 1 day")]
    OutOfRange(Duration),
    /// The beat interval is too small to be kept.
    #[error("a beat of {0:?} is too short; at least 10ms are needed")]
    BeatTooShort(Duration),
}

impl Timing {
    /// A timing with this lease. Unless a beat is given, it is a fifth of the lease up to [`DEFAULT_HEARTBEAT`], and a fifteenth of
    /// a lease that is longer than the default.
    pub fn new(lease: Duration, beat: Option<Duration>) -> Result<Timing, TimingError> {
        if lease < Duration::from_millis(200) || lease > Duration::from_secs(86_400) {
            return Err(TimingError::OutOfRange(lease));
        }
        let beat = beat.unwrap_or((lease / 5).min(DEFAULT_HEARTBEAT.max(lease / 15)));
        if beat < Duration::from_millis(10) {
            return Err(TimingError::BeatTooShort(beat));
        }
        if lease < beat * 3 {
            return Err(TimingError::TooFewBeats { lease, beat });
        }
        Ok(Timing { lease, beat })
    }

    /// The lease: how long a silent session keeps what it holds.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// The time between two beats.
    pub fn beat(&self) -> Duration {
        self.beat
    }

    /// How long a counted beat is believed, from before it was sent: two thirds of the lease.
    pub fn trust(&self) -> Duration {
        self.lease * 2 / 3
    }

    /// How long *this* session must be seen silent before it may be expired. See [`patience`].
    pub fn patience(&self) -> Duration {
        patience(self.lease)
    }

    /// How long one request to the store may take before its outcome counts as unknown: half a beat, so that a beat
    /// whose answer is lost leaves time for another two before trust runs low.
    pub fn request_timeout(&self) -> Duration {
        (self.beat / 2).max(Duration::from_millis(100))
    }

    /// How long a beat or look that failed waits for its next try.
    pub fn retry(&self) -> Duration {
        (self.beat / 4).max(Duration::from_millis(5))
    }

    /// How often a follower looks at its elections when nothing wakes it.
    pub fn poll(&self) -> Duration {
        (self.beat / 2).max(Duration::from_millis(10))
    }

    /// How often a leader looks at its own elections, to clear away candidates that died.
    pub fn tend(&self) -> Duration {
        self.lease * 2
    }

    /// How much longer each lower rank waits before it takes a free lease.
    pub fn rank_step(&self) -> Duration {
        (self.lease / 20).min(Duration::from_millis(100))
    }

    /// How long a free lease is left to the successor that its last holder named.
    pub fn reserve(&self) -> Duration {
        (self.lease / 5).min(Duration::from_secs(1))
    }
}

impl Default for Timing {
    /// A lease of [`DEFAULT_LEASE`], and its usual beat.
    fn default() -> Self {
        Timing { lease: DEFAULT_LEASE, beat: DEFAULT_HEARTBEAT }
    }
}

/// How long a session with this lease must be seen silent, on the observer's own clock, before it may be expired: the
/// lease plus a drift allowance of a twentieth.
pub(crate) fn patience(lease: Duration) -> Duration {
    lease + lease / 20
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_one_timing_and_outlast_a_restart_of_the_database() {
        let timing = Timing::new(DEFAULT_LEASE, None).unwrap();
        assert_eq!(timing, Timing::default());
        let works_on = timing.trust() - timing.beat() - DEFAULT_KILL_AFTER;
        // A failed heartbeat waits for its time-out and its retry at most before the next one is sent.
        let noticed = timing.request_timeout() + timing.retry();
        assert!(works_on >= Duration::from_secs(10) + noticed, "{works_on:?}");
    }
}
