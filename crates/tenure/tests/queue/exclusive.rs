//! Exclusive queues: several processes, one broker, strict order, and broker failover.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::port::*;
use tenure::store::memory::MemoryStore;
use tenure::{ClaimResult, Tenure};

use crate::instrumented_store::{Fault, InstrumentedStore};
use crate::support::*;

/// Two candidates for broker, the first of which leads; each has its own connection to the store.
async fn two() -> ((Tenure, InstrumentedStore), (Tenure, InstrumentedStore), QueueKey) {
    let memory = MemoryStore::new();
    let (one, two) = (InstrumentedStore::new(memory.clone()), InstrumentedStore::new(memory));
    let (a, b) = (real_process(&one, "a").await, real_process(&two, "b").await);
    a.tasks().campaign_for_maintenance().await.unwrap();
    until("the first is broker", async || one.store.broker_endpoint().await.unwrap().is_some()).await;
    b.tasks().campaign_for_maintenance().await.unwrap();
    let mail = queue("mail");
    set_mode(&one, &mail, AssignmentMode::Exclusive, BrokerFallback::None).await;
    ((a, one), (b, two), mail)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_goes_through_the_broker_from_every_process() {
    let ((a, one), (b, two), mail) = two().await;
    a.tasks().submit(&mail, many(3)).await.unwrap();
    let here = tasks(a.tasks().claim(&mail, claim_request(&a, "wa", 1), Duration::ZERO).await.unwrap());
    let there = tasks(b.tasks().claim(&mail, claim_request(&b, "wb", 1), Duration::ZERO).await.unwrap());
    assert_eq!((here[0].claim_seq, there[0].claim_seq), (Some(1), Some(2)));
    let (remote_calls, calls) = (two.calls("claim"), one.calls("claim"));
    let again = tasks(b.tasks().claim(&mail, claim_request(&b, "wb", 1), Duration::ZERO).await.unwrap());
    assert_eq!(again[0].claim_seq, Some(3));
    assert_eq!(
        (two.calls("claim"), one.calls("claim")),
        (remote_calls, calls + 1),
        "the broker claimed it from the store"
    );
    assert_eq!(two.calls("broker_endpoint"), 1, "it reuses its connection");
    assert_eq!(
        b.tasks().settle(complete(&again[0])).await.unwrap(),
        SettleResult::Applied(TaskState::Completed)
    );
    b.close().await.unwrap();
    a.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_broker_waits_for_its_clients_and_forgets_those_that_left() {
    let ((a, one), (b, _), mail) = two().await;
    let waiting = tokio::spawn({
        let (claims, mail, request) = (b.tasks(), mail.clone(), claim_request(&b, "wb", 1));
        async move { tasks(claims.claim(&mail, request, 60 * SECOND).await.unwrap()) }
    });
    until("the broker has polled for it and registered", async || one.calls("register_queue_waiter") >= 1)
        .await;
    // A caller that leaves the same wait queue before the task arrives.
    let leaves = tokio::spawn({
        let (claims, mail, request) = (b.tasks(), mail.clone(), claim_request(&b, "leaves", 1));
        async move { claims.claim(&mail, request, 60 * SECOND).await }
    });
    tokio::time::sleep(50 * MS).await;
    leaves.abort();
    a.tasks().submit(&mail, many(1)).await.unwrap();
    let claimed = waiting.await.unwrap();
    assert_eq!(claimed[0].claim_seq, Some(1));
    a.tasks().submit(&mail, many(1)).await.unwrap();
    let next = tasks(a.tasks().claim(&mail, claim_request(&a, "wa", 1), 60 * SECOND).await.unwrap());
    assert_eq!(next.len(), 1, "the claim that left gets nothing");
    b.close().await.unwrap();
    a.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_claims_of_many_processes_are_served_in_strict_order() {
    let ((a, one), (b, _), mail) = two().await;
    a.tasks().submit(&mail, many(400)).await.unwrap();
    let sequences = Arc::new(Mutex::new(Vec::new()));
    let mut asking = Vec::new();
    for n in 0..20 {
        let tenure = if n % 2 == 0 { a.clone() } else { b.clone() };
        let (mail, sequences) = (mail.clone(), sequences.clone());
        asking.push(tokio::spawn(async move {
            loop {
                let request = claim_request(&tenure, &format!("w{n}"), 3);
                let claimed = tasks(tenure.tasks().claim(&mail, request, Duration::ZERO).await.unwrap());
                if claimed.is_empty() {
                    return;
                }
                for task in claimed {
                    let settled = tenure.tasks().settle(complete(&task)).await.unwrap();
                    assert_eq!(settled, SettleResult::Applied(TaskState::Completed));
                    sequences.lock().unwrap().push((task.claim_seq.unwrap(), task.id));
                }
            }
        }));
    }
    for one in asking {
        one.await.unwrap();
    }
    let mut sequences = sequences.lock().unwrap().clone();
    sequences.sort();
    let ids: Vec<TaskId> = sequences.iter().map(|(_, id)| *id).collect();
    assert_eq!(
        sequences.iter().map(|(sequence, _)| *sequence).collect::<Vec<_>>(),
        (1..=400).collect::<Vec<_>>()
    );
    assert!(ids.is_sorted(), "assigned in the order of the queue");
    assert_eq!(counts(&one, &mail).await, [(TaskState::Completed, 400)].into());
    b.close().await.unwrap();
    a.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_broker_a_claim_returns_no_broker_or_uses_the_fallback() {
    let instrumented = InstrumentedStore::new(MemoryStore::new());
    let tenure = real_process(&instrumented, "a").await;
    let (strict, loose) = (queue("strict"), queue("loose"));
    set_mode(&instrumented, &strict, AssignmentMode::Exclusive, BrokerFallback::None).await;
    set_mode(&instrumented, &loose, AssignmentMode::Exclusive, BrokerFallback::Distributed).await;
    let claims = tenure.tasks();
    claims.submit(&strict, many(1)).await.unwrap();
    claims.submit(&loose, many(1)).await.unwrap();
    let no_broker = claims.claim(&strict, claim_request(&tenure, "w", 1), Duration::ZERO).await.unwrap();
    assert_eq!(no_broker, ClaimResult::NoBroker);
    let claimed = tasks(claims.claim(&loose, claim_request(&tenure, "w", 1), Duration::ZERO).await.unwrap());
    assert_eq!((claimed.len(), claimed[0].claim_seq), (1, None));
    // A waiting claim is served as soon as there is a broker: here, this process.
    let waiting = tokio::spawn({
        let (claims, strict, request) = (claims.clone(), strict.clone(), claim_request(&tenure, "w", 1));
        async move { tasks(claims.claim(&strict, request, 60 * SECOND).await.unwrap()) }
    });
    claims.campaign_for_maintenance().await.unwrap();
    assert_eq!(waiting.await.unwrap()[0].claim_seq, Some(1));
    tenure.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_broker_leaves_the_next_one_continues() {
    let ((a, _), (b, two), mail) = two().await;
    a.tasks().submit(&mail, many(10)).await.unwrap();
    let first = tasks(b.tasks().claim(&mail, claim_request(&b, "wb", 4), Duration::ZERO).await.unwrap());
    assert_eq!(first.last().unwrap().claim_seq, Some(4));
    let waiting = tokio::spawn({
        let (claims, mail, request) = (b.tasks(), queue("later"), claim_request(&b, "wb", 1));
        set_mode(&two, &mail, AssignmentMode::Exclusive, BrokerFallback::None).await;
        async move { tasks(claims.claim(&mail, request, 60 * SECOND).await.unwrap()) }
    });
    a.close().await.unwrap();
    let next = tasks(b.tasks().claim(&mail, claim_request(&b, "wb", 1), 60 * SECOND).await.unwrap());
    assert_eq!(next[0].claim_seq, Some(5));
    b.tasks().submit(&queue("later"), many(1)).await.unwrap();
    assert_eq!(waiting.await.unwrap().len(), 1, "a claim that waited at the old broker waits at the new one");
    b.close().await.unwrap();
}

/// Workers in three processes on one queue. The broker is disconnected in the middle, then the next one, and an
/// operator keeps changing the mode.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_task_is_lost_or_runs_twice_at_once_while_brokers_die_and_modes_change() {
    let memory = MemoryStore::new();
    let (mail, count) = (queue("mail"), 1_500);
    let running = Arc::new(Mutex::new(BTreeSet::new()));
    let mut processes = Vec::new();
    for name in ["a", "b", "c"] {
        let instrumented = InstrumentedStore::new(memory.clone());
        let tenure = real_process(&instrumented, name).await;
        let running = running.clone();
        let worker = tenure
            .worker("mail")
            .name(name)
            .concurrency(8)
            .handler(move |task| {
                let running = running.clone();
                async move {
                    let _exclusive = ExclusiveRun::new(&running, task.id());
                    tokio::time::sleep(2 * MS).await;
                    tokio::task::yield_now().await;
                }
            })
            .start()
            .await
            .unwrap();
        processes.push((tenure, instrumented, worker));
    }
    let watcher = InstrumentedStore::new(memory.clone());
    set_mode(&watcher, &mail, AssignmentMode::Exclusive, BrokerFallback::None).await;
    let submitter = real_process(&watcher, "submitter").await;
    for batch in many(count).chunks(100) {
        submitter.tasks().submit(&mail, batch.to_vec()).await.unwrap();
    }
    let flipping = tokio::spawn({
        let (watcher, mail) = (watcher.clone(), mail.clone());
        async move {
            for sequence in 0u32.. {
                let mode =
                    if sequence % 2 == 0 { AssignmentMode::Distributed } else { AssignmentMode::Exclusive };
                let fallback =
                    if sequence % 3 == 0 { BrokerFallback::Distributed } else { BrokerFallback::None };
                set_mode(&watcher, &mail, mode, fallback).await;
                tokio::time::sleep(70 * MS).await;
            }
        }
    });
    for round in 0..2 {
        until("some tasks are completed", async || {
            let done = counts(&watcher, &mail).await.get(&TaskState::Completed).copied().unwrap_or(0);
            done > 200 * (round + 1)
        })
        .await;
        let leader = watcher.store.election(&broker_election()).await.unwrap().unwrap();
        let leader = tenure::leaders(&leader).first().map(|leader| leader.name.clone());
        if let Some((_, instrumented, _)) =
            processes.iter().find(|(tenure, ..)| Some(tenure.name()) == leader.as_deref())
        {
            for call in [
                "heartbeat",
                "open_session",
                "claim",
                "settle",
                "observe",
                "take_lease",
                "maintain",
                "held_claims",
                "broker_endpoint",
                "release_lease",
            ] {
                instrumented.fault(call, Some(Fault::Fails));
            }
            tokio::time::sleep(1_500 * MS).await;
            for call in [
                "heartbeat",
                "open_session",
                "claim",
                "settle",
                "observe",
                "take_lease",
                "maintain",
                "held_claims",
                "broker_endpoint",
                "release_lease",
            ] {
                instrumented.fault(call, None);
            }
        }
    }
    until("all tasks are completed", async || {
        counts(&watcher, &mail).await.get(&TaskState::Completed).copied() == Some(count as u64)
    })
    .await;
    flipping.abort();
    for (tenure, _, worker) in processes {
        worker.drain().await.unwrap();
        tenure.close().await.unwrap();
    }
    submitter.close().await.unwrap();
}

/// Reports if another handler runs the same task.
struct ExclusiveRun<'a>(&'a Mutex<BTreeSet<TaskId>>, TaskId);

impl<'a> ExclusiveRun<'a> {
    fn new(running: &'a Mutex<BTreeSet<TaskId>>, id: TaskId) -> Self {
        if !running.lock().unwrap().insert(id) {
            eprintln!("task {id} runs twice at the same time");
            std::process::abort();
        }
        ExclusiveRun(running, id)
    }
}

impl Drop for ExclusiveRun<'_> {
    fn drop(&mut self) {
        self.0.lock().unwrap().remove(&self.1);
    }
}

/// Regression: a worker that drained while the remote broker was claiming for it ended its session before it
/// knew the claim, so a task that no handler had started lost an attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_waits_for_a_claim_at_the_broker_and_releases_its_tasks() {
    let ((a, one), (b, _), mail) = two().await;
    let id = a.tasks().submit(&mail, many(1)).await.unwrap()[0].id;
    one.fault("claim", Some(Fault::ResponseLate));
    let worker = b.worker("mail").handler(|_| async {}).start().await.unwrap();
    until("the broker has claimed it", async || state_of(&one, id).await.state == TaskState::Claimed).await;
    let drain = tokio::spawn(async move {
        worker.drain().await.unwrap();
        b.close().await.unwrap();
    });
    // Long enough for a drain that does not wait.
    tokio::time::sleep(300 * MS).await;
    assert!(!drain.is_finished(), "the drain did not wait for the claim at the broker");
    one.fault("claim", None);
    drain.await.unwrap();
    let view = state_of(&one, id).await;
    assert_eq!((view.state, view.attempt), (TaskState::Ready, 0));
    a.close().await.unwrap();
}
