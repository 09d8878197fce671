//! Handlers that fail, hang and panic.

use tenure::port::*;
use tenure_testkit::block_on;

use crate::poison::*;
use crate::support::*;

#[test]
fn a_key_that_fails_waits_while_others_flow_and_then_follows_in_order() {
    for concurrency in [1, 4] {
        block_on(async {
            // All keys in one slot: they are nothing but keys to one another.
            let Scene { clock, store, tenure, publisher, seen, poison } = scene(1).await;
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
            let Scene { clock, store, tenure, publisher, seen, poison } = scene(4).await;
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
        let Scene { clock, store, tenure, publisher, seen, poison } = scene(4).await;
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
fn of_what_was_published_together_only_what_fails_is_set_aside() {
    block_on(async {
        let Scene { clock, store, tenure, publisher, seen, poison } = scene(1).await;
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
        let Scene { clock, store, tenure, publisher, seen, poison } = scene(1).await;
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

/// Each event that was tried again asked for all keys that were aside.
#[test]
fn with_very_many_keys_aside_a_retry_looks_at_its_own() {
    block_on(async {
        let Scene { clock, store, tenure, publisher, seen, poison } = scene(1).await;
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
