//! Members come, go and die: slots move, few of them, and order is kept.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tenure::port::*;
use tenure::{Batch, Consumer, Tenure};
use tenure_testkit::{Clock, block_on};
use tokio::sync::Semaphore;

use crate::spy::{Fault, Spy};
use crate::support::*;

/// A process with one member that does nothing.
struct Replica {
    tenure: Tenure,
    consumer: Consumer,
}

async fn replica(clock: &Clock, store: &Spy, name: &str) -> Replica {
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

async fn start_all(clock: &Clock, store: &Spy, names: &[String]) -> Vec<Replica> {
    let mut replicas = Vec::new();
    for name in names {
        replicas.push(replica(clock, store, name).await);
    }
    replicas
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("m{n}")).collect()
}

/// How many slots went to another name than before.
fn moved(before: &BTreeMap<u32, String>, after: &BTreeMap<u32, String>) -> usize {
    before.iter().filter(|(slot, name)| after.get(slot) != Some(name)).count()
}

#[test]
fn doubling_halving_and_restarting_all_members_moves_only_what_must_move() {
    block_on(async {
        let (clock, store) = hand_driven(64).await;
        let mut replicas = start_all(&clock, &store, &names(4)).await;
        clock.advance(10 * SECOND).await;
        let four = owners(&store).await;
        assert_eq!(spread(&store).await.into_values().collect::<Vec<_>>(), [16; 4]);

        replicas.extend(start_all(&clock, &store, &names(8)[4..]).await);
        clock.advance(10 * SECOND).await;
        let eight = owners(&store).await;
        assert_eq!(spread(&store).await.into_values().collect::<Vec<_>>(), [8; 8]);
        assert_eq!(moved(&four, &eight), 32, "what the new ones have, and nothing else");

        for replica in replicas.drain(4..) {
            replica.stop().await;
        }
        clock.advance(10 * SECOND).await;
        let halved = owners(&store).await;
        assert_eq!(spread(&store).await.into_values().collect::<Vec<_>>(), [16; 4]);
        assert_eq!(moved(&eight, &halved), 32, "what those who left had, and nothing else");

        let moves = group(&store).await.moves;
        // All at once, as when a new version is rolled out to all.
        futures_util::future::join_all(replicas.drain(..).map(Replica::stop)).await;
        assert!(owners(&store).await.is_empty());
        // In another order than at first: who comes first takes nothing that another had.
        let mut names = names(4);
        names.reverse();
        let _replicas = start_all(&clock, &store, &names).await;
        clock.advance(10 * SECOND).await;
        assert_eq!(moved(&halved, &owners(&store).await), 0, "each has what it had");
        assert_eq!(group(&store).await.moves, moves);
    });
}

#[test]
fn members_that_crash_together_and_come_back_have_what_they_had() {
    block_on(async {
        let (clock, store) = hand_driven(64).await;
        // Somebody else keeps: finds the dead.
        let keeper = process(&clock, &store, "keeper").await;
        keeper.claims().stand().await.unwrap();
        let deaf: Vec<Spy> = (0..4).map(|_| Spy::new(store.store.clone())).collect();
        let mut replicas = Vec::new();
        for (n, store) in deaf.iter().enumerate() {
            replicas.push(replica(&clock, store, &format!("m{n}")).await);
        }
        clock.advance(10 * SECOND).await;
        let before = owners(&store).await;
        assert_eq!(before.len(), 64);
        let moves = group(&store).await.moves;
        for (store, call) in
            deaf.iter().flat_map(|store| ["beat", "end", "leave_group", "open"].map(|call| (store, call)))
        {
            store.fault(call, Some(Fault::Fails));
        }
        drop(replicas);
        clock.advance(30 * SECOND).await;
        assert!(owners(&store).await.is_empty(), "they are dead");
        let mut names = names(4);
        names.rotate_left(1);
        let _replicas = start_all(&clock, &store, &names).await;
        clock.advance(10 * SECOND).await;
        assert_eq!(moved(&before, &owners(&store).await), 0);
        assert_eq!(group(&store).await.moves, moves);
    });
}

#[test]
fn there_may_be_more_members_than_slots() {
    block_on(async {
        let (clock, store) = hand_driven(3).await;
        let mut replicas = start_all(&clock, &store, &names(5)).await;
        clock.advance(10 * SECOND).await;
        assert_eq!(spread(&store).await.into_values().collect::<Vec<_>>(), [1; 3]);
        let idle = replicas.iter().filter(|replica| replica.consumer.slots().is_empty()).count();
        assert_eq!(idle, 2);
        let busy = replicas.iter().position(|replica| !replica.consumer.slots().is_empty()).unwrap();
        replicas.remove(busy).stop().await;
        clock.settle().await;
        assert_eq!(
            spread(&store).await.into_values().collect::<Vec<_>>(),
            [1; 3],
            "another one stepped in at once"
        );
    });
}

