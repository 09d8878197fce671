//! States shown by pages, without a browser: failing objects and an unavailable store.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tenure::Tenure;
use tenure::port::{
    ClaimAuthority, ClaimBatchRequest, ClaimBatchResponse, ClaimOutcome, ClaimRequest, ManualFire,
    NewResource, PoolStore, QueueKey, ScheduleAdmin, Settlement, TaskStore, WorkerProfile, webhook_queue,
};
use tenure::runtime::SystemRuntime;
use tenure::store::memory::MemoryStore;
use tenure_server::App;
use tenure_server::access::AccessMode;
use tenure_testkit::PartitionableStore;

use crate::queues::{grant, hosts, name, pool_request};
use crate::schedules::{key, set};
use crate::{Answer, open, send};

/// Trigger a schedule and settle its task.
async fn fired(store: &MemoryStore, schedule: &str, queue: &QueueKey, outcome: ClaimOutcome) {
    let manual_fire = ManualFire {
        key: key(schedule),
        ticks: None,
        payload: None,
        requested_by: "ada".into(),
        dry_run: false,
    };
    store.fire_manually(&manual_fire).await.unwrap().unwrap();
    let worker = WorkerProfile { name: "w".into(), ..WorkerProfile::default() };
    let requests = vec![ClaimRequest { worker, limit: 1, session: None, claim_timeout_ms: Some(60_000) }];
    let request_batch =
        ClaimBatchRequest { queue: queue.clone(), authority: ClaimAuthority::Direct, requests };
    let Ok(ClaimBatchResponse::Served { tasks, .. }) = store.claim(&request_batch).await else {
        panic!("refused")
    };
    let (task, token) = (tasks[0][0].id, tasks[0][0].token);
    let settled = Settlement { namespace: queue.namespace.clone(), task, token, outcome };
    store.settle(&[settled]).await.unwrap();
}

fn fail(retry: bool) -> ClaimOutcome {
    ClaimOutcome::Fail {
        error: "502 Bad Gateway\nupstream is down".into(),
        retry,
        retry_in: Duration::from_secs(3600),
    }
}

