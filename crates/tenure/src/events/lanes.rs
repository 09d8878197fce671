//! Which events go to the handler beside one another.
//!
//! Where there are enough slots, whole slots: then each says how far it is read with what was done, and nothing has to be marked.
//! Otherwise by key ([`lanes`]), and what is done of a slot before all of it is has to be marked.

use std::collections::BTreeMap;

use tenure_core::event::lanes;
use tenure_core::port::{Event, EventId, Position};

/// An event, and where it lies.
pub(super) type Mark = (EventId, Position);

/// Events that are handled together, and of which slots they are all.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) events: Vec<Event>,
    whole: Vec<u32>,
}

impl Part {
    /// Its slots, their events and where those lie, and whether they are all that there are.
    pub(super) fn slots(&self) -> Vec<(u32, Vec<Mark>, bool)> {
        let mut slots: BTreeMap<u32, Vec<Mark>> = BTreeMap::new();
        for event in &self.events {
            slots.entry(event.slot).or_default().push((event.id, event.position));
        }
        slots.into_iter().map(|(slot, events)| (slot, events, self.whole.contains(&slot))).collect()
    }
}

/// Splits events into at most `most` parts. What shares a key shares a part, and stays in order.
pub(super) fn split(events: Vec<Event>, most: usize) -> Vec<Part> {
    let mut slots: BTreeMap<u32, usize> = BTreeMap::new();
    for event in &events {
        *slots.entry(event.slot).or_default() += 1;
    }
    if events.is_empty() {
        return Vec::new();
    }
    if most <= 1 {
        return vec![Part { events, whole: slots.into_keys().collect() }];
    }
    if slots.len() >= most {
        return by_slot(events, &slots, most);
    }
    let lanes = lanes(&events, most);
    let mut events: Vec<Option<Event>> = events.into_iter().map(Some).collect();
    let take = |lane: Vec<usize>| -> Part {
        let events: Vec<Event> = lane.into_iter().filter_map(|place| events[place].take()).collect();
        let count = |slot: u32| events.iter().filter(|event| event.slot == slot).count();
        let whole =
            slots.iter().filter(|(slot, all)| count(**slot) == **all).map(|(slot, _)| *slot).collect();
        Part { events, whole }
    };
    lanes.into_iter().map(take).collect()
}

fn by_slot(events: Vec<Event>, slots: &BTreeMap<u32, usize>, most: usize) -> Vec<Part> {
    let mut order: Vec<(usize, u32)> = slots.iter().map(|(slot, count)| (*count, *slot)).collect();
    order.sort_by_key(|(count, slot)| (std::cmp::Reverse(*count), *slot));
    let mut parts: Vec<(usize, Part)> =
        (0..most).map(|_| (0, Part { events: Vec::new(), whole: Vec::new() })).collect();
    let mut homes: BTreeMap<u32, usize> = BTreeMap::new();
    for (count, slot) in order {
        // There are `most`, which is at least one.
        let Some((place, (sum, part))) = parts.iter_mut().enumerate().min_by_key(|(_, (sum, _))| *sum) else {
            continue;
        };
        *sum += count;
        part.whole.push(slot);
        homes.insert(slot, place);
    }
    for event in events {
        if let Some(place) = homes.get(&event.slot) {
            parts[*place].1.events.push(event);
        }
    }
    parts.into_iter().map(|(_, part)| part).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use proptest::prelude::*;
    use tenure_core::port::Payload;

    use super::*;

    fn events() -> impl Strategy<Value = Vec<Event>> {
        prop::collection::vec((0..6u32, 0..8u8), 0..80).prop_map(|drafts| {
            let event = |(id, (slot, key)): (usize, (u32, u8))| Event {
                id: EventId(id as u64),
                slot,
                position: id as u64,
                key: (key > 0).then(|| format!("{slot}/{key}")),
                kind: "k".into(),
                payload: Payload::default(),
                headers: Default::default(),
                leader_token: None,
                at_ms: 0,
            };
            drafts.into_iter().enumerate().map(event).collect()
        })
    }

    proptest! {
        #[test]
        fn every_event_is_in_one_part_with_its_key_and_in_order(events in events(), most in 1..8usize) {
            let parts = split(events.clone(), most);
            prop_assert!(parts.len() <= most && parts.iter().all(|part| !part.events.is_empty()));
            let ids: HashSet<EventId> = parts.iter().flat_map(|part| &part.events).map(|event| event.id).collect();
            prop_assert_eq!(ids.len(), events.len());
            prop_assert_eq!(parts.iter().map(|part| part.events.len()).sum::<usize>(), events.len());
            let mut homes: HashMap<&str, usize> = HashMap::new();
            for (n, part) in parts.iter().enumerate() {
                prop_assert!(part.events.is_sorted_by_key(|event| event.id));
                for key in part.events.iter().filter_map(|event| event.key.as_deref()) {
                    prop_assert_eq!(*homes.entry(key).or_insert(n), n);
                }
            }
        }

        #[test]
        fn a_slot_is_whole_where_all_of_it_is(events in events(), most in 1..8usize) {
            let mut all: HashMap<u32, usize> = HashMap::new();
            events.iter().for_each(|event| *all.entry(event.slot).or_default() += 1);
            for part in split(events, most) {
                for (slot, ids, whole) in part.slots() {
                    prop_assert_eq!(whole, ids.len() == all[&slot]);
                }
            }
        }
    }
}
