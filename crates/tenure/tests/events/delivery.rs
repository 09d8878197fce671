//! Publishing and consuming without faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use tenure::port::*;
use tenure::{Error, EventBatch};
use tenure_testkit::block_on;
use tokio::sync::Semaphore;

use crate::instrumented_store::Fault;
use crate::support::*;

#[test]
fn published_events_are_consumed_in_order_and_once() {
    block_on(async {
        let (clock, store) = manual_clock(8).await;
        let tenure = process(&clock, &store, "a").await;
        let (publisher, received) = (tenure.publisher("orders").unwrap(), ReceivedEvents::default());
        publish(&publisher, "before", 0..3).await;
        let consumer = member(&tenure, &received).start().await.unwrap();
        clock.settle().await;
        assert_eq!(received.of("before"), [0, 1, 2]);
        for n in 0..5 {
            publish(&publisher, "a", [n]).await;
            publish(&publisher, "b", [n]).await;
        }
        clock.settle().await;
        assert_eq!((received.of("a"), received.of("b")), (vec![0, 1, 2, 3, 4], vec![0, 1, 2, 3, 4]));
        assert_eq!(received.all().len(), 13);
        assert_eq!(group(&store).await.lag(), (0, true));
        assert_eq!(consumer.partitions(), (0..8).collect::<Vec<_>>());
        assert_eq!(consumer.drain().await.unwrap().aborted, 0);
        assert!(owners(&store).await.is_empty());
        tenure.close().await.unwrap();
    });
}

#[test]
fn concurrent_publications_share_statements_and_keep_their_order() {
    block_on(async {
        let (clock, store) = manual_clock(1).await;
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
        assert!(published.iter().all(|one| one.as_ref().unwrap().created));
        let read = ReadEventsRequest { topic: orders(), after: vec![(0, 0)], limit: 1000 };
        let events = store.store.read_events(&read).await.unwrap();
        assert_eq!(events.iter().map(number).collect::<Vec<_>>(), (0..200).collect::<Vec<_>>());
    });
}

