//! What topics and groups look like, and how far groups lagged in the last minutes: kept in memory.
//!
//! All are looked at together: every few seconds in any case, so that whoever opens a page sees what went before, and about once a
//! second while somebody asks. However many ask, the store is asked once; a look that took long stays fresh for longer. Nothing here is
//! ever written back: it may be old, and says how old it is.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tenure::Moment;
use tenure::port::{Backend, GroupKey, GroupView, StoreError, TopicKey, TopicView, Trouble};
use tenure::runtime::Runtime;
use tenure_core::event::{Lag, lag};
use tokio::task::AbortHandle;

/// How far back a group's picture goes.
pub(crate) const WINDOW: Duration = Duration::from_secs(300);
/// For how long a look is fresh.
const FRESH: Duration = Duration::from_millis(800);
/// A look that took long is fresh for this many times as long.
const LEISURE: u32 = 10;
/// How often it is looked while nobody asks.
const IDLE: Duration = Duration::from_secs(5);
/// How often a store is asked that keeps no events.
const UNFIT: Duration = Duration::from_secs(60);
/// How long one request to the store may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// What is known of topics and groups.
pub(crate) struct Lookout {
    desk: Arc<Desk>,
    task: AbortHandle,
}

struct Desk {
    store: Arc<dyn Backend>,
    runtime: Arc<dyn Runtime>,
    seen: RwLock<Arc<Seen>>,
    /// Held by whoever looks.
    looking: tokio::sync::Mutex<()>,
}

/// All topics and groups, as they were last seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) topics: BTreeMap<TopicKey, TopicView>,
    pub(crate) groups: BTreeMap<GroupKey, Arc<Track>>,
    /// When they were looked at; zero before the first time.
    pub(crate) at: Moment,
    /// Until when that is fresh.
    until: Moment,
    /// Why the last look failed, if it did.
    pub(crate) trouble: Option<StoreError>,
}

/// A group, and how far it lagged before.
#[derive(Clone, Debug)]
pub(crate) struct Track {
    pub(crate) view: GroupView,
    pub(crate) lag: Lag,
    /// The oldest first. Between two that are alike nothing changed.
    pub(crate) samples: VecDeque<Sample>,
}

/// A group at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) at: Moment,
    /// How many events were unread, at least.
    pub(crate) events: u64,
    /// For how long the oldest of them had waited, in milliseconds.
    pub(crate) ms: u64,
    /// How many had failed and were tried again, or waited behind one that was.
    pub(crate) aside: u64,
    pub(crate) dead: u64,
}

impl Lookout {
    /// One that looks until it is dropped.
    pub(crate) fn watching(store: Arc<dyn Backend>, runtime: Arc<dyn Runtime>) -> Arc<Lookout> {
        let desk = Arc::new(Desk { store, runtime, seen: RwLock::default(), looking: Default::default() });
        let watching = desk.clone();
        let task = tokio::spawn(async move {
            loop {
                let seen = watching.look(IDLE).await;
                let unfit = seen.trouble.as_ref().is_some_and(|error| error.kind == Trouble::Unfit);
                let pause = if unfit { UNFIT } else { IDLE };
                watching.runtime.sleep_until(watching.runtime.now() + pause).await;
            }
        });
        Arc::new(Lookout { desk, task: task.abort_handle() })
    }

    /// All topics and groups, as they were within the last second or so; or why they never were.
    pub(crate) async fn seen(&self) -> Result<Arc<Seen>, StoreError> {
        let seen = self.desk.look(FRESH).await;
        match &seen.trouble {
            Some(error) if seen.at == Moment::ZERO => Err(error.clone()),
            _ => Ok(seen),
        }
    }

    /// Something was changed from here: the next look is a new one.
    #[allow(dead_code, reason = "for pages, after what they did")]
    pub(crate) async fn changed(&self) {
        self.desk.look(Duration::ZERO).await;
    }
}

