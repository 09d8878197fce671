//! Retries of failed events.

use crate::Entropy;
use crate::port::{GroupSettings, ParkedEventState};
use crate::rules::work::{backoff, bounded_ms, clip};

/// The new state of an event that failed again after `attempts` earlier attempts: retry after a backoff, or dead
/// letter. A long error text is shortened.
///
/// ```
/// use tenure_core::SplitMix;
/// use tenure_core::rules::event::after_failure;
/// use tenure_core::port::{GroupSettings, ParkedEventState};
///
/// let (settings, mut dice) = (GroupSettings { max_attempts: 2, ..GroupSettings::default() }, SplitMix::new(1));
/// assert!(matches!(after_failure(&settings, 0, "boom", &mut dice), ParkedEventState::Retry { attempts: 1, .. }));
/// assert_eq!(after_failure(&settings, 1, "boom", &mut dice), ParkedEventState::Dead { attempts: 2, error: "boom".into() });
/// ```
pub fn after_failure(
    settings: &GroupSettings,
    attempts: u32,
    error: &str,
    entropy: &mut dyn Entropy,
) -> ParkedEventState {
    let (attempts, error) = (attempts.saturating_add(1), clip(error));
    if attempts >= settings.max_attempts {
        return ParkedEventState::Dead { attempts, error };
    }
    ParkedEventState::Retry {
        attempts,
        retry_in_ms: bounded_ms(backoff(settings.backoff, attempts, entropy)),
        error,
    }
}

/// Whether a PostgreSQL error, by its `SQLSTATE`, is caused by other transactions or by the server and not by the
/// event. Such a failure is retried in place without limit; it does not count as an attempt and never produces a dead
/// letter.
///
/// ```
/// use tenure_core::rules::event::is_transient;
///
/// assert!(is_transient("40P01"), "a deadlock");
/// assert!(is_transient("08006"), "a lost connection");
/// assert!(!is_transient("23505"), "a unique key that already exists");
/// ```
pub fn is_transient(sqlstate: &str) -> bool {
    // Serialization failure, deadlock; timeout of a lock, statement or transaction; server shutting down, starting,
    // or no longer primary.
    const CODES: [&str; 12] = [
        "40001", "40P01", "55P03", "57014", "57P01", "57P02", "57P03", "57P05", "25P03", "25P04", "25006",
        "40003",
    ];
    // Connection errors, too many connections, I/O errors.
    const CLASSES: [&str; 3] = ["08", "53", "58"];
    CODES.contains(&sqlstate)
        || CLASSES.iter().any(|class| sqlstate.len() == 5 && sqlstate.starts_with(class))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::SplitMix;
    use crate::port::Backoff;

    proptest! {
        #[test]
        fn an_event_is_retried_up_to_the_maximum_with_growing_backoff(
            max_attempts in 1..40u32, initial_ms in 0..100_000u64, more_ms in 0..10_000_000u64, seed in any::<u64>()
        ) {
            let max_ms = initial_ms + more_ms;
            let settings = GroupSettings { max_attempts, backoff: Backoff { initial_ms, max_ms } };
            let mut rng = SplitMix::new(seed);
            let mut tried = 0;
            loop {
                match after_failure(&settings, tried, "no", &mut rng) {
                    ParkedEventState::Retry { attempts, retry_in_ms, .. } => {
                        prop_assert_eq!(attempts, tried + 1);
                        let base = (u128::from(initial_ms) << (attempts - 1)).min(u128::from(max_ms));
                        prop_assert!(u128::from(retry_in_ms) >= base - base / 5);
                        prop_assert!(u128::from(retry_in_ms) <= base + base / 5);
                        tried = attempts;
                    }
                    ParkedEventState::Dead { attempts, .. } => {
                        prop_assert_eq!(attempts, max_attempts);
                        break;
                    }
                    other => prop_assert!(false, "{:?}", other),
                }
            }
        }
    }

    #[test]
    fn an_event_beyond_the_maximum_attempts_is_dead() {
        let settings = GroupSettings { max_attempts: 3, ..GroupSettings::default() };
        let dead = |attempts| ParkedEventState::Dead { attempts, error: "e".into() };
        assert_eq!(after_failure(&settings, 7, "e", &mut SplitMix::new(1)), dead(8));
        assert_eq!(after_failure(&settings, u32::MAX, "e", &mut SplitMix::new(1)), dead(u32::MAX));
    }

    #[test]
    fn a_long_error_is_shortened() {
        let settings = GroupSettings { max_attempts: 1, ..GroupSettings::default() };
        let ParkedEventState::Dead { error, .. } =
            after_failure(&settings, 0, &"x\0".repeat(9_000), &mut SplitMix::new(1))
        else {
            panic!("it is a dead letter")
        };
        assert!(!error.contains('\0') && error.len() < 20_000);
    }

    #[test]
    fn errors_of_the_event_are_not_transient() {
        for code in ["22P02", "23505", "23503", "42P01", "P0001", "XX000", "", "08"] {
            assert!(!is_transient(code), "{code}");
        }
        for code in ["40001", "40P01", "55P03", "57014", "57P01", "08006", "53300", "25P03"] {
            assert!(is_transient(code), "{code}");
        }
    }
}
