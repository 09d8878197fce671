//! Handlers that fail, hang and panic, and stores that are away.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::port::*;
use tenure::{Batch, Consumer, Drained, Error, HandlerError, Tenure};
use tenure_testkit::block_on;
use tokio::sync::Semaphore;

use crate::spy::{Fault, Spy};
use crate::support::*;

/// What the handler of these tests does with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    Fails,
    Dies,
    Panics,
    Hangs,
    Passes,
}

/// Which numbers do not simply succeed, at the moment.
#[derive(Clone, Default)]
struct Poison(Arc<Mutex<BTreeMap<u64, Does>>>);

impl Poison {
    fn set(&self, number: u64, does: Option<Does>) {
        let mut poison = self.0.lock().unwrap();
        match does {
            Some(does) => drop(poison.insert(number, does)),
            None => drop(poison.remove(&number)),
        }
    }

    fn of(&self, batch: &Batch) -> Option<Does> {
        let poison = self.0.lock().unwrap();
        batch.iter().find_map(|event| poison.get(&number(event)).copied())
    }
}

const SETTINGS: GroupSettings =
    GroupSettings { max_attempts: 3, backoff: Backoff { first_ms: 1_000, most_ms: 60_000 } };

/// A member that fails as it is told, and writes down what it did.
async fn failing(tenure: &Tenure, seen: &Seen, poison: &Poison, concurrency: usize) -> Consumer {
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

async fn aside(store: &Spy) -> Vec<AsideView> {
    let filter = AsideFilter { group: books(), dead: false, slot: None, key: None, after: None, limit: 1000 };
    store.store.aside(&filter).await.unwrap()
}

async fn dead(store: &Spy) -> Vec<AsideView> {
    aside(store).await.into_iter().filter(|view| view.dead).collect()
}

#[test]
fn a_key_that_fails_waits_while_others_flow_and_then_follows_in_order() {
    for concurrency in [1, 4] {
        block_on(async {
            // All keys in one slot: they are nothing but keys to one another.
            let (clock, store) = hand_driven(1).await;
            let tenure = process(&clock, &store, "m0").await;
            let publisher = tenure.publisher("orders").unwrap();
            let (seen, poison) = (Seen::default(), Poison::default());
            poison.set(1, Some(Does::Fails));
            publish(&publisher, "a", [0, 1, 2]).await;
            publish(&publisher, "b", [10, 11]).await;
            let consumer = failing(&tenure, &seen, &poison, concurrency).await;
            clock.settle().await;
            assert_eq!((seen.of("a"), seen.of("b")), (vec![0], vec![10, 11]));
            assert_eq!(group(&store).await.lag(), (0, true), "the slot goes on without them");
            let waiting = aside(&store).await;
            assert_eq!((waiting.len(), waiting[0].attempts, waiting[0].error.as_str()), (2, 1, "no paper"));
            assert_eq!((waiting[0].behind, waiting[1].attempts), (1, 0));

            publish(&publisher, "a", [3]).await;
            publish(&publisher, "b", [12]).await;
            clock.settle().await;
            assert_eq!((seen.of("a"), seen.of("b")), (vec![0], vec![10, 11, 12]));
            poison.set(1, None);
            clock.advance(2 * SECOND).await;
            assert_eq!(seen.of("a"), [0, 1, 2, 3], "when it is due");
            assert!(aside(&store).await.is_empty());
            publish(&publisher, "a", [4]).await;
            clock.settle().await;
            assert_eq!(seen.of("a"), [0, 1, 2, 3, 4], "and the key flows again");
            consumer.drain().await.unwrap();
        });
    }
}

#[test]
fn what_fails_too_often_is_dead_and_its_key_parked_until_it_is_replayed_or_dropped() {
    for order in [DeadOrder::Replay, DeadOrder::Drop] {
        block_on(async {
            let (clock, store) = hand_driven(4).await;
            let tenure = process(&clock, &store, "m0").await;
            let publisher = tenure.publisher("orders").unwrap();
            let (seen, poison) = (Seen::default(), Poison::default());
            poison.set(1, Some(Does::Fails));
            let consumer = failing(&tenure, &seen, &poison, 1).await;
            publish(&publisher, "a", 0..4).await;
            clock.advance(60 * SECOND).await;
            let dead = dead(&store).await;
            assert_eq!((dead.len(), dead[0].attempts, dead[0].behind), (1, SETTINGS.max_attempts, 2));
            assert_eq!(seen.of("a"), [0]);
            clock.advance(300 * SECOND).await;
            publish(&publisher, "a", [4]).await;
            clock.settle().await;
            assert_eq!(seen.of("a"), [0], "it is parked for good");

            if order == DeadOrder::Replay {
                poison.set(1, None);
            }
            store.store.order_dead(&books(), &[dead[0].event.id], order).await.unwrap();
            clock.settle().await;
            let restored: &[u64] = if order == DeadOrder::Replay { &[0, 1, 2, 3, 4] } else { &[0, 2, 3, 4] };
            assert_eq!(seen.of("a"), restored);
            publish(&publisher, "a", [5]).await;
            clock.settle().await;
            assert_eq!(seen.of("a").last(), Some(&5));
            consumer.drain().await.unwrap();
        });
    }
}

#[test]
fn a_panic_and_a_time_out_are_failures_and_some_are_for_good() {
    block_on(async {
        let (clock, store) = hand_driven(4).await;
        let tenure = process(&clock, &store, "m0").await;
        let publisher = tenure.publisher("orders").unwrap();
        let (seen, poison) = (Seen::default(), Poison::default());
        poison.set(1, Some(Does::Panics));
        poison.set(2, Some(Does::Hangs));
        poison.set(3, Some(Does::Dies));
        for (key, n) in [("a", 1), ("b", 2), ("c", 3), ("d", 4)] {
            publish(&publisher, key, [n]).await;
        }
        let _consumer = failing(&tenure, &seen, &poison, 1).await;
        clock.advance(120 * SECOND).await;
        assert_eq!(seen.all(), [("d".to_owned(), 4)], "the consumer lives on");
        let mut dead: Vec<_> =
            dead(&store).await.into_iter().map(|it| (number(&it.event), it.attempts, it.error)).collect();
        dead.sort();
        assert_eq!(dead[0], (1, 3, "panicked: the test wants this".into()));
        assert_eq!(dead[1], (2, 3, "the handler did not return within 5s".into()));
        assert_eq!(dead[2], (3, 1, "no such printer".into()), "one attempt is enough to know");
    });
}

#[test]
fn what_passes_is_never_dead_nor_counted_and_nothing_overtakes_it() {
    block_on(async {
        let (clock, store) = hand_driven(1).await;
        let tenure = process(&clock, &store, "m0").await;
        let publisher = tenure.publisher("orders").unwrap();
        let (seen, poison) = (Seen::default(), Poison::default());
        (0..4).for_each(|n| poison.set(n, Some(Does::Passes)));
        publish(&publisher, "a", 0..4).await;
        let consumer = failing(&tenure, &seen, &poison, 1).await;
        clock.advance(300 * SECOND).await;
        assert!(
            aside(&store).await.is_empty() && seen.all().is_empty(),
            "where nothing gets through, nothing is set aside"
        );
        (0..4).for_each(|n| poison.set(n, None));
        clock.advance(10 * SECOND).await;
        assert_eq!(seen.of("a"), [0, 1, 2, 3]);
        consumer.drain().await.unwrap();
    });
}

/// One event met a statement time-out whenever it was tried: no slot of its member was read any more.
#[test]
fn what_always_passes_holds_up_its_own_key_and_no_other() {
    for (slots, concurrency) in [(1, 1), (4, 1), (1, 4)] {
        block_on(async {
            let (clock, store) = hand_driven(slots).await;
            let tenure = process(&clock, &store, "m0").await;
            let publisher = tenure.publisher("orders").unwrap();
            let (seen, poison) = (Seen::default(), Poison::default());
            poison.set(1, Some(Does::Passes));
            publish(&publisher, "a", 0..4).await;
            let others = ["b", "c", "d", "e"];
            for key in others {
                publish(&publisher, key, 10..13).await;
            }
            let consumer = failing(&tenure, &seen, &poison, concurrency).await;
            clock.advance(30 * SECOND).await;
            assert_eq!(seen.of("a"), [0], "{slots} slots, {concurrency} lanes");
            others.iter().for_each(|key| assert_eq!(seen.of(key), [10, 11, 12], "{key}"));
            for key in others {
                publish(&publisher, key, [13]).await;
            }
            clock.advance(600 * SECOND).await;
            others.iter().for_each(|key| assert_eq!(seen.of(key), [10, 11, 12, 13], "{key}"));
            let waiting = aside(&store).await;
            let waiting: Vec<_> =
                waiting.iter().map(|it| (number(&it.event), it.attempts, it.dead)).collect();
            assert_eq!(waiting, [(1, 1, false), (2, 0, false), (3, 0, false)]);
            poison.set(1, None);
            clock.advance(10 * SECOND).await;
            assert_eq!(seen.of("a"), [0, 1, 2, 3]);
            assert!(aside(&store).await.is_empty());
            consumer.drain().await.unwrap();
        });
    }
}

/// A batch failed, its first units were done and committed one by one, and then one met what passes: the batch was given again from its
/// beginning, under the same token, and what was done in the handlers' transactions was done twice.
#[test]
fn what_was_done_before_something_passed_is_not_done_again() {
    for concurrency in [1, 4] {
        block_on(async {
            let (clock, store) = hand_driven(1).await;
            let tenure = process(&clock, &store, "m0").await;
            let publisher = tenure.publisher("orders").unwrap();
            let (seen, poison) = (Seen::default(), Poison::default());
            poison.set(3, Some(Does::Fails));
            poison.set(5, Some(Does::Passes));
            for (key, n) in [("a", 1), ("b", 2), ("c", 3), ("a", 4), ("d", 5), ("a", 6)] {
                publish(&publisher, key, [n]).await;
            }
            let consumer = failing(&tenure, &seen, &poison, concurrency).await;
            clock.advance(SECOND / 2).await;
            poison.set(5, None);
            clock.advance(10 * SECOND).await;
            assert_eq!(seen.of("a"), [1, 4, 6], "{concurrency} lanes");
            assert_eq!((seen.of("b"), seen.of("d")), (vec![2], vec![5]), "{concurrency} lanes");
            assert_eq!(aside(&store).await.len(), 1, "the one that fails");
            consumer.drain().await.unwrap();
        });
    }
}

/// It comes alone, to a slot of its own: the others come later.
#[test]
fn what_always_passes_does_not_keep_what_comes_later_from_being_read() {
    block_on(async {
        let (clock, store) = hand_driven(1).await;
        let tenure = process(&clock, &store, "m0").await;
        let publisher = tenure.publisher("orders").unwrap();
        let (seen, poison) = (Seen::default(), Poison::default());
        poison.set(1, Some(Does::Passes));
        publish(&publisher, "a", [1]).await;
        let consumer = failing(&tenure, &seen, &poison, 1).await;
        clock.advance(60 * SECOND).await;
        publish(&publisher, "b", [2, 3]).await;
        clock.advance(60 * SECOND).await;
        assert_eq!((seen.of("a"), seen.of("b")), (vec![], vec![2, 3]));
        assert_eq!(aside(&store).await.len(), 1);
        consumer.drain().await.unwrap();
    });
}

#[test]
fn a_retried_event_meets_what_passes_and_is_not_counted_for_it() {
    block_on(async {
        let (clock, store) = hand_driven(1).await;
        let tenure = process(&clock, &store, "m0").await;
        let publisher = tenure.publisher("orders").unwrap();
        let (seen, poison) = (Seen::default(), Poison::default());
        poison.set(1, Some(Does::Fails));
        publish(&publisher, "a", [1, 2]).await;
        let consumer = failing(&tenure, &seen, &poison, 1).await;
        clock.settle().await;
        poison.set(1, Some(Does::Passes));
        clock.advance(600 * SECOND).await;
        assert_eq!(aside(&store).await[0].attempts, 1);
        poison.set(1, None);
        clock.advance(10 * SECOND).await;
        assert_eq!(seen.of("a"), [1, 2]);
        consumer.drain().await.unwrap();
    });
}

#[test]
fn of_what_was_published_together_only_what_fails_is_set_aside() {
    block_on(async {
        let (clock, store) = hand_driven(1).await;
        let tenure = process(&clock, &store, "m0").await;
        let publisher = tenure.publisher("orders").unwrap();
        let (seen, poison) = (Seen::default(), Poison::default());
        poison.set(3, Some(Does::Fails));
        let together =
            [("a", 1), ("b", 2), ("a", 3), ("", 4), ("a", 5), ("b", 6)].map(|(key, n)| event(key, n));
        publisher.publish_all(&together).await.unwrap();
        let _consumer = failing(&tenure, &seen, &poison, 1).await;
        clock.settle().await;
        assert_eq!((seen.of("a"), seen.of("b"), seen.of("")), (vec![1], vec![2, 6], vec![4]));
        let waiting: Vec<_> = aside(&store).await.iter().map(|it| number(&it.event)).collect();
        assert_eq!(waiting, [3, 5]);
        let view = group(&store).await;
        assert_eq!((view.lag(), view.aside, view.dead), ((0, true), 2, 0));
    });
}

#[test]
fn an_event_without_a_key_stands_for_itself() {
    block_on(async {
        let (clock, store) = hand_driven(1).await;
        let tenure = process(&clock, &store, "m0").await;
        let publisher = tenure.publisher("orders").unwrap();
        let (seen, poison) = (Seen::default(), Poison::default());
        poison.set(1, Some(Does::Fails));
        publish(&publisher, "", 0..4).await;
        let consumer = failing(&tenure, &seen, &poison, 1).await;
        clock.settle().await;
        assert_eq!(seen.of(""), [0, 2, 3]);
        poison.set(1, None);
        clock.advance(2 * SECOND).await;
        assert_eq!(seen.of(""), [0, 2, 3, 1]);
        assert!(aside(&store).await.is_empty());
        consumer.drain().await.unwrap();
    });
}

#[test]
fn what_is_aside_goes_with_the_slot_and_keeps_its_order() {
    block_on(async {
        let (clock, store) = hand_driven(1).await;
        let (first, second) = (process(&clock, &store, "m0").await, process(&clock, &store, "m1").await);
        let publisher = first.publisher("orders").unwrap();
        let (seen, poison) = (Seen::default(), Poison::default());
        poison.set(1, Some(Does::Fails));
        let consumer = failing(&first, &seen, &poison, 1).await;
        publish(&publisher, "a", 0..3).await;
        clock.settle().await;
        consumer.drain().await.unwrap();
        let consumer = failing(&second, &seen, &poison, 1).await;
        // What had it last is gone, and the group gathers.
        clock.advance(4 * SECOND).await;
        publish(&publisher, "a", [3]).await;
        clock.settle().await;
        assert_eq!(seen.of("a"), [0]);
        poison.set(1, None);
        clock.advance(60 * SECOND).await;
        assert_eq!(seen.of("a"), [0, 1, 2, 3]);
        consumer.drain().await.unwrap();
    });
}

#[test]
fn what_the_handler_did_is_said_until_the_store_hears_it_and_not_done_again() {
    for fault in [Fault::Fails, Fault::AnswerLost] {
        block_on(async {
            let (clock, store) = hand_driven(2).await;
            let tenure = process(&clock, &store, "m0").await;
            let (publisher, seen) = (tenure.publisher("orders").unwrap(), Seen::default());
            let consumer = member(&tenure, &seen).start().await.unwrap();
            clock.settle().await;
            store.fault("commit_shares", Some(fault));
            publish(&publisher, "a", [1]).await;
            clock.advance(30 * SECOND).await;
            store.fault("commit_shares", None);
            clock.advance(10 * SECOND).await;
            assert_eq!(seen.of("a"), [1]);
            assert_eq!(group(&store).await.lag(), (0, true));
            consumer.drain().await.unwrap();
        });
    }
}

#[test]
fn a_store_that_is_away_for_a_while_costs_nothing_but_time() {
    for call in ["read_events", "doze_topic", "look_group", "take_shares", "aside_keys", "aside"] {
        block_on(async {
            let (clock, store) = hand_driven(2).await;
            let tenure = process(&clock, &store, "m0").await;
            let publisher = tenure.publisher("orders").unwrap();
            let (seen, poison) = (Seen::default(), Poison::default());
            poison.set(1, Some(Does::Fails));
            store.fault(call, Some(Fault::Fails));
            let consumer = failing(&tenure, &seen, &poison, 1).await;
            publish(&publisher, "a", 0..3).await;
            clock.advance(30 * SECOND).await;
            store.fault(call, None);
            poison.set(1, None);
            clock.advance(60 * SECOND).await;
            for id in dead(&store).await {
                store.store.order_dead(&books(), &[id.event.id], DeadOrder::Replay).await.unwrap();
            }
            clock.advance(60 * SECOND).await;
            assert_eq!(seen.of("a"), [0, 1, 2], "{call}");
            consumer.drain().await.unwrap();
        });
    }
}

#[test]
fn a_drain_lets_the_handler_finish_and_begins_nothing_more() {
    block_on(async {
        let (clock, store) = hand_driven(1).await;
        let tenure = process(&clock, &store, "m0").await;
        let publisher = tenure.publisher("orders").unwrap();
        let (open, begun) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
        let (gate, count) = (open.clone(), begun.clone());
        let slow = move |_: Batch| {
            let (gate, count) = (gate.clone(), count.clone());
            async move {
                count.fetch_add(1, Ordering::SeqCst);
                gate.acquire().await.unwrap().forget();
            }
        };
        let consumer = tenure.consumer("orders", "books").batch(1).handler(slow).start().await.unwrap();
        publish(&publisher, "a", 0..3).await;
        clock.settle().await;
        let draining = tokio::spawn(consumer.drain());
        clock.settle().await;
        assert!(!draining.is_finished());
        open.add_permits(1);
        assert!(matches!(draining.await.unwrap(), Ok(Drained { cut_short: 0, .. })));
        assert_eq!(begun.load(Ordering::SeqCst), 1);
        let view = group(&store).await;
        assert_eq!((view.lag().0, view.members.len(), owners(&store).await.len()), (2, 0, 0));
        assert!(view.slots[0].share.position > 0, "what it finished counts");
    });
}

#[test]
fn a_drain_cuts_a_handler_short_that_does_not_end_within_the_grace() {
    block_on(async {
        let (clock, store) = hand_driven(1).await;
        let tenure = process(&clock, &store, "m0").await;
        let publisher = tenure.publisher("orders").unwrap();
        let hang = |_: Batch| std::future::pending::<()>();
        let builder = tenure.consumer("orders", "books").grace(Duration::from_secs(3)).handler(hang);
        let consumer = builder.start().await.unwrap();
        publish(&publisher, "a", [1]).await;
        clock.settle().await;
        let draining = tokio::spawn(consumer.drain());
        clock.advance(4 * SECOND).await;
        let drained: Result<Drained, Error> = draining.await.unwrap();
        assert_eq!(drained.unwrap().cut_short, 1);
        assert_eq!((group(&store).await.lag().0, owners(&store).await.len()), (1, 0));
    });
}

#[test]
fn what_is_done_of_a_batch_in_lanes_is_not_done_again_by_the_next_holder() {
    block_on(async {
        let (clock, store) = hand_driven(1).await;
        let (first, second) = (process(&clock, &store, "m0").await, process(&clock, &store, "m1").await);
        let publisher = first.publisher("orders").unwrap();
        let (seen, poison) = (Seen::default(), Poison::default());
        poison.set(10, Some(Does::Hangs));
        publisher
            .publish_all(&[event("a", 1), event("b", 10), event("a", 2), event("b", 11), event("c", 20)])
            .await
            .unwrap();
        let hung = failing(&first, &seen, &poison, 3).await;
        clock.settle().await;
        assert_eq!((seen.of("a"), seen.of("c"), seen.of("b")), (vec![1, 2], vec![20], vec![]));
        drop(hung);
        clock.settle().await;
        poison.set(10, None);
        let consumer = failing(&second, &seen, &poison, 3).await;
        clock.advance(4 * SECOND).await;
        assert_eq!((seen.of("a"), seen.of("c"), seen.of("b")), (vec![1, 2], vec![20], vec![10, 11]));
        assert_eq!(group(&store).await.lag(), (0, true));
        consumer.drain().await.unwrap();
    });
}

#[test]
fn a_lane_of_which_nobody_knows_whether_it_counts_is_not_passed_over_by_those_beside_it() {
    block_on(async {
        // Two keys in one slot, beside one another: what the slot's position says is said after both.
        let (clock, store) = hand_driven(1).await;
        let tenure = process(&clock, &store, "m0").await;
        let publisher = tenure.publisher("orders").unwrap();
        publish(&publisher, "a", [0]).await;
        publish(&publisher, "b", [10]).await;
        let (seen, refused) = (Seen::default(), Arc::new(Semaphore::new(0)));
        let handler = {
            let (seen, store, refused) = (seen.clone(), store.clone(), refused.clone());
            move |batch: Batch| {
                let (seen, store, refused) = (seen.clone(), store.clone(), refused.clone());
                let key = batch.iter().next().unwrap().key.clone().unwrap();
                let first = seen.of(&key).is_empty();
                seen.add(&batch);
                async move {
                    match (first, key.as_str()) {
                        (true, "a") => store.fault("commit_shares", Some(Fault::Refused)),
                        (true, _) => refused.acquire().await.unwrap().forget(),
                        _ => {}
                    }
                }
            }
        };
        let builder = tenure.consumer("orders", "books").concurrency(2).handler(handler);
        let consumer = builder.start().await.unwrap();
        clock.settle().await;
        assert_eq!(store.calls("commit_shares"), 1, "the first of them is refused");
        store.fault("commit_shares", None);
        refused.add_permits(1);
        clock.advance(SECOND).await;
        assert_eq!((seen.of("a"), seen.of("b")), (vec![0, 0], vec![10]));
        assert_eq!(group(&store).await.lag(), (0, true));
        consumer.drain().await.unwrap();
    });
}

/// The answer to a look at what is aside was older than the failure that parked a key, and took the key out again: what followed the
/// event that had failed was handled before it.
#[test]
fn a_look_that_was_under_way_when_a_key_failed_lets_nothing_overtake_it() {
    block_on(async {
        let (clock, store) = hand_driven(1).await;
        let tenure = process(&clock, &store, "m0").await;
        let publisher = tenure.publisher("orders").unwrap();
        let (seen, poison) = (Seen::default(), Poison::default());
        poison.set(9, Some(Does::Dies));
        publish(&publisher, "x", [9]).await;
        let consumer = failing(&tenure, &seen, &poison, 1).await;
        clock.settle().await;
        assert_eq!(dead(&store).await.len(), 1, "so that there is something to look at");

        store.fault("aside_keys", Some(Fault::AnswerLate));
        let before = store.calls("aside_keys");
        store.store.set_group(&books(), &SETTINGS, Begin::Earliest).await.unwrap();
        clock.settle().await;
        assert_eq!(store.calls("aside_keys"), before + 1, "the look is under way");
        poison.set(1, Some(Does::Fails));
        poison.set(5, Some(Does::Hangs));
        let together = [("k", 1), ("m", 5), ("k", 2)].map(|(key, n)| event(key, n));
        publisher.publish_all(&together).await.unwrap();
        clock.settle().await;
        store.fault("aside_keys", None);
        clock.advance(6 * SECOND).await;
        assert_eq!(seen.of("k"), [0; 0], "the second of a key whose first has failed");
        poison.set(1, None);
        poison.set(5, None);
        clock.advance(60 * SECOND).await;
        assert_eq!((seen.of("k"), seen.of("m")), (vec![1, 2], vec![5]));
        consumer.drain().await.unwrap();
    });
}

/// Each event that was tried again asked for all keys that were aside.
#[test]
fn with_very_many_keys_aside_a_retry_looks_at_its_own() {
    block_on(async {
        let (clock, store) = hand_driven(1).await;
        let tenure = process(&clock, &store, "m0").await;
        let publisher = tenure.publisher("orders").unwrap();
        let (seen, poison) = (Seen::default(), Poison::default());
        let consumer = failing(&tenure, &seen, &poison, 1).await;
        clock.settle().await;
        for n in 0..200 {
            poison.set(n, Some(Does::Fails));
            publish(&publisher, &format!("key-{n}"), [n, n + 1_000]).await;
        }
        clock.settle().await;
        assert_eq!(aside(&store).await.len(), 400);
        let before = store.calls("aside_keys");
        (0..200).for_each(|n| poison.set(n, None));
        clock.advance(30 * SECOND).await;
        assert!(aside(&store).await.is_empty());
        for n in 0..200 {
            assert_eq!(seen.of(&format!("key-{n}")), [n, n + 1_000]);
        }
        let looks = store.calls("aside_keys") - before;
        assert!(looks < 20, "{looks} looks at all keys for 400 events");
        publish(&publisher, "key-7", [2_007]).await;
        clock.settle().await;
        assert_eq!(seen.of("key-7"), [7, 1_007, 2_007], "and the keys flow");
        consumer.drain().await.unwrap();
    });
}
