//! Shared fixtures of the event tests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::port::*;
use tenure::store::memory::MemoryStore;
use tenure::store::migrations::SchemaMigrator;
use tenure::store::postgres::{PostgresOptions, PostgresStore};
use tenure::{Consumer, ConsumerBuilder, EventBatch, Name, Publisher, Tenure};
use tenure_testkit::ManualClock;
use tenure_testkit::rig::{FreshDatabase, fresh_database};

use crate::instrumented_store::InstrumentedStore;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// The lease of every process: shorter than the default, so that a test need not advance the clock as far.
pub(crate) const LEASE: Duration = Duration::from_secs(10);

/// A manual clock and a memory store that uses it, with a topic of this many partitions.
pub(crate) async fn manual_clock(partitions: u32) -> (ManualClock, InstrumentedStore) {
    let clock = ManualClock::new(7);
    let store = InstrumentedStore::new(MemoryStore::with_runtime(Arc::new(clock.clone())));
    let settings = TopicSettings { partitions, ..TopicSettings::default() };
    store.store.set_topic(&orders(), &settings).await.expect("the memory store responds");
    (clock, store)
}

pub(crate) async fn process(clock: &ManualClock, store: &InstrumentedStore, name: &str) -> Tenure {
    let builder =
        Tenure::builder().store(store.clone()).name(name).lease(LEASE).runtime(Arc::new(clock.clone()));
    builder.open().await.expect("the memory store opens")
}

pub(crate) fn orders() -> TopicKey {
    TopicKey::new(Name::default_namespace(), "orders".parse().expect("a valid name"))
}

pub(crate) fn books() -> GroupKey {
    GroupKey::new(orders(), "books".parse().expect("a valid name"))
}

pub(crate) fn event(key: &str, payload: u64) -> NewEvent {
    let payload = Payload::Json(RawJson::of(&payload).expect("a number serializes"));
    let key = (!key.is_empty()).then(|| key.to_owned());
    NewEvent { key, payload, ..NewEvent::new("k") }
}

pub(crate) fn number(event: &Event) -> u64 {
    match &event.payload {
        Payload::Json(json) => json.parse().expect("a number"),
        Payload::Bytes(_) => panic!("the payload is not JSON"),
    }
}

/// Publishes these numbers under a key, one after the other.
pub(crate) async fn publish(publisher: &Publisher, key: &str, numbers: impl IntoIterator<Item = u64>) {
    for n in numbers {
        publisher.publish(event(key, n)).await.expect("the event is published");
    }
}

pub(crate) async fn group(store: &InstrumentedStore) -> GroupView {
    store.store.group(&books()).await.expect("the memory store responds").expect("the group is there")
}

/// Events that handlers received: by key, in order.
#[derive(Clone, Default)]
pub(crate) struct ReceivedEvents(Arc<Mutex<Vec<(String, u64)>>>);

impl ReceivedEvents {
    pub(crate) fn add(&self, batch: &EventBatch) {
        let mut received = self.0.lock().unwrap();
        received.extend(batch.iter().map(|event| (event.key.clone().unwrap_or_default(), number(event))));
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

/// A member that only records its events.
pub(crate) fn member(tenure: &Tenure, received: &ReceivedEvents) -> ConsumerBuilder {
    let received = received.clone();
    tenure.consumer("orders", "books").handler(move |batch| {
        received.add(&batch);
        async {}
    })
}

/// A member that does nothing.
pub(crate) async fn idle(tenure: &Tenure) -> Consumer {
    tenure.consumer("orders", "books").handler(|_| async {}).start().await.expect("the member joins")
}

/// The member name of each partition.
pub(crate) async fn owners(store: &InstrumentedStore) -> BTreeMap<u32, String> {
    let view = group(store).await;
    let held = view.partitions.iter().filter(|partition| partition.partition_lease.holder.is_some());
    held.map(|partition| (partition.partition_lease.partition, partition.partition_lease.last_member.clone()))
        .collect()
}

/// Number of partitions of each member.
pub(crate) async fn partition_counts(store: &InstrumentedStore) -> BTreeMap<String, usize> {
    let mut partition_counts = BTreeMap::new();
    owners(store).await.into_values().for_each(|name| *partition_counts.entry(name).or_default() += 1);
    partition_counts
}

/// A fresh database with Tenure's tables.
pub(crate) async fn migrated() -> FreshDatabase {
    let database = fresh_database().unwrap();
    let store = PostgresStore::connect_unchecked(PostgresOptions::new(database.url())).await.unwrap();
    store.migrate().await.unwrap();
    database
}
