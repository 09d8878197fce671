//! Pages about work without a browser: what is refused, what is meant, and what is escaped.

use http::StatusCode;
use http::header::{CONTENT_TYPE, LOCATION};
use tenure::Name;
use tenure::backend::memory::Memory;
use tenure::port::{
    Authority, ClaimAnswer, ClaimAsk, ClaimedTask, Desk, Mode, NewRequest, NewResource, NewTask, NewWorker,
    PoolKey, PoolMatch, Pools, Profile, QueueKey, QueueSettings, RequestId, RequestState, Seat, Submission,
    TaskFilter, TaskId, TaskState, Tasks,
};
use tenure_server::App;

use crate::{open, send, told};

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

pub(crate) async fn submit(store: &Memory, tasks: Vec<NewTask>) -> Vec<TaskId> {
    let submitted = store.submit(&Submission { queue: mail(), tasks }).await.unwrap();
    submitted.into_iter().map(|one| one.id).collect()
}

pub(crate) async fn claim(store: &Memory, limit: u32) -> Vec<ClaimedTask> {
    let worker = Profile { name: "w".into(), ..Profile::default() };
    let seats = vec![Seat { worker, limit, session: None, hold_ms: Some(60_000) }];
    let ask = ClaimAsk { queue: mail(), authority: Authority::Direct, seats };
    match store.claim(&ask).await.unwrap() {
        ClaimAnswer::Served { tasks, .. } => tasks.into_iter().flatten().collect(),
        ClaimAnswer::Refused(refusal) => panic!("{refusal:?}"),
    }
}

async fn state(store: &Memory, id: TaskId) -> TaskState {
    store.task(&Name::default_namespace(), id).await.unwrap().unwrap().state
}

async fn count(store: &Memory, state: TaskState) -> usize {
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
async fn many_are_cancelled_but_none_that_came_after_the_question() {
    let store = Memory::new();
    let app = open(&store).await;
    // More than one batch.
    submit(&store, vec![NewTask::new("old"); 1203]).await;
    let other = submit(&store, vec![NewTask::new("other")]).await[0];
    let claimed = claim(&store, 3).await.len();
    let question = get(&app, "/queues/mail/cancel?state=ready&kind=old").await;
    let before = hidden(&question, "before");
    let late = submit(&store, vec![NewTask::new("old")]).await[0];
    let form = format!("before={before}&state=ready&kind=old");
    let answer = send(&app, "POST", "/queues/mail/cancel", &form).await;
    assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.text);
    let back = "/queues/mail?namespace=default&state=ready&kind=old";
    assert_eq!((answer.headers[LOCATION].to_str().unwrap(), told(&answer).as_str()), (back, "cancel"));
    assert_eq!(count(&store, TaskState::Cancelled).await, 1203 - claimed);
    for kept in [other, late] {
        assert_eq!(state(&store, kept).await, TaskState::Ready);
    }
    assert_eq!(count(&store, TaskState::Claimed).await, claimed);
    assert!(get(&app, back).await.contains("1200 tasks of those that were ready"));
    // And back, all that were.
    let question = get(&app, "/queues/mail/retry").await;
    let form = format!("before={}", hidden(&question, "before"));
    let answer = send(&app, "POST", "/queues/mail/retry", &form).await;
    assert_eq!(told(&answer), "retry");
    assert_eq!(count(&store, TaskState::Cancelled).await, 0);
    // What is completed can be neither.
    let refused = send(&app, "GET", "/queues/mail/cancel?state=completed", "").await;
    assert_eq!(refused.status, StatusCode::CONFLICT);
}

