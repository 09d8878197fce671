//! Pages of schedules without a browser: rejected requests, concurrent changes and escaping.

use std::sync::Arc;

use axum::body::Body;
use http::header::{AUTHORIZATION, LOCATION};
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use tenure::Name;
use tenure::port::{
    AccessStore, Credential, CredentialVerifier, EventAdmin, Precondition, ScheduleAdmin, ScheduleKey,
    SetScheduleRequest, TickFilter, TopicKey, TopicSettings,
};
use tenure::runtime::SystemRuntime;
use tenure::store::memory::MemoryStore;
use tenure_core::rules::schedule::{ScheduleDefinition, ScheduleTarget};
use tenure_server::App;
use tenure_server::access::AccessMode;
use tenure_server::access::access_token::AccessToken;
use tower::ServiceExt as _;

use crate::queues::hidden;
use crate::{follow, message, open, send};

const SCRIPT: &str = "<script>alert(1)</script>";

pub(crate) fn key(name: &str) -> ScheduleKey {
    ScheduleKey::new(Name::default_namespace(), name.parse().unwrap())
}

pub(crate) async fn set(store: &MemoryStore, json: &str) {
    let definition: ScheduleDefinition = serde_json::from_str(json).unwrap();
    let set = SetScheduleRequest {
        namespace: Name::default_namespace(),
        definition,
        secret: None,
        precondition: Precondition::Any,
        source: Some(SCRIPT.into()),
        updated_by: SCRIPT.into(),
    };
    store.set_schedule(&set).await.unwrap();
}

async fn definition(store: &MemoryStore, name: &str) -> ScheduleDefinition {
    store.schedule(&key(name)).await.unwrap().expect(name).definition
}

async fn get(app: &App, path: &str) -> String {
    let answer = send(app, "GET", path, "").await;
    assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text);
    answer.text
}

/// The value of a form field, unescaped as far as these tests need it.
fn value(page: &str, name: &str) -> String {
    let at = page.find(&format!("name=\"{name}\"")).unwrap_or_else(|| panic!("{name}: {page}"));
    let tag = &page[at..at + page[at..].find('>').unwrap()];
    let value = tag.split_once("value=\"").map_or("", |(_, rest)| rest.split_once('"').unwrap().0);
    value.replace("&quot;", "\"").replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">")
}

/// The body of a form with changed fields, as a browser posts it.
fn posted(page: &str, fields: &[&str], change: &[(&str, &str)]) -> String {
    let plain = |text: &str| -> String {
        text.bytes()
            .map(|byte| {
                if byte.is_ascii_alphanumeric() {
                    char::from(byte).to_string()
                } else {
                    format!("%{byte:02X}")
                }
            })
            .collect()
    };
    let kept = fields.iter().filter(|field| change.iter().all(|(name, _)| name != *field));
    let kept = kept.map(|field| format!("{field}={}", plain(&value(page, field))));
    let changed = change.iter().map(|(name, value)| format!("{name}={}", plain(value)));
    kept.chain(changed).collect::<Vec<_>>().join("&")
}

const INPUTS: [&str; 8] =
    ["version", "expression", "time_zone", "start_at", "end_at", "jitter", "queue", "kind"];

