//! Members join, leave and die: few partitions move, and order is kept.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tenure::port::*;
use tenure::{Consumer, EventBatch, Tenure};
use tenure_testkit::{ManualClock, block_on};
use tokio::sync::Semaphore;

use crate::instrumented_store::{Fault, InstrumentedStore};
use crate::support::*;

/// A process with one member that does nothing.
struct Replica {
    tenure: Tenure,
    consumer: Consumer,
}

async fn replica(clock: &ManualClock, store: &InstrumentedStore, name: &str) -> Replica {
    let tenure = process(clock, store, name).await;
    let consumer = idle(&tenure).await;
    Replica { tenure, consumer }
}

impl Replica {
    async fn stop(self) {
        self.consumer.drain().await.unwrap();
        self.tenure.close().await.unwrap();
    }
}

async fn start_all(clock: &ManualClock, store: &InstrumentedStore, names: &[String]) -> Vec<Replica> {
    let mut replicas = Vec::new();
    for name in names {
        replicas.push(replica(clock, store, name).await);
    }
    replicas
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("m{n}")).collect()
}

/// Number of partitions that moved to another member name.
fn moved_partitions(before: &BTreeMap<u32, String>, after: &BTreeMap<u32, String>) -> usize {
    before.iter().filter(|(partition, name)| after.get(partition) != Some(name)).count()
}

#[test]
fn doubling_halving_and_restarting_members_moves_the_minimum_of_partitions() {
    block_on(async {
        let (clock, store) = manual_clock(64).await;
        let mut replicas = start_all(&clock, &store, &names(4)).await;
        clock.advance(10 * SECOND).await;
        let four = owners(&store).await;
        assert_eq!(partition_counts(&store).await.into_values().collect::<Vec<_>>(), [16; 4]);

        replicas.extend(start_all(&clock, &store, &names(8)[4..]).await);
        clock.advance(10 * SECOND).await;
        let eight = owners(&store).await;
        assert_eq!(partition_counts(&store).await.into_values().collect::<Vec<_>>(), [8; 8]);
        assert_eq!(moved_partitions(&four, &eight), 32, "only the partitions of the new members moved");

        for replica in replicas.drain(4..) {
            replica.stop().await;
        }
        clock.advance(10 * SECOND).await;
        let halved = owners(&store).await;
        assert_eq!(partition_counts(&store).await.into_values().collect::<Vec<_>>(), [16; 4]);
        assert_eq!(
            moved_partitions(&eight, &halved),
            32,
            "only the partitions of the members that left moved"
        );

        let moves = group(&store).await.rebalanced_partition_count;
        // All at once, as in a rollout of a new version.
        futures_util::future::join_all(replicas.drain(..).map(Replica::stop)).await;
        assert!(owners(&store).await.is_empty());
        // In another order than before: a member that joins first does not take partitions of another name.
        let mut names = names(4);
        names.reverse();
        let _replicas = start_all(&clock, &store, &names).await;
        clock.advance(10 * SECOND).await;
        assert_eq!(
            moved_partitions(&halved, &owners(&store).await),
            0,
            "each member has its previous partitions"
        );
        assert_eq!(group(&store).await.rebalanced_partition_count, moves);
    });
}

#[test]
fn members_that_crash_together_and_restart_get_their_partitions_back() {
    block_on(async {
        let (clock, store) = manual_clock(64).await;
        // Another process runs maintenance and detects the dead.
        let maintainer = process(&clock, &store, "maintainer").await;
        maintainer.tasks().campaign_for_maintenance().await.unwrap();
        let disconnected: Vec<InstrumentedStore> =
            (0..4).map(|_| InstrumentedStore::new(store.store.clone())).collect();
        let mut replicas = Vec::new();
        for (n, store) in disconnected.iter().enumerate() {
            replicas.push(replica(&clock, store, &format!("m{n}")).await);
        }
        clock.advance(10 * SECOND).await;
        let before = owners(&store).await;
        assert_eq!(before.len(), 64);
        let moves = group(&store).await.rebalanced_partition_count;
        for (store, call) in disconnected.iter().flat_map(|store| {
            ["heartbeat", "end_session", "leave_group", "open_session"].map(|call| (store, call))
        }) {
            store.fault(call, Some(Fault::Fails));
        }
        drop(replicas);
        clock.advance(30 * SECOND).await;
        assert!(owners(&store).await.is_empty(), "the members are dead");
        let mut names = names(4);
        names.rotate_left(1);
        let _replicas = start_all(&clock, &store, &names).await;
        clock.advance(10 * SECOND).await;
        assert_eq!(moved_partitions(&before, &owners(&store).await), 0);
        assert_eq!(group(&store).await.rebalanced_partition_count, moves);
    });
}

