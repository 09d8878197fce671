//! Publishing and consuming, when all is well.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use tenure::port::*;
use tenure::{Batch, Error};
use tenure_testkit::block_on;
use tokio::sync::Semaphore;

use crate::spy::Fault;
use crate::support::*;

#[test]
fn what_is_published_is_consumed_in_order_and_once() {
    block_on(async {
        let (clock, store) = hand_driven(8).await;
        let tenure = process(&clock, &store, "a").await;
        let (publisher, seen) = (tenure.publisher("orders").unwrap(), Seen::default());
        publish(&publisher, "before", 0..3).await;
        let consumer = member(&tenure, &seen).start().await.unwrap();
        clock.settle().await;
        assert_eq!(seen.of("before"), [0, 1, 2]);
        for n in 0..5 {
            publish(&publisher, "a", [n]).await;
            publish(&publisher, "b", [n]).await;
        }
        clock.settle().await;
        assert_eq!((seen.of("a"), seen.of("b")), (vec![0, 1, 2, 3, 4], vec![0, 1, 2, 3, 4]));
        assert_eq!(seen.all().len(), 13);
        assert_eq!(group(&store).await.lag(), (0, true));
        assert_eq!(consumer.slots(), (0..8).collect::<Vec<_>>());
        assert_eq!(consumer.drain().await.unwrap().cut_short, 0);
        assert!(owners(&store).await.is_empty());
        tenure.close().await.unwrap();
    });
}

#[test]
fn publications_at_the_same_time_share_statements_and_keep_their_order() {
    block_on(async {
        let (clock, store) = hand_driven(1).await;
        let tenure = process(&clock, &store, "a").await;
        let publisher = tenure.publisher("orders").unwrap();
        store.fault("publish", Some(Fault::Waits));
        let publishing: Vec<_> = (0..200)
            .map(|n| {
                let publisher = publisher.clone();
                tokio::spawn(async move { publisher.publish(event("a", n)).await.unwrap() })
            })
            .collect();
        clock.settle().await;
        store.fault("publish", None);
        let published = join_all(publishing).await;
        assert!(store.calls("publish") <= 2, "{} statements for 200 events", store.calls("publish"));
        assert!(published.iter().all(|one| one.as_ref().unwrap().new));
        let read = ReadAsk { topic: orders(), after: vec![(0, 0)], limit: 1000 };
        let events = store.store.read_events(&read).await.unwrap();
        assert_eq!(events.iter().map(number).collect::<Vec<_>>(), (0..200).collect::<Vec<_>>());
    });
}

#[test]
fn an_event_that_is_refused_refuses_no_other_that_was_published_at_the_same_time() {
    block_on(async {
        let (clock, store) = hand_driven(4).await;
        let small = TopicSettings { slots: 4, max_bytes: 10, ..TopicSettings::default() };
        store.store.set_topic(&orders(), &small).await.unwrap();
        let tenure = process(&clock, &store, "a").await;
        let publisher = tenure.publisher("orders").unwrap();
        let long = NewEvent { payload: Payload::Bytes(vec![0; 11]), ..NewEvent::new("k") };
        let all = (0..10).map(|n| {
            let event = if n == 5 { long.clone() } else { event("a", n) };
            publisher.publish(event)
        });
        let good: Vec<bool> = join_all(all).await.iter().map(Result::is_ok).collect();
        assert_eq!(good, [true, true, true, true, true, false, true, true, true, true]);
    });
}

#[test]
fn a_topic_that_is_not_there_is_named_with_the_remedy() {
    block_on(async {
        let (clock, store) = hand_driven(4).await;
        let tenure = process(&clock, &store, "a").await;
        let error = tenure.publisher("nowhere").unwrap().publish(event("a", 1)).await.unwrap_err();
        assert!(matches!(&error, Error::Store(error) if error.kind == Trouble::Request), "{error:?}");
        assert!(error.to_string().contains("tenure events topics create nowhere"), "{error}");
        let consumer = tenure.consumer("nowhere", "books").handler(|_| async {}).start().await;
        assert!(matches!(consumer.err(), Some(Error::Store(error)) if error.kind == Trouble::Request));
    });
}

#[test]
fn a_consumer_that_makes_no_sense_does_not_start() {
    block_on(async {
        let (clock, store) = hand_driven(4).await;
        let tenure = process(&clock, &store, "a").await;
        let builder = || tenure.consumer("orders", "books");
        let plain = || builder().handler(|_| async {});
        for refused in [builder(), plain().batch(0), plain().concurrency(0), plain().batch(1_000_000)] {
            assert!(matches!(refused.start().await, Err(Error::Consumer(_))));
        }
        // A session is one member of a group.
        let consumer = plain().start().await.unwrap();
        assert!(matches!(plain().start().await, Err(Error::Consumer(_))));
        consumer.drain().await.unwrap();
        let again = plain().start().await.unwrap();
        again.drain().await.unwrap();
    });
}

