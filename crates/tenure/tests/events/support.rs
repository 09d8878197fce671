//! What the tests of events share.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::backend::memory::Memory;
use tenure::backend::migrations::Migrate;
use tenure::backend::postgres::{Postgres, PostgresOptions};
use tenure::port::*;
use tenure::{Batch, Consumer, ConsumerBuilder, Name, Publisher, Tenure};
use tenure_testkit::Clock;
use tenure_testkit::rig::{FreshDatabase, fresh_database};

use crate::spy::Spy;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// The lease of every process here: shorter than the usual one, so that a test need not drive the clock as far.
pub(crate) const LEASE: Duration = Duration::from_secs(10);

/// A hand-driven clock and a store in memory that goes by it, with a topic of so many slots.
pub(crate) async fn hand_driven(slots: u32) -> (Clock, Spy) {
    let clock = Clock::new(7);
    let store = Spy::new(Memory::with_runtime(Arc::new(clock.clone())));
    let settings = TopicSettings { slots, ..TopicSettings::default() };
    store.store.set_topic(&orders(), &settings).await.expect("memory answers");
    (clock, store)
}

pub(crate) async fn process(clock: &Clock, store: &Spy, name: &str) -> Tenure {
    let builder =
        Tenure::builder().store(store.clone()).name(name).lease(LEASE).runtime(Arc::new(clock.clone()));
    builder.open().await.expect("a store in memory opens")
}

pub(crate) fn orders() -> TopicKey {
    TopicKey::new(Name::default_namespace(), "orders".parse().expect("a name"))
}

pub(crate) fn books() -> GroupKey {
    GroupKey::new(orders(), "books".parse().expect("a name"))
}

pub(crate) fn event(key: &str, payload: u64) -> NewEvent {
    let payload = Payload::Json(Json::of(&payload).expect("a number is JSON"));
    let key = (!key.is_empty()).then(|| key.to_owned());
    NewEvent { key, payload, ..NewEvent::new("k") }
}

pub(crate) fn number(event: &Event) -> u64 {
    match &event.payload {
        Payload::Json(json) => json.parse().expect("a number"),
        Payload::Bytes(_) => panic!("it was JSON"),
    }
}

/// Publishes these numbers under a key, one after the other.
pub(crate) async fn publish(publisher: &Publisher, key: &str, numbers: impl IntoIterator<Item = u64>) {
    for n in numbers {
        publisher.publish(event(key, n)).await.expect("it is published");
    }
}

pub(crate) async fn group(store: &Spy) -> GroupView {
    store.store.group(&books()).await.expect("memory answers").expect("the group is there")
}

/// What handlers were given: by key, in order.
#[derive(Clone, Default)]
pub(crate) struct Seen(Arc<Mutex<Vec<(String, u64)>>>);

impl Seen {
    pub(crate) fn add(&self, batch: &Batch) {
        let mut seen = self.0.lock().unwrap();
        seen.extend(batch.iter().map(|event| (event.key.clone().unwrap_or_default(), number(event))));
    }

    pub(crate) fn all(&self) -> Vec<(String, u64)> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn of(&self, key: &str) -> Vec<u64> {
        self.all().into_iter().filter(|(its, _)| its == key).map(|(_, n)| n).collect()
    }

    pub(crate) fn by_key(&self) -> BTreeMap<String, Vec<u64>> {
        let mut keys = BTreeMap::<String, Vec<u64>>::new();
        self.all().into_iter().for_each(|(key, n)| keys.entry(key).or_default().push(n));
        keys
    }
}

/// A member that only writes down what it is given.
pub(crate) fn member(tenure: &Tenure, seen: &Seen) -> ConsumerBuilder {
    let seen = seen.clone();
    tenure.consumer("orders", "books").handler(move |batch| {
        seen.add(&batch);
        async {}
    })
}

/// A member that does nothing.
pub(crate) async fn idle(tenure: &Tenure) -> Consumer {
    tenure.consumer("orders", "books").handler(|_| async {}).start().await.expect("it joins")
}

/// Who has which slots, by name.
pub(crate) async fn owners(store: &Spy) -> BTreeMap<u32, String> {
    let view = group(store).await;
    let held = view.slots.iter().filter(|slot| slot.share.holder.is_some());
    held.map(|slot| (slot.share.slot, slot.share.last.clone())).collect()
}

/// How many slots each has.
pub(crate) async fn spread(store: &Spy) -> BTreeMap<String, usize> {
    let mut spread = BTreeMap::new();
    owners(store).await.into_values().for_each(|name| *spread.entry(name).or_default() += 1);
    spread
}

/// A database of its own, with Tenure's tables.
pub(crate) async fn migrated() -> FreshDatabase {
    let database = fresh_database().unwrap();
    let store = Postgres::connect_unchecked(PostgresOptions::new(database.url())).await.unwrap();
    store.migrate().await.unwrap();
    database
}
