//! Order of tasks, and delays between attempts.

use std::time::Duration;

use crate::Entropy;
use crate::port::{Backoff, PRIORITY_STEP_MS};

/// Position of a task in its queue; the lowest goes first. It is computed once, at submission: a waiting task gains on
/// later ones without any update, so no task starves.
///
/// ```
/// use tenure_core::rules::work::effective_at;
///
/// let normal = effective_at(600_000, 0);
/// assert!(effective_at(600_000 + 4 * 60_000, 5) < normal, "five points equal five minutes");
/// assert!(effective_at(600_000 + 6 * 60_000, 5) > normal);
/// ```
pub fn effective_at(enqueued_at_ms: i64, priority: i32) -> i64 {
    enqueued_at_ms.saturating_sub(i64::from(priority) * PRIORITY_STEP_MS)
}

/// Delay after attempt number `attempt` (from 1) failed. See [`Backoff`].
///
/// ```
/// use std::time::Duration;
/// use tenure_core::{SplitMix, port::Backoff, rules::work::backoff};
///
/// let third = backoff(Backoff { initial_ms: 1_000, max_ms: 60_000 }, 3, &mut SplitMix::new(1));
/// assert!(third >= Duration::from_millis(3_200) && third <= Duration::from_millis(4_800));
/// ```
pub fn backoff(backoff: Backoff, attempt: u32, entropy: &mut dyn Entropy) -> Duration {
    let doublings = attempt.saturating_sub(1).min(63);
    let base = u128::from(backoff.initial_ms) << doublings;
    let base = u64::try_from(base).unwrap_or(u64::MAX).min(backoff.max_ms);
    // A jitter of up to 20 % in both directions, so that tasks that failed together are not retried together.
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
        /// A task of priority p overtakes exactly the tasks of priority 0 that were submitted up to p minutes before
        /// it.
        #[test]
        fn a_point_of_priority_equals_a_minute(at in 0..4_000_000_000_000i64, ago in 0..10_000_000i64, p in -100..100i32) {
            let (first, second) = (effective_at(at - ago, 0), effective_at(at, p));
            prop_assert_eq!(second < first, ago < i64::from(p) * 60_000);
        }

        #[test]
        fn effective_at_never_overflows(at in any::<i64>(), p in any::<i32>()) {
            let _ = effective_at(at, p);
        }

        #[test]
        fn backoff_doubles_with_jitter_up_to_the_maximum(
            initial_ms in 0..u64::MAX / 4, max_ms in 0..u64::MAX / 4, attempt in any::<u32>(), seed in any::<u64>()
        ) {
            let wait = backoff(Backoff { initial_ms, max_ms }, attempt, &mut SplitMix::new(seed)).as_millis();
            let doubled = u128::from(initial_ms) << attempt.saturating_sub(1).min(63);
            let base = doubled.min(u128::from(max_ms));
            prop_assert!(wait >= base - base / 5 && wait <= base + base / 5);
        }
    }
}
