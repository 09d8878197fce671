//! Tick handlers: in one of the processes that have them, at least once, and again after an interruption.

use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use tenure::port::*;
use tenure::{Error, ScheduleBuilder, Scheduler, TaskError, Tenure, TickContext};
use tenure_testkit::block_on;

use crate::instrumented_store::Fault;
use crate::support::*;

/// The ticks that ran: process name, and the instant of the tick in seconds since the start of the test.
#[derive(Clone, Default)]
struct Ran(Arc<Mutex<Vec<(String, i64)>>>);

impl Ran {
    fn add(&self, process_name: &str, tick: &TickContext) {
        self.0.lock().unwrap().push((process_name.into(), (tick.at_ms() - start_ms()) / 1_000));
    }

    fn by(&self, process_name: &str) -> Vec<i64> {
        let ran = self.0.lock().unwrap();
        ran.iter().filter(|(its, _)| its == process_name).map(|(_, at)| *at).collect()
    }

    fn all(&self) -> Vec<i64> {
        let mut all: Vec<i64> = self.0.lock().unwrap().iter().map(|(_, at)| *at).collect();
        all.sort_unstable();
        all
    }
}

async fn counting(tenure: &Tenure, process_name: &'static str, ran: &Ran) -> Scheduler {
    let ran = ran.clone();
    let handler = move |tick: TickContext| {
        ran.add(process_name, &tick);
        async {}
    };
    tenure.scheduler().run("often", "every 10s", handler).start().await.expect("the scheduler starts")
}

#[test]
fn a_tick_handler_runs_once_per_tick_in_one_process() {
    block_on(async {
        let (clock, store) = manual_clock();
        let ran = Ran::default();
        let (a, _) = process(&clock, &store, "a").await;
        let (b, _) = process(&clock, &store, "b").await;
        let first = counting(&a, "a", &ran).await;
        clock.settle().await;
        let second = counting(&b, "b", &ran).await;
        clock.advance(MINUTE + SECOND).await;
        assert!(first.runs_tick_handlers() && !second.runs_tick_handlers());
        assert_eq!((ran.by("a"), ran.by("b")), (vec![10, 20, 30, 40, 50, 60], vec![]));
        let stopped = tokio::spawn(first.stop());
        clock.advance(MINUTE).await;
        stopped.await.unwrap().unwrap();
        assert!(second.runs_tick_handlers());
        assert_eq!(ran.all(), (1..=12).map(|n| n * 10).collect::<Vec<_>>());
        assert_eq!(ran.by("b"), [70, 80, 90, 100, 110, 120]);
        assert_eq!(view(&store, "often").await.source.as_deref(), Some("tick handlers of tick-handlers"));
    });
}

/// The process that fires has no such tick handler; another process runs it.
#[test]
fn tick_handlers_can_run_in_another_process_than_the_one_that_fires() {
    block_on(async {
        let (clock, store) = manual_clock();
        let ran = Ran::default();
        let (_server, _, server) = firing(&clock, &store, "server").await;
        let (app, _) = process(&clock, &store, "app").await;
        let its = ran.clone();
        let handler = move |tick: TickContext| {
            its.add("app", &tick);
            async {}
        };
        let only = app.scheduler().may_fire(false).queue("billing").run("often", "every 10s", handler);
        let scheduler = only.start().await.unwrap();
        clock.advance(MINUTE).await;
        assert!(server.is_leader() && !scheduler.is_leader() && scheduler.runs_tick_handlers());
        assert_eq!(ran.by("app"), [10, 20, 30, 40, 50, 60]);
    });
}

