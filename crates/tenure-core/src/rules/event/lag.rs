//! Lag of a group.

use crate::port::PartitionView;

/// Lag of a group over all its partitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lag {
    /// Number of unread events; a lower bound if not exact.
    pub events: u64,
    /// Whether the number is exact.
    pub exact: bool,
    /// Age of the oldest unread event, in milliseconds.
    pub ms: u64,
    /// Number of partitions with unread events.
    pub partitions: u32,
}

/// The lag of a group from the views of its partitions.
pub fn lag(partitions: &[PartitionView]) -> Lag {
    let none = Lag { exact: true, ..Lag::default() };
    partitions.iter().fold(none, |sum, partition| Lag {
        events: sum.events.saturating_add(partition.lag_events),
        exact: sum.exact && partition.lag_exact,
        ms: sum.ms.max(partition.lag_ms),
        partitions: sum.partitions + u32::from(partition.lag_events > 0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Token;
    use crate::port::PartitionLease;

    #[test]
    fn the_oldest_event_of_all_partitions_determines_the_lag() {
        let view = |partition, lag, lag_exact, lag_ms| PartitionView {
            partition_lease: PartitionLease {
                partition,
                token: Token::ZERO,
                holder: None,
                last_member: String::new(),
                committed_offset: 0,
            },
            end_offset: 9,
            lag_events: lag,
            lag_exact,
            lag_ms,
        };
        assert_eq!(lag(&[]), Lag { events: 0, exact: true, ms: 0, partitions: 0 });
        let partitions = [view(0, 3, true, 50), view(1, 0, true, 0), view(2, 10_000, false, 20)];
        assert_eq!(lag(&partitions), Lag { events: 10_003, exact: false, ms: 50, partitions: 2 });
    }
}
