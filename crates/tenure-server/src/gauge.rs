//! What topics and groups looked like in the last minutes, kept in memory; and looks that many share.
//!
//! Pages about events are rendered from here as those about work are from the [`floor`](crate::floor), by the same rules: all
//! topics and groups are looked at together, every few seconds in any case, so that whoever opens a page sees how far behind a
//! group was before, and about once a second while somebody watches; whatever else a page shows is looked at when it is asked
//! for, and not again while it is fresh.
//!
//! Nothing here is ever written back: it may be old, and says how old it is.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tenure::Moment;
use tenure::port::{
    AsideFilter, AsideView, Backend, Event, EventId, GroupKey, GroupView, Payload, ReadAsk, StoreError,
    TopicKey, TopicView, Trouble,
};
use tenure::runtime::Runtime;
use tenure_core::event::{Lag, lag};
use tokio::task::AbortHandle;

use crate::floor::{FRESH, IDLE, LEISURE, Sampled, Shelf, UNFIT, remember, within};
use crate::pages::{Laid, glance};

/// How many events a page of a topic shows.
pub(crate) const RECENT: usize = 20;
/// How many are read at most, to find them.
const READ: u32 = 500;
/// And how many times, if one transaction published more.
const READS: usize = 8;
/// How much further back is looked if there were too few.
const FURTHER: u64 = 8;

/// What is known of topics and groups.
pub(crate) struct Gauge {
    desk: Arc<Desk>,
    task: AbortHandle,
}

struct Desk {
    store: Arc<dyn Backend>,
    runtime: Arc<dyn Runtime>,
    seen: RwLock<Arc<Seen>>,
    /// Held by whoever looks at all of them.
    looking: tokio::sync::Mutex<()>,
    recent: Shelf<(TopicKey, Option<u32>), Arc<[Shown]>>,
    event: Shelf<(TopicKey, EventId), Option<Arc<Shown>>>,
    asides: Shelf<String, Arc<[Set]>>,
}

/// All topics and groups, as they were last seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) topics: BTreeMap<TopicKey, Arc<TopicView>>,
    pub(crate) groups: BTreeMap<GroupKey, Arc<Track>>,
    /// When they were looked at; zero before the first time.
    pub(crate) at: Moment,
    /// Until when that is fresh.
    until: Moment,
    /// Why the last look failed, if it did.
    pub(crate) trouble: Option<StoreError>,
}

impl Seen {
    /// The groups of a topic, by name.
    pub(crate) fn groups_of<'s>(&'s self, topic: &TopicKey) -> impl Iterator<Item = &'s Arc<Track>> {
        self.groups.values().filter(move |track| track.view.key.topic == *topic)
    }
}

/// A group, and what it looked like before.
#[derive(Clone, Debug)]
pub(crate) struct Track {
    pub(crate) view: GroupView,
    pub(crate) lag: Lag,
    /// The oldest first. Between two that are alike nothing changed.
    pub(crate) samples: VecDeque<Sample>,
}

/// A group at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) at: Moment,
    /// How many events were unread.
    pub(crate) unread: u64,
    /// For how long the oldest of them had waited, in milliseconds.
    pub(crate) late_ms: u64,
}

impl Sampled for Sample {
    fn at(&self) -> Moment {
        self.at
    }
}

/// An event as it is shown: without what it carries, which is laid out.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) event: Event,
    pub(crate) payload: Laid,
    /// The same, in one line.
    pub(crate) glance: String,
}

/// An event that is aside, as it is shown.
#[derive(Clone, Debug)]
pub(crate) struct Set {
    pub(crate) aside: AsideView,
    pub(crate) payload: Laid,
    /// The same, in one line.
    pub(crate) glance: String,
}

impl Track {
    /// A group as it looks now, after what it looked like before.
    pub(crate) fn of(view: GroupView, mut samples: VecDeque<Sample>, at: Moment) -> Track {
        let lag = lag(&view.slots);
        let same = |a: &Sample, b: &Sample| (a.unread, a.late_ms) == (b.unread, b.late_ms);
        remember(&mut samples, Sample { at, unread: lag.events, late_ms: lag.ms }, same);
        Track { view, lag, samples }
    }
}

impl Shown {
    fn listed(mut event: Event) -> Shown {
        let payload = std::mem::take(&mut event.payload);
        Shown { event, payload: Laid::listed(&payload), glance: glance(&payload) }
    }
}

impl Set {
    fn of(mut aside: AsideView, lay: fn(&Payload) -> Laid) -> Set {
        let payload = std::mem::take(&mut aside.event.payload);
        Set { aside, payload: lay(&payload), glance: glance(&payload) }
    }
}