impl Drop for Lookout {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Desk {
    fn known(&self) -> Arc<Seen> {
        self.seen.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What was seen, looked at anew unless that is younger than this, or fresh.
    async fn look(&self, age: Duration) -> Arc<Seen> {
        let forced = age.is_zero();
        let fresh = |seen: &Seen, now: Moment| !forced && (now < seen.until || now.since(seen.at) < age);
        let seen = self.known();
        if fresh(&seen, self.runtime.now()) && seen.at != Moment::ZERO {
            return seen;
        }
        let _one = self.looking.lock().await;
        // Somebody else may have looked meanwhile.
        let (before, begun) = (self.known(), self.runtime.now());
        if fresh(&before, begun) && (before.at != Moment::ZERO || before.trouble.is_some()) {
            return before;
        }
        let looked = match within(async {
            Ok((self.store.topics(None).await?, self.store.groups(None).await?))
        })
        .await
        {
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
    let topics = topics.into_iter().map(|view| (view.key.clone(), view)).collect();
    let groups = groups.into_iter().map(|view| {
        let known = before.groups.get(&view.key);
        let (key, lag) = (view.key.clone(), lag(&view.slots));
        let samples = known.map(|known| known.samples.clone()).unwrap_or_default();
        let sample = Sample { at, events: lag.events, ms: lag.ms, aside: view.aside, dead: view.dead };
        let mut track = Track { view, lag, samples };
        track.push(sample);
        (key, Arc::new(track))
    });
    Seen { topics, groups: groups.collect(), at, until: Moment::ZERO, trouble: None }
}

impl Track {
    /// Adds what is seen now, and forgets what is too old to be shown. Of what is the same all the time, the ends will do.
    fn push(&mut self, sample: Sample) {
        let same = |a: &Sample, b: &Sample| Sample { at: b.at, ..*a } == *b;
        let len = self.samples.len();
        if len >= 2 && same(&self.samples[len - 1], &sample) && same(&self.samples[len - 2], &sample) {
            self.samples.pop_back();
        }
        self.samples.push_back(sample);
        // One before the window: it says how things stood at its left edge.
        while self.samples.get(1).is_some_and(|second| sample.at.since(second.at) > WINDOW) {
            self.samples.pop_front();
        }
    }
}

/// A request to the store, bounded: one that hangs must not stop all others.
async fn within<T>(request: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let late = || StoreError::new(Trouble::Timeout, format!("the store did not answer within {PATIENCE:?}"));
    tokio::time::timeout(PATIENCE, request).await.unwrap_or_else(|_| Err(late()))
}

#[cfg(test)]
mod tests {
    use tenure::backend::memory::Memory;
    use tenure::port::{Begin, Bureau as _, Events as _, GroupSettings, NewEvent, TopicSettings};
    use tenure::runtime::System;

    use super::*;

    fn key() -> GroupKey {
        let name = |text: &str| text.parse().expect("a name");
        GroupKey::new(TopicKey::new(name("default"), name("t")), name("g"))
    }

    #[tokio::test]
    async fn what_lags_is_seen_and_remembered() {
        let store = Memory::new();
        store.set_topic(&key().topic, &TopicSettings::default()).await.expect("a topic");
        store.set_group(&key(), &GroupSettings::default(), Begin::Earliest).await.expect("a group");
        let lookout = Lookout::watching(Arc::new(store.clone()), Arc::new(System));
        lookout.changed().await;
        store.publish(&key().topic, &[NewEvent::new("a"), NewEvent::new("b")]).await.expect("published");
        lookout.changed().await;
        let seen = lookout.seen().await.expect("seen");
        let track = &seen.groups[&key()];
        assert_eq!((track.lag.events, track.lag.exact), (2, true));
        assert_eq!(track.samples.iter().map(|sample| sample.events).max(), Some(2));
        assert_eq!(track.samples[0].events, 0);
        assert_eq!(seen.topics[&key().topic].events, 2);
    }

    #[test]
    fn a_group_that_rests_takes_no_room() {
        let view = GroupView {
            key: key(),
            settings: GroupSettings::default(),
            paused: None,
            members: Vec::new(),
            slots: Vec::new(),
            aside: 0,
            dead: 0,
            moves: 0,
            push: None,
        };
        let mut track = Track { view, lag: Lag::default(), samples: VecDeque::new() };
        let at = |seconds: u64| Moment::from_nanos(seconds * 1_000_000_000);
        for second in 0..5000 {
            track.push(Sample { at: at(second), events: 7, ms: 0, aside: 0, dead: 0 });
        }
        assert_eq!(track.samples.len(), 2);
        for second in 5000..9000 {
            track.push(Sample { at: at(second), events: second, ms: 0, aside: 0, dead: 0 });
        }
        assert_eq!(track.samples.len() as u64, WINDOW.as_secs() + 2);
    }
}
