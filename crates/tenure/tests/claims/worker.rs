//! Workers: handlers, their failures, and how they are stopped.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::port::*;
use tenure::{Drained, Error, Stop, TaskError};
use tenure_testkit::block_on;
use tokio::sync::Semaphore;

use crate::spy::Fault;
use crate::support::*;

#[test]
fn tasks_are_done_and_their_outputs_kept() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        let worker = tenure
            .worker("mail")
            .kind("double", |task| async move { Ok::<_, TaskError>(task.payload::<u32>()? * 2) })
            .kind("nothing", |_| async {})
            .start()
            .await
            .unwrap();
        let double = NewTask { payload: "21".parse().unwrap(), ..NewTask::new("double") };
        let ids =
            tenure.claims().submit(&queue("mail"), vec![double, NewTask::new("nothing")]).await.unwrap();
        clock.settle().await;
        let (double, nothing) = (state_of(&store, ids[0].id).await, state_of(&store, ids[1].id).await);
        assert_eq!((double.state, double.output.unwrap().as_str()), (TaskState::Completed, "42"));
        assert_eq!((nothing.state, nothing.output), (TaskState::Completed, None));
        assert_eq!(worker.drain().await.unwrap().cut_short, 0);
        tenure.close().await.unwrap();
    });
}

#[test]
fn what_a_handler_says_of_a_failure_is_heeded_and_a_panic_is_one() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        let worker = tenure
            .worker("mail")
            .handler(|task| async move {
                match (task.kind(), task.attempt()) {
                    ("panics", _) => panic!("the test wants this"),
                    ("plain", _) => Err(TaskError::fail("no paper")),
                    ("parse", _) => Ok(task.payload::<u32>()?),
                    ("for-good", _) => Err(TaskError::fail_for_good("no such printer")),
                    ("later", _) => Err(TaskError::retry_after(Duration::from_secs(90), "closed")),
                    _ => Ok(1),
                }
            })
            .start()
            .await
            .unwrap();
        let kinds = ["panics", "plain", "parse", "for-good", "later", "good"];
        let all = kinds.map(|kind| NewTask { payload: r#""x""#.parse().unwrap(), ..NewTask::new(kind) });
        let ids = tenure.claims().submit(&queue("mail"), all.into()).await.unwrap();
        clock.settle().await;
        let mut seen = Vec::new();
        for id in ids {
            let view = state_of(&store, id.id).await;
            seen.push((
                view.state,
                view.failures.first().map_or(String::new(), |failure| failure.error.clone()),
            ));
        }
        assert_eq!(seen[0], (TaskState::Scheduled, "panicked: the test wants this".into()));
        assert_eq!(seen[1], (TaskState::Scheduled, "no paper".into()));
        assert_eq!(seen[2].0, TaskState::Scheduled);
        assert!(seen[2].1.contains("invalid type"), "{}", seen[2].1);
        assert_eq!(seen[3], (TaskState::Dead, "no such printer".into()));
        assert_eq!(seen[4], (TaskState::Scheduled, "closed".into()));
        assert_eq!(seen[5].0, TaskState::Completed, "the worker lives on");
        worker.drain().await.unwrap();
    });
}

#[test]
fn a_released_task_costs_no_attempt() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        let calls = Arc::new(AtomicUsize::new(0));
        let seen = calls.clone();
        let worker = tenure
            .worker("mail")
            .handler(move |_| {
                let first = seen.fetch_add(1, Ordering::SeqCst) == 0;
                async move { if first { Err(TaskError::release()) } else { Ok(()) } }
            })
            .start()
            .await
            .unwrap();
        let id = tenure.claims().submit(&queue("mail"), many(1)).await.unwrap()[0].id;
        clock.settle().await;
        let view = state_of(&store, id).await;
        assert_eq!((view.state, view.attempt, calls.load(Ordering::SeqCst)), (TaskState::Completed, 1, 2));
        worker.drain().await.unwrap();
    });
}

/// A handler that waits until the test lets it go, and tells how it ended.
struct Gate {
    open: Arc<Semaphore>,
    ends: Arc<Mutex<Vec<&'static str>>>,
}

struct Ending(Arc<Mutex<Vec<&'static str>>>, bool);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.lock().unwrap().push(if self.1 { "returned" } else { "dropped" });
    }
}

impl Gate {
    fn new() -> Gate {
        Gate { open: Arc::new(Semaphore::new(0)), ends: Arc::default() }
    }