#[test]
fn a_dead_members_slots_are_taken_within_its_lease() {
    block_on(async {
        let (clock, store) = hand_driven(8).await;
        let deaf = Spy::new(store.store.clone());
        let (dead, alive) = (replica(&clock, &deaf, "dead").await, replica(&clock, &store, "alive").await);
        clock.advance(10 * SECOND).await;
        assert_eq!(spread(&store).await, BTreeMap::from([("alive".into(), 4), ("dead".into(), 4)]));
        for call in ["beat", "end", "leave_group", "free_shares"] {
            deaf.fault(call, Some(Fault::Fails));
        }
        // Its lease, as others reckon it, and some beats to see that it is over.
        clock.advance(alive.tenure.timing().lease() * 2).await;
        for _ in 0..10 {
            if owners(&store).await.len() == 8 {
                break;
            }
            clock.advance(alive.tenure.timing().beat()).await;
        }
        assert_eq!(spread(&store).await, BTreeMap::from([("alive".into(), 8)]));
        drop(dead);
    });
}

/// A member whose handler waits until it is let go, and who tells what it begins and ends.
async fn gated(tenure: &Tenure, open: &Arc<Semaphore>, said: &Arc<Mutex<Vec<String>>>) -> Consumer {
    let (open, said, name) = (open.clone(), said.clone(), tenure.name().to_owned());
    let handler = move |batch: Batch| {
        let (open, said, name) = (open.clone(), said.clone(), name.clone());
        async move {
            let say = |what: &str| {
                let numbers: Vec<String> = batch.iter().map(|event| number(event).to_string()).collect();
                said.lock().unwrap().push(format!("{name} {what} {}", numbers.join(",")));
            };
            say("began");
            open.acquire().await.unwrap().forget();
            say("ended");
        }
    };
    tenure.consumer("orders", "books").handler(handler).start().await.unwrap()
}

#[test]
fn a_slot_is_handed_over_when_its_batch_is_done_and_the_next_one_goes_on_from_there() {
    block_on(async {
        let (clock, store) = hand_driven(2).await;
        // One key for each slot.
        let keys = ["a", "b", "c", "d"].map(|key| (tenure::event::slot_of(key, 2), key));
        let key_of = |slot| keys.iter().find(|(its, _)| *its == slot).unwrap().1;
        let first = process(&clock, &store, "m0").await;
        let publisher = first.publisher("orders").unwrap();
        let (open, said) = (Arc::new(Semaphore::new(0)), Arc::new(Mutex::new(Vec::new())));
        let _first = gated(&first, &open, &said).await;
        clock.settle().await;
        publisher.publish_all(&[event(key_of(0), 1), event(key_of(1), 2)]).await.unwrap();
        clock.settle().await;
        assert_eq!(*said.lock().unwrap(), ["m0 began 1,2"]);

        let second = process(&clock, &store, "m1").await;
        let _second = gated(&second, &open, &said).await;
        clock.advance(10 * SECOND).await;
        publisher.publish_all(&[event(key_of(0), 3), event(key_of(1), 4)]).await.unwrap();
        clock.advance(10 * SECOND).await;
        assert_eq!(spread(&store).await, BTreeMap::from([("m0".into(), 2)]), "nothing moves in mid-batch");
        assert_eq!(*said.lock().unwrap(), ["m0 began 1,2"]);

        open.add_permits(1);
        clock.settle().await;
        assert_eq!(spread(&store).await, BTreeMap::from([("m0".into(), 1), ("m1".into(), 1)]));
        let mut said = said.lock().unwrap().clone();
        assert_eq!(said[..2], ["m0 began 1,2", "m0 ended 1,2"]);
        said[2..].sort();
        assert_eq!(said[2..], ["m0 began 3", "m1 began 4"], "each goes on where the slot was left");
    });
}

