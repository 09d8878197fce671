//! A point on one machine's own clock.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// A reading of one process's suspend-counting monotonic clock (`CLOCK_BOOTTIME` on Linux).
///
/// Moments of different machines must never be compared: no rule of Tenure does.
///
/// ```
/// use std::time::Duration;
/// use tenure_core::Moment;
///
/// let t0 = Moment::from_nanos(5);
/// assert_eq!((t0 + Duration::from_nanos(10)).since(t0), Duration::from_nanos(10));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// The start of the clock: before everything.
    pub const ZERO: Moment = Moment(0);

    /// A moment from nanoseconds since the clock's start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Moment(nanos)
    }

    /// Nanoseconds since the clock's start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to `self`, zero if `earlier` is later.
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;
    fn add(self, d: Duration) -> Moment {
        Moment(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Moment {
    type Output = Moment;
    fn sub(self, d: Duration) -> Moment {
        Moment(self.0.saturating_sub(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}s", Duration::from_nanos(self.0).as_secs_f64())
    }
}
