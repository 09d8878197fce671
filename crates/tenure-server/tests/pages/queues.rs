//! Pages of queues, tasks, workers and pools without a browser: rejected requests, concurrent changes and escaping.

use http::StatusCode;
use http::header::{CONTENT_TYPE, LOCATION};
use tenure::Name;
use tenure::port::{
    AssignmentMode, ClaimAuthority, ClaimBatchRequest, ClaimBatchResponse, ClaimRequest, ClaimedTask,
    NewResource, NewTask, NewWorker, PoolKey, PoolMatchRequest, PoolRequest, PoolRequestId, PoolRequestState,
    PoolStore, QueueKey, QueueSettings, Submission, TaskAdmin, TaskFilter, TaskId, TaskState, TaskStore,
    WorkerProfile,
};
use tenure::store::memory::MemoryStore;
use tenure_server::App;

use crate::{message, open, send};

const SCRIPT: &str = "<script>alert(1)</script>";

pub(crate) fn name(text: &str) -> Name {
    text.parse().unwrap()
}

pub(crate) fn mail() -> QueueKey {
    QueueKey::new(Name::default_namespace(), name("mail"))
}

pub(crate) fn hosts() -> PoolKey {
    PoolKey::new(Name::default_namespace(), name("hosts"))
}

pub(crate) async fn submit(store: &MemoryStore, tasks: Vec<NewTask>) -> Vec<TaskId> {
    let submitted = store.submit(&Submission { queue: mail(), tasks }).await.unwrap();
    submitted.into_iter().map(|one| one.id).collect()
}

pub(crate) async fn claim(store: &MemoryStore, limit: u32) -> Vec<ClaimedTask> {
    let worker = WorkerProfile { name: "w".into(), ..WorkerProfile::default() };
    let requests = vec![ClaimRequest { worker, limit, session: None, claim_timeout_ms: Some(60_000) }];
    let request_batch = ClaimBatchRequest { queue: mail(), authority: ClaimAuthority::Direct, requests };
    match store.claim(&request_batch).await.unwrap() {
        ClaimBatchResponse::Served { tasks, .. } => tasks.into_iter().flatten().collect(),
        ClaimBatchResponse::Refused(refusal) => panic!("{refusal:?}"),
    }
}

async fn state(store: &MemoryStore, id: TaskId) -> TaskState {
    store.task(&Name::default_namespace(), id).await.unwrap().unwrap().state
}

async fn count(store: &MemoryStore, state: TaskState) -> usize {
    let filter = TaskFilter { states: vec![state], limit: 10_000, ..TaskFilter::default() };
    store.tasks(&filter).await.unwrap().len()
}

/// The value of a hidden field of a form.
pub(crate) fn hidden(page: &str, field: &str) -> String {
    let marked = format!(r#"name="{field}" value=""#);
    let (_, rest) = page.split_once(&marked).unwrap_or_else(|| panic!("no {field} in {page}"));
    rest.split('"').next().unwrap().to_owned()
}

async fn get(app: &App, path: &str) -> String {
    let answer = send(app, "GET", path, "").await;
    assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text);
    answer.text
}

#[tokio::test]
async fn a_bulk_cancel_spares_tasks_submitted_after_the_confirmation() {
    let store = MemoryStore::new();
    let app = open(&store).await;
    // More than one batch.
    submit(&store, vec![NewTask::new("old"); 1203]).await;
    let other = submit(&store, vec![NewTask::new("other")]).await[0];
    let claimed = claim(&store, 3).await.len();
    let question = get(&app, "/queues/mail/cancel?state=ready&kind=old").await;
    let before = hidden(&question, "cursor");
    let late = submit(&store, vec![NewTask::new("old")]).await[0];
    let form = format!("cursor={before}&state=ready&kind=old");
    let answer = send(&app, "POST", "/queues/mail/cancel", &form).await;
    assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.text);
    let back = "/queues/mail?namespace=default&state=ready&kind=old";
    assert_eq!((answer.headers[LOCATION].to_str().unwrap(), message(&answer).as_str()), (back, "cancel"));
    assert_eq!(count(&store, TaskState::Cancelled).await, 1203 - claimed);
    for kept in [other, late] {
        assert_eq!(state(&store, kept).await, TaskState::Ready);
    }
    assert_eq!(count(&store, TaskState::Claimed).await, claimed);
    assert!(get(&app, back).await.contains("1200 tasks in state ready"));
    // Retry all of them.
    let question = get(&app, "/queues/mail/retry").await;
    let form = format!("cursor={}", hidden(&question, "cursor"));
    let answer = send(&app, "POST", "/queues/mail/retry", &form).await;
    assert_eq!(message(&answer), "retry");
    assert_eq!(count(&store, TaskState::Cancelled).await, 0);
    // A completed task cannot be cancelled.
    let refused = send(&app, "GET", "/queues/mail/cancel?state=completed", "").await;
    assert_eq!(refused.status, StatusCode::CONFLICT);
}

