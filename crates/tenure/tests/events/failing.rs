//! Handlers that fail, hang and panic.

use tenure::port::*;
use tenure_testkit::block_on;

use crate::poison::*;
use crate::support::*;

#[test]
fn a_failed_key_waits_while_others_continue_and_then_follows_in_order() {
    for concurrency in [1, 4] {
        block_on(async {
            // All keys in one partition: only the key relates events to each other.
            let TestTopic { clock, store, tenure, publisher, received, poison } = test_topic(1).await;
            poison.set(1, Some(Behavior::Fail));
            publish(&publisher, "a", [0, 1, 2]).await;
            publish(&publisher, "b", [10, 11]).await;
            let consumer = failing(&tenure, &received, &poison, concurrency).await;
            clock.settle().await;
            assert_eq!((received.of("a"), received.of("b")), (vec![0], vec![10, 11]));
            assert_eq!(group(&store).await.lag(), (0, true), "the partition continues without them");
            let waiting = parked(&store).await;
            assert_eq!(
                (waiting.len(), waiting[0].attempts, waiting[0].last_error.as_str()),
                (2, 1, "no paper")
            );
            assert_eq!((waiting[0].waiting_behind_count, waiting[1].attempts), (1, 0));

            publish(&publisher, "a", [3]).await;
            publish(&publisher, "b", [12]).await;
            clock.settle().await;
            assert_eq!((received.of("a"), received.of("b")), (vec![0], vec![10, 11, 12]));
            poison.set(1, None);
            clock.advance(2 * SECOND).await;
            assert_eq!(received.of("a"), [0, 1, 2, 3], "retried when due");
            assert!(parked(&store).await.is_empty());
            publish(&publisher, "a", [4]).await;
            clock.settle().await;
            assert_eq!(received.of("a"), [0, 1, 2, 3, 4], "the key continues");
            consumer.drain().await.unwrap();
        });
    }
}

#[test]
fn an_event_that_fails_too_often_is_a_dead_letter_until_replayed_or_dropped() {
    for order in [DeadLetterAction::Replay, DeadLetterAction::Drop] {
        block_on(async {
            let TestTopic { clock, store, tenure, publisher, received, poison } = test_topic(4).await;
            poison.set(1, Some(Behavior::Fail));
            let consumer = failing(&tenure, &received, &poison, 1).await;
            publish(&publisher, "a", 0..4).await;
            clock.advance(60 * SECOND).await;
            let dead = dead(&store).await;
            assert_eq!(
                (dead.len(), dead[0].attempts, dead[0].waiting_behind_count),
                (1, SETTINGS.max_attempts, 2)
            );
            assert_eq!(received.of("a"), [0]);
            clock.advance(300 * SECOND).await;
            publish(&publisher, "a", [4]).await;
            clock.settle().await;
            assert_eq!(received.of("a"), [0], "the key stays parked");

            if order == DeadLetterAction::Replay {
                poison.set(1, None);
            }
            store.store.apply_dead_letter_action(&books(), &[dead[0].event.id], order).await.unwrap();
            clock.settle().await;
            let restored: &[u64] =
                if order == DeadLetterAction::Replay { &[0, 1, 2, 3, 4] } else { &[0, 2, 3, 4] };
            assert_eq!(received.of("a"), restored);
            publish(&publisher, "a", [5]).await;
            clock.settle().await;
            assert_eq!(received.of("a").last(), Some(&5));
            consumer.drain().await.unwrap();
        });
    }
}

#[test]
fn panics_and_timeouts_are_failures_and_permanent_errors_are_not_retried() {
    block_on(async {
        let TestTopic { clock, store, tenure, publisher, received, poison } = test_topic(4).await;
        poison.set(1, Some(Behavior::Panic));
        poison.set(2, Some(Behavior::Hang));
        poison.set(3, Some(Behavior::FailPermanently));
        for (key, n) in [("a", 1), ("b", 2), ("c", 3), ("d", 4)] {
            publish(&publisher, key, [n]).await;
        }
        let _consumer = failing(&tenure, &received, &poison, 1).await;
        clock.advance(120 * SECOND).await;
        assert_eq!(received.all(), [("d".to_owned(), 4)], "the consumer continues");
        let mut dead: Vec<_> = dead(&store)
            .await
            .into_iter()
            .map(|it| (number(&it.event), it.attempts, it.last_error))
            .collect();
        dead.sort();
        assert_eq!(dead[0], (1, 3, "panicked: deliberate panic".into()));
        assert_eq!(dead[1], (2, 3, "the handler did not return within 5s".into()));
        assert_eq!(dead[2], (3, 1, "no such printer".into()), "a permanent failure needs one attempt");
    });
}

