//! Workers: handlers, their failures, and how they stop.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::port::*;
use tenure::{ClaimLossReason, DrainOutcome, Error, TaskError};
use tenure_testkit::block_on;
use tokio::sync::Semaphore;

use crate::instrumented_store::Fault;
use crate::support::*;

#[test]
fn tasks_complete_and_their_results_are_stored() {
    block_on(async {
        let (clock, store) = manual_clock();
        let tenure = process(&clock, &store, "a").await;
        let worker = tenure
            .worker("mail")
            .kind("double", |task| async move { Ok::<_, TaskError>(task.payload::<u32>()? * 2) })
            .kind("nothing", |_| async {})
            .start()
            .await
            .unwrap();
        let double = NewTask { payload: "21".parse().unwrap(), ..NewTask::new("double") };
        let ids = tenure.tasks().submit(&queue("mail"), vec![double, NewTask::new("nothing")]).await.unwrap();
        clock.settle().await;
        let (double, nothing) = (state_of(&store, ids[0].id).await, state_of(&store, ids[1].id).await);
        assert_eq!((double.state, double.result.unwrap().as_str()), (TaskState::Completed, "42"));
        assert_eq!((nothing.state, nothing.result), (TaskState::Completed, None));
        assert_eq!(worker.drain().await.unwrap().aborted, 0);
        tenure.close().await.unwrap();
    });
}

