//! When it is a task's turn: for the first time, and again after a failure.

use std::time::Duration;

use crate::Entropy;
use crate::port::{Backoff, PRIORITY_STEP_MS};

/// A task's place in its queue: the earlier, the sooner. Computed once, when it is submitted: who waits gains on who comes
/// later by itself, so that nobody starves, and nothing needs to be updated.
///
/// ```
/// use tenure_core::claim::effective_at;
///
/// let ordinary = effective_at(600_000, 0);
/// assert!(effective_at(600_000 + 4 * 60_000, 5) < ordinary, "five points are worth five minutes");
/// assert!(effective_at(600_000 + 6 * 60_000, 5) > ordinary);
/// ```
pub fn effective_at(enqueued_at_ms: i64, priority: i32) -> i64 {
    enqueued_at_ms.saturating_sub(i64::from(priority) * PRIORITY_STEP_MS)
}

/// How long to wait after attempt number `attempt` (from 1) failed: see [`Backoff`].
///
/// ```
/// use std::time::Duration;
/// use tenure_core::{SplitMix, claim::backoff, port::Backoff};
///
/// let third = backoff(Backoff { first_ms: 1_000, most_ms: 60_000 }, 3, &mut SplitMix::new(1));
/// assert!(third >= Duration::from_millis(3_200) && third <= Duration::from_millis(4_800));
/// ```
pub fn backoff(backoff: Backoff, attempt: u32, entropy: &mut dyn Entropy) -> Duration {
    let doublings = attempt.saturating_sub(1).min(63);
    let base = u128::from(backoff.first_ms) << doublings;
    let base = u64::try_from(base).unwrap_or(u64::MAX).min(backoff.most_ms);
    // Up to a fifth less, or a fifth more: those that failed together do not come back together.
    let fifth = base / 5;
    let spread = entropy.next_u64() % (2 * fifth + 1);
    Duration::from_millis((base - fifth).saturating_add(spread))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::SplitMix;

    proptest! {
        /// A task of priority p overtakes exactly those of priority 0 that were submitted up to p minutes before it.
        #[test]
        fn a_point_of_priority_is_a_minute(at in 0..4_000_000_000_000i64, ago in 0..10_000_000i64, p in -100..100i32) {
            let (first, second) = (effective_at(at - ago, 0), effective_at(at, p));
            prop_assert_eq!(second < first, ago < i64::from(p) * 60_000);
        }

        #[test]
        fn effective_at_never_overflows(at in any::<i64>(), p in any::<i32>()) {
            let _ = effective_at(at, p);
        }

        #[test]
        fn backoff_doubles_within_a_fifth_and_never_passes_the_most(
            first_ms in 0..u64::MAX / 4, most_ms in 0..u64::MAX / 4, attempt in any::<u32>(), seed in any::<u64>()
        ) {
            let wait = backoff(Backoff { first_ms, most_ms }, attempt, &mut SplitMix::new(seed)).as_millis();
            let doubled = u128::from(first_ms) << attempt.saturating_sub(1).min(63);
            let base = doubled.min(u128::from(most_ms));
            prop_assert!(wait >= base - base / 5 && wait <= base + base / 5);
        }
    }
}
