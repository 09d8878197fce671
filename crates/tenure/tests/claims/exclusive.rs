//! Exclusive queues: several processes, one leader, strict order; and what happens when the leader goes.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::backend::memory::Memory;
use tenure::port::*;
use tenure::{Claimed, Tenure};

use crate::spy::{Fault, Spy};
use crate::support::*;

/// Two processes that stand, the first of which leads; each has a way of its own to the store.
async fn two() -> ((Tenure, Spy), (Tenure, Spy), QueueKey) {
    let memory = Memory::new();
    let (one, two) = (Spy::new(memory.clone()), Spy::new(memory));
    let (a, b) = (real_process(&one, "a").await, real_process(&two, "b").await);
    a.claims().stand().await.unwrap();
    until("the first leads", async || one.store.post().await.unwrap().is_some()).await;
    b.claims().stand().await.unwrap();
    let mail = queue("mail");
    set_mode(&one, &mail, Mode::Exclusive, Fallback::None).await;
    ((a, one), (b, two), mail)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_goes_through_the_leader_wherever_it_is_made() {
    let ((a, one), (b, two), mail) = two().await;
    a.claims().submit(&mail, many(3)).await.unwrap();
    let here = tasks(a.claims().claim(&mail, seat(&a, "wa", 1), Duration::ZERO).await.unwrap());
    let there = tasks(b.claims().claim(&mail, seat(&b, "wb", 1), Duration::ZERO).await.unwrap());
    assert_eq!((here[0].turn, there[0].turn), (Some(1), Some(2)));
    let (asked, calls) = (two.calls("claim"), one.calls("claim"));
    let again = tasks(b.claims().claim(&mail, seat(&b, "wb", 1), Duration::ZERO).await.unwrap());
    assert_eq!(again[0].turn, Some(3));
    assert_eq!(
        (two.calls("claim"), one.calls("claim")),
        (asked, calls + 1),
        "the leader asked the store for it"
    );
    assert_eq!(two.calls("post"), 1, "over the connection that it has");
    assert_eq!(b.claims().settle(complete(&again[0])).await.unwrap(), Settled::Now(TaskState::Completed));
    b.close().await.unwrap();
    a.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_waits_on_behalf_of_who_asks_and_forgets_who_left() {
    let ((a, one), (b, _), mail) = two().await;
    let waiting = tokio::spawn({
        let (claims, mail, seat) = (b.claims(), mail.clone(), seat(&b, "wb", 1));
        async move { tasks(claims.claim(&mail, seat, 60 * SECOND).await.unwrap()) }
    });
    until("the leader has looked for it and sleeps", async || one.calls("doze") >= 1).await;
    // One that gives up, in the same line before the task comes.
    let leaves = tokio::spawn({
        let (claims, mail, seat) = (b.claims(), mail.clone(), seat(&b, "leaves", 1));
        async move { claims.claim(&mail, seat, 60 * SECOND).await }
    });
    tokio::time::sleep(50 * MS).await;
    leaves.abort();
    a.claims().submit(&mail, many(1)).await.unwrap();
    let got = waiting.await.unwrap();
    assert_eq!(got[0].turn, Some(1));
    a.claims().submit(&mail, many(1)).await.unwrap();
    let next = tasks(a.claims().claim(&mail, seat(&a, "wa", 1), 60 * SECOND).await.unwrap());
    assert_eq!(next.len(), 1, "who left gets nothing");
    b.close().await.unwrap();
    a.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_askers_of_many_processes_get_strictly_what_is_next() {
    let ((a, one), (b, _), mail) = two().await;
    a.claims().submit(&mail, many(400)).await.unwrap();
    let turns = Arc::new(Mutex::new(Vec::new()));
    let mut asking = Vec::new();
    for n in 0..20 {
        let tenure = if n % 2 == 0 { a.clone() } else { b.clone() };
        let (mail, turns) = (mail.clone(), turns.clone());
        asking.push(tokio::spawn(async move {
            loop {
                let wish = seat(&tenure, &format!("w{n}"), 3);
                let got = tasks(tenure.claims().claim(&mail, wish, Duration::ZERO).await.unwrap());
                if got.is_empty() {
                    return;
                }
                for task in got {
                    let settled = tenure.claims().settle(complete(&task)).await.unwrap();
                    assert_eq!(settled, Settled::Now(TaskState::Completed));
                    turns.lock().unwrap().push((task.turn.unwrap(), task.id));
                }
            }
        }));
    }
    for one in asking {
        one.await.unwrap();
    }
    let mut turns = turns.lock().unwrap().clone();
    turns.sort();
    let ids: Vec<TaskId> = turns.iter().map(|(_, id)| *id).collect();
    assert_eq!(turns.iter().map(|(turn, _)| *turn).collect::<Vec<_>>(), (1..=400).collect::<Vec<_>>());
    assert!(ids.is_sorted(), "handed out in the order of the queue");
    assert_eq!(counts(&one, &mail).await, [(TaskState::Completed, 400)].into());
    b.close().await.unwrap();
    a.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_leader_it_is_not_now_or_the_fallback() {
    let spy = Spy::new(Memory::new());
    let tenure = real_process(&spy, "a").await;
    let (strict, loose) = (queue("strict"), queue("loose"));
    set_mode(&spy, &strict, Mode::Exclusive, Fallback::None).await;
    set_mode(&spy, &loose, Mode::Exclusive, Fallback::Distributed).await;
    let claims = tenure.claims();
    claims.submit(&strict, many(1)).await.unwrap();
    claims.submit(&loose, many(1)).await.unwrap();
    let not_now = claims.claim(&strict, seat(&tenure, "w", 1), Duration::ZERO).await.unwrap();
    assert_eq!(not_now, Claimed::NotNow);
    let got = tasks(claims.claim(&loose, seat(&tenure, "w", 1), Duration::ZERO).await.unwrap());
    assert_eq!((got.len(), got[0].turn), (1, None));
    // Who waits is served as soon as somebody leads: here, we do.
    let waiting = tokio::spawn({
        let (claims, strict, seat) = (claims.clone(), strict.clone(), seat(&tenure, "w", 1));
        async move { tasks(claims.claim(&strict, seat, 60 * SECOND).await.unwrap()) }
    });
    claims.stand().await.unwrap();
    assert_eq!(waiting.await.unwrap()[0].turn, Some(1));
    tenure.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_leader_leaves_the_next_goes_on_where_it_stopped() {
    let ((a, _), (b, two), mail) = two().await;
    a.claims().submit(&mail, many(10)).await.unwrap();
    let first = tasks(b.claims().claim(&mail, seat(&b, "wb", 4), Duration::ZERO).await.unwrap());
    assert_eq!(first.last().unwrap().turn, Some(4));
    let waiting = tokio::spawn({
        let (claims, mail, wish) = (b.claims(), queue("later"), seat(&b, "wb", 1));
        set_mode(&two, &mail, Mode::Exclusive, Fallback::None).await;
        async move { tasks(claims.claim(&mail, wish, 60 * SECOND).await.unwrap()) }
    });
    a.close().await.unwrap();
    let next = tasks(b.claims().claim(&mail, seat(&b, "wb", 1), 60 * SECOND).await.unwrap());
    assert_eq!(next[0].turn, Some(5));
    b.claims().submit(&queue("later"), many(1)).await.unwrap();
    assert_eq!(waiting.await.unwrap().len(), 1, "who waited at the old leader waits at the new one");
    b.close().await.unwrap();
}

/// Workers in three processes on one queue; the one that leads is cut off in the middle, then the next; and an operator changes
/// the mode all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_done_twice_at_once_though_leaders_die_and_modes_change() {
    let memory = Memory::new();
    let (mail, count) = (queue("mail"), 1_500);
    let running = Arc::new(Mutex::new(BTreeSet::new()));
    let mut processes = Vec::new();
    for name in ["a", "b", "c"] {
        let spy = Spy::new(memory.clone());
        let tenure = real_process(&spy, name).await;
        let running = running.clone();
        let worker = tenure
            .worker("mail")
            .name(name)
            .concurrency(8)
            .handler(move |task| {
                let running = running.clone();
                async move {
                    let _alone = Alone::new(&running, task.id());
                    tokio::time::sleep(2 * MS).await;
                    tokio::task::yield_now().await;
                }
            })
            .start()
            .await
            .unwrap();
        processes.push((tenure, spy, worker));
    }
    let watcher = Spy::new(memory.clone());
    set_mode(&watcher, &mail, Mode::Exclusive, Fallback::None).await;
    let submitter = real_process(&watcher, "submitter").await;
    for batch in many(count).chunks(100) {
        submitter.claims().submit(&mail, batch.to_vec()).await.unwrap();
    }
    let flipping = tokio::spawn({
        let (watcher, mail) = (watcher.clone(), mail.clone());
        async move {
            for turn in 0u32.. {
                let mode = if turn % 2 == 0 { Mode::Distributed } else { Mode::Exclusive };
                let fallback = if turn % 3 == 0 { Fallback::Distributed } else { Fallback::None };
                set_mode(&watcher, &mail, mode, fallback).await;
                tokio::time::sleep(70 * MS).await;
            }
        }
    });
    for round in 0..2 {
        until("some are done", async || {
            let done = counts(&watcher, &mail).await.get(&TaskState::Completed).copied().unwrap_or(0);
            done > 200 * (round + 1)
        })
        .await;
        let leader = watcher.store.election(&claims_election()).await.unwrap().unwrap();
        let leader = tenure::leaders(&leader).first().map(|leader| leader.id.clone());
        if let Some((_, spy, _)) =
            processes.iter().find(|(tenure, ..)| Some(tenure.name()) == leader.as_deref())
        {
            for call in
                ["beat", "open", "claim", "settle", "observe", "take", "tend", "held", "post", "release"]
            {
                spy.fault(call, Some(Fault::Fails));
            }
            tokio::time::sleep(1_500 * MS).await;
            for call in
                ["beat", "open", "claim", "settle", "observe", "take", "tend", "held", "post", "release"]
            {
                spy.fault(call, None);
            }
        }
    }
    until("all are done", async || {
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

/// Panics if somebody else has the same task.
struct Alone<'a>(&'a Mutex<BTreeSet<TaskId>>, TaskId);

impl<'a> Alone<'a> {
    fn new(running: &'a Mutex<BTreeSet<TaskId>>, id: TaskId) -> Self {
        if !running.lock().unwrap().insert(id) {
            eprintln!("task {id} runs twice at once");
            std::process::abort();
        }
        Alone(running, id)
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.lock().unwrap().remove(&self.1);
    }
}

/// A worker that drained while the leader elsewhere was claiming for it ended its session before it knew what it was handed: the task, which nobody had begun,
/// lost an attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_waits_for_a_claim_at_the_leader_and_gives_back_what_it_brings() {
    let ((a, one), (b, _), mail) = two().await;
    let id = a.claims().submit(&mail, many(1)).await.unwrap()[0].id;
    one.fault("claim", Some(Fault::AnswerLate));
    let worker = b.worker("mail").handler(|_| async {}).start().await.unwrap();
    until("the leader has claimed it", async || state_of(&one, id).await.state == TaskState::Claimed).await;
    let leaving = tokio::spawn(async move {
        worker.drain().await.unwrap();
        b.close().await.unwrap();
    });
    // Long enough for a drain that does not wait.
    tokio::time::sleep(300 * MS).await;
    assert!(!leaving.is_finished(), "it did not wait for what the leader has claimed for it");
    one.fault("claim", None);
    leaving.await.unwrap();
    let view = state_of(&one, id).await;
    assert_eq!((view.state, view.attempt), (TaskState::Ready, 0));
    a.close().await.unwrap();
}