#[tokio::test]
async fn editing_a_schedule_keeps_the_fields_that_the_form_lacks() {
    let store = MemoryStore::new();
    let app = open(&store).await;
    // A task with many options, a start with milliseconds, and a payload with its own white space.
    set(&store, r#"{"name": "a", "expression": "every 90s from start", "time_zone": "Europe/Berlin", "start_at_ms": 1792890000123, "overlap_policy": "queue",
        "misfire_policy": "within(2h)", "dst": {"gap": "skip"}, "payload": {"a":  [1,
        2]}, "target": {"task": {"queue": "q", "task": {"kind": "k", "required_tags": ["gpu"], "max_run_ms": 5000, "priority": 3}}}}"#).await;
    let before = definition(&store, "a").await;
    let page = get(&app, "/schedules/a/edit").await;
    assert_eq!(
        (value(&page, "start_at").as_str(), value(&page, "time_zone").as_str()),
        ("2026-10-25T02:00:00.123", "Europe/Berlin")
    );
    let rest = [
        ("target", "task"),
        ("priority", "3"),
        ("max_attempts", "20"),
        ("misfire_policy", "within"),
        ("grace", "2h"),
        ("dst_gap", "skip"),
        ("overlap_policy", "queue"),
        ("payload", "{\"a\":  [1,\r\n        2]}"),
        ("step", "save"),
    ];
    let same = send(&app, "POST", "/schedules/a/edit", &posted(&page, &INPUTS, &rest)).await;
    assert_eq!(same.status, StatusCode::SEE_OTHER, "{}", same.text);
    assert_eq!(message(&same), "already", "{:?}", same.headers);
    assert_eq!(definition(&store, "a").await, before);
    // Change only the kind.
    let change: Vec<_> = rest.into_iter().chain([("kind", "other")]).collect();
    let answer = send(&app, "POST", "/schedules/a/edit", &posted(&page, &INPUTS, &change)).await;
    assert_eq!(message(&answer), "set", "{}", answer.text);
    let mut expected = before.clone();
    if let ScheduleTarget::Task { task, .. } = &mut expected.target {
        task.kind = "other".into();
    }
    assert_eq!(definition(&store, "a").await, expected);
    // A form with the old version is rejected; its preview is not.
    let answer = send(&app, "POST", "/schedules/a/edit", &posted(&page, &INPUTS, &rest)).await;
    assert_eq!(answer.status, StatusCode::PRECONDITION_FAILED, "{}", answer.text);
    let check: Vec<_> = rest[..8].iter().copied().chain([("step", "preview")]).collect();
    assert_eq!(
        send(&app, "POST", "/schedules/a/edit", &posted(&page, &INPUTS, &check)).await.status,
        StatusCode::OK
    );
    assert_eq!(definition(&store, "a").await, expected);
    let view = store.schedule(&key("a")).await.unwrap().unwrap();
    assert_eq!(view.source.as_deref(), Some(SCRIPT));
}

#[tokio::test]
async fn the_schedule_form_shows_all_errors_and_a_preview_saves_nothing() {
    let store = MemoryStore::new();
    let app = open(&store).await;
    for (form, fields) in [
        (
            "name=&expression=*&time_zone=Mars&target=task&queue=",
            vec!["name", "expression", "time_zone", "queue"],
        ),
        ("name=a&expression=0+0+31+2+*&time_zone=UTC&target=event&topic=none", vec!["expression"]),
        ("name=a&expression=@daily&time_zone=UTC&target=event&topic=none", vec!["topic"]),
        ("name=a&expression=@daily&target=task&queue=q&jitter=2d", vec!["jitter"]),
        (
            "name=a&expression=@daily&target=task&queue=q&start_at=2026-02-30T00:00&end_at=soon",
            vec!["start_at", "end_at"],
        ),
        (
            "name=a&expression=@daily&target=task&queue=q&start_at=2027-01-02T00:00&end_at=2027-01-01T00:00",
            vec!["end_at"],
        ),
        ("name=a&expression=@daily&target=task&queue=q&misfire_policy=fire_all&cap=99999", vec!["cap"]),
        ("name=a&expression=@daily&target=task&queue=q&misfire_policy=within&grace=soon", vec!["grace"]),
        ("name=a&expression=@daily&target=task&queue=q&payload=%7B", vec!["payload"]),
        ("name=a&expression=@daily&target=task&queue=q&priority=high&max_attempts=20", vec!["priority"]),
        ("name=a&expression=@daily&target=webhook&url=ftp://h.example/x", vec!["url"]),
        ("name=a&expression=@daily&target=webhook&url=http://169.254.169.254/latest", vec!["url"]),
        ("name=a&expression=@daily&target=webhook&url=https://h.example/&secret=short", vec!["secret"]),
    ] {
        for (step, status) in [("preview", StatusCode::OK), ("save", StatusCode::UNPROCESSABLE_ENTITY)] {
            // Secrets are validated on save only.
            if step == "preview" && form.contains("secret") {
                continue;
            }
            let answer = send(&app, "POST", "/schedules/new", &format!("{form}&step={step}")).await;
            assert_eq!(answer.status, status, "{form}: {}", answer.text);
            // Empty fields are not errors in a preview.
            let is_told = |field: &&&str| step == "save" || !matches!(**field, "name" | "queue");
            let fields: Vec<_> = fields.iter().filter(is_told).collect();
            for field in &fields {
                assert!(
                    answer.text.contains(&format!("data-error-field=\"{field}\"")),
                    "{form} {field}: {}",
                    answer.text
                );
            }
            assert_eq!(
                answer.text.matches("data-error-field=").count(),
                fields.len(),
                "{form}: {}",
                answer.text
            );
        }
    }
    let fine =
        send(&app, "POST", "/schedules/new", "name=a&expression=@daily&target=task&queue=q&step=preview")
            .await;
    assert!(
        fine.text.contains("class=\"calendar days\"") && !fine.text.contains("data-error-field"),
        "{}",
        fine.text
    );
    assert!(store.schedule(&key("a")).await.unwrap().is_none());
    for (path, status) in [
        ("/schedules/none", StatusCode::NOT_FOUND),
        ("/schedules/none/edit", StatusCode::NOT_FOUND),
        ("/schedules/none/backfill", StatusCode::NOT_FOUND),
        ("/schedules/none/pause", StatusCode::NOT_FOUND),
        ("/schedules?cursor=nonsense", StatusCode::OK),
        ("/schedules/none?cursor=yesterday", StatusCode::BAD_REQUEST),
    ] {
        assert_eq!(send(&app, "GET", path, "").await.status, status, "{path}");
    }
}

