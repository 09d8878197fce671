//! The store's wall clock, as somebody reckons it who has a clock that does not step.

use crate::Moment;

/// What the store's wall clock shows *at least*, had it never been put forward since the first reading.
///
/// A claim's deadline is written by the store's clock. When that clock is put forward, deadlines seem to be over that are
/// not. So the keeper remembers by how much the store's clock was ahead of its own steady one when it was the least ahead, and
/// says what it would show now by that. The store takes the lesser of this and its own ([`Tend::clock_ms`]). A step forward
/// expires nothing early, then, whether deadlines were written before or after it, before or after a step back; what it
/// costs is that deadlines written after a step forward are found late by that step, for as long as this keeper is the keeper.
///
/// ```
/// use tenure_core::{Moment, claim::SteadyClock};
///
/// let at = |seconds: u64| Moment::from_nanos(seconds * 1_000_000_000);
/// let mut clock = SteadyClock::default();
/// assert_eq!(clock.now_ms(at(0)), None);
/// clock.read(at(0), at(0), 1_000_000);
/// assert_eq!(clock.now_ms(at(7)), Some(1_007_000));
/// clock.read(at(10), at(10), 4_610_000); // an hour was added
/// assert_eq!(clock.now_ms(at(10)), Some(1_010_000));
/// clock.read(at(20), at(20), 960_000); // it was put back by a minute
/// assert_eq!(clock.now_ms(at(20)), Some(960_000));
/// ```
///
/// [`Tend::clock_ms`]: crate::port::Tend::clock_ms
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SteadyClock {
    least: Option<Ahead>,
}

/// By how much the store's clock was ahead of ours when it was the least ahead, in milliseconds: at least, and at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ahead {
    low: i64,
    high: i64,
}

impl SteadyClock {
    /// Takes in what the store's clock showed, in the answer to what was sent at `sent`, which came at `returned`.
    pub fn read(&mut self, sent: Moment, returned: Moment, store_ms: i64) {
        // The store read its clock some time between the two.
        let (low, high) = (store_ms.saturating_sub(up_ms(returned)), store_ms.saturating_sub(down_ms(sent)));
        self.least = Some(match self.least {
            // It was put forward: what was written before still goes by the old setting.
            Some(least) if low > least.high => least,
            // It may be the same setting, and quick answers make it sharper than slow ones.
            Some(least) if high >= least.low => Ahead { low: least.low.max(low), high: least.high.min(high) },
            // The first reading; or it was put back.
            _ => Ahead { low, high },
        });
    }

    /// What the store's clock shows at least. `None` before the first reading.
    pub fn now_ms(&self, now: Moment) -> Option<i64> {
        self.least.map(|least| down_ms(now).saturating_add(least.low))
    }
}

/// In milliseconds, rounded down.
fn down_ms(moment: Moment) -> i64 {
    i64::try_from(moment.as_nanos() / 1_000_000).unwrap_or(i64::MAX)
}

/// In milliseconds, rounded up.
fn up_ms(moment: Moment) -> i64 {
    i64::try_from(moment.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    proptest! {
        /// Whatever steps the store's clock makes, forwards and backwards: a deadline is never found early by more than the
        /// slowest answer took, and with quick answers never at all.
        #[test]
        fn no_deadline_is_found_early(
            steps in prop::collection::vec((1..10_000u64, -100_000..100_000i64, 0..50u64), 1..30),
            hold in 0..200_000i64,
        ) {
            let (mut clock, mut now, mut offset, mut slowest) = (SteadyClock::default(), 0u64, 1_000_000i64, 0);
            let mut deadlines = Vec::new();
            for (pass, step, delay) in steps {
                now += pass;
                offset += step;
                // The store reads its clock now; the answer comes later.
                let store_ms = now as i64 + offset;
                deadlines.push((store_ms + hold, now as i64 + hold));
                clock.read(ms(now), ms(now + delay), store_ms);
                now += delay;
                slowest = slowest.max(delay as i64);
                let reckoned = clock.now_ms(ms(now)).unwrap();
                for (deadline_ms, really) in &deadlines {
                    prop_assert!(reckoned < *deadline_ms || now as i64 >= *really - slowest);
                }
            }
        }

        /// A step forward after the last reading moves nothing: the reckoning is on our own clock.
        #[test]
        fn without_a_step_it_lags_by_the_quickest_answer(delays in prop::collection::vec(0..500u64, 1..20)) {
            let (mut clock, mut now) = (SteadyClock::default(), 0u64);
            for delay in &delays {
                clock.read(ms(now), ms(now + delay), now as i64 + 77);
                now += delay + 1;
            }
            let quickest = *delays.iter().min().unwrap() as i64;
            prop_assert_eq!(clock.now_ms(ms(now)), Some(now as i64 + 77 - quickest));
        }
    }
}
