//! Handlers that fail as they are told.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tenure::port::*;
use tenure::{Batch, Consumer, HandlerError, Publisher, Tenure};
use tenure_testkit::Clock;

use crate::spy::Spy;
use crate::support::*;

/// What the handler of these tests does with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Does {
    Fails,
    Dies,
    Panics,
    Hangs,
    Passes,
}

/// Which numbers do not simply succeed, at the moment.
#[derive(Clone, Default)]
pub(crate) struct Poison(Arc<Mutex<BTreeMap<u64, Does>>>);

impl Poison {
    pub(crate) fn set(&self, number: u64, does: Option<Does>) {
        let mut poison = self.0.lock().unwrap();
        match does {
            Some(does) => drop(poison.insert(number, does)),
            None => drop(poison.remove(&number)),
        }
    }

    pub(crate) fn of(&self, batch: &Batch) -> Option<Does> {
        let poison = self.0.lock().unwrap();
        batch.iter().find_map(|event| poison.get(&number(event)).copied())
    }
}

/// A process with a topic, a publisher and a handler that fails as it is told.
pub(crate) struct Scene {
    pub(crate) clock: Clock,
    pub(crate) store: Spy,
    pub(crate) tenure: Tenure,
    pub(crate) publisher: Publisher,
    pub(crate) seen: Seen,
    pub(crate) poison: Poison,
}

/// With so many slots. Nobody reads yet.
pub(crate) async fn scene(slots: u32) -> Scene {
    let (clock, store) = hand_driven(slots).await;
    let tenure = process(&clock, &store, "m0").await;
    let publisher = tenure.publisher("orders").expect("a name");
    Scene { clock, store, tenure, publisher, seen: Seen::default(), poison: Poison::default() }
}

pub(crate) const SETTINGS: GroupSettings =
    GroupSettings { max_attempts: 3, backoff: Backoff { first_ms: 1_000, most_ms: 60_000 } };

/// A member that fails as it is told, and writes down what it did.
pub(crate) async fn failing(tenure: &Tenure, seen: &Seen, poison: &Poison, concurrency: usize) -> Consumer {
    let (seen, poison) = (seen.clone(), poison.clone());
    let handler = move |batch: Batch| {
        let (seen, poison) = (seen.clone(), poison.clone());
        async move {
            match poison.of(&batch) {
                Some(Does::Fails) => return Err(HandlerError::fail("no paper")),
                Some(Does::Dies) => return Err(HandlerError::fail_for_good("no such printer")),
                Some(Does::Panics) => panic!("the test wants this"),
                Some(Does::Hangs) => std::future::pending().await,
                Some(Does::Passes) => return Err(HandlerError::passing("deadlock detected")),
                None => {}
            }
            seen.add(&batch);
            Ok(())
        }
    };
    let builder = tenure.consumer("orders", "books").settings(SETTINGS).timeout(5 * SECOND);
    builder.concurrency(concurrency).handler(handler).start().await.unwrap()
}

pub(crate) async fn aside(store: &Spy) -> Vec<AsideView> {
    let filter = AsideFilter { group: books(), dead: false, slot: None, key: None, after: None, limit: 1000 };
    store.store.aside(&filter).await.unwrap()
}

pub(crate) async fn dead(store: &Spy) -> Vec<AsideView> {
    aside(store).await.into_iter().filter(|view| view.dead).collect()
}
