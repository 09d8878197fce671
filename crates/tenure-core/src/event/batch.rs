//! In which parts what was read is handled.

use std::collections::{HashMap, HashSet};

use crate::port::{AsideKey, Event, EventId};

/// What was published together, in the order it was read: slices that share a slot and a position.
///
/// A batch that fails is tried again unit by unit, and a unit that fails event by event.
pub fn units(events: &[Event]) -> impl Iterator<Item = &[Event]> {
    events.chunk_by(|a, b| (a.slot, a.position) == (b.slot, b.position))
}

/// Splits events into at most `most` lanes that can be handled beside one another: what shares a key shares a lane and stays in
/// order, and events without a key go where there is least. Places of the events; no lane is empty.
///
/// ```
/// use tenure_core::event::lanes;
/// # use tenure_core::port::{Event, EventId, Payload};
/// # let event = |id: u64, key: &str| Event { id: EventId(id), slot: 0, position: id, key: Some(key.into()), kind: String::new(),
/// #     payload: Payload::default(), headers: Default::default(), leader_token: None, at_ms: 0 };
/// let read = [event(1, "a"), event(2, "b"), event(3, "a"), event(4, "c")];
/// assert_eq!(lanes(&read, 2), [vec![0, 2], vec![1, 3]]);
/// ```
pub fn lanes(events: &[Event], most: usize) -> Vec<Vec<usize>> {
    // The longest keys first, so that the lanes become about equally long; in their order within a lane.
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut by_key: HashMap<(u32, &str), usize> = HashMap::new();
    for (place, event) in events.iter().enumerate() {
        let known = event.key.as_deref().map(|key| *by_key.entry((event.slot, key)).or_insert(groups.len()));
        match known {
            Some(group) if group < groups.len() => groups[group].push(place),
            _ => groups.push(vec![place]),
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

/// The keys of a slot that are set aside: what its holder was told, and what it has set aside since.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parked {
    keys: HashSet<String>,
}

impl Parked {
    /// As a store tells it.
    pub fn of(aside: &[AsideKey]) -> Parked {
        Parked { keys: aside.iter().filter_map(|aside| aside.key.clone()).collect() }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Whether this event has to wait behind another. One without a key stands for itself, and waits for nobody.
    pub fn has(&self, event: &Event) -> bool {
        event.key.as_ref().is_some_and(|key| self.keys.contains(key))
    }

    /// This event is set aside: later ones of its key follow it.
    pub fn add(&mut self, event: &Event) {
        self.keys.extend(event.key.clone());
    }

    /// Nothing of this key is aside any more.
    pub fn remove(&mut self, key: &str) {
        self.keys.remove(key);
    }
}

/// What was read, sorted by what is to be done with it. Places of the events, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sorted {
    /// To be handled.
    pub go: Vec<usize>,
    /// To be set aside behind others of their keys.
    pub behind: Vec<usize>,
    /// Done before, by who had the slot then.
    pub done: Vec<usize>,
}

/// Sorts what was read of one slot.
pub fn sort_out(events: &[Event], parked: &Parked, done: &HashSet<EventId>) -> Sorted {
    let mut sorted = Sorted::default();
    for (place, event) in events.iter().enumerate() {
        // Done first: a key that was set aside after this one was done does not bring it back.
        let list = match (done.contains(&event.id), parked.has(event)) {
            (true, _) => &mut sorted.done,
            (false, true) => &mut sorted.behind,
            (false, false) => &mut sorted.go,
        };
        list.push(place);
    }
    sorted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::port::Payload;

    fn event(id: u64, position: u64, key: Option<&str>) -> Event {
        Event {
            id: EventId(id),
            slot: 0,
            position,
            key: key.map(Into::into),
            kind: "k".into(),
            payload: Payload::default(),
            headers: Default::default(),
            leader_token: None,
            at_ms: 0,
        }
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        prop::collection::vec((0..9u8, any::<bool>()), 0..60).prop_map(|drafts| {
            let mut position = 1;
            let number = |(id, (key, next)): (usize, (u8, bool))| {
                position += u64::from(next);
                let key = (key > 0).then(|| format!("k{key}"));
                event(id as u64 + 1, position, key.as_deref())
            };
            drafts.into_iter().enumerate().map(number).collect()
        })
    }

    proptest! {
        #[test]
        fn units_are_whole_and_together_everything(events in events()) {
            let parts: Vec<&[Event]> = units(&events).collect();
            prop_assert_eq!(parts.concat(), events.clone());
            for pair in parts.windows(2) {
                prop_assert!(pair[0][0].position != pair[1][0].position);
            }
            for part in parts {
                prop_assert!(part.iter().all(|event| event.position == part[0].position));
            }
        }

        #[test]
        fn lanes_keep_keys_together_and_in_order(events in events(), most in 0..9usize) {
            let lanes = lanes(&events, most);
            prop_assert!(lanes.len() <= most.max(1) && lanes.iter().all(|lane| !lane.is_empty()));
            let mut all: Vec<usize> = lanes.concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..events.len()).collect::<Vec<_>>());
            let mut homes: HashMap<&str, usize> = HashMap::new();
            for (n, lane) in lanes.iter().enumerate() {
                prop_assert!(lane.is_sorted());
                for key in lane.iter().filter_map(|place| events[*place].key.as_deref()) {
                    prop_assert_eq!(*homes.entry(key).or_insert(n), n);
                }
            }
            // No lane is longer than the others by more than the longest key.
            let longest = homes.keys().map(|key| events.iter().filter(|e| e.key.as_deref() == Some(key)).count());
            let (longest, lens) = (longest.max().unwrap_or(1), lanes.iter().map(Vec::len));
            if let (Some(max), Some(min)) = (lens.clone().max(), lens.min()) {
                prop_assert!(max - min <= longest);
            }
        }

        #[test]
        fn what_is_sorted_out_is_everything_once(
            events in events(), parked in prop::collection::hash_set(1..9u8, 0..4), done in prop::collection::hash_set(1..60u64, 0..9)
        ) {
            let mut keys = Parked::default();
            for key in &parked {
                keys.add(&event(0, 0, Some(&format!("k{key}"))));
            }
            let done: HashSet<EventId> = done.into_iter().map(EventId).collect();
            let sorted = sort_out(&events, &keys, &done);
            let mut all = [sorted.go.clone(), sorted.behind.clone(), sorted.done.clone()].concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..events.len()).collect::<Vec<_>>());
            let waits = |place: &usize| events[*place].key.as_deref().is_some_and(|key| parked.iter().any(|it| key == format!("k{it}")));
            prop_assert!(sorted.go.iter().all(|place| !waits(place) && !done.contains(&events[*place].id)));
            prop_assert!(sorted.behind.iter().all(|place| waits(place) && !done.contains(&events[*place].id)));
            prop_assert!(sorted.done.iter().all(|place| done.contains(&events[*place].id)));
        }
    }

    #[test]
    fn an_event_without_a_key_waits_for_nobody() {
        let aside = |key: Option<&str>| AsideKey {
            key: key.map(Into::into),
            event: EventId(1),
            attempts: 1,
            due_in_ms: None,
        };
        let mut parked = Parked::of(&[aside(None), aside(Some("a"))]);
        assert!(!parked.has(&event(2, 2, None)));
        assert!(parked.has(&event(2, 2, Some("a"))));
        parked.add(&event(3, 3, None));
        assert!(!parked.has(&event(4, 4, None)));
        parked.remove("a");
        assert!(parked.is_empty() && !parked.has(&event(2, 2, Some("a"))));
    }
}
