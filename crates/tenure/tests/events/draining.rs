//! Members that leave, and their running deliveries.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::{DrainOutcome, Error, EventBatch};
use tenure_testkit::block_on;
use tokio::sync::Semaphore;

use crate::poison::*;
use crate::support::*;

#[test]
fn a_drain_lets_the_handler_finish_and_starts_no_more() {
    block_on(async {
        let TestTopic { clock, store, tenure, publisher, .. } = test_topic(1).await;
        let (open, started) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
        let (gate, count) = (open.clone(), started.clone());
        let slow = move |_: EventBatch| {
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
        assert!(matches!(draining.await.unwrap(), Ok(DrainOutcome { aborted: 0, .. })));
        assert_eq!(started.load(Ordering::SeqCst), 1);
        let view = group(&store).await;
        assert_eq!((view.lag().0, view.members.len(), owners(&store).await.len()), (2, 0, 0));
        assert!(view.partitions[0].partition_lease.committed_offset > 0, "the finished events are committed");
    });
}

#[test]
fn a_drain_aborts_a_handler_that_exceeds_the_grace() {
    block_on(async {
        let TestTopic { clock, store, tenure, publisher, .. } = test_topic(1).await;
        let hang = |_: EventBatch| std::future::pending::<()>();
        let builder = tenure.consumer("orders", "books").grace(Duration::from_secs(3)).handler(hang);
        let consumer = builder.start().await.unwrap();
        publish(&publisher, "a", [1]).await;
        clock.settle().await;
        let draining = tokio::spawn(consumer.drain());
        clock.advance(4 * SECOND).await;
        let drained: Result<DrainOutcome, Error> = draining.await.unwrap();
        assert_eq!(drained.unwrap().aborted, 1);
        assert_eq!((group(&store).await.lag().0, owners(&store).await.len()), (1, 0));
    });
}

#[test]
fn processed_events_of_a_concurrent_batch_are_not_repeated_by_the_next_holder() {
    block_on(async {
        let (clock, store) = manual_clock(1).await;
        let (first, second) = (process(&clock, &store, "m0").await, process(&clock, &store, "m1").await);
        let publisher = first.publisher("orders").unwrap();
        let (received, poison) = (ReceivedEvents::default(), Poison::default());
        poison.set(10, Some(Behavior::Hang));
        publisher
            .publish_all(&[event("a", 1), event("b", 10), event("a", 2), event("b", 11), event("c", 20)])
            .await
            .unwrap();
        let hung = failing(&first, &received, &poison, 3).await;
        clock.settle().await;
        assert_eq!((received.of("a"), received.of("c"), received.of("b")), (vec![1, 2], vec![20], vec![]));
        drop(hung);
        clock.settle().await;
        poison.set(10, None);
        let consumer = failing(&second, &received, &poison, 3).await;
        clock.advance(4 * SECOND).await;
        assert_eq!(
            (received.of("a"), received.of("c"), received.of("b")),
            (vec![1, 2], vec![20], vec![10, 11])
        );
        assert_eq!(group(&store).await.lag(), (0, true));
        consumer.drain().await.unwrap();
    });
}