#[tokio::test]
async fn a_stale_form_is_rejected() {
    let store = MemoryStore::new();
    let app = open(&store).await;
    let id = submit(&store, vec![NewTask::new("a")]).await[0];
    // A task that was ready when the form was loaded, and is claimed now.
    assert_eq!(hidden(&get(&app, &format!("/tasks/{id}/cancel")).await, "expected_state"), "ready");
    claim(&store, 1).await;
    let answer = send(&app, "POST", &format!("/tasks/{id}/cancel"), "expected_state=ready").await;
    assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.text);
    assert_eq!(state(&store, id).await, TaskState::Claimed);

    // Settings that changed after the form was loaded.
    let seen = hidden(&get(&app, "/queues/mail/settings").await, "expected_digest");
    let changed = QueueSettings { mode: AssignmentMode::Exclusive, ..QueueSettings::default() };
    store.set_queue(&mail(), &changed).await.unwrap();
    let form = format!(
        "expected_digest={seen}&mode=distributed&preference_window=5s&retention=1d&dead_retention=30d"
    );
    let answer = send(&app, "POST", "/queues/mail/settings", &form).await;
    assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.text);
    assert_eq!(store.queue(&mail()).await.unwrap().unwrap().settings, changed);

    // A request that was waiting when the form was loaded, and is granted now.
    store.add_resources(&hosts(), &[]).await.unwrap();
    let waits = store.create_pool_request(&hosts(), &pool_request("k")).await.unwrap().id;
    let seen = hidden(&get(&app, &format!("/pools/hosts/requests/{waits}/release")).await, "expected_token");
    grant(&store, waits).await;
    let path = format!("/pools/hosts/requests/{waits}/release");
    let answer = send(&app, "POST", &path, &format!("expected_token={seen}")).await;
    assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.text);
    let request = store.pool_request(&Name::default_namespace(), waits).await.unwrap().unwrap();
    assert_eq!(request.state, PoolRequestState::Granted);
}

pub(crate) fn pool_request(key: &str) -> PoolRequest {
    PoolRequest {
        idempotency_key: key.into(),
        owner: "ada".into(),
        required_tags: Vec::new(),
        preferred_tags: Vec::new(),
        base_priority: 100,
        session: None,
        claim_timeout_ms: Some(60_000),
        max_wait_ms: None,
    }
}

/// Add a host and grant it to the request.
pub(crate) async fn grant(store: &MemoryStore, request: PoolRequestId) {
    let host = NewResource { name: name("h"), tags: Vec::new(), enabled: true };
    store.add_resources(&hosts(), &[host]).await.unwrap();
    let request_batch =
        PoolMatchRequest { pool: hosts(), authority: ClaimAuthority::Direct, request: Some(request) };
    assert_eq!(store.match_pool(&request_batch).await.unwrap().unwrap().len(), 1);
}

