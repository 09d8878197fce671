//! What passes: tried again in place, never dead, and in the way of nobody but its own key.

use tenure_testkit::block_on;

use crate::poison::*;
use crate::support::*;

#[test]
fn what_passes_is_never_dead_nor_counted_and_nothing_overtakes_it() {
    block_on(async {
        let Scene { clock, store, tenure, publisher, seen, poison } = scene(1).await;
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
            let Scene { clock, store, tenure, publisher, seen, poison } = scene(slots).await;
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
            let Scene { clock, store, tenure, publisher, seen, poison } = scene(1).await;
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
        let Scene { clock, store, tenure, publisher, seen, poison } = scene(1).await;
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
        let Scene { clock, store, tenure, publisher, seen, poison } = scene(1).await;
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