impl Gauge {
    /// What is known of a store's events from now on, until it is dropped.
    pub(crate) fn watching(store: Arc<dyn Backend>, runtime: Arc<dyn Runtime>) -> Arc<Gauge> {
        let desk = Arc::new(Desk {
            store,
            runtime,
            seen: RwLock::default(),
            looking: tokio::sync::Mutex::default(),
            recent: Shelf::default(),
            event: Shelf::default(),
            asides: Shelf::default(),
        });
        let watcher = desk.clone();
        let task = tokio::spawn(async move {
            loop {
                let seen = watcher.look(IDLE).await;
                let unfit = seen
                    .trouble
                    .as_ref()
                    .is_some_and(|error| matches!(error.kind, Trouble::Unfit | Trouble::Unsupported));
                let pause = if unfit { UNFIT } else { IDLE };
                let now = watcher.runtime.now();
                watcher.recent.sweep(now);
                watcher.event.sweep(now);
                watcher.asides.sweep(now);
                watcher.runtime.sleep_until(now + pause).await;
            }
        });
        Arc::new(Gauge { desk, task: task.abort_handle() })
    }

    /// Topics and groups, about a second old at most while the store answers.
    pub(crate) async fn all(&self) -> Result<Arc<Seen>, StoreError> {
        let seen = self.desk.look(FRESH).await;
        match (&seen.trouble, seen.at) {
            (Some(error), Moment::ZERO) => Err(error.clone()),
            _ => Ok(seen),
        }
    }

    /// Topics and groups as they were last seen, however long ago.
    pub(crate) fn seen(&self) -> Arc<Seen> {
        self.desk.seen()
    }

    /// All of them, if this topic is among them. One that came after the last look is looked at now.
    pub(crate) async fn topic(
        &self,
        key: &TopicKey,
    ) -> Result<Option<(Arc<Seen>, Arc<TopicView>)>, StoreError> {
        let found = |seen: Arc<Seen>| seen.topics.get(key).cloned().map(|view| (seen, view));
        if let Some(found) = found(self.all().await?) {
            return Ok(Some(found));
        }
        // A row, before all are counted: whoever asks for what is not there must not cost much.
        if within(self.desk.store.slot_ends(key)).await?.is_none() {
            return Ok(None);
        }
        Ok(found(self.desk.look(Duration::ZERO).await))
    }

    /// All of them, if this group is among them.
    pub(crate) async fn group(&self, key: &GroupKey) -> Result<Option<(Arc<Seen>, Arc<Track>)>, StoreError> {
        let found = |seen: Arc<Seen>| seen.groups.get(key).cloned().map(|track| (seen, track));
        if let Some(found) = found(self.all().await?) {
            return Ok(Some(found));
        }
        if within(self.desk.store.look_group(key)).await?.is_none() {
            return Ok(None);
        }
        Ok(found(self.desk.look(Duration::ZERO).await))
    }

    /// When the last look that succeeded began, and why the last one failed, if it did. `None` before the first success.
    pub(crate) fn standing(&self) -> Option<(Moment, Option<StoreError>)> {
        let seen = self.desk.seen();
        (seen.at != Moment::ZERO).then(|| (seen.at, seen.trouble.clone()))
    }

    /// Something was changed from here: what is shown next was looked at after this was called.
    pub(crate) async fn changed(&self) {
        let desk = &self.desk;
        desk.recent.clear();
        desk.event.clear();
        desk.asides.clear();
        desk.look(Duration::ZERO).await;
    }

    /// The last events of a topic, or of one of its slots, the newest first.
    pub(crate) async fn recent(
        &self,
        topic: &TopicView,
        slot: Option<u32>,
    ) -> Result<Arc<[Shown]>, StoreError> {
        let Desk { store, runtime, recent, .. } = &*self.desk;
        let look = async {
            let events = last_events(store.as_ref(), topic, slot).await?;
            Ok(events.into_iter().map(Shown::listed).collect())
        };
        recent.get((topic.key.clone(), slot), runtime.as_ref(), look).await
    }

    /// One event.
    pub(crate) async fn event(
        &self,
        topic: &TopicKey,
        id: EventId,
    ) -> Result<Option<Arc<Shown>>, StoreError> {
        let Desk { store, runtime, event, .. } = &*self.desk;
        let look = async {
            Ok(store.event(topic, id).await?.map(|mut event| {
                let payload = std::mem::take(&mut event.payload);
                Arc::new(Shown { event, payload: Laid::carried(&payload), glance: glance(&payload) })
            }))
        };
        event.get((topic.clone(), id), runtime.as_ref(), look).await
    }