    fn ends(&self) -> Vec<&'static str> {
        self.ends.lock().unwrap().clone()
    }

    fn handler(
        &self,
    ) -> impl Fn(tenure::TaskContext) -> futures_util::future::BoxFuture<'static, ()> + use<> {
        let (open, ends) = (self.open.clone(), self.ends.clone());
        move |_| {
            let (open, ends) = (open.clone(), ends.clone());
            Box::pin(async move {
                let mut ending = Ending(ends, false);
                open.acquire().await.unwrap().forget();
                ending.1 = true;
            })
        }
    }
}

#[test]
fn a_drain_finishes_what_is_begun_and_gives_back_what_is_not() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        let (mail, gate) = (queue("mail"), Gate::new());
        tenure.claims().submit(&mail, many(10)).await.unwrap();
        let worker =
            tenure.worker("mail").concurrency(2).prefetch(5).handler(gate.handler()).start().await.unwrap();
        clock.settle().await;
        assert_eq!(counts(&store, &mail).await, [(TaskState::Ready, 3), (TaskState::Claimed, 7)].into());
        let draining = tokio::spawn(worker.drain());
        clock.settle().await;
        assert_eq!(counts(&store, &mail).await, [(TaskState::Ready, 8), (TaskState::Claimed, 2)].into());
        assert!(!draining.is_finished());
        gate.open.add_permits(2);
        clock.settle().await;
        assert_eq!(draining.await.unwrap().unwrap().cut_short, 0);
        assert_eq!(counts(&store, &mail).await, [(TaskState::Ready, 8), (TaskState::Completed, 2)].into());
        assert_eq!(gate.ends(), ["returned", "returned"]);
    });
}

/// Who ends the session before it knows what it was handed loses an attempt that nobody made.
#[test]
fn a_drain_waits_for_a_claim_that_is_under_way_and_gives_back_what_it_brings() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        let (mail, gate) = (queue("mail"), Gate::new());
        let id = tenure.claims().submit(&mail, many(1)).await.unwrap()[0].id;
        store.fault("claim", Some(Fault::AnswerLate));
        let worker = tenure.worker("mail").handler(gate.handler()).start().await.unwrap();
        clock.settle().await;
        assert_eq!(state_of(&store, id).await.state, TaskState::Claimed, "and nobody here knows");
        let draining = tokio::spawn(worker.drain());
        clock.settle().await;
        assert!(!draining.is_finished());
        store.fault("claim", None);
        clock.settle().await;
        draining.await.unwrap().unwrap();
        let view = state_of(&store, id).await;
        assert_eq!((view.state, view.attempt, gate.ends()), (TaskState::Ready, 0, vec![]));
    });
}

#[test]
fn a_drain_whose_patience_is_over_drops_the_handler_and_gives_its_task_back() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        let (mail, gate) = (queue("mail"), Gate::new());
        let id = tenure.claims().submit(&mail, many(1)).await.unwrap()[0].id;
        let worker = tenure.worker("mail").grace(3 * SECOND).handler(gate.handler()).start().await.unwrap();
        clock.settle().await;
        let draining = tokio::spawn(worker.drain());
        clock.advance(4 * SECOND).await;
        assert!(matches!(draining.await.unwrap(), Ok(Drained { cut_short: 1, .. })));
        let view = state_of(&store, id).await;
        assert_eq!((view.state, view.attempt, gate.ends()), (TaskState::Ready, 0, vec!["dropped"]));
    });
}

#[test]
fn a_worker_that_is_dropped_leaves_nothing_claimed() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        let (mail, gate) = (queue("mail"), Gate::new());
        tenure.claims().submit(&mail, many(10)).await.unwrap();
        let worker =
            tenure.worker("mail").concurrency(2).prefetch(5).handler(gate.handler()).start().await.unwrap();
        clock.settle().await;
        drop(worker);
        clock.settle().await;
        assert_eq!(counts(&store, &mail).await, [(TaskState::Ready, 10)].into());
        assert_eq!(gate.ends(), ["dropped", "dropped"]);
    });
}

