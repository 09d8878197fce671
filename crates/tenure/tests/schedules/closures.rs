//! Closures: on one process of all that have them, at least once, and again where they were cut short.

use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use tenure::port::*;
use tenure::{Error, ScheduleBuilder, Scheduler, TaskError, Tenure, Tick};
use tenure_testkit::block_on;

use crate::spy::Fault;
use crate::support::*;

/// Who ran which tick, in seconds since the tests began.
#[derive(Clone, Default)]
struct Ran(Arc<Mutex<Vec<(String, i64)>>>);

impl Ran {
    fn add(&self, who: &str, tick: &Tick) {
        self.0.lock().unwrap().push((who.into(), (tick.at_ms() - start_ms()) / 1_000));
    }

    fn by(&self, who: &str) -> Vec<i64> {
        let ran = self.0.lock().unwrap();
        ran.iter().filter(|(its, _)| its == who).map(|(_, at)| *at).collect()
    }

    fn all(&self) -> Vec<i64> {
        let mut all: Vec<i64> = self.0.lock().unwrap().iter().map(|(_, at)| *at).collect();
        all.sort_unstable();
        all
    }
}

async fn counting(tenure: &Tenure, who: &'static str, ran: &Ran) -> Scheduler {
    let ran = ran.clone();
    let closure = move |tick: Tick| {
        ran.add(who, &tick);
        async {}
    };
    tenure.scheduler().run("often", "every 10s", closure).start().await.expect("it starts")
}

#[test]
fn a_closure_runs_once_for_each_tick_on_one_process() {
    block_on(async {
        let (clock, store) = hand_driven();
        let ran = Ran::default();
        let (a, _) = process(&clock, &store, "a").await;
        let (b, _) = process(&clock, &store, "b").await;
        let first = counting(&a, "a", &ran).await;
        clock.settle().await;
        let second = counting(&b, "b", &ran).await;
        clock.advance(MINUTE + SECOND).await;
        assert!(first.runs_closures() && !second.runs_closures());
        assert_eq!((ran.by("a"), ran.by("b")), (vec![10, 20, 30, 40, 50, 60], vec![]));
        let stopped = tokio::spawn(first.stop());
        clock.advance(MINUTE).await;
        stopped.await.unwrap().unwrap();
        assert!(second.runs_closures());
        assert_eq!(ran.all(), (1..=12).map(|n| n * 10).collect::<Vec<_>>());
        assert_eq!(ran.by("b"), [70, 80, 90, 100, 110, 120]);
        assert_eq!(view(&store, "often").await.source.as_deref(), Some("closures of closures"));
    });
}

/// The process that fires has no such closure: they are run by who has them.
#[test]
fn who_runs_closures_need_not_be_who_fires() {
    block_on(async {
        let (clock, store) = hand_driven();
        let ran = Ran::default();
        let (_server, _, server) = firing(&clock, &store, "server").await;
        let (app, _) = process(&clock, &store, "app").await;
        let its = ran.clone();
        let closure = move |tick: Tick| {
            its.add("app", &tick);
            async {}
        };
        let only = app.scheduler().fires(false).queue("billing").run("often", "every 10s", closure);
        let scheduler = only.start().await.unwrap();
        clock.advance(MINUTE).await;
        assert!(server.fires() && !scheduler.fires() && scheduler.runs_closures());
        assert_eq!(ran.by("app"), [10, 20, 30, 40, 50, 60]);
    });
}