    /// Events that are aside.
    pub(crate) async fn asides(&self, filter: &AsideFilter) -> Result<Arc<[Set]>, StoreError> {
        let Desk { store, runtime, asides, .. } = &*self.desk;
        // Whoever looks at one wants to read it.
        let lay = if filter.limit == 1 { Laid::carried } else { Laid::listed };
        let look =
            async { Ok(store.aside(filter).await?.into_iter().map(|aside| Set::of(aside, lay)).collect()) };
        asides.get(format!("{filter:?}"), runtime.as_ref(), look).await
    }
}

impl Drop for Gauge {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Desk {
    fn seen(&self) -> Arc<Seen> {
        self.seen.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What was seen, looked at anew unless that is younger than this, or fresh.
    async fn look(&self, age: Duration) -> Arc<Seen> {
        let forced = age.is_zero();
        let fresh = |seen: &Seen, now: Moment| !forced && (now < seen.until || now.since(seen.at) < age);
        let seen = self.seen();
        if fresh(&seen, self.runtime.now()) {
            return seen;
        }
        let _one = self.looking.lock().await;
        // Somebody else may have looked meanwhile.
        let before = self.seen();
        let begun = self.runtime.now();
        if fresh(&before, begun) {
            return before;
        }
        let both = async { Ok((self.store.topics(None).await?, self.store.groups(None).await?)) };
        let looked = match within(both).await {
            Ok((topics, groups)) => track(&before, topics, groups, begun),
            Err(error) => Seen { trouble: Some(error), ..(*before).clone() },
        };
        let now = self.runtime.now();
        let looked = Arc::new(Seen { until: now + FRESH.max(now.since(begun) * LEISURE), ..looked });
        *self.seen.write().unwrap_or_else(PoisonError::into_inner) = looked.clone();
        looked
    }
}

fn track(before: &Seen, topics: Vec<TopicView>, groups: Vec<GroupView>, at: Moment) -> Seen {
    let topics = topics.into_iter().map(|view| (view.key.clone(), Arc::new(view))).collect();
    let followed = |view: GroupView| {
        let samples = before.groups.get(&view.key).map(|known| known.samples.clone()).unwrap_or_default();
        (view.key.clone(), Arc::new(Track::of(view, samples, at)))
    };
    let groups = groups.into_iter().map(followed).collect();
    Seen { topics, groups, at, until: Moment::ZERO, trouble: None }
}

/// The last events, the newest first: by when they were committed, and those of one transaction by their numbers. A store reads
/// forwards: positions are of one sequence for all slots, so from a little before the last one on, and from further before while
/// there are too few. A transaction that published much to many slots is read in several pieces.
async fn last_events(
    store: &dyn Backend,
    topic: &TopicView,
    slot: Option<u32>,
) -> Result<Vec<Event>, StoreError> {
    let mut ends = store.slot_ends(&topic.key).await?.unwrap_or_default();
    ends.retain(|end| end.latest > end.earliest && slot.is_none_or(|slot| end.slot == slot));
    ends.sort_by_key(|end| std::cmp::Reverse(end.latest));
    let (Some(last), Some(first)) =
        (ends.first().map(|end| end.latest), ends.iter().map(|end| end.earliest).min())
    else {
        return Ok(Vec::new());
    };
    let few = topic.events <= RECENT as u64;
    let mut back = if few { u64::MAX } else { RECENT as u64 };
    let mut found = None;
    loop {
        let from = last.saturating_sub(back).max(first);
        let (mut newest, mut read, mut oldest_ms) = (Vec::new(), 0, i64::MAX);
        // Each slot that is not read to its end yet, from where on, and where that is.
        let mut left: Vec<_> = ends
            .iter()
            .filter(|end| end.latest > from)
            .map(|end| (end.slot, end.earliest.max(from), end.latest))
            .collect();
        for _ in 0..READS {
            let after = left.iter().map(|(slot, after, _)| (*slot, *after)).collect();
            let piece = store.read_events(&ReadAsk { topic: topic.key.clone(), after, limit: READ }).await?;
            if piece.is_empty() {
                break;
            }
            read += piece.len();
            oldest_ms = piece.iter().map(|event| event.at_ms).fold(oldest_ms, i64::min);
            for (slot, after, _) in &mut left {
                let of_slot = piece.iter().filter(|event| event.slot == *slot);
                *after = of_slot.map(|event| event.position).max().unwrap_or(*after);
            }
            left.retain(|(_, after, latest)| after < latest);
            newest.extend(piece);
            newest.sort_by_key(|event: &Event| std::cmp::Reverse((event.at_ms, event.id)));
            newest.truncate(RECENT);
            if left.is_empty() {
                break;
            }
        }
        // One transaction takes a position in every slot that it publishes to: its newest events may lie before those that were
        // read, unless something older was read, too.
        let is_enough = read >= RECENT && newest.last().is_some_and(|event: &Event| event.at_ms > oldest_ms);
        if !left.is_empty() {
            // Too much to read: what a shorter way back has found is whole.
            return Ok(found.unwrap_or(newest));
        }
        if is_enough || from == first {
            return Ok(newest);
        }
        found = Some(newest);
        back = back.saturating_mul(FURTHER);
    }
}

#[cfg(test)]
mod tests {
    use tenure::backend::memory::Memory;
    use tenure::port::{Bureau as _, Events as _, NewEvent, TopicSettings};
    use tenure::runtime::System;