#[test]
fn a_new_group_begins_where_it_is_told() {
    block_on(async {
        let (clock, store) = hand_driven(4).await;
        let tenure = process(&clock, &store, "a").await;
        let (publisher, seen) = (tenure.publisher("orders").unwrap(), Seen::default());
        publish(&publisher, "a", 0..3).await;
        let consumer = member(&tenure, &seen).from(Begin::Latest).start().await.unwrap();
        clock.settle().await;
        publish(&publisher, "a", 3..5).await;
        clock.settle().await;
        assert_eq!(seen.of("a"), [3, 4]);
        consumer.drain().await.unwrap();
    });
}

#[test]
fn who_sleeps_is_woken_by_a_publication_and_finds_it_by_polling_if_the_ring_is_lost() {
    block_on(async {
        let (clock, store) = hand_driven(4).await;
        let (reader, writer) = (process(&clock, &store, "a").await, process(&clock, &store, "b").await);
        let seen = Seen::default();
        let _consumer = member(&reader, &seen).start().await.unwrap();
        clock.advance(60 * SECOND).await;
        let publisher = writer.publisher("orders").unwrap();
        publish(&publisher, "a", [1]).await;
        clock.settle().await;
        assert_eq!(seen.of("a"), [1], "at once");
        // From here on nobody says that they doze, so nobody rings.
        clock.advance(60 * SECOND).await;
        store.fault("doze_topic", Some(Fault::Fails));
        clock.advance(60 * SECOND).await;
        publish(&publisher, "a", [2]).await;
        clock.advance(10 * SECOND).await;
        assert_eq!(seen.of("a"), [1, 2]);
    });
}

#[test]
fn who_sleeps_asks_about_once_a_second() {
    block_on(async {
        let (clock, store) = hand_driven(4).await;
        let tenure = process(&clock, &store, "a").await;
        let _consumer = idle(&tenure).await;
        clock.advance(10 * SECOND).await;
        let before = store.calls("read_events");
        clock.advance(100 * SECOND).await;
        let reads = store.calls("read_events") - before;
        assert!((80..=130).contains(&reads), "{reads} reads in 100 seconds");
    });
}

#[test]
fn an_event_now_and_then_costs_a_read_a_word_and_a_look() {
    block_on(async {
        let (clock, store) = hand_driven(4).await;
        let tenure = process(&clock, &store, "a").await;
        let (publisher, seen) = (tenure.publisher("orders").unwrap(), Seen::default());
        let _consumer = member(&tenure, &seen).start().await.unwrap();
        clock.advance(10 * SECOND).await;
        let calls = || ["read_events", "doze_topic", "commit_shares"].map(|call| store.calls(call));
        let before = calls();
        for n in 0..10 {
            publish(&publisher, "a", [n]).await;
            clock.settle().await;
        }
        let after = calls();
        assert_eq!(seen.of("a").len(), 10);
        assert_eq!([after[0] - before[0], after[1] - before[1], after[2] - before[2]], [20, 10, 10]);
    });
}

#[test]
fn the_next_batch_is_read_while_the_handler_has_this_one() {
    block_on(async {
        let (clock, store) = hand_driven(1).await;
        let tenure = process(&clock, &store, "a").await;
        let publisher = tenure.publisher("orders").unwrap();
        publish(&publisher, "a", 0..30).await;
        let (open, batches) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
        let (gate, count) = (open.clone(), batches.clone());
        let consumer = tenure
            .consumer("orders", "books")
            .batch(10)
            .handler(move |batch: Batch| {
                let (gate, count) = (gate.clone(), count.clone());
                async move {
                    assert_eq!(batch.len(), 10);
                    count.fetch_add(1, Ordering::SeqCst);
                    gate.acquire().await.unwrap().forget();
                }
            })
            .start()
            .await
            .unwrap();
        clock.settle().await;
        assert_eq!(batches.load(Ordering::SeqCst), 1);
        let reads = store.calls("read_events");
        assert_eq!(reads, 2, "this batch and the next, and no more");
        open.add_permits(1);
        clock.settle().await;
        assert_eq!((batches.load(Ordering::SeqCst), store.calls("read_events")), (2, 3));
        open.add_permits(2);
        clock.settle().await;
        assert_eq!(batches.load(Ordering::SeqCst), 3);
        consumer.drain().await.unwrap();
    });
}