#[test]
fn there_can_be_more_members_than_partitions() {
    block_on(async {
        let (clock, store) = manual_clock(3).await;
        let mut replicas = start_all(&clock, &store, &names(5)).await;
        clock.advance(10 * SECOND).await;
        assert_eq!(partition_counts(&store).await.into_values().collect::<Vec<_>>(), [1; 3]);
        let idle = replicas.iter().filter(|replica| replica.consumer.partitions().is_empty()).count();
        assert_eq!(idle, 2);
        let busy = replicas.iter().position(|replica| !replica.consumer.partitions().is_empty()).unwrap();
        replicas.remove(busy).stop().await;
        clock.settle().await;
        assert_eq!(
            partition_counts(&store).await.into_values().collect::<Vec<_>>(),
            [1; 3],
            "another member took over at once"
        );
    });
}

#[test]
fn partitions_of_a_dead_member_are_taken_within_its_lease() {
    block_on(async {
        let (clock, store) = manual_clock(8).await;
        let disconnected = InstrumentedStore::new(store.store.clone());
        let (dead, alive) =
            (replica(&clock, &disconnected, "dead").await, replica(&clock, &store, "alive").await);
        clock.advance(10 * SECOND).await;
        assert_eq!(partition_counts(&store).await, BTreeMap::from([("alive".into(), 4), ("dead".into(), 4)]));
        for call in ["heartbeat", "end_session", "leave_group", "release_partitions"] {
            disconnected.fault(call, Some(Fault::Fails));
        }
        // Longer than the lease as other processes measure it, plus some heartbeat intervals.
        clock.advance(alive.tenure.timing().lease() * 2).await;
        for _ in 0..10 {
            if owners(&store).await.len() == 8 {
                break;
            }
            clock.advance(alive.tenure.timing().heartbeat_interval()).await;
        }
        assert_eq!(partition_counts(&store).await, BTreeMap::from([("alive".into(), 8)]));
        drop(dead);
    });
}

/// A member whose handler waits until it is released, and records starts and ends.
async fn gated(tenure: &Tenure, open: &Arc<Semaphore>, log: &Arc<Mutex<Vec<String>>>) -> Consumer {
    let (open, log, name) = (open.clone(), log.clone(), tenure.name().to_owned());
    let handler = move |batch: EventBatch| {
        let (open, log, name) = (open.clone(), log.clone(), name.clone());
        async move {
            let record = |what: &str| {
                let numbers: Vec<String> = batch.iter().map(|event| number(event).to_string()).collect();
                log.lock().unwrap().push(format!("{name} {what} {}", numbers.join(",")));
            };
            record("began");
            open.acquire().await.unwrap().forget();
            record("ended");
        }
    };
    tenure.consumer("orders", "books").handler(handler).start().await.unwrap()
}

#[test]
fn a_partition_moves_after_its_batch_and_continues_at_that_offset() {
    block_on(async {
        let (clock, store) = manual_clock(2).await;
        // One key per partition.
        let keys = ["a", "b", "c", "d"].map(|key| (tenure::rules::event::partition_for_key(key, 2), key));
        let key_of = |partition| keys.iter().find(|(its, _)| *its == partition).unwrap().1;
        let first = process(&clock, &store, "m0").await;
        let publisher = first.publisher("orders").unwrap();
        let (open, log) = (Arc::new(Semaphore::new(0)), Arc::new(Mutex::new(Vec::new())));
        let _first = gated(&first, &open, &log).await;
        clock.settle().await;
        publisher.publish_all(&[event(key_of(0), 1), event(key_of(1), 2)]).await.unwrap();
        clock.settle().await;
        assert_eq!(*log.lock().unwrap(), ["m0 began 1,2"]);

        let second = process(&clock, &store, "m1").await;
        let _second = gated(&second, &open, &log).await;
        clock.advance(10 * SECOND).await;
        publisher.publish_all(&[event(key_of(0), 3), event(key_of(1), 4)]).await.unwrap();
        clock.advance(10 * SECOND).await;
        assert_eq!(
            partition_counts(&store).await,
            BTreeMap::from([("m0".into(), 2)]),
            "no partition moves during a batch"
        );
        assert_eq!(*log.lock().unwrap(), ["m0 began 1,2"]);

        open.add_permits(1);
        clock.settle().await;
        assert_eq!(partition_counts(&store).await, BTreeMap::from([("m0".into(), 1), ("m1".into(), 1)]));
        let mut log = log.lock().unwrap().clone();
        assert_eq!(log[..2], ["m0 began 1,2", "m0 ended 1,2"]);
        log[2..].sort();
        assert_eq!(log[2..], ["m0 began 3", "m1 began 4"], "each continues at the committed offset");
    });
}

#[test]
fn a_stale_commit_is_rejected_and_the_new_holder_gets_the_events() {
    block_on(async {
        let (clock, store) = manual_clock(1).await;
        let instrumented = InstrumentedStore::new(store.store.clone());
        let tenure = process(&clock, &instrumented, "m0").await;
        let (publisher, received) = (tenure.publisher("orders").unwrap(), ReceivedEvents::default());
        let consumer = member(&tenure, &received).start().await.unwrap();
        clock.settle().await;
        // The member cannot read its group, and its commit arrives after the reset of the group.
        instrumented.fault("group_assignment", Some(Fault::Waits));
        instrumented.fault("commit_partitions", Some(Fault::Waits));
        publish(&publisher, "a", [1]).await;
        clock.settle().await;
        assert_eq!(received.of("a"), [1]);
        let token = group(&store).await.partitions[0].partition_lease.token;
        store.store.reset_group(&books(), StartOffset::Earliest, None, false).await.unwrap();
        instrumented.fault("commit_partitions", None);
        clock.settle().await;
        let lease = group(&store).await.partitions[0].partition_lease.clone();
        assert!(lease.token > token && lease.committed_offset == 0, "its commit changed nothing: {lease:?}");
        instrumented.fault("group_assignment", None);
        clock.settle().await;
        assert_eq!(received.of("a"), [1, 1], "it took the partition again and received the event again");
        assert_eq!(group(&store).await.lag(), (0, true));
        consumer.drain().await.unwrap();
    });
}

