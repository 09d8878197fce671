//! States without a browser: what is not well is not called well, and a store that is away is said to be.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tenure::Tenure;
use tenure::backend::memory::Memory;
use tenure::port::{
    Authority, Calendar, ClaimAnswer, ClaimAsk, Hand, NewResource, Outcome, Pools, Profile, QueueKey, Seat,
    Settlement, Tasks, calls_queue,
};
use tenure::runtime::System;
use tenure_server::App;
use tenure_server::access::Access;
use tenure_testkit::Cuttable;

use crate::schedules::{key, set};
use crate::work::{asks, grant, hosts, name};
use crate::{Answer, open, send};

/// Fires a schedule now, and ends the task that it makes.
async fn fired(store: &Memory, schedule: &str, queue: &QueueKey, outcome: Outcome) {
    let hand = Hand { key: key(schedule), ticks: None, payload: None, by: "ada".into(), dry_run: false };
    store.fire_by_hand(&hand).await.unwrap().unwrap();
    let worker = Profile { name: "w".into(), ..Profile::default() };
    let seats = vec![Seat { worker, limit: 1, session: None, hold_ms: Some(60_000) }];
    let ask = ClaimAsk { queue: queue.clone(), authority: Authority::Direct, seats };
    let Ok(ClaimAnswer::Served { tasks, .. }) = store.claim(&ask).await else { panic!("refused") };
    let (task, token) = (tasks[0][0].id, tasks[0][0].token);
    let settled = Settlement { namespace: queue.namespace.clone(), task, token, outcome };
    store.settle(&[settled]).await.unwrap();
}

fn fail(retry: bool) -> Outcome {
    Outcome::Fail {
        error: "502 Bad Gateway\nupstream is down".into(),
        retry,
        after: Duration::from_secs(3600),
    }
}

