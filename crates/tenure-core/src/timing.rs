//! Lease and heartbeat durations, and the arithmetic of trust.
//!
//! Let the holder's clock run at rate `h` and the candidate's at `c`. The holder trusts its lease for at most
//! `⅔·lease` of its own time after it *sent* the last confirmed heartbeat: `⅔·lease / h` of real time. A candidate
//! that saw that heartbeat waits for [`Timing::silence_limit`] of its own time after its read *returned*, which is
//! after the heartbeat was sent: `1.05·lease / c` of real time. Two processes never trust the same lease while `c / h
//! < 1.575`. The documented guarantee is 1.2; the rest is time for the holder to stop its work.

use std::time::Duration;

/// Default lease duration of the library, of every CLI command and of HTTP clients.
///
/// It is long enough for a restart of the database. A program that stops its work within [`DEFAULT_KILL_AFTER`] can
/// continue for `⅔ · lease − heartbeat − kill-after` = 20 s − 2 s − 5 s = 13 s after the database stopped responding.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// Heartbeat interval of the default lease. A heartbeat may be this old when the database stops, so a longer interval
/// shortens the outage that a lease survives.
pub const DEFAULT_HEARTBEAT: Duration = Duration::from_secs(2);

/// Default time between SIGTERM and SIGKILL.
pub const DEFAULT_KILL_AFTER: Duration = Duration::from_secs(5);

/// Lease duration and heartbeat interval.
///
/// ```
/// use std::time::Duration;
/// use tenure_core::Timing;
///
/// let timing = Timing::new(Duration::from_secs(10), None).unwrap();
/// assert_eq!(timing.heartbeat_interval(), Duration::from_secs(2));
/// assert_eq!(Timing::default().lease(), Duration::from_secs(30));
/// assert!(timing.trust() < timing.silence_limit());
/// assert!(Timing::new(Duration::from_secs(1), Some(Duration::from_secs(1))).is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    lease: Duration,
    beat: Duration,
}

/// Why a timing is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TimingError {
    /// Fewer than three heartbeats fit into the lease, so one lost packet could cost the leadership.
    #[error(
        "a lease of {lease:?} is shorter than three heartbeats of {beat:?}; use a lease of at least {:?} or a \
         shorter heartbeat interval", *beat * 3
    )]
    TooFewBeats {
        /// Requested lease.
        lease: Duration,
        /// Requested heartbeat interval.
        beat: Duration,
    },
    /// The lease is out of range.
    #[error("a lease of {0:?} is out of range; use 200ms to 1 day")]
    OutOfRange(Duration),
    /// The heartbeat interval is too short.
    #[error("a heartbeat interval of {0:?} is too short; use at least 10ms")]
    HeartbeatTooShort(Duration),
}

impl Timing {
    /// Creates a timing with this lease. The default heartbeat interval is a fifth of the lease up to
    /// [`DEFAULT_HEARTBEAT`], and a fifteenth of a lease that is longer than the default.
    pub fn new(lease: Duration, beat: Option<Duration>) -> Result<Timing, TimingError> {
        if lease < Duration::from_millis(200) || lease > Duration::from_secs(86_400) {
            return Err(TimingError::OutOfRange(lease));
        }
        let beat = beat.unwrap_or((lease / 5).min(DEFAULT_HEARTBEAT.max(lease / 15)));
        if beat < Duration::from_millis(10) {
            return Err(TimingError::HeartbeatTooShort(beat));
        }
        if lease < beat * 3 {
            return Err(TimingError::TooFewBeats { lease, beat });
        }
        Ok(Timing { lease, beat })
    }

    /// Lease duration: how long a silent session keeps what it holds.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Heartbeat interval.
    pub fn heartbeat_interval(&self) -> Duration {
        self.beat
    }

    /// How long a confirmed heartbeat is trusted, counted from before it was sent: two thirds of the lease.
    pub fn trust(&self) -> Duration {
        self.lease * 2 / 3
    }

    /// How long a session with this timing must be silent before it may be expired. See [`silence_limit`].
    pub fn silence_limit(&self) -> Duration {
        silence_limit(self.lease)
    }

    /// Timeout of a store call: half a heartbeat interval, so that after a lost heartbeat two more can be sent before
    /// trust expires.
    pub fn request_timeout(&self) -> Duration {
        (self.beat / 2).max(Duration::from_millis(100))
    }

    /// Delay before a failed heartbeat or read is repeated.
    pub fn retry(&self) -> Duration {
        (self.beat / 4).max(Duration::from_millis(5))
    }

    /// How often a follower reads its elections without a notification.
    pub fn poll(&self) -> Duration {
        (self.beat / 2).max(Duration::from_millis(10))
    }

    /// How often a leader reads its own elections, to remove dead candidates.
    pub fn leader_poll(&self) -> Duration {
        self.lease * 2
    }

    /// Additional delay per rank before a candidate takes a free lease.
    pub fn rank_step(&self) -> Duration {
        (self.lease / 20).min(Duration::from_millis(100))
    }

    /// How long a free lease is reserved for the successor that the last holder named.
    pub fn reserve(&self) -> Duration {
        (self.lease / 5).min(Duration::from_secs(1))
    }
}

impl Default for Timing {
    /// The default lease with its default heartbeat interval.
    fn default() -> Self {
        Timing { lease: DEFAULT_LEASE, beat: DEFAULT_HEARTBEAT }
    }
}

/// How long a session with this lease must be silent, on the observer's clock, before it may be expired: the lease
/// plus 5 % for clock drift.
pub(crate) fn silence_limit(lease: Duration) -> Duration {
    lease + lease / 20
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_one_timing_and_outlast_a_restart_of_the_database() {
        let timing = Timing::new(DEFAULT_LEASE, None).unwrap();
        assert_eq!(timing, Timing::default());
        let works_on = timing.trust() - timing.heartbeat_interval() - DEFAULT_KILL_AFTER;
        // After a failed heartbeat, the next one is sent no later than its timeout plus the retry delay.
        let noticed = timing.request_timeout() + timing.retry();
        assert!(works_on >= Duration::from_secs(10) + noticed, "{works_on:?}");
    }
}