#[tokio::test]
async fn a_webhook_secret_is_shown_once_and_its_query_never() {
    let store = MemoryStore::new();
    let app = open(&store).await;
    let form =
        "name=hook&expression=@daily&target=webhook&url=https%3A%2F%2Fh.example%2Fx%3Fk%3Dhidden&step=save";
    let made = send(&app, "POST", "/schedules/new", form).await;
    // The page shows the secret once and deletes both cookies.
    let shown = follow(&app, &made).await;
    assert!(shown.headers.get_all(http::header::SET_COOKIE).iter().count() == 2, "{:?}", shown.headers);
    let secret = shown
        .text
        .split("whsec_")
        .nth(1)
        .and_then(|rest| rest.split('<').next())
        .expect("a secret")
        .to_owned();
    assert_eq!(store.webhook_secret(&key("hook")).await.unwrap(), Some(format!("whsec_{secret}")));
    for path in
        ["/schedules", "/schedules/hook", "/schedules/hook/delete", "/schedules/hook/trigger", "/", "/audit"]
    {
        let page = get(&app, path).await;
        assert!(!page.contains(&secret) && !page.contains("k=hidden"), "{path}: {page}");
    }
    // The form shows the URL to administrators and never the secret. Saving it unchanged keeps the secret.
    let page = get(&app, "/schedules/hook/edit").await;
    assert!(page.contains("k=hidden") && !page.contains(&secret), "{page}");
    let form = posted(
        &page,
        &["version", "expression", "time_zone", "url"],
        &[("target", "webhook"), ("step", "save")],
    );
    let answer = send(&app, "POST", "/schedules/hook/edit", &form).await;
    assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.text);
    assert_eq!(store.webhook_secret(&key("hook")).await.unwrap(), Some(format!("whsec_{secret}")));
    let form = posted(
        &page,
        &["version", "time_zone", "url"],
        &[("target", "webhook"), ("expression", "@daily"), ("rotate_secret", "on"), ("step", "save")],
    );
    let answer = send(&app, "POST", "/schedules/hook/edit", &form).await;
    let answer = follow(&app, &answer).await;
    assert!(answer.text.contains("whsec_") && !answer.text.contains(&secret), "{}", answer.text);
}