#[test]
fn a_handler_is_dropped_when_its_partition_is_lost() {
    block_on(async {
        let (clock, store) = manual_clock(1).await;
        let tenure = process(&clock, &store, "m0").await;
        let (publisher, ends) = (tenure.publisher("orders").unwrap(), Arc::new(Mutex::new(Vec::new())));
        let handler_ends = ends.clone();
        let consumer = tenure
            .consumer("orders", "books")
            .handler(move |batch: EventBatch| {
                let (handler_ends, n) = (handler_ends.clone(), batch.token(0).unwrap());
                async move {
                    let ending = Ending(handler_ends, n);
                    std::future::pending::<()>().await;
                    drop(ending);
                }
            })
            .start()
            .await
            .unwrap();
        publish(&publisher, "a", [1]).await;
        clock.settle().await;
        assert!(ends.lock().unwrap().is_empty());
        store.store.reset_group(&books(), StartOffset::Earliest, None, false).await.unwrap();
        clock.settle().await;
        assert_eq!(ends.lock().unwrap().len(), 1, "dropped");
        // Dropping a consumer drops the future of its handler, too, and leaves the group.
        drop(consumer);
        clock.settle().await;
        assert_eq!(ends.lock().unwrap().len(), 2);
        assert!(group(&store).await.members.is_empty());
        let tokens = ends.lock().unwrap().clone();
        assert!(tokens[0] < tokens[1], "each run has its own token: {tokens:?}");
    });
}

struct Ending(Arc<Mutex<Vec<tenure::Token>>>, tenure::Token);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.lock().unwrap().push(self.1);
    }
}

#[test]
fn a_member_whose_session_is_lost_joins_again() {
    block_on(async {
        let (clock, store) = manual_clock(4).await;
        let maintainer = process(&clock, &store, "maintainer").await;
        maintainer.tasks().campaign_for_maintenance().await.unwrap();
        let instrumented = InstrumentedStore::new(store.store.clone());
        let tenure = process(&clock, &instrumented, "m0").await;
        let received = ReceivedEvents::default();
        let _consumer = member(&tenure, &received).start().await.unwrap();
        clock.advance(5 * SECOND).await;
        let session = tenure.session();
        instrumented.fault("heartbeat", Some(Fault::Fails));
        instrumented.fault("open_session", Some(Fault::Fails));
        clock.advance(40 * SECOND).await;
        assert!(group(&store).await.members.is_empty());
        publish(&maintainer.publisher("orders").unwrap(), "a", 0..3).await;
        clock.advance(SECOND).await;
        assert!(received.all().is_empty(), "an untrusted member reads nothing");
        instrumented.fault("heartbeat", None);
        instrumented.fault("open_session", None);
        clock.advance(20 * SECOND).await;
        assert_ne!(tenure.session(), session);
        assert_eq!(received.of("a"), [0, 1, 2]);
    });
}

#[test]
fn partitions_taken_without_a_response_are_taken_again() {
    block_on(async {
        let (clock, store) = manual_clock(4).await;
        let tenure = process(&clock, &store, "m0").await;
        let (publisher, received) = (tenure.publisher("orders").unwrap(), ReceivedEvents::default());
        store.fault("take_partitions", Some(Fault::ResponseLost));
        let consumer = member(&tenure, &received).start().await.unwrap();
        clock.settle().await;
        assert_eq!((owners(&store).await.len(), consumer.partitions().len()), (4, 0));
        store.fault("take_partitions", None);
        publish(&publisher, "a", 0..3).await;
        clock.advance(5 * SECOND).await;
        assert_eq!((received.of("a"), consumer.partitions().len()), (vec![0, 1, 2], 4));
    });
}

#[test]
fn a_drained_member_releases_its_partitions_at_once() {
    block_on(async {
        let (clock, store) = manual_clock(8).await;
        let (one, other) = (replica(&clock, &store, "m0").await, replica(&clock, &store, "m1").await);
        clock.advance(10 * SECOND).await;
        let start = tenure::runtime::Runtime::now(&clock);
        one.consumer.drain().await.unwrap();
        clock.settle().await;
        assert_eq!(partition_counts(&store).await, BTreeMap::from([("m1".into(), 8)]));
        assert_eq!(other.consumer.partitions().len(), 8);
        assert_eq!(tenure::runtime::Runtime::now(&clock), start, "it took no time");
    });
}