#[test]
fn only_the_failing_event_of_a_commit_batch_is_parked() {
    block_on(async {
        let TestTopic { clock, store, tenure, publisher, received, poison } = test_topic(1).await;
        poison.set(3, Some(Behavior::Fail));
        let together =
            [("a", 1), ("b", 2), ("a", 3), ("", 4), ("a", 5), ("b", 6)].map(|(key, n)| event(key, n));
        publisher.publish_all(&together).await.unwrap();
        let _consumer = failing(&tenure, &received, &poison, 1).await;
        clock.settle().await;
        assert_eq!((received.of("a"), received.of("b"), received.of("")), (vec![1], vec![2, 6], vec![4]));
        let waiting: Vec<_> = parked(&store).await.iter().map(|it| number(&it.event)).collect();
        assert_eq!(waiting, [3, 5]);
        let view = group(&store).await;
        assert_eq!((view.lag(), view.parked_event_count, view.dead_letter_count), ((0, true), 2, 0));
    });
}

#[test]
fn an_event_without_a_key_is_retried_alone() {
    block_on(async {
        let TestTopic { clock, store, tenure, publisher, received, poison } = test_topic(1).await;
        poison.set(1, Some(Behavior::Fail));
        publish(&publisher, "", 0..4).await;
        let consumer = failing(&tenure, &received, &poison, 1).await;
        clock.settle().await;
        assert_eq!(received.of(""), [0, 2, 3]);
        poison.set(1, None);
        clock.advance(2 * SECOND).await;
        assert_eq!(received.of(""), [0, 2, 3, 1]);
        assert!(parked(&store).await.is_empty());
        consumer.drain().await.unwrap();
    });
}

#[test]
fn parked_events_move_with_their_partition_and_keep_their_order() {
    block_on(async {
        let (clock, store) = manual_clock(1).await;
        let (first, second) = (process(&clock, &store, "m0").await, process(&clock, &store, "m1").await);
        let publisher = first.publisher("orders").unwrap();
        let (received, poison) = (ReceivedEvents::default(), Poison::default());
        poison.set(1, Some(Behavior::Fail));
        let consumer = failing(&first, &received, &poison, 1).await;
        publish(&publisher, "a", 0..3).await;
        clock.settle().await;
        consumer.drain().await.unwrap();
        let consumer = failing(&second, &received, &poison, 1).await;
        // The last holder is gone, and the group waits for returning members.
        clock.advance(4 * SECOND).await;
        publish(&publisher, "a", [3]).await;
        clock.settle().await;
        assert_eq!(received.of("a"), [0]);
        poison.set(1, None);
        clock.advance(60 * SECOND).await;
        assert_eq!(received.of("a"), [0, 1, 2, 3]);
        consumer.drain().await.unwrap();
    });
}

/// Regression: each retried event read all parked keys.
#[test]
fn with_many_parked_keys_a_retry_reads_only_its_own() {
    block_on(async {
        let TestTopic { clock, store, tenure, publisher, received, poison } = test_topic(1).await;
        let consumer = failing(&tenure, &received, &poison, 1).await;
        clock.settle().await;
        for n in 0..200 {
            poison.set(n, Some(Behavior::Fail));
            publish(&publisher, &format!("key-{n}"), [n, n + 1_000]).await;
        }
        clock.settle().await;
        assert_eq!(parked(&store).await.len(), 400);
        let before = store.calls("parked_keys");
        (0..200).for_each(|n| poison.set(n, None));
        clock.advance(30 * SECOND).await;
        assert!(parked(&store).await.is_empty());
        for n in 0..200 {
            assert_eq!(received.of(&format!("key-{n}")), [n, n + 1_000]);
        }
        let reads = store.calls("parked_keys") - before;
        assert!(reads < 20, "{reads} reads of all keys for 400 events");
        publish(&publisher, "key-7", [2_007]).await;
        clock.settle().await;
        assert_eq!(received.of("key-7"), [7, 1_007, 2_007], "the keys continue");
        consumer.drain().await.unwrap();
    });
}
