//! Splits events for concurrent handler calls.
//!
//! With enough partitions, each call gets whole partitions, and one commit of the offset covers its events.
//! Otherwise events are split by key ([`split_by_key`]), and events of a partition that finish before the rest
//! must be marked as processed.

use std::collections::BTreeMap;

use tenure_core::port::{Event, EventId, Offset};
use tenure_core::rules::event::split_by_key;

/// An event and its offset.
pub(super) type EventOffset = (EventId, Offset);

/// Events of one handler call, and the partitions whose events are all in this call.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ParallelPart {
    pub(super) events: Vec<Event>,
    complete: Vec<u32>,
}

impl ParallelPart {
    /// Returns the partitions, each with its events and whether all events of the partition are in this call.
    pub(super) fn partitions(&self) -> Vec<(u32, Vec<EventOffset>, bool)> {
        let mut partitions: BTreeMap<u32, Vec<EventOffset>> = BTreeMap::new();
        for event in &self.events {
            partitions.entry(event.partition).or_default().push((event.id, event.offset));
        }
        partitions
            .into_iter()
            .map(|(partition, events)| (partition, events, self.complete.contains(&partition)))
            .collect()
    }
}

/// Splits events into at most `most` parts. Events of one key stay in one part, in order.
pub(super) fn split(events: Vec<Event>, most: usize) -> Vec<ParallelPart> {
    let mut partitions: BTreeMap<u32, usize> = BTreeMap::new();
    for event in &events {
        *partitions.entry(event.partition).or_default() += 1;
    }
    if events.is_empty() {
        return Vec::new();
    }
    if most <= 1 {
        return vec![ParallelPart { events, complete: partitions.into_keys().collect() }];
    }
    if partitions.len() >= most {
        return by_partition(events, &partitions, most);
    }
    let parts = split_by_key(&events, most);
    let mut events: Vec<Option<Event>> = events.into_iter().map(Some).collect();
    let take = |part: Vec<usize>| -> ParallelPart {
        let events: Vec<Event> = part.into_iter().filter_map(|place| events[place].take()).collect();
        let count = |partition: u32| events.iter().filter(|event| event.partition == partition).count();
        let complete = partitions
            .iter()
            .filter(|(partition, all)| count(**partition) == **all)
            .map(|(partition, _)| *partition)
            .collect();
        ParallelPart { events, complete }
    };
    parts.into_iter().map(take).collect()
}

fn by_partition(events: Vec<Event>, partitions: &BTreeMap<u32, usize>, most: usize) -> Vec<ParallelPart> {
    let mut order: Vec<(usize, u32)> =
        partitions.iter().map(|(partition, count)| (*count, *partition)).collect();
    order.sort_by_key(|(count, partition)| (std::cmp::Reverse(*count), *partition));
    let mut parts: Vec<(usize, ParallelPart)> =
        (0..most).map(|_| (0, ParallelPart { events: Vec::new(), complete: Vec::new() })).collect();
    let mut part_of: BTreeMap<u32, usize> = BTreeMap::new();
    for (count, partition) in order {
        // There is at least one part.
        let Some((place, (sum, part))) = parts.iter_mut().enumerate().min_by_key(|(_, (sum, _))| *sum) else {
            continue;
        };
        *sum += count;
        part.complete.push(partition);
        part_of.insert(partition, place);
    }
    for event in events {
        if let Some(place) = part_of.get(&event.partition) {
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
            let event = |(id, (partition, key)): (usize, (u32, u8))| Event {
                id: EventId(id as u64),
                partition,
                offset: id as u64,
                key: (key > 0).then(|| format!("{partition}/{key}")),
                event_type: "k".into(),
                payload: Payload::default(),
                headers: Default::default(),
                leader_token: None,
                published_at_ms: 0,
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
            let mut part_of: HashMap<&str, usize> = HashMap::new();
            for (n, part) in parts.iter().enumerate() {
                prop_assert!(part.events.is_sorted_by_key(|event| event.id));
                for key in part.events.iter().filter_map(|event| event.key.as_deref()) {
                    prop_assert_eq!(*part_of.entry(key).or_insert(n), n);
                }
            }
        }

        #[test]
        fn a_part_reports_the_partitions_it_has_completely(events in events(), most in 1..8usize) {
            let mut all: HashMap<u32, usize> = HashMap::new();
            events.iter().for_each(|event| *all.entry(event.partition).or_default() += 1);
            for part in split(events, most) {
                for (partition, ids, complete) in part.partitions() {
                    prop_assert_eq!(complete, ids.len() == all[&partition]);
                }
            }
        }
    }
}
