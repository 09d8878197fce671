//! Rate limit of claims.

use crate::port::RateLimit;

/// A token bucket for claims. It is full when idle and refills at the rate. To avoid rounding, it counts fractions of
/// claims: one claim costs `per_ms` units, and each millisecond adds `count` units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RateBucket {
    parts: u128,
    at_ms: i64,
}

impl RateBucket {
    /// A full bucket.
    pub(super) fn full(rate: RateLimit, now_ms: i64) -> RateBucket {
        RateBucket { parts: most(rate), at_ms: now_ms }
    }

    /// The bucket at `now_ms`. A backward step of the clock does not change its contents.
    pub(super) fn now(self, rate: RateLimit, now_ms: i64) -> RateBucket {
        let passed = u128::try_from(now_ms.saturating_sub(self.at_ms)).unwrap_or(0);
        let parts = passed.saturating_mul(rate.count.into()).saturating_add(self.parts).min(most(rate));
        RateBucket { parts, at_ms: now_ms }
    }

    /// Time of the last refill.
    pub(super) fn at_ms(self) -> i64 {
        self.at_ms
    }

    /// Number of claims allowed.
    pub(super) fn claims(self, rate: RateLimit) -> u64 {
        u64::try_from(self.parts / u128::from(rate.per_ms.max(1))).unwrap_or(u64::MAX)
    }

    /// Takes one claim out of the bucket.
    pub(super) fn take(&mut self, rate: RateLimit) {
        self.parts = self.parts.saturating_sub(rate.per_ms.max(1).into());
    }

    /// Milliseconds until the next claim is allowed, if none is allowed now.
    pub(super) fn next_in_ms(self, rate: RateLimit) -> Option<u64> {
        let missing =
            u128::from(rate.per_ms.max(1)).checked_sub(self.parts).filter(|missing| *missing > 0)?;
        Some(u64::try_from(missing.div_ceil(rate.count.max(1).into())).unwrap_or(u64::MAX))
    }
}

fn most(rate: RateLimit) -> u128 {
    u128::from(rate.count) * u128::from(rate.per_ms.max(1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RATE: RateLimit = RateLimit { count: 3, per_ms: 1_000 };

    #[test]
    fn a_burst_after_an_idle_period_then_one_by_one() {
        let mut bucket = RateBucket::full(RATE, 0);
        for left in [3, 2, 1] {
            assert_eq!((bucket.claims(RATE), bucket.next_in_ms(RATE)), (left, None));
            bucket.take(RATE);
        }
        assert_eq!((bucket.claims(RATE), bucket.next_in_ms(RATE)), (0, Some(334)));
        assert_eq!(bucket.now(RATE, 333).claims(RATE), 0);
        assert_eq!(bucket.now(RATE, 334).claims(RATE), 1);
        assert_eq!(bucket.now(RATE, 1_000_000).claims(RATE), 3);
        assert_eq!(bucket.now(RATE, -5).claims(RATE), 0, "a backward step adds nothing");
    }

    proptest! {
        /// No interval contains more claims than the rate allows plus one burst.
        #[test]
        fn no_interval_exceeds_the_rate(count in 1..20u32, per_ms in 1..5_000u64,
                                             passes in prop::collection::vec((0..500i64, 0..5u64), 1..100)) {
            let rate = RateLimit { count, per_ms };
            let (mut bucket, mut now, mut begun) = (RateBucket::full(rate, 0), 0i64, Vec::new());
            for (pass, expected) in passes {
                now += pass;
                bucket = bucket.now(rate, now);
                for _ in 0..expected.min(bucket.claims(rate)) {
                    bucket.take(rate);
                    begun.push(now);
                }
            }
            for (i, from) in begun.iter().enumerate() {
                for (j, to) in begun.iter().enumerate().skip(i) {
                    let allowed = i128::from(to - from) * i128::from(count) / i128::from(per_ms) + i128::from(count);
                    prop_assert!((j - i + 1) as i128 <= allowed);
                }
            }
        }
    }
}