#[test]
fn what_is_published_together_is_delivered_together() {
    block_on(async {
        let (clock, store) = hand_driven(1).await;
        let tenure = process(&clock, &store, "a").await;
        let publisher = tenure.publisher("orders").unwrap();
        for unit in 0..6 {
            let events: Vec<_> = (0..7).map(|n| event("a", unit * 10 + n)).collect();
            publisher.publish_all(&events).await.unwrap();
        }
        let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
        let batches = seen.clone();
        let consumer = tenure
            .consumer("orders", "books")
            .batch(10)
            .handler(move |batch: Batch| {
                batches.lock().unwrap().push(batch.iter().map(number).collect::<Vec<_>>());
                async {}
            })
            .start()
            .await
            .unwrap();
        clock.settle().await;
        let seen = seen.lock().unwrap().clone();
        assert_eq!(seen.concat().len(), 42);
        assert!(seen.iter().all(|batch| batch.len() % 7 == 0), "{seen:?}");
        consumer.drain().await.unwrap();
    });
}

#[test]
fn keys_are_handled_beside_one_another_and_each_in_order() {
    block_on(async {
        let (clock, store) = hand_driven(1).await;
        let tenure = process(&clock, &store, "a").await;
        let publisher = tenure.publisher("orders").unwrap();
        for n in 0..5 {
            let events: Vec<_> = ["a", "b", "c", "d"].iter().map(|key| event(key, n)).collect();
            publisher.publish_all(&events).await.unwrap();
        }
        let (seen, at_once, most) =
            (Seen::default(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (told, now, peak) = (seen.clone(), at_once.clone(), most.clone());
        let consumer = tenure
            .consumer("orders", "books")
            .concurrency(4)
            .handler(move |batch: Batch| {
                let (told, now, peak) = (told.clone(), now.clone(), peak.clone());
                async move {
                    peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    told.add(&batch);
                    now.fetch_sub(1, Ordering::SeqCst);
                }
            })
            .start()
            .await
            .unwrap();
        clock.settle().await;
        assert_eq!(most.load(Ordering::SeqCst), 4);
        assert!(seen.by_key().values().all(|numbers| *numbers == [0, 1, 2, 3, 4]), "{:?}", seen.by_key());
        assert_eq!((seen.by_key().len(), group(&store).await.lag().0), (4, 0));
        consumer.drain().await.unwrap();
    });
}

#[test]
fn a_paused_group_reads_nothing_and_goes_on_when_it_is_resumed() {
    block_on(async {
        let (clock, store) = hand_driven(4).await;
        let tenure = process(&clock, &store, "a").await;
        let (publisher, seen) = (tenure.publisher("orders").unwrap(), Seen::default());
        let consumer = member(&tenure, &seen).start().await.unwrap();
        clock.settle().await;
        let pause = Pause { reason: "a test".into(), by: "me".into(), at_ms: 0 };
        store.store.set_group_paused(&books(), Some(&pause)).await.unwrap();
        clock.settle().await;
        publish(&publisher, "a", 0..3).await;
        clock.advance(30 * SECOND).await;
        assert!(seen.all().is_empty());
        store.store.set_group_paused(&books(), None).await.unwrap();
        clock.settle().await;
        assert_eq!(seen.of("a"), [0, 1, 2]);
        consumer.drain().await.unwrap();
    });
}

#[test]
fn a_reset_group_reads_again() {
    block_on(async {
        let (clock, store) = hand_driven(4).await;
        let tenure = process(&clock, &store, "a").await;
        let (publisher, seen) = (tenure.publisher("orders").unwrap(), Seen::default());
        let consumer = member(&tenure, &seen).start().await.unwrap();
        publish(&publisher, "a", 0..3).await;
        clock.settle().await;
        store.store.reset_group(&books(), Begin::Earliest, None, false).await.unwrap();
        clock.settle().await;
        assert_eq!(seen.of("a"), [0, 1, 2, 0, 1, 2]);
        consumer.drain().await.unwrap();
    });
}

#[test]
fn the_keeper_forgets_what_is_old_and_read_and_nothing_else() {
    block_on(async {
        let (clock, store) = hand_driven(2).await;
        let settings = TopicSettings { slots: 2, keep_ms: 60_000, ..TopicSettings::default() };
        store.store.set_topic(&orders(), &settings).await.unwrap();
        let tenure = process(&clock, &store, "m0").await;
        let publisher = tenure.publisher("orders").unwrap();
        let kept = async || store.store.topic(&orders()).await.unwrap().unwrap().events;
        let consumer = member(&tenure, &Seen::default()).start().await.unwrap();
        publish(&publisher, "a", [0, 1]).await;
        clock.advance(30 * SECOND).await;
        assert_eq!(kept().await, 2, "read, and not old");
        clock.advance(150 * SECOND).await;
        assert_eq!(kept().await, 0, "read, and old");
        let pause = Pause { by: "ada".into(), reason: String::new(), at_ms: 0 };
        store.store.set_group_paused(&books(), Some(&pause)).await.unwrap();
        publish(&publisher, "a", [2]).await;
        clock.advance(300 * SECOND).await;
        assert_eq!(kept().await, 1, "old, and not read");
        consumer.drain().await.unwrap();
    });
}