#[tokio::test]
async fn what_has_changed_since_somebody_looked_is_left_alone() {
    let store = Memory::new();
    let app = open(&store).await;
    let id = submit(&store, vec![NewTask::new("a")]).await[0];
    // A task that waited when it was looked at, and runs by now.
    assert_eq!(hidden(&get(&app, &format!("/tasks/{id}/cancel")).await, "seen"), "ready");
    claim(&store, 1).await;
    let answer = send(&app, "POST", &format!("/tasks/{id}/cancel"), "seen=ready").await;
    assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.text);
    assert_eq!(state(&store, id).await, TaskState::Claimed);

    // Settings that somebody else has changed.
    let seen = hidden(&get(&app, "/queues/mail/settings").await, "seen");
    let changed = QueueSettings { mode: Mode::Exclusive, ..QueueSettings::default() };
    store.set_queue(&mail(), &changed).await.unwrap();
    let form = format!("seen={seen}&mode=distributed&prefer=5s&keep=1d&keep_dead=30d");
    let answer = send(&app, "POST", "/queues/mail/settings", &form).await;
    assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.text);
    assert_eq!(store.queue(&mail()).await.unwrap().unwrap().settings, changed);

    // A request that waited when it was looked at, and has the resource by now.
    store.add_resources(&hosts(), &[]).await.unwrap();
    let waits = store.request(&hosts(), &asks("k")).await.unwrap().id;
    let seen = hidden(&get(&app, &format!("/pools/hosts/requests/{waits}/release")).await, "seen");
    grant(&store, waits).await;
    let path = format!("/pools/hosts/requests/{waits}/release");
    let answer = send(&app, "POST", &path, &format!("seen={seen}")).await;
    assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.text);
    let request = store.pool_request(&Name::default_namespace(), waits).await.unwrap().unwrap();
    assert_eq!(request.state, RequestState::Granted);
}

pub(crate) fn asks(key: &str) -> NewRequest {
    NewRequest {
        key: key.into(),
        owner: "ada".into(),
        requires: Vec::new(),
        prefers: Vec::new(),
        base: 100,
        session: None,
        hold_ms: Some(60_000),
        max_wait_ms: None,
    }
}

/// A host comes, and the request gets it.
pub(crate) async fn grant(store: &Memory, request: RequestId) {
    let host = NewResource { name: name("h"), tags: Vec::new(), enabled: true };
    store.add_resources(&hosts(), &[host]).await.unwrap();
    let ask = PoolMatch { pool: hosts(), authority: Authority::Direct, request: Some(request) };
    assert_eq!(store.match_pool(&ask).await.unwrap().unwrap().len(), 1);
}