#[test]
fn a_rejected_event_does_not_fail_concurrent_publications() {
    block_on(async {
        let (clock, store) = manual_clock(4).await;
        let small = TopicSettings { partitions: 4, max_payload_bytes: 10, ..TopicSettings::default() };
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
fn the_error_about_a_missing_topic_names_it_and_the_remedy() {
    block_on(async {
        let (clock, store) = manual_clock(4).await;
        let tenure = process(&clock, &store, "a").await;
        let error = tenure.publisher("nowhere").unwrap().publish(event("a", 1)).await.unwrap_err();
        assert!(matches!(&error, Error::Store(error) if error.kind == ErrorKind::Request), "{error:?}");
        assert!(error.to_string().contains("tenure events topics create nowhere"), "{error}");
        let consumer = tenure.consumer("nowhere", "books").handler(|_| async {}).start().await;
        assert!(matches!(consumer.err(), Some(Error::Store(error)) if error.kind == ErrorKind::Request));
    });
}

#[test]
fn a_consumer_with_invalid_settings_does_not_start() {
    block_on(async {
        let (clock, store) = manual_clock(4).await;
        let tenure = process(&clock, &store, "a").await;
        let builder = || tenure.consumer("orders", "books");
        let plain = || builder().handler(|_| async {});
        for refused in [builder(), plain().batch(0), plain().concurrency(0), plain().batch(1_000_000)] {
            assert!(matches!(refused.start().await, Err(Error::Consumer(_))));
        }
        // A session can be a member of a group once.
        let consumer = plain().start().await.unwrap();
        assert!(matches!(plain().start().await, Err(Error::Consumer(_))));
        consumer.drain().await.unwrap();
        let again = plain().start().await.unwrap();
        again.drain().await.unwrap();
    });
}

#[test]
fn a_new_group_starts_at_the_requested_offset() {
    block_on(async {
        let (clock, store) = manual_clock(4).await;
        let tenure = process(&clock, &store, "a").await;
        let (publisher, received) = (tenure.publisher("orders").unwrap(), ReceivedEvents::default());
        publish(&publisher, "a", 0..3).await;
        let consumer = member(&tenure, &received).from(StartOffset::Latest).start().await.unwrap();
        clock.settle().await;
        publish(&publisher, "a", 3..5).await;
        clock.settle().await;
        assert_eq!(received.of("a"), [3, 4]);
        consumer.drain().await.unwrap();
    });
}

#[test]
fn a_waiting_consumer_is_notified_and_polls_if_the_notification_is_lost() {
    block_on(async {
        let (clock, store) = manual_clock(4).await;
        let (reader, writer) = (process(&clock, &store, "a").await, process(&clock, &store, "b").await);
        let received = ReceivedEvents::default();
        let _consumer = member(&reader, &received).start().await.unwrap();
        clock.advance(60 * SECOND).await;
        let publisher = writer.publisher("orders").unwrap();
        publish(&publisher, "a", [1]).await;
        clock.settle().await;
        assert_eq!(received.of("a"), [1], "without delay");
        // From here on no waiter is registered, so no notification is sent.
        clock.advance(60 * SECOND).await;
        store.fault("register_topic_waiter", Some(Fault::Fails));
        clock.advance(60 * SECOND).await;
        publish(&publisher, "a", [2]).await;
        clock.advance(10 * SECOND).await;
        assert_eq!(received.of("a"), [1, 2]);
    });
}

#[test]
fn a_waiting_consumer_polls_about_once_per_second() {
    block_on(async {
        let (clock, store) = manual_clock(4).await;
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
fn an_occasional_event_costs_few_store_calls() {
    block_on(async {
        let (clock, store) = manual_clock(4).await;
        let tenure = process(&clock, &store, "a").await;
        let (publisher, received) = (tenure.publisher("orders").unwrap(), ReceivedEvents::default());
        let _consumer = member(&tenure, &received).start().await.unwrap();
        clock.advance(10 * SECOND).await;
        let calls =
            || ["read_events", "register_topic_waiter", "commit_partitions"].map(|call| store.calls(call));
        let before = calls();
        for n in 0..10 {
            publish(&publisher, "a", [n]).await;
            clock.settle().await;
        }
        let after = calls();
        assert_eq!(received.of("a").len(), 10);
        assert_eq!([after[0] - before[0], after[1] - before[1], after[2] - before[2]], [20, 10, 10]);
    });
}

#[test]
fn the_next_batch_is_read_while_the_handler_runs() {
    block_on(async {
        let (clock, store) = manual_clock(1).await;
        let tenure = process(&clock, &store, "a").await;
        let publisher = tenure.publisher("orders").unwrap();
        publish(&publisher, "a", 0..30).await;
        let (open, batches) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
        let (gate, count) = (open.clone(), batches.clone());
        let consumer = tenure
            .consumer("orders", "books")
            .batch(10)
            .handler(move |batch: EventBatch| {
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
        assert_eq!(reads, 2, "this batch and the next one only");
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
fn events_published_together_are_delivered_together() {
    block_on(async {
        let (clock, store) = manual_clock(1).await;
        let tenure = process(&clock, &store, "a").await;
        let publisher = tenure.publisher("orders").unwrap();
        for commit in 0..6 {
            let events: Vec<_> = (0..7).map(|n| event("a", commit * 10 + n)).collect();
            publisher.publish_all(&events).await.unwrap();
        }
        let received = Arc::new(std::sync::Mutex::new(Vec::new()));
        let batches = received.clone();
        let consumer = tenure
            .consumer("orders", "books")
            .batch(10)
            .handler(move |batch: EventBatch| {
                batches.lock().unwrap().push(batch.iter().map(number).collect::<Vec<_>>());
                async {}
            })
            .start()
            .await
            .unwrap();
        clock.settle().await;
        let received = received.lock().unwrap().clone();
        assert_eq!(received.concat().len(), 42);
        assert!(received.iter().all(|batch| batch.len() % 7 == 0), "{received:?}");
        consumer.drain().await.unwrap();
    });
}

#[test]
fn keys_are_handled_concurrently_and_each_in_order() {
    block_on(async {
        let (clock, store) = manual_clock(1).await;
        let tenure = process(&clock, &store, "a").await;
        let publisher = tenure.publisher("orders").unwrap();
        for n in 0..5 {
            let events: Vec<_> = ["a", "b", "c", "d"].iter().map(|key| event(key, n)).collect();
            publisher.publish_all(&events).await.unwrap();
        }
        let (received, at_once, most) =
            (ReceivedEvents::default(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (recorder, now, peak) = (received.clone(), at_once.clone(), most.clone());
        let consumer = tenure
            .consumer("orders", "books")
            .concurrency(4)
            .handler(move |batch: EventBatch| {
                let (recorder, now, peak) = (recorder.clone(), now.clone(), peak.clone());
                async move {
                    peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    recorder.add(&batch);
                    now.fetch_sub(1, Ordering::SeqCst);
                }
            })
            .start()
            .await
            .unwrap();
        clock.settle().await;
        assert_eq!(most.load(Ordering::SeqCst), 4);
        assert!(
            received.by_key().values().all(|numbers| *numbers == [0, 1, 2, 3, 4]),
            "{:?}",
            received.by_key()
        );
        assert_eq!((received.by_key().len(), group(&store).await.lag().0), (4, 0));
        consumer.drain().await.unwrap();
    });
}

#[test]
fn a_paused_group_reads_nothing_and_continues_when_resumed() {
    block_on(async {
        let (clock, store) = manual_clock(4).await;
        let tenure = process(&clock, &store, "a").await;
        let (publisher, received) = (tenure.publisher("orders").unwrap(), ReceivedEvents::default());
        let consumer = member(&tenure, &received).start().await.unwrap();
        clock.settle().await;
        let pause = Pause { reason: "a test".into(), paused_by: "me".into(), paused_at_ms: 0 };
        store.store.set_group_paused(&books(), Some(&pause)).await.unwrap();
        clock.settle().await;
        publish(&publisher, "a", 0..3).await;
        clock.advance(30 * SECOND).await;
        assert!(received.all().is_empty());
        store.store.set_group_paused(&books(), None).await.unwrap();
        clock.settle().await;
        assert_eq!(received.of("a"), [0, 1, 2]);
        consumer.drain().await.unwrap();
    });
}

#[test]
fn a_reset_group_reads_again() {
    block_on(async {
        let (clock, store) = manual_clock(4).await;
        let tenure = process(&clock, &store, "a").await;
        let (publisher, received) = (tenure.publisher("orders").unwrap(), ReceivedEvents::default());
        let consumer = member(&tenure, &received).start().await.unwrap();
        publish(&publisher, "a", 0..3).await;
        clock.settle().await;
        store.store.reset_group(&books(), StartOffset::Earliest, None, false).await.unwrap();
        clock.settle().await;
        assert_eq!(received.of("a"), [0, 1, 2, 0, 1, 2]);
        consumer.drain().await.unwrap();
    });
}

#[test]
fn maintenance_prunes_only_old_processed_events() {
    block_on(async {
        let (clock, store) = manual_clock(2).await;
        let settings = TopicSettings { partitions: 2, retention_ms: 60_000, ..TopicSettings::default() };
        store.store.set_topic(&orders(), &settings).await.unwrap();
        let tenure = process(&clock, &store, "m0").await;
        let publisher = tenure.publisher("orders").unwrap();
        let kept = async || store.store.topic(&orders()).await.unwrap().unwrap().event_count;
        let consumer = member(&tenure, &ReceivedEvents::default()).start().await.unwrap();
        publish(&publisher, "a", [0, 1]).await;
        clock.advance(30 * SECOND).await;
        assert_eq!(kept().await, 2, "processed, and not old");
        clock.advance(150 * SECOND).await;
        assert_eq!(kept().await, 0, "processed, and old");
        let pause = Pause { paused_by: "ada".into(), reason: String::new(), paused_at_ms: 0 };
        store.store.set_group_paused(&books(), Some(&pause)).await.unwrap();
        publish(&publisher, "a", [2]).await;
        clock.advance(300 * SECOND).await;
        assert_eq!(kept().await, 1, "old, and not processed");
        consumer.drain().await.unwrap();
    });
}
