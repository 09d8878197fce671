//! What is aside in a slot, as its holder knows it: the first event of each key, and when it is to be tried.
//!
//! There may be very many: a receiver that is away fails for every key. So each is found by its number, and the one that is due next
//! without a look at the others.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tenure_core::Moment;
use tenure_core::port::{AsideKey, EventId};

/// The first event of a key that is aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) key: Option<String>,
    pub(super) event: EventId,
    /// When it is to be tried; `None`: it is dead.
    pub(super) due: Option<Moment>,
}

#[derive(Debug, Default)]
pub(super) struct Waits {
    all: HashMap<EventId, Waiting>,
    due: BTreeSet<(Moment, EventId)>,
}

impl Waits {
    /// As a store tells it.
    pub(super) fn of(aside: &[AsideKey], now: Moment) -> Waits {
        let mut waits = Waits::default();
        for it in aside {
            let due = it.due_in_ms.map(|in_ms| now + Duration::from_millis(in_ms));
            waits.add(Waiting { key: it.key.clone(), event: it.event, due });
        }
        waits
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// One more; or the same, which is due at another time.
    pub(super) fn add(&mut self, waiting: Waiting) {
        self.remove(waiting.event);
        self.due.extend(waiting.due.map(|due| (due, waiting.event)));
        self.all.insert(waiting.event, waiting);
    }

    pub(super) fn remove(&mut self, event: EventId) {
        if let Some(Waiting { due: Some(due), .. }) = self.all.remove(&event) {
            self.due.remove(&(due, event));
        }
    }

    /// It is not to be tried before this, unless it is dead.
    pub(super) fn put_off(&mut self, event: EventId, until: Moment) {
        if let Some(waiting) = self.all.get(&event).filter(|waiting| waiting.due.is_some()).cloned() {
            self.add(Waiting { due: Some(until), ..waiting });
        }
    }

    /// The one that is due first.
    pub(super) fn next(&self) -> Option<(Moment, &Waiting)> {
        let (due, event) = self.due.first()?;
        Some((*due, self.all.get(event)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(event: u64, due: Option<Moment>) -> Waiting {
        Waiting { key: Some(format!("k{event}")), event: EventId(event), due }
    }

    #[test]
    fn the_next_is_the_one_that_is_due_first_and_the_dead_never_are() {
        let start = crate::runtime::now();
        let at = |ms| Some(start + Duration::from_millis(ms));
        let mut waits = Waits::default();
        for (event, due) in [(1, at(30)), (2, at(10)), (3, None), (4, at(20))] {
            waits.add(waiting(event, due));
        }
        let next = |waits: &Waits| waits.next().map(|(_, waiting)| waiting.event.0);
        assert_eq!(next(&waits), Some(2));
        waits.put_off(EventId(2), start + Duration::from_millis(40));
        waits.put_off(EventId(3), start);
        assert_eq!(next(&waits), Some(4), "what is dead is not put off, but dead");
        waits.remove(EventId(4));
        assert_eq!(next(&waits), Some(1));
        waits.add(waiting(1, None));
        assert_eq!(next(&waits), Some(2));
        [1, 2, 3].into_iter().for_each(|event| waits.remove(EventId(event)));
        assert!(waits.is_empty() && next(&waits).is_none());
    }
}