#[test]
fn an_operators_cancel_reaches_the_handler() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        let (mail, gate) = (queue("mail"), Gate::new());
        let id = tenure.claims().submit(&mail, many(1)).await.unwrap()[0].id;
        let stops = Arc::new(Mutex::new(Vec::new()));
        let (handler, seen) = (gate.handler(), stops.clone());
        let worker = tenure
            .worker("mail")
            .handler(move |task| {
                let (seen, elsewhere) = (seen.clone(), task.clone());
                tokio::spawn(async move {
                    let stop = elsewhere.cancelled().await;
                    seen.lock().unwrap().push((stop, elsewhere.is_claimed()));
                });
                handler(task)
            })
            .start()
            .await
            .unwrap();
        clock.settle().await;
        store.store.order(&mail.namespace, &[id], Order::Cancel).await.unwrap();
        clock.settle().await;
        assert_eq!(gate.ends(), ["dropped"], "the hint was enough");
        assert_eq!(*stops.lock().unwrap(), [(Stop::CalledOff, false)]);
        assert_eq!(state_of(&store, id).await.state, TaskState::Cancelled);
        worker.drain().await.unwrap();
    });
}

#[test]
fn a_session_that_is_lost_drops_its_handlers_before_anybody_else_begins() {
    block_on(async {
        let (clock, store) = hand_driven();
        let (a, b) = (process(&clock, &store, "a").await, store.clone());
        let (mail, gate, elsewhere) = (queue("mail"), Gate::new(), Gate::new());
        let worker = a.worker("mail").name("first").handler(gate.handler()).start().await.unwrap();
        let id = a.claims().submit(&mail, many(1)).await.unwrap()[0].id;
        clock.settle().await;
        // Another process, on a link of its own, has a worker, too.
        let other = crate::spy::Spy::new(b.store.clone());
        let second = process(&clock, &other, "b").await;
        let helper = second.worker("mail").name("second").handler(elsewhere.handler()).start().await.unwrap();
        for call in [
            "beat", "open", "settle", "claim", "held", "observe", "tend", "sessions", "take", "release",
            "doze",
        ] {
            store.fault(call, Some(Fault::Fails));
        }
        for _ in 0..200 {
            clock.advance(100 * MS).await;
            let begun = state_of(&other, id).await.worker.as_deref() == Some("second");
            assert!(!begun || gate.ends() == ["dropped"], "two have it");
        }
        let view = state_of(&other, id).await;
        assert_eq!((view.worker.as_deref(), view.attempt), (Some("second"), 2));
        assert!(view.failures[0].error.contains("lost"), "{:?}", view.failures);
        elsewhere.open.add_permits(1);
        clock.settle().await;
        assert_eq!(state_of(&other, id).await.state, TaskState::Completed);
        drop(worker);
        helper.drain().await.unwrap();
    });
}

#[test]
fn a_run_that_takes_too_long_is_ended_on_our_own_clock() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        let (mail, gate) = (queue("mail"), Gate::new());
        let task = NewTask { max_run_ms: Some(3_000), max_attempts: 1, ..NewTask::new("k") };
        let id = tenure.claims().submit(&mail, vec![task]).await.unwrap()[0].id;
        // The store's own keeper is kept from finding it.
        store.fault("tend", Some(Fault::Fails));
        let worker = tenure.worker("mail").handler(gate.handler()).start().await.unwrap();
        clock.advance(2_900 * MS).await;
        assert_eq!(gate.ends(), [""; 0]);
        clock.advance(200 * MS).await;
        assert_eq!(gate.ends(), ["dropped"]);
        let view = state_of(&store, id).await;
        assert_eq!((view.state, view.failures[0].error.as_str()), (TaskState::Dead, "its run time is over"));
        worker.drain().await.unwrap();
    });
}

#[test]
fn a_run_that_asks_for_more_time_gets_it_up_to_its_longest() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        let (mail, gate) = (queue("mail"), Gate::new());
        let task = NewTask { max_run_ms: Some(12_000), ..NewTask::new("k") };
        let id = tenure.claims().submit(&mail, vec![task]).await.unwrap()[0].id;
        let handler = gate.handler();
        let worker = tenure
            .worker("mail")
            .handler(move |task| {
                let work = handler(task.clone());
                async move {
                    task.progress("half way").await?;
                    let longest = task.run_until();
                    task.extend(3 * SECOND).await?;
                    assert!(task.run_until() < longest);
                    task.extend(60 * SECOND).await?;
                    assert_eq!(task.run_until(), longest, "not beyond its longest run");
                    work.await;
                    Ok::<_, Error>(())
                }
            })
            .start()
            .await
            .unwrap();
        clock.advance(9 * SECOND).await;
        assert_eq!(state_of(&store, id).await.progress.as_deref(), Some("half way"));
        gate.open.add_permits(1);
        clock.settle().await;
        assert_eq!(state_of(&store, id).await.state, TaskState::Completed);
        worker.drain().await.unwrap();
    });
}

