//! Splitting read events for delivery.

use std::collections::{HashMap, HashSet};

use crate::port::{Event, EventId, ParkedKey};

/// The commit batches among these events, in read order: slices with the same partition and offset.
///
/// A failed batch is retried commit batch by commit batch, and a failed commit batch event by event.
pub fn commit_batches(events: &[Event]) -> impl Iterator<Item = &[Event]> {
    events.chunk_by(|a, b| (a.partition, a.offset) == (b.partition, b.offset))
}

/// Splits events into at most `most` lists that can be processed in parallel. Events of one key stay in one list and
/// in order; events without a key go to the shortest list. Returns indexes of events; no list is empty.
///
/// ```
/// use tenure_core::rules::event::split_by_key;
/// # use tenure_core::port::{Event, EventId, Payload};
/// # let event = |id: u64, key: &str| Event { id: EventId(id), partition: 0, offset: id, key: Some(key.into()), event_type: String::new(),
/// #     payload: Payload::default(), headers: Default::default(), leader_token: None, published_at_ms: 0 };
/// let read = [event(1, "a"), event(2, "b"), event(3, "a"), event(4, "c")];
/// assert_eq!(split_by_key(&read, 2), [vec![0, 2], vec![1, 3]]);
/// ```
pub fn split_by_key(events: &[Event], most: usize) -> Vec<Vec<usize>> {
    // Assign the most frequent keys first, so that the lists have about the same length. Keep the read order within a
    // list.
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut by_key: HashMap<(u32, &str), usize> = HashMap::new();
    for (index, event) in events.iter().enumerate() {
        let known =
            event.key.as_deref().map(|key| *by_key.entry((event.partition, key)).or_insert(groups.len()));
        match known {
            Some(group) if group < groups.len() => groups[group].push(index),
            _ => groups.push(vec![index]),
        }
    }
    let mut order: Vec<usize> = (0..groups.len()).collect();
    order.sort_by_key(|group| (std::cmp::Reverse(groups[*group].len()), *group));
    let mut lanes: Vec<Vec<usize>> = vec![Vec::new(); most.max(1).min(groups.len())];
    for group in order {
        if let Some(lane) = lanes.iter_mut().min_by_key(|lane| lane.len()) {
            lane.append(&mut groups[group]);
        }
    }
    lanes.iter_mut().for_each(|lane| lane.sort_unstable());
    lanes
}

/// The parked keys of a partition: those that the store returned, and those parked since.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParkedKeys {
    keys: HashSet<String>,
}

impl ParkedKeys {
    /// Creates the set from the parked keys that a store returned.
    pub fn of(parked: &[ParkedKey]) -> ParkedKeys {
        ParkedKeys { keys: parked.iter().filter_map(|parked| parked.key.clone()).collect() }
    }

    /// Whether no key is parked.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Whether this event must wait behind a parked one. An event without a key never does.
    pub fn has(&self, event: &Event) -> bool {
        event.key.as_ref().is_some_and(|key| self.keys.contains(key))
    }

    /// Records that this event is parked; later events of its key follow it.
    pub fn add(&mut self, event: &Event) {
        self.keys.extend(event.key.clone());
    }

    /// Records that no event of this key is parked any more.
    pub fn remove(&mut self, key: &str) {
        self.keys.remove(key);
    }
}

/// Read events, split by what to do with them. Indexes of the events, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeliveryPlan {
    /// Events to deliver.
    pub deliver: Vec<usize>,
    /// Events to park behind others of their key.
    pub park: Vec<usize>,
    /// Events that an earlier member already processed.
    pub done: Vec<usize>,
}

