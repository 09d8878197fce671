//! Cached topics and groups for the pages.
//!
//! The cache follows the rules of [`queues`](crate::snapshot::queues): all topics and groups are read
//! together, every few seconds in any case, so that a newly opened page shows the recent lag, and about once
//! a second while a page is viewed. Everything else is read on demand and kept while it is fresh.
//!
//! Cached data may be outdated, carries its age, and is never written back.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tenure::BootInstant;
use tenure::port::{
    ErrorKind, Event, EventId, GroupKey, GroupView, ParkedEvent, ParkedEventFilter, Payload,
    ReadEventsRequest, Store, StoreError, TopicKey, TopicView,
};
use tenure::runtime::Runtime;
use tenure_core::rules::event::{Lag, lag};
use tokio::task::AbortHandle;

use crate::snapshot::queues::{
    BACKOFF_FACTOR, Cache, FRESH, IDLE, TimedSample, UNSUPPORTED_INTERVAL, remember, with_timeout,
};
use crate::web::{FormattedPayload, excerpt};

/// Number of events on the page of a topic.
pub(crate) const RECENT: usize = 20;
/// Maximum number of events per read.
const READ: u32 = 500;
/// Maximum number of reads, if one transaction published more.
const READS: usize = 8;
/// Factor by which the search range grows if it had too few events.
const FURTHER: u64 = 8;

/// Cached topics and groups.
pub(crate) struct EventCache {
    shared: Arc<EventCacheShared>,
    task: AbortHandle,
}

struct EventCacheShared {
    store: Arc<dyn Store>,
    runtime: Arc<dyn Runtime>,
    snapshot: RwLock<Arc<EventsSnapshot>>,
    /// Held during a read of all topics and groups.
    refreshing: tokio::sync::Mutex<()>,
    recent: Cache<(TopicKey, Option<u32>), Arc<[EventDetail]>>,
    event: Cache<(TopicKey, EventId), Option<Arc<EventDetail>>>,
    parked_events: Cache<String, Arc<[ParkedEventDetail]>>,
}

/// Topics and groups as last read.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventsSnapshot {
    pub(crate) topics: BTreeMap<TopicKey, Arc<TopicView>>,
    pub(crate) groups: BTreeMap<GroupKey, Arc<GroupHistory>>,
    /// When they were read; zero before the first read.
    pub(crate) at: BootInstant,
    /// Until when they are fresh.
    until: BootInstant,
    /// Error of the last read, if it failed.
    pub(crate) error: Option<StoreError>,
}

impl EventsSnapshot {
    /// Groups of a topic, by name.
    pub(crate) fn groups_of<'s>(&'s self, topic: &TopicKey) -> impl Iterator<Item = &'s Arc<GroupHistory>> {
        self.groups.values().filter(move |history| history.view.key.topic == *topic)
    }
}

/// Group with its recent samples.
#[derive(Clone, Debug)]
pub(crate) struct GroupHistory {
    pub(crate) view: GroupView,
    pub(crate) lag: Lag,
    /// Samples, oldest first. Between two equal samples nothing changed.
    pub(crate) samples: VecDeque<GroupSample>,
}

/// Sample of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct GroupSample {
    pub(crate) at: BootInstant,
    /// Number of unread events.
    pub(crate) unread: u64,
    /// Age of the oldest unread event, in milliseconds.
    pub(crate) lag_ms: u64,
}

impl TimedSample for GroupSample {
    fn at(&self) -> BootInstant {
        self.at
    }
}

/// Event for display, with its payload formatted.
#[derive(Clone, Debug)]
pub(crate) struct EventDetail {
    pub(crate) event: Event,
    pub(crate) payload: FormattedPayload,
    /// Payload in one line.
    pub(crate) excerpt: String,
}

/// Parked event for display.
#[derive(Clone, Debug)]
pub(crate) struct ParkedEventDetail {
    pub(crate) parked: ParkedEvent,
    pub(crate) payload: FormattedPayload,
    /// Payload in one line.
    pub(crate) excerpt: String,
}

