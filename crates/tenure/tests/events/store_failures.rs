//! Stores that fail, reject, or respond late.

use std::sync::Arc;

use tenure::EventBatch;
use tenure::port::*;
use tenure_testkit::block_on;
use tokio::sync::Semaphore;

use crate::instrumented_store::Fault;
use crate::poison::*;
use crate::support::*;

#[test]
fn a_commit_is_retried_until_confirmed_without_calling_the_handler_again() {
    for fault in [Fault::Fails, Fault::ResponseLost] {
        block_on(async {
            let (clock, store) = manual_clock(2).await;
            let tenure = process(&clock, &store, "m0").await;
            let (publisher, received) = (tenure.publisher("orders").unwrap(), ReceivedEvents::default());
            let consumer = member(&tenure, &received).start().await.unwrap();
            clock.settle().await;
            store.fault("commit_partitions", Some(fault));
            publish(&publisher, "a", [1]).await;
            clock.advance(30 * SECOND).await;
            store.fault("commit_partitions", None);
            clock.advance(10 * SECOND).await;
            assert_eq!(received.of("a"), [1]);
            assert_eq!(group(&store).await.lag(), (0, true));
            consumer.drain().await.unwrap();
        });
    }
}

#[test]
fn a_store_outage_only_delays_events() {
    for call in [
        "read_events",
        "register_topic_waiter",
        "group_assignment",
        "take_partitions",
        "parked_keys",
        "parked_events",
    ] {
        block_on(async {
            let TestTopic { clock, store, tenure, publisher, received, poison } = test_topic(2).await;
            poison.set(1, Some(Behavior::Fail));
            store.fault(call, Some(Fault::Fails));
            let consumer = failing(&tenure, &received, &poison, 1).await;
            publish(&publisher, "a", 0..3).await;
            clock.advance(30 * SECOND).await;
            store.fault(call, None);
            poison.set(1, None);
            clock.advance(60 * SECOND).await;
            for id in dead(&store).await {
                store
                    .store
                    .apply_dead_letter_action(&books(), &[id.event.id], DeadLetterAction::Replay)
                    .await
                    .unwrap();
            }
            clock.advance(60 * SECOND).await;
            assert_eq!(received.of("a"), [0, 1, 2], "{call}");
            consumer.drain().await.unwrap();
        });
    }
}

#[test]
fn a_call_of_unknown_outcome_is_not_skipped_by_concurrent_calls() {
    block_on(async {
        // Two keys in one partition, handled concurrently: the offset of the partition is committed after both.
        let TestTopic { clock, store, tenure, publisher, .. } = test_topic(1).await;
        publish(&publisher, "a", [0]).await;
        publish(&publisher, "b", [10]).await;
        let (received, refused) = (ReceivedEvents::default(), Arc::new(Semaphore::new(0)));
        let handler = {
            let (received, store, refused) = (received.clone(), store.clone(), refused.clone());
            move |batch: EventBatch| {
                let (received, store, refused) = (received.clone(), store.clone(), refused.clone());
                let key = batch.iter().next().unwrap().key.clone().unwrap();
                let first = received.of(&key).is_empty();
                received.add(&batch);
                async move {
                    match (first, key.as_str()) {
                        (true, "a") => store.fault("commit_partitions", Some(Fault::Refused)),
                        (true, _) => refused.acquire().await.unwrap().forget(),
                        _ => {}
                    }
                }
            }
        };
        let builder = tenure.consumer("orders", "books").concurrency(2).handler(handler);
        let consumer = builder.start().await.unwrap();
        clock.settle().await;
        assert_eq!(store.calls("commit_partitions"), 1, "the first commit is rejected");
        store.fault("commit_partitions", None);
        refused.add_permits(1);
        clock.advance(SECOND).await;
        assert_eq!((received.of("a"), received.of("b")), (vec![0, 0], vec![10]));
        assert_eq!(group(&store).await.lag(), (0, true));
        consumer.drain().await.unwrap();
    });
}

/// Regression: the response to a read of parked keys was older than the failure that parked a key, and unparked
/// it: later events of the key overtook the failed one.
#[test]
fn a_read_that_was_running_when_a_key_failed_does_not_unpark_it() {
    block_on(async {
        let TestTopic { clock, store, tenure, publisher, received, poison } = test_topic(1).await;
        poison.set(9, Some(Behavior::FailPermanently));
        publish(&publisher, "x", [9]).await;
        let consumer = failing(&tenure, &received, &poison, 1).await;
        clock.settle().await;
        assert_eq!(dead(&store).await.len(), 1, "one parked key exists");

        store.fault("parked_keys", Some(Fault::ResponseLate));
        let before = store.calls("parked_keys");
        store.store.set_group(&books(), &SETTINGS, StartOffset::Earliest).await.unwrap();
        clock.settle().await;
        assert_eq!(store.calls("parked_keys"), before + 1, "the read is running");
        poison.set(1, Some(Behavior::Fail));
        poison.set(5, Some(Behavior::Hang));
        let together = [("k", 1), ("m", 5), ("k", 2)].map(|(key, n)| event(key, n));
        publisher.publish_all(&together).await.unwrap();
        clock.settle().await;
        store.fault("parked_keys", None);
        clock.advance(6 * SECOND).await;
        assert_eq!(received.of("k"), [0; 0], "the second event of a key overtook the failed first one");
        poison.set(1, None);
        poison.set(5, None);
        clock.advance(60 * SECOND).await;
        assert_eq!((received.of("k"), received.of("m")), (vec![1, 2], vec![5]));
        consumer.drain().await.unwrap();
    });
}