#[tokio::test]
async fn a_backfill_preview_fires_nothing_and_the_backfill_fires_the_previewed_ticks() {
    let store = MemoryStore::new();
    let app = open(&store).await;
    set(&store, r#"{"name": "a", "expression": "every 1m", "target": {"task": {"queue": "q"}}}"#).await;
    let ticks =
        async || store.ticks(&TickFilter { key: key("a"), before_ms: None, limit: 1000 }).await.unwrap();
    let trial = get(&app, "/schedules/a/backfill?from=2026-01-01T00:00&to=2026-01-01T01:00").await;
    assert!(trial.contains("Nothing has fired yet") && trial.contains("Fire 60 ticks"), "{trial}");
    assert!(ticks().await.is_empty());
    let form = format!("from_at_ms={}&to_at_ms={}", hidden(&trial, "from_at_ms"), hidden(&trial, "to_at_ms"));
    let answer = send(&app, "POST", "/schedules/a/backfill", &form).await;
    assert_eq!(answer.headers[LOCATION], "/schedules/a?namespace=default", "{}", answer.text);
    assert_eq!(message(&answer), "backfill");
    assert_eq!(ticks().await.len(), 60);
    // Repeated, no tick fires twice.
    let answer = send(&app, "POST", "/schedules/a/backfill", &form).await;
    assert_eq!(message(&answer), "nothing");
    assert_eq!(ticks().await.len(), 60);
    // The action covers only examined ticks of a larger range.
    let trial = get(&app, "/schedules/a/backfill?from=2025-01-01T00:00&to=2025-02-01T00:00").await;
    assert!(trial.contains("Fire 10000 ticks") && trial.contains("34,640"), "{trial}");
    let until: i64 = hidden(&trial, "to_at_ms").parse().unwrap();
    assert_eq!(until, 1_735_689_600_000 + 9_999 * 60_000 + 1);
    for wrong in
        ["from=&to=2026-01-01T00:00", "from=soon&to=later", "from=2026-01-02T00:00&to=2026-01-01T00:00"]
    {
        let answer = send(&app, "GET", &format!("/schedules/a/backfill?{wrong}"), "").await;
        assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY, "{wrong}: {}", answer.text);
    }
}

