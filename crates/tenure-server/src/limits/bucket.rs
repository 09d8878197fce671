//! A token bucket: how often a principal may send requests.

use std::time::Duration;

use tenure::Moment;

/// Allows `burst` requests at once, then `rate` in a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bucket {
    left: f64,
    at: Moment,
}

impl Bucket {
    /// A full bucket.
    pub(crate) fn full(burst: u32, now: Moment) -> Bucket {
        Bucket { left: f64::from(burst), at: now }
    }

    /// Takes one request, or returns how long to wait for it.
    pub(crate) fn take(&mut self, rate: u32, burst: u32, now: Moment) -> Result<(), Duration> {
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

    /// Whether the bucket has refilled, so that forgetting it changes nothing.
    pub(super) fn is_full(&self, rate: u32, burst: u32, now: Moment) -> bool {
        self.left + now.since(self.at).as_secs_f64() * f64::from(rate) >= f64::from(burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let mut bucket = Bucket::full(3, at(0));
        for _ in 0..3 {
            assert_eq!(bucket.take(10, 3, at(0)), Ok(()));
        }
        assert_eq!(bucket.take(10, 3, at(0)), Err(Duration::from_millis(100)));
        assert_eq!(bucket.take(10, 3, at(50)), Err(Duration::from_millis(50)));
        assert_eq!(bucket.take(10, 3, at(100)), Ok(()));
        // A long pause fills it up to its burst and no further.
        for _ in 0..3 {
            assert_eq!(bucket.take(10, 3, at(100_000)), Ok(()));
        }
        assert!(bucket.take(10, 3, at(100_000)).is_err());
    }

    #[test]
    fn a_clock_that_stands_still_or_goes_back_gives_nothing() {
        let mut bucket = Bucket::full(1, at(500));
        assert_eq!(bucket.take(10, 1, at(500)), Ok(()));
        assert!(bucket.take(10, 1, at(400)).is_err());
        assert!(bucket.take(10, 1, at(400)).is_err());
    }
}