#[test]
fn the_error_of_a_handler_determines_the_task_state_and_a_panic_is_a_failure() {
    block_on(async {
        let (clock, store) = manual_clock();
        let tenure = process(&clock, &store, "a").await;
        let worker = tenure
            .worker("mail")
            .handler(|task| async move {
                match (task.kind(), task.attempt()) {
                    ("panics", _) => panic!("deliberate panic"),
                    ("plain", _) => Err(TaskError::fail("no paper")),
                    ("parse", _) => Ok(task.payload::<u32>()?),
                    ("for-good", _) => Err(TaskError::permanent("no such printer")),
                    ("later", _) => Err(TaskError::retry_in(Duration::from_secs(90), "closed")),
                    _ => Ok(1),
                }
            })
            .start()
            .await
            .unwrap();
        let kinds = ["panics", "plain", "parse", "for-good", "later", "good"];
        let all = kinds.map(|kind| NewTask { payload: r#""x""#.parse().unwrap(), ..NewTask::new(kind) });
        let ids = tenure.tasks().submit(&queue("mail"), all.into()).await.unwrap();
        clock.settle().await;
        let mut seen = Vec::new();
        for id in ids {
            let view = state_of(&store, id.id).await;
            seen.push((
                view.state,
                view.failures.first().map_or(String::new(), |failure| failure.error.clone()),
            ));
        }
        assert_eq!(seen[0], (TaskState::Scheduled, "panicked: deliberate panic".into()));
        assert_eq!(seen[1], (TaskState::Scheduled, "no paper".into()));
        assert_eq!(seen[2].0, TaskState::Scheduled);
        assert!(seen[2].1.contains("invalid type"), "{}", seen[2].1);
        assert_eq!(seen[3], (TaskState::Dead, "no such printer".into()));
        assert_eq!(seen[4], (TaskState::Scheduled, "closed".into()));
        assert_eq!(seen[5].0, TaskState::Completed, "the worker continues");
        worker.drain().await.unwrap();
    });
}

#[test]
fn a_released_task_costs_no_attempt() {
    block_on(async {
        let (clock, store) = manual_clock();
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
        let id = tenure.tasks().submit(&queue("mail"), many(1)).await.unwrap()[0].id;
        clock.settle().await;
        let view = state_of(&store, id).await;
        assert_eq!((view.state, view.attempt, calls.load(Ordering::SeqCst)), (TaskState::Completed, 1, 2));
        worker.drain().await.unwrap();
    });
}

/// A handler that waits until the test releases it, and records how it ended.
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
fn a_drain_finishes_running_tasks_and_releases_the_others() {
    block_on(async {
        let (clock, store) = manual_clock();
        let tenure = process(&clock, &store, "a").await;
        let (mail, gate) = (queue("mail"), Gate::new());
        tenure.tasks().submit(&mail, many(10)).await.unwrap();
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
        assert_eq!(draining.await.unwrap().unwrap().aborted, 0);
        assert_eq!(counts(&store, &mail).await, [(TaskState::Ready, 8), (TaskState::Completed, 2)].into());
        assert_eq!(gate.ends(), ["returned", "returned"]);
    });
}

/// Regression: a worker that ended its session before it knew its claim lost an attempt that no handler made.
#[test]
fn a_drain_waits_for_a_running_claim_and_releases_its_tasks() {
    block_on(async {
        let (clock, store) = manual_clock();
        let tenure = process(&clock, &store, "a").await;
        let (mail, gate) = (queue("mail"), Gate::new());
        let id = tenure.tasks().submit(&mail, many(1)).await.unwrap()[0].id;
        store.fault("claim", Some(Fault::ResponseLate));
        let worker = tenure.worker("mail").handler(gate.handler()).start().await.unwrap();
        clock.settle().await;
        assert_eq!(state_of(&store, id).await.state, TaskState::Claimed, "and this process does not know");
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
fn a_drain_aborts_the_handler_after_the_grace_and_releases_its_task() {
    block_on(async {
        let (clock, store) = manual_clock();
        let tenure = process(&clock, &store, "a").await;
        let (mail, gate) = (queue("mail"), Gate::new());
        let id = tenure.tasks().submit(&mail, many(1)).await.unwrap()[0].id;
        let worker = tenure.worker("mail").grace(3 * SECOND).handler(gate.handler()).start().await.unwrap();
        clock.settle().await;
        let draining = tokio::spawn(worker.drain());
        clock.advance(4 * SECOND).await;
        assert!(matches!(draining.await.unwrap(), Ok(DrainOutcome { aborted: 1, .. })));
        let view = state_of(&store, id).await;
        assert_eq!((view.state, view.attempt, gate.ends()), (TaskState::Ready, 0, vec!["dropped"]));
    });
}

#[test]
fn a_dropped_worker_leaves_no_claims() {
    block_on(async {
        let (clock, store) = manual_clock();
        let tenure = process(&clock, &store, "a").await;
        let (mail, gate) = (queue("mail"), Gate::new());
        tenure.tasks().submit(&mail, many(10)).await.unwrap();
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
fn a_cancellation_by_an_operator_reaches_the_handler() {
    block_on(async {
        let (clock, store) = manual_clock();
        let tenure = process(&clock, &store, "a").await;
        let (mail, gate) = (queue("mail"), Gate::new());
        let id = tenure.tasks().submit(&mail, many(1)).await.unwrap()[0].id;
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
        store.store.apply_task_action(&mail.namespace, &[id], TaskAction::Cancel).await.unwrap();
        clock.settle().await;
        assert_eq!(gate.ends(), ["dropped"], "the notification was enough");
        assert_eq!(*stops.lock().unwrap(), [(ClaimLossReason::Cancelled, false)]);
        assert_eq!(state_of(&store, id).await.state, TaskState::Cancelled);
        worker.drain().await.unwrap();
    });
}

#[test]
fn a_lost_session_drops_its_handlers_before_another_process_starts_the_tasks() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (a, b) = (process(&clock, &store, "a").await, store.clone());
        let (mail, gate, elsewhere) = (queue("mail"), Gate::new(), Gate::new());
        let worker = a.worker("mail").name("first").handler(gate.handler()).start().await.unwrap();
        let id = a.tasks().submit(&mail, many(1)).await.unwrap()[0].id;
        clock.settle().await;
        // Another process, with its own connection, has a worker, too.
        let other = crate::instrumented_store::InstrumentedStore::new(b.store.clone());
        let second = process(&clock, &other, "b").await;
        let helper = second.worker("mail").name("second").handler(elsewhere.handler()).start().await.unwrap();
        for call in [
            "heartbeat",
            "open_session",
            "settle",
            "claim",
            "held_claims",
            "observe",
            "maintain",
            "sessions",
            "take_lease",
            "release_lease",
            "register_queue_waiter",
        ] {
            store.fault(call, Some(Fault::Fails));
        }
        for _ in 0..200 {
            clock.advance(100 * MS).await;
            let started = state_of(&other, id).await.worker.as_deref() == Some("second");
            assert!(!started || gate.ends() == ["dropped"], "two handlers run the task");
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
fn a_run_that_exceeds_its_time_is_stopped_by_the_local_clock() {
    block_on(async {
        let (clock, store) = manual_clock();
        let tenure = process(&clock, &store, "a").await;
        let (mail, gate) = (queue("mail"), Gate::new());
        let task = NewTask { max_run_ms: Some(3_000), max_attempts: 1, ..NewTask::new("k") };
        let id = tenure.tasks().submit(&mail, vec![task]).await.unwrap()[0].id;
        // Keep maintenance from finding it first.
        store.fault("maintain", Some(Fault::Fails));
        let worker = tenure.worker("mail").handler(gate.handler()).start().await.unwrap();
        clock.advance(2_900 * MS).await;
        assert_eq!(gate.ends(), [""; 0]);
        clock.advance(200 * MS).await;
        assert_eq!(gate.ends(), ["dropped"]);
        let view = state_of(&store, id).await;
        assert_eq!((view.state, view.failures[0].error.as_str()), (TaskState::Dead, "run time exceeded"));
        worker.drain().await.unwrap();
    });
}

#[test]
fn heartbeats_extend_a_run_up_to_its_maximum() {
    block_on(async {
        let (clock, store) = manual_clock();
        let tenure = process(&clock, &store, "a").await;
        let (mail, gate) = (queue("mail"), Gate::new());
        let task = NewTask { max_run_ms: Some(12_000), ..NewTask::new("k") };
        let id = tenure.tasks().submit(&mail, vec![task]).await.unwrap()[0].id;
        let handler = gate.handler();
        let worker = tenure
            .worker("mail")
            .handler(move |task| {
                let work = handler(task.clone());
                async move {
                    task.progress("half way").await?;
                    let longest = task.run_until();
                    task.heartbeat(3 * SECOND).await?;
                    assert!(task.run_until() < longest);
                    task.heartbeat(60 * SECOND).await?;
                    assert_eq!(task.run_until(), longest, "not beyond the maximum run time");
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
fn a_child_submitted_while_running_gets_the_result_of_its_parent() {
    block_on(async {
        let (clock, store) = manual_clock();
        let tenure = process(&clock, &store, "a").await;
        let worker = tenure
            .worker("mail")
            .kind("parent", |task| async move {
                task.submit_child(NewTask::new("child")).await?;
                Ok::<_, Error>(41)
            })
            .kind("child", |task| async move {
                let input = task.parent_results().values().next().ok_or("no parent result")?;
                input.parse::<u32>().map(|input| input + 1).map_err(|_| "not a number")
            })
            .start()
            .await
            .unwrap();
        let id = tenure.tasks().submit(&queue("mail"), vec![NewTask::new("parent")]).await.unwrap()[0].id;
        clock.settle().await;
        let parent = state_of(&store, id).await;
        let child = state_of(&store, parent.children[0]).await;
        assert_eq!((child.state, child.result.unwrap().as_str()), (TaskState::Completed, "42"));
        worker.drain().await.unwrap();
    });
}

#[test]
fn unconfirmed_settlements_are_retried() {
    block_on(async {
        let (clock, store) = manual_clock();
        let tenure = process(&clock, &store, "a").await;
        let mail = queue("mail");
        store.fault("settle", Some(Fault::ResponseLost));
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
        tenure.tasks().submit(&mail, many(50)).await.unwrap();
        clock.advance(2 * SECOND).await;
        store.fault("settle", Some(Fault::Fails));
        tenure.tasks().submit(&mail, many(50)).await.unwrap();
        clock.advance(2 * SECOND).await;
        store.fault("settle", None);
        clock.advance(10 * SECOND).await;
        assert_eq!(counts(&store, &mail).await, [(TaskState::Completed, 100)].into());
        assert_eq!(calls.load(Ordering::SeqCst), 100, "each task ran once");
        worker.drain().await.unwrap();
    });
}

#[test]
fn short_tasks_are_claimed_and_settled_by_the_hundred() {
    block_on(async {
        let (clock, store) = manual_clock();
        let tenure = process(&clock, &store, "a").await;
        let mail = queue("mail");
        tenure.tasks().submit(&mail, many(10_000)).await.unwrap();
        let worker = tenure.worker("mail").concurrency(32).handler(|_| async {}).start().await.unwrap();
        clock.advance(SECOND).await;
        assert_eq!(counts(&store, &mail).await, [(TaskState::Completed, 10_000)].into());
        let (claims, settles) = (store.calls("claim"), store.calls("settle"));
        assert!(claims < 60, "{claims} statements to claim 10,000");
        assert!(settles < 400, "{settles} statements to settle 10,000");
        worker.drain().await.unwrap();
    });
}

#[test]
fn a_worker_without_a_handler_does_not_start() {
    block_on(async {
        let (clock, store) = manual_clock();
        let tenure = process(&clock, &store, "a").await;
        assert!(matches!(tenure.worker("mail").start().await, Err(Error::Worker(_))));
        let none = tenure.worker("mail").concurrency(0).handler(|_| async {}).start().await;
        assert!(matches!(none, Err(Error::Worker(_))));
    });
}

/// A process that loses trust, but not its session, remembers claims made through the task client: their
/// callers work on them.
#[test]
fn a_lapse_of_trust_releases_no_claim_of_the_task_client() {
    block_on(async {
        let (clock, store) = manual_clock();
        let tenure = process(&clock, &store, "a").await;
        let (claims, mail) = (tenure.tasks(), queue("mail"));
        let worker = tenure.worker("other").handler(|_| async {}).start().await.unwrap();
        let id = claims.submit(&mail, many(1)).await.unwrap()[0].id;
        let session = tenure.session();
        let claimed =
            tasks(claims.claim(&mail, claim_request(&tenure, "w", 1), Duration::ZERO).await.unwrap());
        // Disconnected long enough to lose trust, but not long enough to be expired.
        for call in ["heartbeat", "observe", "claim", "maintain", "take_lease", "expire_session", "sessions"]
        {
            store.fault(call, Some(Fault::Fails));
        }
        clock.advance(12 * SECOND).await;
        claims.claim(&mail, claim_request(&tenure, "w", 1), Duration::ZERO).await.unwrap_err();
        for call in ["heartbeat", "observe", "claim", "maintain", "take_lease", "expire_session", "sessions"]
        {
            store.fault(call, None);
        }
        clock.advance(120 * SECOND).await;
        assert_eq!(tenure.session(), session, "the same session");
        assert_eq!(state_of(&store, id).await.state, TaskState::Claimed);
        assert_eq!(
            claims.settle(complete(&claimed[0])).await.unwrap(),
            SettleResult::Applied(TaskState::Completed)
        );
        drop(worker);
    });
}