#[tokio::test]
async fn task_worker_and_pool_data_is_escaped() {
    let store = MemoryStore::new();
    let app = open(&store).await;
    let text = || SCRIPT.to_owned();
    let task = NewTask {
        payload: format!("{{\"{SCRIPT}\": \"{SCRIPT}\"}}").parse().unwrap(),
        required_tags: vec![text()],
        preferred_tags: vec![text()],
        allowed_workers: vec![text()],
        idempotency_key: Some(text()),
        concurrency_key: Some(text()),
        ..NewTask::new(SCRIPT)
    };
    let id = submit(&store, vec![task]).await[0];
    let worker = NewWorker {
        name: text(),
        description: text(),
        tags: vec![text()],
        task_kinds: vec![text()],
        queues: vec![name("mail")],
        location: text(),
        capacity: 1,
        session: None,
    };
    store.register_worker(&Name::default_namespace(), &worker).await.unwrap();
    let host = NewResource { name: name("h"), tags: vec![text()], enabled: true };
    store.add_resources(&hosts(), &[host]).await.unwrap();
    let request = PoolRequest {
        idempotency_key: text(),
        owner: text(),
        required_tags: vec![text()],
        ..pool_request("")
    };
    let waits = store.create_pool_request(&hosts(), &request).await.unwrap().id;
    let escaped = escaped_text(SCRIPT);
    for path in [
        "/queues/mail".to_owned(),
        format!("/queues/mail?kind={escaped}&worker={escaped}"),
        format!("/queues/mail/cancel?kind={escaped}"),
        format!("/queues?q={escaped}"),
        format!("/tasks/new?queue={escaped}"),
        format!("/tasks/{id}"),
        format!("/tasks/{id}/cancel"),
        "/workers".into(),
        format!("/workers/{escaped}/approve"),
        "/pools/hosts".into(),
        format!("/pools/hosts/requests/{waits}/release"),
        "/".into(),
    ] {
        let page = get(&app, &path).await;
        assert!(!page.contains("<script>a"), "{path}: {page}");
        assert!(path == "/" || page.contains("&lt;script&gt;alert"), "{path}: {page}");
    }
    // The same for an approved worker with such a name, and for the audit log.
    let answer = send(&app, "POST", &format!("/workers/{escaped}/approve"), "").await;
    assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.text);
    let audit = get(&app, "/audit").await;
    assert!(audit.contains("worker.approve") && !audit.contains("<script>a"), "{audit}");
    for done in ["%3Cscript%3E", "You%20won"] {
        for page in ["/queues", "/queues/mail", "/workers", "/pools/hosts", &format!("/tasks/{id}")] {
            let page = send(&app, "GET", &format!("{page}?done={done}"), "").await.text;
            assert!(!page.contains("notice good") && !page.contains("You won"), "{page}");
        }
    }
}

