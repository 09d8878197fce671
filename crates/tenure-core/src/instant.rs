//! Instants of the local clock.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// A reading of the suspend-counting monotonic clock of one machine (`CLOCK_BOOTTIME` on Linux).
///
/// Instants of different machines are never compared.
///
/// ```
/// use std::time::Duration;
/// use tenure_core::BootInstant;
///
/// let t0 = BootInstant::from_nanos(5);
/// assert_eq!((t0 + Duration::from_nanos(10)).since(t0), Duration::from_nanos(10));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootInstant(u64);

impl BootInstant {
    /// The origin of the clock.
    pub const ZERO: BootInstant = BootInstant(0);

    /// Creates an instant from nanoseconds since the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        BootInstant(nanos)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to `self`; zero if `earlier` is later.
    pub fn since(self, earlier: BootInstant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for BootInstant {
    type Output = BootInstant;
    fn add(self, d: Duration) -> BootInstant {
        BootInstant(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for BootInstant {
    type Output = BootInstant;
    fn sub(self, d: Duration) -> BootInstant {
        BootInstant(self.0.saturating_sub(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Display for BootInstant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}s", Duration::from_nanos(self.0).as_secs_f64())
    }
}