#[test]
fn a_stale_commit_is_refused_and_the_events_go_to_the_new_holder() {
    block_on(async {
        let (clock, store) = hand_driven(1).await;
        let spy = Spy::new(store.store.clone());
        let tenure = process(&clock, &spy, "m0").await;
        let (publisher, seen) = (tenure.publisher("orders").unwrap(), Seen::default());
        let consumer = member(&tenure, &seen).start().await.unwrap();
        clock.settle().await;
        // It sees nothing of what happens to its group, and what it says arrives late.
        spy.fault("look_group", Some(Fault::Waits));
        spy.fault("commit_shares", Some(Fault::Waits));
        publish(&publisher, "a", [1]).await;
        clock.settle().await;
        assert_eq!(seen.of("a"), [1]);
        let token = group(&store).await.slots[0].share.token;
        store.store.reset_group(&books(), Begin::Earliest, None, false).await.unwrap();
        spy.fault("commit_shares", None);
        clock.settle().await;
        let share = group(&store).await.slots[0].share.clone();
        assert!(share.token > token && share.position == 0, "what it said changed nothing: {share:?}");
        spy.fault("look_group", None);
        clock.settle().await;
        assert_eq!(seen.of("a"), [1, 1], "it took the slot anew, and was given the event again");
        assert_eq!(group(&store).await.lag(), (0, true));
        consumer.drain().await.unwrap();
    });
}

#[test]
fn a_handler_is_dropped_when_its_slot_is_lost() {
    block_on(async {
        let (clock, store) = hand_driven(1).await;
        let tenure = process(&clock, &store, "m0").await;
        let (publisher, ends) = (tenure.publisher("orders").unwrap(), Arc::new(Mutex::new(Vec::new())));
        let told = ends.clone();
        let consumer = tenure
            .consumer("orders", "books")
            .handler(move |batch: Batch| {
                let (told, n) = (told.clone(), batch.token(0).unwrap());
                async move {
                    let ending = Ending(told, n);
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
        store.store.reset_group(&books(), Begin::Earliest, None, false).await.unwrap();
        clock.settle().await;
        assert_eq!(ends.lock().unwrap().len(), 1, "dropped");
        // Dropped, a consumer drops its handler's future, too, and leaves.
        drop(consumer);
        clock.settle().await;
        assert_eq!(ends.lock().unwrap().len(), 2);
        assert!(group(&store).await.members.is_empty());
        let tokens = ends.lock().unwrap().clone();
        assert!(tokens[0] < tokens[1], "each under a token of its own: {tokens:?}");
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
        let (clock, store) = hand_driven(4).await;
        let keeper = process(&clock, &store, "keeper").await;
        keeper.claims().stand().await.unwrap();
        let spy = Spy::new(store.store.clone());
        let tenure = process(&clock, &spy, "m0").await;
        let seen = Seen::default();
        let _consumer = member(&tenure, &seen).start().await.unwrap();
        clock.advance(5 * SECOND).await;
        let session = tenure.session();
        spy.fault("beat", Some(Fault::Fails));
        spy.fault("open", Some(Fault::Fails));
        clock.advance(40 * SECOND).await;
        assert!(group(&store).await.members.is_empty());
        publish(&keeper.publisher("orders").unwrap(), "a", 0..3).await;
        clock.advance(SECOND).await;
        assert!(seen.all().is_empty(), "who is not trusted reads nothing");
        spy.fault("beat", None);
        spy.fault("open", None);
        clock.advance(20 * SECOND).await;
        assert_ne!(tenure.session(), session);
        assert_eq!(seen.of("a"), [0, 1, 2]);
    });
}

#[test]
fn slots_whose_taking_was_not_answered_are_taken_anew() {
    block_on(async {
        let (clock, store) = hand_driven(4).await;
        let tenure = process(&clock, &store, "m0").await;
        let (publisher, seen) = (tenure.publisher("orders").unwrap(), Seen::default());
        store.fault("take_shares", Some(Fault::AnswerLost));
        let consumer = member(&tenure, &seen).start().await.unwrap();
        clock.settle().await;
        assert_eq!((owners(&store).await.len(), consumer.slots().len()), (4, 0));
        store.fault("take_shares", None);
        publish(&publisher, "a", 0..3).await;
        clock.advance(5 * SECOND).await;
        assert_eq!((seen.of("a"), consumer.slots().len()), (vec![0, 1, 2], 4));
    });
}

#[test]
fn a_drained_member_leaves_its_slots_to_the_others_at_once() {
    block_on(async {
        let (clock, store) = hand_driven(8).await;
        let (one, other) = (replica(&clock, &store, "m0").await, replica(&clock, &store, "m1").await);
        clock.advance(10 * SECOND).await;
        let start = tenure::runtime::Runtime::now(&clock);
        one.consumer.drain().await.unwrap();
        clock.settle().await;
        assert_eq!(spread(&store).await, BTreeMap::from([("m1".into(), 8)]));
        assert_eq!(other.consumer.slots().len(), 8);
        assert_eq!(tenure::runtime::Runtime::now(&clock), start, "it took no time");
    });
}
