//! Estimate of the store's wall clock by a process with a steady clock.

use crate::BootInstant;

/// A lower bound of the store's wall clock that ignores forward steps since the first reading.
///
/// The store's clock determines when a claim times out. If that clock steps forward, claims would time out too early.
/// The maintenance leader therefore remembers the smallest lead of the store's clock over its own steady clock, and
/// derives from it a lower bound of the current store time. The store uses the lesser of this bound and its own clock
/// ([`MaintenanceRequest::clock_ms`]). A forward step then expires nothing early, even in combination with backward
/// steps. In return, claims made after a forward step time out later by the length of the step, while this process
/// leads maintenance.
///
/// ```
/// use tenure_core::{BootInstant, rules::work::StoreClockEstimate};
///
/// let at = |seconds: u64| BootInstant::from_nanos(seconds * 1_000_000_000);
/// let mut clock = StoreClockEstimate::default();
/// assert_eq!(clock.now_ms(at(0)), None);
/// clock.observe(at(0), at(0), 1_000_000);
/// assert_eq!(clock.now_ms(at(7)), Some(1_007_000));
/// clock.observe(at(10), at(10), 4_610_000); // a forward step of an hour
/// assert_eq!(clock.now_ms(at(10)), Some(1_010_000));
/// clock.observe(at(20), at(20), 960_000); // a backward step
/// assert_eq!(clock.now_ms(at(20)), Some(960_000));
/// ```
///
/// [`MaintenanceRequest::clock_ms`]: crate::port::MaintenanceRequest::clock_ms
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreClockEstimate {
    least: Option<ClockSkewBounds>,
}

/// Bounds of the smallest lead of the store's clock over ours, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClockSkewBounds {
    low: i64,
    high: i64,
}

impl StoreClockEstimate {
    /// Records the store's clock from the response to a call that was sent at `sent` and returned at `returned`.
    pub fn observe(&mut self, sent: BootInstant, returned: BootInstant, store_ms: i64) {
        // The store read its clock between the two instants.
        let (low, high) = (store_ms.saturating_sub(up_ms(returned)), store_ms.saturating_sub(down_ms(sent)));
        self.least = Some(match self.least {
            // The clock stepped forward. Times that were stored before the step refer to the old setting, so keep the
            // old bounds.
            Some(least) if low > least.high => least,
            // The clock may have the same setting. Fast responses narrow the bounds.
            Some(least) if high >= least.low => {
                ClockSkewBounds { low: least.low.max(low), high: least.high.min(high) }
            }
            // The first reading, or the clock stepped back.
            _ => ClockSkewBounds { low, high },
        });
    }

    /// Lower bound of the store's clock. `None` before the first reading.
    pub fn now_ms(&self, now: BootInstant) -> Option<i64> {
        self.least.map(|least| down_ms(now).saturating_add(least.low))
    }
}

/// Milliseconds, rounded down.
fn down_ms(moment: BootInstant) -> i64 {
    i64::try_from(moment.as_nanos() / 1_000_000).unwrap_or(i64::MAX)
}

/// Milliseconds, rounded up.
fn up_ms(moment: BootInstant) -> i64 {
    i64::try_from(moment.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(ms: u64) -> BootInstant {
        BootInstant::from_nanos(ms * 1_000_000)
    }

    proptest! {
        /// For arbitrary steps of the store's clock, a claim times out early by at most the duration of the slowest
        /// response.
        #[test]
        fn no_claim_times_out_early(
            steps in prop::collection::vec((1..10_000u64, -100_000..100_000i64, 0..50u64), 1..30),
            hold in 0..200_000i64,
        ) {
            let (mut clock, mut now, mut offset, mut slowest) = (StoreClockEstimate::default(), 0u64, 1_000_000i64, 0);
            let mut deadlines = Vec::new();
            for (pass, step, delay) in steps {
                now += pass;
                offset += step;
                // The store reads its clock now; the response arrives later.
                let store_ms = now as i64 + offset;
                deadlines.push((store_ms + hold, now as i64 + hold));
                clock.observe(ms(now), ms(now + delay), store_ms);
                now += delay;
                slowest = slowest.max(delay as i64);
                let estimated = clock.now_ms(ms(now)).unwrap();
                for (deadline_ms, actual_ms) in &deadlines {
                    prop_assert!(estimated < *deadline_ms || now as i64 >= *actual_ms - slowest);
                }
            }
        }

        /// A forward step after the last reading changes nothing, because the estimate advances with our own clock.
        #[test]
        fn without_a_step_the_estimate_lags_by_the_fastest_response(delays in prop::collection::vec(0..500u64, 1..20)) {
            let (mut clock, mut now) = (StoreClockEstimate::default(), 0u64);
            for delay in &delays {
                clock.observe(ms(now), ms(now + delay), now as i64 + 77);
                now += delay + 1;
            }
            let quickest = *delays.iter().min().unwrap() as i64;
            prop_assert_eq!(clock.now_ms(ms(now)), Some(now as i64 + 77 - quickest));
        }
    }
}