#[tokio::test]
async fn whatever_users_put_in_is_shown_and_nothing_more() {
    let store = Memory::new();
    let app = open(&store).await;
    let text = || SCRIPT.to_owned();
    let task = NewTask {
        payload: format!("{{\"{SCRIPT}\": \"{SCRIPT}\"}}").parse().unwrap(),
        requires: vec![text()],
        prefers: vec![text()],
        workers: vec![text()],
        key: Some(text()),
        concurrency_key: Some(text()),
        ..NewTask::new(SCRIPT)
    };
    let id = submit(&store, vec![task]).await[0];
    let worker = NewWorker {
        name: text(),
        kind: text(),
        tags: vec![text()],
        kinds: vec![text()],
        queues: vec![name("mail")],
        location: text(),
        capacity: 1,
        session: None,
    };
    store.register(&Name::default_namespace(), &worker).await.unwrap();
    let host = NewResource { name: name("h"), tags: vec![text()], enabled: true };
    store.add_resources(&hosts(), &[host]).await.unwrap();
    let request = NewRequest { key: text(), owner: text(), requires: vec![text()], ..asks("") };
    let waits = store.request(&hosts(), &request).await.unwrap().id;
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
    // Also what an operator approves under a name like that, and what the audit says of it.
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
async fn nonsense_about_work_is_answered_with_a_page_that_names_it() {
    let store = Memory::new();
    let app = open(&store).await;
    let id = submit(&store, vec![NewTask::new("a")]).await[0];
    store.add_resources(&hosts(), &[]).await.unwrap();
    let settings = "mode=exclusive&prefer=5s&keep=1d&keep_dead=30d";
    let seen = hidden(&get(&app, "/queues/mail/settings").await, "seen");
    let pool_seen = {
        let host = NewResource { name: name("h"), tags: Vec::new(), enabled: true };
        store.add_resources(&hosts(), &[host]).await.unwrap();
        hidden(&get(&app, "/pools/hosts/settings").await, "seen")
    };
    let (not_found, bad, unfit) =
        (StatusCode::NOT_FOUND, StatusCode::BAD_REQUEST, StatusCode::UNPROCESSABLE_ENTITY);
    let cases: Vec<(&str, String, String, StatusCode, &str)> = vec![
        ("GET", "/queues/nonesuch".into(), "".into(), not_found, "nonesuch"),
        ("GET", "/queues/a%20b".into(), "".into(), bad, "position 2"),
        ("GET", "/queues/mail?state=asleep".into(), "".into(), bad, "asleep"),
        ("GET", "/queues/mail?before=x".into(), "".into(), bad, "before"),
        ("GET", "/queues/mail?colour=red".into(), "".into(), bad, "colour"),
        ("GET", "/queues/mail/explode".into(), "".into(), not_found, "explode"),
        ("GET", "/namespace/explode".into(), "".into(), not_found, "explode"),
        ("POST", "/namespace/explode".into(), "".into(), not_found, "explode"),
        ("GET", "/tasks/seven".into(), "".into(), bad, "seven"),
        ("GET", "/tasks/4711".into(), "".into(), not_found, "4711"),
        ("GET", format!("/tasks/{id}?namespace=other"), "".into(), not_found, "other"),
        ("GET", format!("/tasks/{id}/explode"), "".into(), not_found, "explode"),
        ("POST", format!("/tasks/{id}/cancel"), "".into(), unfit, "seen"),
        (
            "POST",
            "/queues/mail/settings".into(),
            format!("seen={seen}&{settings}&rate=x&per=1s"),
            unfit,
            "rate",
        ),
        (
            "POST",
            "/queues/mail/settings".into(),
            format!("seen={seen}&{settings}&rate=5&per=fast"),
            unfit,
            "fast",
        ),
        (
            "POST",
            "/queues/mail/settings".into(),
            format!("seen={seen}&{settings}&rate=0&per=1s"),
            unfit,
            "rate",
        ),
        ("POST", "/queues/mail/settings".into(), format!("seen={seen}&mode=odd"), unfit, "odd"),
        ("POST", "/queues/mail/cancel".into(), "before=x".into(), unfit, "before"),
        ("POST", "/tasks/new".into(), "queue=".into(), unfit, "name"),
        ("POST", "/tasks/new".into(), "queue=mail&payload={".into(), unfit, "payload"),
        ("POST", "/tasks/new".into(), "queue=mail&priority=high".into(), unfit, "high"),
        ("POST", "/tasks/new".into(), "queue=mail&after=soon".into(), unfit, "soon"),
        ("POST", "/tasks/new".into(), "queue=mail&parents=4711".into(), unfit, "4711"),
        ("POST", "/tasks/new".into(), "queue=mail&attempts=0".into(), unfit, "attempt"),
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
            format!("seen={pool_seen}&mode=distributed&cool_down=0s&keep=1d&priority=1%2F%2F0"),
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
async fn a_page_shows_what_was_just_done_and_what_the_same_key_meant_before() {
    let store = Memory::new();
    let app = open(&store).await;
    assert!(get(&app, "/queues").await.contains("Nothing was ever submitted"));
    let form = "queue=mail&kind=a&payload=%7B%22n%22%3A1%7D&key=once&requires=gpu";
    let first = send(&app, "POST", "/tasks/new?namespace=default", form).await;
    let to = first.headers[LOCATION].to_str().unwrap().to_owned();
    assert_eq!(told(&first), "submit");
    // Looked at before, and not shown as it was then.
    assert!(get(&app, "/queues").await.contains("mail"));
    assert!(get(&app, &to).await.contains("No live worker"));
    let again = send(&app, "POST", "/tasks/new?namespace=default", form).await;
    assert_eq!((again.headers[LOCATION].to_str().unwrap(), told(&again).as_str()), (to.as_str(), "known"));
    assert_eq!(count(&store, TaskState::Ready).await, 1);
    let paused = send(&app, "POST", "/queues/mail/pause", "reason=later").await;
    let to = paused.headers[LOCATION].to_str().unwrap().to_owned();
    assert!(get(&app, &to).await.contains("“later”"));
    let already = send(&app, "POST", "/queues/mail/pause", "reason=later").await;
    assert_eq!(told(&already), "already");
}

#[tokio::test]
async fn a_queue_that_is_new_is_never_called_unknown() {
    let store = Memory::new();
    let app = open(&store).await;
    for n in 0..20 {
        // Just looked at, and so not looked at again soon.
        get(&app, "/queues").await;
        let queue = QueueKey::new(Name::default_namespace(), name(&format!("q{n}")));
        store.submit(&Submission { queue, tasks: vec![NewTask::new("a")] }).await.unwrap();
        assert!(get(&app, &format!("/queues/q{n}")).await.contains("The last minutes"));
    }
}
