//! The parked keys of a partition: the first event of each key, and when it is due.
//!
//! There may be very many parked keys, for example while a receiver is unavailable. So an event is found by its
//! identifier, and the next due event without a scan.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tenure_core::BootInstant;
use tenure_core::port::{EventId, ParkedKey};

/// The first event of a parked key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ParkedKeyRetry {
    pub(super) key: Option<String>,
    pub(super) event: EventId,
    /// When it is retried; `None` for a dead letter.
    pub(super) due: Option<BootInstant>,
}

#[derive(Debug, Default)]
pub(super) struct ParkedKeyQueue {
    all: HashMap<EventId, ParkedKeyRetry>,
    due: BTreeSet<(BootInstant, EventId)>,
}

impl ParkedKeyQueue {
    /// Builds the queue from the parked keys that the store returned.
    pub(super) fn of(parked: &[ParkedKey], now: BootInstant) -> ParkedKeyQueue {
        let mut queue = ParkedKeyQueue::default();
        for it in parked {
            let due = it.retry_in_ms.map(|in_ms| now + Duration::from_millis(in_ms));
            queue.add(ParkedKeyRetry { key: it.key.clone(), event: it.event_id, due });
        }
        queue
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Adds an event, or changes its due time.
    pub(super) fn add(&mut self, waiting: ParkedKeyRetry) {
        self.remove(waiting.event);
        self.due.extend(waiting.due.map(|due| (due, waiting.event)));
        self.all.insert(waiting.event, waiting);
    }

    pub(super) fn remove(&mut self, event: EventId) {
        if let Some(ParkedKeyRetry { due: Some(due), .. }) = self.all.remove(&event) {
            self.due.remove(&(due, event));
        }
    }

    /// Delays an event, unless it is a dead letter.
    pub(super) fn postpone(&mut self, event: EventId, until: BootInstant) {
        if let Some(waiting) = self.all.get(&event).filter(|waiting| waiting.due.is_some()).cloned() {
            self.add(ParkedKeyRetry { due: Some(until), ..waiting });
        }
    }

    /// The event that is due first.
    pub(super) fn next(&self) -> Option<(BootInstant, &ParkedKeyRetry)> {
        let (due, event) = self.due.first()?;
        Some((*due, self.all.get(event)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(event: u64, due: Option<BootInstant>) -> ParkedKeyRetry {
        ParkedKeyRetry { key: Some(format!("k{event}")), event: EventId(event), due }
    }

    #[test]
    fn the_next_retry_is_the_one_due_first_and_never_a_dead_letter() {
        let start = crate::runtime::now();
        let at = |ms| Some(start + Duration::from_millis(ms));
        let mut queue = ParkedKeyQueue::default();
        for (event, due) in [(1, at(30)), (2, at(10)), (3, None), (4, at(20))] {
            queue.add(waiting(event, due));
        }
        let next = |queue: &ParkedKeyQueue| queue.next().map(|(_, waiting)| waiting.event.0);
        assert_eq!(next(&queue), Some(2));
        queue.postpone(EventId(2), start + Duration::from_millis(40));
        queue.postpone(EventId(3), start);
        assert_eq!(next(&queue), Some(4), "a dead letter stays dead");
        queue.remove(EventId(4));
        assert_eq!(next(&queue), Some(1));
        queue.add(waiting(1, None));
        assert_eq!(next(&queue), Some(2));
        [1, 2, 3].into_iter().for_each(|event| queue.remove(EventId(event)));
        assert!(queue.is_empty() && next(&queue).is_none());
    }
}