#[tokio::test]
async fn schedule_data_is_escaped() {
    let store = MemoryStore::new();
    let app = open(&store).await;
    store
        .set_topic(&TopicKey::new(Name::default_namespace(), "t".parse().unwrap()), &TopicSettings::default())
        .await
        .unwrap();
    set(&store, &format!(r#"{{"name": "a", "expression": "every 1m", "target": {{"event": {{"topic": "t", "key": "{SCRIPT}"}}}}, "payload": {{"x": "{SCRIPT}"}}}}"#)).await;
    let reason = format!("reason={}", SCRIPT.replace('<', "%3C").replace('>', "%3E"));
    assert_eq!(send(&app, "POST", "/schedules/a/pause", &reason).await.status, StatusCode::SEE_OTHER);
    assert_eq!(send(&app, "POST", "/schedules/a/trigger", "payload=").await.status, StatusCode::SEE_OTHER);
    for path in [
        "/schedules",
        "/schedules?q=%3Cscript%3Ealert(1)%3C/script%3E",
        "/schedules?cursor=default/%3Cscript%3E",
        "/schedules/a",
        "/schedules/a/edit",
        "/schedules/a/resume",
        "/schedules/a/delete",
        "/audit",
        "/",
    ] {
        let page = get(&app, path).await;
        assert!(!page.contains(SCRIPT) && !page.contains("style="), "{path}: {page}");
    }
    let wrong = "name=%3Cscript%3Ealert(1)%3C/script%3E&expression=%3Cscript%3Ealert(1)%3C/script%3E&time_zone=%3Cscript%3Ealert(1)%3C/script%3E&target=task&queue=q&step=preview";
    assert!(!send(&app, "POST", "/schedules/new", wrong).await.text.contains(SCRIPT));
}

#[tokio::test]
async fn a_long_list_of_schedules_is_paged() {
    let store = MemoryStore::new();
    let app = open(&store).await;
    for n in 0..250 {
        set(
            &store,
            &format!(
                r#"{{"name": "s-{n:03}", "expression": "every 1h", "target": {{"task": {{"queue": "q{n}"}}}}}}"#
            ),
        )
        .await;
    }
    let rows = |page: &str| page.matches("data-key=\"schedule-default/").count();
    let first = get(&app, "/schedules").await;
    assert_eq!((rows(&first), first.contains("cursor=default%2Fs-099")), (100, true), "{first}");
    let second = get(&app, "/schedules?cursor=default%2Fs-099").await;
    assert!(
        rows(&second) == 100 && second.contains(">s-100<") && second.contains("cursor=default%2Fs-199"),
        "{second}"
    );
    let last = get(&app, "/schedules?cursor=default%2Fs-199").await;
    assert!(rows(&last) == 50 && !last.contains(">Next page<"), "{last}");
    let found = get(&app, "/schedules?q=q249").await;
    assert!(rows(&found) == 1 && found.contains(">s-249<"), "{found}");
}

#[tokio::test]
async fn schedules_require_a_login() {
    let store = MemoryStore::new();
    set(&store, r#"{"name": "a", "expression": "every 1m", "target": {"task": {"queue": "q"}}}"#).await;
    let store: Arc<dyn tenure::port::Store> = Arc::new(store);
    let access = AccessMode::guarded(store.clone(), Arc::new(SystemRuntime)).await.unwrap();
    let app = App::new(store, access, Arc::new(SystemRuntime));
    for path in ["/schedules", "/schedules/a", "/schedules/new", "/schedules/a/edit"] {
        assert_eq!(send(&app, "GET", path, "").await.status, StatusCode::SEE_OTHER, "{path}");
    }
    for path in ["/schedules/new", "/schedules/a/edit", "/schedules/a/trigger", "/schedules/a/backfill"] {
        let status = send(&app, "POST", path, "step=preview").await.status;
        assert!(status == StatusCode::UNAUTHORIZED || status == StatusCode::SEE_OTHER, "{path} {status}");
    }
}

#[tokio::test]
async fn a_reader_of_one_namespace_sees_its_schedules_and_no_buttons() {
    let store = MemoryStore::new();
    for (namespace, name) in [("billing", "theirs"), ("default", "ours"), ("zoo", "theirs-too")] {
        let json = format!(
            r#"{{"name": "{name}", "expression": "every 1m", "target": {{"task": {{"queue": "q"}}}}}}"#
        );
        let set = SetScheduleRequest {
            namespace: namespace.parse().unwrap(),
            definition: serde_json::from_str(&json).unwrap(),
            secret: None,
            precondition: Precondition::New,
            source: None,
            updated_by: "ada".into(),
        };
        store.set_schedule(&set).await.unwrap();
    }
    let token = AccessToken::generate(tenure::runtime::random);
    let credential = Credential {
        id: token.id.clone(),
        name: "reader".into(),
        verifier: CredentialVerifier::AccessToken { digest: token.digest.clone() },
        grants: vec!["default:read".parse().unwrap()],
        created_at_ms: 0,
        created_by: "test".into(),
        expires_at_ms: None,
        revoked_at_ms: None,
    };
    store.put_credential(&credential).await.unwrap();
    let store: Arc<dyn tenure::port::Store> = Arc::new(store);
    let access = AccessMode::guarded(store.clone(), Arc::new(SystemRuntime)).await.unwrap();
    let app = App::new(store, access, Arc::new(SystemRuntime));
    let get_as_reader = async |path: &str| {
        let request = Request::builder()
            .uri(path)
            .header("host", "localhost")
            .header("accept", "text/html")
            .header(AUTHORIZATION, format!("Bearer {}", token.text))
            .body(Body::empty())
            .unwrap();
        let response = app.router().oneshot(request).await.unwrap();
        let status = response.status();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(bytes.to_vec()).unwrap())
    };
    for path in ["/schedules", "/schedules?namespace=default", "/schedules?cursor=default%2Fa", "/"] {
        let (status, page) = get_as_reader(path).await;
        assert_eq!(status, StatusCode::OK, "{path}: {page}");
        assert!(path == "/" || page.contains(">ours<"), "{path}: {page}");
        assert!(!page.contains("theirs") && !page.contains("data-confirm"), "{path}: {page}");
    }
    let (_, page) = get_as_reader("/schedules/ours").await;
    assert!(
        page.contains("Upcoming ticks") && !page.contains("data-confirm") && !page.contains("/edit"),
        "{page}"
    );
    for path in ["/schedules?namespace=zoo", "/schedules/theirs?namespace=billing"] {
        let (_, page) = get_as_reader(path).await;
        assert!(!page.contains(">theirs"), "{path}: {page}");
    }
    assert_eq!(get_as_reader("/schedules/ours/pause").await.0, StatusCode::FORBIDDEN);
}
