//! How fast claims of a queue may begin.

use crate::port::RateLimit;

/// A bucket of permissions: full after a rest, and filling at the rate. Counted in parts, so that nothing is rounded away: one
/// claim costs `per_ms` parts, and each millisecond brings `count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bucket {
    parts: u128,
    at_ms: i64,
}

impl Bucket {
    /// A full one.
    pub(super) fn full(rate: RateLimit, now_ms: i64) -> Bucket {
        Bucket { parts: most(rate), at_ms: now_ms }
    }

    /// What it holds now. A clock that was put back brings nothing, and takes nothing.
    pub(super) fn now(self, rate: RateLimit, now_ms: i64) -> Bucket {
        let passed = u128::try_from(now_ms.saturating_sub(self.at_ms)).unwrap_or(0);
        let parts = passed.saturating_mul(rate.count.into()).saturating_add(self.parts).min(most(rate));
        Bucket { parts, at_ms: now_ms }
    }

    /// Up to when it was filled.
    pub(super) fn at_ms(self) -> i64 {
        self.at_ms
    }

    /// How many claims may begin.
    pub(super) fn claims(self, rate: RateLimit) -> u64 {
        u64::try_from(self.parts / u128::from(rate.per_ms.max(1))).unwrap_or(u64::MAX)
    }

    /// One begins.
    pub(super) fn take(&mut self, rate: RateLimit) {
        self.parts = self.parts.saturating_sub(rate.per_ms.max(1).into());
    }

    /// In how many milliseconds the next may begin, if none may now.
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
    fn as_many_at_once_after_a_rest_then_one_by_one() {
        let mut bucket = Bucket::full(RATE, 0);
        for left in [3, 2, 1] {
            assert_eq!((bucket.claims(RATE), bucket.next_in_ms(RATE)), (left, None));
            bucket.take(RATE);
        }
        assert_eq!((bucket.claims(RATE), bucket.next_in_ms(RATE)), (0, Some(334)));
        assert_eq!(bucket.now(RATE, 333).claims(RATE), 0);
        assert_eq!(bucket.now(RATE, 334).claims(RATE), 1);
        assert_eq!(bucket.now(RATE, 1_000_000).claims(RATE), 3);
        assert_eq!(bucket.now(RATE, -5).claims(RATE), 0, "a clock put back brings nothing");
    }

    proptest! {
        /// In no stretch of time more than the rate allows, plus what a rest had saved.
        #[test]
        fn no_stretch_has_more_than_the_rate(count in 1..20u32, per_ms in 1..5_000u64,
                                             looks in prop::collection::vec((0..500i64, 0..5u64), 1..100)) {
            let rate = RateLimit { count, per_ms };
            let (mut bucket, mut now, mut begun) = (Bucket::full(rate, 0), 0i64, Vec::new());
            for (pass, wanted) in looks {
                now += pass;
                bucket = bucket.now(rate, now);
                for _ in 0..wanted.min(bucket.claims(rate)) {
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