fn escaped_text(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

#[tokio::test]
async fn invalid_requests_about_queues_and_pools_get_a_page_that_names_the_error() {
    let store = MemoryStore::new();
    let app = open(&store).await;
    let id = submit(&store, vec![NewTask::new("a")]).await[0];
    store.add_resources(&hosts(), &[]).await.unwrap();
    let settings = "mode=exclusive&preference_window=5s&retention=1d&dead_retention=30d";
    let seen = hidden(&get(&app, "/queues/mail/settings").await, "expected_digest");
    let pool_seen = {
        let host = NewResource { name: name("h"), tags: Vec::new(), enabled: true };
        store.add_resources(&hosts(), &[host]).await.unwrap();
        hidden(&get(&app, "/pools/hosts/settings").await, "expected_digest")
    };
    let (not_found, bad, unfit) =
        (StatusCode::NOT_FOUND, StatusCode::BAD_REQUEST, StatusCode::UNPROCESSABLE_ENTITY);
    let cases: Vec<(&str, String, String, StatusCode, &str)> = vec![
        ("GET", "/queues/nonesuch".into(), "".into(), not_found, "nonesuch"),
        ("GET", "/queues/a%20b".into(), "".into(), bad, "position 2"),
        ("GET", "/queues/mail?state=asleep".into(), "".into(), bad, "asleep"),
        ("GET", "/queues/mail?cursor=x".into(), "".into(), bad, "cursor"),
        ("GET", "/queues/mail?colour=red".into(), "".into(), bad, "colour"),
        ("GET", "/queues/mail/explode".into(), "".into(), not_found, "explode"),
        ("GET", "/namespace/explode".into(), "".into(), not_found, "explode"),
        ("POST", "/namespace/explode".into(), "".into(), not_found, "explode"),
        ("GET", "/tasks/seven".into(), "".into(), bad, "seven"),
        ("GET", "/tasks/4711".into(), "".into(), not_found, "4711"),
        ("GET", format!("/tasks/{id}?namespace=other"), "".into(), not_found, "other"),
        ("GET", format!("/tasks/{id}/explode"), "".into(), not_found, "explode"),
        ("POST", format!("/tasks/{id}/cancel"), "".into(), unfit, "expected_state"),
        (
            "POST",
            "/queues/mail/settings".into(),
            format!("expected_digest={seen}&{settings}&rate=x&per=1s"),
            unfit,
            "rate",
        ),
        (
            "POST",
            "/queues/mail/settings".into(),
            format!("expected_digest={seen}&{settings}&rate=5&per=fast"),
            unfit,
            "fast",
        ),
        (
            "POST",
            "/queues/mail/settings".into(),
            format!("expected_digest={seen}&{settings}&rate=0&per=1s"),
            unfit,
            "rate",
        ),
        ("POST", "/queues/mail/settings".into(), format!("expected_digest={seen}&mode=odd"), unfit, "odd"),
        ("POST", "/queues/mail/cancel".into(), "cursor=x".into(), unfit, "cursor"),
        ("POST", "/tasks/new".into(), "queue=".into(), unfit, "name"),
        ("POST", "/tasks/new".into(), "queue=mail&payload={".into(), unfit, "payload"),
        ("POST", "/tasks/new".into(), "queue=mail&priority=high".into(), unfit, "high"),
        ("POST", "/tasks/new".into(), "queue=mail&delay=soon".into(), unfit, "soon"),
        ("POST", "/tasks/new".into(), "queue=mail&parents=4711".into(), unfit, "4711"),
        ("POST", "/tasks/new".into(), "queue=mail&max_attempts=0".into(), unfit, "attempt"),
        ("GET", "/workers/x/explode".into(), "".into(), not_found, "explode"),
        ("GET", "/pools/nonesuch".into(), "".into(), not_found, "nonesuch"),
        ("GET", "/pools/hosts/explode".into(), "".into(), not_found, "explode"),
        ("GET", "/pools/hosts/resources/x/disable".into(), "".into(), not_found, "x"),
        ("GET", "/pools/hosts/resources/h/explode".into(), "".into(), not_found, "explode"),
        ("GET", "/pools/hosts/requests/4711/release".into(), "".into(), not_found, "4711"),
        ("POST", "/pools/hosts/add".into(), "name=a+b".into(), unfit, "position 2"),
        ("POST", "/pools/new".into(), "pool=&name=a".into(), unfit, "pool"),
        (
            "POST",
            "/pools/hosts/settings".into(),
            format!(
                "expected_digest={pool_seen}&mode=distributed&cooldown=0s&request_retention=1d&priority_formula=1%2F%2F0"
            ),
            unfit,
            "priority",
        ),
    ];
    for (method, path, form, status, word) in cases {
        let answer = send(&app, method, &path, &form).await;
        assert_eq!(answer.status, status, "{method} {path} {form}: {}", answer.text);
        assert!(answer.text.contains(word), "{method} {path} {form}: {}", answer.text);
        assert_eq!(answer.headers[CONTENT_TYPE], "text/html; charset=utf-8", "{path}");
        assert!(answer.text.contains("<main"), "{path}");
    }
    assert_eq!(store.queue(&mail()).await.unwrap().unwrap().settings, QueueSettings::default());
    assert_eq!(state(&store, id).await, TaskState::Ready);
    assert_eq!(count(&store, TaskState::Ready).await, 1);
}

#[tokio::test]
async fn a_page_shows_the_latest_change_and_a_repeated_key_returns_the_first_task() {
    let store = MemoryStore::new();
    let app = open(&store).await;
    assert!(get(&app, "/queues").await.contains("No queues yet"));
    let form = "queue=mail&kind=a&payload=%7B%22n%22%3A1%7D&idempotency_key=once&required_tags=gpu";
    let first = send(&app, "POST", "/tasks/new?namespace=default", form).await;
    let to = first.headers[LOCATION].to_str().unwrap().to_owned();
    assert_eq!(message(&first), "submit");
    // The snapshots from before the submission are refreshed.
    assert!(get(&app, "/queues").await.contains("mail"));
    assert!(get(&app, &to).await.contains("<span class=\"strong\">No worker</span>"));
    let again = send(&app, "POST", "/tasks/new?namespace=default", form).await;
    assert_eq!((again.headers[LOCATION].to_str().unwrap(), message(&again).as_str()), (to.as_str(), "known"));
    assert_eq!(count(&store, TaskState::Ready).await, 1);
    let paused = send(&app, "POST", "/queues/mail/pause", "reason=later").await;
    let to = paused.headers[LOCATION].to_str().unwrap().to_owned();
    assert!(get(&app, &to).await.contains("“later”"));
    let already = send(&app, "POST", "/queues/mail/pause", "reason=later").await;
    assert_eq!(message(&already), "already");
}

#[tokio::test]
async fn a_new_queue_is_found_before_the_next_snapshot() {
    let store = MemoryStore::new();
    let app = open(&store).await;
    for n in 0..20 {
        // The snapshot has just been taken, so the next one is not due.
        get(&app, "/queues").await;
        let queue = QueueKey::new(Name::default_namespace(), name(&format!("q{n}")));
        store.submit(&Submission { queue, tasks: vec![NewTask::new("a")] }).await.unwrap();
        assert!(get(&app, &format!("/queues/q{n}")).await.contains("Recent activity"));
    }
}
