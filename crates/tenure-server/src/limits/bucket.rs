//! Token bucket: rate limit of a principal.

use std::time::Duration;

use tenure::BootInstant;

/// Allows `burst` requests at once, then `rate` per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RateBucket {
    left: f64,
    at: BootInstant,
}

impl RateBucket {
    /// Create a full bucket.
    pub(crate) fn full(burst: u32, now: BootInstant) -> RateBucket {
        RateBucket { left: f64::from(burst), at: now }
    }

    /// Take one request, or return how long to wait.
    pub(crate) fn take(&mut self, rate: u32, burst: u32, now: BootInstant) -> Result<(), Duration> {
        let rate = f64::from(rate.max(1));
        let refilled = self.left + now.since(self.at).as_secs_f64() * rate;
        self.left = refilled.min(f64::from(burst.max(1)));
        self.at = now;
        if self.left >= 1.0 {
            self.left -= 1.0;
            return Ok(());
        }
        Err(Duration::from_secs_f64((1.0 - self.left) / rate))
    }

    /// Whether the bucket has refilled, so that it can be dropped.
    pub(super) fn is_full(&self, rate: u32, burst: u32, now: BootInstant) -> bool {
        self.left + now.since(self.at).as_secs_f64() * f64::from(rate) >= f64::from(burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> BootInstant {
        BootInstant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_bucket_allows_its_burst_and_then_its_rate() {
        let mut bucket = RateBucket::full(3, at(0));
        for _ in 0..3 {
            assert_eq!(bucket.take(10, 3, at(0)), Ok(()));
        }
        assert_eq!(bucket.take(10, 3, at(0)), Err(Duration::from_millis(100)));
        assert_eq!(bucket.take(10, 3, at(50)), Err(Duration::from_millis(50)));
        assert_eq!(bucket.take(10, 3, at(100)), Ok(()));
        // A long pause fills it up to its burst, not further.
        for _ in 0..3 {
            assert_eq!(bucket.take(10, 3, at(100_000)), Ok(()));
        }
        assert!(bucket.take(10, 3, at(100_000)).is_err());
    }

    #[test]
    fn a_stopped_or_reversed_clock_adds_no_tokens() {
        let mut bucket = RateBucket::full(1, at(500));
        assert_eq!(bucket.take(10, 1, at(500)), Ok(()));
        assert!(bucket.take(10, 1, at(400)).is_err());
        assert!(bucket.take(10, 1, at(400)).is_err());
    }
}
