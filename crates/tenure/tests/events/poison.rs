//! Handlers with injected failures.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tenure::port::*;
use tenure::{Consumer, EventBatch, HandlerError, Publisher, Tenure};
use tenure_testkit::ManualClock;

use crate::instrumented_store::InstrumentedStore;
use crate::support::*;

/// What the handler does with the event of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behavior {
    Fail,
    FailPermanently,
    Panic,
    Hang,
    FailTransiently,
}

/// The event numbers for which the handler currently does not succeed, and what it does instead.
#[derive(Clone, Default)]
pub(crate) struct Poison(Arc<Mutex<BTreeMap<u64, Behavior>>>);

impl Poison {
    pub(crate) fn set(&self, number: u64, behavior: Option<Behavior>) {
        let mut poison = self.0.lock().unwrap();
        match behavior {
            Some(behavior) => drop(poison.insert(number, behavior)),
            None => drop(poison.remove(&number)),
        }
    }

    pub(crate) fn of(&self, batch: &EventBatch) -> Option<Behavior> {
        let poison = self.0.lock().unwrap();
        batch.iter().find_map(|event| poison.get(&number(event)).copied())
    }
}

/// A process with a topic, a publisher and a handler with injected failures.
pub(crate) struct TestTopic {
    pub(crate) clock: ManualClock,
    pub(crate) store: InstrumentedStore,
    pub(crate) tenure: Tenure,
    pub(crate) publisher: Publisher,
    pub(crate) received: ReceivedEvents,
    pub(crate) poison: Poison,
}

/// Creates a topic with this many partitions and no consumer.
pub(crate) async fn test_topic(partitions: u32) -> TestTopic {
    let (clock, store) = manual_clock(partitions).await;
    let tenure = process(&clock, &store, "m0").await;
    let publisher = tenure.publisher("orders").expect("a name");
    TestTopic {
        clock,
        store,
        tenure,
        publisher,
        received: ReceivedEvents::default(),
        poison: Poison::default(),
    }
}

pub(crate) const SETTINGS: GroupSettings =
    GroupSettings { max_attempts: 3, backoff: Backoff { initial_ms: 1_000, max_ms: 60_000 } };

/// A member with injected failures that records its events.
pub(crate) async fn failing(
    tenure: &Tenure,
    received: &ReceivedEvents,
    poison: &Poison,
    concurrency: usize,
) -> Consumer {
    let (received, poison) = (received.clone(), poison.clone());
    let handler = move |batch: EventBatch| {
        let (received, poison) = (received.clone(), poison.clone());
        async move {
            match poison.of(&batch) {
                Some(Behavior::Fail) => return Err(HandlerError::fail("no paper")),
                Some(Behavior::FailPermanently) => return Err(HandlerError::permanent("no such printer")),
                Some(Behavior::Panic) => panic!("deliberate panic"),
                Some(Behavior::Hang) => std::future::pending().await,
                Some(Behavior::FailTransiently) => return Err(HandlerError::transient("deadlock detected")),
                None => {}
            }
            received.add(&batch);
            Ok(())
        }
    };
    let builder = tenure.consumer("orders", "books").settings(SETTINGS).timeout(5 * SECOND);
    builder.concurrency(concurrency).handler(handler).start().await.unwrap()
}

pub(crate) async fn parked(store: &InstrumentedStore) -> Vec<ParkedEvent> {
    let filter = ParkedEventFilter {
        group: books(),
        dead: false,
        partition: None,
        key: None,
        after: None,
        limit: 1000,
    };
    store.store.parked_events(&filter).await.unwrap()
}

pub(crate) async fn dead(store: &InstrumentedStore) -> Vec<ParkedEvent> {
    parked(store).await.into_iter().filter(|view| view.dead).collect()
}