#[test]
fn a_child_that_is_submitted_while_running_gets_the_output_as_its_input() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        let worker = tenure
            .worker("mail")
            .kind("parent", |task| async move {
                task.submit_child(NewTask::new("child")).await?;
                Ok::<_, Error>(41)
            })
            .kind("child", |task| async move {
                let input = task.inputs().values().next().ok_or("no input")?;
                input.parse::<u32>().map(|input| input + 1).map_err(|_| "no number")
            })
            .start()
            .await
            .unwrap();
        let id = tenure.claims().submit(&queue("mail"), vec![NewTask::new("parent")]).await.unwrap()[0].id;
        clock.settle().await;
        let parent = state_of(&store, id).await;
        let child = state_of(&store, parent.children[0]).await;
        assert_eq!((child.state, child.output.unwrap().as_str()), (TaskState::Completed, "42"));
        worker.drain().await.unwrap();
    });
}

#[test]
fn words_that_the_store_did_not_hear_are_said_again() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        let mail = queue("mail");
        store.fault("settle", Some(Fault::AnswerLost));
        let calls = Arc::new(AtomicUsize::new(0));
        let seen = calls.clone();
        let worker = tenure
            .worker("mail")
            .handler(move |_| {
                seen.fetch_add(1, Ordering::SeqCst);
                async {}
            })
            .start()
            .await
            .unwrap();
        tenure.claims().submit(&mail, many(50)).await.unwrap();
        clock.advance(2 * SECOND).await;
        store.fault("settle", Some(Fault::Fails));
        tenure.claims().submit(&mail, many(50)).await.unwrap();
        clock.advance(2 * SECOND).await;
        store.fault("settle", None);
        clock.advance(10 * SECOND).await;
        assert_eq!(counts(&store, &mail).await, [(TaskState::Completed, 100)].into());
        assert_eq!(calls.load(Ordering::SeqCst), 100, "each was done once");
        worker.drain().await.unwrap();
    });
}

#[test]
fn short_tasks_are_claimed_and_acknowledged_by_the_hundreds() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        let mail = queue("mail");
        tenure.claims().submit(&mail, many(10_000)).await.unwrap();
        let worker = tenure.worker("mail").concurrency(32).handler(|_| async {}).start().await.unwrap();
        clock.advance(SECOND).await;
        assert_eq!(counts(&store, &mail).await, [(TaskState::Completed, 10_000)].into());
        let (claims, settles) = (store.calls("claim"), store.calls("settle"));
        assert!(claims < 60, "{claims} statements to claim 10,000");
        assert!(settles < 400, "{settles} statements to acknowledge 10,000");
        worker.drain().await.unwrap();
    });
}

#[test]
fn a_worker_without_a_handler_does_not_start() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        assert!(matches!(tenure.worker("mail").start().await, Err(Error::Worker(_))));
        let none = tenure.worker("mail").concurrency(0).handler(|_| async {}).start().await;
        assert!(matches!(none, Err(Error::Worker(_))));
    });
}

/// A process that lost trust, and not its session, remembers the claims that were made by hand: who made them works on them.
#[test]
fn a_lapse_of_trust_gives_back_no_claim_that_was_made_by_hand() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        let (claims, mail) = (tenure.claims(), queue("mail"));
        let worker = tenure.worker("other").handler(|_| async {}).start().await.unwrap();
        let id = claims.submit(&mail, many(1)).await.unwrap()[0].id;
        let session = tenure.session();
        let got = tasks(claims.claim(&mail, seat(&tenure, "w", 1), Duration::ZERO).await.unwrap());
        // Away for long enough to lose trust, and not so long that anybody has noticed.
        for call in ["beat", "observe", "claim", "tend", "take", "expire", "sessions"] {
            store.fault(call, Some(Fault::Fails));
        }
        clock.advance(12 * SECOND).await;
        claims.claim(&mail, seat(&tenure, "w", 1), Duration::ZERO).await.unwrap_err();
        for call in ["beat", "observe", "claim", "tend", "take", "expire", "sessions"] {
            store.fault(call, None);
        }
        clock.advance(120 * SECOND).await;
        assert_eq!(tenure.session(), session, "the same session");
        assert_eq!(state_of(&store, id).await.state, TaskState::Claimed);
        assert_eq!(claims.settle(complete(&got[0])).await.unwrap(), Settled::Now(TaskState::Completed));
        drop(worker);
    });
}
