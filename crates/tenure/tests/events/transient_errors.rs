//! Transient failures: retried in place, never dead letters, and blocking only their own key.

use tenure_testkit::block_on;

use crate::poison::*;
use crate::support::*;

#[test]
fn a_transient_failure_is_never_dead_nor_counted_nor_overtaken() {
    block_on(async {
        let TestTopic { clock, store, tenure, publisher, received, poison } = test_topic(1).await;
        (0..4).for_each(|n| poison.set(n, Some(Behavior::FailTransiently)));
        publish(&publisher, "a", 0..4).await;
        let consumer = failing(&tenure, &received, &poison, 1).await;
        clock.advance(300 * SECOND).await;
        assert!(
            parked(&store).await.is_empty() && received.all().is_empty(),
            "if no event succeeds, no event is parked"
        );
        (0..4).for_each(|n| poison.set(n, None));
        clock.advance(10 * SECOND).await;
        assert_eq!(received.of("a"), [0, 1, 2, 3]);
        consumer.drain().await.unwrap();
    });
}

/// Regression: one event met a statement timeout at every attempt, and no partition of its member was read any
/// more.
#[test]
fn a_persistent_transient_failure_blocks_only_its_own_key() {
    for (partitions, concurrency) in [(1, 1), (4, 1), (1, 4)] {
        block_on(async {
            let TestTopic { clock, store, tenure, publisher, received, poison } =
                test_topic(partitions).await;
            poison.set(1, Some(Behavior::FailTransiently));
            publish(&publisher, "a", 0..4).await;
            let others = ["b", "c", "d", "e"];
            for key in others {
                publish(&publisher, key, 10..13).await;
            }
            let consumer = failing(&tenure, &received, &poison, concurrency).await;
            clock.advance(30 * SECOND).await;
            assert_eq!(received.of("a"), [0], "{partitions} partitions, {concurrency} calls");
            others.iter().for_each(|key| assert_eq!(received.of(key), [10, 11, 12], "{key}"));
            for key in others {
                publish(&publisher, key, [13]).await;
            }
            clock.advance(600 * SECOND).await;
            others.iter().for_each(|key| assert_eq!(received.of(key), [10, 11, 12, 13], "{key}"));
            let waiting = parked(&store).await;
            let waiting: Vec<_> =
                waiting.iter().map(|it| (number(&it.event), it.attempts, it.dead)).collect();
            assert_eq!(waiting, [(1, 1, false), (2, 0, false), (3, 0, false)]);
            poison.set(1, None);
            clock.advance(10 * SECOND).await;
            assert_eq!(received.of("a"), [0, 1, 2, 3]);
            assert!(parked(&store).await.is_empty());
            consumer.drain().await.unwrap();
        });
    }
}

/// Regression: a batch failed, its first commit batches were processed and committed one by one, and then one
/// failed transiently. The batch was delivered again from its beginning under the same token, and the effects
/// of the handlers' transactions happened twice.
#[test]
fn events_committed_before_a_transient_failure_are_not_handled_again() {
    for concurrency in [1, 4] {
        block_on(async {
            let TestTopic { clock, store, tenure, publisher, received, poison } = test_topic(1).await;
            poison.set(3, Some(Behavior::Fail));
            poison.set(5, Some(Behavior::FailTransiently));
            for (key, n) in [("a", 1), ("b", 2), ("c", 3), ("a", 4), ("d", 5), ("a", 6)] {
                publish(&publisher, key, [n]).await;
            }
            let consumer = failing(&tenure, &received, &poison, concurrency).await;
            clock.advance(SECOND / 2).await;
            poison.set(5, None);
            clock.advance(10 * SECOND).await;
            assert_eq!(received.of("a"), [1, 4, 6], "{concurrency} calls");
            assert_eq!((received.of("b"), received.of("d")), (vec![2], vec![5]), "{concurrency} calls");
            assert_eq!(parked(&store).await.len(), 1, "the failing event");
            consumer.drain().await.unwrap();
        });
    }
}

/// The failing event is alone in its partition at first; other events are published later.
#[test]
fn a_persistent_transient_failure_does_not_stop_reading() {
    block_on(async {
        let TestTopic { clock, store, tenure, publisher, received, poison } = test_topic(1).await;
        poison.set(1, Some(Behavior::FailTransiently));
        publish(&publisher, "a", [1]).await;
        let consumer = failing(&tenure, &received, &poison, 1).await;
        clock.advance(60 * SECOND).await;
        publish(&publisher, "b", [2, 3]).await;
        clock.advance(60 * SECOND).await;
        assert_eq!((received.of("a"), received.of("b")), (vec![], vec![2, 3]));
        assert_eq!(parked(&store).await.len(), 1);
        consumer.drain().await.unwrap();
    });
}

#[test]
fn a_transient_failure_of_a_retried_event_does_not_count() {
    block_on(async {
        let TestTopic { clock, store, tenure, publisher, received, poison } = test_topic(1).await;
        poison.set(1, Some(Behavior::Fail));
        publish(&publisher, "a", [1, 2]).await;
        let consumer = failing(&tenure, &received, &poison, 1).await;
        clock.settle().await;
        poison.set(1, Some(Behavior::FailTransiently));
        clock.advance(600 * SECOND).await;
        assert_eq!(parked(&store).await[0].attempts, 1);
        poison.set(1, None);
        clock.advance(10 * SECOND).await;
        assert_eq!(received.of("a"), [1, 2]);
        consumer.drain().await.unwrap();
    });
}
