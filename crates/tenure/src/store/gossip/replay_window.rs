//! Replay protection by sequence numbers.

/// How far behind the newest number a datagram may arrive.
const WIDTH: u64 = 1024;

/// Received numbers of one sender. Accepts each number once, and rejects numbers that are too old to be remembered.
#[derive(Clone, Debug)]
pub(super) struct Window {
    newest: u64,
    seen: [u64; (WIDTH / 64) as usize],
}

impl Window {
    pub(super) fn new() -> Self {
        Window { newest: 0, seen: [0; (WIDTH / 64) as usize] }
    }

    /// Whether this number is received for the first time. Numbers start at 1.
    pub(super) fn admit(&mut self, number: u64) -> bool {
        if number == 0 || self.newest.saturating_sub(number) >= WIDTH {
            return false;
        }
        if number > self.newest {
            // Clear the bits of the skipped numbers; at most the whole window.
            for skipped in (self.newest + 1..=number).rev().take(WIDTH as usize) {
                self.seen[word(skipped)] &= !bit(skipped);
            }
            self.newest = number;
        }
        let fresh = self.seen[word(number)] & bit(number) == 0;
        self.seen[word(number)] |= bit(number);
        fresh
    }
}

fn word(number: u64) -> usize {
    ((number % WIDTH) / 64) as usize
}

fn bit(number: u64) -> u64 {
    1 << (number % 64)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_number_is_admitted_once_in_any_order() {
        let mut window = Window::new();
        assert!(window.admit(5) && window.admit(3) && window.admit(4));
        assert!(!window.admit(5) && !window.admit(3) && !window.admit(0));
    }

    #[test]
    fn a_number_below_the_window_is_rejected() {
        let mut window = Window::new();
        assert!(window.admit(WIDTH + 10));
        assert!(!window.admit(10) && window.admit(11));
        assert!(window.admit(u64::MAX) && !window.admit(WIDTH + 10));
        assert!(!window.admit(u64::MAX) && window.admit(u64::MAX - 1));
    }

    proptest! {
        #[test]
        fn the_window_accepts_the_same_numbers_as_a_set(
            numbers in prop::collection::vec(1u64..5000, 1..400)
        ) {
            let (mut window, mut seen, mut newest) = (Window::new(), HashSet::new(), 0);
            for number in numbers {
                let old = number + WIDTH <= newest;
                prop_assert_eq!(window.admit(number), !old && seen.insert(number));
                newest = newest.max(number);
            }
        }
    }
}