impl GroupHistory {
    /// Group with its current sample appended.
    pub(crate) fn of(view: GroupView, mut samples: VecDeque<GroupSample>, at: BootInstant) -> GroupHistory {
        let lag = lag(&view.partitions);
        let same = |a: &GroupSample, b: &GroupSample| (a.unread, a.lag_ms) == (b.unread, b.lag_ms);
        remember(&mut samples, GroupSample { at, unread: lag.events, lag_ms: lag.ms }, same);
        GroupHistory { view, lag, samples }
    }
}

impl EventDetail {
    fn listed(mut event: Event) -> EventDetail {
        let payload = std::mem::take(&mut event.payload);
        EventDetail { event, payload: FormattedPayload::short(&payload), excerpt: excerpt(&payload) }
    }
}

impl ParkedEventDetail {
    fn of(mut parked: ParkedEvent, lay: fn(&Payload) -> FormattedPayload) -> ParkedEventDetail {
        let payload = std::mem::take(&mut parked.event.payload);
        ParkedEventDetail { parked, payload: lay(&payload), excerpt: excerpt(&payload) }
    }
}

impl EventCache {
    /// Start the cache; it is refreshed until it is dropped.
    pub(crate) fn start(store: Arc<dyn Store>, runtime: Arc<dyn Runtime>) -> Arc<EventCache> {
        let shared = Arc::new(EventCacheShared {
            store,
            runtime,
            snapshot: RwLock::default(),
            refreshing: tokio::sync::Mutex::default(),
            recent: Cache::default(),
            event: Cache::default(),
            parked_events: Cache::default(),
        });
        let watcher = shared.clone();
        let task = tokio::spawn(async move {
            loop {
                let snapshot = watcher.refresh(IDLE).await;
                let unsupported = snapshot.error.as_ref().is_some_and(|error| {
                    matches!(error.kind, ErrorKind::Misconfigured | ErrorKind::Unsupported)
                });
                let pause = if unsupported { UNSUPPORTED_INTERVAL } else { IDLE };
                let now = watcher.runtime.now();
                watcher.recent.sweep(now);
                watcher.event.sweep(now);
                watcher.parked_events.sweep(now);
                watcher.runtime.sleep_until(now + pause).await;
            }
        });
        Arc::new(EventCache { shared, task: task.abort_handle() })
    }

    /// Topics and groups, at most about one second old while the store responds.
    pub(crate) async fn all(&self) -> Result<Arc<EventsSnapshot>, StoreError> {
        let snapshot = self.shared.refresh(FRESH).await;
        match (&snapshot.error, snapshot.at) {
            (Some(error), BootInstant::ZERO) => Err(error.clone()),
            _ => Ok(snapshot),
        }
    }

    /// Topics and groups as last read, of any age.
    pub(crate) fn snapshot(&self) -> Arc<EventsSnapshot> {
        self.shared.snapshot()
    }

    /// All topics and groups, if the topic exists. A topic missing in the cache is read now.
    pub(crate) async fn topic(
        &self,
        key: &TopicKey,
    ) -> Result<Option<(Arc<EventsSnapshot>, Arc<TopicView>)>, StoreError> {
        let found =
            |snapshot: Arc<EventsSnapshot>| snapshot.topics.get(key).cloned().map(|view| (snapshot, view));
        if let Some(found) = found(self.all().await?) {
            return Ok(Some(found));
        }
        // Check one row before everything is read: requests for unknown topics must be cheap.
        if with_timeout(self.shared.store.partition_offsets(key)).await?.is_none() {
            return Ok(None);
        }
        Ok(found(self.shared.refresh(Duration::ZERO).await))
    }

    /// All topics and groups, if the group exists.
    pub(crate) async fn group(
        &self,
        key: &GroupKey,
    ) -> Result<Option<(Arc<EventsSnapshot>, Arc<GroupHistory>)>, StoreError> {
        let found = |snapshot: Arc<EventsSnapshot>| {
            snapshot.groups.get(key).cloned().map(|history| (snapshot, history))
        };
        if let Some(found) = found(self.all().await?) {
            return Ok(Some(found));
        }
        if with_timeout(self.shared.store.group_assignment(key)).await?.is_none() {
            return Ok(None);
        }
        Ok(found(self.shared.refresh(Duration::ZERO).await))
    }

