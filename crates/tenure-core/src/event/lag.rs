//! How far a group is behind.

use crate::port::SlotView;

/// How far a group is behind, over all of its slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lag {
    /// How many events are unread, at least.
    pub events: u64,
    /// Whether that is exact.
    pub exact: bool,
    /// For how long the oldest unread event has waited, in milliseconds.
    pub ms: u64,
    /// In how many slots there are unread events.
    pub slots: u32,
}

/// How far a group is behind, of its slots as people see them.
pub fn lag(slots: &[SlotView]) -> Lag {
    let none = Lag { exact: true, ..Lag::default() };
    slots.iter().fold(none, |sum, slot| Lag {
        events: sum.events.saturating_add(slot.lag),
        exact: sum.exact && slot.lag_exact,
        ms: sum.ms.max(slot.lag_ms),
        slots: sum.slots + u32::from(slot.lag > 0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Token;
    use crate::port::Share;

    #[test]
    fn the_oldest_event_of_all_slots_says_how_late_a_group_is() {
        let view = |slot, lag, lag_exact, lag_ms| SlotView {
            share: Share { slot, token: Token::ZERO, holder: None, last: String::new(), position: 0 },
            end: 9,
            lag,
            lag_exact,
            lag_ms,
        };
        assert_eq!(lag(&[]), Lag { events: 0, exact: true, ms: 0, slots: 0 });
        let slots = [view(0, 3, true, 50), view(1, 0, true, 0), view(2, 10_000, false, 20)];
        assert_eq!(lag(&slots), Lag { events: 10_003, exact: false, ms: 50, slots: 2 });
    }
}