/// A schedule fired on time, every call of it failed, and the pages called it "on time".
#[tokio::test]
async fn a_schedule_whose_runs_fail_is_not_on_time() {
    let store = Memory::new();
    set(&store, r#"{"name": "hook", "when": "@yearly", "target": {"call": {"url": "https://h.example/x"}}}"#)
        .await;
    set(&store, r#"{"name": "work", "when": "@yearly", "target": {"task": {"queue": "q"}}}"#).await;
    let queue = QueueKey::new(tenure::Name::default_namespace(), name("q"));
    for (schedule, queue, word) in [("hook", calls_queue(), "calls fail"), ("work", queue, "tasks fail")] {
        // What was fired before is known for a while: each step is looked at anew.
        let shows = async |state: &str| {
            let app = open(&store).await;
            let list = send(&app, "GET", "/schedules", "").await.text;
            let (_, row) = list.split_once(&format!("schedule-default/{schedule}\"")).unwrap();
            let row = row.split("</tr>").next().unwrap();
            assert!(row.contains(state), "{state}: {row}");
            let page = send(&app, "GET", &format!("/schedules/{schedule}"), "").await.text;
            let (_, title) = page.split_once("id=\"state\"").unwrap();
            assert!(title.split("</div>").next().unwrap().contains(state), "{page}");
            page
        };
        shows("on time").await;
        fired(&store, schedule, &queue, Outcome::Complete(None)).await;
        shows("on time").await;
        fired(&store, schedule, &queue, fail(false)).await;
        let page = shows(word).await;
        assert!(page.contains("The last run failed.") && page.contains("502 Bad Gateway …"), "{page}");
        fired(&store, schedule, &queue, Outcome::Complete(None)).await;
        let page = shows("on time").await;
        assert!(!page.contains("The last run failed."), "{page}");
        // One that is tried again has failed, too.
        fired(&store, schedule, &queue, fail(true)).await;
        shows(word).await;
    }
}

/// A group whose events are dead or wait for one that failed was called "all read".
#[tokio::test]
async fn a_group_with_dead_events_has_not_read_all() {
    let store = Memory::new();
    let token = crate::events::made(&store).await;
    let state = async || {
        let app = open(&store).await;
        let page = send(&app, "GET", "/topics/orders/groups/billing", "").await.text;
        let (_, state) = page.split_once("id=\"state\"").unwrap();
        state.split("</div>").next().unwrap().to_owned()
    };
    assert!(state().await.contains("all read"));
    crate::events::die(&store, token, 1, "boom").await;
    let state = state().await;
    assert!(state.contains("class=\"state bad\"") && state.contains("has dead"), "{state}");
}

/// A pool with nothing left to give was green.
#[tokio::test]
async fn an_exhausted_pool_is_not_green() {
    let store = Memory::new();
    store.add_resources(&hosts(), &[]).await.unwrap();
    let state = async || {
        let app = open(&store).await;
        let page = send(&app, "GET", "/pools/hosts", "").await.text;
        let (_, state) = page.split_once("id=\"state\"").unwrap();
        state.split("</div>").next().unwrap().to_owned()
    };
    let holds = store.request(&hosts(), &asks("first")).await.unwrap().id;
    grant(&store, holds).await;
    let held = state().await;
    assert!(held.contains("class=\"state late\"") && held.contains("none free"), "{held}");
    store.request(&hosts(), &asks("second")).await.unwrap();
    let wanted = state().await;
    assert!(wanted.contains("class=\"state bad\"") && wanted.contains("none free, 1 waiting"), "{wanted}");
    let other = NewResource { name: name("spare"), tags: Vec::new(), enabled: true };
    store.add_resources(&hosts(), &[other]).await.unwrap();
    assert!(state().await.contains("1 free"));
}

/// An election in which only observers stand wants no leader, and was red.
#[tokio::test]
async fn an_election_of_observers_is_not_red() {
    let store = Memory::new();
    let tenure = Tenure::builder().store(store.clone()).name("eye").open().await.unwrap();
    let _watching = tenure.elector("nightly").id("eye").observer(true).start().await.unwrap();
    let app = open(&store).await;
    let page = send(&app, "GET", "/elections/nightly", "").await;
    assert_eq!(page.status, StatusCode::OK, "{}", page.text);
    let (_, state) = page.text.split_once("id=\"state\"").unwrap();
    let state = state.split("</div>").next().unwrap();
    assert!(state.contains("class=\"state idle\"") && state.contains("only observers"), "{state}");
}

/// What a page says while the store is away; asked until the server has noticed.
async fn until(app: &App, path: &str, so: impl Fn(&Answer) -> bool) -> Answer {
    for _ in 0..600 {
        let answer = send(app, "GET", path, "").await;
        if so(&answer) {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("never so: {path}")
}

/// While the database was away, some pages showed old data without a word, and others said that "whether it happened is unknown".
#[tokio::test]
async fn a_store_that_is_away_is_said_to_be_on_every_page_and_only_once() {
    let store = Memory::new();
    set(&store, r#"{"name": "a", "when": "@yearly", "target": {"task": {"queue": "q"}}}"#).await;
    crate::events::made(&store).await;
    let id = crate::work::submit(&store, vec![tenure::port::NewTask::new("a")]).await[0];
    store.add_resources(&hosts(), &[]).await.unwrap();
    let link = Cuttable::new(store.clone());
    let app = App::new(Arc::new(link.clone()), Access::Open, Arc::new(System));
    let pages = [
        "/".to_owned(),
        "/names".into(),
        "/schedules".into(),
        "/schedules/a".into(),
        "/schedules/new".into(),
        "/topics".into(),
        "/topics/orders".into(),
        "/topics/orders/groups/billing".into(),
        "/queues".into(),
        "/queues/mail".into(),
        format!("/tasks/{id}"),
        "/tasks/new".into(),
        "/workers".into(),
        "/pools".into(),
        "/pools/hosts".into(),
        "/audit".into(),
        "/access".into(),
        "/docs".into(),
    ];
    for path in &pages {
        let answer = send(&app, "GET", path, "").await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text);
        assert!(!answer.text.contains("data-stale"), "{path}: {}", answer.text);
    }
    link.cut(true);
    until(&app, "/", |answer| answer.text.contains("data-stale")).await;
    for path in &pages {
        let answer = until(&app, path, |answer| answer.text.contains("data-stale")).await;
        let text = &answer.text;
        assert_eq!(text.matches("The store is unavailable.").count(), 1, "{path}: {text}");
        assert!(!text.contains("whether it happened is unknown"), "{path}: {text}");
        let readable = !text.contains("data-failed");
        assert_eq!(answer.status.is_success(), readable, "{path}: {text}");
        let says = if readable { "Data is up to " } else { "This page cannot be shown." };
        assert!(text.contains(says), "{path}: {text}");
    }
    // What is seen from memory is shown: only what has to be read anew is not.
    for path in ["/", "/names", "/topics", "/queues", "/docs", "/schedules/new", "/tasks/new"] {
        assert_eq!(send(&app, "GET", path, "").await.status, StatusCode::OK, "{path}");
    }
    // Of what changes something, nobody knows.
    let answer = send(&app, "POST", "/queues/mail/pause", "reason=x").await;
    assert!(answer.text.contains("whether it happened is unknown"), "{}", answer.text);
    link.cut(false);
    for path in &pages {
        until(&app, path, |answer| answer.status == StatusCode::OK && !answer.text.contains("data-stale"))
            .await;
    }
}