    /// Start of the last successful read, and the error of the last one if it failed. `None` before the first
    /// success.
    pub(crate) fn status(&self) -> Option<(BootInstant, Option<StoreError>)> {
        let snapshot = self.shared.snapshot();
        (snapshot.at != BootInstant::ZERO).then(|| (snapshot.at, snapshot.error.clone()))
    }

    /// Refresh after a change through this server: later results were read after this call.
    pub(crate) async fn invalidate(&self) {
        let shared = &self.shared;
        shared.recent.clear();
        shared.event.clear();
        shared.parked_events.clear();
        shared.refresh(Duration::ZERO).await;
    }

    /// Last events of a topic or of one partition, newest first.
    pub(crate) async fn recent(
        &self,
        topic: &TopicView,
        partition: Option<u32>,
    ) -> Result<Arc<[EventDetail]>, StoreError> {
        let EventCacheShared { store, runtime, recent, .. } = &*self.shared;
        let read = async {
            let events = last_events(store.as_ref(), topic, partition).await?;
            Ok(events.into_iter().map(EventDetail::listed).collect())
        };
        recent.get((topic.key.clone(), partition), runtime.as_ref(), read).await
    }

    /// One event.
    pub(crate) async fn event(
        &self,
        topic: &TopicKey,
        id: EventId,
    ) -> Result<Option<Arc<EventDetail>>, StoreError> {
        let EventCacheShared { store, runtime, event, .. } = &*self.shared;
        let read = async {
            Ok(store.event(topic, id).await?.map(|mut event| {
                let payload = std::mem::take(&mut event.payload);
                Arc::new(EventDetail {
                    event,
                    payload: FormattedPayload::full(&payload),
                    excerpt: excerpt(&payload),
                })
            }))
        };
        event.get((topic.clone(), id), runtime.as_ref(), read).await
    }

    /// Parked events.
    pub(crate) async fn parked_events(
        &self,
        filter: &ParkedEventFilter,
    ) -> Result<Arc<[ParkedEventDetail]>, StoreError> {
        let EventCacheShared { store, runtime, parked_events: parked, .. } = &*self.shared;
        // A single event is shown in full.
        let lay = if filter.limit == 1 { FormattedPayload::full } else { FormattedPayload::short };
        let read = async {
            Ok(store
                .parked_events(filter)
                .await?
                .into_iter()
                .map(|parked| ParkedEventDetail::of(parked, lay))
                .collect())
        };
        parked.get(format!("{filter:?}"), runtime.as_ref(), read).await
    }
}

