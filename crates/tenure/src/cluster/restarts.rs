//! How soon a singleton that ended by itself is started again.

use std::time::Duration;

use tenure_core::Moment;

/// The first pause, doubled from run to run.
const FIRST: Duration = Duration::from_millis(100);

/// The longest.
const LONGEST: Duration = Duration::from_secs(30);

/// A run of this length is sound: whatever follows it is a first failure again.
const SOUND: Duration = Duration::from_secs(60);

/// After so many in a row another member is to try.
const IN_A_ROW: u32 = 5;

/// The runs that ended by themselves, lately.
#[derive(Debug, Default)]
pub(super) struct Restarts {
    in_a_row: u32,
}

impl Restarts {
    /// A run ended that began then. For how long to wait before the next.
    pub(super) fn ended(&mut self, began: Moment, now: Moment) -> Duration {
        if now.since(began) >= SOUND {
            self.in_a_row = 0;
        }
        self.in_a_row += 1;
        (FIRST * 2u32.saturating_pow(self.in_a_row - 1)).min(LONGEST)
    }

    /// Whether it ended so often that it may be this member's fault. Counts anew from here on.
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
    fn pauses_grow_until_a_run_was_sound() {
        let mut restarts = Restarts::default();
        let at = |seconds: u64| Moment::from_nanos(seconds * 1_000_000_000);
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