#[test]
fn a_closure_that_is_cut_short_runs_again_on_the_next_leader() {
    block_on(async {
        let (clock, store) = hand_driven();
        let ran = Ran::default();
        let (a, spy) = process(&clock, &store, "a").await;
        let (b, _) = process(&clock, &store, "b").await;
        let its = ran.clone();
        let hangs = move |tick: Tick| {
            its.add("a", &tick);
            std::future::pending::<()>()
        };
        let _first = a.scheduler().run("often", "every 10m", hangs).start().await.unwrap();
        clock.settle().await;
        let its = ran.clone();
        let works = move |tick: Tick| {
            its.add("b", &tick);
            let attempt = tick.attempt();
            async move { Ok::<_, TaskError>(attempt) }
        };
        let second = b.scheduler().run("often", "every 10m", works).start().await.unwrap();
        clock.advance(10 * MINUTE + SECOND).await;
        assert_eq!((ran.by("a"), ran.by("b")), (vec![600], vec![]));
        for call in ["beat", "observe"] {
            spy.fault(call, Some(Fault::Fails));
        }
        clock.advance(MINUTE).await;
        assert!(second.runs_closures());
        assert_eq!(ran.by("b"), [600]);
        let task = ticks(&store, "often", TickState::Fired).await[0].task.unwrap();
        let task = store.task(&tenure::Name::default_namespace(), task).await.unwrap().unwrap();
        assert_eq!(task.state, TaskState::Completed);
    });
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Report {
    of: String,
}

#[test]
fn a_closure_has_its_payload_its_token_and_another_attempt_after_a_panic() {
    block_on(async {
        let (clock, store) = hand_driven();
        let (tenure, _) = process(&clock, &store, "a").await;
        let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let closure = move |tick: Tick| {
            let told = told.clone();
            async move {
                let report: Report = tick.payload()?;
                let _ = told.send((report, tick.at(), tick.token(), tick.attempt()));
                assert!(tick.attempt() > 1, "the first time it panics");
                Ok::<_, TaskError>("done")
            }
        };
        let nightly = ScheduleBuilder::new("nightly", "0 2 * * *").zone("Europe/Berlin");
        let nightly = nightly.payload(&Report { of: "yesterday".into() });
        let scheduler = tenure.scheduler().run_as(nightly, closure).start().await.unwrap();
        clock.advance(2 * HOUR).await;
        let token = ticks(&store, "nightly", TickState::Fired).await[0].token;
        for attempt in [1, 2] {
            let report = Report { of: "yesterday".into() };
            assert_eq!(heard.recv().await.unwrap(), (report, "2026-11-15T01:00:00Z".into(), token, attempt));
        }
        assert!(token.is_some());
        let stopped = tokio::spawn(scheduler.stop());
        clock.advance(MINUTE).await;
        stopped.await.unwrap().unwrap();
    });
}

#[test]
fn what_no_schedule_has_made_is_no_tick() {
    block_on(async {
        let (clock, store) = hand_driven();
        let ran = Ran::default();
        let (tenure, _) = process(&clock, &store, "a").await;
        let _scheduler = counting(&tenure, "a", &ran).await;
        let queue = tenure.queue("closures").unwrap();
        let forged = tenure.claims().submit(&queue, vec![NewTask::new("often")]).await.unwrap()[0];
        clock.advance(5 * SECOND).await;
        assert_eq!(ran.all(), [0; 0]);
        let task = store.task(&queue.namespace, forged.id).await.unwrap().unwrap();
        assert_eq!(task.state, TaskState::Dead);
    });
}

#[test]
fn two_closures_of_one_name_and_times_that_make_no_sense_are_refused_before_anything_is_done() {
    block_on(async {
        let (clock, store) = hand_driven();
        let (tenure, _) = process(&clock, &store, "a").await;
        let twice = tenure.scheduler().run("x", "every 1m", |_| async {}).run("x", "every 2m", |_| async {});
        assert!(matches!(twice.start().await, Err(Error::Scheduler(why)) if why.contains("x")));
        let wrong = tenure.scheduler().run("x", "every 0s", |_| async {}).start().await;
        assert!(matches!(wrong, Err(Error::Schedule { name, .. }) if name == "x"));
        assert_eq!(store.schedules(&ScheduleFilter::default()).await.unwrap().len(), 0);
        // Nothing stands in the way of one that makes sense.
        let fine = tenure.scheduler().run("x", "every 1m", |_| async {}).start().await;
        assert!(fine.is_ok());
    });
}