/// Splits the events read from one partition.
pub fn plan_delivery(events: &[Event], parked: &ParkedKeys, done: &HashSet<EventId>) -> DeliveryPlan {
    let mut sorted = DeliveryPlan::default();
    for (index, event) in events.iter().enumerate() {
        // Check processed events first: an event that was processed before its key was parked must not be delivered
        // again.
        let list = match (done.contains(&event.id), parked.has(event)) {
            (true, _) => &mut sorted.done,
            (false, true) => &mut sorted.park,
            (false, false) => &mut sorted.deliver,
        };
        list.push(index);
    }
    sorted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::port::Payload;

    fn event(id: u64, offset: u64, key: Option<&str>) -> Event {
        Event {
            id: EventId(id),
            partition: 0,
            offset,
            key: key.map(Into::into),
            event_type: "k".into(),
            payload: Payload::default(),
            headers: Default::default(),
            leader_token: None,
            published_at_ms: 0,
        }
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        prop::collection::vec((0..9u8, any::<bool>()), 0..60).prop_map(|drafts| {
            let mut offset = 1;
            let number = |(id, (key, next)): (usize, (u8, bool))| {
                offset += u64::from(next);
                let key = (key > 0).then(|| format!("k{key}"));
                event(id as u64 + 1, offset, key.as_deref())
            };
            drafts.into_iter().enumerate().map(number).collect()
        })
    }

    proptest! {
        #[test]
        fn commit_batches_cover_all_events(events in events()) {
            let parts: Vec<&[Event]> = commit_batches(&events).collect();
            prop_assert_eq!(parts.concat(), events.clone());
            for pair in parts.windows(2) {
                prop_assert!(pair[0][0].offset != pair[1][0].offset);
            }
            for part in parts {
                prop_assert!(part.iter().all(|event| event.offset == part[0].offset));
            }
        }

        #[test]
        fn parallel_lists_keep_keys_together_and_in_order(events in events(), most in 0..9usize) {
            let lanes = split_by_key(&events, most);
            prop_assert!(lanes.len() <= most.max(1) && lanes.iter().all(|lane| !lane.is_empty()));
            let mut all: Vec<usize> = lanes.concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..events.len()).collect::<Vec<_>>());
            let mut homes: HashMap<&str, usize> = HashMap::new();
            for (n, lane) in lanes.iter().enumerate() {
                prop_assert!(lane.is_sorted());
                for key in lane.iter().filter_map(|index| events[*index].key.as_deref()) {
                    prop_assert_eq!(*homes.entry(key).or_insert(n), n);
                }
            }
            // No list exceeds another by more than the events of the most frequent key.
            let longest = homes.keys().map(|key| events.iter().filter(|e| e.key.as_deref() == Some(key)).count());
            let (longest, lens) = (longest.max().unwrap_or(1), lanes.iter().map(Vec::len));
            if let (Some(max), Some(min)) = (lens.clone().max(), lens.min()) {
                prop_assert!(max - min <= longest);
            }
        }

        #[test]
        fn a_delivery_plan_covers_each_event_once(
            events in events(), parked in prop::collection::hash_set(1..9u8, 0..4), done in prop::collection::hash_set(1..60u64, 0..9)
        ) {
            let mut keys = ParkedKeys::default();
            for key in &parked {
                keys.add(&event(0, 0, Some(&format!("k{key}"))));
            }
            let done: HashSet<EventId> = done.into_iter().map(EventId).collect();
            let sorted = plan_delivery(&events, &keys, &done);
            let mut all = [sorted.deliver.clone(), sorted.park.clone(), sorted.done.clone()].concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..events.len()).collect::<Vec<_>>());
            let waits = |index: &usize| events[*index].key.as_deref().is_some_and(|key| parked.iter().any(|it| key == format!("k{it}")));
            prop_assert!(sorted.deliver.iter().all(|index| !waits(index) && !done.contains(&events[*index].id)));
            prop_assert!(sorted.park.iter().all(|index| waits(index) && !done.contains(&events[*index].id)));
            prop_assert!(sorted.done.iter().all(|index| done.contains(&events[*index].id)));
        }
    }

    #[test]
    fn an_event_without_a_key_never_waits() {
        let parked = |key: Option<&str>| ParkedKey {
            key: key.map(Into::into),
            event_id: EventId(1),
            attempts: 1,
            retry_in_ms: None,
        };
        let mut parked = ParkedKeys::of(&[parked(None), parked(Some("a"))]);
        assert!(!parked.has(&event(2, 2, None)));
        assert!(parked.has(&event(2, 2, Some("a"))));
        parked.add(&event(3, 3, None));
        assert!(!parked.has(&event(4, 4, None)));
        parked.remove("a");
        assert!(parked.is_empty() && !parked.has(&event(2, 2, Some("a"))));
    }
}
