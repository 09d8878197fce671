//! Backoff for singletons that end by themselves.

use std::time::Duration;

use tenure_core::BootInstant;

/// First delay. Each further short run doubles it.
const FIRST: Duration = Duration::from_millis(100);

/// Longest delay.
const LONGEST: Duration = Duration::from_secs(30);

/// A run of this length resets the backoff.
const SOUND: Duration = Duration::from_secs(60);

/// Number of consecutive short runs after which another member should try.
const IN_A_ROW: u32 = 5;

/// Recent runs that ended by themselves.
#[derive(Debug, Default)]
pub(super) struct Restarts {
    in_a_row: u32,
}

impl Restarts {
    /// Records the end of a run that started at `began`. Returns the delay before the next one.
    pub(super) fn ended(&mut self, began: BootInstant, now: BootInstant) -> Duration {
        if now.since(began) >= SOUND {
            self.in_a_row = 0;
        }
        self.in_a_row += 1;
        (FIRST * 2u32.saturating_pow(self.in_a_row - 1)).min(LONGEST)
    }

    /// Returns whether another member should run the singleton, because too many short runs ended here. If so,
    /// resets the count.
    pub(super) fn give_up(&mut self) -> bool {
        let often = self.in_a_row >= IN_A_ROW;
        if often {
            self.in_a_row = 0;
        }
        often
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_until_a_run_lasts_long_enough() {
        let mut restarts = Restarts::default();
        let at = |seconds: u64| BootInstant::from_nanos(seconds * 1_000_000_000);
        let pauses: Vec<u128> = (0..3).map(|_| restarts.ended(at(1), at(2)).as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400]);
        assert_eq!(restarts.ended(at(1), at(61)), FIRST);
        assert!(!restarts.give_up());
        for _ in 0..4 {
            restarts.ended(at(1), at(1));
        }
        assert!(restarts.give_up());
        assert!(!restarts.give_up());
        assert_eq!((0..40).map(|_| restarts.ended(at(1), at(1))).max(), Some(LONGEST));
    }
}