    use super::*;

    fn topic(name: &str) -> TopicKey {
        TopicKey::new("default".parse().expect("a name"), name.parse().expect("a name"))
    }

    async fn published(store: &Memory, to: &str, events: u32, together: usize) {
        for n in 0..events {
            let event = NewEvent { key: Some(format!("k{n}")), ..NewEvent::new(format!("{to}-{n}")) };
            store.publish(&topic(to), &vec![event; together]).await.expect("published");
        }
    }

    #[tokio::test]
    async fn the_last_events_are_found_however_far_apart_they_lie() {
        let store = Memory::new();
        for (name, slots) in [("one", 1), ("many", 64), ("rare", 8), ("empty", 4)] {
            let settings = TopicSettings { slots, ..TopicSettings::default() };
            store.set_topic(&topic(name), &settings).await.expect("made");
        }
        published(&store, "rare", 30, 1).await;
        published(&store, "one", 700, 1).await;
        published(&store, "many", 100, 3).await;
        let gauge = Gauge::watching(Arc::new(store.clone()), Arc::new(System));
        for (name, kinds) in [
            ("one", (680..700).rev().map(|n| format!("one-{n}")).collect::<Vec<_>>()),
            ("many", (0..20).map(|n| format!("many-{}", 99 - n / 3)).collect()),
            ("rare", (10..30).rev().map(|n| format!("rare-{n}")).collect()),
            ("empty", Vec::new()),
        ] {
            let (_, view) = gauge.topic(&topic(name)).await.expect("an answer").expect(name);
            let found = gauge.recent(&view, None).await.expect("events");
            assert_eq!(found.iter().map(|shown| shown.event.kind.as_str()).collect::<Vec<_>>(), kinds);
        }
        let (_, view) = gauge.topic(&topic("many")).await.expect("an answer").expect("a topic");
        let of_slot = gauge.recent(&view, Some(7)).await.expect("events");
        assert!(!of_slot.is_empty() && of_slot.iter().all(|shown| shown.event.slot == 7));
        assert!(gauge.topic(&topic("none")).await.expect("an answer").is_none());
    }

    /// A bulk publish spreads one transaction over many slots. The list showed the events of the slot that was written last.
    #[tokio::test]
    async fn the_newest_events_of_a_bulk_publish_come_first() {
        let store = Memory::new();
        let settings = TopicSettings { slots: 16, ..TopicSettings::default() };
        store.set_topic(&topic("bulk"), &settings).await.expect("made");
        let all: Vec<_> = (0..2000)
            .map(|n| NewEvent { key: Some(format!("k{n}")), ..NewEvent::new(format!("e{n}")) })
            .collect();
        for piece in all.chunks(1000) {
            store.publish(&topic("bulk"), piece).await.expect("published");
        }
        let gauge = Gauge::watching(Arc::new(store), Arc::new(System));
        let (_, view) = gauge.topic(&topic("bulk")).await.expect("an answer").expect("a topic");
        let found = gauge.recent(&view, None).await.expect("events");
        let kinds: Vec<_> = found.iter().map(|shown| shown.event.kind.clone()).collect();
        assert_eq!(kinds, (1980..2000).rev().map(|n| format!("e{n}")).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn how_far_behind_a_group_was_is_remembered() {
        use tenure::port::{Begin, GroupSettings};
        let store = Memory::new();
        store.set_topic(&topic("orders"), &TopicSettings::default()).await.expect("made");
        let key = GroupKey::new(topic("orders"), "billing".parse().expect("a name"));
        store.set_group(&key, &GroupSettings::default(), Begin::Earliest).await.expect("made");
        let gauge = Gauge::watching(Arc::new(store.clone()), Arc::new(System));
        let unread = async || {
            gauge.changed().await;
            let (_, track) = gauge.group(&key).await.expect("an answer").expect("a group");
            track.samples.iter().map(|sample| sample.unread).collect::<Vec<_>>()
        };
        assert_eq!(unread().await.last(), Some(&0));
        published(&store, "orders", 5, 2).await;
        assert_eq!(unread().await.last(), Some(&10));
        store.reset_group(&key, Begin::Latest, None, false).await.expect("moved");
        let all = unread().await;
        assert!(all.contains(&10) && all.last() == Some(&0), "{all:?}");
    }
}