/// Regression: A schedule fired on time, but every webhook of it failed; the pages showed "On time".
#[tokio::test]
async fn a_schedule_whose_runs_fail_is_not_on_time() {
    let store = MemoryStore::new();
    set(
        &store,
        r#"{"name": "hook", "expression": "@yearly", "target": {"webhook": {"url": "https://h.example/x"}}}"#,
    )
    .await;
    set(&store, r#"{"name": "work", "expression": "@yearly", "target": {"task": {"queue": "q"}}}"#).await;
    let queue = QueueKey::new(tenure::Name::default_namespace(), name("q"));
    for (schedule, queue, word) in [("hook", webhook_queue(), "Webhooks fail"), ("work", queue, "Tasks fail")]
    {
        // A new server per step, because snapshots are cached.
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
        shows("On time").await;
        fired(&store, schedule, &queue, ClaimOutcome::Complete(None)).await;
        shows("On time").await;
        fired(&store, schedule, &queue, fail(false)).await;
        let page = shows(word).await;
        assert!(page.contains("The last run failed.") && page.contains("502 Bad Gateway …"), "{page}");
        fired(&store, schedule, &queue, ClaimOutcome::Complete(None)).await;
        let page = shows("On time").await;
        assert!(!page.contains("The last run failed."), "{page}");
        // A failed attempt that is retried counts as failed too.
        fired(&store, schedule, &queue, fail(true)).await;
        shows(word).await;
    }
}

/// Regression: A group with parked events was shown as "Up to date".
#[tokio::test]
async fn a_group_with_dead_letters_is_not_up_to_date() {
    let store = MemoryStore::new();
    let token = crate::events::topic_with_member(&store).await;
    let state = async || {
        let app = open(&store).await;
        let page = send(&app, "GET", "/topics/orders/groups/billing", "").await.text;
        let (_, state) = page.split_once("id=\"state\"").unwrap();
        state.split("</div>").next().unwrap().to_owned()
    };
    assert!(state().await.contains("Up to date"));
    crate::events::publish_dead_letters(&store, token, 1, "boom").await;
    let state = state().await;
    assert!(state.contains("class=\"state bad\"") && state.contains("Dead letters"), "{state}");
}

/// Regression: A pool without free resources was green.
#[tokio::test]
async fn an_exhausted_pool_is_not_green() {
    let store = MemoryStore::new();
    store.add_resources(&hosts(), &[]).await.unwrap();
    let state = async || {
        let app = open(&store).await;
        let page = send(&app, "GET", "/pools/hosts", "").await.text;
        let (_, state) = page.split_once("id=\"state\"").unwrap();
        state.split("</div>").next().unwrap().to_owned()
    };
    let holds = store.create_pool_request(&hosts(), &pool_request("first")).await.unwrap().id;
    grant(&store, holds).await;
    let held = state().await;
    assert!(held.contains("class=\"state late\"") && held.contains("Fully used"), "{held}");
    store.create_pool_request(&hosts(), &pool_request("second")).await.unwrap();
    let waiting = state().await;
    assert!(
        waiting.contains("class=\"state bad\"") && waiting.contains("Fully used, 1 waiting"),
        "{waiting}"
    );
    let other = NewResource { name: name("spare"), tags: Vec::new(), enabled: true };
    store.add_resources(&hosts(), &[other]).await.unwrap();
    assert!(state().await.contains("1 free"));
}

/// Regression: An election with only observers needs no leader, but was red.
#[tokio::test]
async fn an_election_of_observers_is_not_red() {
    let store = MemoryStore::new();
    let tenure = Tenure::builder().store(store.clone()).name("eye").open().await.unwrap();
    let _watching = tenure.elector("nightly").candidate_name("eye").observer(true).start().await.unwrap();
    let app = open(&store).await;
    let page = send(&app, "GET", "/elections/nightly", "").await;
    assert_eq!(page.status, StatusCode::OK, "{}", page.text);
    let (_, state) = page.text.split_once("id=\"state\"").unwrap();
    let state = state.split("</div>").next().unwrap();
    assert!(state.contains("class=\"state idle\"") && state.contains("Only observers"), "{state}");
}

/// Request a page until the response matches.
async fn until(app: &App, path: &str, so: impl Fn(&Answer) -> bool) -> Answer {
    for _ in 0..600 {
        let answer = send(app, "GET", path, "").await;
        if so(&answer) {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("no matching response: {path}")
}

/// Regression: While the database was unavailable, some pages showed old data without a notice, and others
/// claimed an unknown outcome.
#[tokio::test]
async fn every_page_shows_once_that_the_store_is_unavailable() {
    let store = MemoryStore::new();
    set(&store, r#"{"name": "a", "expression": "@yearly", "target": {"task": {"queue": "q"}}}"#).await;
    crate::events::topic_with_member(&store).await;
    let id = crate::queues::submit(&store, vec![tenure::port::NewTask::new("a")]).await[0];
    store.add_resources(&hosts(), &[]).await.unwrap();
    let link = PartitionableStore::new(store.clone());
    let app = App::new(Arc::new(link.clone()), AccessMode::Open, Arc::new(SystemRuntime));
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
        "/credentials".into(),
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
        assert!(!text.contains("the outcome is unknown"), "{path}: {text}");
        let readable = !text.contains("data-failed");
        assert_eq!(answer.status.is_success(), readable, "{path}: {text}");
        let says = if readable { "Data is up to " } else { "This page cannot be shown." };
        assert!(text.contains(says), "{path}: {text}");
    }
    // Pages from snapshots are shown; only pages that read the store are not.
    for path in ["/", "/names", "/topics", "/queues", "/docs", "/schedules/new", "/tasks/new"] {
        assert_eq!(send(&app, "GET", path, "").await.status, StatusCode::OK, "{path}");
    }
    // The outcome of a change is unknown.
    let answer = send(&app, "POST", "/queues/mail/pause", "reason=x").await;
    assert!(answer.text.contains("the outcome is unknown"), "{}", answer.text);
    link.cut(false);
    for path in &pages {
        until(&app, path, |answer| answer.status == StatusCode::OK && !answer.text.contains("data-stale"))
            .await;
    }
}