#[test]
fn an_interrupted_tick_handler_runs_again_on_the_next_leader() {
    block_on(async {
        let (clock, store) = manual_clock();
        let ran = Ran::default();
        let (a, instrumented) = process(&clock, &store, "a").await;
        let (b, _) = process(&clock, &store, "b").await;
        let its = ran.clone();
        let hangs = move |tick: TickContext| {
            its.add("a", &tick);
            std::future::pending::<()>()
        };
        let _first = a.scheduler().run("often", "every 10m", hangs).start().await.unwrap();
        clock.settle().await;
        let its = ran.clone();
        let works = move |tick: TickContext| {
            its.add("b", &tick);
            let attempt = tick.attempt();
            async move { Ok::<_, TaskError>(attempt) }
        };
        let second = b.scheduler().run("often", "every 10m", works).start().await.unwrap();
        clock.advance(10 * MINUTE + SECOND).await;
        assert_eq!((ran.by("a"), ran.by("b")), (vec![600], vec![]));
        for call in ["heartbeat", "observe"] {
            instrumented.fault(call, Some(Fault::Fails));
        }
        clock.advance(MINUTE).await;
        assert!(second.runs_tick_handlers());
        assert_eq!(ran.by("b"), [600]);
        let task = ticks(&store, "often", TickOutcome::Fired).await[0].task_id.unwrap();
        let task = store.task(&tenure::Name::default_namespace(), task).await.unwrap().unwrap();
        assert_eq!(task.state, TaskState::Completed);
    });
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Report {
    of: String,
}

#[test]
fn a_tick_handler_gets_payload_and_token_and_is_retried_after_a_panic() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (tenure, _) = process(&clock, &store, "a").await;
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        let handler = move |tick: TickContext| {
            let sender = sender.clone();
            async move {
                let report: Report = tick.payload()?;
                let _ = sender.send((report, tick.at(), tick.token(), tick.attempt()));
                assert!(tick.attempt() > 1, "the first attempt panics");
                Ok::<_, TaskError>("done")
            }
        };
        let nightly = ScheduleBuilder::new("nightly", "0 2 * * *").time_zone("Europe/Berlin");
        let nightly = nightly.payload(&Report { of: "yesterday".into() });
        let scheduler = tenure.scheduler().run_schedule(nightly, handler).start().await.unwrap();
        clock.advance(2 * HOUR).await;
        let token = ticks(&store, "nightly", TickOutcome::Fired).await[0].token;
        for attempt in [1, 2] {
            let report = Report { of: "yesterday".into() };
            assert_eq!(
                receiver.recv().await.unwrap(),
                (report, "2026-11-15T01:00:00Z".into(), token, attempt)
            );
        }
        assert!(token.is_some());
        let stopped = tokio::spawn(scheduler.stop());
        clock.advance(MINUTE).await;
        stopped.await.unwrap().unwrap();
    });
}

#[test]
fn a_task_without_a_schedule_is_not_a_tick() {
    block_on(async {
        let (clock, store) = manual_clock();
        let ran = Ran::default();
        let (tenure, _) = process(&clock, &store, "a").await;
        let _scheduler = counting(&tenure, "a", &ran).await;
        let queue = tenure.queue("tick-handlers").unwrap();
        let forged = tenure.tasks().submit(&queue, vec![NewTask::new("often")]).await.unwrap()[0];
        clock.advance(5 * SECOND).await;
        assert_eq!(ran.all(), [0; 0]);
        let task = store.task(&queue.namespace, forged.id).await.unwrap().unwrap();
        assert_eq!(task.state, TaskState::Dead);
    });
}

#[test]
fn duplicate_tick_handlers_and_invalid_expressions_are_rejected_before_any_change() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (tenure, _) = process(&clock, &store, "a").await;
        let twice = tenure.scheduler().run("x", "every 1m", |_| async {}).run("x", "every 2m", |_| async {});
        assert!(matches!(twice.start().await, Err(Error::Scheduler(why)) if why.contains("x")));
        let wrong = tenure.scheduler().run("x", "every 0s", |_| async {}).start().await;
        assert!(matches!(wrong, Err(Error::Schedule { name, .. }) if name == "x"));
        assert_eq!(store.schedules(&ScheduleFilter::default()).await.unwrap().len(), 0);
        // A valid one can still start.
        let fine = tenure.scheduler().run("x", "every 1m", |_| async {}).start().await;
        assert!(fine.is_ok());
    });
}
