//! What becomes of an event that failed.

use crate::Entropy;
use crate::claim::{backoff, clip, span_ms};
use crate::port::{Aside, GroupSettings};

/// What becomes of an event that was tried `attempts` times before, and failed again: tried once more after a while, or dead.
/// What went wrong is told in part, if it is long.
///
/// ```
/// use tenure_core::SplitMix;
/// use tenure_core::event::after_failure;
/// use tenure_core::port::{Aside, GroupSettings};
///
/// let (settings, mut dice) = (GroupSettings { max_attempts: 2, ..GroupSettings::default() }, SplitMix::new(1));
/// assert!(matches!(after_failure(&settings, 0, "boom", &mut dice), Aside::Retry { attempts: 1, .. }));
/// assert_eq!(after_failure(&settings, 1, "boom", &mut dice), Aside::Dead { attempts: 2, error: "boom".into() });
/// ```
pub fn after_failure(
    settings: &GroupSettings,
    attempts: u32,
    error: &str,
    entropy: &mut dyn Entropy,
) -> Aside {
    let (attempts, error) = (attempts.saturating_add(1), clip(error));
    if attempts >= settings.max_attempts {
        return Aside::Dead { attempts, error };
    }
    Aside::Retry { attempts, after_ms: span_ms(backoff(settings.backoff, attempts, entropy)), error }
}

/// Whether an error of PostgreSQL, by its `SQLSTATE`, says nothing about the event: others were in the way, or the server was. What
/// failed so is tried again in place, without end; it is not counted, and never dead.
///
/// ```
/// use tenure_core::event::is_transient;
///
/// assert!(is_transient("40P01"), "a deadlock");
/// assert!(is_transient("08006"), "a lost connection");
/// assert!(!is_transient("23505"), "a unique key that is there already");
/// ```
pub fn is_transient(sqlstate: &str) -> bool {
    // Serialization, deadlock; a lock, statement or transaction that took too long; shut down, or not yet up; no longer a primary.
    const CODES: [&str; 12] = [
        "40001", "40P01", "55P03", "57014", "57P01", "57P02", "57P03", "57P05", "25P03", "25P04", "25006",
        "40003",
    ];
    // Connections; no room for one more; input and output.
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
        fn an_event_is_tried_as_often_as_the_group_says_and_waits_longer_each_time(
            max_attempts in 1..40u32, first_ms in 0..100_000u64, more_ms in 0..10_000_000u64, seed in any::<u64>()
        ) {
            let most_ms = first_ms + more_ms;
            let settings = GroupSettings { max_attempts, backoff: Backoff { first_ms, most_ms } };
            let mut dice = SplitMix::new(seed);
            let mut tried = 0;
            loop {
                match after_failure(&settings, tried, "no", &mut dice) {
                    Aside::Retry { attempts, after_ms, .. } => {
                        prop_assert_eq!(attempts, tried + 1);
                        let base = (u128::from(first_ms) << (attempts - 1)).min(u128::from(most_ms));
                        prop_assert!(u128::from(after_ms) >= base - base / 5);
                        prop_assert!(u128::from(after_ms) <= base + base / 5);
                        tried = attempts;
                    }
                    Aside::Dead { attempts, .. } => {
                        prop_assert_eq!(attempts, max_attempts);
                        break;
                    }
                    other => prop_assert!(false, "{:?}", other),
                }
            }
        }
    }

    #[test]
    fn an_event_that_was_tried_too_often_already_is_dead() {
        let settings = GroupSettings { max_attempts: 3, ..GroupSettings::default() };
        let dead = |attempts| Aside::Dead { attempts, error: "e".into() };
        assert_eq!(after_failure(&settings, 7, "e", &mut SplitMix::new(1)), dead(8));
        assert_eq!(after_failure(&settings, u32::MAX, "e", &mut SplitMix::new(1)), dead(u32::MAX));
    }

    #[test]
    fn what_went_wrong_is_told_in_part_if_it_is_long() {
        let settings = GroupSettings { max_attempts: 1, ..GroupSettings::default() };
        let Aside::Dead { error, .. } =
            after_failure(&settings, 0, &"x\0".repeat(9_000), &mut SplitMix::new(1))
        else {
            panic!("it is dead")
        };
        assert!(!error.contains('\0') && error.len() < 20_000);
    }

    #[test]
    fn what_is_wrong_with_the_event_is_not_transient() {
        for code in ["22P02", "23505", "23503", "42P01", "P0001", "XX000", "", "08"] {
            assert!(!is_transient(code), "{code}");
        }
        for code in ["40001", "40P01", "55P03", "57014", "57P01", "08006", "53300", "25P03"] {
            assert!(is_transient(code), "{code}");
        }
    }
}
