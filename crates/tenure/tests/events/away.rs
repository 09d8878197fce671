//! Stores that are away, refuse, or answer late.

use std::sync::Arc;

use tenure::Batch;
use tenure::port::*;
use tenure_testkit::block_on;
use tokio::sync::Semaphore;

use crate::poison::*;
use crate::spy::Fault;
use crate::support::*;

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
            let Scene { clock, store, tenure, publisher, seen, poison } = scene(2).await;
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
fn a_lane_of_which_nobody_knows_whether_it_counts_is_not_passed_over_by_those_beside_it() {
    block_on(async {
        // Two keys in one slot, beside one another: what the slot's position says is said after both.
        let Scene { clock, store, tenure, publisher, .. } = scene(1).await;
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
        let Scene { clock, store, tenure, publisher, seen, poison } = scene(1).await;
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