impl Drop for EventCache {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl EventCacheShared {
    fn snapshot(&self) -> Arc<EventsSnapshot> {
        self.snapshot.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Return the cached data. Read it again unless it is fresh or younger than `age`; zero forces a read.
    async fn refresh(&self, age: Duration) -> Arc<EventsSnapshot> {
        let forced = age.is_zero();
        let fresh = |snapshot: &EventsSnapshot, now: BootInstant| {
            !forced && (now < snapshot.until || now.since(snapshot.at) < age)
        };
        let snapshot = self.snapshot();
        if fresh(&snapshot, self.runtime.now()) {
            return snapshot;
        }
        let _one = self.refreshing.lock().await;
        // Another caller may have read it meanwhile.
        let before = self.snapshot();
        let begun = self.runtime.now();
        if fresh(&before, begun) {
            return before;
        }
        let both = async { Ok((self.store.topics(None).await?, self.store.groups(None).await?)) };
        let result = match with_timeout(both).await {
            Ok((topics, groups)) => with_history(&before, topics, groups, begun),
            Err(error) => EventsSnapshot { error: Some(error), ..(*before).clone() },
        };
        let now = self.runtime.now();
        let result =
            Arc::new(EventsSnapshot { until: now + FRESH.max(now.since(begun) * BACKOFF_FACTOR), ..result });
        *self.snapshot.write().unwrap_or_else(PoisonError::into_inner) = result.clone();
        result
    }
}

fn with_history(
    before: &EventsSnapshot,
    topics: Vec<TopicView>,
    groups: Vec<GroupView>,
    at: BootInstant,
) -> EventsSnapshot {
    let topics = topics.into_iter().map(|view| (view.key.clone(), Arc::new(view))).collect();
    let followed = |view: GroupView| {
        let samples = before.groups.get(&view.key).map(|known| known.samples.clone()).unwrap_or_default();
        (view.key.clone(), Arc::new(GroupHistory::of(view, samples, at)))
    };
    let groups = groups.into_iter().map(followed).collect();
    EventsSnapshot { topics, groups, at, until: BootInstant::ZERO, error: None }
}

/// Last events, newest first: by commit, and within one transaction by id. A store reads forward, and offsets
/// form one sequence over all partitions. So the search starts a little before the last offset, and further
/// back while it finds too few. A transaction that published many events to many partitions is read in
/// several steps.
async fn last_events(
    store: &dyn Store,
    topic: &TopicView,
    partition: Option<u32>,
) -> Result<Vec<Event>, StoreError> {
    let mut ends = store.partition_offsets(&topic.key).await?.unwrap_or_default();
    ends.retain(|end| {
        end.end_offset > end.start_offset && partition.is_none_or(|partition| end.partition == partition)
    });
    ends.sort_by_key(|end| std::cmp::Reverse(end.end_offset));
    let (Some(last), Some(first)) =
        (ends.first().map(|end| end.end_offset), ends.iter().map(|end| end.start_offset).min())
    else {
        return Ok(Vec::new());
    };
    let few = topic.event_count <= RECENT as u64;
    let mut back = if few { u64::MAX } else { RECENT as u64 };
    let mut found = None;
    loop {
        let from = last.saturating_sub(back).max(first);
        let (mut newest, mut read, mut oldest_ms) = (Vec::new(), 0, i64::MAX);
        // Each partition that is not read to its end, with its start and end offsets.
        let mut left: Vec<_> = ends
            .iter()
            .filter(|end| end.end_offset > from)
            .map(|end| (end.partition, end.start_offset.max(from), end.end_offset))
            .collect();
        for _ in 0..READS {
            let after = left.iter().map(|(partition, after, _)| (*partition, *after)).collect();
            let piece = store
                .read_events(&ReadEventsRequest { topic: topic.key.clone(), after, limit: READ })
                .await?;
            if piece.is_empty() {
                break;
            }
            read += piece.len();
            oldest_ms = piece.iter().map(|event| event.published_at_ms).fold(oldest_ms, i64::min);
            for (partition, after, _) in &mut left {
                let of_partition = piece.iter().filter(|event| event.partition == *partition);
                *after = of_partition.map(|event| event.offset).max().unwrap_or(*after);
            }
            left.retain(|(_, after, latest)| after < latest);
            newest.extend(piece);
            newest.sort_by_key(|event: &Event| std::cmp::Reverse((event.published_at_ms, event.id)));
            newest.truncate(RECENT);
            if left.is_empty() {
                break;
            }
        }
        // A transaction takes an offset in every partition that it publishes to. Its newest events may
        // precede those that were read, unless an older transaction was read too.
        let is_enough =
            read >= RECENT && newest.last().is_some_and(|event: &Event| event.published_at_ms > oldest_ms);
        if !left.is_empty() {
            // The range has too many events to read. The result of the previous, shorter range is complete.
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
    use tenure::port::{EventAdmin as _, EventStore as _, NewEvent, TopicSettings};
    use tenure::runtime::SystemRuntime;
    use tenure::store::memory::MemoryStore;

    use super::*;

    fn topic(name: &str) -> TopicKey {
        TopicKey::new("default".parse().expect("a name"), name.parse().expect("a name"))
    }

    async fn published(store: &MemoryStore, to: &str, events: u32, together: usize) {
        for n in 0..events {
            let event = NewEvent { key: Some(format!("k{n}")), ..NewEvent::new(format!("{to}-{n}")) };
            store.publish(&topic(to), &vec![event; together]).await.expect("published");
        }
    }

    #[tokio::test]
    async fn the_last_events_are_found_at_any_distance() {
        let store = MemoryStore::new();
        for (name, partitions) in [("one", 1), ("many", 64), ("rare", 8), ("empty", 4)] {
            let settings = TopicSettings { partitions, ..TopicSettings::default() };
            store.set_topic(&topic(name), &settings).await.expect("made");
        }
        published(&store, "rare", 30, 1).await;
        published(&store, "one", 700, 1).await;
        published(&store, "many", 100, 3).await;
        let cache = EventCache::start(Arc::new(store.clone()), Arc::new(SystemRuntime));
        for (name, kinds) in [
            ("one", (680..700).rev().map(|n| format!("one-{n}")).collect::<Vec<_>>()),
            ("many", (0..20).map(|n| format!("many-{}", 99 - n / 3)).collect()),
            ("rare", (10..30).rev().map(|n| format!("rare-{n}")).collect()),
            ("empty", Vec::new()),
        ] {
            let (_, view) = cache.topic(&topic(name)).await.expect("a response").expect(name);
            let found = cache.recent(&view, None).await.expect("events");
            assert_eq!(found.iter().map(|shown| shown.event.event_type.as_str()).collect::<Vec<_>>(), kinds);
        }
        let (_, view) = cache.topic(&topic("many")).await.expect("a response").expect("a topic");
        let of_partition = cache.recent(&view, Some(7)).await.expect("events");
        assert!(!of_partition.is_empty() && of_partition.iter().all(|shown| shown.event.partition == 7));
        assert!(cache.topic(&topic("none")).await.expect("a response").is_none());
    }

    /// Regression: A bulk publication spreads one transaction over many partitions. The list showed the
    /// events of the partition that was written last.
    #[tokio::test]
    async fn the_newest_events_of_a_bulk_publish_come_first() {
        let store = MemoryStore::new();
        let settings = TopicSettings { partitions: 16, ..TopicSettings::default() };
        store.set_topic(&topic("bulk"), &settings).await.expect("made");
        let all: Vec<_> = (0..2000)
            .map(|n| NewEvent { key: Some(format!("k{n}")), ..NewEvent::new(format!("e{n}")) })
            .collect();
        for piece in all.chunks(1000) {
            store.publish(&topic("bulk"), piece).await.expect("published");
        }
        let cache = EventCache::start(Arc::new(store), Arc::new(SystemRuntime));
        let (_, view) = cache.topic(&topic("bulk")).await.expect("a response").expect("a topic");
        let found = cache.recent(&view, None).await.expect("events");
        let kinds: Vec<_> = found.iter().map(|shown| shown.event.event_type.clone()).collect();
        assert_eq!(kinds, (1980..2000).rev().map(|n| format!("e{n}")).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn the_lag_history_of_a_group_is_kept() {
        use tenure::port::{GroupSettings, StartOffset};
        let store = MemoryStore::new();
        store.set_topic(&topic("orders"), &TopicSettings::default()).await.expect("made");
        let key = GroupKey::new(topic("orders"), "billing".parse().expect("a name"));
        store.set_group(&key, &GroupSettings::default(), StartOffset::Earliest).await.expect("made");
        let cache = EventCache::start(Arc::new(store.clone()), Arc::new(SystemRuntime));
        let unread = async || {
            cache.invalidate().await;
            let (_, history) = cache.group(&key).await.expect("a response").expect("a group");
            history.samples.iter().map(|sample| sample.unread).collect::<Vec<_>>()
        };
        assert_eq!(unread().await.last(), Some(&0));
        published(&store, "orders", 5, 2).await;
        assert_eq!(unread().await.last(), Some(&10));
        store.reset_group(&key, StartOffset::Latest, None, false).await.expect("moved");
        let all = unread().await;
        assert!(all.contains(&10) && all.last() == Some(&0), "{all:?}");
    }
}
